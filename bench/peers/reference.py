"""The yardstick of a sitting: a fixed small loop on PostgreSQL at the start, in the middle and at the end.

    python -m bench.peers.reference URL

It claims and completes rows of a table of its own, 500 in each transaction, over one connection; it prints
rows per second. Its figures say nothing of anybody: how far they are apart says how steady the machine was.
"""

from __future__ import annotations

import asyncio
import sys
import time

import asyncpg

ROWS = 20_000
BATCH = 500
CREATE = """
CREATE TABLE yardstick (id bigint PRIMARY KEY, state smallint NOT NULL, note text);
INSERT INTO yardstick SELECT n, 0, 'a row of some length' FROM generate_series(1, $ROWS) AS n;
CREATE INDEX ON yardstick (id) WHERE state = 0;
"""
CLAIM = """
UPDATE yardstick SET state = 1 WHERE id IN (
  SELECT id FROM yardstick WHERE state = 0 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
) RETURNING id
"""
COMPLETE = "UPDATE yardstick SET state = 2 WHERE id = ANY($1)"


async def rows_per_second(url: str) -> float:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(CREATE.replace("$ROWS", str(ROWS)))
        await connection.execute("VACUUM ANALYZE yardstick")
        await connection.execute("CHECKPOINT")
        claim = await connection.prepare(CLAIM)
        complete = await connection.prepare(COMPLETE)
        started = time.perf_counter()
        for _ in range(ROWS // BATCH):
            rows = await claim.fetch(BATCH)
            await complete.fetch([row["id"] for row in rows])
        return ROWS / (time.perf_counter() - started)
    finally:
        await connection.close()


if __name__ == "__main__":
    print(asyncio.run(rows_per_second(sys.argv[1])))
