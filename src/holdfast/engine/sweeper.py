"""Looks after what nobody else will: expired leases, passed deadlines, gates of batches, old history.

Any process may run one; several do no harm. It never acts on a view of time it cannot trust: after a
start, an outage of the store or a jump of the clock it first waits one heartbeat interval, so that
healthy workers can say that they live; and it looks twice at a lease before it ends it, because a database
that was held for a while kept heartbeats waiting too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from holdfast.core.errors import StoreUnavailable
from holdfast.engine import LEASE_SECONDS_DEFAULT, SWEEP_JOBS, Engine
from holdfast.tasks import end_tasks

log = logging.getLogger("holdfast.sweeper")

HEARTBEATS_PER_LEASE = 3
SWEEPS_PER_HEARTBEAT = 4
SECOND_LOOK_SECONDS_MAX = 1.0
ROUNDS_PER_SWEEP_MAX = 20
AWAY_SECONDS = 1.0


class Sweeper:
    """`retention_seconds` prunes executions that ended so long ago; None keeps them for ever."""

    def __init__(
        self,
        engine: Engine,
        *,
        lease_seconds: float = LEASE_SECONDS_DEFAULT,
        retention_seconds: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._heartbeat_seconds = lease_seconds / HEARTBEATS_PER_LEASE
        self._retention_seconds = retention_seconds
        self._monotonic = monotonic
        self._trusted_from: float | None = None  # None: wait anew once the store answers
        self._clock_lead: float | None = None  # of the store's clock over the monotonic one

    async def run(self) -> None:
        """Sweep until cancelled, and beside that look after batches: letting a large one through takes a
        while, and leases that have run out must not wait for it."""
        every = self._heartbeat_seconds / SWEEPS_PER_HEARTBEAT
        attending = asyncio.create_task(self._attend(every))
        keeping = asyncio.create_task(self._engine.keeper.run())
        try:
            while True:
                await self._tried(self.sweep)
                await asyncio.sleep(every)
        finally:
            await end_tasks(attending, keeping)
            await self._engine.keeper.close()

    async def _attend(self, every: float) -> None:
        """Whenever a batch asks for it, here or, found a little later, elsewhere. It depends on no lease, and
        so on no view of time."""
        while True:
            await self._tried(self._engine.batches.attend_all)
            await self._engine.batches.wait_for_attention(every)

    async def _tried(self, action: Callable[[], Awaitable[int]]) -> None:
        try:
            await action()
        except StoreUnavailable as error:
            log.warning("Sweeping waits: %s %s", error, error.guidance)
            await asyncio.sleep(AWAY_SECONDS)
        except Exception:
            log.exception("A sweep failed and will be tried again.")
            await asyncio.sleep(AWAY_SECONDS)

    async def sweep(self) -> int:
        """One pass, if the view of time can be trusted; how many leases and executions were ended."""
        try:
            if not await self._is_time_trusted():
                return 0
            second_look = min(self._heartbeat_seconds, SECOND_LOOK_SECONDS_MAX)
            swept = await self._repeated(lambda: self._engine.sweep(second_look_after=second_look))
            if self._retention_seconds is not None:
                retention = self._retention_seconds
                await self._repeated(lambda: self._engine.prune(retention, SWEEP_JOBS))
            return swept
        except StoreUnavailable:
            self._trusted_from = None
            raise

    async def _is_time_trusted(self) -> bool:
        store_now, now = await self._engine.store.now(), self._monotonic()
        lead, previous = store_now - now, self._clock_lead
        self._clock_lead = lead
        jumped = previous is not None and abs(lead - previous) > self._heartbeat_seconds / 2
        if self._trusted_from is None or jumped:
            self._trusted_from = now + self._heartbeat_seconds
        return now >= self._trusted_from

    async def _repeated(self, action: Callable[[], Awaitable[int]]) -> int:
        """Small batches until one is not full, bounded so that a sweep never runs for ever."""
        total = 0
        for _ in range(ROUNDS_PER_SWEEP_MAX):
            done = await action()
            total += done
            if done < SWEEP_JOBS:
                break
        return total
