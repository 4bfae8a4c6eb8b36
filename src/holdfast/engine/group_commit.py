"""Group commit: callers that arrive while a transaction is under way share the next one.

Nothing waits when nothing runs: the first caller's items go at once, and whoever comes meanwhile is
gathered for the following flush. Under load this turns many small transactions into few large ones.
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


class GroupCommit(Generic[Item, Answer]):
    """`flush` writes a list of items in one transaction and answers each, or raises and writes none."""

    def __init__(self, flush: Callable[[list[Item]], Awaitable[Sequence[Answer]]]) -> None:
        self._flush = flush
        self._waiting: deque[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]] = deque()
        self._flusher: asyncio.Task[None] | None = None

    async def commit(self, items: Sequence[Item]) -> Sequence[Answer]:
        """The answers to these items, which are written together, perhaps with those of others."""
        answers: asyncio.Future[Sequence[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, answers))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush_all())
        return await answers

    async def _flush_all(self) -> None:
        while self._waiting:
            group = [self._waiting.popleft()]
            size = len(group[0][0])
            while self._waiting and size + len(self._waiting[0][0]) <= ITEMS_PER_FLUSH:
                group.append(self._waiting.popleft())
                size += len(group[-1][0])
            await self._flush_group(group)

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
