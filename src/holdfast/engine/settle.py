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
from holdfast.core.failures import Failure, StoredError, classify, stored_error
from holdfast.core.gates import Place
from holdfast.core.masking import clean_message
from holdfast.core.model import (
    NO_ELEMENT,
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
    element_of,
    told_place,
)
from holdfast.core.transitions import RetryLater, Verdict
from holdfast.engine.batch_book import BatchBook, Start
from holdfast.engine.decisions import WAS_DONE, Decisions, DecisionsMissing, Needed, Undecidable
from holdfast.engine.definitions import Definitions
from holdfast.engine.events import appended, attempt_of, completed, event, failed, text_of
from holdfast.engine.flow import (
    DecisionMissing,
    Flow,
    SiblingsNeeded,
    constant_sleep,
    execution_failed,
    handler_of,
)
from holdfast.playbook import plan
from holdfast.playbook.definition import Definition, Step
from holdfast.store.changes import ChangedJob, Changes, CompletedStage, FinishedJob, NewJob
from holdfast.store.interface import Locked

CHILD = "child"

# What is kept of earlier errors is not looked at, only passed on.
_NOTES = msgspec.json.Decoder(list[msgspec.Raw])


class Succeeded(msgspec.Struct, frozen=True):
    """A completed attempt, checked before the transaction."""

    queue_id: int
    fence: str
    outcome_hash: str
    result: str


class PutAside(msgspec.Struct, frozen=True):
    """An attempt that has nothing to do for some seconds, or until its child execution has ended."""

    queue_id: int
    fence: str
    outcome_hash: str
    seconds: float | None = None
    child: str = "{}"


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


Prepared = Succeeded | Erred | PutAside

# A report that was accepted, with its job before and after, and the path.
Settled = tuple[Prepared, JobState, JobState, str]


def hash_of(kind: str, outcome: str) -> str:
    """Tells the same report from another one."""
    return hashlib.blake2b(f"{kind} {outcome}".encode(), digest_size=8).hexdigest()


class ExecutionsNeeded(Exception):
    """What these reports do to their executions cannot be told without all jobs of them: settle each by
    itself, with its whole execution locked."""

    def __init__(self, queue_ids: set[int]) -> None:
        super().__init__(queue_ids)
        self.queue_ids = queue_ids


