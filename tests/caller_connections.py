"""Callers of submit with connections of their own: each kind of library, opened, in a transaction.

A kind is a block that commits at its end and rolls back where an error leaves it, as its library's own
blocks do; what it gives runs the caller's own SQL and is handed to submit.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import asyncpg
import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool


class Caller(NamedTuple):
    connection: Any
    execute: Callable[[str], Awaitable[Any]]


def for_sqlalchemy(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


@contextlib.asynccontextmanager
async def asyncpg_connection(url: str, **options: Any) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url, **options)
    try:
        async with connection.transaction():
            yield Caller(connection, connection.execute)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def asyncpg_without_statement_cache(url: str) -> AsyncIterator[Caller]:
    async with asyncpg_connection(url, statement_cache_size=0) as caller:
        yield caller


@contextlib.asynccontextmanager
async def asyncpg_begun_by_hand(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("BEGIN")
        yield Caller(connection, connection.execute)
        await connection.execute("COMMIT")
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield Caller(connection, connection.execute)


@contextlib.asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Caller]:
    """Its own implicit transaction: begun by the first statement, whatever that is."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Caller(connection, connection.execute)


@contextlib.asynccontextmanager
async def psycopg_async_block(url: str) -> AsyncIterator[Caller]:
    async with (
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
        connection.transaction(),
    ):
        yield Caller(connection, connection.execute)


@contextlib.asynccontextmanager
async def psycopg_sync(url: str, **options: Any) -> AsyncIterator[Caller]:
    with psycopg.connect(url, **options) as connection:

        async def execute(sql: str) -> None:
            connection.execute(sql)

        yield Caller(connection, execute)


@contextlib.asynccontextmanager
async def psycopg_as_in_django(url: str) -> AsyncIterator[Caller]:
    """Rows as dicts, and parameters bound by the client."""
    options = {"row_factory": psycopg.rows.dict_row, "cursor_factory": psycopg.ClientCursor}
    async with psycopg_sync(url, **options) as caller:
        yield caller


@contextlib.asynccontextmanager
async def psycopg_with_raw_cursors(url: str) -> AsyncIterator[Caller]:
    async with psycopg_sync(url, cursor_factory=psycopg.RawCursor) as caller:
        yield caller


@contextlib.asynccontextmanager
async def sqlalchemy_async_connection(url: str, driver: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(for_sqlalchemy(url, driver), poolclass=NullPool)
    async with engine.begin() as connection:
        yield Caller(connection, connection.exec_driver_sql)


@contextlib.asynccontextmanager
async def sqlalchemy_async_session(url: str, driver: str) -> AsyncIterator[Caller]:
    """Nothing begins the session's transaction but its first use."""
    engine = create_async_engine(for_sqlalchemy(url, driver), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield Caller(session, lambda sql: session.execute(sa.text(sql)))
        await session.commit()


@contextlib.asynccontextmanager
async def sqlalchemy_async_scoped_session(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(for_sqlalchemy(url, "asyncpg"), poolclass=NullPool)
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    try:
        yield Caller(session, lambda sql: session.execute(sa.text(sql)))
        await session.commit()
    finally:
        await session.remove()


@contextlib.asynccontextmanager
async def sqlalchemy_connection(url: str) -> AsyncIterator[Caller]:
    engine = sa.create_engine(for_sqlalchemy(url, "psycopg"), poolclass=NullPool)
    with engine.begin() as connection:

        async def execute(sql: str) -> None:
            connection.exec_driver_sql(sql)

        yield Caller(connection, execute)


@contextlib.asynccontextmanager
async def sqlalchemy_session(url: str) -> AsyncIterator[Caller]:
    engine = sa.create_engine(for_sqlalchemy(url, "psycopg"), poolclass=NullPool)
    with Session(engine) as session:

        async def execute(sql: str) -> None:
            session.execute(sa.text(sql))

        yield Caller(session, execute)
        session.commit()


@contextlib.asynccontextmanager
async def sqlalchemy_scoped_session(url: str) -> AsyncIterator[Caller]:
    """What web frameworks hand out."""
    engine = sa.create_engine(for_sqlalchemy(url, "psycopg"), poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))

    async def execute(sql: str) -> None:
        session.execute(sa.text(sql))

    try:
        yield Caller(session, execute)
        session.commit()
    finally:
        session.remove()


Kind = Callable[[str], AbstractAsyncContextManager[Caller]]

ASYNC_KINDS: dict[str, Kind] = {
    "asyncpg": asyncpg_connection,
    "asyncpg without a statement cache": asyncpg_without_statement_cache,
    "asyncpg begun by hand": asyncpg_begun_by_hand,
    "asyncpg pool": asyncpg_pool,
    "psycopg async": psycopg_async,
    "psycopg async block": psycopg_async_block,
    "sqlalchemy async connection, asyncpg": lambda url: sqlalchemy_async_connection(url, "asyncpg"),
    "sqlalchemy async connection, psycopg": lambda url: sqlalchemy_async_connection(url, "psycopg"),
    "sqlalchemy async session, asyncpg": lambda url: sqlalchemy_async_session(url, "asyncpg"),
    "sqlalchemy async session, psycopg": lambda url: sqlalchemy_async_session(url, "psycopg"),
    "sqlalchemy async scoped session": sqlalchemy_async_scoped_session,
}
SYNC_KINDS: dict[str, Kind] = {
    "psycopg": psycopg_sync,
    "psycopg as in Django": psycopg_as_in_django,
    "psycopg with raw cursors": psycopg_with_raw_cursors,
    "sqlalchemy connection": sqlalchemy_connection,
    "sqlalchemy session": sqlalchemy_session,
    "sqlalchemy scoped session": sqlalchemy_scoped_session,
}
KINDS = {**ASYNC_KINDS, **SYNC_KINDS}
# One for each way in which a statement is sent.
WAYS_OF_SENDING = (
    "asyncpg",
    "psycopg async",
    "psycopg",
    "sqlalchemy async session, asyncpg",
    "sqlalchemy async connection, psycopg",
    "sqlalchemy session",
)
