"""What people look at first: how much work there is, who does it, and what waits for somebody to act."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.model import ExecutionStatus, Lane, WorkerRecord, WorkerRow
from holdfast.core.pauses import Pause
from holdfast.core.payload import check_name
from holdfast.engine.controls import (
    WORKERS_MAX,
    Controls,
    LimitView,
    held_by_pauses,
    offers,
    ready_work,
)
from holdfast.store.interface import OpenWork, Store

OPEN_BATCHES_MAX = 100
# A worker counts as living until it has missed this many announcements.
ANNOUNCEMENTS_MISSED_MAX = 3
FORGET_WORKER_SECONDS = 86_400.0


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Ready jobs that no living worker can take: nobody offers this handler, in this lane."""

    handler: str
    lane: Lane
    jobs: int
    since: float


class PausedWork(msgspec.Struct, frozen=True):
    """A pause, and how many jobs it keeps that are ready; one that two pauses hold is counted in both."""

    pause: Pause
    jobs: int


class OpenBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that nobody has closed; `is_waited_for` where its items stand at a barrier for that only."""

    id: int
    path: str
    items: int
    created_at: float
    is_waited_for: bool


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """`jobs` counts what is open, by status and lane; those that a barrier or a wave holds are counted as
    `held`. `ready` is the part whose time has come,
    `oldest_ready_at` since when the oldest is, and `paused` how many of them a pause keeps. Those of `alone`
    are ready, their handlers are offered, and yet they wait: their worker was lost, and each process runs
    such jobs one at a time and beside no others. Of `executions`, the failed ones wait for somebody; what is
    `unoffered` nobody living can take, and no pause keeps."""

    at: float
    executions: dict[str, int]
    jobs: dict[str, dict[str, int]]
    ready: int
    alone: int
    oldest_ready_at: float | None
    paused: int
    pauses: tuple[PausedWork, ...]
    limits: tuple[LimitView, ...]
    workers: tuple[WorkerRow, ...]
    vanished: tuple[WorkerRow, ...]
    unoffered: tuple[Waiting, ...]
    open_batches: tuple[OpenBatch, ...]


async def announce(store: Store, worker: WorkerRecord) -> None:
    """Say that a worker lives, and how long it may be silent before it is counted as lost."""
    check_name(worker.worker_id, what="worker id")
    now = await store.now()
    row = WorkerRow(
        worker_id=worker.worker_id,
        host=worker.host,
        pid=worker.pid,
        version=worker.version,
        concurrency=worker.concurrency,
        lanes=worker.lanes,
        handlers=worker.handlers,
        started_at=worker.started_at,
        seen_at=now,
        seen_until=now + ANNOUNCEMENTS_MISSED_MAX * worker.announce_seconds,
    )
    await store.announce_worker(row, forget_before=now - FORGET_WORKER_SECONDS)


async def overview(store: Store, controls: Controls) -> Overview:
    now = await store.now()
    work = await store.open_work(now)
    ready = ready_work(work)
    pauses = await controls.pauses()
    # Paused on purpose, it waits for whoever resumes it, whether or not somebody offers what it needs.
    free = [item for item in ready if not is_paused(item, pauses)]
    counts = await store.execution_counts()
    workers = await store.workers(WORKERS_MAX)
    living = [worker for worker in workers if worker.is_living(now)]
    offered = offers(living)
    jobs: dict[str, dict[str, int]] = {}
    for item in work:
        lanes = jobs.setdefault(item.status.value, {lane.value: 0 for lane in Lane})
        lanes[item.lane.value] += item.jobs
    held = await store.held_work()
    if held:
        jobs["held"] = {lane.value: held.get(lane, 0) for lane in Lane}
    return Overview(
        at=now,
        executions={status.value: counts.get(status, 0) for status in ExecutionStatus},
        jobs=jobs,
        ready=sum(item.jobs for item in ready),
        alone=sum(item.jobs for item in free if item.alone and (item.handler, item.lane) in offered),
        oldest_ready_at=min((item.oldest_available_at for item in ready), default=None),
        paused=sum(item.jobs for item in ready) - sum(item.jobs for item in free),
        pauses=tuple(
            PausedWork(pause, sum(item.jobs for item in ready if is_paused(item, [pause])))
            for pause in pauses
        ),
        limits=tuple(await controls.limits(ready)),
        workers=tuple(living),
        vanished=tuple(worker for worker in workers if not worker.is_living(now)),
        unoffered=unoffered(free, living),
        open_batches=await _open_batches(store, now),
    )


async def _open_batches(store: Store, now: float) -> tuple[OpenBatch, ...]:
    return tuple(
        OpenBatch(
            id=row.id,
            path=row.path,
            items=row.items,
            created_at=row.created_at,
            is_waited_for=row.is_running
            and any(gate.opened_at is None and not gate.unsettled for gate in row.gates.barriers),
        )
        for row in await store.batches(before=None, limit=OPEN_BATCHES_MAX, open_since=now)
    )


def is_paused(item: OpenWork, pauses: Sequence[Pause]) -> bool:
    return bool(held_by_pauses(pauses, item.path, item.step, item.lane, item.limit))


def unoffered(ready: Sequence[OpenWork], living: Sequence[WorkerRow]) -> tuple[Waiting, ...]:
    """Of what is ready, that for which no living worker has the handler and the lane."""
    offered = offers(living)
    found: dict[tuple[str, Lane], tuple[int, float]] = {}
    for item in ready:
        key = (item.handler, item.lane)
        if key not in offered:
            jobs, since = found.get(key, (0, item.oldest_available_at))
            found[key] = (jobs + item.jobs, min(since, item.oldest_available_at))
    return tuple(
        Waiting(handler=handler, lane=lane, jobs=jobs, since=since)
        for (handler, lane), (jobs, since) in sorted(found.items())
    )
