"""How a listener that comes back, or was too slow, is told from the store what it has missed.

It joins the feed first, so that whatever comes from then on waits in its buffer, and then reads up to the
place at which it joined. Nothing is missed in between, and a row that becomes visible meanwhile may be told
twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from holdfast.core.errors import StoreError
from holdfast.server.audience import KEEP_ALIVE_SECONDS, Listener
from holdfast.server.event_text import begun_text, events_in, row_text, still_here
from holdfast.server.feed import AWAY_SECONDS, Feed
from holdfast.server.pace import Pace
from holdfast.server.position import Gaps, Position
from holdfast.store import Store
from holdfast.store.event_rows import EventRow

AT_ONCE = 4
PAGE_ROWS = 100
PIECE_BYTES = 64 * 1024
# No index knows the path of a row: so many are looked through at once.
ROWS_OF_PATHS = 5_000
BEGUN_MAX = 100


class Library:
    """What those who catch up share: few read at once, and all together within an eighth of the loop's
    time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.places = asyncio.Semaphore(AT_ONCE)
        self.pace = Pace()


class CatchingUp:
    def __init__(self, library: Library, feed: Feed, listener: Listener, position: Position) -> None:
        joined = feed.join(listener)
        self._are_gaps_known = feed.knows_gaps_behind(position.last)
        self._library = library
        self._feed = feed
        self._listener = listener
        self._gaps = position.gaps if feed.tracks_gaps else frozenset()
        self._are_gaps_read = not self._gaps
        self._after = position.last
        self._until = joined.last
        self._feeds_gaps = joined.gaps
        self._written_gaps = Gaps(joined.gaps)
        self._token = position.token
        self._told_at = time.monotonic()

    async def next(self) -> bytes | None:
        """A piece, which is empty where there was nothing yet; None when there is nothing more."""
        if self._are_gaps_read and self._after >= self._until:
            return None
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                await self._library.places.acquire()
        except TimeoutError:
            return self._silence()
        try:
            await self._library.pace.wait()
            if not self._are_gaps_known:
                await self._know_gaps()
            piece = await (self._page() if self._are_gaps_read else self._late_rows())
        except StoreError:
            piece = None
        finally:
            self._library.places.release()
        if piece is None:
            await asyncio.sleep(AWAY_SECONDS)
        elif piece:
            self._told_at = time.monotonic()
        return piece or self._silence()

    def _silence(self) -> bytes:
        if time.monotonic() - self._told_at < KEEP_ALIVE_SECONDS:
            return b""
        self._told_at = time.monotonic()
        return still_here()

    async def _know_gaps(self) -> None:
        """Of the rows that it is going to read: what cannot be seen of them yet is told by the feed."""
        await self._feed.know_gaps_behind(self._after)
        self._feeds_gaps |= self._feed.position.gaps
        self._written_gaps = Gaps(self._feeds_gaps)
        self._are_gaps_known = True

    async def _late_rows(self) -> bytes:
        """What it was not told because it could not be seen then; for the rest the feed looks from now on.
        They leave the listener where it was: the next page moves it."""
        found = await self._library.store.event_rows_at(sorted(self._gaps))
        missing = self._gaps.difference(row.id for row in found)
        self._feed.adopt(missing)
        self._written_gaps = Gaps(self._feeds_gaps | missing)
        self._are_gaps_read = True
        started = time.thread_time()
        matching = [row for row in found if self._listener.matches(row.execution_id, row.path)]
        told = [row_text(events_in(row), row.path, self._token, self._token) for row in matching]
        self._library.pace.worked(time.thread_time() - started)
        return b"".join(told)

    async def _page(self) -> bytes:
        execution_id, path = self._listener.filter
        until = self._until if path is None else min(self._until, self._after + ROWS_OF_PATHS)
        found = await self._library.store.event_rows(
            self._after, PAGE_ROWS, until=until, execution_id=execution_id, path=path
        )
        started = time.thread_time()
        told: list[bytes] = []
        rows, size = deque(found), 0
        while rows and size < PIECE_BYTES:
            told.append(self._told(rows.popleft()))
            size += len(told[-1])
        self._library.pace.worked(time.thread_time() - started)
        if len(found) < PAGE_ROWS and not rows:
            self._after = until if found else await self._before_the_next_row(until)
        return b"".join(told)

    async def _before_the_next_row(self, place: int) -> int:
        """Numbers may be left out by the billion (store/numbering.py), and pruned by the million."""
        if place >= self._until:
            return place
        following = await self._library.store.event_rows(place, 1)
        return min(self._until, following[0].id - 1) if following else self._until

    def _told(self, row: EventRow) -> bytes:
        before = self._token
        self._after, self._token = row.id, self._written_gaps.token(row.id)
        return row_text(events_in(row), row.path, before, self._token)


async def running_attempts(library: Library, listener: Listener) -> bytes:
    """Of one execution: what has begun and runs. The rows of their ends will tell it too, so it is left out
    where the store cannot say it."""
    execution_id, _ = listener.filter
    if execution_id is None:
        return b""
    try:
        found = await library.store.begun_since(0.0, BEGUN_MAX, execution_id=execution_id)
    except StoreError:
        return b""
    return b"".join(begun_text(one) for one in found if listener.matches(one.execution_id, one.path))
