"""Executions by the million: the engine makes one, and set-based statements copy its rows.

What a copy holds is what the engine left of the first one, table by table and column by column, so it stays
right when the schema changes. Only three things differ: the execution a row belongs to, the number in its
workload, and the time a job is due, each a microsecond after the one before it.
"""

from __future__ import annotations

from holdfast.bench import engine_run
from holdfast.bench.places import Place
from holdfast.bench.scenarios import PIPELINE, Scenario, application
from holdfast.engine import Submission

# In one transaction: enough to be fast, and no log of gigabytes.
COPIES_PER_TRANSACTION = 50_000
TABLES_OF_AN_EXECUTION = ("jobs", "events")


async def fill_queued(place: Place, url: str, scenario: Scenario, count: int, *, delay: float = 0.0) -> None:
    """As if `count` executions had been submitted, due after `delay` seconds."""
    async with application(url, scenario, lambda _: None) as app:
        submission = Submission(path=PIPELINE, workload={"number": 0}, delay_seconds=delay)
        [first] = await (await app.own_engine()).submit([submission])
    await _copy(place, url, first.id, count - 1)


async def fill_finished(place: Place, url: str, scenario: Scenario, count: int) -> None:
    """As if `count` executions had been submitted and run to their end."""
    await engine_run.run_one(url, scenario, lambda _: None)
    await _copy(place, url, await _last_execution(place, url), count - 1)


async def _copy(place: Place, url: str, original: int, copies: int) -> None:
    for start in range(1, copies + 1, COPIES_PER_TRANSACTION):
        before = await _last_execution(place, url)
        last = min(start + COPIES_PER_TRANSACTION - 1, copies)
        for statement in await _statements(place, url, original, before, start, last):
            await place.fetch(url, statement)


async def _statements(place: Place, url: str, original: int, before: int, start: int, last: int) -> list[str]:
    """The executions first; whatever belongs to them goes by the ids they were given."""
    executions = f"{place.schema}executions"
    columns = {name: f"x.{name}" for name in await place.columns(url, "executions")}
    columns["workload"] = """'{"number":' || n || '}'"""
    numbers = f"(SELECT {start} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
    statements = [
        f"WITH RECURSIVE numbers (n) AS {numbers}"
        f" INSERT INTO {executions} ({', '.join(columns)}) SELECT {', '.join(columns.values())}"
        f" FROM {executions} x CROSS JOIN numbers WHERE x.id = {original} ORDER BY n"
    ]
    for name in TABLES_OF_AN_EXECUTION:
        table = place.schema + name
        columns = {column: f"x.{column}" for column in await place.columns(url, name)}
        columns["execution_id"] = "e.id"
        if name == "jobs":
            columns["available_at"] = f"x.available_at + (e.id - {original}) * 1e-6"
        statements.append(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(columns.values())}"
            f" FROM {table} x JOIN {executions} e ON e.id > {before}"
            f" WHERE x.execution_id = {original} ORDER BY x.id, e.id"
        )
    return statements


async def _last_execution(place: Place, url: str) -> int:
    [[last]] = await place.fetch(url, f"SELECT max(id) FROM {place.schema}executions")
    return int(last)
