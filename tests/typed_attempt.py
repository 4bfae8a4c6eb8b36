"""One attempt of a step with a built-in type, as a worker runs it: a lease made by hand, no engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.core.failures import Classification, Failure, classify
from holdfast.core.model import Completed, Failed, Lane, Leased, Outcome
from holdfast.worker.attempt import Attempt
from holdfast.worker.context import Context
from holdfast.worker.typed import Leave, typed_handlers
from running import run

ALL_LEAVE = Leave(code=True, shell=True)


def leased(
    handler: str,
    *,
    config: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    input: Mapping[str, Any] | None = None,
    workload: Any = None,
    outputs: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    parked: Any = None,
    **more: Any,
) -> Leased:
    return Leased(
        queue_id=7,
        fence="fence",
        execution_id=12,
        path="flow",
        definition_id=1,
        step="work",
        handler=handler,
        element=more.pop("element", -1),
        round=1,
        attempt=1,
        max_attempts=3,
        lane=Lane.BULK,
        lease_until=0.0,
        timeout_seconds=timeout,
        workload=json.dumps({} if workload is None else workload),
        outputs={name: json.dumps(output) for name, output in (outputs or {}).items()},
        type=handler.partition("/")[2],
        config=json.dumps(config or {}),
        inputs=json.dumps(inputs or {}),
        input=json.dumps(input or {}),
        parked=None if parked is None else json.dumps(parked),
        **more,
    )


async def attempted(
    job: Leased,
    *,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    environ: Mapping[str, str] | None = None,
    leave: Leave = ALL_LEAVE,
    **options: Any,
) -> Outcome:
    handlers = typed_handlers(leave, functions, environ=environ or {}, **options)
    with ThreadPoolExecutor(1) as threads:
        attempt = Attempt(job, Context(job, lambda fraction: None), handlers, threads)
        outcome = attempt.run_at_once()
        if outcome is None:
            outcome = await attempt.run()
    assert outcome is not None
    return outcome


def outcome_of(job: Leased, **options: Any) -> Outcome:
    return run(attempted(job, **options))


def result_of(job: Leased, **options: Any) -> Any:
    outcome = outcome_of(job, **options)
    assert isinstance(outcome, Completed), outcome
    return json.loads(outcome.result)


def failure_of(job: Leased, **options: Any) -> Failure:
    outcome = outcome_of(job, **options)
    assert isinstance(outcome, Failed), outcome
    return outcome.failure


def judged(failure: Failure) -> Classification:
    return classify(failure)
