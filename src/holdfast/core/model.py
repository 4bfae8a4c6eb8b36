"""The records everything else speaks in.

An **execution** is one run of a pipeline on one workload. Its current step is a **job**, the queue's
row; each lease of a job is an **attempt**, named by its **fence**. What happened is told by **events**.

Frozen records only: no I/O, no clock. They are msgspec structs because the report path makes thousands
of them a second. `ExecutionState` and `JobState` hold what a transition may read or change, in the
column order of the store's queries, so a row becomes a record without naming a column twice.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from holdfast.core.failures import Failure, StoredError


class JobStatus(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    RETRY = "retry"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class ExecutionStatus(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DeadReason(StrEnum):
    EXHAUSTED = "exhausted"
    PERMANENT = "permanent"
    STOPPED = "stopped"
    NOT_RETRYABLE = "not_retryable"
    UNKNOWN_LIMIT = "unknown_limit"
    POISONED = "poisoned"


class Lane(StrEnum):
    MANUAL = "manual"
    BULK = "bulk"


class Mode(StrEnum):
    MANUAL = "manual"
    BULK = "bulk"
    AUTO = "auto"


class EventType(StrEnum):
    EXECUTION_STARTED = "execution_started"
    STEP_STARTED = "step_started"
    ACTION_STARTED = "action_started"
    ACTION_COMPLETED = "action_completed"
    ACTION_ERROR = "action_error"
    STEP_RETRY = "step_retry"
    STEP_RETRY_EXHAUSTED = "step_retry_exhausted"
    STEP_FAILED_TERMINAL = "step_failed_terminal"
    STEP_COMPLETED = "step_completed"
    STEP_SKIPPED = "step_skipped"
    LEASE_LOST = "lease_lost"
    LEASE_RELEASED = "lease_released"
    BARRIER_OPENED = "barrier_opened"
    WAVE_STARTED = "wave_started"
    MANUAL_RETRY = "manual_retry"
    EXECUTION_COMPLETED = "execution_completed"
    EXECUTION_FAILED = "execution_failed"
    EXECUTION_CANCELLED = "execution_cancelled"


class ClaimGroup(NamedTuple):
    """What a worker must offer to take a job, and where the job stands in the order.

    Jobs of one group are claimed by one index range. `alone` groups hold jobs whose worker was lost
    once: they are leased one at a time, beside nothing else, so that a killer betrays itself.
    """

    handler: str
    lane: str
    rank: int
    operation: str = ""
    limit: str = ""
    alone: bool = False
    path: str = ""
    step: str = ""


# The place of a job among those of its step and round: -1 where the step runs once, from 0 the elements of a
# step that runs for each of many. In a cycle each further visit has its own such numbers, behind the last's.
ELEMENTS_MAX = 100_000
NO_ELEMENT = -1
# What a worker must offer to run a step: a path and the name of a step, each as long as it may be.
HANDLER_CHARS_MAX = 500
LEASE_NUMBER_DIGITS_MAX = 9


def place_of(visit: int, element: int) -> int:
    return (visit - 1) * (ELEMENTS_MAX + 1) + element


def visit_of(place: int) -> int:
    return (place + 1) // (ELEMENTS_MAX + 1) + 1


def element_of(place: int) -> int:
    return (place + 1) % (ELEMENTS_MAX + 1) - 1


def told_place(place: int) -> dict[str, int]:
    """As events tell it: nothing of a job that is the only one of its step."""
    visit, element = visit_of(place), element_of(place)
    return ({} if element == NO_ELEMENT else {"element": element}) | ({} if visit == 1 else {"visit": visit})


class JobState(msgspec.Struct, frozen=True, array_like=True):
    """A job as the transitions see it. `element` is its place, see `place_of`; `input` is what was handed to
    its step, `parked` what its attempt was put aside for; `superseded` that a later round counts instead."""

    id: int
    execution_id: int
    step: str
    element: int
    round: int
    status: JobStatus
    attempts: int
    max_attempts: int
    available_at: float
    fence: str | None
    lease_until: float | None
    unknown_errors: int
    losses: int
    crashes: int
    dead_reason: DeadReason | None
    settled_fence: str | None
    settled_hash: str | None
    clear: str | None
    leased_alone: bool
    worker_id: str | None
    held_by: str | None = None
    scheduled_for: float | None = None
    last_attempt_at: float | None = None
    input: str | None = None
    parked: str | None = None
    superseded: bool = False

    @property
    def visit(self) -> int:
        return visit_of(self.element)

    @property
    def is_element(self) -> bool:
        return element_of(self.element) != NO_ELEMENT

    @property
    def is_live(self) -> bool:
        return self.status in (JobStatus.QUEUED, JobStatus.RETRY, JobStatus.LEASED)


class ExecutionState(msgspec.Struct, frozen=True, array_like=True):
    """An execution as the transitions see it. `plan` is where it stands in a playbook that is more than a
    chain of steps, `depth` how many parents it has above it."""

    id: int
    path: str
    definition_id: int
    status: ExecutionStatus
    lane: Lane
    round: int
    manual_retries: int
    last_manual_retry_at: float | None
    last_completed_stage: str | None
    error: str | None
    retry_history: str | None
    retry_count: int
    deadline_seconds: float | None
    deadline_at: float | None
    batch_id: int | None = None
    plan: str | None = None
    depth: int | None = None
    parent_job: int | None = None


class Completed(msgspec.Struct, frozen=True):
    """The outcome of an attempt that finished: its result as JSON text."""

    result: str = "null"


class Failed(msgspec.Struct, frozen=True):
    """The outcome of an attempt that raised.

    `cleared` says that the stage's `clear` hook had run, so a further attempt need not run it again;
    `crashed` that the attempt had a process of its own, which died of it.
    """

    failure: Failure
    cleared: bool = True
    crashed: bool = False


class ChildAsked(msgspec.Struct, frozen=True):
    """The execution that a `playbook` step asks for."""

    path: str
    workload: Any
    version: int | None = None


class Deferred(msgspec.Struct, frozen=True):
    """The outcome of an attempt that waits for something and needs no worker meanwhile: `until_seconds` from
    now, or the end of a `child` execution that is to be started (a `ChildAsked`, as JSON text).
    The attempt is given back, and leased again under the same number once that has come."""

    until_seconds: float | None = None
    child: str | None = None


Outcome = Completed | Failed | Deferred


class LeaseRef(msgspec.Struct, frozen=True):
    """One attempt, as its worker names it."""

    queue_id: int
    fence: str


DISPATCHER_PREFIX = "dispatcher:"
"""Of the ids of workers that run nothing themselves, but hand it to those of a Celery fleet."""
CELERY_PREFIX = "celery:"
UNTAKEN_PREFIX = "untaken_"
"""Of the tokens of leases that wait for somebody to take them over, and run nothing until then."""


def is_untaken(fence: str) -> bool:
    return fence.partition("-")[2].startswith(UNTAKEN_PREFIX)


def fence_after(fence: str, token: str) -> str | None:
    """The fence that whoever takes this lease over under this token gets; None where it is no fence."""
    number, dash, _ = fence.partition("-")
    known = dash and number.isascii() and number.isdigit() and len(number) <= LEASE_NUMBER_DIGITS_MAX
    return f"{int(number) + 1}-{token}" if known else None


class Report(msgspec.Struct, frozen=True):
    queue_id: int
    fence: str
    outcome: Outcome


class AckCode(StrEnum):
    ACCEPTED = "accepted"
    STALE_LEASE = "stale_lease"
    INVALID = "invalid"


class Ack(msgspec.Struct, frozen=True):
    """The answer to one item of a report, heartbeat or release.

    `repeated` marks a report that had been accepted before and changed nothing this time.
    """

    queue_id: int
    code: AckCode
    message: str = ""
    repeated: bool = False

    @property
    def accepted(self) -> bool:
        return self.code is AckCode.ACCEPTED


class Event(msgspec.Struct, frozen=True):
    """One line of an execution's history. `data` holds what belongs to its type."""

    id: str
    execution_id: int
    at: float
    type: EventType
    step: str | None = None
    data: dict[str, Any] = {}

    def to_dict(self) -> dict[str, Any]:
        own = {"id": self.id, "execution_id": self.execution_id, "at": self.at, "type": self.type.value}
        if self.step is not None:
            own["step"] = self.step
        return {**self.data, **own}


