"""The rows as they are after a step, read past the engine: what every invariant is about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from holdfast.core.failures import StoredError
from holdfast.core.gates import Gates
from holdfast.core.model import NO_ELEMENT, ExecutionStatus, JobStatus, Lane, element_of, visit_of
from simulation.stores import SimulatedStore

LIVE = (JobStatus.QUEUED, JobStatus.RETRY, JobStatus.LEASED)
READY = (JobStatus.QUEUED, JobStatus.RETRY)
FLEET = "max_concurrency"

_EXECUTIONS = """SELECT id, path, definition_id, status, round, manual_retries, last_manual_retry_at,
    retry_count, last_completed_stage, error, retry_history, idempotency_key, finished_at, deadline_at,
    lane, batch_id, plan, parent_job, workload
FROM {schema}executions ORDER BY id"""
_JOBS = """SELECT j.id, j.execution_id, j.step, j.round, j.status, j.attempts, j.max_attempts,
    j.available_at, j.fence, j.lease_until, j.dead_reason, j.losses, j.crashes, j.settled_fence, j.output,
    j.held_by, j.scheduled_for, j.limited, g.handler, g.lane, g.rank, g.alone, g.limit_name, g.path, g.step,
    j.last_attempt_at, j.worker_id, j.element, j.input, j.parked, j.superseded
FROM {schema}jobs j JOIN {schema}claim_groups g ON g.id = j.claim_group ORDER BY j.id"""
_BATCHES = """SELECT id, path, definition_id, lane, idempotency_key, items, attention, closed_at,
    cancelled_at, gates
FROM {schema}batches ORDER BY id"""
_LIMITS = "SELECT name, max_concurrency, manual_reserve FROM {schema}limits ORDER BY name"
_PAUSES = "SELECT kind, name FROM {schema}pauses ORDER BY kind, name"

_STORED_ERROR = msgspec.json.Decoder(StoredError)
_GATES = msgspec.json.Decoder(Gates)


class ExecutionLine(NamedTuple):
    id: int
    path: str
    definition_id: int
    status: str
    round: int
    manual_retries: int
    last_manual_retry_at: float | None
    retry_count: int
    last_completed_stage: str | None
    error: str | None
    retry_history: str | None
    idempotency_key: str | None
    finished_at: float | None
    deadline_at: float | None
    lane: str
    batch_id: int | None
    plan: str | None
    parent_job: int | None
    workload: str

    @property
    def stored_error(self) -> StoredError | None:
        return None if self.error is None else _STORED_ERROR.decode(self.error)

    @property
    def is_running(self) -> bool:
        return self.status == ExecutionStatus.RUNNING


class JobLine(NamedTuple):
    """`path` and `group_step` are what its claim group says, by which it can be paused."""

    id: int
    execution_id: int
    step: str
    round: int
    status: str
    attempts: int
    max_attempts: int
    available_at: float
    fence: str | None
    lease_until: float | None
    dead_reason: str | None
    losses: int
    crashes: int
    settled_fence: str | None
    output: str | None
    held_by: str | None
    scheduled_for: float | None
    limited: bool
    handler: str
    lane: str
    rank: int
    alone: bool
    limit: str
    path: str
    group_step: str
    last_attempt_at: float | None
    worker_id: str | None
    place: int
    input: str | None
    parked: str | None
    superseded: bool

    @property
    def visit(self) -> int:
        return visit_of(self.place)

    @property
    def element(self) -> int:
        return element_of(self.place)

    @property
    def is_element(self) -> bool:
        return self.element != NO_ELEMENT

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    @property
    def is_leased(self) -> bool:
        return self.status == JobStatus.LEASED

    @property
    def is_waiting(self) -> bool:
        """For its time, and for nothing else but room."""
        return self.status in READY and self.held_by is None


class BatchLine(NamedTuple):
    id: int
    path: str
    definition_id: int
    lane: str
    idempotency_key: str | None
    items: int
    attention: bool
    closed_at: float | None
    cancelled_at: float | None
    stored_gates: str

    @property
    def gates(self) -> Gates:
        return _GATES.decode(self.stored_gates)


class LimitLine(NamedTuple):
    name: str
    max_concurrency: int
    manual_reserve: int | None

    @property
    def bulk_max(self) -> int:
        reserve = self.manual_reserve
        if reserve is None:
            reserve = 1 if self.max_concurrency > 1 else 0
        return self.max_concurrency - reserve


@dataclass(slots=True)
class Sight:
    executions: dict[int, ExecutionLine] = field(default_factory=dict)
    jobs: dict[int, JobLine] = field(default_factory=dict)
    batches: dict[int, BatchLine] = field(default_factory=dict)
    limits: dict[str, LimitLine] = field(default_factory=dict)
    pauses: frozenset[tuple[str, str]] = frozenset()

    def is_paused(self, job: JobLine) -> bool:
        over = (
            ("step", f"{job.path}/{job.step}"),
            ("playbook", job.path),
            ("lane", job.lane),
            ("limit", job.limit),
            ("limit", FLEET),
        )
        return bool(self.pauses) and any(pause in self.pauses for pause in over)

    def leased_under(self, name: str) -> dict[str, int]:
        """How many jobs of each lane hold a place under this limit."""
        leased = {lane.value: 0 for lane in Lane}
        for job in self.jobs.values():
            if job.is_leased and name in (job.limit, FLEET):
                leased[job.lane] += 1
        return leased


async def seen(store: SimulatedStore) -> Sight:
    return Sight(
        executions={line[0]: ExecutionLine(*line) for line in await store.select(_EXECUTIONS)},
        jobs={line[0]: JobLine(*line) for line in await store.select(_JOBS)},
        batches={line[0]: BatchLine(*line) for line in await store.select(_BATCHES)},
        limits={line[0]: LimitLine(*line) for line in await store.select(_LIMITS)},
        pauses=frozenset((kind, name) for kind, name in await store.select(_PAUSES)),
    )
