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
from holdfast.bench import engine_run
from holdfast.bench.places import Place
from holdfast.bench.scenarios import PIPELINE, Scenario, application
from holdfast.engine import Submission

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
                await fill(place, url, scenario, rows, delay)
            await engine_run.fill(url, scenario, CLAIMS * JOBS_PER_CLAIM)
            await place.settle(url)
            apps.append(await stack.enter_async_context(application(url, scenario, lambda _: None)))
        plain, future, backlog = await _in_turns(apps, scenario, JOBS_PER_CLAIM)
        empty, empty_future = await _in_turns(apps[:2], scenario, 0)
    return ClaimSeconds(plain, future, backlog, empty, empty_future)


async def _in_turns(apps: list[Holdfast], scenario: Scenario, found: int) -> list[float]:
    handlers = [f"{PIPELINE}/{step}" for step in scenario.steps]
    taken: list[list[float]] = [[] for _ in apps]
    for _ in range(CLAIMS):
        for app, seconds in zip(apps, taken, strict=True):
            engine = await app.engine()
            started = time.perf_counter()
            leased = await engine.lease("bench", handlers, JOBS_PER_CLAIM, lease_seconds=LEASE_SECONDS)
            seconds.append(time.perf_counter() - started)
            if len(leased.jobs) != found:
                raise RuntimeError(f"A claim found {len(leased.jobs)} jobs instead of {found}.")
    return [statistics.median(seconds) for seconds in taken]


async def fill(place: Place, url: str, scenario: Scenario, rows: int, delay: float) -> None:
    """Submit one execution and copy its rows, due one after the other: as if all had been submitted, in a
    fraction of the time."""
    async with application(url, scenario, lambda _: None) as app:
        submission = Submission(path=PIPELINE, workload={"number": 0}, delay_seconds=delay)
        [first] = await (await app.engine()).submit([submission])
    executions, jobs = place.schema + "executions", place.schema + "jobs"
    columns = ", ".join(await place.columns(url, "executions"))
    await place.fetch(
        url,
        f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {rows})"
        f" INSERT INTO {executions} ({columns}) SELECT {columns} FROM {executions} CROSS JOIN numbers"
        f" WHERE id = {first.id} AND n < {rows}",
    )
    own = await place.columns(url, "jobs")
    copied = {
        **{name: f"j.{name}" for name in own},
        "execution_id": "e.id",
        "available_at": f"j.available_at + (e.id - {first.id}) * 1e-6",
    }
    await place.fetch(
        url,
        f"INSERT INTO {jobs} ({', '.join(copied)}) SELECT {', '.join(copied.values())}"
        f" FROM {jobs} j JOIN {executions} e ON e.id > {first.id} WHERE j.execution_id = {first.id}"
        " ORDER BY e.id",
    )
