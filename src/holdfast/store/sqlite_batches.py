"""Batches in SQLite: the verbs that change one. There is one writer at a time, so a batch that was read in
a transaction is as good as locked until it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from holdfast.core.audit import AuditEntry
from holdfast.core.gates import BatchState
from holdfast.store import rows
from holdfast.store.interface import AddingPlan, BatchesLoader, BatchPlan, LiveJobs, NewBatch
from holdfast.store.new_executions import Inserted, NewExecution

T = TypeVar("T")


class SqliteBatches:
    _sql: dict[str, str]

    async def _write(self, action: Callable[[apsw.Connection], T]) -> T:
        raise NotImplementedError

    def insert_in(
        self, db: apsw.Connection, executions: Sequence[NewExecution], now: float
    ) -> list[Inserted]:
        raise NotImplementedError

    async def create_batch(self, batch: NewBatch, now: float) -> tuple[BatchState, bool]:
        def create(db: apsw.Connection) -> tuple[BatchState, bool]:
            key = (batch.path, batch.idempotency_key)
            found: list[Any] = db.execute(self._sql["batch_by_key"], key).fetchall()
            made: list[Any] = [] if found else list(db.execute(self._sql["create_batch"], (*batch, now)))
            [state] = self._batch(db, (found or made)[0][0])
            return state, bool(made)

        return await self._write(create)

    async def add_to_batch(
        self, batch_id: int, executions: Sequence[NewExecution], plan: AddingPlan, now: float
    ) -> list[Inserted] | None:
        def add(db: apsw.Connection) -> list[Inserted] | None:
            found = self._batch(db, batch_id)
            if not found:
                return None
            inserted = self.insert_in(db, executions, now)
            self._save(db, [plan(found[0], inserted)])
            return inserted

        return await self._write(add)

    async def amend_batch(
        self,
        batch_id: int,
        plan: BatchPlan,
        now: float,
        *,
        count_jobs: bool = False,
        audit: AuditEntry | None = None,
    ) -> BatchState | None:
        def amend(db: apsw.Connection) -> BatchState | None:
            found = self._batch(db, batch_id)
            if not found:
                return None
            live: LiveJobs = {}
            if count_jobs:
                counted = db.execute(self._sql["live_jobs"], (batch_id,))
                live = {(step, held_by): jobs for step, held_by, jobs in counted}
            amended = plan(found[0], live)
            if amended != found[0]:
                self._save(db, [amended])
            if audit is not None:
                db.execute(self._sql["insert_audit"], (*audit, now))
            return amended

        return await self._write(amend)

    def _batch(self, db: apsw.Connection, batch_id: int) -> list[BatchState]:
        return rows.batch_states(db.execute(self._sql["lock_batch"], (batch_id,)))

    def _load_batches(self, db: apsw.Connection, ids: set[int | None], batches: BatchesLoader | None) -> None:
        if batches is not None:
            known = sorted(id_ for id_ in ids if id_ is not None)
            batches(
                rows.batch_states(db.execute(self._sql["lock_gated_batches"], (json.dumps(known),)))
                if known
                else []
            )

    def _save(self, db: apsw.Connection, batches: Sequence[BatchState]) -> None:
        db.executemany(self._sql["update_batch"], map(rows.changed_batch_columns, batches))
