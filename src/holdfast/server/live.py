"""The live stream of events: what is committed is told to whoever listens, within the blink of an eye.

    live = Live(store)
    async for chunk in live.stream(execution_id=None, path="mail", after=None):
        ...                       # bytes of server-sent events, to be written as they are

It may repeat and never misses: with the id of the last event that it was told a listener goes on behind it,
on any server that has the same store. One feed reads the store for all who listen, and only while somebody
does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from holdfast.core.errors import StoreError
from holdfast.core.payload import check_name
from holdfast.server.audience import KEEP_ALIVE_SECONDS, Listener
from holdfast.server.catching_up import CatchingUp, Library, running_attempts
from holdfast.server.event_text import opening, still_here
from holdfast.server.feed import Feed
from holdfast.server.position import Position, parse_token
from holdfast.store import Store
from holdfast.tasks import end_tasks

# A client should see soon that the stream is open, also where the store does not answer.
OPEN_SECONDS_MAX = 1.0
# What a client has not taken yet is copied for it: not a whole row of thousands of events at once.
WRITTEN_BYTES_MAX = 128 * 1024

__all__ = ["Live", "parse_token"]


class Live:
    """`clock` is the feed's, see there."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._library = Library(store)
        self._listeners: set[Listener] = set()
        self._feed: Feed | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def stream(
        self, *, execution_id: int | None = None, path: str | None = None, after: str | None = None
    ) -> AsyncIterator[bytes]:
        """Server-sent events from `after` on, or from now on. InvalidInput where `after` is no place in the
        feed, PayloadInvalid where nothing can have this path. To be closed, or cancelled, when nobody reads
        it any more."""
        if path is not None:
            check_name(path, what="path")
        position = parse_token(after) if after else None
        return self._stream(Listener(execution_id, path), position)

    async def is_beyond_the_end(self, after: str) -> bool:
        """Whether the store has never given out the number of this place: it was put back from a backup, and
        what was told since is not in it. InvalidInput where it is no place at all."""
        return await self._is_beyond_the_end(parse_token(after))

    async def _is_beyond_the_end(self, position: Position) -> bool:
        """Of a store that does not answer nothing is known, and so no."""
        try:
            async with asyncio.timeout(OPEN_SECONDS_MAX):
                return position.last > await self._store.highest_event_row()
        except (StoreError, TimeoutError):
            return False

    def begin_close(self) -> None:
        """End all streams, and let none begin."""
        self._is_closed = True
        for listener in tuple(self._listeners):
            listener.close()

    async def close(self) -> None:
        self.begin_close()
        self._stop_feed()
        await end_tasks(*self._ending)

    async def _stream(self, listener: Listener, position: Position | None) -> AsyncIterator[bytes]:
        if self._is_closed:
            return
        self._listeners.add(listener)
        try:
            feed = self._running_feed()
            if not await feed.starts_within(OPEN_SECONDS_MAX):
                yield opening(position and position.token)
                while not await feed.starts_within(KEEP_ALIVE_SECONDS):
                    yield still_here()
            if listener.is_closed:
                return
            if position is None:
                feed.join(listener)
            elif await self._is_beyond_the_end(position):
                return  # found out late, when the store was away: who asks again is told
            yield opening(feed.token if position is None else position.token)
            behind, is_new = position, True
            catching_up: CatchingUp | None = None
            while not listener.is_closed:
                piece: bytes | None
                if catching_up is not None:
                    if (piece := await catching_up.next()) is None:
                        catching_up = None
                elif behind is not None:
                    catching_up, behind, piece = CatchingUp(self._library, feed, listener, behind), None, None
                elif is_new:
                    piece, is_new = await running_attempts(self._library, listener), False
                elif not (piece := await listener.take()):
                    behind = listener.behind
                    piece = still_here(feed.token) if behind is None else None
                for start in range(0, len(piece or b""), WRITTEN_BYTES_MAX):
                    if piece and not listener.is_closed:
                        yield piece[start : start + WRITTEN_BYTES_MAX]
        finally:
            self._leave(listener)

    def _running_feed(self) -> Feed:
        if self._feed is None:
            self._feed = Feed(self._store, clock=self._clock)
        return self._feed

    def _leave(self, listener: Listener) -> None:
        listener.close()
        self._listeners.discard(listener)
        if self._feed is not None:
            self._feed.leave(listener)
        if not self._listeners:
            self._stop_feed()

    def _stop_feed(self) -> None:
        if self._feed is not None:
            task = self._feed.stop()
            self._feed = None
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
