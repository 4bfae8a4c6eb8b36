"""The embedded store: SQLite in WAL mode with full durability.

One thread owns the connection that writes; every verb that writes is one hop to it and one
`BEGIN IMMEDIATE` transaction. A second thread reads. Other processes may use the same file: SQLite's
own lock keeps one writer at a time, and a change of `data_version` tells this process of their commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import apsw

from holdfast.core.audit import AuditEntry
from holdfast.core.errors import PermanentError, StoreUnavailable, StoreUnusable, StoreUrlInvalid
from holdfast.core.model import ClaimGroup, Event, ExecutionRow, JobRow, LeaseRef, WorkerRow
from holdfast.store import rows, sqlite_guard, sqlite_insert
from holdfast.store.admitting import Admitting
from holdfast.store.changes import Changes
from holdfast.store.choosing import waited_since
from holdfast.store.controlling import Controlling
from holdfast.store.handler_transaction import StoreTransaction
from holdfast.store.interface import (
    BatchesLoader,
    Beat,
    Condition,
    DefinitionRow,
    ExecutionFilter,
    ExecutionsPlan,
    JobFilter,
    JobsPlan,
    Locked,
)
from holdfast.store.lineage import Lineage
from holdfast.store.new_executions import Inserted, NewExecution, groups_of
from holdfast.store.numbering import Numbering
from holdfast.store.queries import listing, load_migrations, load_queries
from holdfast.store.sqlite_batches import SqliteBatches
from holdfast.store.sqlite_claim import SqliteClaim
from holdfast.store.sqlite_errors import in_our_words
from holdfast.store.sqlite_schema import COMPATIBILITY, bring_up_to_date
from holdfast.store.sqlite_stages import SqliteStages
from holdfast.store.sqlite_tables import SqliteTables
from holdfast.store.sqlite_tallies import SqliteTallies
from holdfast.store.sqlite_transaction import (
    TRANSACTION_SECONDS_MAX,
    SqliteTransaction,
    TransactionLine,
    open_here,
)
from holdfast.store.sqlite_waking import SqliteWaking
from holdfast.store.watching import Watching

T = TypeVar("T")

log = logging.getLogger("holdfast.store")

# Before this version a WAL reset could corrupt the database.
SQLITE_VERSION_MIN = "3.51.3"
BUSY_TIMEOUT_MS = 10_000
# A read that does not come back is made once more, elsewhere.
READ_SECONDS_MAX = (20.0, 60.0)
WAL_PAGES_BEFORE_CHECKPOINT = 4_000
JOBS_MAX = 1_000_000

_TABLES = {
    "definitions", "claim_groups", "executions", "jobs", "events", "workers", "limits", "pauses", "batches",
    "holdfast_tokens", "holdfast_audit", "holdfast_tallies", COMPATIBILITY,
}  # fmt: skip

# SQLite's locks do not cross a fork: a child that used an inherited file could delete the log under its
# parent, or the parent under it.
_opened_here: list[Path] = []
_inherited: set[Path] = set()


def _remember_inherited() -> None:
    _inherited.update(_opened_here)
    _opened_here.clear()
    _write_locks.clear()  # they may be held by threads that the child does not have


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remember_inherited)

# One for each file, whatever number of stores this process has open on it.
_write_locks: dict[Path, threading.Lock] = {}
_write_locks_guard = threading.Lock()


class SqliteStore(
    SqliteClaim,
    SqliteStages,
    SqliteBatches,
    SqliteTables,
    SqliteTallies,
    SqliteWaking,
    Controlling,
    Admitting,
    Watching,
    Lineage,
    Numbering,
):
    """Not `durable`, it is faster, and a power failure may cost the database: for what is thrown away."""

    transaction_seconds_max = TRANSACTION_SECONDS_MAX
    inserts_at_once = 1  # there is one writer

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None, durable: bool = True) -> None:
        self.url = url
        self._synchronous = "FULL" if durable else "OFF"
        self.path = _path_of(url)
        # Where it is now: the program may go to another folder while connections are still to be made.
        self._file = self.path.absolute()
        super().__init__(self._file)
        if not self.path.is_absolute():
            self.url = f"sqlite:///{quote(str(self._file))}"
        self._clock = clock or time.time
        self._sql = load_queries("sqlite")
        self._groups: dict[ClaimGroup, int] = {}
        self._writer_thread: ThreadPoolExecutor
        self._reader_thread: ThreadPoolExecutor
        self._writer: apsw.Connection
        self._reader: apsw.Connection
        self._is_open = False
        self._line: TransactionLine | None = None
        self.write_lock = _write_lock_of(self._file)
        self.write_wait_seconds = BUSY_TIMEOUT_MS / 1000
        self.own_tables = frozenset({*_TABLES, "holdfast_schema"})
        self._process = os.getpid()

    # opening and closing

    async def open(self, *, migrate: bool = True) -> None:
        check_sqlite_version(apsw.sqlite_lib_version())
        self._refuse_after_fork()
        self._writer_thread = ThreadPoolExecutor(1, "holdfast-sqlite-writer")
        self._reader_thread = ThreadPoolExecutor(1, "holdfast-sqlite-reader")
        self._asker_thread = ThreadPoolExecutor(1, "holdfast-sqlite-asker")
        try:
            await self._in_thread(self._writer_thread, lambda: self._open(migrate))
        except BaseException:
            self._shut_threads()
            raise
        self._is_open = True
        self._process = os.getpid()
        _opened_here.append(self._file.resolve())
        sqlite_guard.watch(self._file)

    def _open(self, migrate: bool) -> None:
        try:
            self._writer = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            try:
                # SQLite opens a file it may not write without a word, and only fails at the first write.
                if self._writer.readonly("main"):
                    raise apsw.ReadOnlyError("no right to write")
                self._refuse_foreign_tables()
                self._writer.execute("PRAGMA journal_mode = WAL")
                self._writer.execute(f"PRAGMA synchronous = {self._synchronous}")
                self._writer.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES_BEFORE_CHECKPOINT}")
                self._migrate(migrate)
                self._reader = self._connect(apsw.SQLITE_OPEN_READONLY)
            except BaseException:
                self._writer.close()
                raise
            self._data_version = self._read_data_version()
        except apsw.Error as error:
            raise self.explained(error) from error

    def _connect(self, flags: int) -> apsw.Connection:
        connection = apsw.Connection(str(self._file), flags=flags)
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        # One plan whatever is bound. Otherwise a statement is prepared anew whenever the time in it has
        # moved, and that takes several times as long as to run it.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        return connection

    def _refuse_after_fork(self) -> None:
        if self._file.resolve() in _inherited:
            raise StoreUnusable(
                f"The database {self.path} was open when this process was forked; using it here could"
                " lose what the other process has written.",
                guidance="Close it before the fork and open it in each process, or start processes by spawn.",
            )

    def _refuse_foreign_tables(self) -> None:
        """Before anything is written: the journal mode of another program's file is not ours to change."""
        tables = {name for (name,) in self._writer.execute("SELECT name FROM sqlite_schema")}
        if "holdfast_schema" not in tables and tables & _TABLES:
            raise StoreUnusable(
                f"The database {self.path} has tables of another program.",
                guidance="Give Holdfast a file of its own.",
            )

    def _migrate(self, migrate: bool) -> None:
        with self._transaction():
            bring_up_to_date(
                self._writer,
                load_migrations("sqlite"),
                migrate=migrate,
                where=str(self.path),
                now=self._clock(),
            )

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            _opened_here.remove(self._file.resolve())
            sqlite_guard.unwatch(self._file)
            if self._line is not None:
                line, self._line = self._line, None
                await line.close()
            await self._in_time(apsw.Connection.close)
            await self._in_thread(self._asker_thread, self._close_asker)
            await self._in_thread(self._writer_thread, self._writer.close)
            self._shut_threads()

    def _shut_threads(self) -> None:
        self._writer_thread.shutdown()
        self._reader_thread.shutdown()
        self._asker_thread.shutdown()

    async def now(self) -> float:
        return self._clock()

    # definitions

    async def save_definition(
        self, path: str, content: str, content_hash: str, now: float, source: str | None = None
    ) -> DefinitionRow:
        def save(db: apsw.Connection) -> DefinitionRow:
            db.execute(self._sql["save_definition"], (path, content_hash, content, now))
            row = DefinitionRow(*db.execute(self._sql["definition_by_hash"], (path, content_hash)).get)
            if source is not None:
                db.execute(self._sql["save_source"], (row.id, source))
            return row

        return await self._write(save)

    async def definition(self, definition_id: int) -> DefinitionRow | None:
        found = await self._read("definition", (definition_id,))
        return DefinitionRow(*found[0]) if found else None

    # workers

    async def announce_worker(self, worker: WorkerRow, *, forget_before: float) -> None:
        def announce(db: apsw.Connection) -> None:
            db.execute(self._sql["announce_worker"], rows.worker_columns(worker))
            db.execute(self._sql["forget_workers"], (forget_before,))

        await self._write(announce)

    async def retire_worker(self, worker_id: str) -> None:
        await self._write(lambda db: db.execute(self._sql["retire_worker"], (worker_id,)).fetchall())

    # writing

    async def insert(self, executions: Sequence[NewExecution], now: float) -> list[Inserted]:
        return await self._write(lambda db: self.insert_in(db, executions, now))

    def insert_in(
        self, db: apsw.Connection, executions: Sequence[NewExecution], now: float
    ) -> list[Inserted]:
        groups = self._group_ids(db, groups_of(executions))
        return sqlite_insert.insert(db, self._sql, executions, groups, now)

    async def heartbeat(self, beats: Sequence[Beat], now: float, lease_until: float | None) -> set[LeaseRef]:
        asked_at = time.monotonic()

        def extend(db: apsw.Connection) -> set[LeaseRef]:
            statement, waited = self._sql["heartbeat"], waited_since(asked_at)
            bound = (None if lease_until is None else lease_until + waited, now + waited)
            return {
                LeaseRef(beat.queue_id, beat.fence)
                for beat in beats
                if db.execute(statement, (*beat, *bound)).fetchall()
            }

        return await self._write(extend)

    async def amend_jobs(
        self,
        ids: Sequence[int],
        plan: JobsPlan,
        now: float,
        *,
        batches: BatchesLoader | None = None,
        skip_locked: bool = False,
    ) -> None:
        await self._write(lambda db: self.amend_in(db, ids, plan, now, batches))

    def amend_in(
        self,
        db: apsw.Connection,
        ids: Sequence[int],
        plan: JobsPlan,
        now: float,
        batches: BatchesLoader | None = None,
    ) -> None:
        locked = rows.locked(db.execute(self._sql["peek_jobs"], (json.dumps(list(ids)),)).fetchall())
        self._load_batches(db, {execution.batch_id for _, execution in locked}, batches)
        self._apply(db, plan(locked), now)

    def transaction(self) -> StoreTransaction:
        self._refuse_after_fork()
        if self._line is None:
            self._line = TransactionLine(self)
        return SqliteTransaction(self._line, seconds=self.transaction_seconds_max)

    def connect_writer(self) -> apsw.Connection:
        """A further connection that writes as durably as the store's own."""
        db = self._connect(apsw.SQLITE_OPEN_READWRITE)
        db.execute(f"PRAGMA synchronous = {self._synchronous}")
        return db

    def forget_groups(self) -> None:
        self._groups = {}

    async def amend_executions(
        self, ids: Sequence[int], plan: ExecutionsPlan, now: float, *, batches: BatchesLoader | None = None
    ) -> None:
        await self._write(lambda db: self.amend_executions_in(db, ids, plan, now, batches))

    def amend_executions_in(
        self,
        db: apsw.Connection,
        ids: Sequence[int],
        plan: ExecutionsPlan,
        now: float,
        batches: BatchesLoader | None = None,
    ) -> None:
        bound = (json.dumps(list(ids)),)
        executions = rows.execution_states(db.execute(self._sql["execution_states"], bound))
        jobs = rows.job_states(db.execute(self._sql["jobs_of_executions"], bound))
        self._load_batches(db, {execution.batch_id for execution in executions}, batches)
        self._apply(db, plan(executions, jobs), now)

    def _apply(self, db: apsw.Connection, changes: Changes, now: float) -> None:
        wanted = {item.group for item in changes.new_jobs} | {
            item.group for item in changes.jobs if item.group
        }
        groups = self._group_ids(db, wanted)

        def many(query: str, bindings: Iterable[tuple[Any, ...]]) -> None:
            db.executemany(self._sql[query], bindings)

        done = changes.completed
        many("complete_job", ((s.job_id, s.outcome_hash, s.output, now) for s in done))
        many("advance_execution", ((s.execution_id, s.status, s.stage, now) for s in done))
        many("insert_event", ((s.execution_id, s.events, now) for s in done))
        many("complete_job", ((*item, now) for item in changes.finished))
        many("supersede", changes.superseded)
        many("update_job", ((*rows.changed_job_columns(item, groups), now) for item in changes.jobs))
        many("update_execution", ((*rows.changed_execution_columns(e), now) for e in changes.executions))
        many("insert_job", ((*rows.new_job_columns(job, groups), now) for job in changes.new_jobs))
        many("insert_event", ((execution_id, body, now) for execution_id, body in changes.events))
        many("let_elements_through", ((*item, now) for item in changes.let_through))
        self._save(db, changes.batches)
        many("insert_audit", ((*entry, now) for entry in changes.audit))

    async def prune(self, finished_before: float, limit: int) -> int:
        def delete(db: apsw.Connection) -> int:
            ids = [id_ for (id_,) in db.execute(self._sql["finished_before"], (finished_before, limit))]
            for table in ("executions", "jobs", "events"):
                db.execute(self._sql[f"prune_{table}"], (json.dumps(ids),))
            db.execute(self._sql["prune_batches"], (finished_before,))
            return len(ids)

        return await self._write(delete)

    # reading

    async def batches_to_attend(self, after: int, limit: int) -> list[int]:
        return [id_ for (id_,) in await self._read("batches_to_attend", (after, limit))]

    async def held_jobs(
        self, batch_id: int, step: str, held_by: str, after: int, limit: int
    ) -> list[tuple[int, int]]:
        return list(await self._read("held_jobs", (batch_id, step, held_by, after, limit)))

    async def completed_at(self, execution_id: int, step: str) -> float | None:
        found: float | None = (await self._read("completed_at", (execution_id, step)))[0][0]
        return found

    async def jobs_of(self, execution_ids: Sequence[int]) -> list[JobRow]:
        condition = "j.execution_id IN (SELECT value FROM json_each({}))"
        found = await self._list("jobs", [(condition, json.dumps(list(execution_ids)))], JOBS_MAX)
        return [rows.job_row(row) for row in found]

    async def expired(self, now: float, limit: int) -> list[LeaseRef]:
        """Where there are any, asked again as a writer: whoever held the database, and kept heartbeats
        waiting with it, has let it go then."""
        if not await self._read("expired", (now, limit)):
            return []
        return await self._write(
            lambda db: [LeaseRef(*row) for row in db.execute(self._sql["expired"], (now, limit))]
        )

    async def overdue(self, now: float, limit: int) -> list[int]:
        return [id_ for (id_,) in await self._read("overdue", (now, limit))]

    async def peek_jobs(self, ids: Sequence[int]) -> list[Locked]:
        return rows.locked(await self._read("peek_jobs", (json.dumps(list(ids)),)))

    async def execution(self, execution_id: int) -> ExecutionRow | None:
        found = await self._list("executions", [("e.id = {}", execution_id)], 1)
        return rows.execution_row(found[0]) if found else None

    async def executions(self, query: ExecutionFilter) -> list[ExecutionRow]:
        found = await self._list("executions", query.conditions(), query.limit)
        return [rows.execution_row(row) for row in found]

    async def jobs(self, query: JobFilter) -> list[JobRow]:
        return [rows.job_row(row) for row in await self._list("jobs", query.conditions(), query.limit)]

    async def open_transactions(self) -> tuple[int, int]:
        return (0, 0)  # there is one writer: ids are in the order of the commits

    async def events(self, execution_id: int, after: str | None, limit: int) -> list[Event]:
        seen = rows.parse_event_id(after)
        found = await self._read("events", (execution_id, seen[0], limit + 1))
        return rows.events_after(found, seen, limit)

    # plumbing

    async def _rows(self, query: str, *values: object) -> Sequence[Sequence[Any]]:
        bound = tuple(json.dumps(value) if isinstance(value, list) else value for value in values)
        return await self._read(query, bound)

    def _group_ids(self, db: apsw.Connection, wanted: set[ClaimGroup]) -> dict[ClaimGroup, int]:
        """Ids of claim groups, made where they are missing."""
        if missing := wanted - self._groups.keys():
            db.executemany(self._sql["add_group"], sorted(missing))
            self._groups = rows.claim_groups(db.execute(self._sql["groups"]))
        return self._groups

    async def _write(self, action: Callable[[apsw.Connection], T]) -> T:
        def transact() -> T:
            try:
                with self._transaction():
                    return action(self._writer)
            except BaseException:
                self._groups = {}  # some may have been made in the transaction that is gone
                raise

        self._refuse_beside_own_transaction()
        return await self._on_writer(transact)

    def _refuse_beside_own_transaction(self) -> None:
        """A handler that has its transaction open and writes beside it would wait for itself."""
        transaction = open_here.get()
        if transaction is not None and transaction.holds(self.write_lock):
            raise PermanentError(
                "The handler writes to Holdfast's database while its ctx.transaction() is open: SQLite has"
                " one writer at a time.",
                error_type="validation_error",
                guidance="Make it a part of it, as in hf.submit(…, connection=tx), or do it before.",
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """One at a time in this process, so that its threads queue up instead of polling."""
        if not self.write_lock.acquire(timeout=self.write_wait_seconds):
            raise StoreUnavailable(
                f"The database {self.path} is held by another transaction of this process.",
                guidance="Nothing was written. It is safe to try again.",
            )
        try:
            with _Transaction(self._writer):
                yield
        finally:
            self.write_lock.release()

    async def _change(
        self, query: str, *bindings: Any, audit: AuditEntry | None = None, now: float = 0.0
    ) -> list[tuple[Any, ...]]:
        def change(db: apsw.Connection) -> list[tuple[Any, ...]]:
            found = db.execute(self._sql[query], bindings).fetchall()
            if found and audit is not None:
                db.execute(self._sql["insert_audit"], (*audit, now))
            return found

        return await self._write(change)

    async def _read(self, query: str, bindings: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return await self._reading(lambda db: db.execute(self._sql[query], bindings).fetchall())

    async def _list(self, query: str, conditions: list[Condition], limit: int) -> list[tuple[Any, ...]]:
        sql, values = listing(self._sql[query], conditions, limit, lambda _: "?")
        return await self._reading(lambda db: db.execute(sql, tuple(values)).fetchall())

    async def _reading(self, action: Callable[[apsw.Connection], T]) -> T:
        with self._in_words():
            return await self._in_time(action)

    async def _in_time(self, action: Callable[[apsw.Connection], T]) -> T:
        """On the reading connection. A read of a few rows has been seen to hang in it, and everybody who
        wanted to read after it with it."""
        for seconds in READ_SECONDS_MAX:
            read = partial(action, reader := self._reader)
            reading = asyncio.ensure_future(self._in_thread(self._reader_thread, read))
            try:
                await asyncio.wait([reading], timeout=seconds)
                if reading.done():
                    return reading.result()
            finally:
                reading.cancel()
            self._replace_reader(reader, seconds)
        raise StoreUnavailable(
            f"A read of {self.path} did not come back within {seconds:g} s.",
            guidance="Nothing was changed. It is safe to try again.",
        )

    def _replace_reader(self, stuck: apsw.Connection, seconds: float) -> None:
        if self._reader is stuck:  # another read may have found out before
            log.warning("A read of %s has not come back for %g s: a new connection.", self.path, seconds)
            self._reader_thread.shutdown(wait=False)
            stuck.interrupt()  # in case that it is only slow
            self._reader_thread = ThreadPoolExecutor(1, "holdfast-sqlite-reader")
            self._reader = self._connect(apsw.SQLITE_OPEN_READONLY)

    async def _on_writer(self, action: Callable[[], T]) -> T:
        with self._in_words():
            return await self._in_thread(self._writer_thread, action)

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        """For every use of an open store: a closed one, and SQLite's errors, told as ours."""
        if not self._is_open:
            raise StoreUnavailable(f"The store {self.path} is closed.", guidance="Open it first.")
        try:
            yield
        except apsw.Error as error:
            raise self.explained(error) from error

    async def _in_thread(self, thread: ThreadPoolExecutor, action: Callable[[], T]) -> T:
        if self._process != os.getpid():
            self._refuse_after_fork()
        return await asyncio.get_running_loop().run_in_executor(thread, action)

    def explained(self, error: apsw.Error) -> Exception:
        return in_our_words(error, self.path)


class _Transaction:
    """`BEGIN IMMEDIATE` … `COMMIT`; anything raised inside rolls all of it back."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            # A failed commit (a full disk, say) may leave the transaction open.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def _write_lock_of(path: Path) -> threading.Lock:
    with _write_locks_guard:
        return _write_locks.setdefault(path.resolve(), threading.Lock())


def check_sqlite_version(found: str) -> None:
    if tuple(map(int, found.split("."))) < tuple(map(int, SQLITE_VERSION_MIN.split("."))):
        raise StoreUnusable(
            f"SQLite {found} is too old: before {SQLITE_VERSION_MIN} it can corrupt a database in WAL mode.",
            guidance="Install a newer apsw: pip install -U apsw.",
        )


def _path_of(url: str) -> Path:
    name = unquote(url.removeprefix("sqlite:///").partition("?")[0])
    if not url.startswith("sqlite:///") or not name or str(Path(name)) == ":memory:" or "\0" in name:
        raise StoreUrlInvalid(
            f"{url!r} does not name a SQLite file.",
            guidance="Use sqlite:///file.db (relative) or sqlite:////folder/file.db (absolute).",
        )
    return Path(name)
