"""Group commit: callers that arrive while a transaction is under way share the next one.

Nothing waits when nothing runs: the first caller's items go at once, and whoever comes meanwhile is
gathered for the following flush. Under load this turns many small transactions into few large ones.

Where a store can write two transactions at once, many callers are divided between two: while one is written,
the callers of the other are answered and come again, so that this process and the database work side by side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from holdfast.core.errors import StoreError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

ITEMS_PER_FLUSH = 500
# Fewer callers than this share one transaction: two would cost more than they gain.
CALLERS_DIVIDED_MIN = 20


class GroupCommit(Generic[Item, Answer]):
    """`flush` writes a list of items in one transaction and answers each, or raises and writes none; up to
    `at_once` of them are under way at a time."""

    def __init__(
        self, flush: Callable[[list[Item]], Awaitable[Sequence[Answer]]], *, at_once: int = 1
    ) -> None:
        self._flush = flush
        self._at_once = at_once
        self._waiting: deque[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]] = deque()
        self._flushers: set[asyncio.Task[None]] = set()
        self._under_way = 0

    async def commit(self, items: Sequence[Item]) -> Sequence[Answer]:
        """The answers to these items, which are written together, perhaps with those of others."""
        answers: asyncio.Future[Sequence[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, answers))
        if len(self._flushers) < self._at_once:
            flusher = asyncio.create_task(self._flush_all())
            self._flushers.add(flusher)
            flusher.add_done_callback(self._flushers.discard)  # also one that was cancelled before it began
        return await answers

    async def _flush_all(self) -> None:
        while self._waiting:
            group = self._next_group()
            self._under_way += 1
            try:
                await self._flush_group(group)
            finally:
                self._under_way -= 1
        # At once, and not when the loop calls back: whoever comes before that needs a flusher of its own.
        if (flusher := asyncio.current_task()) is not None:
            self._flushers.discard(flusher)

    def _next_group(self) -> list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]]:
        """From the front of the queue. The first of several flushers leaves half of it to the next."""
        callers = len(self._waiting)
        if self._at_once > 1 and not self._under_way and callers >= CALLERS_DIVIDED_MIN:
            callers = (callers + 1) // 2
        group = [self._waiting.popleft()]
        size = len(group[0][0])
        while len(group) < callers and size + len(self._waiting[0][0]) <= ITEMS_PER_FLUSH:
            group.append(self._waiting.popleft())
            size += len(group[-1][0])
        return group

    async def _flush_group(
        self, group: list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]]
    ) -> None:
        try:
            answers = await self._flush([item for items, _ in group for item in items])
        except BaseException as error:
            if len(group) == 1 or isinstance(error, StoreError) or not isinstance(error, Exception):
                for _, future in group:
                    if not future.done():
                        future.set_exception(error)
                return
            # One caller's items were refused: give each caller a transaction and an answer of its own.
            for member in group:
                await self._flush_group([member])
            return
        start = 0
        for items, future in group:
            if not future.done():  # its caller may have been cancelled
                future.set_result(answers[start : start + len(items)])
            start += len(items)
