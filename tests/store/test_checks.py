"""The schema refuses what the state machine does not allow, whoever writes it.

Each CHECK of the migrations has its cases here, under its own text; one without a case is a failing test.
"""

import re
from typing import Any, NamedTuple

import apsw
import asyncpg
import pytest

from holdfast.store.queries import load_migrations
from running import run
from store_scenario import opened, raw


class Case(NamedTuple):
    """Columns that differ from a row that is fine, and the CHECK that refuses them."""

    table: str
    check: str
    columns: dict[str, Any]


FINE: dict[str, dict[str, Any]] = {
    "definitions": {"path": "p", "version": 1, "hash": "h", "content": "{}", "created_at": 0},
    "claim_groups": {
        "handler": "h",
        "lane": "bulk",
        "rank": 5,
        "operation": "",
        "limit_name": "",
        "alone": False,
    },
    "executions": {
        "path": "p",
        "definition_id": 1,
        "lane": "bulk",
        "mode": "bulk",
        "workload": "{}",
        "created_at": 0,
    },
    "jobs": {
        "execution_id": 1,
        "step": "s",
        "round": 1,
        "max_attempts": 3,
        "claim_group": 1,
        "available_at": 0,
        "created_at": 0,
    },
    "batches": {
        "path": "p",
        "definition_id": 1,
        "lane": "bulk",
        "mode": "bulk",
        "gated": True,
        "gates": "{}",
        "created_at": 0,
    },
    "tokens": {
        "id": "t",
        "name": "ops",
        "role": "viewer",
        "secret_hash": "h",
        "created_at": 0,
        "created_by": "ann",
    },
    "limits": {"name": "portal", "max_concurrency": 5, "set_by": "ann", "set_at": 0},
    "pauses": {"kind": "lane", "name": "bulk", "paused_by": "ann", "reason": "", "paused_at": 0},
}

LEASED = {"status": "leased", "attempts": 1, "leases": 1, "fence": "f", "lease_until": 1}
RETRY = {"status": "retry", "attempts": 1, "leases": 1}
DONE = {"status": "done", "attempts": 1, "leases": 1, "output": "1", "finished_at": 1}
DEAD = {"status": "dead", "attempts": 1, "leases": 1, "dead_reason": "permanent", "finished_at": 1}
CANCELLED = {"status": "cancelled", "finished_at": 1}

LANES = "lane IN ('manual', 'bulk')"
REASONS = "dead_reason IN ('exhausted', 'permanent', 'stopped', 'not_retryable', 'unknown_limit', 'poisoned')"
RESERVE = "manual_reserve BETWEEN 0 AND max_concurrency"

