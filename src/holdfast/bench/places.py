"""Fresh databases to measure on, one kind per store, and the few plain questions asked of them.

Both keep the promises of production: SQLite with synchronous=FULL, PostgreSQL with fsync. Before a run
everything written so far is checkpointed, so that no run pays for the one before.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import apsw
import asyncpg

from holdfast.bench.postgres import TemporaryPostgres

TABLES = ("definitions", "claim_groups", "executions", "jobs", "events")


class Place(Protocol):
    """Where databases of one store are made."""

    store: str
    schema: str  # the prefix of table names

    def database(self) -> contextlib.AbstractAsyncContextManager[str]:
        """The address of an empty database, gone at the end of the block."""

    async def fetch(self, url: str, query: str) -> Sequence[Sequence[Any]]:
        """The rows of one query."""

    async def columns(self, url: str, table: str) -> list[str]:
        """Of one table of the engine, without its id and what the database works out itself."""

    async def maintain(self, url: str) -> None:
        """What the database does by itself some time after it was given many rows, done now."""

    async def settle(self, url: str) -> None:
        """Write to the tables what is still only in the log."""


class SqlitePlace:
    store = "sqlite"
    schema = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        path = self._folder / f"bench{next(self._numbers)}.db"
        try:
            yield f"sqlite:///{path}"
        finally:
            for file in self._folder.glob(f"{path.name}*"):
                file.unlink()

    async def fetch(self, url: str, query: str) -> list[tuple[Any, ...]]:
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    async def columns(self, url: str, table: str) -> list[str]:
        found = await self.fetch(url, f"SELECT name FROM pragma_table_info('{table}') WHERE name <> 'id'")
        return [name for (name,) in found]

    async def maintain(self, url: str) -> None:
        pass

    async def settle(self, url: str) -> None:
        await self.fetch(url, "PRAGMA wal_checkpoint(TRUNCATE)")


class PostgresPlace:
    store = "postgresql"
    schema = "holdfast."

    def __init__(self, server: TemporaryPostgres) -> None:
        self._server = server
        self._numbers = itertools.count(1)

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        name = f"bench{next(self._numbers)}"
        self._server.create_database(name)
        url = self._server.url(name)
        try:
            yield url
        finally:
            # Frees the disk at once. Dropping the database would wait for a checkpoint; the server, and all
            # that is left of its databases, goes when the sitting ends.
            await self.fetch(url, "DROP SCHEMA IF EXISTS holdfast CASCADE")

    async def fetch(self, url: str, query: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(url)
        try:
            found: list[asyncpg.Record] = await connection.fetch(query)
            return found
        finally:
            await connection.close()

    async def columns(self, url: str, table: str) -> list[str]:
        found = await self.fetch(
            url,
            "SELECT column_name FROM information_schema.columns"
            f" WHERE table_schema = 'holdfast' AND table_name = '{table}' AND column_name <> 'id'"
            " AND is_generated = 'NEVER'",
        )
        return [name for (name,) in found]

    async def maintain(self, url: str) -> None:
        await self.fetch(url, "VACUUM (ANALYZE)")  # as autovacuum would, in the middle of a run

    async def settle(self, url: str) -> None:
        await self.fetch(url, "CHECKPOINT")


async def row_counts(place: Place, url: str) -> dict[str, int]:
    """How many rows each table of the engine has."""
    counts = {}
    for table in TABLES:
        [[counts[table]]] = await place.fetch(url, f"SELECT count(*) FROM {place.schema}{table}")
    return counts


async def check_statuses(place: Place, url: str, expected: dict[str, int]) -> None:
    """A run that did not do all its work has no rate."""
    query = f"SELECT status, count(*) FROM {place.schema}executions GROUP BY status"
    found: dict[str, int] = dict(map(tuple, await place.fetch(url, query)))
    if found != expected:
        raise RuntimeError(f"Executions on {place.store} should be {expected}, and are {found}.")
