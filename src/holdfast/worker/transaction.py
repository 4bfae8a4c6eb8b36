"""`ctx.transaction()`: a handler's SQL that commits together with the completion of its step.

    async with ctx.transaction() as tx:             with ctx.transaction() as tx:      (plain functions)
        await tx.execute("INSERT …", a, b)              tx.execute("INSERT …", a, b)

The block only says where statements belong: what they did is committed after the handler has returned, in
one transaction with its completion. A block left by an error is rolled back. One transaction serves an
attempt, however many blocks it has.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.core.errors import InvalidInput, TransactionLost, TransactionUnavailable
from holdfast.core.model import Ack, Leased, Report

log = logging.getLogger("holdfast.worker")

T = TypeVar("T")

_RETURN_TO_SAVEPOINT = re.compile(r"\s*rollback\s+(?:(?:work|transaction)\s+)?to\b", re.IGNORECASE)


class OpenTransaction(Protocol):
    """The engine's side of it."""

    async def execute(self, sql: str, arguments: Sequence[Any]) -> int: ...

    async def fetch(self, sql: str, arguments: Sequence[Any]) -> list[dict[str, Any]]: ...

    async def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None: ...

    async def complete(self, report: Report, definition_id: int) -> Ack: ...

    async def rollback(self) -> None: ...


