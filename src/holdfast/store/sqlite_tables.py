"""Tables of pipelines in SQLite: the store's own threads for what is small, a connection apart for what is
not.

A writer waits for its turn with the other connections of this process, as they do for each other, and with
other processes by SQLite's own lock. Between two of its transactions it lets the others go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

import apsw

from holdfast.core.errors import StoreUnavailable
from holdfast.store.sqlite_transaction import bindings_for
from holdfast.store.tables import Row, TableSet, TableTransaction, versions_to_apply

T = TypeVar("T")

CACHE_KILOBYTES = 16 * 1024


class SqliteTables:
    dialect = "sqlite"
    _asker_thread: ThreadPoolExecutor
    _asker: apsw.Connection | None = None

    async def _write(self, action: Callable[[apsw.Connection], T]) -> T:
        raise NotImplementedError

    async def _reading(self, action: Callable[[apsw.Connection], T]) -> T:
        raise NotImplementedError

    async def _in_thread(self, thread: ThreadPoolExecutor, action: Callable[[], T]) -> T:
        raise NotImplementedError

    def _in_words(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def _connect(self, flags: int) -> apsw.Connection:
        raise NotImplementedError

    async def make_tables(self, tables: TableSet) -> None:
        if not await self._reading(lambda db: _are_made(db, tables)):
            await self._write(lambda db: _make(db, tables))

    async def fetch_rows(self, sql: str, *arguments: Any) -> list[Row]:
        bound = bindings_for(sql, arguments)
        return await self._asking(lambda db: db.execute(sql, bound).fetchall())

    async def _asking(self, action: Callable[[apsw.Connection], T]) -> T:
        """On a connection of its own, made when it is needed: what is asked of the tables of pipelines may
        take seconds, and nobody who reads the store's own waits behind it."""

        def ask() -> T:
            if self._asker is None:
                self._asker = self._connect(apsw.SQLITE_OPEN_READONLY)
            return action(self._asker)

        with self._in_words():
            return await self._in_thread(self._asker_thread, ask)

    def _close_asker(self) -> None:
        if self._asker is not None:
            self._asker.close()
            self._asker = None

    async def write_rows(self, sql: str, *arguments: Any) -> list[Row]:
        bound = bindings_for(sql, arguments)
        return await self._write(lambda db: db.execute(sql, bound).fetchall())


class _Transaction:
    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def execute(self, sql: str, *arguments: Any) -> int:
        before = self._db.total_changes()
        self._db.execute(sql, bindings_for(sql, arguments)).fetchall()
        return self._db.total_changes() - before

    def fetch(self, sql: str, *arguments: Any) -> list[Row]:
        return self._db.execute(sql, bindings_for(sql, arguments)).fetchall()

    def execute_many(self, sql: str, rows: Sequence[Row]) -> None:
        self._db.executemany(sql, rows)


class SqliteTableWriter:
    dialect = "sqlite"

    def __init__(self, url: str) -> None:
        # Here, as these have the part above in them.
        from holdfast.store.sqlite import WAL_PAGES_BEFORE_CHECKPOINT, SqliteStore

        self._store = SqliteStore(url)
        try:
            self._db = self._store.connect_writer()
            # What goes into an index goes to any of its pages: with the usual cache each is read anew.
            self._db.execute(f"PRAGMA cache_size = -{CACHE_KILOBYTES}")
            self._db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES_BEFORE_CHECKPOINT}")
        except apsw.Error as error:
            raise self._store.explained(error) from error

    def make_tables(self, tables: TableSet) -> None:
        if not _are_made(self._db, tables):
            self._transact(lambda: _make(self._db, tables))

    def write(self, action: Callable[[TableTransaction], T]) -> T:
        return self._transact(lambda: action(_Transaction(self._db)))

    def _transact(self, action: Callable[[], T]) -> T:
        store = self._store
        if not store.write_lock.acquire(timeout=store.write_wait_seconds):
            raise StoreUnavailable(
                f"The database {store.path} is locked by another connection of this process.",
                guidance="Nothing was written. It is safe to try again once the cause is gone.",
            )
        try:
            self._db.execute("BEGIN IMMEDIATE")
            answer = action()
            self._db.execute("COMMIT")
            return answer
        except apsw.Error as error:
            raise store.explained(error) from error
        finally:
            if self._db.in_transaction:
                with suppress(apsw.Error):  # what is not rolled back is not committed either
                    self._db.execute("ROLLBACK")
            store.write_lock.release()

    def close(self) -> None:
        self._db.close()


def _are_made(db: apsw.Connection, tables: TableSet) -> bool:
    known = db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'holdfast_tables'").get
    return bool(known) and not versions_to_apply(tables, _version(db, tables))


def _version(db: apsw.Connection, tables: TableSet) -> int | None:
    found: int | None = db.execute("SELECT version FROM holdfast_tables WHERE name = ?", (tables.name,)).get
    return found


def _make(db: apsw.Connection, tables: TableSet) -> None:
    """Within a transaction that writes: another process may have been quicker."""
    db.execute(
        "CREATE TABLE IF NOT EXISTS holdfast_tables (name text PRIMARY KEY, version integer NOT NULL) STRICT"
    )
    for script in versions_to_apply(tables, _version(db, tables)):
        db.execute(script)
    db.execute("INSERT OR REPLACE INTO holdfast_tables VALUES (?, ?)", (tables.name, len(tables.versions)))
