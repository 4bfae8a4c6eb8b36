"""What a batch costs by the item: a small one and one of ten times its size, request and download with a
barrier between them.

    submit    all items in one call
    settle    the reports of their requests, which count themselves at the barrier
    open      the barrier: the decision, and letting every item through
    status    the counts by step, as people see them

Where the cost of an item is the same in both, no part of it grows with the batch.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from holdfast.app import Holdfast
from holdfast.bench.places import Place
from holdfast.bench.scenarios import PIPELINE
from holdfast.core.model import Completed, Report
from holdfast.engine.batch_view import BatchView

JOBS_PER_REPORT = 500
LOOKS = 3
LEASE_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class BatchSeconds:
    """For the whole batch."""

    submit: float
    settle: float
    open: float
    status: float


async def batch_seconds(place: Place, items: int) -> BatchSeconds:
    async with place.database() as url, Holdfast(url) as app:
        steps = [
            app.step(name="request", operation="request")(_nothing),
            app.step(name="download", operation="download", barrier={"after": "request"})(_nothing),
        ]
        app.pipeline(PIPELINE, steps)
        started = time.perf_counter()
        batch = await app.batch(PIPELINE, [{"number": number} for number in range(items)])
        submitted = time.perf_counter() - started
        await place.settle(url)
        settled = await _settle(app, items)
        await place.settle(url)
        started = time.perf_counter()
        await (await app.own_engine()).batches.attend_all()
        opened = time.perf_counter() - started
        looks = []
        for _ in range(LOOKS):
            started = time.perf_counter()
            view = await batch.status()
            looks.append(time.perf_counter() - started)
        await _check_opened(place, url, view, items)
    return BatchSeconds(submitted, settled, opened, statistics.median(looks))


async def _settle(app: Holdfast, items: int) -> float:
    """Seconds that the reports took; how long leasing takes is another scenario's matter."""
    engine, taken, left = await app.own_engine(), 0.0, items
    while left:
        leased = await engine.lease(
            "bench", [f"{PIPELINE}/request"], JOBS_PER_REPORT, lease_seconds=LEASE_SECONDS
        )
        reports = [Report(job.queue_id, job.fence, Completed()) for job in leased.jobs]
        started = time.perf_counter()
        acks = await engine.report(reports)
        taken += time.perf_counter() - started
        if not acks or not all(ack.accepted for ack in acks):
            raise RuntimeError(f"Of {items} requests, {left} were left that nobody could report.")
        left -= len(acks)
    return taken


async def _check_opened(place: Place, url: str, view: BatchView, items: int) -> None:
    """A barrier that did not let all through has no cost."""
    [[free]] = await place.fetch(
        url, f"SELECT count(*) FROM {place.schema}jobs WHERE step = 'download' AND held_by IS NULL"
    )
    if (free, view.counts["download"]["pending"]) != (items, items):
        raise RuntimeError(f"The barrier let {free} of {items} items through: {view.counts}.")


async def _nothing(_: object) -> None:
    pass
