"""The storm over a Celery fleet: its workers and its broker killed at random, and the evidence.

    feed       with every kill some executions are submitted
    kill       a Celery worker with all its processes, one of its processes, or the broker dies by SIGKILL
               every moment, and is started again; the broker has forgotten everything then
    calm       when there were kills enough the rest is worked off; then the evidence is read

Nothing depends on how fast the machine is: the storm lasts as long as its kills take, and only a standstill
fails.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from celery_fleet import Fleet, Process, fleet
from faults.evidence import Evidence, JobLine, Lease
from faults.ledger import Start, ledger_path, read_worker
from faults.storm_worker import STURDY, app
from faults.tables import make_tables, select
from holdfast import Holdfast
from holdfast.core.model import EventType
from holdfast.engine import Submission
from holdfast.fleet.broker import Broker
from holdfast.tasks import end_tasks

EXECUTIONS = 200
WORKERS, PROCESSES = 2, 2
WINDOW = 8
LEASE_SECONDS = 2.5
RESEND_SECONDS = 1.0
POLL_SECONDS = 0.2
MOMENT_SECONDS = 0.3
PATIENCE_SECONDS = 5.0
STANDSTILL_SECONDS = 180.0
LOOK_SECONDS = 0.2
TICK_SECONDS = 0.005
CATCHES_MAX = 10
_UNDER_WAY = """SELECT (SELECT count(*) FROM {schema}executions WHERE status = 'running'),
    (SELECT max(id) FROM {schema}events)"""

_HELD = "SELECT count(*) FROM {schema}jobs WHERE status = 'leased' AND worker_id LIKE '%:{pid}:%'"


class StormFailed(AssertionError):
    pass


class FleetEvidence(Evidence):
    """The same promises; a lease may have been taken over once, and its worker is told by its process."""

    def _are_all_told(self, job: JobLine, told_leases: int) -> bool:
        return told_leases <= job.leases <= 2 * told_leases

    def _lease_of(self, start: Start) -> Lease | None:
        """Given back unused, an attempt is leased again under its number: where there are several, the one
        that was not given back is meant."""
        own = [
            lease
            for lease in self._leases.get(start.job, [])
            if lease.attempt == start.attempt and f":{start.pid}:" in lease.worker
        ]
        used = [lease for lease in own if lease.end is not EventType.LEASE_RELEASED]
        return next(iter(used or own), None)


class CeleryStorm:
    """It submits as it kills, so that there is always something to be killed with."""

    def __init__(self, url: str, folder: Path, *, seed: int, kills: int) -> None:
        self._url = url
        self._folder = folder
        self._seed = seed
        self._draw = random.Random(seed)
        self._kills_wanted = kills
        self.kills: Counter[str] = Counter()
        self.ended_by_themselves = 0
        self._submitted = 0
        self._workers: list[Process] = []

    async def run(self) -> FleetEvidence:
        """Raises StormFailed at a standstill."""
        await make_tables(self._url)
        try:
            with fleet(self._folder, self._url, app="faults.celery_program:hf") as f:
                self._workers = [self._start_worker(f) for _ in range(WORKERS)]
                async with (
                    app(self._url) as hf,
                    hf.dispatching(
                        Broker(f.broker.url, "holdfast"),
                        lease_seconds=LEASE_SECONDS,
                        resend=RESEND_SECONDS,
                        poll_seconds=POLL_SECONDS,
                        concurrency=WINDOW,
                    ),
                ):
                    watching = asyncio.create_task(self._watch())
                    try:
                        await self._rage(hf, f)
                        while not watching.done():
                            self._replace_the_dead(f)
                            await asyncio.wait([watching], timeout=1.0)
                        watching.result()
                    finally:
                        await end_tasks(watching)
        except BaseException as error:
            error.add_note(f"seed {self._seed}: {dict(self.kills)}, {self._submitted} submitted")
            raise
        return await FleetEvidence.read(self._url, self._folder)

    def _start_worker(self, f: Fleet) -> Process:
        worker = f.start_worker(concurrency=PROCESSES, HOLDFAST_LEASE=f"{LEASE_SECONDS}s")
        ledger_path(self._folder, worker.name).touch()
        return worker

    async def _feed(self, hf: Holdfast) -> None:
        share = EXECUTIONS * (self.kills.total() + 1) // self._kills_wanted
        numbers = range(self._submitted, min(share, EXECUTIONS))
        asked = [
            Submission(
                path=STURDY, workload={"number": number, "seed": self._seed}, idempotency_key=str(number)
            )
            for number in numbers
        ]
        await (await hf.engine()).submit(asked)
        self._submitted = numbers.stop

    async def _watch(self) -> None:
        """Until all has ended; a standstill is an error."""
        seen: object = None
        moved_at, running = time.monotonic(), 1
        while running or self.kills.total() < self._kills_wanted:
            await asyncio.sleep(LOOK_SECONDS)
            [(running, events)] = await select(self._url, _UNDER_WAY)
            if (progress := (events, self.kills.total())) != seen:
                seen, moved_at = progress, time.monotonic()
            if time.monotonic() - moved_at > STANDSTILL_SECONDS:
                raise StormFailed(f"nothing has moved for {STANDSTILL_SECONDS:.0f} s")

    async def _rage(self, hf: Holdfast, f: Fleet) -> None:
        for kind in self._kinds():
            await self._feed(hf)
            place = self._draw.randrange(WORKERS)
            if kind != "process":
                await self._until_it_works(self._workers[place])
                await asyncio.sleep(self._draw.uniform(0, MOMENT_SECONDS))
            self._replace_the_dead(f)
            if kind == "broker":
                f.broker.kill()
                await asyncio.sleep(self._draw.uniform(0, MOMENT_SECONDS))
                await asyncio.to_thread(f.broker.start)
            elif kind == "worker":
                self._workers[place].kill()
                self._workers[place] = self._start_worker(f)
            else:
                await self._kill_a_process_of(self._workers[place])
            self.kills[kind] += 1

    async def _kill_a_process_of(self, worker: Process) -> None:
        """One that holds an attempt, where one can be caught at it: stopped first, so that it still does when
        it dies."""
        for _ in range(CATCHES_MAX):
            victim = await self._until_it_works(worker)
            if victim is None or victim not in worker.children():
                break
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGSTOP)
                [(held,)] = await select(self._url, _HELD.format(pid=victim, schema="{schema}"))
                os.kill(victim, signal.SIGKILL if held else signal.SIGCONT)
                if held:
                    return
        with suppress(ProcessLookupError, IndexError):
            os.kill(self._draw.choice(worker.children()), signal.SIGKILL)

    def _kinds(self) -> list[str]:
        """Dealt like cards, so that a short storm has them all."""
        brokers, workers = self._kills_wanted // 5, self._kills_wanted // 3
        kinds = ["broker"] * brokers + ["worker"] * workers
        kinds += ["process"] * (self._kills_wanted - len(kinds))
        self._draw.shuffle(kinds)
        return kinds

    def _replace_the_dead(self, f: Fleet) -> None:
        """Celery's main process ends where its broker, or a child, goes at the wrong moment of its start; a
        service manager starts it again."""
        for place, worker in enumerate(self._workers):
            if worker.ended_with() is not None:
                self.ended_by_themselves += 1
                self._workers[place] = self._start_worker(f)

    async def _until_it_works(self, worker: Process) -> int | None:
        """Which process of it has just begun an attempt. None after a while: where the others are faster,
        there is nothing left for this one."""
        path = ledger_path(self._folder, worker.name)
        before, deadline = path.stat().st_size, time.monotonic() + PATIENCE_SECONDS
        while path.stat().st_size == before:
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(TICK_SECONDS)
        last = read_worker(self._folder, worker.name)[-1]
        return last.pid if isinstance(last, Start) else None
