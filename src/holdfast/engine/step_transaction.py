"""A handler's transaction: its SQL, what it submits, and the completion of its step commit together.

    first statement opens it ─▶ statements ─▶ handler returns ─▶ fence check, completion, next job ─▶ commit

The completion is never batched with other reports: it belongs to this transaction alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.model import Ack, AckCode, Report
from holdfast.engine.batch_book import BatchBook, CompletionMissing
from holdfast.engine.checks import is_id
from holdfast.engine.decisions import Decisions, DecisionsMissing
from holdfast.engine.definitions import Definitions
from holdfast.engine.planning import Planning
from holdfast.engine.prepare import Preparation
from holdfast.engine.reporting import Reporting
from holdfast.engine.settle import SettlePlan, Succeeded
from holdfast.store.changes import Changes
from holdfast.store.interface import Locked, Store
from holdfast.store.new_executions import Inserted, NewExecution

LOOKS_MAX = 100


class _Refused(Exception):
    """Raised inside the plan, so that the store rolls everything back."""

    def __init__(self, ack: Ack) -> None:
        super().__init__(ack.message)
        self.ack = ack


class StepTransaction:
    def __init__(
        self,
        store: Store,
        preparation: Preparation,
        definitions: Definitions,
        planning: Planning,
        reporting: Reporting,
        decisions: Decisions,
    ) -> None:
        self._reporting = reporting
        self._decisions = decisions
        self._store = store
        self._planning = planning
        self._preparation = preparation
        self._definitions = definitions
        self._transaction = store.transaction()
        self.execute = self._transaction.execute
        self.fetch = self._transaction.fetch
        self.executemany = self._transaction.executemany
        self.rollback = self._transaction.rollback
        self.url = store.url
        self._has_submitted = False

    async def insert(self, executions: Sequence[NewExecution]) -> list[Inserted]:
        """Work that the handler submits: it will be run if this transaction commits."""
        self._has_submitted = True
        return await self._transaction.insert(executions, await self._store.now())

    async def complete(self, report: Report, definition_id: int) -> Ack:
        """Store the completion and commit. Whatever is not accepted has been rolled back."""
        [prepared] = await self._preparation.reports([report])
        if not isinstance(prepared, Succeeded):
            await self.rollback()
            return Ack(report.queue_id, AckCode.INVALID, "only a completed attempt can commit")
        await self._definitions.load(definition_id)
        now = await self._store.now()
        book = self._planning.book(now)
        settle = SettlePlan([prepared], self._definitions, book, self._decisions)
        await self._look_up(settle, report.queue_id, book)

        def settle_or_undo(locked: list[Locked]) -> Changes:
            changes = settle(locked)
            # A repeated report is as good as a stale one here: its effects were committed then.
            if not settle.acks[0].accepted or settle.acks[0].repeated:
                raise _Refused(settle.acks[0])
            return changes

        try:
            await self._transaction.amend_job(report.queue_id, settle_or_undo, now, batches=book.load)
        except _Refused as refused:
            return refused.ack
        self._reporting.held.forget([report])
        self._planning.attend(book)
        await self._reporting.settled(settle, makes_work=self._has_submitted)
        return settle.acks[0]

    async def _look_up(self, settle: SettlePlan, queue_id: int, book: BatchBook) -> None:
        """What the plan needs to know, before its transaction: a handler's cannot be run again. So it is run
        on the rows as they are now, and nothing of it is kept."""
        if not is_id(queue_id):
            return
        locked = await self._store.peek_jobs([queue_id])
        for _ in range(LOOKS_MAX):
            try:
                settle(locked)
                return
            except CompletionMissing as missing:
                await self._planning.look_up(book, missing.execution_id, missing.step)
            except DecisionsMissing as missing:
                await self._planning.decide(book, missing.needed)
