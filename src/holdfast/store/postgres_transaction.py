"""Handlers' transactions on PostgreSQL, each on a connection of its own.

The connections come from a pool apart from the store's, so that handlers, however many hold one, never
keep a heartbeat, a sweep or a report waiting. No row of ours is locked before the very end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from holdfast.core.errors import TransactionLost
from holdfast.store.handler_transaction import PlanRaised, planning
from holdfast.store.interface import BatchesLoader, ExecutionsPlan, JobsPlan
from holdfast.store.new_executions import Inserted, NewExecution
from holdfast.store.statements import open_for_too_long, refuse_transaction_control

log = logging.getLogger("holdfast.store")

T = TypeVar("T")
Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"

TRANSACTION_SECONDS_MAX = 30.0


class Writes(Protocol):
    """What a transaction needs of its store."""

    async def transactions_pool(self) -> asyncpg.Pool: ...

    def explained(self) -> contextlib.AbstractContextManager[None]: ...

    async def insert_in(
        self, db: Connection, executions: Sequence[NewExecution], now: float, *, apart: bool
    ) -> list[Inserted]: ...

    async def amend_in(
        self,
        db: Connection,
        ids: Sequence[int],
        plan: JobsPlan,
        now: float,
        batches: BatchesLoader | None = None,
        *,
        apart: bool,
    ) -> None: ...

    async def amend_executions_in(
        self,
        db: Connection,
        ids: Sequence[int],
        plan: ExecutionsPlan,
        now: float,
        batches: BatchesLoader | None = None,
        *,
        apart: bool,
    ) -> None: ...


class PostgresTransaction:
    def __init__(self, writes: Writes, *, seconds: float) -> None:
        self._writes = writes
        self._seconds = seconds
        self._db: Connection | None = None
        self._pool: asyncpg.Pool
        self._transaction: Any
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._one_at_a_time = asyncio.Lock()
        self._busy: asyncio.Future[Any] | None = None
        self._expired = False
        self._is_over = False

    async def execute(self, sql: str, arguments: Sequence[Any]) -> int:
        async def execute(db: Connection, seconds: float) -> int:
            refuse_transaction_control(sql)
            if arguments:
                return _changed(await db.execute(sql, *arguments, timeout=seconds))
            # Prepared, because PostgreSQL then takes one statement only: none can hide a COMMIT.
            statement = await db.prepare(sql, timeout=seconds)
            await statement.fetch(timeout=seconds)
            return _changed(statement.get_statusmsg())

        return await self._do(execute)

    async def fetch(self, sql: str, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        async def fetch(db: Connection, seconds: float) -> list[dict[str, Any]]:
            refuse_transaction_control(sql)
            return [dict(record) for record in await db.fetch(sql, *arguments, timeout=seconds)]

        return await self._do(fetch)

    async def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        async def execute(db: Connection, seconds: float) -> None:
            refuse_transaction_control(sql)
            await db.executemany(sql, rows, timeout=seconds)

        await self._do(execute)

    async def insert(self, executions: Sequence[NewExecution], now: float) -> list[Inserted]:
        return await self._do(lambda db, _: self._writes.insert_in(db, executions, now, apart=True))

    async def amend_job(
        self, queue_id: int, plan: JobsPlan, now: float, *, batches: BatchesLoader | None = None
    ) -> None:
        planned = planning(plan)
        await self._commit(
            lambda db: self._writes.amend_in(db, [queue_id], planned, now, batches, apart=True)
        )

    async def amend_execution(
        self, execution_id: int, plan: ExecutionsPlan, now: float, *, batches: BatchesLoader | None = None
    ) -> None:
        planned = planning(plan)
        await self._commit(
            lambda db: self._writes.amend_executions_in(db, [execution_id], planned, now, batches, apart=True)
        )

    async def _commit(self, amend: Callable[[Connection], Awaitable[None]]) -> None:
        async def amend_and_commit(db: Connection, _: float) -> None:
            async with db.transaction():  # a savepoint, so that a plan that raises lets go of its rows
                await amend(db)
            if self._timer is not None:
                self._timer.cancel()
            await self._transaction.commit()

        try:
            with self._writes.explained():
                await self._do(amend_and_commit)
        except PlanRaised as raised:
            raise raised.error from None
        except BaseException:
            await self._end()
            raise
        await self._end()

    async def rollback(self) -> None:
        await self._end()

    async def _do(self, action: Callable[[Connection, float], Awaitable[T]]) -> T:
        async with self._one_at_a_time:
            if self._db is None and not self._is_over:
                await self._begin()
            if self._is_over:  # while this waited for a connection, perhaps
                await self._give_up()
            if self._db is None or self._expired:
                raise self._lost()
            remaining = max(self._deadline - time.monotonic(), 0.001)
            try:
                return await self._in_a_task(action(self._db, remaining))
            except (TimeoutError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError) as error:
                if self._expired or time.monotonic() >= self._deadline:
                    self._expired = True
                    raise self._lost() from error
                raise

    async def _in_a_task(self, statement: Awaitable[T]) -> T:
        """So that it can be stopped without stopping whoever waits for it: the handler itself, perhaps."""
        self._busy = task = asyncio.ensure_future(statement)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            self._busy = None
        if task.cancelled():
            raise self._lost()
        return task.result()

    async def _begin(self) -> None:
        with self._writes.explained():
            self._pool = await self._writes.transactions_pool()
            db = await self._pool.acquire()
            try:
                self._transaction = db.transaction()
                await self._transaction.start()
            except BaseException:
                _cut(db)
                await self._pool.release(db)
                raise
        self._db = db
        self._deadline = time.monotonic() + self._seconds
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def _expire(self) -> None:
        """Nothing is under way: cut the connection, and the server rolls back. A statement that runs has a
        timeout of its own, which also tells the server to stop it."""
        self._expired = True
        if self._db is not None and self._busy is None:
            _cut(self._db)

    async def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._busy is not None:
            self._busy.cancel()  # a statement of a thread, or of a task, that outlives its attempt
        async with self._one_at_a_time:
            await self._give_up()

    async def _give_up(self) -> None:
        db, self._db = self._db, None
        if db is None:
            return
        try:
            if db.is_in_transaction():
                await self._transaction.rollback()
            await self._pool.release(db)
        except BaseException as error:
            # Cut off, it is rolled back by the server, and taken back by the pool.
            log.debug("A handler's connection could not be given back and is cut.", exc_info=True)
            _cut(db)
            with contextlib.suppress(Exception):
                await self._pool.release(db)
            if not isinstance(error, Exception):
                raise

    def _lost(self) -> TransactionLost:
        if self._expired:
            return open_for_too_long(self._seconds)
        return TransactionLost("The transaction has ended.", error_type="database_lock")


def _cut(db: Connection) -> None:
    with contextlib.suppress(asyncpg.InterfaceError):  # it broke by itself, and the pool has taken it back
        db.terminate()


def _changed(status: str) -> int:
    """The count in "INSERT 0 3" or "UPDATE 5"; 0 for statements that have none."""
    count = status.rpartition(" ")[2]
    return int(count) if count.isdigit() else 0
