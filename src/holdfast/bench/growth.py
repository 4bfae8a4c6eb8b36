"""What grows with a database, and must not slow the work down: three databases, drained in turns.

    empty      so many jobs, and nothing else
    queued     the same at the head of a great queue of their own claim group
    finished   the same, where a great many executions are kept with their jobs and events

and a long drain, watched by tenths: the rate of the last beside the first, and the worker's memory at both.
The workers are processes of their own (fleet.py), so that what fills the databases is neither in their memory
nor in their caches. A drain is timed from the word to go to the call of its last handler, for behind it
others may be queued that nobody is to wait for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.bench import claims, copies, engine_run
from holdfast.bench.fleet import POLL_SECONDS, Fleet
from holdfast.bench.places import Place
from holdfast.bench.scenarios import Scenario, application

DRAINED_MAX = 50_000
DRAINED_PART = 10  # of what is in the way, where that is less
LONG_PART = 2
TENTHS = 10
CLAIMED = claims.CLAIMS * claims.JOBS_PER_CLAIM

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of the drain in each round, and of the middle one of many claims."""

    drains: list[float]
    claim: float


@dataclass(frozen=True, slots=True)
class InTheWay:
    """What is slow or fast by what else is in the database; in seconds."""

    empty: Seconds
    queued: Seconds
    finished: Seconds


@dataclass(frozen=True, slots=True)
class Tenths:
    """Of a long drain: seconds of the first and the last tenth, and the worker's memory at their ends."""

    first_seconds: float
    last_seconds: float
    first_memory_bytes: int
    last_memory_bytes: int


def drained(rows: int) -> int:
    """How many are drained with so many rows in the way."""
    return max(min(rows // DRAINED_PART, DRAINED_MAX), 1)


def long_drain(rows: int) -> int:
    return max(rows // LONG_PART, TENTHS)


async def in_the_way(
    place: Place, scenario: Scenario, rows: int, rounds: int, progress: Progress
) -> InTheWay:
    size = drained(rows)
    async with contextlib.AsyncExitStack() as stack:
        queued, finished = [await stack.enter_async_context(place.database()) for _ in range(2)]
        progress(f"growth on {place.store}: {rows:,} queued, {rows:,} finished")
        await copies.fill_queued(place, queued, scenario, rows + rounds * size)
        await copies.fill_finished(place, finished, scenario, rows)
        taken: list[list[float]] = [[], [], []]
        for number in range(1, rounds + 1):
            progress(f"growth on {place.store}, round {number} of {rounds}")
            async with place.database() as empty:
                turns = list(zip((empty, queued, finished), taken, strict=True))
                first = number % len(turns)  # each is the first one once
                for url, seconds in turns[first:] + turns[:first]:
                    if url != queued:
                        await copies.fill_queued(place, url, scenario, size)
                    seconds.append(await _drain_seconds(place, url, scenario, size))
        empty = await stack.enter_async_context(place.database())
        apps = []
        for url in (empty, queued, finished):
            await copies.fill_queued(place, url, scenario, CLAIMED)
            await place.maintain(url)
            await place.settle(url)
            apps.append(await stack.enter_async_context(application(url, scenario, lambda _: None)))
        claimed = await claims.in_turns(apps, scenario, claims.JOBS_PER_CLAIM)
    return InTheWay(*(Seconds(*both) for both in zip(taken, claimed, strict=True)))


async def _drain_seconds(place: Place, url: str, scenario: Scenario, size: int) -> float:
    await place.maintain(url)
    await place.settle(url)
    completed = await _completed(place, url)
    async with Fleet(url, scenario, 1) as fleet:
        started = time.perf_counter()
        fleet.go()
        [passed] = await fleet.pass_marks([size])
    await _check_completed(place, url, completed + size)
    return passed.at - started


async def tenths(place: Place, scenario: Scenario, size: int) -> Tenths:
    async with place.database() as url:
        await copies.fill_queued(place, url, scenario, size)
        await place.maintain(url)
        await place.settle(url)
        marks = [1, *(size * part // TENTHS for part in range(1, TENTHS + 1))]
        async with Fleet(url, scenario, 1) as fleet, application(url, scenario, lambda _: None) as app:
            fleet.go()
            passed = await fleet.pass_marks(marks)
            await engine_run.until_none_runs(app)
        await _check_completed(place, url, size)
    start, first, before_last, last = passed[0], passed[1], passed[-2], passed[-1]
    return Tenths(
        # A shorter time than between two looks is not seen.
        max(first.at - start.at, POLL_SECONDS),
        max(last.at - before_last.at, POLL_SECONDS),
        first.memory_bytes,
        last.memory_bytes,
    )


async def _completed(place: Place, url: str) -> int:
    query = f"SELECT count(*) FROM {place.schema}executions WHERE status = 'completed'"
    [[count]] = await place.fetch(url, query)
    return int(count)


async def _check_completed(place: Place, url: str, expected: int) -> None:
    """Workers that were told to stop have reported what they did; more than was asked for is fine."""
    found = await _completed(place, url)
    if found < expected:
        raise RuntimeError(f"On {place.store} {found} executions are completed, not {expected}.")