class SettlePlan:
    """Call it with the locked rows; `acks` then answers the prepared items in their order."""

    def __init__(
        self,
        items: Sequence[Prepared],
        definitions: Definitions,
        book: BatchBook,
        decisions: Decisions,
    ) -> None:
        self._items = items
        self._definitions = definitions
        self._book = book
        self._now = book.now
        self._decisions = decisions
        self._jobs: dict[int, JobState] = {}
        self._executions: dict[int, ExecutionState] = {}
        self._start_anew()
        self.acks: list[Ack] = []
        self.waiting: set[int] = set()
        """Jobs that wait for child executions which are to be started, or have ended, by it."""
        self.undecided: Erred | None = None
        """A completed attempt that has failed because nobody can tell what comes next."""

    def _start_anew(self, siblings: dict[int, JobState] | None = None) -> None:
        self.acks, self._changes, self._frees_place = [], Changes(), False
        self.waiting, self.undecided = set(), None
        self.settled: list[Settled] = []
        self._changed_executions: dict[int, ExecutionState] = {}
        self._flow = Flow(
            self._definitions, self._decisions, self._book.decisions, self._changes, self._now, siblings
        )

    def __call__(self, locked: list[Locked]) -> Changes:
        self._jobs = {job.id: job for job, _ in locked}
        self._executions = {execution.id: execution for _, execution in locked}
        self._start_anew()
        return self._settled()

    def with_siblings(self, executions: list[ExecutionState], jobs: list[JobState]) -> Changes:
        """The same with all jobs of the executions at hand; for one report at a time."""
        assert len(self._items) == 1, "a job that one report starts could not be cancelled by the next"
        self._jobs = {job.id: job for job in jobs}
        self._executions = {execution.id: execution for execution in executions}
        self._start_anew(self._jobs)
        return self._settled()

    def _settled(self) -> Changes:
        missing: list[Needed] = []
        needing: set[int] = set()
        for item in self._items:
            ack = self._refusal(item)
            if ack is None:
                try:
                    self._settle(item)
                except DecisionMissing as error:
                    missing.append(error.needed)
                except SiblingsNeeded:
                    needing.add(item.queue_id)
                ack = Ack(item.queue_id, AckCode.ACCEPTED)
            self.acks.append(ack)
        if missing:
            raise DecisionsMissing(missing)
        if needing:
            raise ExecutionsNeeded(needing)
        self._changes.executions += self._changed_executions.values()
        self._changes.batches = self._book.changed()
        return self._changes

    def _settle(self, item: Prepared) -> None:
        job = self._jobs[item.queue_id]
        execution = self._executions[job.execution_id]
        definition = self._definitions[execution.definition_id]
        self._frees_place |= definition.step(job.step).limit != ""
        if isinstance(item, PutAside):
            self._put_aside(item, job, execution)
        elif isinstance(item, Succeeded):
            if definition.is_linear:
                self._complete(item, job, execution, definition)
            else:
                self._complete_in_flow(item, job, execution)
        else:
            self._fail(item, job, execution, definition)
        self.settled.append((item, job, self._jobs[job.id], execution.path))

    def _change(self, execution: ExecutionState) -> None:
        """Written once, however many of its jobs end in this transaction."""
        self._executions[execution.id] = self._changed_executions[execution.id] = execution
        if execution.status is not ExecutionStatus.RUNNING and execution.parent_job is not None:
            self.waiting.add(execution.parent_job)

    @property
    def makes_work(self) -> bool:
        """Whether jobs become claimable by it, now or later: its own, or those that wait for a place under
        the limit that its step names."""
        return (
            self._frees_place
            or bool(self._changes.new_jobs or self._changes.let_through)
            or any(job.is_live for job, _ in self._changes.jobs)
        )

    def _refusal(self, item: Prepared) -> Ack | None:
        """The answer to a report that changes nothing: repeated, or stale."""
        job = self._jobs.get(item.queue_id)
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
    ) -> None:
        self._jobs[job.id] = transitions.complete(job, outcome_hash=item.outcome_hash)
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
        if following is None and execution.parent_job is not None:
            self.waiting.add(execution.parent_job)

    def _complete_in_flow(self, item: Succeeded, job: JobState, execution: ExecutionState) -> None:
        before = len(self._changes.new_jobs)
        try:
            changed, told = self._flow.completed(execution, job, item.result)
        except Undecidable as error:
            self._flow.forget_output()
            self.undecided = erred = _undecidable(item, error)
            return self._fail(erred, job, execution, self._definitions[execution.definition_id])
        self._jobs[job.id] = transitions.complete(job, outcome_hash=item.outcome_hash)
        self._changes.finished.append(FinishedJob(job.id, item.outcome_hash, item.result))
        done = event(EventType.ACTION_COMPLETED, job.step, attempt=job.attempts, **told_place(job.element))
        elements = [new for new in self._changes.new_jobs[before:] if element_of(new.element) != NO_ELEMENT]
        if elements and not told:
            done["elements"] = len(elements)
        self._change(changed)
        self._tell(execution.id, [attempt_of(job), *map(text_of, [done, *told])])
        return None

    def _put_aside(self, item: PutAside, job: JobState, execution: ExecutionState) -> None:
        """Its attempt is not counted, and it holds no slot. What an execution does not wait for is
        cancelled."""
        told = event(EventType.LEASE_RELEASED, job.step, attempt=job.attempts, **told_place(job.element))
        if item.seconds is None:
            told |= {"reason": CHILD}
            self.waiting.add(job.id)
        else:
            told |= {"reason": "sleep", "seconds": item.seconds}
        parked = transitions.park(
            job,
            outcome_hash=item.outcome_hash,
            available_at=self._now + (item.seconds or 0.0),
            held_by=CHILD if item.seconds is None else None,
            parked=_parked(item, job),
        )
        ending: list[dict[str, Any]] = []
        if execution.plan is not None and not self._flow.waits_for(execution, job):
            parked = transitions.cancel(parked)
            changed, ending = self._flow.cancelled(execution, job)
            self._change(changed)
        self._jobs[job.id] = parked
        self._changes.jobs.append(ChangedJob(parked))
        self._tell(execution.id, [attempt_of(job), *map(text_of, [told, *ending])])

    def _tell(self, execution_id: int, told: list[str]) -> None:
        self._changes.events.append((execution_id, f"[{','.join(told)}]"))

    def _fail(self, item: Erred, job: JobState, execution: ExecutionState, definition: Definition) -> None:
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
        is_waited_for = execution.plan is None or self._flow.waits_for(execution, job)
        will_retry = isinstance(decision, RetryLater) and is_waited_for
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
        changed = msgspec.structs.replace(
            execution,
            error=kept if is_waited_for else execution.error,
            retry_history=_with_note(execution.retry_history, job.attempts, error),
            retry_count=execution.retry_count + will_retry,
        )
        if isinstance(decision, RetryLater) and not is_waited_for:
            settled = transitions.cancel(settled)
            changed, ending = self._flow.cancelled(changed, job)
            told += map(text_of, ending)
        elif isinstance(decision, RetryLater):
            if wave is None:
                retry = event(EventType.STEP_RETRY, job.step, attempt=job.attempts, delay=decision.delay)
                retry |= {"available_at": decision.available_at, **told_place(job.element)}
                told.append(text_of(retry))
            else:  # when that will be is known once the wave starts
                waits = event(EventType.STEP_RETRY, job.step, attempt=job.attempts, delay=decision.delay)
                told.append(text_of(waits | {"available_at": None, "wave": wave.number}))
                wave.longest_delay = max(wave.longest_delay, decision.delay)
            self._book.moved(execution, Place(job.step), Place(job.step, settled.held_by))
        else:
            self._book.moved(execution, Place(job.step), None)
            ending, where = [], told_place(job.element)
            if decision.reason is DeadReason.EXHAUSTED:
                ending.append(event(EventType.STEP_RETRY_EXHAUSTED, job.step, attempts=job.attempts, **where))
            reason = decision.reason.value
            ending.append(event(EventType.STEP_FAILED_TERMINAL, job.step, dead_reason=reason, **where))
            if execution.plan is not None:
                changed, further = self._died_in_flow(changed, job, error)
                ending += further
            else:
                ending += skipped_by_failure(definition, job.step)
                ending.append(execution_failed(error))
                changed = msgspec.structs.replace(changed, status=ExecutionStatus.FAILED)
            told += map(text_of, ending)
        # A job whose worker was lost goes on alone, so that only a real killer is condemned.
        alone = None
        if will_retry and settled.losses:
            handler = handler_of(step, is_element=job.is_element)
            alone = step.claim_group(execution.path, execution.lane, alone=True, handler=handler)
        self._jobs[job.id] = settled
        self._changes.jobs.append(ChangedJob(settled, alone))
        self._change(changed)
        self._tell(execution.id, told)

    def _died_in_flow(
        self, execution: ExecutionState, job: JobState, error: StoredError
    ) -> tuple[ExecutionState, list[dict[str, Any]]]:
        try:
            return self._flow.died(execution, job, error)
        except Undecidable:  # what would handle it cannot be reached: then nothing handles it
            return self._flow.died(execution, job, error, is_handled=False)


