"""A handler's transaction: its SQL, what it submits, and the completion of its step commit together.

    first statement opens it ─▶ statements ─▶ handler returns ─▶ fence check, completion, next job ─▶ commit

The completion is never batched with other reports: it belongs to this transaction alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.errors import TransactionLost
from holdfast.core.model import Ack, AckCode, Report
from holdfast.engine.batch_book import BatchBook, CompletionMissing
from holdfast.engine.decisions import Decisions, DecisionsMissing
from holdfast.engine.definitions import DefinitionMissing, Definitions
from holdfast.engine.planning import Planning
from holdfast.engine.prepare import Preparation
from holdfast.engine.reporting import Reporting
from holdfast.engine.settle import Erred, ExecutionsNeeded, SettlePlan, Succeeded, undone
from holdfast.engine.tallies import Ended
from holdfast.store.changes import Changes
from holdfast.store.interface import Store
from holdfast.store.new_executions import Inserted, NewExecution

LOOKS_MAX = 1_000  # more than a plan can lack


class _Refused(Exception):
    """Raised inside the plan, so that the store rolls everything back."""

    def __init__(self, ack: Ack) -> None:
        super().__init__(ack.message)
        self.ack = ack


class _Undecided(Exception):
    """What comes next cannot be told: the attempt has failed, and nothing that its handler wrote is kept."""

    def __init__(self, erred: Erred) -> None:
        super().__init__(erred.failure.message)
        self.erred = erred


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
        self._submitted: list[Inserted] = []

    async def insert(self, executions: Sequence[NewExecution]) -> list[Inserted]:
        """Work that the handler submits: it will be run if this transaction commits."""
        inserted = await self._transaction.insert(executions, await self._store.now())
        self._submitted += inserted
        return inserted

    async def complete(self, report: Report, definition_id: int) -> Ack:
        """Store the completion and commit. Whatever is not accepted has been rolled back."""
        [prepared] = await self._preparation.reports([report])
        if not isinstance(prepared, Succeeded):
            await self.rollback()
            return Ack(report.queue_id, AckCode.INVALID, "only a completed attempt can commit")
        await self._definitions.load(definition_id)
        book = self._planning.book(await self._store.now())
        settle = SettlePlan([prepared], self._definitions, book, self._decisions)
        try:
            await self._commit(settle, report.queue_id, book)
        except _Refused as refused:
            await self.rollback()
            return refused.ack
        except _Undecided as undecided:
            await self.rollback()
            [ack] = await self._reporting.commit([undecided.erred])
            return ack
        except BaseException:
            await self.rollback()
            raise
        self._reporting.held.forget([report])
        self._planning.attend(book)
        self._planning.tallies.started(self._submitted)
        await self._reporting.settled(settle, book.now, makes_work=bool(self._submitted))
        return settle.acks[0]

    async def _commit(self, settle: SettlePlan, queue_id: int, book: BatchBook) -> None:
        """A handler's transaction cannot be run again, but its last part can: where the plan lacks something,
        that is looked up while no row is locked."""

        def checked(changes: Changes) -> Changes:
            # A repeated report is as good as a stale one here: its effects were committed then.
            if not settle.acks[0].accepted or settle.acks[0].repeated:
                raise _Refused(settle.acks[0])
            if (erred := settle.undecided) is not None:
                raise _Undecided(undone(erred))
            return changes

        ended = Ended()

        async def of_job() -> None:
            watched = ended.of_jobs(lambda locked: checked(settle(locked)))
            await self._transaction.amend_job(queue_id, watched, book.now, batches=book.load)

        async def of_execution() -> None:
            watched = ended.of_executions(lambda rows, jobs: checked(settle.with_siblings(rows, jobs)))
            await self._transaction.amend_execution(execution_id, watched, book.now, batches=book.load)

        amend = of_job
        for _ in range(LOOKS_MAX):
            try:
                await amend()
                return self._planning.tallies.ended(ended, book.now)
            except ExecutionsNeeded:
                [(_job, execution)] = await self._store.peek_jobs([queue_id])
                execution_id, amend = execution.id, of_execution
            except (DefinitionMissing, CompletionMissing, DecisionsMissing) as missing:
                await self._planning.supply(missing, book)
        raise TransactionLost("What comes next takes too long to decide.", error_type="transient_error")
