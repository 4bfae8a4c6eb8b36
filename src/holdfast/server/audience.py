"""Who listens to the feed: each with a filter and a small buffer.

What is told is made once and shared: a buffer holds references. A listener that does not keep up is told
nothing more; it goes on from the store, from where it was left behind, when it has read its buffer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TypeAlias

from holdfast.server.position import Position

BUFFER_BYTES = 256 * 1024
KEEP_ALIVE_SECONDS = 15.0

# An execution, a path, both or neither.
Filter: TypeAlias = tuple[int | None, str | None]


class Listener:
    def __init__(self, execution_id: int | None, path: str | None) -> None:
        self.filter: Filter = (execution_id, path)
        # From where it goes on when it was left behind.
        self.behind: Position | None = None
        self.is_closed = False
        self._pieces: deque[bytes] = deque()
        self._bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0

    def matches(self, execution_id: int, path: str) -> bool:
        own_execution, own_path = self.filter
        return own_execution in (None, execution_id) and own_path in (None, path)

    def offer(self, piece: bytes, before: Position) -> None:
        """Take it, or be left behind at the place before it. It hears of it when it is woken."""
        if self.behind is not None:
            return
        if self._pieces and self._bytes + len(piece) > BUFFER_BYTES:
            self.behind = before
            return
        self._pieces.append(piece)
        self._bytes += len(piece)

    async def take(self) -> bytes:
        """What comes next; nothing where it has been silent for long, was left behind, or is closed."""
        self._start_timer()
        while not self._pieces and self.behind is None and not self.is_closed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            if not self._pieces and self._is_silent():
                break
        self._heard_at = asyncio.get_running_loop().time()
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        self._bytes -= len(piece)
        return piece

    def close(self) -> None:
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # One timer for each listener, and none for each wait.

    def _start_timer(self) -> None:
        if self._timer is None and not self.is_closed:
            loop = asyncio.get_running_loop()
            self._heard_at = loop.time()
            self._timer = loop.call_later(KEEP_ALIVE_SECONDS, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        seconds = KEEP_ALIVE_SECONDS
        if self._is_silent():
            self.wake()
        else:
            seconds -= loop.time() - self._heard_at
        self._timer = loop.call_later(seconds, self._look)

    def _is_silent(self) -> bool:
        silent = asyncio.get_running_loop().time() - self._heard_at
        return silent >= KEEP_ALIVE_SECONDS * 0.99  # a timer may come a tick early


class Audience:
    def __init__(self) -> None:
        self._by_filter: dict[Filter, set[Listener]] = {}

    def add(self, listener: Listener) -> None:
        self._by_filter.setdefault(listener.filter, set()).add(listener)

    def remove(self, listener: Listener) -> None:
        if (group := self._by_filter.get(listener.filter)) is not None:
            group.discard(listener)
            if not group:
                del self._by_filter[listener.filter]

    def filters_for(self, execution_id: int, path: str) -> list[Filter]:
        """The filters in use that let this through."""
        through: tuple[Filter, ...] = ((None, None), (execution_id, None), (None, path), (execution_id, path))
        return [one for one in through if one in self._by_filter]

    def tell(self, pieces: Mapping[Filter, bytes], before: Position) -> list[Listener]:
        """Into the buffers of all at once, so that each of them is behind it; those who are to be woken."""
        told: list[Listener] = []
        for one, piece in pieces.items():
            for listener in self._by_filter.get(one, ()):
                listener.offer(piece, before)
                told.append(listener)
        return told
