"""How the databases find what playbooks with branches, elements and children ask for: none of it by reading
more than it is about."""

import json
from typing import Any

import apsw
import pytest

from holdfast.store.queries import load_queries
from holdfast.store.sqlite import SqliteStore
from running import run
from store_plans import FILL_EXECUTIONS, explained, rows_touched
from store_scenario import NOW, new, opened, raw, raw_connection, submit

MANY = 5_000
FEW = 20

# Very many executions with a done job, a waiting element and an ended child each; the first with a few more.
FILL = f"""
INSERT INTO jobs (execution_id, step, round, element, max_attempts, claim_group, available_at, created_at,
    input, held_by) SELECT id, 'fan', 1, 0, 3, 1, 0, 0, '1', 'for_each' FROM executions;
INSERT INTO jobs (execution_id, step, round, element, max_attempts, claim_group, available_at, created_at,
    input, held_by) SELECT 1, 'fan', 1, id, 3, 1, 0, 0, '1', 'for_each' FROM executions WHERE id <= {FEW};
INSERT INTO jobs (execution_id, step, round, element, max_attempts, claim_group, available_at, created_at,
    status, attempts, leases, output, finished_at)
    SELECT id, 'done', 1, 0, 3, 1, 0, 0, 'done', 1, 1, '1', 1 FROM executions;
INSERT INTO jobs (execution_id, step, round, element, max_attempts, claim_group, available_at, created_at,
    status, attempts, leases, output, finished_at)
    SELECT 1, 'done', 1, id, 3, 1, 0, 0, 'done', 1, 1, '1', 1 FROM executions WHERE id <= {FEW};
INSERT INTO jobs (execution_id, step, round, element, max_attempts, claim_group, available_at, created_at,
    parked, held_by)
    SELECT id, 'call', 1, -1, 3, 1, 0, 0, '{{"child":{{"path":"mail","key":"job ' || id || '"}}}}', 'child'
    FROM executions WHERE id <= {FEW};
INSERT INTO jobs (execution_id, step, round, element, max_attempts, claim_group, available_at, created_at,
    status, attempts, leases, output, finished_at)
    SELECT 1, 'step ' || id, 1, -1, 3, 1, 0, 0, 'done', 1, 1, '1', 1 FROM executions WHERE id > {FEW};
UPDATE executions SET parent_job = id, depth = 1, idempotency_key = 'job ' || id, status = 'completed',
    finished_at = 1 WHERE id > 1;
UPDATE executions SET status = 'running', finished_at = NULL, parent_job = 1 WHERE id > {MANY} - {FEW};
"""
QUERIES: dict[str, list[Any]] = {
    "step_outputs": [[1], ["done"]],
    "handed_inputs": [[1, 1], ["fan", "fan"], [3, 4]],
    "waiting_for_child": [0, None, 50],
    "orphans": [50],
    "children": [1, 50],
    "definition_version": ["mail", 1],
    "let_elements_through": [1, "fan", 1, 2, NOW],
    "supersede": [1, "done"],
}


@pytest.mark.parametrize("query", sorted(QUERIES))
def test_no_query_reads_more_rows_than_those_it_is_about(store_url: str, query: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new())
            await raw(store_url, FILL_EXECUTIONS.format(rows=MANY))
            for statement in filter(str.strip, FILL.split(";")):
                await raw(store_url, statement)
            await raw(store_url, "ANALYZE")
            if isinstance(store, SqliteStore):
                # Some machine steps for each row that it is about; all rows would be very many times that.
                assert steps_of(store, query) < FEW * 5 * 50
            else:
                assert await rows_read(store_url, query) <= FEW * 5

    run(main())


def steps_of(store: SqliteStore, query: str) -> int:
    steps: list[int] = []
    database = apsw.Connection(str(store.path))
    database.trace_v2(
        apsw.SQLITE_TRACE_PROFILE,
        lambda done: steps.append(done["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]),
    )
    bound = [json.dumps(value) if isinstance(value, list) else value for value in QUERIES[query]]
    database.execute(load_queries("sqlite")[query], bound).fetchall()
    database.close()
    return max(steps)


async def rows_read(url: str, query: str) -> float:
    """By the scan that reads most."""
    bound = QUERIES[query]
    if query in ("let_elements_through", "supersede"):  # many of them at once
        now = [NOW] if query == "let_elements_through" else []
        bound = [[value] for value in bound[: len(bound) - len(now)]] + now
    connection = await raw_connection(url)
    found = await explained(connection, load_queries("postgresql")[query], *bound)
    await connection.close()
    return max(rows_touched(node) for node in found if "Scan" in node["Node Type"])
