"""Batches in PostgreSQL: the verbs that change one, each under the lock of its row.

Whoever changes a job of a gated batch takes that lock last, after those of executions and jobs; whoever
begins with it (adding, closing, opening a gate) takes none of the others. So nobody waits in a circle.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from holdfast.core.audit import AuditEntry
from holdfast.core.gates import BatchState
from holdfast.core.model import ExecutionStatus
from holdfast.store import rows
from holdfast.store.interface import AddingPlan, BatchesLoader, BatchPlan, Condition, LiveJobs, NewBatch
from holdfast.store.new_executions import Inserted, NewExecution

T = TypeVar("T")
Connection: TypeAlias = Any


class PostgresBatches:
    _sql: dict[str, str]

    async def _transact(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        raise NotImplementedError

    async def insert_in(
        self, db: Connection, executions: Sequence[NewExecution], now: float, *, apart: bool = False
    ) -> list[Inserted]:
        raise NotImplementedError

    def _by_index(self, batch_id: int | None, status: ExecutionStatus | None) -> list[Condition]:
        if status is ExecutionStatus.FAILED:
            return [("e.failed = {}", True)]
        if status is ExecutionStatus.RUNNING:
            return [("e.running_in = {}", batch_id)]
        return []

    async def create_batch(self, batch: NewBatch, now: float) -> tuple[BatchState, bool]:
        async def create(db: Connection) -> tuple[BatchState, bool]:
            key = (batch.path, batch.idempotency_key)
            # Asked first: a repeat uses up no number then. Who makes it at this moment is met at the insert.
            found = await db.fetchval(self._sql["batch_by_key"], *key)
            made = None if found else await db.fetchval(self._sql["create_batch"], *batch, now)
            found = found or made or await db.fetchval(self._sql["batch_by_key"], *key)
            [state] = await self._batch(db, found)
            return state, made is not None

        return await self._transact(create)

    async def add_to_batch(
        self, batch_id: int, executions: Sequence[NewExecution], plan: AddingPlan, now: float
    ) -> list[Inserted] | None:
        async def add(db: Connection) -> list[Inserted] | None:
            found = await self._batch(db, batch_id)
            if not found:
                return None
            inserted = await self.insert_in(db, executions, now)
            await self._save(db, [plan(found[0], inserted)])
            return inserted

        return await self._transact(add)

    async def amend_batch(
        self,
        batch_id: int,
        plan: BatchPlan,
        now: float,
        *,
        count_jobs: bool = False,
        audit: AuditEntry | None = None,
    ) -> BatchState | None:
        async def amend(db: Connection) -> BatchState | None:
            found = await self._batch(db, batch_id)
            if not found:
                return None
            live: LiveJobs = {}
            if count_jobs:
                counted = await db.fetch(self._sql["live_jobs"], batch_id)
                live = {(step, held_by): jobs for step, held_by, jobs in counted}
            amended = plan(found[0], live)
            if amended != found[0]:
                await self._save(db, [amended])
            if audit is not None:
                await db.execute(self._sql["insert_audit"], *([value] for value in audit), now)
            return amended

        return await self._transact(amend)

    async def _batch(self, db: Connection, batch_id: int) -> list[BatchState]:
        return rows.batch_states(await db.fetch(self._sql["lock_batch"], batch_id))

    async def _load_batches(
        self, db: Connection, ids: set[int | None], batches: BatchesLoader | None
    ) -> None:
        if batches is not None:
            known = sorted(id_ for id_ in ids if id_ is not None)
            batches(
                rows.batch_states(await db.fetch(self._sql["lock_gated_batches"], known)) if known else []
            )

    async def _save(self, db: Connection, batches: Sequence[BatchState]) -> None:
        for batch in batches:
            await db.execute(self._sql["update_batch"], *rows.changed_batch_columns(batch))
