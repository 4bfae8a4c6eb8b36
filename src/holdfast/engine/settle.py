"""Reports turned into changes: the plan that runs between loading rows under lock and writing them.

    prepared outcomes + locked jobs ──▶ fence check ──▶ transition ──▶ next step or end ──▶ Changes, Acks

Pure and synchronous, so that both stores run it inside their transaction. It may be run again when a
store repeats a transaction; each run starts from the rows it is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core import transitions
from holdfast.core.catalogue import Category
from holdfast.core.failures import Failure, StoredError, stored_error
from holdfast.core.gates import Place
from holdfast.core.model import (
    RETRY_HISTORY_MAX,
    Ack,
    AckCode,
    DeadReason,
    EventType,
    ExecutionState,
    ExecutionStatus,
    JobState,
    JobStatus,
    LeaseRef,
    RetryNote,
)
from holdfast.core.transitions import RetryLater, Verdict
from holdfast.engine.batch_book import BatchBook, Start
from holdfast.engine.definitions import Definitions
from holdfast.engine.events import appended, attempt_of, completed, event, failed, retried, text_of
from holdfast.playbook import plan
from holdfast.playbook.definition import Definition, Step
from holdfast.store.interface import (
    ChangedJob,
    Changes,
    CompletedStage,
    Locked,
    NewJob,
)

# What is kept of earlier errors is not looked at, only passed on.
_NOTES = msgspec.json.Decoder(list[msgspec.Raw])


class Succeeded(msgspec.Struct, frozen=True):
    """A completed attempt, checked before the transaction."""

    queue_id: int
    fence: str
    outcome_hash: str
    result: str


class Erred(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt, classified and its conditions evaluated before the transaction.

    `expired_before` is set by the sweep alone: the lease must still have run out by then.
    """

    queue_id: int
    fence: str
    outcome_hash: str
    failure: Failure
    verdict: Verdict
    draw: float
    cleared: bool = True
    expired_before: float | None = None


Prepared = Succeeded | Erred


def hash_of(kind: str, outcome: str) -> str:
    """Tells the same report from another one."""
    return hashlib.blake2b(f"{kind} {outcome}".encode(), digest_size=8).hexdigest()


