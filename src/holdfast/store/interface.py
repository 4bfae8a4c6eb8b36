"""The contract of a store, verb by verb.

A store keeps rows and makes changes atomic; it decides nothing. Whatever a transition needs is loaded
under lock, handed to a pure `plan` function of the engine, and what that returns is written before the
lock goes: `amend_jobs` and `amend_executions` are that one recipe, for reports, sweeps, releases,
cancels and manual retries alike. Lists are the primitive everywhere.

Every verb raises `StoreUnavailable` where trying again may help; nothing was written then, or, when
the connection broke at the very commit, everything was: reports and submits with a key can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from holdfast.core.audit import AuditEntry
from holdfast.core.gates import BatchRow, BatchState
from holdfast.core.model import (
    DeadReason,
    Event,
    ExecutionRow,
    ExecutionState,
    ExecutionStatus,
    JobRow,
    JobState,
    JobStatus,
    Lane,
    LeaseRef,
    Mode,
    WorkerRow,
)
from holdfast.store.admitting import AdmittingStore
from holdfast.store.catalog import CatalogRow
from holdfast.store.changes import Changes
from holdfast.store.controlling import ControllingStore
from holdfast.store.event_rows import EventRowsStore
from holdfast.store.handler_transaction import StoreTransaction
from holdfast.store.new_executions import Inserted, NewExecution
from holdfast.store.stages import HeldStage
from holdfast.store.tables import TablesStore
from holdfast.store.tallies import TalliesStore


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`token` makes this call's fences unguessable; `alone` asks for one job that must run by itself. Of the
    `limit` jobs at most `bulk` may be of the bulk lane, and at most `limited` under a limit. Bulk jobs that
    have been ready for `ageing_seconds` take their turn among the manual ones. With `family` it takes only
    jobs of that execution, and of those that were started for it."""

    worker_id: str
    handlers: tuple[str, ...]
    limit: int
    lease_seconds: float
    token: str
    lanes: tuple[Lane, ...] = (Lane.MANUAL, Lane.BULK)
    alone: bool = False
    bulk: int | None = None
    limited: int | None = None
    ageing_seconds: float | None = None
    family: int | None = None


class Claimed(msgspec.Struct, frozen=True, array_like=True):
    """A row just leased, with what its handler needs; in the order of leasing. `limited` tells that a limit
    was set over it: its own, or the one over everything."""

    id: int
    fence: str
    execution_id: int
    path: str
    definition_id: int
    step: str
    handler: str
    element: int
    round: int
    attempts: int
    max_attempts: int
    lane: Lane
    lease_until: float
    leased_alone: bool
    clear: str | None
    workload: str
    scheduled_for: float | None
    leased_at: float
    limited: bool
    input: str | None = None
    parked: str | None = None
    depth: int | None = None
    available_at: float = 0.0


class Taking(NamedTuple):
    """A lease that is to be taken over: by whom it is held is told by its fence, and it gets the new one."""

    queue_id: int
    fence: str
    new_fence: str


class Beat(NamedTuple):
    """A sign of life of one attempt; `progress` (0 to 1) where the handler told a new one."""

    queue_id: int
    fence: str
    progress: float | None = None


class Output(NamedTuple):
    execution_id: int
    step: str
    round: int
    output: str
    element: int = -1


class WaitingForChild(NamedTuple):
    """A job that is put aside for a child execution; the child is None where it has not been started yet."""

    job_id: int
    parked: str
    attempts: int
    child_id: int | None
    child_status: ExecutionStatus | None


class Locked(NamedTuple):
    job: JobState
    execution: ExecutionState


JobsPlan = Callable[[list[Locked]], Changes]
ExecutionsPlan = Callable[[list[ExecutionState], list[JobState]], Changes]
# Given the gated batches of the rows in hand, locked, before the plan runs.
BatchesLoader = Callable[[list[BatchState]], None]
# With what was inserted, the batch as it is then; it raises where nothing may be added.
AddingPlan = Callable[[BatchState, Sequence["Inserted"]], BatchState]
# With how many jobs the batch has at each step that are not finished, by what holds them.
LiveJobs = Mapping[tuple[str, str | None], int]
BatchPlan = Callable[[BatchState, LiveJobs], BatchState]


class NewBatch(NamedTuple):
    path: str
    definition_id: int
    lane: Lane
    mode: Mode
    idempotency_key: str | None
    gated: bool
    gates: str


class BatchCount(NamedTuple):
    """So many items of a batch whose execution is in this state, and has this job that is not done."""

    execution_status: ExecutionStatus
    step: str | None
    job_status: JobStatus | None
    held_by: str | None
    items: int


