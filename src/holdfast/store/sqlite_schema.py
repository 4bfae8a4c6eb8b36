"""The tables of a SQLite database, made or brought up to date in one transaction.

Processes of an older Holdfast may have the file open meanwhile: their next statement is prepared anew. They
wait for this transaction as for any other that writes, and it for theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from holdfast.store.queries import Migration, check_schema_version, oldest_that_works, say_if_newer

COMPATIBILITY = "holdfast_compatibility"


def bring_up_to_date(
    db: apsw.Connection, migrations: Sequence[Migration], *, migrate: bool, where: str, now: float
) -> None:
    """Inside a transaction that writes."""
    db.execute(
        "CREATE TABLE IF NOT EXISTS holdfast_schema"
        " (version integer PRIMARY KEY, applied_at real NOT NULL) STRICT"
    )
    found, oldest = schema_of(db)
    check_schema_version(found, len(migrations), oldest=oldest, migrate=migrate, where=where)
    say_if_newer(found, len(migrations), where=where)
    for migration in migrations[found:]:
        db.execute(migration.sql)
        db.execute("INSERT INTO holdfast_schema VALUES (?, ?)", (migration.version, now))
    if migrations[found:] and _tells_who_may_use_it(db):
        db.execute(
            f"INSERT INTO {COMPATIBILITY} (version, oldest) VALUES (?, ?)",
            (len(migrations), oldest_that_works(migrations)),
        )


def schema_of(db: apsw.Connection) -> tuple[int, int | None]:
    """The version of a database that has `holdfast_schema`, and the oldest whose Holdfast may use it, where
    it says so."""
    found: int = db.execute("SELECT coalesce(max(version), 0) FROM holdfast_schema").get
    oldest: int | None = None
    if _tells_who_may_use_it(db):
        oldest = db.execute(f"SELECT oldest FROM {COMPATIBILITY} WHERE version = ?", (found,)).get
    return found, oldest


def _tells_who_may_use_it(db: apsw.Connection) -> bool:
    return bool(db.execute("SELECT count(*) FROM sqlite_schema WHERE name = ?", (COMPATIBILITY,)).get)
