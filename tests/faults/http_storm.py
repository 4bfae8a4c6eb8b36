"""The storm over HTTP: servers and workers killed at random, the database restarted, and the evidence.

    feed       executions are submitted to whichever server answers, each under a key of its own
    kill       a server or a worker dies by SIGKILL every moment, and is started again on its old place
    restart    PostgreSQL is taken down as by a crash, and comes back
    calm       when there were kills enough the rest is worked off; then the evidence is read

Nothing depends on how fast the machine is: the storm lasts as long as its kills take, and only a standstill
fails.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import asyncpg

from faults.evidence import Evidence
from faults.http_worker import app
from faults.processes import Fleet, WorkerProcess
from faults.storm_worker import STURDY
from faults.tables import make_tables, select
from holdfast.client import Client
from holdfast.core.errors import StoreUnavailable
from holdfast.engine import Submission
from ports import kept_ports

SERVERS, WORKERS = 2, 4
EXECUTIONS = 300
EXECUTIONS_PER_SUBMIT = 10
LEASE_SECONDS = 1.5
KILL_SECONDS = (0.3, 1.2)
STANDSTILL_SECONDS = 180.0
LOOK_SECONDS = 0.2
KILLED = -9
_UNDER_WAY = """SELECT (SELECT count(*) FROM {schema}executions WHERE status = 'running'),
    (SELECT max(id) FROM {schema}events)"""
HERE = Path(__file__).parent


class StormFailed(AssertionError):
    pass


class HttpStorm:
    """`restart` takes PostgreSQL down and up again; it is called `restarts` times."""

    def __init__(
        self, url: str, folder: Path, *, seed: int, kills: int, restart: Callable[[], None], restarts: int = 2
    ) -> None:
        self._url = url
        self._folder = folder
        self._draw = random.Random(seed)
        self._kills_wanted = kills
        self._restart = restart
        self._restart_at = [kills * number // (restarts + 1) for number in range(1, restarts + 1)]
        self.restarts = 0
        self.kills: Counter[str] = Counter()
        self._submitted = 0
        self._running = 0
        self._progress: object = None
        self._moved_at = time.monotonic()
        self._ports: list[int] = []
        self._servers: list[WorkerProcess] = []
        self._workers: list[WorkerProcess] = []

    async def run(self) -> Evidence:
        """Raises StormFailed at a standstill or a process that ends by itself."""
        await make_tables(self._url)
        async with app(self._url):  # the tables and the pipeline are there before anybody asks
            pass
        try:
            # A server that is killed comes back on its port.
            with kept_ports(SERVERS) as self._ports, Fleet(self._folder, self._url) as fleet:
                self._servers = [self._start_server(fleet, place) for place in range(SERVERS)]
                self._workers = [self._start_worker(fleet, place) for place in range(WORKERS)]
                await asyncio.gather(self._feed(), self._rage(fleet), self._watch())
                for process in self._workers + self._servers:
                    code = process.stop()
                    if code not in (0, -15):
                        raise StormFailed(f"asked to stop, it ended with {code}; {process.told()}")
        except BaseException as error:
            error.add_note(f"{dict(self.kills)}, {self._submitted} submitted, {self.restarts} restarts")
            raise
        return await Evidence.read(self._url, self._folder)

    def _start_server(self, fleet: Fleet, place: int) -> WorkerProcess:
        return fleet.start(HERE / "http_server.py", str(self._ports[place]), str(LEASE_SECONDS))

    def _start_worker(self, fleet: Fleet, place: int) -> WorkerProcess:
        server = f"http://127.0.0.1:{self._ports[place % SERVERS]}"
        return fleet.start(HERE / "http_worker.py", server, str(LEASE_SECONDS))

    @property
    def _is_storming(self) -> bool:
        return self.kills.total() < self._kills_wanted or self._submitted < EXECUTIONS

    # work

    async def _feed(self) -> None:
        """Under keys: a submit whose answer was lost is repeated, to another server, and not doubled."""
        clients = [Client(f"http://127.0.0.1:{port}") for port in self._ports]
        try:
            while self._submitted < EXECUTIONS:
                numbers = range(self._submitted, self._submitted + EXECUTIONS_PER_SUBMIT)
                asked = [
                    Submission(path=STURDY, workload={"number": number}, idempotency_key=str(number))
                    for number in numbers
                ]
                with suppress(StoreUnavailable):
                    await self._draw.choice(clients).submit(asked)
                    self._submitted = numbers.stop
                await asyncio.sleep(self._draw.uniform(0.05, 0.6))
        finally:
            for client in clients:
                await client.close()

    async def _watch(self) -> None:
        """Until all has ended; a standstill is an error."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):  # it is being restarted
                [(self._running, events)] = await select(self._url, _UNDER_WAY)
                if (progress := (events, self.kills.total())) != self._progress:
                    self._progress, self._moved_at = progress, time.monotonic()
            if not self._is_storming and not self._running:
                return
            if time.monotonic() - self._moved_at > STANDSTILL_SECONDS:
                said = "\n".join(process.told() for process in self._workers + self._servers)
                raise StormFailed(f"nothing has moved for {STANDSTILL_SECONDS:.0f} s; {said}")

    # death

    async def _rage(self, fleet: Fleet) -> None:
        while self._is_storming:
            await asyncio.sleep(self._draw.uniform(*KILL_SECONDS))
            if self._restart_at and self.kills.total() >= self._restart_at[0]:
                self._restart_at.pop(0)
                await asyncio.to_thread(self._restart)
                self.restarts += 1
            if self._draw.random() < 0.4:
                place = self._draw.randrange(SERVERS)
                self._kill(self._servers[place], "server")
                self._servers[place] = self._start_server(fleet, place)
            else:
                place = self._draw.randrange(WORKERS)
                self._kill(self._workers[place], "worker")
                self._workers[place] = self._start_worker(fleet, place)
            self._replace_the_dead(fleet)

    def _kill(self, process: WorkerProcess, kind: str) -> None:
        code = process.ended_with()
        if code is None:
            process.kill()
            self.kills[kind] += 1
        elif not self.restarts:
            raise StormFailed(f"a {kind} ended by itself with code {code}; {process.told()}")

    def _replace_the_dead(self, fleet: Fleet) -> None:
        """A server that is started while the database is away ends with a sentence, as it should."""
        for processes, start in ((self._servers, self._start_server), (self._workers, self._start_worker)):
            for place, process in enumerate(processes):
                if process.ended_with() is not None:
                    if not self.restarts:
                        raise StormFailed(f"a process ended by itself; {process.told()}")
                    processes[place] = start(fleet, place)