CASES = [
    Case("definitions", "version >= 1", {"version": 0}),
    Case("claim_groups", LANES, {"lane": "fast"}),
    Case("claim_groups", "rank BETWEEN 0 AND 9", {"rank": 10}),
    Case("claim_groups", "rank BETWEEN 0 AND 9", {"rank": -1}),
    Case("claim_groups", "alone IN (0, 1)", {"alone": 2}),
    Case(
        "executions",
        "status IN ('running', 'completed', 'failed', 'cancelled')",
        {"status": "paused", "finished_at": 1},
    ),
    Case("executions", LANES, {"lane": "fast"}),
    Case("executions", "mode IN ('manual', 'bulk', 'auto')", {"mode": "fast"}),
    Case("executions", "round >= 1", {"round": 0}),
    Case("executions", "manual_retries >= 0", {"manual_retries": -1}),
    Case("executions", "retry_count >= 0", {"retry_count": -1}),
    Case("executions", "(status = 'running') = (finished_at IS NULL)", {"finished_at": 1}),
    Case("executions", "(status = 'running') = (finished_at IS NULL)", {"status": "completed"}),
    Case("executions", "status <> 'failed' OR error IS NOT NULL", {"status": "failed", "finished_at": 1}),
    Case("jobs", "element >= -1", {"element": -2}),
    Case("jobs", "round >= 1", {"round": 0}),
    Case(
        "jobs", "status IN ('queued', 'leased', 'retry', 'done', 'dead', 'cancelled')", {"status": "paused"}
    ),
    Case("jobs", "max_attempts >= 1", {"max_attempts": 0}),
    Case("jobs", "leased_alone IN (0, 1)", {"leased_alone": 2}),
    Case("jobs", "progress BETWEEN 0 AND 1", {"progress": 1.5}),
    Case("jobs", "progress BETWEEN 0 AND 1", {"progress": -0.1}),
    Case("jobs", REASONS, {**DEAD, "dead_reason": "bored"}),
    Case("jobs", "attempts BETWEEN 0 AND max_attempts", {**CANCELLED, "attempts": 4, "leases": 4}),
    Case("jobs", "attempts BETWEEN 0 AND max_attempts", {**CANCELLED, "attempts": -1}),
    Case("jobs", "leases >= attempts", {**LEASED, "leases": 0}),
    Case("jobs", "crashes <= losses", {"crashes": 1}),
    Case("jobs", "status <> 'queued' OR attempts = 0", {"attempts": 1, "leases": 1}),
    Case("jobs", "status <> 'leased' OR attempts >= 1", {**LEASED, "attempts": 0}),
    Case("jobs", "status <> 'retry' OR attempts BETWEEN 1 AND max_attempts - 1", {**RETRY, "attempts": 0}),
    Case(
        "jobs",
        "status <> 'retry' OR attempts BETWEEN 1 AND max_attempts - 1",
        {**RETRY, "attempts": 3, "leases": 3},
    ),
    Case("jobs", "(status = 'leased') = (fence IS NOT NULL)", {**LEASED, "fence": None}),
    Case("jobs", "(status = 'leased') = (fence IS NOT NULL)", {**RETRY, "fence": "f"}),
    Case("jobs", "(status = 'leased') = (lease_until IS NOT NULL)", {**LEASED, "lease_until": None}),
    Case("jobs", "(status = 'leased') = (lease_until IS NOT NULL)", {**DONE, "lease_until": 1}),
    Case("jobs", "(status = 'dead') = (dead_reason IS NOT NULL)", {**DEAD, "dead_reason": None}),
    Case("jobs", "(status = 'dead') = (dead_reason IS NOT NULL)", {**RETRY, "dead_reason": "stopped"}),
    Case(
        "jobs", "dead_reason <> 'exhausted' OR attempts = max_attempts", {**DEAD, "dead_reason": "exhausted"}
    ),
    Case(
        "jobs",
        "(status IN ('done', 'dead', 'cancelled')) = (finished_at IS NOT NULL)",
        {**DONE, "finished_at": None},
    ),
    Case("jobs", "(status IN ('done', 'dead', 'cancelled')) = (finished_at IS NOT NULL)", {"finished_at": 1}),
    Case("jobs", "(status = 'done') = (output IS NOT NULL)", {**DONE, "output": None}),
    Case("jobs", "(status = 'done') = (output IS NOT NULL)", {**CANCELLED, "output": "1"}),
    Case("jobs", "held_by IS NULL OR status IN ('queued', 'retry')", {**LEASED, "held_by": "wave"}),
    Case("limits", "max_concurrency >= 1", {"max_concurrency": 0}),
    Case("limits", RESERVE, {"manual_reserve": 6}),
    Case("limits", RESERVE, {"manual_reserve": -1}),
    Case("pauses", "kind IN ('step', 'playbook', 'lane', 'limit')", {"kind": "worker"}),
    Case("jobs", "limited IN (0, 1)", {"limited": 2}),
    Case("jobs", "superseded IN (0, 1)", {"superseded": 2}),
    Case(
        "jobs",
        "scheduled_for IS NULL OR available_at >= scheduled_for",
        {"available_at": 5, "scheduled_for": 6},
    ),
    Case("tokens", "role IN ('viewer', 'worker', 'operator', 'admin')", {"role": "root"}),
    Case("tokens", "(revoked_at IS NULL) = (revoked_by IS NULL)", {"revoked_at": 1}),
    Case("tokens", "(revoked_at IS NULL) = (revoked_by IS NULL)", {"revoked_by": "ann"}),
    Case("batches", "lane IN ('manual', 'bulk')", {"lane": "auto"}),
    Case("batches", "mode IN ('manual', 'bulk', 'auto')", {"mode": "fast"}),
    Case("batches", "items >= 0", {"items": -1}),
    Case("batches", "gated IN (0, 1)", {"gated": 2}),
    Case("batches", "attention IN (0, 1)", {"attention": 2}),
    Case("batches", "cancelled_at IS NULL OR closed_at IS NOT NULL", {"cancelled_at": 1}),
]
# On SQLite their names begin with the project's: users may have tables of their own there.
PREFIXED = {"tokens"}
# PostgreSQL has a type for these.
BOOLEANS = {
    ("claim_groups", "alone IN (0, 1)"),
    ("jobs", "leased_alone IN (0, 1)"),
    ("jobs", "limited IN (0, 1)"),
    ("jobs", "superseded IN (0, 1)"),
    ("batches", "gated IN (0, 1)"),
    ("batches", "attention IN (0, 1)"),
}


