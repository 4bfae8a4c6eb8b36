"""Handlers' transactions on SQLite: one connection and one thread for them, taken in turns.

SQLite has one writer at a time, so two of them could not be open together anyway. A timer that needs no
event loop ends one that is open for too long: a handler that blocks everything else cannot keep the
database.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from enum import Enum
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import apsw

from holdfast.core.errors import InvalidInput, PermanentError, StoreUnavailable, TransactionLost
from holdfast.store.handler_transaction import PlanRaised, planning
from holdfast.store.interface import BatchesLoader, ExecutionsPlan, JobsPlan
from holdfast.store.new_executions import Inserted, NewExecution
from holdfast.store.statements import open_for_too_long, transaction_control

T = TypeVar("T")

TRANSACTION_SECONDS_MAX = 5.0
POLL_SECONDS = 0.1
ROWS_PER_LOOK = 1_000
STEPS_PER_LOOK = 10_000  # of SQLite's machine: a millisecond, more or less

# The transaction that is open in this context, so that a handler's other writes can say what is wrong.
open_here: ContextVar[SqliteTransaction | None] = ContextVar("open_here", default=None)

_NOT_CODE = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_NUMBERED = re.compile(r"\$(\d+)")
_WRITES = frozenset({apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE, apsw.SQLITE_DROP_TABLE})


class Writes(Protocol):
    """What a transaction needs of its store. `write_lock` is this process's place in SQLite's queue."""

    write_lock: threading.Lock
    own_tables: frozenset[str]
    write_wait_seconds: float

    def connect_writer(self) -> apsw.Connection: ...

    def explained(self, error: apsw.Error) -> Exception: ...

    def insert_in(
        self, db: apsw.Connection, executions: Sequence[NewExecution], now: float
    ) -> list[Inserted]: ...

    def amend_in(
        self,
        db: apsw.Connection,
        ids: Sequence[int],
        plan: JobsPlan,
        now: float,
        batches: BatchesLoader | None = None,
    ) -> None: ...

    def amend_executions_in(
        self,
        db: apsw.Connection,
        ids: Sequence[int],
        plan: ExecutionsPlan,
        now: float,
        batches: BatchesLoader | None = None,
    ) -> None: ...

    def forget_groups(self) -> None:
        """What was made in a transaction that is gone must not be remembered."""


class TransactionLine:
    """The thread, the connection, and whose turn it is."""

    def __init__(self, writes: Writes) -> None:
        self.writes = writes
        self.turn = asyncio.Lock()
        self.guard = threading.Lock()  # between the thread and the timer
        self.db: apsw.Connection
        self.current: SqliteTransaction | None = None
        self.not_before = 0.0  # of the monotonic clock
        self._handler_speaks = False
        self._connected = False
        self._thread = ThreadPoolExecutor(1, "holdfast-sqlite-transactions")

    async def run(self, action: Callable[[], T]) -> T:
        """On the thread, to its end: a begin or an end that a cancelled caller took away from the queue would
        leave the turn with nobody."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, action))

    def submit(self, action: Callable[[], None]) -> None:
        self._thread.submit(action)

    def connect(self) -> None:
        if not self._connected:
            self.db = self.writes.connect_writer()
            self.db.authorizer = self._authorize
            # Asked while a statement runs. An interrupt from the timer's thread would be forgotten where the
            # statement is just about to begin.
            self.db.set_progress_handler(self._must_stop, STEPS_PER_LOOK)
            self._connected = True

    def _must_stop(self) -> bool:
        return self.current is not None and self.current.is_expired

    def as_handler(self, action: Callable[[], T]) -> T:
        self._handler_speaks = True
        try:
            return action()
        except apsw.AuthError as error:
            raise PermanentError(
                f"This statement is not allowed in ctx.transaction() ({error}): it belongs to Holdfast's own"
                " tables, or changes the connection.",
                error_type="validation_error",
                guidance="Use tables of your own; look at executions and jobs through the API.",
            ) from error
        finally:
            self._handler_speaks = False

    def _authorize(self, operation: int, one: str | None, two: str | None, *_: str | None) -> int:
        if not self._handler_speaks:
            return apsw.SQLITE_OK
        if operation == apsw.SQLITE_TRANSACTION:
            raise transaction_control(one or "This")
        own = operation in _WRITES and one in self.writes.own_tables
        if own or operation in (apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH):
            return apsw.SQLITE_DENY
        if operation == apsw.SQLITE_PRAGMA and two is not None and one not in _HARMLESS_PRAGMAS:
            return apsw.SQLITE_DENY
        return apsw.SQLITE_OK

    def control(self, statement: str) -> None:
        """BEGIN, COMMIT or ROLLBACK. Not cached: the authorizer is not asked about a statement that is, and a
        handler could use it."""
        self.db.execute(statement, can_cache=False)

    async def close(self) -> None:
        if self.current is not None:
            await self.current.rollback()
        if self._connected:
            await self.run(self.db.close)
        self._thread.shutdown()


