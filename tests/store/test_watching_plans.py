"""What /metrics asks the databases costs what is open, however much has ended."""

from typing import Any

import apsw
import pytest

from holdfast.store import Store
from holdfast.store.queries import listing, load_queries
from running import run
from store_plans import explained, rows_touched
from store_scenario import NOW, claim, new, opened, raw, raw_connection, submit

ENDED_ROWS = 20_000
OPEN_ROWS = 30
LEASED_ROWS = 10
STEPS_PER_OPEN_ROW = 200
ASKED = [
    "open_work", "held_work", "limit_rows", "running_executions", "failed_executions", "workers",
    "pause_rows", "tallies",
]  # fmt: skip

FILL_ENDED = """
INSERT INTO executions (path, definition_id, lane, mode, workload, status, created_at, finished_at)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
SELECT 'mail', 1, 'bulk', 'bulk', 'null', 'completed', 0, 1 FROM n
"""
FILL_DONE = """
INSERT INTO jobs (
    execution_id, step, round, max_attempts, claim_group, available_at, created_at, status, attempts, leases,
    output, finished_at
)
SELECT id, 'first', 1, 3, 1, 0, 0, 'done', 1, 1, 'null', 1 FROM executions WHERE status = 'completed'
"""


async def fill(url: str, store: Store) -> None:
    """A few are open, some of them leased; a great many have ended."""
    await submit(store, *[new() for _ in range(OPEN_ROWS)])
    assert len(await claim(store, limit=LEASED_ROWS)) == LEASED_ROWS
    await raw(url, FILL_ENDED.format(rows=ENDED_ROWS))
    await raw(url, FILL_DONE)


def asked(dialect: str, query: str) -> tuple[str, list[Any]]:
    mark = "?" if dialect == "sqlite" else "$1"
    sql = load_queries(dialect)[query]
    if "{where}" in sql:
        return listing(sql, [], 1_000, lambda _: mark)
    return sql, [NOW, 1_000] if query == "open_work" else []


@pytest.mark.parametrize("query", ASKED)
def test_no_question_of_metrics_walks_what_has_ended_on_postgresql(postgres_url: str, query: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await fill(postgres_url, store)
            await raw(postgres_url, "ANALYZE")  # as autovacuum does where so much was written
            connection = await raw_connection(postgres_url)
            sql, values = asked("postgresql", query)
            found = await explained(connection, sql, *values)
            await connection.close()
            assert max(map(rows_touched, found)) <= OPEN_ROWS * 2, query

    run(main())


@pytest.mark.parametrize("query", ASKED)
def test_no_question_of_metrics_walks_what_has_ended_on_sqlite(sqlite_url: str, query: str) -> None:
    steps: list[int] = []

    async def main() -> None:
        async with opened(sqlite_url) as store:
            await fill(sqlite_url, store)
            database = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
            database.trace_v2(
                apsw.SQLITE_TRACE_PROFILE,
                lambda done: steps.append(done["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]),
            )
            sql, values = asked("sqlite", query)
            database.execute(sql, tuple(values)).fetchall()
            database.close()

    run(main())
    assert max(steps) < OPEN_ROWS * STEPS_PER_OPEN_ROW


def test_executions_that_run_and_fail_are_counted_as_a_walk_over_all_of_them_would(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await fill(store_url, store)
            counts, quick = await store.execution_counts(), await store.open_executions()
            assert quick == {status: counts.get(status, 0) for status in quick}
            assert sum(quick.values()) == OPEN_ROWS

    run(main())
