"""The same work through a server: a drain by one worker process over HTTP beside one at the database, the
pick-up of an idle worker, and a drain while a thousand clients listen to the stream of events.

The server is a process of its own, as it is for users; it ends with us.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import urlsplit

from holdfast.bench import engine_run
from holdfast.bench.fleet import Fleet, memory_bytes
from holdfast.bench.scenarios import PIPELINE, Scenario, application

LISTENERS = 1_000
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
HEARD_SECONDS_MAX = 120.0
CONNECTING_AT_ONCE = 50
# Of the thousand so many hear of everything, as overviews do; the others of one execution each, as people do.
OVERVIEWS = 10
_DATA, _END = b"\ndata:", b"\nevent: execution_completed"


class Server(NamedTuple):
    url: str
    process: Process


@contextlib.asynccontextmanager
async def served(url: str) -> AsyncIterator[Server]:
    """A server process for this database; gone at the end of the block."""
    command = [sys.executable, "-P", "-m", "holdfast.bench.http_server", url]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS_MAX)
        if not line:
            raise RuntimeError("The server of the benchmark did not start; see what it said above.")
        yield Server(line.decode().strip(), process)
    finally:
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def drain_seconds(url: str, server: Server, scenario: Scenario, count: int) -> float:
    """As fleet.drain_seconds, by one worker process that has only the server's address."""
    async with (
        Fleet(server.url, scenario, 1) as fleet,
        application(url, scenario, lambda _: None) as app,
    ):
        started = time.perf_counter()
        fleet.go()
        await fleet.pass_marks([count * scenario.leases_per_execution])
        await engine_run.until_none_runs(app)
        return time.perf_counter() - started


async def drain_over_http(url: str, scenario: Scenario, count: int) -> float:
    async with served(url) as server:
        return await drain_seconds(url, server, scenario, count)


async def latencies(url: str, scenario: Scenario, count: int) -> list[float]:
    """From the submit call to the handler's start, both through the server."""
    async with served(url) as server:
        return await engine_run.latencies(server.url, scenario, count)


class Listened(NamedTuple):
    """A drain with listeners: its seconds, the largest memory of the server, and the events they heard."""

    seconds: float
    memory_bytes: int
    events: int


async def drain_with_listeners(url: str, scenario: Scenario, count: int, listeners: int) -> Listened:
    async with served(url) as server, application(url, scenario, lambda _: None) as app:
        ids = [row.id for row in (await app.executions(limit=max(1, min(listeners, 1_000)))).items]
        audience = Audience(server.url, listeners, ids)
        try:
            await audience.connect()
            seconds = await drain_seconds(url, server, scenario, count)
            memory = memory_bytes(server.process.pid)
            await audience.all_heard(count)
        finally:
            await audience.close()
        return Listened(seconds, max(memory, memory_bytes(server.process.pid)), audience.events)


class Audience:
    """Clients of the stream, on plain sockets, so that they cost little themselves."""

    def __init__(self, url: str, count: int, ids: list[int]) -> None:
        self._address = urlsplit(url)
        overviews = [f"path={PIPELINE}"] * min(OVERVIEWS, count)
        ones = [f"execution_id={ids[place % len(ids)]}" for place in range(count - len(overviews))]
        self._filters = overviews + ones
        self._heard = [0] * count
        self._ended = [0] * count
        self._tasks: list[asyncio.Task[None]] = []
        self._open = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self._connected = 0

    @property
    def events(self) -> int:
        return sum(self._heard)

    async def connect(self) -> None:
        self._tasks = [
            asyncio.create_task(self._listen(place, query)) for place, query in enumerate(self._filters)
        ]
        deadline = time.monotonic() + START_SECONDS_MAX
        while self._connected < len(self._filters):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Only {self._connected} of {len(self._filters)} listeners got through.")
            await asyncio.sleep(0.01)

    async def _listen(self, place: int, query: str) -> None:
        async with self._open:
            host, port = self._address.hostname, self._address.port
            reader, writer = await asyncio.open_connection(host, port)
            request = f"GET /api/events/stream?{query} HTTP/1.1\r\nhost: {self._address.netloc}\r\n\r\n"
            writer.write(request.encode())
            await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"\n\n")  # the stream says that it is open
            self._connected += 1
        try:
            tail = b""
            while chunk := await reader.read(65_536):
                text = tail + chunk  # what is counted may be cut in two
                self._heard[place] += text.count(_DATA) - tail.count(_DATA)
                self._ended[place] += text.count(_END) - tail.count(_END)
                tail = text[1 - len(_END) :]
        finally:
            writer.close()

    async def all_heard(self, count: int) -> None:
        """Overviews hear of every end, the others of their own."""
        wanted = [count if query.startswith("path") else 1 for query in self._filters]
        deadline = time.monotonic() + HEARD_SECONDS_MAX
        while any(ended < least for ended, least in zip(self._ended, wanted, strict=True)):
            if time.monotonic() > deadline:
                late = sum(ended < least for ended, least in zip(self._ended, wanted, strict=True))
                raise RuntimeError(f"{late} of {len(wanted)} listeners did not hear all that they should.")
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
