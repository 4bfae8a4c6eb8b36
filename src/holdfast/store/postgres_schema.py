"""The tables of a PostgreSQL database, made or brought up to date in one transaction.

Processes of an older Holdfast may be at work meanwhile. What a migration changes it must lock, and whoever
comes after it for the same table waits behind it, also where it only waits itself, for a long transaction or
a backup. So it waits briefly, gives up, lets the others go on, and tries again.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from holdfast.store.postgres_connections import Connection
from holdfast.store.queries import Migration, check_schema_version, oldest_that_works, say_if_newer

# Any number will do, as long as every Holdfast uses the same.
MIGRATION_LOCK = 7_236_401
MIGRATION_TIMEOUT_SECONDS = 24 * 3600.0
# How long the work of all others may stand still behind a migration that waits for one of them.
LOCK_SECONDS_MAX = 2.0
TRIES = 20
PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 2.0

_LONGEST = """
SELECT pid, coalesce(nullif(application_name, ''), 'unnamed'),
    extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
ORDER BY xact_start LIMIT 1"""


class InTheWay(Exception):
    """Somebody holds what a migration needs; nothing was changed."""


async def bring_up_to_date(db: Connection, migrations: Sequence[Migration], *, where: str) -> None:
    try:
        async with db.transaction():
            # Who comes second waits for the first one's whole migration, in nobody's way.
            await db.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            await db.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS_MAX * 1000:.0f}ms'")
            await _migrate(db, migrations, where)
    except asyncpg.LockNotAvailableError as error:
        raise InTheWay(f"{error}{await _longest(db)}") from error


async def _migrate(db: Connection, migrations: Sequence[Migration], where: str) -> None:
    if not await db.fetchval("SELECT to_regnamespace('holdfast') IS NOT NULL"):
        await db.execute("CREATE SCHEMA holdfast")  # only this needs rights on the database
    await db.execute(
        "CREATE TABLE IF NOT EXISTS holdfast.schema_version"
        " (version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
    )
    found = await check(db, len(migrations), migrate=True, where=where)
    for migration in migrations[found:]:
        # It may write a large table anew, which is nobody's fault.
        await db.execute(migration.sql, timeout=MIGRATION_TIMEOUT_SECONDS)
        await db.execute("INSERT INTO holdfast.schema_version VALUES ($1)", migration.version)
    if migrations[found:] and await _tells_who_may_use_it(db):
        await db.execute(
            "INSERT INTO holdfast.compatibility (version, oldest) VALUES ($1, $2)",
            len(migrations),
            oldest_that_works(migrations),
        )


async def check(db: Connection, known: int, *, migrate: bool, where: str) -> int:
    """The version that was found, where this Holdfast may use it."""
    found, oldest = await schema_of(db)
    check_schema_version(found, known, oldest=oldest, migrate=migrate, where=where)
    say_if_newer(found, known, where=where)
    return found


async def schema_of(db: Connection | asyncpg.Connection) -> tuple[int, int | None]:
    """The version of a database, 0 where it has none, and the oldest whose Holdfast may use it, where it says
    so."""
    if not await db.fetchval("SELECT to_regclass('holdfast.schema_version') IS NOT NULL"):
        return 0, None
    found: int = await db.fetchval("SELECT coalesce(max(version), 0) FROM holdfast.schema_version")
    oldest: int | None = None
    if await _tells_who_may_use_it(db):
        oldest = await db.fetchval("SELECT oldest FROM holdfast.compatibility WHERE version = $1", found)
    return found, oldest


async def _tells_who_may_use_it(db: Connection | asyncpg.Connection) -> bool:
    return bool(await db.fetchval("SELECT to_regclass('holdfast.compatibility') IS NOT NULL"))


async def _longest(db: Connection) -> str:
    """Who has been at it for longest, for people: it need not be the one that is waited for."""
    found = await db.fetchrow(_LONGEST)
    if found is None:
        return ""
    pid, name, seconds = found
    return f"; the longest transaction is that of process {pid} ({name}), for {seconds:.0f} s"
