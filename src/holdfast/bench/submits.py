"""What a submit costs: from many callers that each wait for their own, in bulk, and as bare inserts.

    callers   100 of them in one program; each submits one execution, awaits it, and goes on to the next
    bulk      one caller, submit_many of 1,000 executions, one call after the other
    raw       the same rows, 1,000 executions a transaction, with no engine around them

The first execution of each database is submitted before the clock starts. For the raw loop it is also the
pattern: what the engine left of it, in all columns, is what the loop writes for every other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import apsw
import asyncpg

from holdfast.app import Holdfast
from holdfast.bench.places import Place
from holdfast.bench.raw_sqlite import SETTINGS
from holdfast.bench.scenarios import PIPELINE, Scenario, application

CALLERS = 100
BULK = 1_000
BELONGING = ("jobs", "events")


async def by_callers(place: Place, url: str, scenario: Scenario, count: int) -> float:
    async with application(url, scenario, lambda _: None) as app:
        await app.submit(PIPELINE, {"number": 0})
        await place.settle(url)
        numbers = iter(range(1, count + 1))
        started = time.perf_counter()
        await asyncio.gather(*(_caller(app, numbers) for _ in range(CALLERS)))
        return time.perf_counter() - started


async def _caller(app: Holdfast, numbers: Iterator[int]) -> None:
    for number in numbers:
        await app.submit(PIPELINE, {"number": number})


async def in_bulk(place: Place, url: str, scenario: Scenario, count: int) -> float:
    async with application(url, scenario, lambda _: None) as app:
        await app.submit(PIPELINE, {"number": 0})
        await place.settle(url)
        started = time.perf_counter()
        for numbers in _bulks(count):
            await app.submit_many(PIPELINE, [{"number": number} for number in numbers])
        return time.perf_counter() - started


async def raw(place: Place, url: str, scenario: Scenario, count: int) -> float:
    async with application(url, scenario, lambda _: None) as app:
        first = await app.submit(PIPELINE, {"number": 0})
    await place.settle(url)
    if place.store == "sqlite":
        return await _raw_sqlite(place, url, first.id, count)
    return await _raw_postgres(place, url, first.id, count)


def _bulks(count: int) -> Iterator[range]:
    for start in range(1, count + 1, BULK):
        yield range(start, min(start + BULK, count + 1))


def _workloads(numbers: range) -> list[str]:
    return [f'{{"number":{number}}}' for number in numbers]


async def _raw_postgres(place: Place, url: str, first: int, count: int) -> float:
    """One statement for all tables, whose plain values come from the rows of the first execution."""
    own = [name for name in await place.columns(url, "executions") if name != "workload"]
    parts = [
        f"added AS (INSERT INTO holdfast.executions (workload, {', '.join(own)})"
        f" SELECT w, {', '.join(f'x.{name}' for name in own)}"
        " FROM holdfast.executions x CROSS JOIN unnest($1::text[]) w WHERE x.id = $2 RETURNING id)"
    ]
    for table in BELONGING:
        names = [name for name in await place.columns(url, table) if name != "execution_id"]
        parts.append(
            f"{table} AS (INSERT INTO holdfast.{table} (execution_id, {', '.join(names)})"
            f" SELECT added.id, {', '.join(f'x.{name}' for name in names)}"
            f" FROM holdfast.{table} x CROSS JOIN added WHERE x.execution_id = $2 ORDER BY x.id, added.id)"
        )
    statement = f"WITH {', '.join(parts)} SELECT count(*) FROM added"
    db = await asyncpg.connect(url, server_settings={"jit": "off", "application_name": "raw"})
    try:
        prepared = await db.prepare(statement)
        started = time.perf_counter()
        for numbers in _bulks(count):
            await prepared.fetchval(_workloads(numbers), first)
        return time.perf_counter() - started
    finally:
        await db.close()


async def _raw_sqlite(place: Place, url: str, first: int, count: int) -> float:
    """executemany with the values of the first execution; ids follow one another, as nobody else writes."""
    own, [pattern] = await _pattern(place, url, "executions", f"id = {first}")
    add = _insertion("executions", own)
    at = own.index("workload")
    before, after = pattern[:at], pattern[at + 1 :]
    belonging = []
    for table in BELONGING:
        names, rows = await _pattern(place, url, table, f"execution_id = {first}")
        at = names.index("execution_id")
        belonging.append((_insertion(table, names), [(row[:at], row[at + 1 :]) for row in rows]))
    db = apsw.Connection(url.removeprefix("sqlite:///"))
    try:
        for setting in SETTINGS:
            db.execute(setting)
        started = time.perf_counter()
        for numbers in _bulks(count):
            db.execute("BEGIN IMMEDIATE")
            db.executemany(add, [(*before, workload, *after) for workload in _workloads(numbers)])
            last = db.last_insert_rowid()
            ids = range(last - len(numbers) + 1, last + 1)
            for statement, rows in belonging:
                for left, right in rows:
                    db.executemany(statement, [(*left, id_, *right) for id_ in ids])
            db.execute("COMMIT")
        return time.perf_counter() - started
    finally:
        db.close()


async def _pattern(place: Place, url: str, table: str, where: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The columns that are set in these rows, and their values."""
    names = await place.columns(url, table)
    rows = await place.fetch(url, f"SELECT {', '.join(names)} FROM {table} WHERE {where} ORDER BY id")
    used = [at for at in range(len(names)) if any(row[at] is not None for row in rows)]
    return [names[at] for at in used], [tuple(row[at] for at in used) for row in rows]


def _insertion(table: str, names: list[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' for _ in names)})"
