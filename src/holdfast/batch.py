"""Batches in Python: many items through one pipeline, in one call or streamed.

    batch = await hf.batch("reports", items)              all of them, closed at the end of the call

    async with hf.batch("reports") as batch:              one after the other, closed at the end of the block
        async for item in source:
            await batch.add(item)

With a `key` both can be repeated after a crash: what was added is found again, the rest is added.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.errors import InvalidInput
from holdfast.core.model import ExecutionStatus, Lane, Mode
from holdfast.core.payload import a_type
from holdfast.core.retry import parse_duration
from holdfast.engine import Page, Submission
from holdfast.engine.batch_view import BatchItem, BatchView
from holdfast.step_function import is_list

if TYPE_CHECKING:
    from holdfast.client import AnyEngine
    from holdfast.client.parts import RemoteBatches
    from holdfast.engine.batches import Batches

log = logging.getLogger("holdfast")

# Of one transaction. A stream is never held in memory whole.
ITEMS_PER_TRANSACTION = 500
POLL_SECONDS = 0.5
_PLACE = re.compile(r"item \d+")

Items = Iterable[Any] | AsyncIterable[Any]


class App(Protocol):
    """What a batch needs of the Holdfast it belongs to."""

    async def engine(self) -> AnyEngine: ...

    async def let_time_pass(self, seconds: float) -> None: ...


class Batch:
    """One batch. Before it is awaited or entered, it is only a wish."""

    def __init__(
        self,
        app: App,
        *,
        id: int | None = None,
        pipeline: str = "",
        items: Items | None = None,
        lane: Lane | str = Lane.BULK,
        mode: Mode | str | None = None,
        key: str | None = None,
        deadline: float | str | None = None,
        close: bool = True,
    ) -> None:
        if items is not None and not isinstance(items, AsyncIterable) and not is_list(items):
            raise InvalidInput(
                f"The items of a batch cannot be {a_type(items)}.",
                guidance="Give a list of workloads, or anything that yields them.",
            )
        self._app = app
        self._id = id
        self._pipeline = pipeline
        self._items = items
        self._lane = lane
        self._mode = mode
        self._key = key
        self._deadline = None if deadline is None else parse_duration(deadline, field="deadline")
        self._close = close
        self._added = 0
        self._is_begun = False
        self._is_partly_filled = False

    def __repr__(self) -> str:
        return f"Batch(id={self._id})"

    @property
    def id(self) -> int:
        if self._id is None:
            raise InvalidInput(
                "The batch does not exist yet.", guidance="Await it, or use it with `async with`."
            )
        return self._id

    # submitting

    def __await__(self) -> Generator[Any, None, Batch]:
        return self._submitted().__await__()

    async def _submitted(self) -> Batch:
        has_items = self._items is not None
        await self.__aenter__()
        if has_items and self._close:
            await self.close()
        return self

    async def __aenter__(self) -> Batch:
        await self._create()
        if self._items is not None:
            await self._fill(self._items)
            self._items = None
        return self

    async def _fill(self, items: Items) -> None:
        """After an error it begins anew, where keys tell what is there and the items can be had again."""
        if self._is_partly_filled and (self._key is None or _is_for_once(items)):
            raise InvalidInput(
                f"Batch {self.id} was filled in part, and how far is not known.",
                guidance="Cancel it and submit its items anew; with a key the same call can be repeated.",
            )
        self._is_partly_filled, self._added = True, 0
        try:
            await self.add_many(items)
        except BaseException:
            await self._tell_left_open()  # nobody else knows its number
            raise
        self._is_partly_filled = False

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            await self._tell_left_open()
        elif self._close:
            await self.close()

    async def _tell_left_open(self) -> None:
        with contextlib.suppress(Exception):  # the error that led here is the one to be told
            if await (await self._engine()).is_open(self.id):
                log.warning(
                    "Batch %d was left open, because adding to it ended with an error: its items run, and"
                    " what waits for its end goes on waiting. Add the rest and close it, or cancel it.",
                    self.id,
                )

    def __del__(self) -> None:
        if getattr(self, "_items", None) is not None and not self._is_begun:
            warnings.warn(
                "hf.batch(...) was never awaited, so nothing was submitted.", RuntimeWarning, stacklevel=2
            )

    async def _create(self) -> None:
        self._is_begun = True
        if self._id is None:
            self._id, _ = await (await self._engine()).create(
                self._pipeline,
                lane=self._lane,  # type: ignore[arg-type]
                mode=self._mode,  # type: ignore[arg-type]
                idempotency_key=self._key,
            )

    async def add(self, workload: Any, *, key: str | None = None) -> int:
        """Add one item; the id of its execution. With a `key` an item that is known is found again."""
        if key is not None and _PLACE.fullmatch(str(key)):
            raise InvalidInput(
                f"{key!r} is what an item's place is called, and cannot be its key.",
                guidance="Choose another one.",
            )
        [id_] = await self._add([workload], [key])
        return id_

    async def add_many(self, workloads: Items) -> list[int]:
        """Add items, some hundreds at a time; the ids of their executions. Of a batch with a key each item
        has its place for a key, so that the same items in the same order can be added again."""
        ids: list[int] = []
        async with contextlib.aclosing(_chunks(workloads)) as chunks:
            async for chunk in chunks:
                ids += await self._add(chunk, [None] * len(chunk))
        return ids

    async def _add(self, workloads: list[Any], keys: list[str | None]) -> list[int]:
        place = self._added
        self._added += len(workloads)
        try:
            return await self._add_at(place, workloads, keys)
        except BaseException:
            if self._added == place + len(workloads):  # the next ones to be added are these again
                self._added = place
            raise

    async def _add_at(self, place: int, workloads: list[Any], keys: list[str | None]) -> list[int]:
        if self._key is not None:
            keys = [key or f"item {n}" for n, key in enumerate(keys, place)]
        submissions = [
            Submission(
                path=self._pipeline, workload=workload, idempotency_key=key, deadline_seconds=self._deadline
            )
            for workload, key in zip(workloads, keys, strict=True)
        ]
        added = await (await self._engine()).add(self.id, submissions, first_place=place)
        return [item.id for item in added]

    async def close(self) -> bool:
        """Say that all items are there; whether that is new."""
        return await (await self._engine()).close(self.id)

    async def cancel(self, *, by: str = "") -> int:
        """Cancel all that still runs; how many items that were."""
        return await (await self._engine()).cancel(self.id, by=by)

    # looking

    async def status(self) -> BatchView:
        return await (await self._engine()).view(self.id)

    async def page(
        self,
        *,
        status: ExecutionStatus | str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Items in the order of their submission, with their tracking documents."""
        return await (await self._engine()).items(
            self.id,
            status=status,  # type: ignore[arg-type]
            limit=limit,
            cursor=cursor,
        )

    async def items(self, *, status: ExecutionStatus | str | None = None) -> AsyncIterator[BatchItem]:
        """All of them, page by page."""
        cursor: str | None = None
        while True:
            page = await self.page(status=status, limit=500, cursor=cursor)
            for item in page.items:
                yield item
            cursor = page.next
            if cursor is None:
                return

    async def wait(self, within: float | str | None = None) -> BatchView:
        """The batch once all of it has ended; TimeoutError where that takes longer than `within`."""
        seconds = None if within is None else parse_duration(within, field="within")
        deadline = None if seconds is None else time.monotonic() + seconds
        while not await (await self._engine()).is_over(self.id):
            left = POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"Batch {self.id} has not ended within {seconds:g} s.")
            await self._app.let_time_pass(min(left, POLL_SECONDS))
        return await self.status()

    async def _engine(self) -> Batches | RemoteBatches:
        return (await self._app.engine()).batches


def _is_for_once(items: Items) -> bool:
    """Whether they can be gone through once only."""
    return isinstance(items, Iterator | AsyncIterator)


async def _chunks(items: Items) -> AsyncGenerator[list[Any], None]:
    if isinstance(items, AsyncIterable):
        chunk: list[Any] = []
        async for item in items:
            chunk.append(item)
            if len(chunk) == ITEMS_PER_TRANSACTION:
                yield chunk
                chunk = []
        if chunk:
            yield chunk
        return
    if not is_list(items):
        raise InvalidInput(
            f"The items of a batch cannot be {a_type(items)}.",
            guidance="Give a list of workloads, or anything that yields them.",
        )
    iterator = iter(items)
    while chunk := list(islice(iterator, ITEMS_PER_TRANSACTION)):
        yield chunk
        await asyncio.sleep(0)
