"""The database as it is: read without the engine, and the tables that the handlers write to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import asyncpg

from faults.processes import WorkerProcess
from running import eventually

COUNTERS = 8

_MAKE = (
    "CREATE TABLE effects (job bigint NOT NULL, execution bigint NOT NULL, step text NOT NULL,"
    " fence text NOT NULL)",
    "CREATE TABLE counters (id bigint PRIMARY KEY, n bigint NOT NULL)",
    *(f"INSERT INTO counters VALUES ({number}, 0)" for number in range(COUNTERS)),
)


async def make_tables(url: str) -> None:
    """`effects` has no unique key on purpose: an effect that happened twice must be seen twice."""
    if url.startswith("sqlite"):
        with apsw.Connection(url.removeprefix("sqlite:///")) as db:
            for statement in _MAKE:
                db.execute(statement)
        db.close()
        return
    connection = await asyncpg.connect(url)
    try:
        for statement in _MAKE:
            await connection.execute(statement)
    finally:
        await connection.close()


async def freeze(url: str, worker: WorkerProcess, within: float) -> None:
    """Stop it, but not in the middle of a write: with SQLite that would stop everybody."""

    def is_frozen_outside_a_write() -> bool:
        worker.freeze()
        if _can_be_written(url):
            return True
        worker.thaw()
        return False

    await eventually(is_frozen_outside_a_write, within)


def _can_be_written(url: str) -> bool:
    """Whether nobody holds SQLite's one write lock; PostgreSQL has none."""
    if not url.startswith("sqlite"):
        return True
    db = apsw.Connection(url.removeprefix("sqlite:///"))
    try:
        db.set_busy_timeout(1_000)
        db.execute("BEGIN IMMEDIATE")
        return True
    except apsw.BusyError:
        return False
    finally:
        db.close()


async def select(url: str, sql: str) -> list[Sequence[Any]]:
    """Rows of one statement; {schema} is where the engine's tables are."""
    if url.startswith("sqlite"):
        db = apsw.Connection(url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            db.set_busy_timeout(30_000)
            return db.execute(sql.format(schema="")).fetchall()
        finally:
            db.close()
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql.format(schema="holdfast."))]
    finally:
        await connection.close()
