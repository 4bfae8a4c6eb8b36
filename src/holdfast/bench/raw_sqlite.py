"""The bare loop on SQLite: one connection, the store's own durability, executemany."""

from __future__ import annotations

import time
from typing import Any

import apsw

from holdfast.bench.raw import BATCH, LEASE_SECONDS, Script, Turn

# As the store sets them.
SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA wal_autocheckpoint = 4000",
)

ADD_GROUP = """
INSERT INTO claim_groups (handler, lane, rank, operation, limit_name, alone)
SELECT ?1, lane, rank, operation, limit_name, alone FROM claim_groups WHERE id = ?2
"""
CLAIM = """
UPDATE jobs
SET status = 'leased', attempts = attempts + 1, leases = leases + 1, fence = (leases + 1) || '-' || ?3,
    lease_until = ?2 + ?5, last_heartbeat = ?2, last_attempt_at = ?2, worker_id = ?4
WHERE id IN (
    SELECT id FROM jobs
    WHERE claim_group = ?1 AND status IN ('queued', 'retry') AND held_by IS NULL AND available_at <= ?2
    ORDER BY available_at, id LIMIT ?6
)
RETURNING id, execution_id, step, attempts, (SELECT workload FROM executions e WHERE e.id = execution_id)
"""
LOG = "INSERT INTO events (execution_id, at, body) VALUES (?, ?, ?)"
COMPLETE = """
UPDATE jobs
SET status = 'done', fence = NULL, lease_until = NULL, settled_fence = fence, settled_hash = ?2, output = ?3,
    finished_at = ?4
WHERE id = ?1
"""
RETRY = """
UPDATE jobs
SET status = 'retry', fence = NULL, lease_until = NULL, settled_fence = fence, settled_hash = ?2,
    available_at = ?3
WHERE id = ?1
"""
FINISH = """
UPDATE executions SET status = 'completed', last_completed_stage = ?2, error = NULL, finished_at = ?3
WHERE id = ?1
"""
ADVANCE = "UPDATE executions SET last_completed_stage = ?2 WHERE id = ?1"
NOTE_ERROR = "UPDATE executions SET error = ?2, retry_history = ?3, retry_count = ?4 WHERE id = ?1"
NEXT_JOB = """
INSERT INTO jobs (execution_id, step, round, claim_group, max_attempts, available_at, created_at)
VALUES (?, ?, 1, ?, ?, ?, ?)
"""


async def run_raw_sqlite(url: str, script: Script) -> float:
    db = apsw.Connection(url.removeprefix("sqlite:///"))
    try:
        for setting in SETTINGS:
            db.execute(setting)
        return _Loop(db, script).run()
    finally:
        db.close()


class _Loop:
    def __init__(self, db: apsw.Connection, script: Script) -> None:
        self._db = db
        self._script = script
        groups: list[tuple[int, str]] = db.execute("SELECT id, handler FROM claim_groups").fetchall()  # type: ignore[assignment]
        [(first_group, handler)] = groups
        path = handler.partition("/")[0]
        self._groups = {script.steps[0]: first_group}
        for step in script.steps[1:]:
            db.execute(ADD_GROUP, (f"{path}/{step}", first_group))
            self._groups[step] = db.last_insert_rowid()
        self._max_attempts: int = db.execute("SELECT max_attempts FROM jobs LIMIT 1").get

    def run(self) -> float:
        started = time.perf_counter()
        for number, step in enumerate(self._script.steps):
            while claimed := self._claim(step, f"{number:012x}"):
                self._settle(claimed)
        return time.perf_counter() - started

    def _claim(self, step: str, token: str) -> list[Any]:
        db, turns, now = self._db, self._script.turns, time.time()
        worker_id = turns[step, 1].worker_id
        db.execute("BEGIN IMMEDIATE")
        claimed: list[Any] = db.execute(
            CLAIM, (self._groups[step], now, token, worker_id, LEASE_SECONDS, BATCH)
        ).fetchall()
        db.execute("COMMIT")
        return claimed

    def _settle(self, claimed: list[Any]) -> None:
        now = time.time()
        self._db.execute("BEGIN IMMEDIATE")
        for turn, rows in self._script.batches(claimed):
            if turn.error is not None:
                self._fail(turn, rows, now)
            else:
                self._complete(turn, rows, now)
            self._db.executemany(LOG, [(execution, now, turn.settled) for _, execution in rows])
        self._db.execute("COMMIT")

    def _complete(self, turn: Turn, rows: list[tuple[int, int]], now: float) -> None:
        db = self._db
        db.executemany(COMPLETE, [(job, turn.outcome_hash, turn.output, now) for job, _ in rows])
        if turn.following is None:
            db.executemany(FINISH, [(execution, turn.step, now) for _, execution in rows])
            return
        db.executemany(ADVANCE, [(execution, turn.step) for _, execution in rows])
        new = (turn.following, self._groups[turn.following], self._max_attempts, now, now)
        db.executemany(NEXT_JOB, [(execution, *new) for _, execution in rows])

    def _fail(self, turn: Turn, rows: list[tuple[int, int]], now: float) -> None:
        self._db.executemany(RETRY, [(job, turn.outcome_hash, now) for job, _ in rows])
        noted = (turn.error, turn.history, turn.attempt)
        self._db.executemany(NOTE_ERROR, [(execution, *noted) for _, execution in rows])
