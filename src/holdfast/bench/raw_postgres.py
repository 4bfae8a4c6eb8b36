"""The bare loop on PostgreSQL: one connection, set-based statements, one round trip per claim or end."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import asyncpg

from holdfast.bench.raw import BATCH, LEASE_SECONDS, Script, Turn

ADD_GROUP = """
INSERT INTO holdfast.claim_groups (handler, lane, rank, operation, limit_name, alone)
SELECT $1, lane, rank, operation, limit_name, alone FROM holdfast.claim_groups WHERE id = $2
RETURNING id
"""
CLAIM = """
WITH leased AS (
    UPDATE holdfast.jobs
    SET status = 'leased', attempts = attempts + 1, leases = leases + 1,
        fence = (leases + 1) || '-' || $3::text, lease_until = $2::float8 + $5::float8, last_heartbeat = $2,
        last_attempt_at = $2,
        worker_id = $4::text
    WHERE id = ANY (ARRAY(
        SELECT id FROM holdfast.jobs
        WHERE claim_group = $1 AND status IN ('queued', 'retry') AND held_by IS NULL AND available_at <= $2
        ORDER BY available_at, id LIMIT $6 FOR UPDATE SKIP LOCKED
    ))
    RETURNING id, execution_id, step, attempts
)
SELECT leased.*, e.workload FROM leased JOIN holdfast.executions e ON e.id = leased.execution_id
"""
# The rows of one turn, with all that happens to them, in one statement.
_COMPLETED = """
WITH job AS (
    UPDATE holdfast.jobs
    SET status = 'done', fence = NULL, lease_until = NULL, settled_fence = fence, settled_hash = $4::text,
        output = $5::text, finished_at = $3::float8
    WHERE id = ANY ($1::bigint[])
), event AS (
    INSERT INTO holdfast.events (execution_id, at, body)
    SELECT execution_id, $3::float8, $6::text FROM unnest($2::bigint[]) AS x (execution_id)
)"""
FINISH = f"""{_COMPLETED}
UPDATE holdfast.executions
SET status = 'completed', last_completed_stage = $7::text, error = NULL, finished_at = $3::float8
WHERE id = ANY ($2::bigint[])
"""
ADVANCE = f"""{_COMPLETED}, following AS (
    INSERT INTO holdfast.jobs (execution_id, step, round, claim_group, max_attempts, available_at, created_at)
    SELECT execution_id, $8::text, 1, $9::integer, $10::integer, $3::float8, $3::float8
    FROM unnest($2::bigint[]) AS x (execution_id)
)
UPDATE holdfast.executions SET last_completed_stage = $7::text WHERE id = ANY ($2::bigint[])
"""
RETRY = """
WITH job AS (
    UPDATE holdfast.jobs
    SET status = 'retry', fence = NULL, lease_until = NULL, settled_fence = fence, settled_hash = $4::text,
        available_at = $3::float8
    WHERE id = ANY ($1::bigint[])
), event AS (
    INSERT INTO holdfast.events (execution_id, at, body)
    SELECT execution_id, $3::float8, $5::text FROM unnest($2::bigint[]) AS x (execution_id)
)
UPDATE holdfast.executions SET error = $6::text, retry_history = $7::text, retry_count = $8::integer
WHERE id = ANY ($2::bigint[])
"""


async def run_raw_postgres(url: str, script: Script) -> float:
    db = await asyncpg.connect(
        url, max_cached_statement_lifetime=0, server_settings={"jit": "off", "application_name": "raw"}
    )
    try:
        loop = _Loop(db, script)
        await loop.prepare()
        return await loop.run()
    finally:
        await db.close()


class _Loop:
    def __init__(self, db: asyncpg.Connection, script: Script) -> None:
        self._db = db
        self._script = script
        self._groups: dict[str, int] = {}
        self._max_attempts = 1

    async def prepare(self) -> None:
        [(first_group, handler)] = await self._db.fetch("SELECT id, handler FROM holdfast.claim_groups")
        path = handler.partition("/")[0]
        self._groups = {self._script.steps[0]: first_group}
        for step in self._script.steps[1:]:
            self._groups[step] = await self._db.fetchval(ADD_GROUP, f"{path}/{step}", first_group)
        self._max_attempts = await self._db.fetchval("SELECT max_attempts FROM holdfast.jobs LIMIT 1")

    async def run(self) -> float:
        started = time.perf_counter()
        for number, step in enumerate(self._script.steps):
            while claimed := await self._claim(step, f"{number:012x}"):
                await self._settle(claimed)
        return time.perf_counter() - started

    async def _claim(self, step: str, token: str) -> list[Any]:
        worker_id = self._script.turns[step, 1].worker_id
        claimed: list[Any] = await self._db.fetch(
            CLAIM, self._groups[step], time.time(), token, worker_id, LEASE_SECONDS, BATCH
        )
        return claimed

    async def _settle(self, claimed: list[Any]) -> None:
        batches = self._script.batches(claimed)
        # A single statement is a transaction of its own.
        together = self._db.transaction() if len(batches) > 1 else contextlib.nullcontext()
        async with together:
            for turn, rows in batches:
                await self._settle_turn(turn, rows)

    async def _settle_turn(self, turn: Turn, rows: list[tuple[int, int]]) -> None:
        jobs, executions = zip(*rows, strict=True)
        bound = (jobs, executions, time.time(), turn.outcome_hash)
        if turn.error is not None:
            noted = (turn.error, turn.history, turn.attempt)
            await self._db.execute(RETRY, *bound, turn.settled, *noted)
        elif turn.following is None:
            await self._db.execute(FINISH, *bound, turn.output, turn.settled, turn.step)
        else:
            new = (turn.following, self._groups[turn.following], self._max_attempts)
            await self._db.execute(ADVANCE, *bound, turn.output, turn.settled, turn.step, *new)
