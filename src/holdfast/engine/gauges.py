"""How much there is right now, for those who watch: at the cost of what is open, never of what has ended."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.model import ExecutionStatus, JobStatus, Lane
from holdfast.engine.controls import living_workers, ready_work
from holdfast.engine.overview import is_paused, unoffered
from holdfast.store.controlling import LimitRow
from holdfast.store.interface import OpenWork, Store

HELD = "held"
OPEN_STATUSES = (JobStatus.QUEUED.value, JobStatus.RETRY.value, JobStatus.LEASED.value, HELD)


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """`jobs` by status and lane, those at a gate as `held`; for each lane since how long its oldest ready job
    waits; how many ready jobs nobody living offers to do, and no pause keeps."""

    jobs: dict[tuple[str, str], int]
    oldest_ready_seconds: dict[str, float]
    unoffered: int
    executions: dict[ExecutionStatus, int]
    workers: int
    slots: int
    limits: list[LimitRow]

    def in_status(self, status: JobStatus | str) -> int:
        """In both lanes; also of those that are `held`."""
        return sum(count for (told, _), count in self.jobs.items() if told == status)


async def gauges(store: Store, now: float) -> Gauges:
    work = await store.open_work(now)
    held = await store.held_work()
    living = await living_workers(store, now)
    jobs = {(status, lane.value): 0 for status in OPEN_STATUSES for lane in Lane}
    for item in work:
        jobs[item.status.value, item.lane.value] += item.jobs
    for lane, count in held.items():
        jobs[HELD, lane.value] = count
    ready = ready_work(work)
    pauses = await store.pauses()
    free = [item for item in ready if not is_paused(item, pauses)]
    return Gauges(
        jobs=jobs,
        oldest_ready_seconds={lane.value: _waits(ready, lane, now) for lane in Lane},
        unoffered=sum(waiting.jobs for waiting in unoffered(free, living)),
        executions=await store.open_executions(),
        workers=len(living),
        slots=sum(worker.concurrency for worker in living),
        limits=await store.limits(),
    )


def _waits(ready: Sequence[OpenWork], lane: Lane, now: float) -> float:
    return max((now - item.oldest_available_at for item in ready if item.lane is lane), default=0.0)
