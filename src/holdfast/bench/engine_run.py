"""A scenario through the engine: the public API, the default settings, a worker in this process.

The clock runs from the start of the worker until the store says that no execution is left running. The
handlers count their calls, so the store is asked only from the last call on, and the clock stops after
its answer: what the question costs is counted against the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Iterator

from holdfast.app import Holdfast
from holdfast.bench.scenarios import PIPELINE, OnCall, Scenario, application
from holdfast.core.model import ExecutionStatus
from holdfast.worker.context import Context

SUBMIT_BATCH = 5_000
POLL_SECONDS = 0.005
RUN_SECONDS_MAX = 600.0
PACE_SECONDS = (0.02, 0.05)
PACE_SEED = 1


class _Calls:
    """Counts the calls of handlers, and tells when the last one has come."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self.all_made = asyncio.Event()

    def __call__(self, _: Context) -> None:
        self._left -= 1
        if self._left == 0:
            self.all_made.set()


async def submit(app: Holdfast, count: int) -> None:
    for start in range(0, count, SUBMIT_BATCH):
        numbers = range(start, min(start + SUBMIT_BATCH, count))
        await app.submit_many(PIPELINE, [{"number": number} for number in numbers])


async def fill(url: str, scenario: Scenario, count: int) -> None:
    """Submit the work of a scenario without doing any of it."""
    async with application(url, scenario, lambda _: None) as app:
        await submit(app, count)


async def run(url: str, scenario: Scenario, count: int, **options: int) -> float:
    """Seconds that the engine takes for `count` executions that were submitted before; `options` are those
    of the worker."""
    calls = _Calls(count * scenario.leases_per_execution)
    with _quiet():
        async with application(url, scenario, calls) as app:
            started = time.perf_counter()
            async with app.working(**options), asyncio.timeout(RUN_SECONDS_MAX):
                await calls.all_made.wait()
                await until_none_runs(app)
                return time.perf_counter() - started


async def until_none_runs(app: Holdfast) -> None:
    while True:
        # Newest first, and those are done last: as long as one runs it is found at once.
        page = await app.executions(status=ExecutionStatus.RUNNING, limit=1)
        if not page.items:
            return
        await asyncio.sleep(POLL_SECONDS)


async def run_one(url: str, scenario: Scenario, on_call: OnCall) -> None:
    """Run a single execution to its end; `on_call` may look around before each of its attempts."""
    with _quiet():
        async with application(url, scenario, on_call) as app, app.working():
            execution = await app.submit(PIPELINE, {"number": 0})
            await execution.wait(within=RUN_SECONDS_MAX)


async def latencies(url: str, scenario: Scenario, count: int) -> list[float]:
    """Seconds from the submit call to the handler's start, for each of `count` jobs, one at a time."""
    arrivals: asyncio.Queue[float] = asyncio.Queue()
    pace = random.Random(PACE_SEED)

    def arrived(_: Context) -> None:
        arrivals.put_nowait(time.perf_counter())

    taken = []
    async with (
        application(url, scenario, arrived) as app,
        app.working(),
        asyncio.timeout(RUN_SECONDS_MAX),
    ):
        for number in range(-1, count):
            await asyncio.sleep(pace.uniform(*PACE_SECONDS))
            asked = time.perf_counter()
            await app.submit(PIPELINE, {"number": number})
            taken.append(await arrivals.get() - asked)
    return taken[1:]  # the first pays for connections and caches


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The engine logs each failure; here thousands are wanted, and nobody reads of them."""
    log, nowhere = logging.getLogger("holdfast"), logging.NullHandler()
    propagated, log.propagate = log.propagate, False
    log.addHandler(nowhere)
    try:
        yield
    finally:
        log.removeHandler(nowhere)
        log.propagate = propagated
