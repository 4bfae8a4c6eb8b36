"""Completing held attempts in SQLite: a few statements, each over all of them, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import apsw

from holdfast.core.model import ClaimGroup
from holdfast.store import rows
from holdfast.store.changes import NewJob
from holdfast.store.stages import HeldStage

T = TypeVar("T")


class _NotHeld(Exception):
    """One of the leases is gone: undo the transaction."""


class SqliteStages:
    _sql: dict[str, str]

    async def _write(self, action: Callable[[apsw.Connection], T]) -> T:
        raise NotImplementedError

    def _group_ids(self, db: apsw.Connection, wanted: set[ClaimGroup]) -> dict[ClaimGroup, int]:
        raise NotImplementedError

    async def complete_held(self, stages: Sequence[HeldStage], now: float) -> bool:
        try:
            await self._write(lambda db: self._complete_held(db, stages, now))
        except _NotHeld:
            return False
        return True

    def _complete_held(self, db: apsw.Connection, stages: Sequence[HeldStage], now: float) -> None:
        before = db.total_changes()
        db.executemany(
            self._sql["complete_held_job"],
            [(stage.job_id, stage.fence, stage.outcome_hash, stage.output, now) for stage in stages],
        )
        db.executemany(
            self._sql["advance_execution"],
            [(stage.execution_id, stage.end.status, stage.end.stage, now) for stage in stages],
        )
        if db.total_changes() - before != 2 * len(stages):
            raise _NotHeld
        db.executemany(
            self._sql["insert_event"], [(stage.execution_id, stage.end.events, now) for stage in stages]
        )
        new = [
            NewJob(stage.execution_id, *stage.end.following, available_at=now)
            for stage in stages
            if stage.end.following is not None
        ]
        if new:
            groups = self._group_ids(db, {job.group for job in new})
            db.executemany(
                self._sql["insert_job"], [(*rows.new_job_columns(job, groups), now) for job in new]
            )
