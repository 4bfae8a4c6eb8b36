"""A retry asked for by a person: refused with a reason, or a new round that keeps earlier work.

The refusals are checked in one fixed order, each with a sentence for people. A new round gets a new
job at the stage it resumes at; stages before it are kept and shown as skipped, stages from it on are
cleared by their `clear` hooks before it runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.audit import AuditEntry, Deed, audited
from holdfast.core.catalogue import Category
from holdfast.core.errors import InvalidInput, RetryRefused
from holdfast.core.failures import StoredError
from holdfast.core.gates import Place
from holdfast.core.model import EventType, ExecutionState, ExecutionStatus, JobState, JobStatus
from holdfast.engine.batch_book import BatchBook, Start
from holdfast.engine.decisions import Decisions
from holdfast.engine.definitions import Definitions
from holdfast.engine.events import event, pack
from holdfast.engine.resuming import Resuming
from holdfast.engine.settle import new_job, scheduled
from holdfast.playbook import plan
from holdfast.playbook.definition import Definition, Step
from holdfast.playbook.faults import listed
from holdfast.store.changes import Changes

MANUAL_RETRIES_MAX = 5
COOLDOWN_SECONDS = 60.0
ALREADY_COMPLETED = "already_completed"

_STORED_ERROR = msgspec.json.Decoder(StoredError)


class RetryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`full` starts at the first stage and needs `confirm` where results would be lost; `force` lets an
    operator retry a permanent error."""

    from_stage: str | None = None
    full: bool = False
    confirm: bool = False
    force: bool = False
    by: str = ""


def retry_plan(
    request: RetryRequest,
    execution: ExecutionState,
    jobs: Sequence[JobState],
    definitions: Definitions,
    decisions: Decisions,
    book: BatchBook,
    *,
    redrive: bool = False,
) -> Changes:
    """The new round, or RetryRefused. A `redrive` knows no cap and no cooldown, and uses up neither. The
    book's changes are the caller's to write: several executions may be in one batch."""
    now, definition = book.now, definitions[execution.definition_id]
    error = _STORED_ERROR.decode(execution.error) if execution.error else None
    stage = _stage(request, definition, error)
    _refuse(request, execution, error, now, redrive=redrive)
    if request.full and not request.confirm:
        _refuse_loss(execution, jobs, definition)
    assert error is not None, "a failed execution has its error"
    if not definition.is_linear:
        resuming = Resuming(definitions, decisions, book.decisions, execution, jobs, now)
        return _resumed(request, execution, error, resuming, now, redrive=redrive)
    if stage not in plan.steps_before(definition, error.stage) and stage != error.stage:
        raise InvalidInput(
            f"Execution {execution.id} failed at {error.stage}, before {stage}.",
            guidance=f"Retry from {error.stage} or an earlier stage.",
        )
    kept = plan.steps_before(definition, stage)
    cleared = plan.steps_between(definition, stage, _reached(definition, error, jobs))
    step = definition.step(stage)
    last_completed = kept[-1] if kept else None
    resumed = _next_round(execution, last_completed, now, redrive=redrive)
    start = _start(step, execution, jobs, book)
    book.moved(execution, None, Place(stage, start.held_by))
    events = [
        _told(request, resumed, stage, redrive=redrive),
        *(event(EventType.STEP_SKIPPED, name, reason=ALREADY_COMPLETED) for name in kept),
        event(EventType.STEP_STARTED, stage),
    ]
    if start.scheduled_for is not None:
        events.append(scheduled(stage, start))
    # Later stages are cleared first: they were built on the earlier ones.
    clear = msgspec.json.encode(cleared[::-1]).decode()
    return Changes(
        executions=[resumed],
        new_jobs=[new_job(step, execution, resumed.round, start, clear)],
        events=[(execution.id, pack(events))],
        audit=[_audited(request, resumed, stage, redrive=redrive)],
    )


def _resumed(
    request: RetryRequest,
    execution: ExecutionState,
    error: StoredError,
    resuming: Resuming,
    now: float,
    *,
    redrive: bool,
) -> Changes:
    """The same of a playbook that is more than a chain of steps."""
    stage = request.from_stage or error.stage
    if request.full or (request.from_stage is not None and request.from_stage != error.stage):
        new = resuming.from_step(request.from_stage)
    else:
        new = resuming.from_where_it_stopped()
    last_completed = new.kept[-1] if new.kept else None
    next_round = _next_round(execution, last_completed, now, redrive=redrive)
    if request.full:
        stage = new.new_jobs[0].step
    return Changes(
        executions=[msgspec.structs.replace(next_round, plan=new.plan)],
        new_jobs=new.new_jobs,
        superseded=new.superseded,
        audit=[_audited(request, next_round, stage, redrive=redrive)],
        events=[
            (
                execution.id,
                pack(
                    [
                        _told(request, next_round, stage, redrive=redrive),
                        *(event(EventType.STEP_SKIPPED, name, reason=ALREADY_COMPLETED) for name in new.kept),
                        *new.events,
                    ]
                ),
            )
        ],
    )