class AttemptTransaction:
    """The one transaction of an attempt, if its handler asks for one."""

    def __init__(self, begin: Callable[[], OpenTransaction], loop: asyncio.AbstractEventLoop) -> None:
        self._begin = begin
        self._loop = loop
        self._open: OpenTransaction | None = None
        self._under_way = 0
        self._one_ended = asyncio.Event()
        self._blocks = 0
        self._has_kept = False  # a block before this one ended well
        self._ended = False
        self.is_completing = False
        self.failed: BaseException | None = None
        """What makes it impossible to complete the attempt."""

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def enter(self) -> None:
        self._blocks += 1

    async def use(self, action: Callable[[OpenTransaction], Awaitable[T]], *, heals: bool = False) -> T:
        """`heals`: a return to a savepoint makes a statement that failed after it undone, and forgiven."""
        if self._ended:
            raise TransactionLost("The attempt has ended, and its transaction with it.", error_type="timeout")
        if self.failed is not None and not (heals and self._open is not None):
            raise TransactionLost(
                f"The transaction failed before, and what was done in it is undone: {self.failed}",
                error_type="database_lock",
            )
        if self._open is None:
            self._open = self._begin()
        self._under_way += 1
        try:
            answer = await action(self._open)
        except BaseException as error:
            self.failed = self.failed or error
            raise
        finally:
            self._under_way -= 1
            self._one_ended.set()
        if heals:
            self.failed = None
        return answer

    def in_thread(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """For plain functions, which run in a thread beside the event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(action(), self._loop).result()
        raise InvalidInput(
            "An async handler uses ctx.transaction() with a plain `with`.",
            guidance="Write `async with ctx.transaction() as tx:` and await its methods.",
        )

    async def leave(self, error: BaseException | None) -> None:
        """At the end of a block. A failed statement whose error was swallowed in the block is raised here:
        PostgreSQL would commit nothing, and say nothing."""
        self._blocks -= 1
        while error is None and self._under_way:  # a statement in a task: how it ends belongs to the block
            self._one_ended.clear()
            await self._one_ended.wait()
        swallowed = self.failed if error is None else None
        if error is None and swallowed is None:
            self._has_kept = self._has_kept or self._open is not None
            return
        # Asked and told before the rollback: a block that ends during it has lost what it did as well.
        others_are_lost = self._has_kept or self._blocks
        if others_are_lost:
            self.failed = error or swallowed
        await self._rollback()
        if not others_are_lost:
            self.failed = None  # the handler may go on without this block, or try another one
        if isinstance(swallowed, Exception):
            raise swallowed
        if (
            swallowed is not None
        ):  # a cancellation is not to be passed on to whoever has nothing to do with it
            raise TransactionLost(
                "A statement was cut off, and what was done is undone.", error_type="timeout"
            )

    async def complete(self, report: Report, job: Leased) -> Ack:
        assert self._open is not None
        self._ended = self.is_completing = True
        return await self._open.complete(report, job.definition_id)

    async def end(self) -> None:
        """The attempt has ended: nothing more may be done with it."""
        self._ended = True
        try:
            await self._rollback()
        except Exception:  # what is not rolled back is not committed either
            log.warning("A handler's transaction could not be rolled back in order.", exc_info=True)

    async def _rollback(self) -> None:
        transaction, self._open = self._open, None
        if transaction is not None:
            await transaction.rollback()


class AsyncStatements:
    """What `async with ctx.transaction()` gives."""

    def __init__(self, transaction: AttemptTransaction) -> None:
        self._transaction = transaction
        self._given: deque[tuple[str, Coroutine[Any, Any, Any]]] = deque()
        self.is_over = False

    def execute(self, sql: str, *arguments: Any) -> Coroutine[Any, Any, int]:
        """Run one statement; how many rows it changed."""
        heals = _RETURN_TO_SAVEPOINT.match(sql) is not None
        return self._use(sql, lambda tx: tx.execute(sql, arguments), heals=heals)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> Coroutine[Any, Any, None]:
        given = list(rows)
        return self._use(sql, lambda tx: tx.executemany(sql, given))

    def fetch(self, sql: str, *arguments: Any) -> Coroutine[Any, Any, list[dict[str, Any]]]:
        """Run one statement; its rows, each a dict by column name."""
        return self._use(sql, lambda tx: tx.fetch(sql, arguments))

    def fetchrow(self, sql: str, *arguments: Any) -> Coroutine[Any, Any, dict[str, Any] | None]:
        """The first row, or None."""

        async def first(tx: OpenTransaction) -> dict[str, Any] | None:
            return next(iter(await tx.fetch(sql, arguments)), None)

        return self._use(sql, first)

    def fetchval(self, sql: str, *arguments: Any) -> Coroutine[Any, Any, Any]:
        """The first column of the first row, or None."""

        async def value(tx: OpenTransaction) -> Any:
            row = next(iter(await tx.fetch(sql, arguments)), None)
            return None if row is None else next(iter(row.values()))

        return self._use(sql, value)

    def with_engine(self, action: Callable[[Any], Awaitable[T]]) -> Coroutine[Any, Any, T]:
        """For `hf.submit(…, connection=tx)`: the engine's own part of the transaction."""
        return self._use("submit", action)

    def _use(
        self, what: str, action: Callable[[Any], Awaitable[T]], *, heals: bool = False
    ) -> Coroutine[Any, Any, T]:
        if self.is_over:
            raise InvalidInput(
                "The block of ctx.transaction() that gave this has been left.",
                guidance="Put the statement into the block, or open another one.",
            )
        statement = self._transaction.use(action, heals=heals)
        while self._given and inspect.getcoroutinestate(self._given[0][1]) != inspect.CORO_CREATED:
            self._given.popleft()
        self._given.append((what, statement))
        return statement

    def leave(self) -> InvalidInput | None:
        """At the end of the block: what is wrong where a statement was never awaited, and so never run."""
        self.is_over = True
        forgotten = [
            (what, statement)
            for what, statement in self._given
            if inspect.getcoroutinestate(statement) == inspect.CORO_CREATED
        ]
        for _, statement in forgotten:
            statement.close()
        if not forgotten:
            return None
        return InvalidInput(
            f"A statement in ctx.transaction() was not awaited: {forgotten[0][0][:100]}",
            guidance="Write `await` before it; without it nothing is run.",
        )


class Statements:
    """What `with ctx.transaction()` gives: the same for plain functions."""

    def __init__(self, transaction: AttemptTransaction, statements: AsyncStatements) -> None:
        self._transaction = transaction
        self._async = statements

    def execute(self, sql: str, *arguments: Any) -> int:
        """Run one statement; how many rows it changed."""
        return self._transaction.in_thread(lambda: self._async.execute(sql, *arguments))

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._transaction.in_thread(lambda: self._async.executemany(sql, rows))

    def fetch(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        """Run one statement; its rows, each a dict by column name."""
        return self._transaction.in_thread(lambda: self._async.fetch(sql, *arguments))

    def fetchrow(self, sql: str, *arguments: Any) -> dict[str, Any] | None:
        """The first row, or None."""
        return self._transaction.in_thread(lambda: self._async.fetchrow(sql, *arguments))

    def fetchval(self, sql: str, *arguments: Any) -> Any:
        """The first column of the first row, or None."""
        return self._transaction.in_thread(lambda: self._async.fetchval(sql, *arguments))

    def in_loop(self, action: Callable[[AsyncStatements], Coroutine[Any, Any, T]]) -> T:
        """For `hf.submit_sync(…, connection=tx)`."""
        return self._transaction.in_thread(lambda: action(self._async))


class Transaction:
    """What `ctx.transaction()` returns: to be entered by `async with`, or by `with` in a plain function."""

    def __init__(self, transaction: AttemptTransaction) -> None:
        self._transaction = transaction
        self._statements: list[AsyncStatements] = []

    async def __aenter__(self) -> AsyncStatements:
        return self._entered()

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await self._left(error)

    def __enter__(self) -> Statements:
        self._transaction.in_thread(_nothing)  # refused at once where it cannot work
        return Statements(self._transaction, self._entered())

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._transaction.in_thread(lambda: self._left(error))

    def _entered(self) -> AsyncStatements:
        self._transaction.enter()
        self._statements.append(AsyncStatements(self._transaction))
        return self._statements[-1]

    async def _left(self, error: BaseException | None) -> None:
        forgotten = self._statements.pop().leave()
        await self._transaction.leave(error or forgotten)
        if error is None and forgotten is not None:
            raise forgotten


async def _nothing() -> None:
    """A round trip to the event loop."""


class Transactions:
    """A worker's way to open them for its attempts."""

    def __init__(self, begin: Callable[[], OpenTransaction], database: str | None = None) -> None:
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self.database = database
        """The address of the database; None where only a server is known."""

    def for_attempt(self) -> AttemptTransaction:
        return AttemptTransaction(self._begin, self._loop)


def unavailable(step: str) -> TransactionUnavailable:
    return TransactionUnavailable(
        f"Step {step} asked for ctx.transaction(), which works neither in a subprocess nor over HTTP.",
        error_type="validation_error",
        user_message="The step is set up wrongly",
        guidance="Run it in a worker that is connected to the database itself, without isolation by process.",
    )
