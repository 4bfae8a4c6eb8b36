"""A worker that does not lease: it is fed the attempts that somebody hands it, one at a time.

All else is the worker as it always is: timeouts, processes, transactions, secrets, heartbeats, reports.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from holdfast.core.model import Leased, LeaseResult, WorkerRecord
from holdfast.worker.attempt import Handler
from holdfast.worker.connection import Connection
from holdfast.worker.loop import Worker

IDLE_LOOK_SECONDS = 1.0


class FedConnection:
    """A connection whose leases are what it was fed. It announces nobody: what is offered here, a dispatcher
    offers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._fed: deque[Leased] = deque()
        self._arrived = asyncio.Event()
        self.take_over = connection.take_over
        self.heartbeat = connection.heartbeat
        self.report = connection.report
        self.release = connection.release
        self.now = connection.now
        self.transaction = connection.transaction
        self.database = connection.database
        self.close = connection.close

    def feed(self, job: Leased) -> None:
        self._fed.append(job)
        self._arrived.set()

    @property
    def has_food(self) -> bool:
        return bool(self._fed)

    async def lease(self, *_: object, **__: object) -> LeaseResult:
        self._arrived.clear()
        return LeaseResult([self._fed.popleft()] if self._fed else [])

    def work_ticket(self) -> int:
        return 0

    async def wait_for_work(self, ticket: int, seconds: float) -> None:
        if not self._fed:
            await self._arrived.wait()

    async def announce(self, worker: WorkerRecord) -> None:
        """It is no worker that leases."""

    async def retire(self, worker_id: str) -> None:
        """As it was never announced."""

    async def twin(self) -> FedConnection:
        return FedConnection(await self._connection.twin())


class FedWorker(Worker):
    """It runs one attempt at a time."""

    def __init__(self, connection: FedConnection, handlers: Mapping[str, Handler], **options: Any) -> None:
        super().__init__(connection, handlers, concurrency=1, **options)
        self.fed = connection
        self.lease_seconds = self._lease_seconds

    def offers(self, handler: str) -> bool:
        return handler in self._handlers

    async def run_to_its_end(self, job: Leased) -> None:
        """Until its outcome is reported, or nobody waits for it any more."""
        self.fed.feed(job)
        await self.emptied()

    async def emptied(self) -> None:
        """Until it holds nothing, and no thread that overran its timeout goes on."""
        while self.fed.has_food or self._leasing.locked() or self._slots_stuck or not await self._idle(0.0):
            self._room_made.clear()
            room = asyncio.ensure_future(self._room_made.wait())
            await asyncio.wait([room], timeout=IDLE_LOOK_SECONDS)
            room.cancel()