def _next_round(
    execution: ExecutionState, last_completed: str | None, now: float, *, redrive: bool
) -> ExecutionState:
    return msgspec.structs.replace(
        execution,
        status=ExecutionStatus.RUNNING,
        round=execution.round + 1,
        manual_retries=execution.manual_retries + (not redrive),
        last_manual_retry_at=execution.last_manual_retry_at if redrive else now,
        last_completed_stage=last_completed,
        error=None,
        deadline_at=None if execution.deadline_seconds is None else now + execution.deadline_seconds,
    )


def _told(request: RetryRequest, resumed: ExecutionState, stage: str, *, redrive: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"redrive": True} if redrive else {}
    return event(
        EventType.MANUAL_RETRY,
        from_stage=stage,
        by=request.by,
        round=resumed.round,
        last_completed_stage=resumed.last_completed_stage,
        **told,
    )


def _audited(request: RetryRequest, resumed: ExecutionState, stage: str, *, redrive: bool) -> AuditEntry:
    return audited(
        request.by,
        Deed.REDRIVE if redrive else Deed.RETRY,
        f"execution {resumed.id}",
        from_stage=stage,
        round=resumed.round,
        full=request.full,
        force=request.force,
    )


def _start(step: Step, execution: ExecutionState, jobs: Sequence[JobState], book: BatchBook) -> Start:
    """No retry changes what a step was once scheduled for."""
    before = [job.scheduled_for for job in jobs if job.step == step.name and job.scheduled_for is not None]
    if before:
        return Start(max(book.now, before[-1]), None, before[-1])
    return book.start(step, execution, None)


def _reached(definition: Definition, error: StoredError, jobs: Sequence[JobState]) -> str:
    """The last stage that may have left data behind: the failed one, or a later one that the round
    which failed was to clear and did not come to."""
    uncleared = max(jobs, key=lambda job: job.id).clear
    stages = {error.stage, *(msgspec.json.decode(uncleared) if uncleared else ())}
    return [step.name for step in definition.steps if step.name in stages][-1]


def _stage(request: RetryRequest, definition: Definition, error: StoredError | None) -> str:
    if request.full and request.from_stage is not None:
        raise InvalidInput("full and from_stage exclude each other.", guidance="Give one of them.")
    if request.full:
        return plan.first_step(definition).name
    if request.from_stage is not None:
        return definition.step(request.from_stage).name
    return error.stage if error else plan.first_step(definition).name


def _refuse(
    request: RetryRequest, execution: ExecutionState, error: StoredError | None, now: float, *, redrive: bool
) -> None:
    if execution.status is not ExecutionStatus.FAILED or error is None:
        raise RetryRefused(
            f"Execution {execution.id} is {execution.status}; only a failed one can be retried.",
            code="not_failed",
            guidance={
                ExecutionStatus.RUNNING: "Wait until it has ended, or cancel it.",
                ExecutionStatus.COMPLETED: "Its results are there. Submit the work again to run it anew.",
                ExecutionStatus.CANCELLED: "Submit the work again to run it.",
            }.get(execution.status, ""),
        )
    if execution.parent_job is not None:
        raise RetryRefused(
            f"Execution {execution.id} was started for a step of another one, which has ended with it.",
            code="child_execution",
            guidance="Retry that one: it starts this work again.",
        )
    if error.category is Category.PERMANENT and not request.force:
        raise RetryRefused(
            f"Retrying will not help: {error.user_message} ({error.message}).",
            code="permanent_error",
            guidance=error.guidance,
        )
    if not redrive:
        _refuse_haste(execution, now)


def _refuse_loss(execution: ExecutionState, jobs: Sequence[JobState], definition: Definition) -> None:
    """Where a full retry would throw away what was done."""
    lost = ""
    if definition.is_linear:
        if execution.last_completed_stage is not None:
            lost = f"the results up to {execution.last_completed_stage}"
    elif done := {job.step: None for job in jobs if _has_result(job, definition)}:
        lost = f"the results of {listed(list(done))}"
    if lost:
        raise RetryRefused(
            f"A full retry discards {lost}.",
            code="confirmation_required",
            guidance="Confirm it, or retry from the failed stage to keep them.",
        )


def _has_result(job: JobState, definition: Definition) -> bool:
    """Done, and more than a decision or the list of a for_each, which are made again at no cost."""
    step = definition.step(job.step)
    is_list = step.for_each is not None and not job.is_element
    return job.status is JobStatus.DONE and not job.superseded and not (is_list or step.is_control)


def _refuse_haste(execution: ExecutionState, now: float) -> None:
    if execution.manual_retries >= MANUAL_RETRIES_MAX:
        raise RetryRefused(
            f"Execution {execution.id} was retried {execution.manual_retries} times by hand,"
            f" which is the limit.",
            code="retry_cap",
            guidance="Find the cause first, then submit the work again.",
        )
    ready_at = (execution.last_manual_retry_at or -math.inf) + COOLDOWN_SECONDS
    if now < ready_at:
        wait = math.ceil(ready_at - now)
        raise RetryRefused(
            f"Execution {execution.id} was retried by hand less than {COOLDOWN_SECONDS:.0f} seconds ago.",
            code="cooldown",
            guidance=f"Try again in {wait} seconds.",
            retry_after=float(wait),
        )
