"""`retry_when` and `stop_when`, evaluated before the transaction that needs their answer."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.core.failures import Classification, Failure
from holdfast.core.masking import clean_message
from holdfast.core.retry import RetryPolicy
from holdfast.core.transitions import Verdict
from holdfast.playbook.template import ConditionFailed, compile_condition, error_value
from holdfast.store.interface import Claimed


class Attempted(NamedTuple):
    """The attempt that ended with an error; `workload` (JSON text) where it is at hand."""

    execution_id: int
    definition_id: int
    step: str
    attempts: int
    max_attempts: int
    workload: str | None = None

    @classmethod
    def leased(cls, row: Claimed) -> Attempted:
        return cls(
            row.execution_id, row.definition_id, row.step, row.attempts, row.max_attempts, row.workload
        )


def judge(
    failure: Failure, classification: Classification, policy: RetryPolicy, attempt: Attempted, workload: Any
) -> Verdict:
    """What the decision needs to know. A condition that fails to evaluate counts as not given."""
    stop = retry = problem = None
    if policy.retry_when is not None or policy.stop_when is not None:
        variables = _variables(failure, classification, attempt, workload)
        stop, stop_problem = _evaluate(policy.stop_when, "stop_when", variables)
        retry, retry_problem = _evaluate(policy.retry_when, "retry_when", variables)
        problem = "; ".join(filter(None, (stop_problem, retry_problem))) or None
    return Verdict(
        classification=classification,
        stop=stop,
        retry=retry,
        condition_error=problem,
        retry_after=failure.retry_after,
    )


def _variables(
    failure: Failure, classification: Classification, attempt: Attempted, workload: Any
) -> dict[str, Any]:
    error = error_value(
        failure.message, type=classification.error_type, category=classification.category.value
    )
    answer = None
    if failure.data is not None:
        answer = {"status_code": failure.status_code, "data": failure.data}
    return {
        "result": answer,
        "attempt": attempt.attempts,
        "max_attempts": attempt.max_attempts,
        "error": error,
        "status_code": failure.status_code,
        "success": False,
        "data": failure.data,
        "response": answer,
        "execution_id": attempt.execution_id,
        "step": attempt.step,
        "workload": workload,
    }


def _evaluate(source: str | None, name: str, variables: dict[str, Any]) -> tuple[bool | None, str | None]:
    if source is None:
        return None, None
    try:
        return compile_condition(source).evaluate(variables), None
    except ConditionFailed as error:
        return None, clean_message(f"{name}: {error}")  # kept in the history: it must fit into a store
