"""Heartbeats on a thread, an event loop and a connection of their own.

A handler that blocks the worker's event loop, or a report that takes long, cannot starve them. One
heartbeat serves all leases; an attempt that ends within the first interval never costs one. The worker
announces itself from here too, as it lives for as long as this thread beats.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable

from holdfast.core.errors import HoldfastError
from holdfast.core.model import LeaseRef, WorkerRecord
from holdfast.worker.announcing import Announcer
from holdfast.worker.connection import Connection

log = logging.getLogger("holdfast.worker")

HEARTBEATS_PER_LEASE = 3
PROGRESS_SECONDS = 1.0
STOP_SECONDS_MAX = 5.0


class Heartbeats:
    """`on_lost` is called on the heartbeat thread with each lease that is no longer held."""

    def __init__(
        self,
        connection: Connection,
        lease_seconds: float,
        on_lost: Callable[[LeaseRef], None],
        worker: WorkerRecord,
    ) -> None:
        self._connection = connection
        self._lease_seconds = lease_seconds
        self._interval = lease_seconds / HEARTBEATS_PER_LEASE
        self._on_lost = on_lost
        self._announcer = Announcer(worker)
        self._beaten_at: dict[LeaseRef, float] = {}  # of all that is held
        self._progress: dict[LeaseRef, float] = {}  # what is not told yet
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed

    async def stop(self) -> None:
        if self._failed is not None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        # With a store that does not answer it ends later, by itself: nothing depends on it any more.
        await asyncio.to_thread(self._thread.join, STOP_SECONDS_MAX)

    def hold(self, leases: Iterable[LeaseRef]) -> None:
        self._beaten_at.update(dict.fromkeys(leases, time.monotonic()))

    def may_be_lost(self, lease: LeaseRef) -> bool:
        """Whether nobody has confirmed the lease for as long as it lasts: this process was frozen, or the
        store away."""
        beaten_at = self._beaten_at.get(lease)
        return beaten_at is None or time.monotonic() - beaten_at >= self._lease_seconds

    def drop(self, lease: LeaseRef) -> None:
        self._beaten_at.pop(lease, None)
        if self._progress:
            self._progress.pop(lease, None)

    def tell_progress(self, lease: LeaseRef, fraction: float) -> None:
        if lease in self._beaten_at:
            self._progress[lease] = fraction

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._beat_until_stopped())
        except BaseException as error:
            if self._ready.is_set():
                raise
            self._failed = error  # no files left for an event loop, say: whoever starts it is told
            self._ready.set()

    async def _beat_until_stopped(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        stopping = asyncio.create_task(self._stopping.wait())
        tick = min(self._interval / 2, PROGRESS_SECONDS)
        connection: Connection | None = None
        try:
            while not self._stopping.is_set():
                try:
                    connection = connection or await self._connection.twin()
                    self._announcer.announce_if_due(connection)
                    await self._beat(connection)
                except HoldfastError as error:
                    # The leases may still stand: try again before they run out.
                    log.warning("Heartbeats wait: %s %s", error, error.guidance)
                except Exception:
                    log.exception("A heartbeat failed and will be tried again.")
                await asyncio.wait([stopping], timeout=tick)
        finally:
            if connection is not None:
                await self._announcer.retire(connection)
                await connection.close()

    async def _beat(self, connection: Connection) -> None:
        now = time.monotonic()
        told = self._progress.copy()
        due = [
            lease
            for lease, beaten_at in self._beaten_at.copy().items()
            if lease in told or now - beaten_at >= self._interval
        ]
        if not due:
            return
        progress = {lease.queue_id: told[lease] for lease in due if lease in told}
        acks = await connection.heartbeat(due, lease_seconds=self._lease_seconds, progress=progress)
        for lease, ack in zip(due, acks, strict=True):
            if lease not in self._beaten_at:
                continue  # it has ended meanwhile
            if not ack.accepted:
                self.drop(lease)
                self._on_lost(lease)
                continue
            # Should it end at this very moment, the next beat is refused and drops it again.
            self._beaten_at[lease] = now
            if lease in told and self._progress.get(lease) == told[lease]:
                self._progress.pop(lease, None)
