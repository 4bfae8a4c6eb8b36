"""Counts for those who watch, which never keep a request waiting for long, nor the work.

    a count that was quick the last time ──▶ counted anew for each request
    one that took long                   ──▶ the last one is told, with its age, and renewed beside: one at a
                                             time, and resting twenty times as long as it takes

A million queued jobs take a second to count. They are counted on a connection of their own: SQLite's store
has one for reading, and a claim must not stand in line behind a count.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from holdfast.core.model import ExecutionStatus
from holdfast.engine import Engine
from holdfast.engine.gauges import Gauges, gauges
from holdfast.engine.tallies import Key, labels_of
from holdfast.store import Store, store_from_url
from holdfast.tasks import end_tasks

T = TypeVar("T")

QUICK_SECONDS = 0.05
# One that was quick the last time is waited for no longer than this.
PATIENCE_SECONDS = 1.0
REST_FACTOR = 20.0
WRITE_SECONDS_MAX = 0.5


class Count(NamedTuple, Generic[T]):
    """What was found; when that was, in the seconds of a monotonic clock, and how long it took."""

    value: T
    at: float
    seconds: float

    @property
    def is_quick(self) -> bool:
        return self.seconds <= QUICK_SECONDS


class Counted(Generic[T]):
    def __init__(
        self, count: Callable[[], Awaitable[T]], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._monotonic = monotonic
        self._last: Count[T] | None = None
        self._counting: asyncio.Task[Count[T]] | None = None

    async def get(self) -> tuple[T, float]:
        """The count and its age in seconds. Raises what counting raises, where there is none to tell."""
        last = self._last
        if self._counting is None and (last is None or last.is_quick or self._has_rested(last)):
            self._counting = asyncio.create_task(self._counted())
            self._counting.add_done_callback(self._ended)
        if last is None or last.is_quick:
            assert self._counting is not None
            # Whoever asks may give up; the count goes on for the next one.
            done, _ = await asyncio.wait(
                [counting := self._counting], timeout=None if last is None else PATIENCE_SECONDS
            )
            if done:
                return counting.result().value, 0.0
            assert last is not None
        return last.value, self._monotonic() - last.at

    def _has_rested(self, last: Count[T]) -> bool:
        return self._monotonic() - last.at >= last.seconds * (1 + REST_FACTOR)

    async def _counted(self) -> Count[T]:
        at = self._monotonic()
        value = await self._count()
        return Count(value, at, self._monotonic() - at)

    def _ended(self, counting: asyncio.Task[Count[T]]) -> None:
        self._counting = None
        if not counting.cancelled() and counting.exception() is None:
            self._last = counting.result()

    async def close(self) -> None:
        if self._counting is not None:
            await end_tasks(self._counting)


class Watched(NamedTuple):
    """What is open, and all that processes have counted."""

    gauges: Gauges
    sums: dict[Key, int]


class Counting:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store: Store | None = None
        self._opening = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None
        self.open: Counted[Watched] = Counted(self._watched)
        self.completed: Counted[int] = Counted(self._count_completed)

    async def write_own(self) -> None:
        """What this server has counted itself, so that its counts are fresh. Only what is stored is ever
        told: otherwise a counter would go back when the process that told it dies."""
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._engine.keeper.write())
        await asyncio.wait([self._writing], timeout=WRITE_SECONDS_MAX)

    async def _watched(self) -> Watched:
        store = await self._own_store()
        sums = {(name, labels_of(labels)): value for name, labels, value in await store.tallies()}
        return Watched(await gauges(store, await self._engine.now()), sums)

    async def _count_completed(self) -> int:
        counts = await (await self._own_store()).execution_counts()
        return counts.get(ExecutionStatus.COMPLETED, 0)

    async def _own_store(self) -> Store:
        async with self._opening:
            if self._store is None:
                store = store_from_url(self._engine.store.url)
                await store.open(migrate=False)
                self._store = store
        return self._store

    async def close(self) -> None:
        await self.open.close()
        await self.completed.close()
        if self._writing is not None:
            await end_tasks(self._writing)
        if self._store is not None:
            store, self._store = self._store, None
            with contextlib.suppress(Exception):
                await store.close()
