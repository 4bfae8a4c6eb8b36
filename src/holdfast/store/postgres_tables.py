"""Tables of pipelines in PostgreSQL, in the project's schema: the store's connections for what is small, one
apart for what is not, with an event loop of its own in the thread that writes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from holdfast.store.tables import Row, TableSet, TableTransaction, versions_to_apply

T = TypeVar("T")
Connection: TypeAlias = Any

SCHEMA = "holdfast"
# Whoever makes tables has this lock until the end of the transaction.
_MAKING = 7_230_519_003_118_222

_PREFIX = re.compile(r"\bholdfast_(?=[a-z])")


def in_schema(sql: str) -> str:
    """`holdfast_name` as `holdfast.name`."""
    return _PREFIX.sub(f"{SCHEMA}.", sql)


class PostgresTables:
    dialect = "postgresql"

    async def _transact(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        raise NotImplementedError

    async def _fetch(self, sql: str, *bindings: Any) -> list[Any]:
        raise NotImplementedError

    async def make_tables(self, tables: TableSet) -> None:
        async def are_made(db: Connection) -> bool:
            return await _are_made(db, tables)

        if not await self._transact(are_made):
            await self._transact(lambda db: _make(db, tables))

    async def fetch_rows(self, sql: str, *arguments: Any) -> list[Row]:
        return [tuple(row) for row in await self._fetch(in_schema(sql), *arguments)]

    async def write_rows(self, sql: str, *arguments: Any) -> list[Row]:
        return await self.fetch_rows(sql, *arguments)


class _Transaction:
    def __init__(self, db: Connection, run: Callable[[Awaitable[Any]], Any]) -> None:
        self._db = db
        self._run = run

    def execute(self, sql: str, *arguments: Any) -> int:
        told: str = self._run(self._db.execute(in_schema(sql), *arguments))
        last = told.rpartition(" ")[2]
        return int(last) if last.isdecimal() else 0

    def fetch(self, sql: str, *arguments: Any) -> list[Row]:
        return [tuple(row) for row in self._run(self._db.fetch(in_schema(sql), *arguments))]

    def execute_many(self, sql: str, rows: Sequence[Row]) -> None:
        if rows:
            self._run(self._db.execute(in_schema(sql), *zip(*rows, strict=True)))


class PostgresTableWriter:
    dialect = "postgresql"

    def __init__(self, url: str) -> None:
        from holdfast.store.postgres import PostgresStore  # which has the part above in it

        self._explained = PostgresStore(url).explained
        self._runner = asyncio.Runner()
        try:
            with self._explained():
                self._db: Connection = self._run(PostgresStore(url).connect())
        except BaseException:
            self._runner.close()
            raise

    def _run(self, awaited: Awaitable[T]) -> T:
        async def wait() -> T:
            return await awaited

        return self._runner.run(wait())

    def make_tables(self, tables: TableSet) -> None:
        with self._explained():
            if not self._run(_are_made(self._db, tables)):
                transaction = self._db.transaction()
                self._run(transaction.start())
                try:
                    self._run(_make(self._db, tables))
                except BaseException:
                    self._run(transaction.rollback())
                    raise
                self._run(transaction.commit())

    def write(self, action: Callable[[TableTransaction], T]) -> T:
        with self._explained():
            transaction = self._db.transaction()
            self._run(transaction.start())
            try:
                answer = action(_Transaction(self._db, self._run))
            except BaseException:
                if not self._db.is_closed():
                    self._run(transaction.rollback())
                raise
            self._run(transaction.commit())
            return answer

    def close(self) -> None:
        try:
            self._db.terminate()
        finally:
            self._runner.close()


async def _are_made(db: Connection, tables: TableSet) -> bool:
    if not await db.fetchval("SELECT to_regclass('holdfast.tables') IS NOT NULL"):
        return False
    return not versions_to_apply(tables, await _version(db, tables))


async def _version(db: Connection, tables: TableSet) -> int | None:
    found: int | None = await db.fetchval("SELECT version FROM holdfast.tables WHERE name = $1", tables.name)
    return found


async def _make(db: Connection, tables: TableSet) -> None:
    await db.execute("SELECT pg_advisory_xact_lock($1)", _MAKING)
    await db.execute(
        "CREATE TABLE IF NOT EXISTS holdfast.tables (name text PRIMARY KEY, version int NOT NULL)"
    )
    for script in versions_to_apply(tables, await _version(db, tables)):
        await db.execute(in_schema(script))
    await db.execute(
        "INSERT INTO holdfast.tables VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET version = $2",
        tables.name,
        len(tables.versions),
    )