class RetryNote(msgspec.Struct, frozen=True):
    """One entry of an execution's `retry_history`."""

    attempt: int
    stage: str
    error_type: str
    message: str
    timestamp: float


RETRY_HISTORY_MAX = 10


class Leased(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt handed to a worker: all it needs to run it and report.

    Of a step that has a `type`: its `config` and its own `inputs` as written, what was handed to it as
    `input`, the `item` that this element is about, or the items `for_each` of which it is to run; all of it
    JSON text. `parked` tells what came of that for which the attempt was put aside before; `secrets` has the
    names of all that its playbook reads."""

    queue_id: int
    fence: str
    execution_id: int
    path: str
    definition_id: int
    step: str
    handler: str
    element: int
    round: int
    attempt: int
    max_attempts: int
    lane: Lane
    lease_until: float
    timeout_seconds: float
    workload: str
    outputs: dict[str, str] = {}
    clear: tuple[str, ...] = ()
    alone: bool = False
    limited: bool = False
    type: str = ""
    config: str = "{}"
    inputs: str = "{}"
    input: str = "{}"
    item: str | None = None
    item_name: str = "item"
    for_each: str | None = None
    parked: str | None = None
    secrets: tuple[str, ...] = ()


class LeaseResult(msgspec.Struct, frozen=True):
    """`alone_ready`: a job that must run by itself waits; ask with `alone` once nothing else runs.
    `next_due` is when the next job becomes ready, told where none was."""

    jobs: list[Leased]
    alone_ready: bool = False
    next_due: float | None = None


class WorkerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Who a worker is and what it offers."""

    worker_id: str
    host: str
    pid: int
    version: str
    concurrency: int
    lanes: tuple[Lane, ...]
    handlers: tuple[str, ...]
    started_at: float


class WorkerRecord(WorkerIdentity, frozen=True, kw_only=True):
    """What a worker says of itself, every `announce_seconds`, so that people know who lives and who
    offers what. No decision about work depends on it."""

    announce_seconds: float


class WorkerRow(WorkerIdentity, frozen=True, kw_only=True):
    """A worker as people see it: living until `seen_until`, unless it is heard of again before."""

    seen_at: float
    seen_until: float

    def is_living(self, now: float) -> bool:
        return now <= self.seen_until


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job as people see it in the queue."""

    queue_id: int
    execution_id: int
    path: str
    step: str
    element: int
    round: int
    status: JobStatus
    attempts: int
    max_attempts: int
    available_at: float
    scheduled_for: float | None
    held_by: str | None
    lease_until: float | None
    last_heartbeat: float | None
    progress: float | None
    worker_id: str | None
    lane: Lane
    operation: str
    mode: Mode
    rank: int
    dead_reason: DeadReason | None
    created_at: float
    finished_at: float | None
    output: Any = None
    limit: str = ""
    last_attempt_at: float | None = None
    handler: str = ""
    visit: int = 1
    definition_id: int = 0


class ExecutionRow(msgspec.Struct, frozen=True, kw_only=True):
    """An execution as people see it; `parent_id` is the one that it was started for."""

    id: int
    path: str
    version: int
    status: ExecutionStatus
    lane: Lane
    mode: Mode
    batch_id: int | None
    idempotency_key: str | None
    round: int
    manual_retries: int
    retry_count: int
    last_completed_stage: str | None
    error: StoredError | None
    retry_history: tuple[RetryNote, ...]
    workload: Any
    created_at: float
    finished_at: float | None
    deadline_at: float | None
    parent_id: int | None = None
