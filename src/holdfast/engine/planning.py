"""Runs plans in transactions. A plan cannot wait inside one: where it turns out to need a definition, the
time at which a step was done, or what a step decides of its edges, that is looked up and the transaction is
run again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from holdfast.engine.batch_book import BatchBook, CompletionMissing
from holdfast.engine.decisions import Decisions, DecisionsMissing, Needed
from holdfast.engine.definitions import DefinitionMissing, Definitions
from holdfast.engine.tallies import Ended, Tallies
from holdfast.store.interface import ExecutionsPlan, JobsPlan, Store


class Planning:
    def __init__(
        self, store: Store, definitions: Definitions, decisions: Decisions, tallies: Tallies
    ) -> None:
        self._store = store
        self._definitions = definitions
        self._decisions = decisions
        self.tallies = tallies
        self.attention = asyncio.Event()
        """Set when a batch has a gate to be opened."""
        self.fleet_limited = False
        """A limit over everything is set, as the last lease has found: each end makes a place under it."""

    def book(self, now: float) -> BatchBook:
        return BatchBook(self._definitions, now)

    async def jobs(
        self, ids: Sequence[int], plan: JobsPlan, book: BatchBook, *, skip_locked: bool = False
    ) -> None:
        ended = Ended()
        watched = ended.of_jobs(plan)
        await self._repeated(
            lambda: self._store.amend_jobs(
                ids, watched, book.now, batches=book.load, skip_locked=skip_locked
            ),
            book,
        )
        self.tallies.ended(ended, book.now)

    async def executions(self, ids: Sequence[int], plan: ExecutionsPlan, book: BatchBook) -> None:
        ended = Ended()
        watched = ended.of_executions(plan)
        await self._repeated(
            lambda: self._store.amend_executions(ids, watched, book.now, batches=book.load), book
        )
        self.tallies.ended(ended, book.now)

    async def _repeated(self, transaction: Callable[[], Awaitable[None]], book: BatchBook) -> None:
        while True:
            try:
                await transaction()
                break
            except (DefinitionMissing, CompletionMissing, DecisionsMissing) as missing:
                await self.supply(missing, book)
        self.attend(book)

    async def supply(
        self, missing: DefinitionMissing | CompletionMissing | DecisionsMissing, book: BatchBook
    ) -> None:
        """What a plan has turned out to need, for its next run."""
        if isinstance(missing, DefinitionMissing):
            await self._definitions.load(missing.definition_id)
        elif isinstance(missing, CompletionMissing):
            found = await self._store.completed_at(missing.execution_id, missing.step)
            book.completions[missing.execution_id, missing.step] = book.now if found is None else found
        else:
            await self.decide(book, missing.needed)

    async def decide(self, book: BatchBook, needed: Iterable[Needed]) -> None:
        book.decisions.update(await self._decisions.make(needed))

    def attend(self, book: BatchBook) -> None:
        if book.needs_attention:
            self.attention.set()