def checks_of(dialect: str) -> set[tuple[str, str]]:
    """Table and text of every CHECK in the migrations."""
    found = set()
    for migration in load_migrations(dialect):
        for statement in re.split(r"(?:CREATE|ALTER) TABLE ", migration.sql)[1:]:
            # One that replaces another, because SQLite cannot change a table's constraints, has its name.
            table = statement.split()[0].removesuffix("_with_steps")
            table = table.removeprefix("holdfast.").removeprefix("holdfast_")
            for start in re.finditer(r"CHECK \(", statement):
                depth, end = 1, start.end()
                while depth:
                    depth += {"(": 1, ")": -1}.get(statement[end], 0)
                    end += 1
                found.add((table, " ".join(statement[start.end() : end - 1].split())))
    return found


async def insert(url: str, table: str, columns: dict[str, Any]) -> None:
    row = FINE[table] | columns
    values = ", ".join("NULL" if value is None else repr(value) for value in row.values())
    own = f"holdfast_{table}" if table in PREFIXED and url.startswith("sqlite") else table
    await raw(url, f"INSERT INTO {own} ({', '.join(row)}) VALUES ({values})")


def test_every_check_of_both_schemas_has_a_case() -> None:
    covered = {(case.table, case.check) for case in CASES}
    assert checks_of("sqlite") == covered
    assert checks_of("postgresql") == covered - BOOLEANS


def test_every_row_that_breaks_a_check_is_refused_by_sqlite(sqlite_url: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url):
            for case in CASES:
                with pytest.raises(apsw.ConstraintError, match="CHECK constraint failed") as refusal:
                    await insert(sqlite_url, case.table, case.columns)
                told = " ".join(str(refusal.value).partition("failed: ")[2].split())
                assert told == case.check, case

    run(main())


def test_every_row_that_breaks_a_check_is_refused_by_postgresql(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url):
            for case in CASES:
                if (case.table, case.check) not in BOOLEANS:
                    with pytest.raises(asyncpg.CheckViolationError):
                        await insert(postgres_url, case.table, case.columns)

    run(main())


LEGAL: list[tuple[str, dict[str, Any]]] = [
    *((table, {}) for table in FINE),
    ("executions", {"status": "failed", "error": "{}", "finished_at": 1}),
    ("executions", {"status": "completed", "finished_at": 1}),
    ("jobs", {"held_by": "barrier"}),
    ("jobs", {"held_by": "child", "parked": "{}", "superseded": True}),
    ("jobs", {**LEASED, "progress": 0.5}),
    ("jobs", RETRY),
    ("jobs", DONE),
    ("jobs", DEAD),
    ("jobs", {**DEAD, "dead_reason": "exhausted", "attempts": 3, "leases": 4}),
    ("jobs", CANCELLED),
    ("limits", {"name": "all of it", "manual_reserve": 5}),
    ("pauses", {"kind": "step", "name": "reports/download"}),
    ("tokens", {"id": "u", "revoked_at": 1, "revoked_by": "ann"}),
]


def test_rows_of_every_legal_state_are_accepted(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url):
            for number, (table, columns) in enumerate(LEGAL):
                own = {"step": f"step-{number}"} if table == "jobs" else {}
                await insert(store_url, table, columns | own)

    run(main())


def test_what_a_claim_relies_on_is_never_null(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url):
            for column in ("execution_id", "step", "available_at", "max_attempts", "claim_group"):
                with pytest.raises((apsw.ConstraintError, asyncpg.NotNullViolationError), match=column):
                    await insert(store_url, "jobs", {column: None})

    run(main())


def test_a_step_has_one_job_per_element_and_round(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url):
            for columns in ({}, {"round": 2}, {"element": 0}, {"step": "t"}):
                await insert(store_url, "jobs", columns)
            with pytest.raises((apsw.ConstraintError, asyncpg.UniqueViolationError)):
                await insert(store_url, "jobs", {"element": 0})

    run(main())
