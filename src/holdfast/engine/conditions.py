"""`retry_when` and `stop_when`, evaluated before the transaction that needs their answer."""

from __future__ import annotations

from typing import Any

from holdfast.core.failures import Classification, Failure
from holdfast.core.model import JobState
from holdfast.core.retry import RetryPolicy
from holdfast.core.transitions import Verdict
from holdfast.playbook.template import ConditionFailed, compile_condition, error_value


def judge(
    failure: Failure, classification: Classification, policy: RetryPolicy, job: JobState, workload: Any
) -> Verdict:
    """What the decision needs to know. A condition that fails to evaluate counts as not given."""
    stop = retry = problem = None
    if policy.retry_when is not None or policy.stop_when is not None:
        variables = _variables(failure, classification, job, workload)
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
    failure: Failure, classification: Classification, job: JobState, workload: Any
) -> dict[str, Any]:
    error = error_value(
        failure.message, type=classification.error_type, category=classification.category.value
    )
    return {
        "result": None,
        "attempt": job.attempts,
        "max_attempts": job.max_attempts,
        "error": error,
        "status_code": failure.status_code,
        "success": False,
        "data": None,
        "response": None,
        "execution_id": job.execution_id,
        "step": job.step,
        "workload": workload,
    }


def _evaluate(source: str | None, name: str, variables: dict[str, Any]) -> tuple[bool | None, str | None]:
    if source is None:
        return None, None
    try:
        return compile_condition(source).evaluate(variables), None
    except ConditionFailed as error:
        return None, f"{name}: {error}"