class ReleasePlan:
    """Attempts given back by a worker that stops."""

    def __init__(
        self, leases: Sequence[LeaseRef], definitions: Definitions, decisions: Decisions, now: float
    ) -> None:
        self._leases = leases
        self._definitions = definitions
        self._decisions = decisions
        self._now = now
        self.acks: list[Ack] = []

    def __call__(self, locked: list[Locked]) -> Changes:
        self.acks, changes = [], Changes()
        flow = Flow(self._definitions, self._decisions, {}, changes, self._now)
        jobs = {job.id: job for job, _ in locked}
        executions = {execution.id: execution for _, execution in locked}
        changed: dict[int, ExecutionState] = {}
        for lease in self._leases:
            job = jobs.get(lease.queue_id)
            if job is None or job.fence != lease.fence:
                self.acks.append(_stale(lease.queue_id, "the lease is no longer held"))
                continue
            released = transitions.release(job, now=self._now)
            where = told_place(job.element)
            told = [event(EventType.LEASE_RELEASED, job.step, attempt=job.attempts, **where)]
            execution = executions[job.execution_id]
            if execution.plan is not None and not flow.waits_for(execution, job):
                released = transitions.cancel(released)
                execution, ending = flow.cancelled(execution, job)
                executions[execution.id] = changed[execution.id] = execution
                told += ending
            jobs[job.id] = released
            changes.jobs.append(ChangedJob(released))
            events = ",".join([attempt_of(job), *map(text_of, told)])
            changes.events.append((job.execution_id, f"[{events}]"))
            self.acks.append(Ack(lease.queue_id, AckCode.ACCEPTED))
        changes.executions = list(changed.values())
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
            execution_failed(error, reason="deadline"),
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
        available_at=start.available_at + constant_sleep(step),
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


