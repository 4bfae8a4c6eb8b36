"""What a transaction for a handler can do: its SQL, and at its end the change that completes the step.

The plan of that change may turn out to lack something. The handler cannot be run again for that, so what a
plan raises leaves its transaction open, and the change can be tried anew; whatever else fails ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

from holdfast.store.changes import Changes
from holdfast.store.new_executions import Inserted, NewExecution

if TYPE_CHECKING:
    from holdfast.store.interface import BatchesLoader, ExecutionsPlan, JobsPlan

P = ParamSpec("P")


class PlanRaised(Exception):
    """What a plan raised, told from what the writing of its changes did."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def planning(plan: Callable[P, Changes]) -> Callable[P, Changes]:
    def planned(*rows: P.args, **named: P.kwargs) -> Changes:
        try:
            return plan(*rows, **named)
        except Exception as error:
            raise PlanRaised(error) from error

    return planned


class StoreTransaction(Protocol):
    """A transaction in which a handler's own SQL and the completion of its step commit together.

    It opens at the first statement and is bounded in time: after that everything it did is undone and
    every further call raises `TransactionLost`. What a statement raises is the database's own error.
    While it is open, other verbs of the store go on: on PostgreSQL it holds a connection of its own and
    no row of ours before its end; on SQLite, which has one writer at a time, they wait for its end.
    """

    async def execute(self, sql: str, arguments: Sequence[Any]) -> int:
        """How many rows the statement changed."""

    async def fetch(self, sql: str, arguments: Sequence[Any]) -> list[dict[str, Any]]: ...

    async def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None: ...

    async def insert(self, executions: Sequence[NewExecution], now: float) -> list[Inserted]: ...

    async def amend_job(
        self, queue_id: int, plan: JobsPlan, now: float, *, batches: BatchesLoader | None = None
    ) -> None:
        """As `amend_jobs` for one job, then commit. Where the plan raises, nothing is written, the rows are
        let go and it stays open: it may be tried again with what the plan lacked. Else it has ended."""

    async def amend_execution(
        self, execution_id: int, plan: ExecutionsPlan, now: float, *, batches: BatchesLoader | None = None
    ) -> None:
        """The same as `amend_executions` for one execution."""

    async def rollback(self) -> None:
        """End it with nothing kept; harmless where it has ended."""