_HARMLESS_PRAGMAS = frozenset({"table_info", "table_xinfo", "index_list", "index_info", "defer_foreign_keys"})


class _State(Enum):
    NEW = "new"
    OPEN = "open"
    ENDING = "ending"  # the timer may not cut it off any more
    ENDED = "ended"


class SqliteTransaction:
    """Its state changes on the line's thread only."""

    def __init__(self, line: TransactionLine, *, seconds: float) -> None:
        self._line = line
        self._seconds = seconds
        self._state = _State.NEW
        self._has_turn = False
        self._is_over = False  # asked to end; a thread of the handler may not know it yet
        self._is_committed = False
        self.is_expired = False
        self._opened_at = 0.0
        self._timer: threading.Timer | None = None
        self._opening = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    async def execute(self, sql: str, arguments: Sequence[Any]) -> int:
        bindings = bindings_for(sql, arguments)

        def execute() -> int:
            db = self._line.db
            before = db.total_changes()
            for _ in db.execute(sql, bindings):
                pass
            return db.changes() if db.total_changes() != before else 0

        return await self._do(lambda: self._line.as_handler(execute))

    async def fetch(self, sql: str, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        bindings = bindings_for(sql, arguments)

        def fetch() -> list[dict[str, Any]]:
            cursor = self._line.db.execute(sql, bindings)
            names = _names(cursor)
            return [dict(zip(names, row, strict=True)) for row in cursor]

        return await self._do(lambda: self._line.as_handler(fetch))

    async def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        bindings = [bindings_for(sql, row) for row in rows]

        def execute() -> None:
            for start in range(0, len(bindings), ROWS_PER_LOOK):
                if self.is_expired:  # rows of few steps each are not asked
                    raise self._lost()
                self._line.db.executemany(sql, bindings[start : start + ROWS_PER_LOOK])

        await self._do(lambda: self._line.as_handler(execute))

    async def insert(self, executions: Sequence[NewExecution], now: float) -> list[Inserted]:
        return await self._do(lambda: self._line.writes.insert_in(self._line.db, executions, now))

    async def amend_job(
        self, queue_id: int, plan: JobsPlan, now: float, *, batches: BatchesLoader | None = None
    ) -> None:
        writes, planned = self._line.writes, planning(plan)
        await self._commit(lambda db: writes.amend_in(db, [queue_id], planned, now, batches))

    async def amend_execution(
        self, execution_id: int, plan: ExecutionsPlan, now: float, *, batches: BatchesLoader | None = None
    ) -> None:
        writes, planned = self._line.writes, planning(plan)
        await self._commit(lambda db: writes.amend_executions_in(db, [execution_id], planned, now, batches))

    async def _commit(self, amend: Callable[[apsw.Connection], None]) -> None:
        def amend_and_commit() -> None:
            with self._line.guard:
                self._state = _State.ENDING
            try:
                amend(self._line.db)
                self._line.control("COMMIT")
                self._is_committed = True
            except PlanRaised as raised:
                self._stay_open()
                raise raised.error from None
            except apsw.Error as error:
                raise self._line.writes.explained(error) from error
            finally:
                if self._state is _State.ENDING:
                    self._end()

        await self._do(amend_and_commit)

    def _stay_open(self) -> None:
        """For another try. Had the timer wanted to cut it off meanwhile, it is over."""
        with self._line.guard:
            self._state = _State.OPEN
            self.is_expired = time.monotonic() >= self._opened_at + self._seconds
        if self.is_expired:
            self._end()

    def holds(self, write_lock: threading.Lock) -> bool:
        return self._state is _State.OPEN and self._line.writes.write_lock is write_lock

    async def rollback(self) -> None:
        self._is_over = True
        if open_here.get() is self:
            open_here.set(None)
        if self._has_turn:
            await self._line.run(self._end)

    # On the line's thread.

    async def _do(self, action: Callable[[], T]) -> T:
        async with self._opening:
            if not self._has_turn:
                await self._line.turn.acquire()
                if self._is_over:
                    self._line.turn.release()
                    raise self._lost()
                self._has_turn = True
                open_here.set(self)
                await self._line.run(self._begin)

        def act() -> T:
            if self._state is not _State.OPEN or self.is_expired:
                raise self._lost()
            try:
                result = action()
            except BaseException as error:
                self._end_if_undone()
                if self.is_expired and isinstance(error, apsw.InterruptError):
                    raise self._lost() from None
                raise
            if self._end_if_undone():
                raise TransactionLost("A statement rolled the transaction back.", error_type="database_lock")
            return result

        return await self._line.run(act)

    def _end_if_undone(self) -> bool:
        """SQLite ends a transaction by itself at some errors (OR ROLLBACK, a full disk, a time limit); what
        came after would be committed on its own."""
        undone = self._state is _State.OPEN and not self._line.db.in_transaction
        if undone:
            self._end()
        return undone

    def _let_others_write(self) -> None:
        """Other processes poll for SQLite's lock, every 100 ms where it was held for long: without a pause
        transactions one after the other would leave them no moment to find it free."""
        self._line.current = None
        held = time.monotonic() - self._opened_at
        if held > POLL_SECONDS:
            self._line.not_before = time.monotonic() + max(1.5 * POLL_SECONDS, held / 10)

    def _begin(self) -> None:
        writes = self._line.writes
        time.sleep(max(0.0, self._line.not_before - time.monotonic()))
        if not writes.write_lock.acquire(timeout=writes.write_wait_seconds):
            self._give_up_turn()
            raise StoreUnavailable(
                "The database is locked by another transaction.",
                guidance="Nothing was written. It is safe to try again.",
            )
        try:
            self._line.connect()
            self._line.control("BEGIN IMMEDIATE")
        except BaseException as error:
            writes.write_lock.release()
            self._give_up_turn()
            if isinstance(error, apsw.Error):
                raise writes.explained(error) from error
            raise
        self._state = _State.OPEN
        self._opened_at = time.monotonic()
        self._line.current = self
        self._timer = threading.Timer(self._seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        with self._line.guard:
            if self._state not in (_State.OPEN, _State.ENDING):
                return
            self._state = _State.ENDED
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._line.db.in_transaction:
                self._line.control("ROLLBACK")
        finally:
            if not self._is_committed:
                self._line.writes.forget_groups()
            self._let_others_write()
            self._line.writes.write_lock.release()
            self._give_up_turn()

    def _give_up_turn(self) -> None:
        if self._state is _State.NEW:
            self._state = _State.ENDED
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._line.turn.release)

    def _expire(self) -> None:
        """On the timer's thread."""
        with self._line.guard:
            if self._state is not _State.OPEN:
                return
            self.is_expired = True
        self._line.submit(self._end)

    def _lost(self) -> TransactionLost:
        if self.is_expired:
            return open_for_too_long(self._seconds)
        return TransactionLost("The transaction has ended.", error_type="database_lock")


def bindings_for(sql: str, arguments: Sequence[Any]) -> Sequence[Any] | dict[str, Any]:
    """`$1, $2` as on PostgreSQL, or SQLite's own `?`."""
    highest = _highest_number(sql)
    if not highest:
        return tuple(arguments)
    if highest != len(arguments):
        raise InvalidInput(
            f"The statement has the places $1 to ${highest}, and {len(arguments)} values were given.",
            guidance="Give one value for each place.",
        )
    return {str(place): value for place, value in enumerate(arguments, 1)}


@lru_cache(maxsize=1_000)
def _highest_number(sql: str) -> int:
    return max((int(number) for number in _NUMBERED.findall(_NOT_CODE.sub("", sql))), default=0)


def _names(cursor: apsw.Cursor) -> list[str]:
    try:
        return [column[0] for column in cursor.getdescription()]
    except apsw.ExecutionCompleteError:
        return []