def _parked(item: PutAside, job: JobState) -> str:
    """What is kept of it. A child is known by the job and the attempt that it was started for."""
    if item.seconds is not None:
        return text_of({"slept": item.seconds})
    return text_of({"child": {**msgspec.json.decode(item.child), "key": child_key(job.id, job.attempts)}})


def child_key(job_id: int, attempt: int) -> str:
    return f"job {job_id} attempt {attempt}"


def _undecidable(item: Succeeded, error: Undecidable) -> Erred:
    """The work was done, but nobody can tell what is to come of it: that is how the attempt ended."""
    failure = Failure(
        message=clean_message(str(error)),
        exception="PlaybookError",
        error_type=error.error_type,
        category=Category.PERMANENT,
        user_message=error.user_message,
        guidance=error.guidance,
    )
    return Erred(
        queue_id=item.queue_id,
        fence=item.fence,
        outcome_hash=item.outcome_hash,
        failure=failure,
        verdict=Verdict(classification=classify(failure)),
        draw=1.0,
    )


def undone(erred: Erred) -> Erred:
    """The same where what the step did is not kept."""
    guidance = (erred.failure.guidance or "").removesuffix(WAS_DONE).strip()
    guidance = f"{guidance} What this step wrote in its transaction is undone."
    failure = msgspec.structs.replace(erred.failure, guidance=guidance)
    return msgspec.structs.replace(erred, failure=failure, verdict=Verdict(classification=classify(failure)))


def _error_told(item: Erred, job: JobState, error: StoredError, kept: str) -> list[str]:
    """The events of an error, which tell its whole trace; of it `kept` is the JSON text that is kept."""
    told = [attempt_of(job)]
    if item.verdict.worker_lost:
        lost = event(EventType.LEASE_LOST, job.step, attempt=job.attempts, worker=job.worker_id)
        lost |= told_place(job.element)
        told.append(text_of(lost))
    trace = item.failure.stack_trace
    if trace != error.stack_trace:
        kept = text_of(msgspec.structs.replace(error, stack_trace=trace))
    further: dict[str, object] = dict(told_place(job.element))
    if item.verdict.condition_error is not None:
        further["condition_error"] = item.verdict.condition_error
    if item.verdict.crashed:
        further["crashed"] = True
    told.append(failed(job.step, job.attempts, kept, **further))
    return told


def _with_note(history: str | None, attempt: int, error: StoredError) -> str:
    notes = _NOTES.decode(history) if history else []
    note = RetryNote(attempt, error.stage, error.error_type, error.message, error.timestamp)
    notes.append(msgspec.Raw(msgspec.json.encode(note)))
    return msgspec.json.encode(notes[-RETRY_HISTORY_MAX:]).decode()


def _stale(queue_id: int, why: str) -> Ack:
    return Ack(queue_id, AckCode.STALE_LEASE, why)