class SettlePlan:
    """Call it with the locked rows; `acks` then answers the prepared items in their order."""

    def __init__(self, items: Sequence[Prepared], definitions: Definitions, book: BatchBook) -> None:
        self._items = items
        self._definitions = definitions
        self._book = book
        self._now = book.now
        self._changes = Changes()
        self._frees_place = False
        self.acks: list[Ack] = []

    def __call__(self, locked: list[Locked]) -> Changes:
        self.acks, self._changes, self._frees_place = [], Changes(), False
        current = {job.id: (job, execution) for job, execution in locked}
        for item in self._items:
            ack = self._refusal(item, current)
            if ack is None:
                job, execution = current[item.queue_id]
                definition = self._definitions[execution.definition_id]
                self._frees_place |= definition.step(job.step).limit != ""
                if isinstance(item, Succeeded):
                    current[job.id] = (self._complete(item, job, execution, definition), execution)
                else:
                    current[job.id] = self._fail(item, job, execution, definition)
                ack = Ack(item.queue_id, AckCode.ACCEPTED)
            self.acks.append(ack)
        self._changes.batches = self._book.changed()
        return self._changes

    @property
    def makes_work(self) -> bool:
        """Whether jobs become claimable by it, now or later: its own, or those that wait for a place under
        the limit that its step names."""
        return (
            self._frees_place
            or bool(self._changes.new_jobs)
            or any(job.is_live for job, _ in self._changes.jobs)
        )

    def _refusal(self, item: Prepared, current: dict[int, tuple[JobState, ExecutionState]]) -> Ack | None:
        """The answer to a report that changes nothing: repeated, or stale."""
        job = current[item.queue_id][0] if item.queue_id in current else None
        if job is not None and job.fence == item.fence:
            renewed = (
                isinstance(item, Erred)
                and item.expired_before is not None
                and (job.lease_until or 0.0) >= item.expired_before
            )
            return _stale(item.queue_id, "the lease was extended meanwhile") if renewed else None
        if job is not None and job.settled_fence == item.fence and job.settled_hash == item.outcome_hash:
            return Ack(item.queue_id, AckCode.ACCEPTED, "this report was accepted before", repeated=True)
        return _stale(item.queue_id, "the lease is no longer held; abandon the attempt")

    def _complete(
        self, item: Succeeded, job: JobState, execution: ExecutionState, definition: Definition
    ) -> JobState:
        done = transitions.complete(job, outcome_hash=item.outcome_hash)
        following = plan.step_after(definition, job.step)
        self._book.moved(execution, Place(job.step), Place(following.name) if following else None)
        events = completed(job.step, job.attempts, following.name if following else None, attempt_of(job))
        if following is not None:
            start = self._book.start(following, execution, job.step)
            self._changes.new_jobs.append(new_job(following, execution, job.round, start))
            if start.scheduled_for is not None:
                events = appended(events, scheduled(following.name, start))
        self._changes.completed.append(
            CompletedStage(
                job_id=job.id,
                execution_id=execution.id,
                outcome_hash=item.outcome_hash,
                output=item.result,
                status=ExecutionStatus.COMPLETED if following is None else ExecutionStatus.RUNNING,
                stage=job.step,
                events=events,
            )
        )
        return done

    def _fail(
        self, item: Erred, job: JobState, execution: ExecutionState, definition: Definition
    ) -> tuple[JobState, ExecutionState]:
        step = definition.step(job.step)
        wave = self._book.wave(execution, step.name)
        settled, decision = transitions.fail(
            job,
            item.verdict,
            step.retry,
            outcome_hash=item.outcome_hash,
            cleared=item.cleared,
            now=self._now,
            draw=item.draw,
            max_crashes=step.max_crashes,
            wave=None if wave is None else wave.gathering,
        )
        will_retry = isinstance(decision, RetryLater)
        error = stored_error(
            item.failure,
            item.verdict.classification,
            stage=job.step,
            timestamp=self._now,
            retry_count=job.attempts - 1,
            final=not will_retry,
        )
        kept = msgspec.json.encode(error).decode()
        told = _error_told(item, job, error, kept)
        if isinstance(decision, RetryLater):
            if wave is None:
                told.append(retried(job.step, job.attempts, decision.delay, decision.available_at))
            else:  # when that will be is known once the wave starts
                waits = event(EventType.STEP_RETRY, job.step, attempt=job.attempts, delay=decision.delay)
                told.append(text_of(waits | {"available_at": None, "wave": wave.number}))
                wave.longest_delay = max(wave.longest_delay, decision.delay)
            self._book.moved(execution, Place(job.step), Place(job.step, settled.held_by))
        else:
            self._book.moved(execution, Place(job.step), None)
            ending = []
            if decision.reason is DeadReason.EXHAUSTED:
                ending.append(event(EventType.STEP_RETRY_EXHAUSTED, job.step, attempts=job.attempts))
            ending.append(event(EventType.STEP_FAILED_TERMINAL, job.step, dead_reason=decision.reason.value))
            ending += skipped_by_failure(definition, job.step)
            ending.append(_execution_failed(error))
            told += map(text_of, ending)
        changed = msgspec.structs.replace(
            execution,
            status=ExecutionStatus.RUNNING if will_retry else ExecutionStatus.FAILED,
            error=kept,
            retry_history=_with_note(execution.retry_history, job.attempts, error),
            retry_count=execution.retry_count + will_retry,
        )
        # A job whose worker was lost goes on alone, so that only a real killer is condemned.
        alone = (
            step.claim_group(execution.path, execution.lane, alone=True)
            if will_retry and settled.losses
            else None
        )
        self._changes.jobs.append(ChangedJob(settled, alone))
        self._changes.executions.append(changed)
        self._changes.events.append((execution.id, f"[{','.join(told)}]"))
        return settled, changed


class ReleasePlan:
    """Attempts given back by a worker that stops."""

    def __init__(self, leases: Sequence[LeaseRef], now: float) -> None:
        self._leases = leases
        self._now = now
        self.acks: list[Ack] = []

    def __call__(self, locked: list[Locked]) -> Changes:
        self.acks, changes = [], Changes()
        jobs = {job.id: job for job, _ in locked}
        for lease in self._leases:
            job = jobs.get(lease.queue_id)
            if job is None or job.fence != lease.fence:
                self.acks.append(_stale(lease.queue_id, "the lease is no longer held"))
                continue
            jobs[job.id] = released = transitions.release(job, now=self._now)
            changes.jobs.append(ChangedJob(released))
            given_back = event(EventType.LEASE_RELEASED, job.step, attempt=job.attempts)
            changes.events.append((job.execution_id, f"[{attempt_of(job)},{text_of(given_back)}]"))
            self.acks.append(Ack(lease.queue_id, AckCode.ACCEPTED))
        return changes


def end_execution(
    execution: ExecutionState,
    jobs: Sequence[JobState],
    status: ExecutionStatus,
    ending: list[dict[str, Any]],
    book: BatchBook,
) -> Changes:
    """Cancel what is live and end the execution with these events. The book's changes are the caller's to
    write: several executions may be in one batch."""
    changes, told = Changes(), []
    for job in jobs:
        if job.execution_id == execution.id and job.is_live:
            if job.status is JobStatus.LEASED:
                told.append(attempt_of(job))
            changes.jobs.append(ChangedJob(transitions.cancel(job)))
            book.moved(execution, Place(job.step, job.held_by), None)
    changes.executions.append(msgspec.structs.replace(execution, status=status))
    told += map(text_of, ending)
    changes.events.append((execution.id, f"[{','.join(told)}]"))
    return changes


