"""What an adapter in Python is made of: the commands it understands, and how it is told what to do.

    prepare               make the tables in an empty database
    fill WORK COUNT       enqueue as many as fast as the contender can; prints the seconds
    enqueue COUNT         one by one, from one caller; prints the seconds
    callers COUNT         from 100 concurrent callers; prints the seconds
    pace COUNT            one job each 50 ms, with the time it was sent
    embedded COUNT        the same, with a worker in this very process
    work WORK             a worker, until it is ended

The environment says where: BENCH_URL, BENCH_SETTINGS (JSON), BENCH_TALLY (a folder), and BENCH_TOGETHER,
which makes a worker wait until all workers of the turn are ready. A method may be a coroutine function; it
then runs on the event loop that the settings name. A process whose parent is gone ends itself.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers.adapters.tally import Tally
from bench.peers.measures import CALLERS_COUNT, PACE_SECONDS

TOGETHER_SECONDS_MAX = 30.0
GO = "go"


class Job:
    """What the driver says to this process."""

    def __init__(self) -> None:
        self.url = os.environ["BENCH_URL"]
        self.settings: dict[str, Any] = json.loads(os.environ.get("BENCH_SETTINGS", "{}"))
        self.folder = Path(os.environ["BENCH_TALLY"])
        self.tally = Tally(self.folder)

    def setting(self, name: str, default: Any) -> Any:
        return self.settings.get(name, default)


class Stopwatch:
    seconds = 0.0


@contextmanager
def timed() -> Iterator[Stopwatch]:
    watch, started = Stopwatch(), time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - started


def chunks(count: int, size: int) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(start, min(start + size, count))


async def by_one_caller(count: int, send: Callable[[int], Awaitable[object]]) -> float:
    """Seconds for `count` jobs, each sent when the one before is stored; one more before pays for caches."""
    await send(-1)
    with timed() as watch:
        for number in range(count):
            await send(number)
    return watch.seconds


async def by_many_callers(count: int, send: Callable[[int], Awaitable[object]]) -> float:
    """Seconds for `count` jobs from callers that each wait for their own only."""
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await send(number)

    await send(-1)
    with timed() as watch:
        await asyncio.gather(*[caller() for _ in range(CALLERS_COUNT)])
    return watch.seconds


async def paced(count: int, send: Callable[[int, float], Awaitable[object]]) -> None:
    """One job each 50 ms, with the time of its enqueue call; the first is a warm-up."""
    await send(-1, 0.0)
    for number in range(count):
        await asyncio.sleep(PACE_SECONDS)
        await send(number, time.time())


def paced_plainly(count: int, send: Callable[[int, float], object]) -> None:
    """The same for a contender whose callers are threads."""
    send(-1, 0.0)
    for number in range(count):
        time.sleep(PACE_SECONDS)
        send(number, time.time())


def by_one_plain_caller(count: int, send: Callable[[int], object]) -> float:
    send(-1)
    with timed() as watch:
        for number in range(count):
            send(number)
    return watch.seconds


def main(make: Callable[[Job], Any]) -> None:
    """Do what the command line says, and print what it took."""
    command, *words = sys.argv[1:]
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    # Each failure of the retry measure would be a line or a traceback; nobody's speed is to depend on that.
    logging.disable(logging.CRITICAL if "retry" in words else logging.INFO)
    job = Job()
    adapter = make(job)
    method = getattr(adapter, command)
    if command == "work" and os.environ.get("BENCH_TOGETHER"):
        _wait_for_the_others(job.folder)
    arguments = [int(word) if word.isdigit() else word for word in words]
    result = method(*arguments)
    if inspect.iscoroutine(result):
        result = _run(result, bool(job.setting("uvloop", False)))
    print(json.dumps({"seconds": result}), flush=True)


def _run(coroutine: Coroutine[Any, Any, Any], uvloop_wanted: bool) -> Any:
    if not uvloop_wanted:
        return asyncio.run(coroutine)
    import uvloop

    return uvloop.run(coroutine)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _wait_for_the_others(folder: Path) -> None:
    """All is imported; the driver says go once every worker of the turn has come this far."""
    (folder / f"{os.getpid()}.ready").touch()
    deadline = time.monotonic() + TOGETHER_SECONDS_MAX
    while not (folder / GO).exists():
        if time.monotonic() > deadline:
            sys.exit("the driver never said go")
        time.sleep(0.001)
