"""What runs attempts in a process of a Celery fleet: a thread with an event loop, and a worker in it that is
fed by Celery's tasks.

    task ──▶ Runner.run: take over ──▶ the worker runs, heartbeats, reports ──▶ the task returns

It begins with the first task of its process: no connection, thread or lock crosses a fork. A task returns
once its attempt is reported, or was never its own; what it cannot take over, the dispatcher sends again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from holdfast.core.errors import HoldfastError
from holdfast.core.model import CELERY_PREFIX, Leased, LeaseRef
from holdfast.fleet.feeding import FedWorker
from holdfast.tasks import end_tasks
from holdfast.worker.patience import AWAY_SECONDS_MAX, AWAY_SECONDS_MIN, away

log = logging.getLogger("holdfast.fleet")

TAKE_OVER_SECONDS_MAX = 30.0
UNKNOWN_SECONDS_MIN = 0.1
UNKNOWN_SECONDS_MAX = 5.0
STOP_SECONDS_MAX = 10.0


class Program(Protocol):
    """Whose steps are run, with connections of its own."""

    async def fed_worker(self, worker_id: str) -> FedWorker: ...

    async def keep_counts(self) -> None:
        """Write what is counted, until cancelled."""

    async def close(self) -> None: ...


class Runner:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._worker: FedWorker | None = None
        self._working: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._unknown_seconds = UNKNOWN_SECONDS_MIN
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="holdfast-runner", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed

    def run(self, lease: LeaseRef) -> None:
        """Called by a task, in its own thread: until the attempt has ended, where it could be taken over."""
        asyncio.run_coroutine_threadsafe(self._run(lease), self._loop).result()

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_SECONDS_MAX)

    @property
    def lives(self) -> bool:
        return self._thread.is_alive()

    def _main(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._ready.is_set():
                raise
            self._failed = error  # no files left for an event loop, say: the task is told
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stopping, self._place = asyncio.get_running_loop(), asyncio.Event(), asyncio.Lock()
        self._ready.set()
        await self._stopping.wait()
        if self._worker is not None and self._working is not None:
            self._worker.stop()
            await asyncio.wait([self._working])
            await self._worker.connection.close()
        if self._keeping is not None:
            await end_tasks(self._keeping)
        await self._program.close()

    async def _run(self, lease: LeaseRef) -> None:
        """One at a time, also where Celery has several threads: what is not taken over waits for nobody
        else."""
        async with self._place:
            taken = await self._take_over(lease)
            if taken is None:
                return
            worker, job = taken
            if not worker.offers(job.handler):
                await self._refuse(worker, job)
                return
            self._unknown_seconds = UNKNOWN_SECONDS_MIN
            ended = asyncio.create_task(worker.run_to_its_end(job))
            assert self._working is not None
            await asyncio.wait([ended, self._working], return_when=asyncio.FIRST_COMPLETED)
            await end_tasks(ended)
            if self._working.done():
                self._working.result()

    async def _take_over(self, lease: LeaseRef) -> tuple[FedWorker, Leased] | None:
        """The attempt, under a fence that is this task's alone; None where it is stale, or the store is away
        for long: the dispatcher holds it and sends it again."""
        token = secrets.token_hex(8)
        deadline, seconds = time.monotonic() + TAKE_OVER_SECONDS_MAX, AWAY_SECONDS_MIN
        while True:
            try:
                worker = await self._own_worker()
                await worker.emptied()
                jobs = await worker.connection.take_over(
                    worker.worker_id, [lease], token=token, lease_seconds=worker.lease_seconds
                )
            except HoldfastError as error:
                if time.monotonic() > deadline:
                    log.warning("Job %d is left to be sent again: %s", lease.queue_id, error)
                    return None
                await away("Taking over", seconds, error)
                seconds = min(seconds * 2, AWAY_SECONDS_MAX)
                continue
            if not jobs:
                log.info("Job %d is in other hands, has ended or was cancelled.", lease.queue_id)
                return None
            return worker, jobs[0]

    async def _own_worker(self) -> FedWorker:
        if self._worker is None or self._working is None or self._working.done():
            worker_id = f"{CELERY_PREFIX}{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
            self._worker = await self._program.fed_worker(worker_id)
            self._working = asyncio.create_task(self._worker.run())
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._program.keep_counts())
        return self._worker

    async def _refuse(self, worker: FedWorker, job: Leased) -> None:
        """Give back what this program cannot run. Ever more slowly: it will most often come here again."""
        log.error(
            "Job %d needs %s, which this Celery worker does not have: given back. Start the Celery workers"
            " and the dispatcher with the same program.",
            job.queue_id,
            job.handler,
        )
        await asyncio.sleep(min(self._unknown_seconds, worker.lease_seconds / 3))
        self._unknown_seconds = min(self._unknown_seconds * 2, UNKNOWN_SECONDS_MAX)
        with contextlib.suppress(HoldfastError):  # then it runs out by itself
            await worker.connection.release([LeaseRef(job.queue_id, job.fence)])


class RunnerOfProcess:
    """One runner for each process: a child that was forked begins its own."""

    def __init__(self, new_program: Callable[[], Program]) -> None:
        self._new_program = new_program
        self._runner: tuple[int, Runner] | None = None
        self._starting = threading.Lock()

    def __call__(self) -> Runner:
        with self._starting:
            if self._runner is None or self._runner[0] != os.getpid() or not self._runner[1].lives:
                self._runner = os.getpid(), Runner(self._new_program())
            return self._runner[1]

    def stop(self) -> None:
        if self._runner is not None and self._runner[0] == os.getpid():
            self._runner[1].stop()