class BatchPace(NamedTuple):
    """How many jobs of a step ended since the time that was asked for, the first of them and the last."""

    step: str
    jobs: int
    first_at: float
    last_at: float


class BatchWork(NamedTuple):
    """Jobs of a batch that wait at a step and are held by no gate; the first of them is ready at `first_at`,
    the last at `last_at`."""

    step: str
    handler: str
    lane: Lane
    limit: str
    jobs: int
    first_at: float
    last_at: float
    scheduled_for: float | None


# A part of a WHERE, with a place for its value; left out where the value is None.
Condition = tuple[str, object]


class ExecutionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first; `before` is the last id of the page before."""

    status: ExecutionStatus | None = None
    path: str | None = None
    batch_id: int | None = None
    before: int | None = None
    limit: int = 50

    def conditions(self) -> list[Condition]:
        return [
            ("e.status = {}", self.status),
            ("e.path = {}", self.path),
            ("e.batch_id = {}", self.batch_id),
            ("e.id < {}", self.before),
        ]


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Oldest first; `after` is the last id of the page before. Superseded dead rows are left out
    where `status` is dead, and shown otherwise."""

    status: JobStatus | None = None
    lane: Lane | None = None
    dead_reason: DeadReason | None = None
    due_at: float | None = None
    execution_id: int | None = None
    queue_id: int | None = None
    after: int = 0
    limit: int = 50

    def conditions(self) -> list[Condition]:
        dead = " AND j.round = e.round" if self.status is JobStatus.DEAD else ""
        return [
            ("j.id > {}", self.after or None),
            ("j.id = {}", self.queue_id),
            ("j.status = {}" + dead, self.status),
            ("g.lane = {}", self.lane),
            ("j.dead_reason = {}", self.dead_reason),
            ("j.execution_id = {}", self.execution_id),
            ("j.status IN ('queued', 'retry') AND j.available_at <= {}", self.due_at),
        ]


class DefinitionRow(NamedTuple):
    id: int
    path: str
    version: int
    content: str


class OpenWork(NamedTuple):
    """Jobs of one status that need one handler in one lane, and how many of those that wait are `ready`;
    held ones are not counted. Those that must run `alone`, because their worker was lost, are counted apart,
    and so are those of several steps or limits."""

    status: JobStatus
    handler: str
    lane: Lane
    jobs: int
    oldest_available_at: float
    alone: bool = False
    path: str = ""
    step: str = ""
    limit: str = ""
    ready: int = 0


class FailureFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Failed executions that nobody has retried yet; all that is given must match."""

    path: str | None = None
    step: str | None = None
    error_type: str | None = None
    dead_reason: str | None = None
    batch_id: int | None = None

    def conditions(self) -> list[Condition]:
        return [
            ("f.batch_id = {}", self.batch_id),
            ("f.path = {}", self.path),
            ("f.step = {}", self.step),
            ("f.error_type = {}", self.error_type),
            ("f.dead_reason = {}", self.dead_reason),
        ]


class FailureRow(NamedTuple):
    """`dead_reason` is a job's, or `deadline` where the execution's time ran out."""

    execution_id: int
    path: str
    step: str
    error_type: str
    dead_reason: str
    category: str
    message: str
    failed_at: float
    manual_retries: int


class FailureGroup(NamedTuple):
    """Failures that are alike; `example` is the newest of them, and the words are its own."""

    path: str
    step: str
    error_type: str
    dead_reason: str
    category: str
    executions: int
    first_at: float
    last_at: float
    example: int
    message: str
    user_message: str
    guidance: str


class Store(EventRowsStore, ControllingStore, AdmittingStore, TablesStore, TalliesStore, Protocol):
    """`inserts_at_once` is how many transactions of submits it writes faster together than one by one."""

    url: str
    inserts_at_once: int

    async def open(self, *, migrate: bool = True) -> None:
        """Connect, check versions, apply migrations under a lock (or refuse an old schema)."""

    async def close(self) -> None: ...

    async def leave_out_numbers(self, count: int) -> None:
        """Give out none of the next so many numbers of executions, jobs, batches and rows of events."""

    async def now(self) -> float:
        """The store's clock, in seconds since 1970: the one that all processes agree on."""

    # waking: a hint that work may be ready, never the truth

    def work_ticket(self) -> int:
        """Taken before a claim, so that work arriving between claim and wait is not slept through."""

    async def wait_for_work(self, ticket: int, seconds: float) -> None:
        """Return when a hint has come since the ticket was taken, or after `seconds`."""

    def announce_work(self) -> None:
        """Hint to every waiting worker, in this process and others, that jobs may have become ready."""

    def announce_end(self) -> None:
        """Hint to whoever waits in this process, and to the feeds of events in others, that something ended.
        Workers elsewhere need not know."""

    # definitions

    async def save_definition(
        self, path: str, content: str, content_hash: str, now: float, source: str | None = None
    ) -> DefinitionRow:
        """The version with this content, made if it is new; its text is the `source` from now on, where one
        is given."""

    async def definition(self, definition_id: int) -> DefinitionRow | None: ...

    async def latest_definitions(self, path: str | None, limit: int) -> list[DefinitionRow]:
        """Of this path, or of each path, the version that was registered last."""

    async def catalog(
        self,
        path: str | None,
        *,
        version: int | None = None,
        current: bool = False,
        after: str | None = None,
        below: int | None = None,
        limit: int,
    ) -> list[CatalogRow]:
        """Versions by path, the newest first: all, this one, or the current one of each path. `after` is the
        last path of the page before, `below` its last version."""

    async def definition_source(self, definition_id: int) -> str | None:
        """The text that it was compiled from; None where there is none."""

    # workers

    async def announce_worker(self, worker: WorkerRow, *, forget_before: float) -> None:
        """Say that it lives, and forget those that were to be heard of before this time."""

    async def retire_worker(self, worker_id: str) -> None:
        """Forget it: it has ended in order."""

    async def workers(self, limit: int) -> list[WorkerRow]:
        """Those that live and those that went silent, the longest running first."""

    # writing

    async def insert(self, executions: Sequence[NewExecution], now: float) -> list[Inserted]:
        """Store executions with their first jobs and events, or find them by their idempotency keys;
        all of them or, where a key is known with another workload, none."""

    async def claim(self, request: ClaimRequest, now: float) -> list[Claimed]:
        """Lease up to `limit` ready jobs in the order of lanes, ranks, time and id."""

    async def heartbeat(self, beats: Sequence[Beat], now: float, lease_until: float | None) -> set[LeaseRef]:
        """Extend the leases that still stand, and return them: until then, or each for as long as it was
        given the last time. Rows locked elsewhere count as standing."""

    async def take_over(
        self, takings: Sequence[Taking], worker_id: str, now: float, lease_seconds: float
    ) -> list[Claimed]:
        """Of these leases those that stand, for this worker and under their new fences: the same attempts,
        as a claim would hand them out. One that has its new fence already stands too: it was taken by this
        very call before, and the answer got lost."""

    async def amend_jobs(
        self,
        ids: Sequence[int],
        plan: JobsPlan,
        now: float,
        *,
        batches: BatchesLoader | None = None,
        skip_locked: bool = False,
    ) -> None:
        """Lock these jobs and their executions, then the gated batches they are in, plan, write; unknown ids
        are left out of the plan, and with `skip_locked` so are rows that somebody else has locked."""

    async def complete_held(self, stages: Sequence[HeldStage], now: float) -> bool:
        """Complete these attempts where the leases of all of them are held; False, and nothing is written,
        where one is not."""

    async def amend_executions(
        self,
        ids: Sequence[int],
        plan: ExecutionsPlan,
        now: float,
        *,
        batches: BatchesLoader | None = None,
    ) -> None:
        """Lock these executions and all their jobs, then the gated batches they are in, plan, write; unknown
        ids are left out of the plan."""

    # batches

    async def create_batch(self, batch: NewBatch, now: float) -> tuple[BatchState, bool]:
        """Make it, or find it by its idempotency key; whether it was made."""

    async def add_to_batch(
        self, batch_id: int, executions: Sequence[NewExecution], plan: AddingPlan, now: float
    ) -> list[Inserted] | None:
        """Lock the batch, insert, plan, write; all or nothing. None where there is no such batch."""

    async def amend_batch(
        self,
        batch_id: int,
        plan: BatchPlan,
        now: float,
        *,
        count_jobs: bool = False,
        audit: AuditEntry | None = None,
    ) -> BatchState | None:
        """Lock the batch, count its unfinished jobs where that is asked for, plan, write; the batch as it is
        then, None where there is none. Nothing changes a job of a gated batch meanwhile."""

    async def batches_to_attend(self, after: int, limit: int) -> list[int]:
        """Those after this one where a gate is to be opened, or has not let everything through."""

    async def held_jobs(
        self, batch_id: int, step: str, held_by: str, after: int, limit: int
    ) -> list[tuple[int, int]]:
        """Executions after this one, with their jobs that are held so."""

    async def completed_at(self, execution_id: int, step: str) -> float | None:
        """When the step was done the last time."""

    async def batch(self, batch_id: int) -> BatchRow | None: ...

    async def batches(
        self, *, before: int | None, limit: int, open_since: float | None = None, path: str | None = None
    ) -> list[BatchRow]:
        """Newest first; with `open_since` those that were made by then and are not closed, with `path` those
        of one pipeline."""

    async def batch_items(
        self, batch_id: int, *, status: ExecutionStatus | None, after: int, limit: int
    ) -> list[ExecutionRow]:
        """In the order of their submission; `after` is the last id of the page before."""

    async def batch_counts(self, batch_id: int) -> list[BatchCount]: ...

    async def batch_executions(self, batch_id: int) -> list[BatchCount]:
        """How many of its items are in each state."""

    async def batch_steps(self, batch_id: int) -> list[BatchCount]:
        """Of items whose playbook is more than a chain of steps: how far they are with each step that they
        have come to."""

    async def batch_paces(self, batch_id: int, since: float) -> list[BatchPace]: ...

    async def batch_work(self, batch_id: int, *, scheduled_after: float | None = None) -> list[BatchWork]: ...

    async def held_work(self) -> dict[Lane, int]:
        """How many jobs are held at a gate."""

    async def jobs_of(self, execution_ids: Sequence[int]) -> list[JobRow]:
        """All jobs of these executions, in the order of their ids."""

    def transaction(self) -> StoreTransaction:
        """A transaction for one attempt, not open yet."""

    async def prune(self, finished_before: float, limit: int) -> int:
        """Delete up to `limit` executions that ended before this time, with their jobs and events."""

    # reading

    async def alone_ready(self, request: ClaimRequest, now: float) -> bool:
        """Whether a job that must run alone is ready for this worker."""

    async def next_due(self, request: ClaimRequest, now: float) -> float | None:
        """When the next job that this worker could take becomes ready."""

    async def expired(self, now: float, limit: int) -> list[LeaseRef]:
        """Leases that ran out before `now`, oldest first."""

    async def leases_of(self, worker_id: str, limit: int) -> list[tuple[LeaseRef, bool]]:
        """What this worker holds, and whether it must run each of them alone."""

    async def handlers(self) -> list[str]:
        """All that jobs have ever needed, by name."""

    async def overdue(self, now: float, limit: int) -> list[int]:
        """Running executions whose deadline has passed."""

    async def peek_jobs(self, ids: Sequence[int]) -> list[Locked]:
        """Jobs with their executions as they are now, without locking: for work before a transaction."""

    async def step_outputs(self, execution_ids: Sequence[int], steps: Sequence[str]) -> list[Output]:
        """What counts of the outputs of these steps, those of earlier rounds and visits first."""

    async def execution_by_key(self, path: str, idempotency_key: str) -> ExecutionRow | None: ...

    async def definition_of(self, execution_id: int) -> int | None: ...

    async def definition_version(self, path: str, version: int) -> DefinitionRow | None: ...

    async def handed_inputs(self, places: Sequence[tuple[int, str, int]]) -> dict[tuple[int, str, int], str]:
        """What was handed to steps, by execution, step and place, where anything was; that of the last
        round."""

    async def waiting_for_child(
        self, *, job_id: int | None = None, after: int = 0, limit: int = 1
    ) -> list[WaitingForChild]:
        """The jobs behind `after` that wait for a child execution, or the one that is named."""

    async def orphans(self, limit: int) -> list[int]:
        """Child executions that run although the jobs they were started for have ended."""

    async def children(self, execution_id: int, limit: int) -> list[int]:
        """The executions that run for jobs of this one."""

    async def outputs(self, execution_ids: Sequence[int]) -> list[Output]:
        """Outputs of completed steps, in the order of their rounds."""

    async def execution(self, execution_id: int) -> ExecutionRow | None: ...

    async def executions(self, query: ExecutionFilter) -> list[ExecutionRow]: ...

    async def jobs(self, query: JobFilter) -> list[JobRow]: ...

    async def events(self, execution_id: int, after: str | None, limit: int) -> list[Event]:
        """Events in their order; `after` is the id of the last one seen."""

    async def open_work(self, now: float) -> list[OpenWork]:
        """Waiting and leased jobs, counted."""

    async def execution_counts(self) -> dict[ExecutionStatus, int]:
        """Of what was submitted: what was started for others is theirs."""

    async def open_executions(self) -> dict[ExecutionStatus, int]:
        """The same for those that run and those that have failed, at the cost of these alone."""

    # failures

    async def failures(self, query: FailureFilter, after: int, limit: int) -> list[FailureRow]:
        """Oldest execution first; `after` is the last id of the page before."""

    async def failure_groups(self, query: FailureFilter, limit: int) -> list[FailureGroup]:
        """The largest first."""
