"""A batch as people see it: how far each step is, what waits for what, and when it may be over.

An execution that runs or has failed has one job in its round that is not done; the steps before it are
completed, those behind it are yet to come or will not come any more. So a few counted rows tell the state of
every step of every item.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.core import describe
from holdfast.core.failures import StoredError
from holdfast.core.gates import BARRIER, BarrierGate, BatchRow
from holdfast.core.handlers import BUILT_IN_PREFIX
from holdfast.core.model import ExecutionRow, ExecutionStatus, JobRow, JobStatus, Lane, Mode, WorkerRow
from holdfast.core.pauses import Pause, narrowest
from holdfast.engine.controls import clock_time, held_by_pauses, offers, told_full
from holdfast.engine.settle import skip_reason
from holdfast.playbook.definition import Definition
from holdfast.store.controlling import LimitRow
from holdfast.store.interface import BatchCount, BatchPace, BatchWork

# The pace of what ended in this time is the pace of what is to come.
PACE_SECONDS = 300.0


class StepStatus(StrEnum):
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


_OF_JOB = {
    JobStatus.QUEUED: StepStatus.PENDING,
    JobStatus.RETRY: StepStatus.PENDING,
    JobStatus.LEASED: StepStatus.IN_PROGRESS,
    JobStatus.DONE: StepStatus.COMPLETED,
    JobStatus.DEAD: StepStatus.FAILED,
    JobStatus.CANCELLED: StepStatus.SKIPPED,
}


_ALIVE_FIRST = (
    JobStatus.LEASED,
    JobStatus.QUEUED,
    JobStatus.RETRY,
    JobStatus.DEAD,
    JobStatus.DONE,
    JobStatus.CANCELLED,
)


class BatchStatus(StrEnum):
    OPEN = "open"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"


def status_of(row: BatchRow) -> BatchStatus:
    """As its view tells it, without counting."""
    if row.closed_at is None:
        return BatchStatus.OPEN
    if row.is_running:
        return BatchStatus.RUNNING
    return BatchStatus.FINISHED if row.cancelled_at is None else BatchStatus.CANCELLED


class BarrierView(msgspec.Struct, frozen=True, kw_only=True):
    """`waits_for` counts the items that are not settled; None once it is open. `has_begun` tells whether an
    item has got into the step, for which `scheduled_for` alone is no proof. `own_times` counts the items
    that were retried by hand after it opened and wait for a time of their own, the first of them `own_at`."""

    step: str
    after: str
    delay_seconds: float
    waits_for: int | None
    opened_at: float | None
    scheduled_for: float | None
    has_begun: bool
    own_times: int = 0
    own_at: float | None = None


class HindranceKind(StrEnum):
    PAUSED = "paused"
    FULL = "full"
    UNOFFERED = "unoffered"


class Hindrance(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing, or little, moves at these steps, in a sentence; `action` is what to type."""

    kind: HindranceKind
    steps: tuple[str, ...]
    message: str
    action: str


class WaveView(msgspec.Struct, frozen=True, kw_only=True):
    """`waiting` jobs gather for wave `number`, until the `at_work` ones have ended. The wave before it was
    given the time `available_at`."""

    step: str
    number: int
    waiting: int
    at_work: int
    available_at: float | None


class FailedItem(msgspec.Struct, frozen=True, kw_only=True):
    execution_id: int
    step: str
    error: str
    dead_reason: str
    failed_at: float


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """`counts` has for each step how many items are at each status of it; `ends_at` is an estimate from the
    pace of the last minutes, None where there is none to go by, or where a pause or the lack of a worker is
    among the `hindrances`."""

    id: int
    path: str
    version: int
    status: BatchStatus
    lane: Lane
    mode: Mode
    idempotency_key: str | None
    items: int
    executions: dict[str, int]
    counts: dict[str, dict[str, int]]
    barrier: BarrierView | None
    barriers: tuple[BarrierView, ...]
    waves: tuple[WaveView, ...]
    hindrances: tuple[Hindrance, ...]
    permanently_failed_jobs: tuple[FailedItem, ...]
    created_at: float
    closed_at: float | None
    cancelled_at: float | None
    cancelled_by: str | None
    ends_at: float | None
    at: float

    @property
    def is_over(self) -> bool:
        return self.status in (BatchStatus.FINISHED, BatchStatus.CANCELLED)


class BatchItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item; `tracking` has a document for each step of its pipeline."""

    id: int
    status: ExecutionStatus
    workload: Any
    tracking: dict[str, dict[str, Any]]
    created_at: float
    finished_at: float | None


def batch_view(
    batch: BatchRow,
    definition: Definition,
    counted: Sequence[BatchCount],
    paces: Iterable[BatchPace],
    failed: Sequence[FailedItem],
    now: float,
    *,
    work: Sequence[BatchWork] = (),
    own_times: Sequence[BatchWork] = (),
    hindrances: Sequence[Hindrance] = (),
    counts: dict[str, dict[str, int]] | None = None,
) -> BatchView:
    """`counts` where they do not follow from what was counted: of a playbook that is more than a chain."""
    executions = {status.value: 0 for status in ExecutionStatus}
    for count in counted:
        executions[count.execution_status] += count.items
    is_chain = counts is None
    counts = step_counts(definition, counted) if counts is None else counts
    running = executions[ExecutionStatus.RUNNING]
    status = BatchStatus.RUNNING
    if batch.closed_at is None:
        status = BatchStatus.OPEN
    elif not running:
        status = BatchStatus.FINISHED if batch.cancelled_at is None else BatchStatus.CANCELLED
    barriers = tuple(_barrier(gate, definition, counted, own_times) for gate in batch.gates.barriers)
    stands_still = any(hindrance.kind is not HindranceKind.FULL for hindrance in hindrances)
    is_estimated = status is BatchStatus.RUNNING and not stands_still and is_chain
    return BatchView(
        id=batch.id,
        path=batch.path,
        version=batch.version,
        status=status,
        lane=batch.lane,
        mode=batch.mode,
        idempotency_key=batch.idempotency_key,
        items=batch.items,
        executions=executions,
        counts=counts,
        barrier=barriers[0] if barriers else None,
        barriers=barriers,
        waves=tuple(
            WaveView(
                step=wave.step,
                number=wave.number,
                waiting=wave.waiting,
                at_work=wave.active,
                available_at=wave.available_at,
            )
            for wave in batch.gates.waves
        ),
        hindrances=tuple(hindrances),
        permanently_failed_jobs=tuple(failed),
        created_at=batch.created_at,
        closed_at=batch.closed_at,
        cancelled_at=batch.cancelled_at,
        cancelled_by=batch.cancelled_by,
        ends_at=_estimate(batch, definition, counts, paces, work, now) if is_estimated else None,
        at=now,
    )


def step_counts(definition: Definition, counted: Iterable[BatchCount]) -> dict[str, dict[str, int]]:
    counts = {step.name: {status.value: 0 for status in StepStatus} for step in definition.steps}
    for count in counted:
        for name, status in _statuses(definition, count.execution_status, count.step, count.job_status):
            counts[name][status] += count.items
    return counts


def counts_by_step(
    definition: Definition, executions: Iterable[BatchCount], steps: Iterable[BatchCount]
) -> dict[str, dict[str, int]]:
    """The same of a playbook that is more than a chain: an item that has not come to a step may do so while
    it runs, and has not taken that way once it has ended."""
    counts = {
        step.name: {status.value: 0 for status in StepStatus}
        for step in definition.steps
        if not step.is_control
    }
    missing: dict[str, dict[ExecutionStatus, int]] = {name: {} for name in counts}
    for count in executions:
        for name in counts:
            missing[name][count.execution_status] = count.items
    for count in steps:
        if count.step in counts and count.job_status is not None:
            counts[count.step][_OF_JOB[count.job_status]] += count.items
            missing[count.step][count.execution_status] -= count.items
    for name, left in missing.items():
        for status, items in left.items():
            ahead = StepStatus.PENDING if status is ExecutionStatus.RUNNING else StepStatus.SKIPPED
            counts[name][ahead] += items
    return counts


def _statuses(
    definition: Definition, execution: ExecutionStatus, step: str | None, job: JobStatus | None
) -> Iterable[tuple[str, StepStatus]]:
    """Of every step, where an execution has this job that is not done."""
    place = len(definition.steps) if step is None or job is None else definition.position(step)
    ahead = StepStatus.PENDING if execution is ExecutionStatus.RUNNING else StepStatus.SKIPPED
    for position, item in enumerate(definition.steps):
        if position < place:
            yield item.name, StepStatus.COMPLETED
        elif position == place and job is not None:
            # A deadline cancels the job of an execution that has failed by it.
            is_failed = execution is ExecutionStatus.FAILED
            yield item.name, StepStatus.FAILED if is_failed else _OF_JOB[job]
        else:
            yield item.name, ahead


def hindrances(
    batch: BatchRow,
    definition: Definition,
    counts: dict[str, dict[str, int]],
    work: Sequence[BatchWork],
    pauses: Sequence[Pause],
    limits: Sequence[LimitRow],
    living: Sequence[WorkerRow],
    now: float,
) -> list[Hindrance]:
    """Pauses over what is to come; and over what is ready and not paused, a limit without room or the lack of
    a worker."""
    paused: dict[Pause, list[str]] = {}
    for step in definition.steps:
        if step.is_control:
            continue
        held = held_by_pauses(pauses, batch.path, step.name, batch.lane, step.limit)
        pause = narrowest(held) if counts[step.name][StepStatus.PENDING] else None
        if pause is not None:
            paused.setdefault(pause, []).append(step.name)
    found = [
        Hindrance(
            kind=HindranceKind.PAUSED,
            steps=tuple(steps),
            message=describe.standstill(steps, pause, clock_time(pause.since, now)),
            action=f"holdfast resume {pause.kind.value} {shlex.quote(pause.name)}",
        )
        for pause, steps in paused.items()
    ]
    stopped = {step for steps in paused.values() for step in steps}
    offered = offers(living)
    for item in work:
        if item.first_at > now or item.step in stopped:
            continue
        if (item.handler, item.lane) not in offered:
            kind, why = HindranceKind.UNOFFERED, f": no living worker offers it in the {item.lane} lane"
            is_ours = item.handler.startswith(BUILT_IN_PREFIX)
            action = "holdfast worker" if is_ours else "holdfast worker --app your_module:hf"
        else:
            kind, why = HindranceKind.FULL, told_full(limits, item.limit, item.lane)
            action = "holdfast limits list"
        if why:
            told = describe.waiting_jobs(item.step, item.jobs, why)
            found.append(Hindrance(kind=kind, steps=(item.step,), message=told, action=action))
    return found


def _barrier(
    gate: BarrierGate,
    definition: Definition,
    counted: Iterable[BatchCount],
    own_times: Iterable[BatchWork],
) -> BarrierView:
    own = [item for item in own_times if item.step == gate.step and gate.opened_at is not None]
    return BarrierView(
        step=gate.step,
        after=gate.after,
        delay_seconds=gate.delay_seconds,
        waits_for=gate.unsettled if gate.opened_at is None else None,
        opened_at=gate.opened_at,
        scheduled_for=gate.scheduled_for,
        has_begun=any(_has_reached(count, gate.step, definition) for count in counted),
        own_times=sum(item.jobs for item in own),
        own_at=min((item.first_at for item in own), default=None),
    )


def _has_reached(count: BatchCount, step: str, definition: Definition) -> bool:
    """Whether these items have had an attempt at the step."""
    if count.step is None or count.job_status is None:
        return count.execution_status is ExecutionStatus.COMPLETED
    place, here = definition.position(count.step), definition.position(step)
    tried = (JobStatus.LEASED, JobStatus.RETRY, JobStatus.DEAD)
    return place > here or (place == here and count.job_status in tried)


def _estimate(
    batch: BatchRow,
    definition: Definition,
    counts: dict[str, dict[str, int]],
    paces: Iterable[BatchPace],
    work: Iterable[BatchWork],
    now: float,
) -> float | None:
    """Step by step at the pace of its own jobs, or, where none has ended yet, at that of the slowest; a
    barrier that is not open adds its delay. No step ends before the last of its jobs may begin."""
    rates = {pace.step: pace.jobs / max(now - pace.first_at, 1.0) for pace in paces if pace.jobs}
    known = min(rates.values(), default=None)
    if known is None:
        return None
    ends_at = now
    for step in definition.steps:
        left = counts[step.name][StepStatus.PENDING] + counts[step.name][StepStatus.IN_PROGRESS]
        if not left:
            continue
        gate = batch.gates.barrier(step.name)
        if gate is not None:
            ends_at = max(ends_at, gate.scheduled_for or ends_at + gate.delay_seconds)
        begins = [item.last_at for item in work if item.step == step.name]
        wave = batch.gates.wave(step.name)
        if wave is not None and wave.available_at is not None:
            begins.append(wave.available_at)
        if wave is not None and wave.waiting:
            begins.append(now + wave.longest_delay)
        one = 1 / rates.get(step.name, known)
        ends_at = max([ends_at + left * one, *(at + one for at in begins)])
    return ends_at


def waited_for(job: JobRow, batch: BatchRow | None, now: float) -> str:
    """What keeps a job waiting that is held at a gate of its batch, or scheduled for later by one."""
    if job.held_by is None or batch is None:
        at = job.scheduled_for
        is_early = at is not None and at > now and job.status is JobStatus.QUEUED
        return describe.scheduled(job.step, clock_time(at or now, now)) if is_early else ""
    barrier, wave = batch.gates.barrier(job.step), batch.gates.wave(job.step)
    if job.held_by == BARRIER and barrier is not None:
        return describe.at_barrier(
            job.step, batch.id, barrier.unsettled, is_closed=batch.closed_at is not None
        )
    return describe.in_wave(job.step, job.held_by, 0 if wave is None else wave.active)


def batch_item(execution: ExecutionRow, jobs: Sequence[JobRow], definition: Definition) -> BatchItem:
    current = next(
        (job for job in jobs if job.round == execution.round and job.status is not JobStatus.DONE), None
    )
    latest = {job.step: job for job in jobs}  # in the order of their ids
    step, job = (current.step, current.status) if current else (None, None)
    statuses = _statuses(definition, execution.status, step, job)
    if not definition.is_linear:
        statuses = _statuses_by_jobs(definition, execution, jobs)
    return BatchItem(
        id=execution.id,
        status=execution.status,
        workload=execution.workload,
        tracking={
            name: _tracked(name, status, latest.get(name), execution, definition) for name, status in statuses
        },
        created_at=execution.created_at,
        finished_at=execution.finished_at,
    )


def _statuses_by_jobs(
    definition: Definition, execution: ExecutionRow, jobs: Sequence[JobRow]
) -> Iterable[tuple[str, StepStatus]]:
    ahead = StepStatus.PENDING if execution.status is ExecutionStatus.RUNNING else StepStatus.SKIPPED
    for step in definition.steps:
        own = {job.status for job in jobs if job.step == step.name and job.round == execution.round}
        own |= {JobStatus.DONE for job in jobs if job.step == step.name and job.status is JobStatus.DONE}
        if not step.is_control:
            yield step.name, next((_OF_JOB[status] for status in _ALIVE_FIRST if status in own), ahead)


def _tracked(
    name: str, status: StepStatus, job: JobRow | None, execution: ExecutionRow, definition: Definition
) -> dict[str, Any]:
    has_begun = job is not None and (
        status in (StepStatus.COMPLETED, StepStatus.FAILED) or job.round == execution.round
    )
    error = execution.error
    barrier = definition.step(name).barrier
    told: str | None = None
    if error is not None and error.stage == name and status is not StepStatus.COMPLETED:
        told = error_line(error)
    elif (
        error is not None
        and execution.status is ExecutionStatus.FAILED
        and status is StepStatus.SKIPPED
        and barrier is not None
    ):
        told = skip_reason(error.stage, name)
    document: dict[str, Any] = {
        "status": status.value,
        "attempts": job.attempts if job is not None and has_begun else 0,
        "last_attempt_at": job.last_attempt_at if job is not None and has_begun else None,
        "error": told,
    }
    if barrier is not None:
        document["scheduled_for"] = job.scheduled_for if job is not None and has_begun else None
    return document


def error_line(error: StoredError) -> str:
    return f"{error.error_type}: {error.message}"
