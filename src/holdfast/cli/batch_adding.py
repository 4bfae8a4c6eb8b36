"""How the items of a file or a pipe become items of a batch: checked, then some hundreds per transaction.

Where it ends in the middle (a wrong line of a pipe, a database that went away, Ctrl-C), the batch is open and
has a part of its items. Whoever is told that is told what to type next as well; with a key that is the same
command once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.batch_input import Item, Source, WrongLine
from holdfast.cli.going_on import typed
from holdfast.cli.output import counted, shown
from holdfast.core.errors import BatchClosed, HoldfastError, IdempotencyConflict

if TYPE_CHECKING:
    from holdfast.client import AnyEngine
    from holdfast.client.parts import RemoteBatches
    from holdfast.engine.batches import Batches

    AnyBatches = Batches | RemoteBatches

ITEMS_PER_TRANSACTION = 500

Progress = Callable[[int], None]


class Adding:
    """Adds the items of one source to one batch. `batch_id` is None until the batch is made, with the first
    items that are right."""

    def __init__(self, engine: AnyEngine, source: Source, *, key: str | None, repeat: str) -> None:
        self._engine = engine
        self._source = source
        self._key = key
        self._repeat = repeat
        self.batch_id: int | None = None
        self.is_new = False
        self.items = 0
        self.added = 0
        self._line = 0
        self.take_in: Callable[[Any, int], Any] | None = None
        """Makes of an item what is stored of it, by its place."""

    async def make(
        self, pipeline: str, *, lane: str, mode: str | None, key: str | None, is_closed: bool
    ) -> None:
        """A new batch with all of them; or, where the key has one already, with those that it lacks."""

        async def create(batches: AnyBatches) -> int:
            batch_id, self.is_new = await batches.create(
                pipeline,
                lane=lane,  # type: ignore[arg-type]
                mode=mode,  # type: ignore[arg-type]
                idempotency_key=key,
            )
            return batch_id

        await self._all(create, pipeline)
        if is_closed and self.batch_id is not None:
            await self._engine.batches.close(self.batch_id)

    async def add_to(self, batch_id: int) -> None:
        async def known(batches: AnyBatches) -> int:
            await batches.add(batch_id, [])  # where there is none, it is told before a long file is read
            return batch_id

        await known(self._engine.batches)
        await self._all(known, "")

    async def _all(self, batch: Callable[[AnyBatches], Awaitable[int]], pipeline: str) -> None:
        try:
            total = self._source.checked() if self._source.is_file else None
            if total == 0:
                raise self._source.none_there()
            with _progress(total) as tell:
                async with contextlib.aclosing(self._source.read()) as coming:
                    async for items in coming:
                        for start in range(0, len(items), ITEMS_PER_TRANSACTION):
                            await self._chunk(items[start : start + ITEMS_PER_TRANSACTION], batch, pipeline)
                            tell(self.items)
        except HoldfastError as error:
            raise self._half_way(error) from None
        except asyncio.CancelledError:
            if self.batch_id is not None:
                click.echo(f"\n{shown(self._left())}\n  {shown(self._advice())}", err=True)
            raise
        if not self.items:
            raise self._source.none_there()

    def _taken_in(self, item: Item, place: int) -> Any:
        return item.workload if self.take_in is None else self.take_in(item.workload, place)

    async def _chunk(
        self, items: list[Item], batch: Callable[[AnyBatches], Awaitable[int]], pipeline: str
    ) -> None:
        from holdfast.engine import Submission

        batches = self._engine.batches
        if self.batch_id is None:
            self.batch_id = await batch(batches)
        # The same keys as Batch.add_many gives: what one has begun the other can end.
        keys = [
            None if self._key is None else f"{self._key} {n}"
            for n in range(self.items, self.items + len(items))
        ]
        submissions = [
            Submission(path=pipeline, workload=self._taken_in(item, place), idempotency_key=key)
            for place, (item, key) in enumerate(zip(items, keys, strict=True), self.items)
        ]
        adding = asyncio.ensure_future(batches.add(self.batch_id, submissions))
        try:
            await asyncio.wait([adding])
        finally:
            # Interrupted meanwhile, it is not cut off: who is told where to go on must not add them twice.
            added = await adding
            self.items += len(added)
            self.added += sum(item.created for item in added)
            self._line = items[-1].line

    # where it ends in the middle

    def _half_way(self, error: HoldfastError) -> HoldfastError:
        """The same error, with what has become of the batch."""
        if self.batch_id is None:
            if isinstance(error, WrongLine):
                error.args = (f"{error} Nothing was stored.",)
            return error
        if isinstance(error, IdempotencyConflict):
            error.guidance = (
                f"Are the items in {self._source.what} still those that this key was used with first, in"
                " the same order? Others need another key."
            )
        elif self.items and not isinstance(error, BatchClosed):
            error.args = (f"{error} {self._left()}",)
            wrong = error.line if isinstance(error, WrongLine) else None
            error.guidance = f"{error.guidance} {self._advice(wrong)}".strip()
        return error

    def _left(self) -> str:
        upto = f", those up to line {self._line:,}" if self._line else ""
        return f"{counted(self.items, 'item is', 'items are')} in batch {self.batch_id}{upto}; it is open."

    def _advice(self, wrong: int | None = None) -> str:
        if self._key is not None:
            repeat = (
                "Repeat the command" if wrong is None else f"Correct line {wrong:,}, then repeat the command"
            )
            return f"{repeat}, and the rest is added:  {self._repeat}"
        add = "Add" if wrong is None else f"Correct line {wrong:,}, then add"
        more, close, cancel = (
            typed(f"holdfast batch {what}")
            for what in (f"add {self.batch_id} FILE", f"close {self.batch_id}", f"cancel {self.batch_id}")
        )
        return f"{add} the rest, from line {self._line + 1:,} on:  {more} ; then  {close} , or  {cancel}"


@contextlib.contextmanager
def _progress(total: int | None) -> Iterator[Progress]:
    """A bar on a terminal, on stderr: stdout is for the answer."""
    if not sys.stderr.isatty():
        yield lambda items: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from holdfast.cli.output import new_console

    columns = (TextColumn("items"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=new_console(stderr=True), transient=True) as bar:
        task = bar.add_task("items", total=total)
        yield lambda items: bar.update(task, completed=items)
