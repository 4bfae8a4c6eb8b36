"""The store for many machines: PostgreSQL through asyncpg.

Statements are set-based: one array per column, one round trip per verb where it can be. Rows of an
execution change only while its row is locked, and rows are locked in the order of execution id and job
id, so two transactions cannot wait for each other in a ring. Claims and heartbeats skip locked rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg

from holdfast.core.audit import AuditEntry
from holdfast.core.errors import StoreUnavailable, StoreUnusable, StoreUrlInvalid
from holdfast.core.masking import mask_secrets
from holdfast.core.model import (
    ClaimGroup,
    Event,
    ExecutionRow,
    JobRow,
    LeaseRef,
    WorkerRow,
)
from holdfast.store import postgres_schema, rows
from holdfast.store.admitting import Admitting
from holdfast.store.changes import Changes
from holdfast.store.controlling import Controlling
from holdfast.store.exchange import OwnDatabase, hold, insertion
from holdfast.store.handler_transaction import StoreTransaction
from holdfast.store.interface import (
    BatchesLoader,
    Beat,
    Condition,
    ExecutionFilter,
    ExecutionsPlan,
    JobFilter,
    JobsPlan,
    Locked,
)
from holdfast.store.lineage import Lineage
from holdfast.store.new_executions import Inserted, NewExecution, groups_of, has_keys
from holdfast.store.numbering import Numbering
from holdfast.store.postgres_batches import PostgresBatches
from holdfast.store.postgres_claim import Offer, PostgresClaim
from holdfast.store.postgres_clock import Lead, ServerClock, lead_of
from holdfast.store.postgres_connections import CONNECT_TIMEOUT_SECONDS, GONE, Connection, Connections
from holdfast.store.postgres_definitions import PostgresDefinitions
from holdfast.store.postgres_stages import PostgresStages
from holdfast.store.postgres_tables import PostgresTables
from holdfast.store.postgres_tallies import PostgresTallies
from holdfast.store.postgres_transaction import TRANSACTION_SECONDS_MAX, PostgresTransaction
from holdfast.store.postgres_waking import PostgresWaking
from holdfast.store.queries import listing, load_migrations, load_queries
from holdfast.store.watching import Watching

T = TypeVar("T")

POSTGRES_VERSION_MIN = 140_000
POOL_SIZE_MAX = 8
JOBS_MAX = 1_000_000
DEADLOCK_TRIES = 5
PRUNE_LOOK_ROWS = 2_000
PRUNE_LOOKS_MAX = 20
COMMAND_TIMEOUT_SECONDS = 60.0

# A process that vanishes in the middle of a transaction must not keep its rows locked for hours.
_SESSION = {
    "application_name": "holdfast",
    "jit": "off",
    # A statement must see what was committed since the one before it, however the server is set up: locks are
    # taken first, and what they guard is read under them.
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "30s",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}

_REFUSED = (
    asyncpg.InvalidCatalogNameError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.ClientConfigurationError,
)
# libpq's other place for a password: …/database?password=…
_QUERY_PASSWORD = re.compile(r"(?i)([?&](?:ssl)?password=)[^&]*")
# The fault of a value or a row, which will be the same next time, and not of the server.
_ABOUT_THE_DATA = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
# The last one: a migration has changed a table since the statement was prepared.
_TRY_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.InvalidCachedStatementError)


class PostgresStore(
    PostgresClaim,
    PostgresDefinitions,
    PostgresStages,
    PostgresBatches,
    PostgresTables,
    PostgresTallies,
    PostgresWaking,
    Controlling,
    Admitting,
    Watching,
    Lineage,
    Numbering,
):
    transaction_seconds_max = TRANSACTION_SECONDS_MAX
    inserts_at_once = 2

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        super().__init__()
        self.url = url
        self._shown_url = _QUERY_PASSWORD.sub(r"\1***", mask_secrets(url))
        _check_url(url, self._shown_url)
        self._clock = clock
        self._server_clock = ServerClock(self._lead_of_server_clock)
        self._sql = load_queries("postgresql")
        self._groups: dict[ClaimGroup, int] = {}
        self._limited_offers: set[Offer] = set()
        self._identity: str | None = None
        self._pruned_up_to = 0
        self._connections: Connections | None = None
        self._transactions: asyncpg.Pool | None = None
        self._opening_transactions = asyncio.Lock()

    # opening and closing

    async def open(self, *, migrate: bool = True) -> None:
        with self.explained():
            self._connections = Connections(await self._new_pool(min_size=1, reset=_keep_session))
        try:
            await self._prepare(migrate)
        except BaseException:
            await self.close()
            raise

    async def _prepare(self, migrate: bool) -> None:
        """Processes of the version before may be at work, and a migration in their way: it is tried again."""
        pause = postgres_schema.PAUSE_SECONDS_MIN
        for tries_left in reversed(range(postgres_schema.TRIES)):
            try:
                async with self._acquire() as db:
                    return await self._migrate(db, migrate)
            except (*_TRY_AGAIN, postgres_schema.InTheWay) as error:
                if not tries_left:
                    raise StoreUnavailable(
                        f"The schema of {self._shown_url} could not be migrated: {error}",
                        guidance="Nothing was changed. Try again when long transactions and backups have"
                        " ended, or stop the other processes first.",
                    ) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, postgres_schema.PAUSE_SECONDS_MAX)

    async def connect(self) -> asyncpg.Connection:
        """A connection of the caller's own, set up as the store's are."""
        return await asyncpg.connect(
            self.url,
            timeout=CONNECT_TIMEOUT_SECONDS,
            command_timeout=COMMAND_TIMEOUT_SECONDS,
            server_settings=_SESSION,
        )

    async def _new_pool(self, **more: Any) -> asyncpg.Pool:
        return await asyncpg.create_pool(
            self.url,
            max_size=POOL_SIZE_MAX,
            timeout=CONNECT_TIMEOUT_SECONDS,
            max_cached_statement_lifetime=0,
            command_timeout=COMMAND_TIMEOUT_SECONDS,
            **{"server_settings": _SESSION, **more},
        )

    async def _migrate(self, db: Connection, migrate: bool) -> None:
        number: int = await db.fetchval("SELECT current_setting('server_version_num')::int")
        check_postgres_version(number)
        migrations = load_migrations("postgresql")
        if migrate:
            await postgres_schema.bring_up_to_date(db, migrations, where=self._shown_url)
        else:
            await postgres_schema.check(db, len(migrations), migrate=False, where=self._shown_url)

    async def close(self) -> None:
        await self._end_waking()
        await self._server_clock.close()
        if self._connections is not None:
            self._connections.close()
        if self._transactions is not None:
            self._transactions.terminate()
        self._connections = self._transactions = None

    @property
    def _is_open(self) -> bool:
        return self._connections is not None

    # the clock

    async def now(self) -> float:
        return await self._server_clock.now() if self._clock is None else self._clock()

    async def _lead_of_server_clock(self) -> Lead:
        async with self._acquire() as db:  # the wait for a connection says nothing about the clock
            return await lead_of(lambda: db.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8"))

    # workers

    async def announce_worker(self, worker: WorkerRow, *, forget_before: float) -> None:
        await self._query("announce_worker", *rows.worker_columns(worker))
        await self._query("forget_workers", forget_before)

    async def retire_worker(self, worker_id: str) -> None:
        await self._query("retire_worker", worker_id)

    # writing

    async def insert(self, executions: Sequence[NewExecution], now: float) -> list[Inserted]:
        is_ready = groups_of(executions) <= self._groups.keys()
        return await self._transact(
            lambda db: self.insert_in(db, executions, now),
            one_statement=is_ready and not has_keys(executions),
        )

    async def insert_in(
        self, db: Connection, executions: Sequence[NewExecution], now: float, *, apart: bool = False
    ) -> list[Inserted]:
        groups = await self._group_ids(db, groups_of(executions), apart=apart)
        return await hold(insertion(executions, groups, now), lambda sql, values: db.fetch(sql, *values))

    async def own_database(self, wanted: set[ClaimGroup]) -> OwnDatabase:
        """Which database this is, and its claim groups with these among them: for a submit in the
        transaction of a caller."""
        if self._identity is None:
            self._identity = (await self._query("facts"))[0][2]
        if wanted <= self._groups.keys():
            return OwnDatabase(self._identity, self._groups)
        return OwnDatabase(self._identity, await self._transact(lambda db: self._group_ids(db, wanted)))

    async def heartbeat(self, beats: Sequence[Beat], now: float, lease_until: float | None) -> set[LeaseRef]:
        columns = _columns(beats, width=3)
        return {LeaseRef(*row) for row in await self._query("heartbeat", *columns, lease_until, now)}

    async def amend_jobs(
        self,
        ids: Sequence[int],
        plan: JobsPlan,
        now: float,
        *,
        batches: BatchesLoader | None = None,
        skip_locked: bool = False,
    ) -> None:
        await self._transact(lambda db: self.amend_in(db, ids, plan, now, batches, skip_locked=skip_locked))

    async def amend_in(
        self,
        db: Connection,
        ids: Sequence[int],
        plan: JobsPlan,
        now: float,
        batches: BatchesLoader | None = None,
        *,
        skip_locked: bool = False,
        apart: bool = False,
    ) -> None:
        found = await db.fetch(self._sql["lock_jobs"] + (" SKIP LOCKED" if skip_locked else ""), ids)
        locked = rows.locked(found)
        await self._load_batches(db, {execution.batch_id for _, execution in locked}, batches)
        await self._apply(db, plan(locked), now, apart=apart)

    def transaction(self) -> StoreTransaction:
        return PostgresTransaction(self, seconds=self.transaction_seconds_max)

    async def transactions_pool(self) -> asyncpg.Pool:
        """Apart from the store's own: what handlers hold must not keep the engine waiting. Connections come
        back with their settings reset, since handlers may change them."""
        async with self._opening_transactions:
            if self._transactions is None:
                # Should this process not be able to tell the server to stop, it stops by itself.
                bound = {"statement_timeout": f"{TRANSACTION_SECONDS_MAX:g}s"}
                self._transactions = await self._new_pool(min_size=0, server_settings=_SESSION | bound)
        return self._transactions

    async def amend_executions(
        self, ids: Sequence[int], plan: ExecutionsPlan, now: float, *, batches: BatchesLoader | None = None
    ) -> None:
        await self._transact(lambda db: self.amend_executions_in(db, ids, plan, now, batches))

    async def amend_executions_in(
        self,
        db: Connection,
        ids: Sequence[int],
        plan: ExecutionsPlan,
        now: float,
        batches: BatchesLoader | None = None,
        *,
        apart: bool = False,
    ) -> None:
        executions = rows.execution_states(await db.fetch(self._sql["lock_executions"], ids))
        jobs = rows.job_states(await db.fetch(self._sql["lock_jobs_of_executions"], ids))
        await self._load_batches(db, {execution.batch_id for execution in executions}, batches)
        await self._apply(db, plan(executions, jobs), now, apart=apart)

    async def _apply(self, db: Connection, changes: Changes, now: float, *, apart: bool = False) -> None:
        wanted = {item.group for item in changes.new_jobs} | {
            item.group for item in changes.jobs if item.group
        }
        groups = await self._group_ids(db, wanted, apart=apart)
        if changes.completed:
            await db.execute(self._sql["complete_stages"], *_columns(changes.completed, width=7), now)
        if changes.finished:
            await db.execute(self._sql["finish_jobs"], *_columns(changes.finished, width=3), now)
        if changes.superseded:
            await db.execute(self._sql["supersede"], *_columns(changes.superseded, width=2))
        if changes.jobs:
            columns = _columns((rows.changed_job_columns(item, groups) for item in changes.jobs), width=15)
            await db.execute(self._sql["update_jobs"], *columns, now)
        if changes.executions:
            columns = _columns(map(rows.changed_execution_columns, changes.executions), width=11)
            await db.execute(self._sql["update_executions"], *columns, now)
        if changes.new_jobs:
            columns = _columns((rows.new_job_columns(job, groups) for job in changes.new_jobs), width=12)
            await db.execute(self._sql["insert_jobs"], *columns, now)
        if changes.events:
            await db.execute(self._sql["insert_events"], *_columns(changes.events, width=2), now)
        if changes.let_through:
            await db.execute(self._sql["let_elements_through"], *_columns(changes.let_through, width=4), now)
        await self._save(db, changes.batches)
        if changes.audit:
            await db.execute(self._sql["insert_audit"], *_columns(changes.audit, width=4), now)

    async def prune(self, finished_before: float, limit: int) -> int:
        pruned = 0
        for _ in range(PRUNE_LOOKS_MAX):
            bound = (finished_before, limit - pruned, self._pruned_up_to, PRUNE_LOOK_ROWS)
            [(found, last, is_old)] = await self._query("prune", *bound)
            pruned += found
            if pruned >= limit:
                break  # there may be more among those
            self._pruned_up_to = last if is_old else 0
            if not is_old:
                break
        await self._query("prune_batches", finished_before)
        return pruned

    # reading

    async def batches_to_attend(self, after: int, limit: int) -> list[int]:
        return [id_ for (id_,) in await self._query("batches_to_attend", after, limit)]

    async def held_jobs(
        self, batch_id: int, step: str, held_by: str, after: int, limit: int
    ) -> list[tuple[int, int]]:
        found = await self._query("held_jobs", batch_id, step, held_by, after, limit)
        return [(execution_id, job_id) for execution_id, job_id in found]

    async def completed_at(self, execution_id: int, step: str) -> float | None:
        found: float | None = (await self._query("completed_at", execution_id, step))[0][0]
        return found

    async def jobs_of(self, execution_ids: Sequence[int]) -> list[JobRow]:
        condition = "j.execution_id = ANY ({}::bigint[])"
        found = await self._list("jobs", [(condition, list(execution_ids))], JOBS_MAX)
        return [rows.job_row(row) for row in found]

    async def expired(self, now: float, limit: int) -> list[LeaseRef]:
        return [LeaseRef(*row) for row in await self._query("expired", now, limit)]

    async def overdue(self, now: float, limit: int) -> list[int]:
        return [id_ for (id_,) in await self._query("overdue", now, limit)]

    async def peek_jobs(self, ids: Sequence[int]) -> list[Locked]:
        return rows.locked(await self._query("peek_jobs", ids))

    async def execution(self, execution_id: int) -> ExecutionRow | None:
        found = await self._list("executions", [("e.id = {}", execution_id)], 1)
        return rows.execution_row(found[0]) if found else None

    async def executions(self, query: ExecutionFilter) -> list[ExecutionRow]:
        conditions = query.conditions() + self._by_index(query.batch_id, query.status)
        found = await self._list("executions", conditions, query.limit)
        return [rows.execution_row(row) for row in found]

    async def jobs(self, query: JobFilter) -> list[JobRow]:
        return [rows.job_row(row) for row in await self._list("jobs", query.conditions(), query.limit)]

    async def open_transactions(self) -> tuple[int, int]:
        [(oldest, following)] = await self._query("open_transactions")
        return oldest, following

    async def events(self, execution_id: int, after: str | None, limit: int) -> list[Event]:
        seen = rows.parse_event_id(after)
        found = await self._query("events", execution_id, seen[0], limit + 1)
        return rows.events_after(found, seen, limit)

    # plumbing

    async def _rows(self, query: str, *values: object) -> Sequence[Sequence[Any]]:
        return await self._query(query, *values)

    async def _group_ids(
        self, db: Connection, wanted: set[ClaimGroup], *, apart: bool = False
    ) -> dict[ClaimGroup, int]:
        """Ids of claim groups, made where they are missing, in sorted order so that two makers do not
        wait for each other. What this transaction made enters the cache only once it is read back by a
        later one: until then it may still be rolled back. With `apart` they are made in a transaction of
        their own: in a handler's, which may stay open, they would keep every other maker waiting."""
        if not (missing := wanted - self._groups.keys()):
            return self._groups
        if apart:
            return await self._transact(lambda own: self._group_ids(own, wanted))
        known = rows.claim_groups(await db.fetch(self._sql["groups"]))
        if not (new := missing - known.keys()):
            self._groups = known
            return known
        await db.execute(self._sql["add_groups"], *_columns(sorted(new), width=8))
        return rows.claim_groups(await db.fetch(self._sql["groups"]))

    async def _transact(
        self, action: Callable[[Connection], Awaitable[T]], *, one_statement: bool = False
    ) -> T:
        """What is `one_statement` is a transaction by itself: no round trips to begin and end it."""
        tries = 0
        while True:
            try:
                async with self._acquire() as db:
                    if one_statement:
                        return await action(db)
                    async with db.transaction():
                        return await action(db)
            except _TRY_AGAIN as error:
                tries += 1
                if tries == DEADLOCK_TRIES:
                    raise StoreUnavailable(
                        f"PostgreSQL at {self._shown_url} undid a transaction {tries} times: {error}",
                        guidance="Nothing was written. It is safe to try again.",
                    ) from error

    async def _change(
        self, query: str, *bindings: Any, audit: AuditEntry | None = None, now: float = 0.0
    ) -> list[asyncpg.Record]:
        async def change(db: Connection) -> list[asyncpg.Record]:
            found = list(await db.fetch(self._sql[query], *bindings))
            if found and audit is not None:
                await db.execute(self._sql["insert_audit"], *_columns([audit], width=4), now)
            return found

        return await self._transact(change)

    async def _list(self, query: str, conditions: list[Condition], limit: int) -> list[asyncpg.Record]:
        sql, values = listing(self._sql[query], conditions, limit, lambda place: f"${place}")
        return await self._fetch(sql, *values)

    async def _query(self, query: str, *bindings: Any) -> list[asyncpg.Record]:
        return await self._fetch(self._sql[query], *bindings)

    async def _fetch(self, sql: str, *bindings: Any) -> list[asyncpg.Record]:
        async with self._acquire() as db:
            found: list[asyncpg.Record] = await db.fetch(sql, *bindings)
            return found

    @contextlib.asynccontextmanager
    async def _acquire(self) -> AsyncIterator[Connection]:
        if self._connections is None:
            raise StoreUnavailable(f"The store {self._shown_url} is closed.", guidance="Open it first.")
        with self.explained():
            async with self._connections.one() as db:
                yield db

    @contextlib.contextmanager
    def explained(self) -> Any:
        try:
            yield
        except _REFUSED as error:
            raise StoreUnusable(
                f"PostgreSQL refused {self._shown_url}: {error}",
                guidance="Check the database name, the user, the password and the user's rights.",
            ) from error
        except GONE as error:
            raise StoreUnavailable(
                f"PostgreSQL at {self._shown_url} does not answer: {str(error) or type(error).__name__}",
                guidance="Check that it runs and can be reached. It is safe to try again.",
            ) from error
        except (*_TRY_AGAIN, *_ABOUT_THE_DATA):
            raise
        except asyncpg.PostgresError as error:
            raise StoreUnavailable(
                f"PostgreSQL at {self._shown_url} failed: {error}",
                guidance="See the server's log. It is safe to try again.",
            ) from error


async def _keep_session(_: Connection) -> None:
    """On its way back to the pool a connection needs no round trip: an open transaction was rolled back
    before this is called, one that was cut off has been reset, and a session here never changes settings,
    listens or takes session locks."""


def check_postgres_version(number: int) -> None:
    if number < POSTGRES_VERSION_MIN:
        raise StoreUnusable(
            f"PostgreSQL {number // 10_000} is too old; {POSTGRES_VERSION_MIN // 10_000} or later is needed.",
            guidance="Upgrade the server, or use SQLite.",
        )


def _check_url(url: str, shown: str) -> None:
    try:
        parts = urlsplit(url)
        valid = "://" in url and bool(parts.path.strip("/")) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise StoreUrlInvalid(
            f"{shown!r} does not name a PostgreSQL database.",
            guidance="Use postgresql://user:password@host:port/database.",
        )


def _columns(records: Iterable[tuple[Any, ...]], *, width: int) -> list[Sequence[Any]]:
    """Rows turned into one array per column."""
    return list(zip(*records, strict=True)) or [()] * width
