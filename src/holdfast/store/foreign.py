"""Connections of callers: who is who, and how each library is given a statement.

Nothing is imported here that the caller has not imported: a library whose module is not loaded has made
no connection. All statements go through the caller's own library, never past it, so that a transaction
which the library begins by itself at the first statement is the one that is joined.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from holdfast.core.errors import InvalidInput
from holdfast.store.exchange import Exchange, Send, SendAsync, hold, hold_sync, in_savepoint
from holdfast.store.rows import Row

T = TypeVar("T")

ACCEPTED = (
    "Accepted are: an asyncpg Connection (also one from a pool), a psycopg 3 Connection or AsyncConnection, a"
    " SQLAlchemy Connection, Session, AsyncConnection or AsyncSession over asyncpg or psycopg."
)
_SQLALCHEMY_DRIVERS = frozenset({"asyncpg", "psycopg"})
_PLACEHOLDER = re.compile(r"\$(\d+)|%")


class Kind(NamedTuple):
    """A class of connections; `attach` gives the function that sends a statement on one of them."""

    module: str
    names: tuple[str, ...]
    attach: Callable[[Any], Any]
    is_async: bool
    how_to_begin: str

    def matches(self, connection: object) -> bool:
        module = sys.modules.get(self.module)
        classes = tuple(kind for name in self.names if isinstance(kind := getattr(module, name, None), type))
        return isinstance(connection, classes)


def kind_of(connection: object) -> Kind:
    for kind in _KINDS:
        if kind.matches(connection):
            return kind
    given = f"{type(connection).__module__}.{type(connection).__qualname__}".removeprefix("builtins.")
    raise InvalidInput(f"A {given} is not a connection that submit can join.", guidance=ACCEPTED)


def check_joinable(url: str, connection: object, *, synchronous: bool = False) -> None:
    """Refuse what cannot be joined, before anything is opened or encoded."""
    if url.partition(":")[0].lower() == "sqlite":
        raise InvalidInput(
            "This Holdfast keeps its jobs in SQLite; only one on PostgreSQL can join a transaction.",
            guidance='Use Holdfast("postgresql://…") with the database of the connection, or leave out'
            " `connection`.",
        )
    if kind_of(connection).is_async and synchronous:
        raise InvalidInput(
            f"A {type(connection).__name__} is asynchronous.",
            guidance="Write `await hf.submit(..., connection=...)`, or give a synchronous connection.",
        )


async def converse(connection: Any, exchange: Exchange[T]) -> T:
    """Hold the exchange in the connection's transaction. A synchronous connection keeps the event loop
    waiting, as every statement on it does."""
    kind = kind_of(connection)
    if not kind.is_async:
        return converse_sync(connection, exchange)
    send: SendAsync = await kind.attach(connection)
    return await hold(in_savepoint(exchange, how_to_begin=kind.how_to_begin), send)


def converse_sync(connection: Any, exchange: Exchange[T]) -> T:
    kind = kind_of(connection)
    send: Send = kind.attach(connection)
    return hold_sync(in_savepoint(exchange, how_to_begin=kind.how_to_begin), send)


# asyncpg


async def _asyncpg(connection: Any) -> SendAsync:
    record_class = sys.modules["asyncpg"].Record  # the caller may have set one of its own

    async def send(sql: str, values: Sequence[Any]) -> Sequence[Row]:
        found: list[Row] = await connection.fetch(sql, *values, record_class=record_class)
        return found

    return send


# psycopg: cursors of the plain kind, whatever factories the caller has set


def _psycopg(connection: Any) -> Send:
    psycopg = sys.modules["psycopg"]

    def send(sql: str, values: Sequence[Any]) -> Sequence[Row]:
        with psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(with_names(sql), _named(values))
            return cursor.fetchall() if cursor.description else ()

    return send


async def _psycopg_async(connection: Any) -> SendAsync:
    psycopg = sys.modules["psycopg"]

    async def send(sql: str, values: Sequence[Any]) -> Sequence[Row]:
        async with psycopg.AsyncCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(with_names(sql), _named(values))
            return await cursor.fetchall() if cursor.description else ()

    return send


# SQLAlchemy: the driver's own statements, through SQLAlchemy and so in its transaction


def _sqlalchemy(connection: Any) -> Send:
    adapt = _adaptation(connection)

    def send(sql: str, values: Sequence[Any]) -> Sequence[Row]:
        result = connection.exec_driver_sql(*adapt(sql, values))
        return result.fetchall() if result.returns_rows else ()

    return send


def _sqlalchemy_session(session: Any) -> Send:
    return _sqlalchemy(session.connection())


async def _sqlalchemy_async(connection: Any) -> SendAsync:
    adapt = _adaptation(connection)

    async def send(sql: str, values: Sequence[Any]) -> Sequence[Row]:
        result = await connection.exec_driver_sql(*adapt(sql, values))
        return result.fetchall() if result.returns_rows else ()

    return send


async def _sqlalchemy_async_session(session: Any) -> SendAsync:
    return await _sqlalchemy_async(await session.connection())


def _adaptation(connection: Any) -> Callable[[str, Sequence[Any]], tuple[str, Any]]:
    dialect = connection.dialect
    if dialect.name != "postgresql" or dialect.driver not in _SQLALCHEMY_DRIVERS:
        raise InvalidInput(
            f"This SQLAlchemy connection uses {dialect.name}+{dialect.driver}, which submit cannot join.",
            guidance=ACCEPTED,
        )
    if dialect.driver == "asyncpg":
        return lambda sql, values: (sql, tuple(values))
    return lambda sql, values: (with_names(sql), _named(values))


@cache
def with_names(sql: str) -> str:
    """`$1` as psycopg writes it; a number may stand in several places, so it becomes a name."""
    return _PLACEHOLDER.sub(lambda found: f"%(p{found[1]})s" if found[1] else "%%", sql)


def _named(values: Sequence[Any]) -> dict[str, Any]:
    return {f"p{number}": value for number, value in enumerate(values, 1)}


_BLOCK = "Write `{}with connection.transaction():` around what belongs together."
_IN_DJANGO = "In Django that is `transaction.atomic()`."
_IN_SQLALCHEMY = (
    "Begin one, for example by `engine.begin()`, and do not set the isolation level AUTOCOMMIT for it."
)
_KINDS = (
    Kind("asyncpg", ("Connection",), _asyncpg, True, _BLOCK.format("async ")),
    Kind("asyncpg.pool", ("PoolConnectionProxy",), _asyncpg, True, _BLOCK.format("async ")),
    Kind("psycopg", ("Connection",), _psycopg, False, f"{_BLOCK.format('')} {_IN_DJANGO}"),
    Kind("psycopg", ("AsyncConnection",), _psycopg_async, True, _BLOCK.format("async ")),
    Kind("sqlalchemy", ("Connection",), _sqlalchemy, False, _IN_SQLALCHEMY),
    Kind("sqlalchemy.orm", ("Session", "scoped_session"), _sqlalchemy_session, False, _IN_SQLALCHEMY),
    Kind("sqlalchemy.ext.asyncio", ("AsyncConnection",), _sqlalchemy_async, True, _IN_SQLALCHEMY),
    Kind(
        "sqlalchemy.ext.asyncio",
        ("AsyncSession", "async_scoped_session"),
        _sqlalchemy_async_session,
        True,
        _IN_SQLALCHEMY,
    ),
)
