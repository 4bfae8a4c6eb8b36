"""A look at a database before anything is done with it: what it is, how old its tables are, whether it
keeps what it is given. Nothing is made, migrated or changed, and a wrong database is left as it is.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec

from holdfast.store import postgres_schema, sqlite_schema, store_from_url
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres_connections import CONNECT_TIMEOUT_SECONDS
from holdfast.store.queries import can_be_used, load_migrations
from holdfast.store.sqlite import SqliteStore, check_sqlite_version

BUSY_TIMEOUT_MS = 2_000
COMMAND_TIMEOUT_SECONDS = 10.0

_POSTGRES_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes")


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """`foreign_tables` are those of another program where Holdfast's should be: opening it would be refused.
    `schema_oldest` is the oldest schema whose Holdfast may use it, where it says so.
    `unwritable` says why it cannot be written, empty where it can; `clock_lead_seconds` is how far the
    database's clock is ahead of this machine's, give or take `clock_error_seconds`."""

    kind: str
    version: str
    schema_found: int
    schema_known: int
    schema_oldest: int | None = None
    foreign_tables: tuple[str, ...] = ()
    unwritable: str
    settings: dict[str, str]
    clock_lead_seconds: float
    clock_error_seconds: float
    newest_event_at: float | None

    @property
    def can_be_used(self) -> bool:
        """As far as its schema is known here, or, where it is newer, it may be used without being known."""
        return can_be_used(self.schema_found, self.schema_known, self.schema_oldest)


async def inspect(url: str) -> Inspection:
    """What is there; a StoreError where the database cannot be reached or read."""
    store = store_from_url(url)
    if isinstance(store, PostgresStore):
        return await _inspect_postgres(store)
    assert isinstance(store, SqliteStore)
    check_sqlite_version(apsw.sqlite_lib_version())
    return await asyncio.to_thread(_inspect_sqlite, store)


def _inspect_sqlite(store: SqliteStore) -> Inspection:
    try:
        connection = _connect(store.path)
        try:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
            found, oldest, newest = 0, None, None
            foreign: tuple[str, ...] = tuple(sorted(tables & store.own_tables))
            if "holdfast_schema" in tables:
                foreign = ()
                found, oldest = sqlite_schema.schema_of(connection)
            if found:
                newest = connection.execute("SELECT at FROM events ORDER BY id DESC LIMIT 1").get
            mode: str = connection.execute("PRAGMA journal_mode").get
            return Inspection(
                kind="sqlite",
                version=apsw.sqlite_lib_version(),
                schema_found=found,
                schema_known=len(load_migrations("sqlite")),
                schema_oldest=oldest,
                foreign_tables=foreign,
                unwritable=_why_not_writable(connection),
                settings={"journal_mode": mode},
                clock_lead_seconds=0.0,
                clock_error_seconds=0.0,
                newest_event_at=newest,
            )
        finally:
            connection.close()
    except apsw.Error as error:
        raise store.explained(error) from error


def _connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)  # and never CREATE
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    return connection


def _why_not_writable(connection: apsw.Connection) -> str:
    if connection.readonly("main"):
        return "the file or its folder is read-only for this user"
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except apsw.BusyError:
        return f"another process has kept it locked for {BUSY_TIMEOUT_MS / 1000:.0f} s"
    except apsw.Error as error:
        return f"{type(error).__name__}: {error}"
    return ""


async def _inspect_postgres(store: PostgresStore) -> Inspection:
    with store.explained():
        connection = await asyncpg.connect(
            store.url, timeout=CONNECT_TIMEOUT_SECONDS, command_timeout=COMMAND_TIMEOUT_SECONDS
        )
        try:
            # Asked over an open connection, so that the journey is short and known.
            before, started = time.time(), time.monotonic()
            server: float = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
            journey = time.monotonic() - started
            found, oldest = await postgres_schema.schema_of(connection)
            newest = None
            if found:
                newest = await connection.fetchval("SELECT at FROM holdfast.events ORDER BY id DESC LIMIT 1")
            settings = {
                name: await connection.fetchval("SELECT current_setting($1)", name)
                for name in _POSTGRES_SETTINGS
            }
            return Inspection(
                kind="postgresql",
                version=await connection.fetchval("SELECT current_setting('server_version')"),
                schema_found=found,
                schema_known=len(load_migrations("postgresql")),
                schema_oldest=oldest,
                unwritable=await _why_not_writable_postgres(connection, found),
                settings=settings,
                clock_lead_seconds=server - (before + journey / 2),
                clock_error_seconds=journey / 2,
                newest_event_at=newest,
            )
        finally:
            connection.terminate()


async def _why_not_writable_postgres(connection: Any, schema_found: int) -> str:
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        return "the server is a standby, or still recovering"
    if await connection.fetchval("SELECT current_setting('transaction_read_only')") == "on":
        return "its transactions are read-only (default_transaction_read_only)"
    if schema_found and not await connection.fetchval(
        "SELECT has_table_privilege('holdfast.jobs', 'INSERT, UPDATE, DELETE')"
    ):
        return "this user has no right to write Holdfast's tables"
    return ""
