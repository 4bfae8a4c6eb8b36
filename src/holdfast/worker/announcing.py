"""A worker tells that it lives and what it offers, for people and pages; no work depends on it.

It is done beside the heartbeats, on their thread and connection, and never waited for: a registry that
cannot be written must not cost a lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import msgspec

from holdfast.core.model import Lane, WorkerRecord
from holdfast.worker.connection import Connection

log = logging.getLogger("holdfast.worker")

ANNOUNCE_SECONDS = 10.0
ANNOUNCEMENTS_PER_LEASE = 3
RETIRE_SECONDS = 2.0


def worker_record(
    worker_id: str, *, concurrency: int, lanes: Sequence[Lane], handlers: Sequence[str], lease_seconds: float
) -> WorkerRecord:
    """This process as a worker. `started_at` is told in the store's time with the first announcement."""
    try:
        ours = version("holdfast")
    except PackageNotFoundError:  # run from a checkout that was never installed
        ours = "unknown"
    return WorkerRecord(
        worker_id=worker_id,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=ours,
        concurrency=concurrency,
        lanes=tuple(lanes),
        handlers=tuple(handlers),
        started_at=0.0,
        announce_seconds=min(ANNOUNCE_SECONDS, lease_seconds / ANNOUNCEMENTS_PER_LEASE),
    )


class Announcer:
    def __init__(self, record: WorkerRecord) -> None:
        self._record = record
        self._due_at = 0.0  # of the monotonic clock: at once
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False

    def announce_if_due(self, connection: Connection) -> None:
        now = time.monotonic()
        if now < self._due_at or (self._task is not None and not self._task.done()):
            return
        self._due_at = now + self._record.announce_seconds
        self._task = asyncio.create_task(self._announce(connection))

    async def _announce(self, connection: Connection) -> None:
        try:
            if not self._record.started_at:
                started_at = await connection.now()
                self._record = msgspec.structs.replace(self._record, started_at=started_at)
            await connection.announce(self._record)
            self._is_failing = False
        except Exception as error:
            if not self._is_failing:
                log.warning("The worker cannot announce itself, and works on: %s", error)
            self._is_failing = True

    async def retire(self, connection: Connection) -> None:
        """Take the record back; without an answer in time it is left to be forgotten."""
        if self._task is None:
            return
        await _bounded(self._task)
        await _bounded(asyncio.create_task(self._retire(connection)))

    async def _retire(self, connection: Connection) -> None:
        try:
            await connection.retire(self._record.worker_id)
        except Exception as error:
            log.info("The worker could not take its record back: %s", error)


async def _bounded(task: asyncio.Task[None]) -> None:
    _, pending = await asyncio.wait([task], timeout=RETIRE_SECONDS)
    if pending:
        task.cancel()
        await asyncio.wait([task], timeout=RETIRE_SECONDS)
