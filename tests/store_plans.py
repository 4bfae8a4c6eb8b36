"""How tests look at what a database does for a statement: its plan, and how many rows each part reads."""

import json
from collections.abc import Iterator
from typing import Any

FILL_EXECUTIONS = """
INSERT INTO executions (path, definition_id, lane, mode, workload, created_at)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
SELECT 'mail', 1, 'bulk', 'bulk', 'null', 0 FROM n
"""


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


async def explained(connection: Any, sql: str, *bindings: Any) -> list[dict[str, Any]]:
    """Every node of the plan, with what it did; what the statement wrote is taken back."""
    transaction = connection.transaction()
    await transaction.start()
    found = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *bindings)
    await transaction.rollback()
    return list(nodes(json.loads(found)[0]["Plan"]))


def rows_touched(node: dict[str, Any]) -> float:
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return (float(node["Actual Rows"]) + removed) * node["Actual Loops"]
