"""A row that attempts take one after the other, and what may be written under it.

    check ──▶ (the row is this attempt's) ──▶ write, write, …

Each write is one transaction that asks first whether the row is still this attempt's. One that was taken for
dead and goes on is refused there, so that nothing of two attempts can be mixed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.core.errors import StaleLease
from holdfast.core.model import ExecutionStatus
from holdfast.store.tables import TableTransaction, TableWriter
from holdfast.worker.context import Context

T = TypeVar("T")

HEARTBEAT_SECONDS = 30.0


def task_id_of(queue_id: int, fence: str) -> str:
    """What names an attempt and is no secret: of a fence its number alone. Both numbers only grow."""
    return f"{queue_id}-{fence.partition('-')[0]}"


class HeldRow:
    """Of a table with the columns id, task_id and last_heartbeat; its id is an execution's. `condition` is
    what must be true of it besides."""

    def __init__(
        self,
        writer: TableWriter,
        table: str,
        row_id: int,
        task_id: str,
        now: Callable[[], float],
        *,
        what: str,
        condition: str = "",
    ) -> None:
        self._writer = writer
        self._row_id = row_id
        self._task_id = task_id
        self._now = now
        self._what = what
        self._guard = f"UPDATE {table} SET last_heartbeat = $3 WHERE id = $1 AND task_id = $2{condition}"
        self.lock = "" if writer.dialect == "sqlite" else " FOR UPDATE"

    def check(self, holder: str | None) -> None:
        """Whether this attempt may take it from the one that has it."""
        if holder is not None and _order(holder) > _order(self._task_id):
            raise self.stale()

    def write(self, action: Callable[[TableTransaction], T]) -> T:
        def guarded(tx: TableTransaction) -> T:
            if not tx.execute(self._guard, self._row_id, self._task_id, self._now()):
                raise self.stale()
            return action(tx)

        return self._writer.write(guarded)

    def is_cancelled(self) -> bool:
        executions = "executions" if self._writer.dialect == "sqlite" else "holdfast.executions"

        def look(tx: TableTransaction) -> bool:
            found = tx.fetch(f"SELECT status FROM {executions} WHERE id = $1", self._row_id)
            return found == [(ExecutionStatus.CANCELLED.value,)]

        return self._writer.write(look)

    def stale(self) -> StaleLease:
        return StaleLease(
            f"{self._what} {self._row_id} is worked on by another attempt; {self._task_id} works in vain."
        )


class Beat:
    """Called between any two pieces of work: ends an attempt that is in vain, and gives a sign of life where
    nothing was written for long."""

    def __init__(self, ctx: Context, what: str, sign_of_life: Callable[[], object]) -> None:
        self._ctx = ctx
        self._what = what
        self._sign_of_life = sign_of_life
        self._due = time.monotonic() + HEARTBEAT_SECONDS

    def __call__(self) -> None:
        if self._ctx.lease_lost:
            raise StaleLease(f"{self._what} {self._ctx.execution_id} was cancelled, or goes on elsewhere.")
        if time.monotonic() >= self._due:
            self._sign_of_life()
            self._due = time.monotonic() + HEARTBEAT_SECONDS


def _order(task_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in task_id.split("-"))
