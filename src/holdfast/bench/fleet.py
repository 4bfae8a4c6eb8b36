"""Worker processes of the benchmark, seen from outside: started, watched, ended.

    async with Fleet(url, scenario, 2) as fleet:    # both are connected and wait
        fleet.go()
        [passed] = await fleet.pass_marks([50_000])

Each worker (drain_worker.py) counts its handlers' calls in a file that all of them share; the fleet adds them
up every few milliseconds. A worker that dies ends the measurement. At the end each is told to stop through
its standard input, which is closed by our own death too; one that does not end in time is killed by its id.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from holdfast.bench import engine_run
from holdfast.bench.drain_worker import GO, NUMBER, NUMBER_BYTES, READY
from holdfast.bench.scenarios import Scenario, application

POLL_SECONDS = 0.005
READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Passed:
    """A number of calls was reached: when, and the memory of the largest worker then."""

    at: float
    memory_bytes: int


class Fleet:
    def __init__(self, url: str, scenario: Scenario, processes: int) -> None:
        self._url = url
        self._scenario = scenario
        self._count = processes
        self._processes: list[Process] = []
        self._resources = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        try:
            file = self._open_calls()
            for place in range(self._count):
                self._processes.append(await self._started(file, place))
            await self._until_ready()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    def _open_calls(self) -> Path:
        """The file where each worker has its place for a number, which we read in memory."""
        folder = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-"))
        file = Path(folder, "calls")
        file.write_bytes(bytes(NUMBER_BYTES * self._count))
        opened = self._resources.enter_context(file.open("r+b"))
        mapped = self._resources.enter_context(mmap.mmap(opened.fileno(), 0))
        raw = self._resources.enter_context(memoryview(mapped))
        self._calls = self._resources.enter_context(raw.cast(NUMBER))
        return file

    async def _started(self, file: Path, place: int) -> Process:
        command = [sys.executable, "-P", "-m", "holdfast.bench.drain_worker"]
        return await asyncio.create_subprocess_exec(
            *command,
            self._url,
            self._scenario.name,
            str(file),
            str(place),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us; the workers end with us
        )

    async def _until_ready(self) -> None:
        tasks = [asyncio.ensure_future(_line(process)) for process in self._processes]
        _, late = await asyncio.wait(tasks, timeout=READY_SECONDS_MAX)
        for task in late:
            task.cancel()
        if late or any(task.result() != READY for task in tasks):
            raise RuntimeError("A worker process of the benchmark did not get ready; see what it said above.")

    def go(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(GO)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @property
    def calls(self) -> int:
        """Of handlers, in all workers."""
        return sum(self._calls)

    async def pass_marks(self, marks: Sequence[int]) -> list[Passed]:
        """Look on until the calls have reached each of these numbers, which rise."""
        passed: list[Passed] = []
        give_up_at = time.perf_counter() + engine_run.RUN_SECONDS_MAX
        while True:
            now, calls = time.perf_counter(), self.calls
            while calls >= marks[len(passed)]:
                passed.append(Passed(now, max(memory_bytes(process.pid) for process in self._processes)))
                if len(passed) == len(marks):
                    return passed
            for process in self._processes:
                if process.returncode is not None:
                    raise RuntimeError(
                        f"Worker process {process.pid} ended with code {process.returncode} in the middle of"
                        " the work; see what it said above."
                    )
            if now > give_up_at:
                raise RuntimeError(
                    f"Of {marks[-1]} calls only {calls} came in {engine_run.RUN_SECONDS_MAX:.0f} s."
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _end(self) -> None:
        try:
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.close()
            ends = [asyncio.ensure_future(process.wait()) for process in self._processes]
            if ends:
                await asyncio.wait(ends, timeout=STOP_SECONDS_MAX)
        finally:
            for process in self._processes:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            self._resources.close()


async def _line(process: Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()


def memory_bytes(pid: int) -> int:
    """What a process keeps in memory now. Its own highest mark would not do: a child begins with ours."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:  # not Linux
        command = ["ps", "-o", "rss=", "-p", str(pid)]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    else:
        said = status.partition("VmRSS:")[2].split()
    return int(said[0]) * 1024 if said else 0  # nothing where it has just ended


async def drain_seconds(url: str, scenario: Scenario, count: int, processes: int) -> float:
    """From the word to go, given to workers that are ready, until the store says that none runs."""
    async with (
        Fleet(url, scenario, processes) as fleet,
        application(url, scenario, lambda _: None) as app,
    ):
        started = time.perf_counter()
        fleet.go()
        await fleet.pass_marks([count * scenario.leases_per_execution])
        await engine_run.until_none_runs(app)
        return time.perf_counter() - started
