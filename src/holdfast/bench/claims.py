"""What a claim costs, and what it costs where the queue is full: three databases, asked in turns.

    plain     some ready jobs
    future    as many, and before them a great many that are not due yet, in the same group
    backlog   as many, and a great many more that are ready

A claim is what a worker asks of the engine, with all that belongs to it. Since the databases take turns, a
machine that is slow for a moment is so for all of them.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from dataclasses import dataclass

from holdfast.app import Holdfast
from holdfast.bench import copies, engine_run
from holdfast.bench.places import Place
from holdfast.bench.scenarios import PIPELINE, Scenario, application

CLAIMS = 100
JOBS_PER_CLAIM = 10
LEASE_SECONDS = 3_600.0
FUTURE_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class ClaimSeconds:
    """The middle one of many claims, by what else is in the queue; `empty` ones find nothing."""

    plain: float
    future: float
    backlog: float
    empty: float
    empty_future: float


async def claim_seconds(place: Place, scenario: Scenario, rows: int) -> ClaimSeconds:
    """With so many rows in the way."""
    async with contextlib.AsyncExitStack() as stack:
        apps: list[Holdfast] = []
        for delay in (None, FUTURE_SECONDS, 0.0):
            url = await stack.enter_async_context(place.database())
            if delay is not None:
                await copies.fill_queued(place, url, scenario, rows, delay=delay)
            await engine_run.fill(url, scenario, CLAIMS * JOBS_PER_CLAIM)
            await place.settle(url)
            apps.append(await stack.enter_async_context(application(url, scenario, lambda _: None)))
        plain, future, backlog = await in_turns(apps, scenario, JOBS_PER_CLAIM)
        empty, empty_future = await in_turns(apps[:2], scenario, 0)
    return ClaimSeconds(plain, future, backlog, empty, empty_future)


async def in_turns(apps: list[Holdfast], scenario: Scenario, found: int) -> list[float]:
    """The middle one of many claims for each of these databases, every one of which finds so many jobs."""
    handlers = [f"{PIPELINE}/{step}" for step in scenario.steps]
    taken: list[list[float]] = [[] for _ in apps]
    for _ in range(CLAIMS):
        for app, seconds in zip(apps, taken, strict=True):
            engine = await app.own_engine()
            started = time.perf_counter()
            leased = await engine.lease("bench", handlers, JOBS_PER_CLAIM, lease_seconds=LEASE_SECONDS)
            seconds.append(time.perf_counter() - started)
            if len(leased.jobs) != found:
                raise RuntimeError(f"A claim found {len(leased.jobs)} jobs instead of {found}.")
    return [statistics.median(seconds) for seconds in taken]