def deadline_plan(
    executions: list[ExecutionState],
    jobs: list[JobState],
    definitions: Definitions,
    book: BatchBook,
) -> Changes:
    """Fail executions whose deadline has passed; a retry by hand gives them their time again."""
    changes, now = Changes(), book.now
    for execution in executions:
        if execution.status is not ExecutionStatus.RUNNING or (execution.deadline_at or now) >= now:
            continue
        current = next((job for job in jobs if job.execution_id == execution.id and job.is_live), None)
        if current is None:
            continue  # never so; but one odd execution must not keep the others waiting
        error = StoredError(
            error_type="timeout",
            category=Category.TRANSIENT,
            message=f"The execution did not finish within its deadline of {execution.deadline_seconds:g} s.",
            stage=current.step,
            timestamp=now,
            retry_count=max(current.attempts - 1, 0),
            user_message="Processing did not finish in time",
            guidance="Retry it with the time it needs, or submit it again with a longer deadline.",
            rule="deadline of the execution",
            stack_trace="",
            final=True,
        )
        failed = msgspec.structs.replace(execution, error=msgspec.json.encode(error).decode())
        ending = [
            *skipped_by_failure(definitions[execution.definition_id], current.step),
            _execution_failed(error, reason="deadline"),
        ]
        part = end_execution(failed, jobs, ExecutionStatus.FAILED, ending, book)
        changes.jobs += part.jobs
        changes.executions += part.executions
        changes.events += part.events
    changes.batches = book.changed()
    return changes


def new_job(
    step: Step, execution: ExecutionState, round_: int, start: Start, clear: str | None = None
) -> NewJob:
    return NewJob(
        execution_id=execution.id,
        step=step.name,
        round=round_,
        group=step.claim_group(execution.path, execution.lane),
        max_attempts=step.retry.max_attempts,
        available_at=start.available_at,
        clear=clear,
        held_by=start.held_by,
        scheduled_for=start.scheduled_for,
    )


def scheduled(step: str, start: Start) -> dict[str, Any]:
    """The barrier before a step is open for this execution: it begins when it is scheduled for."""
    return event(EventType.BARRIER_OPENED, step, scheduled_for=start.scheduled_for)


def skipped_by_failure(definition: Definition, failed: str) -> list[dict[str, Any]]:
    """The steps that a barrier would have let begin later, and which will not now."""
    return [
        event(EventType.STEP_SKIPPED, step.name, reason=skip_reason(failed, step.name))
        for step in definition.steps[definition.position(failed) + 1 :]
        if step.barrier is not None
    ]


def skip_reason(failed: str, skipped: str) -> str:
    return f"{failed[:1].upper()}{failed[1:]} failed; {skipped} skipped"


def _error_told(item: Erred, job: JobState, error: StoredError, kept: str) -> list[str]:
    """The events of an error, which tell its whole trace; of it `kept` is the JSON text that is kept."""
    told = [attempt_of(job)]
    if item.verdict.worker_lost:
        lost = event(EventType.LEASE_LOST, job.step, attempt=job.attempts, worker=job.worker_id)
        told.append(text_of(lost))
    trace = item.failure.stack_trace
    if trace != error.stack_trace:
        kept = text_of(msgspec.structs.replace(error, stack_trace=trace))
    further: dict[str, object] = {}
    if item.verdict.condition_error is not None:
        further["condition_error"] = item.verdict.condition_error
    if item.verdict.crashed:
        further["crashed"] = True
    told.append(failed(job.step, job.attempts, kept, **further))
    return told


def _execution_failed(error: StoredError, **data: Any) -> dict[str, Any]:
    return event(
        EventType.EXECUTION_FAILED,
        stage=error.stage,
        error_type=error.error_type,
        user_message=error.user_message,
        guidance=error.guidance,
        **data,
    )


def _with_note(history: str | None, attempt: int, error: StoredError) -> str:
    notes = _NOTES.decode(history) if history else []
    note = RetryNote(attempt, error.stage, error.error_type, error.message, error.timestamp)
    notes.append(msgspec.Raw(msgspec.json.encode(note)))
    return msgspec.json.encode(notes[-RETRY_HISTORY_MAX:]).decode()


def _stale(queue_id: int, why: str) -> Ack:
    return Ack(queue_id, AckCode.STALE_LEASE, why)
