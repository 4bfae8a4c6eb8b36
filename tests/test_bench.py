"""`holdfast bench` with tiny sizes: the shape of its answer, and the honesty of its yardstick."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.bench import claims, engine_run, raw
from holdfast.bench.places import Place, PostgresPlace, SqlitePlace, check_completed, row_counts
from holdfast.bench.postgres import TemporaryPostgres
from holdfast.bench.scenarios import CLAIM, PIPELINE, SCENARIOS, Kind, Scenario, application
from holdfast.bench.suite import RAW_LOOPS
from holdfast.cli.bench import SCENARIO_NAMES, bench

RATES = {"rate", "raw_rate", "ratio"}
TIMES = {"p50_ms", "p99_ms"}
ITEM_COSTS = {f"{part}_{of}" for part in ("submit", "settle", "open", "status") for of in ("us", "ratio")}
CLAIM_COSTS = {"claim_ms", "empty_ms", "future_ratio", "future_empty_ratio", "backlog_ratio"}
FIGURES = {Kind.RATES: RATES, Kind.LATENCY: TIMES, Kind.BATCH: ITEM_COSTS, Kind.CLAIM: CLAIM_COSTS}

# More than a batch, and no multiple of it, so that batches of mixed turns occur.
EXECUTIONS = raw.BATCH + 7

# What each table holds in the end, without what differs from run to run: times, fences, worker ids.
CONTENTS = {
    "executions": "path, status, lane, mode, round, last_completed_stage, error, retry_count, workload,"
    " retry_history IS NULL, finished_at IS NULL, deadline_at IS NULL, workload_hash, idempotency_key",
    "jobs": "execution_id, step, element, round, status, attempts, max_attempts, leases, fence IS NULL,"
    " lease_until IS NULL, length(settled_fence), settled_hash, output, last_heartbeat IS NULL,"
    " worker_id IS NULL, dead_reason, clear, finished_at IS NULL",
    "claim_groups": "handler, lane, rank, operation, limit_name, alone",
}


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield SqlitePlace(tmp_path)
    else:
        # A server of its own: the databases of a sitting go with their server.
        with TemporaryPostgres(durable=False) as server:
            yield PostgresPlace(server)


def assert_complete(results: dict[str, Any]) -> None:
    assert list(results) == list(SCENARIOS)
    for name, by_store in results.items():
        assert list(by_store) == ["sqlite", "postgresql"]
        for figures in by_store.values():
            assert set(figures) == FIGURES[SCENARIOS[name].kind]
            assert all(isinstance(figure, int | float) and figure >= 0 for figure in figures.values())


def test_a_quick_run_from_another_folder_prints_one_complete_json_object(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "bench", "--quick", "--json", "--size", "20"]
    environment = {**os.environ, "PYTHONPATH": str(Path(holdfast.__file__).parents[1])}
    finished = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert_complete(json.loads(finished.stdout))
    assert finished.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_without_json_the_figures_are_a_table_with_its_method() -> None:
    asked = ["--quick", "--store", "sqlite", "--scenario", "drain", "--scenario", "latency", "--size", "20"]
    result = CliRunner().invoke(bench, asked)
    assert result.exit_code == 0, result.output
    assert "drain" in result.output and "latency" in result.output and "cores" in result.output
    assert "postgresql" not in result.output and "retry:" not in result.output
    assert "\x1b" not in result.output


def test_what_a_batch_and_a_claim_cost_has_tables_of_its_own() -> None:
    asked = ["--quick", "--store", "sqlite", "--scenario", "batch", "--scenario", "claim", "--size", "20"]
    result = CliRunner().invoke(bench, asked)
    assert result.exit_code == 0, result.output
    headings = [line.split() for line in result.output.split("\n") if line.startswith("scenario")]
    assert [line[:3] for line in headings] == [["scenario", "store", "items"], ["scenario", "store", "jobs"]]
    assert "of raw" not in result.output


def test_the_rows_in_a_claims_way_are_real_and_none_of_them_is_leased(place: Place) -> None:
    """Copied, not submitted: each has its execution, its turn in the claim index, and the right time."""

    async def main() -> None:
        async with place.database() as url:
            for delay in (claims.FUTURE_SECONDS, 0.0):
                await claims.fill(place, url, CLAIM, 30, delay)
            async with application(url, CLAIM, lambda _: None) as app:
                engine = await app.engine()
                leased = await engine.lease("bench", [f"{PIPELINE}/work"], 100)
                assert len({job.execution_id for job in leased.jobs}) == 30
                assert {job.workload for job in leased.jobs} == {'{"number":0}'}
            query = "SELECT status, count(*), count(DISTINCT available_at)"
            query += f" FROM {place.schema}jobs GROUP BY status"
            found = {tuple(row) for row in await place.fetch(url, query)}
            assert found == {("leased", 30, 30), ("queued", 30, 30)}

    asyncio.run(main())


def test_a_missing_postgresql_is_told_with_the_way_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_POSTGRES_BIN", "/nowhere")
    result = CliRunner().invoke(bench, ["--quick", "--size", "1"])
    assert result.exit_code == 1
    assert "--store sqlite" in result.output


def test_the_command_offers_exactly_the_scenarios_there_are() -> None:
    assert tuple(SCENARIOS) == SCENARIO_NAMES


@pytest.mark.parametrize("scenario", [s for s in SCENARIOS.values() if s.has_raw], ids=lambda s: s.name)
def test_the_raw_loop_leaves_the_same_rows_as_the_engine(place: Place, scenario: Scenario) -> None:
    async def main() -> None:
        script = await raw.sample(place, scenario)
        async with place.database() as ours, place.database() as theirs:
            for url in (ours, theirs):
                await engine_run.fill(url, scenario, EXECUTIONS)
            await engine_run.run(ours, scenario, EXECUTIONS)
            await RAW_LOOPS[place.store](theirs, script)
            for url in (ours, theirs):
                await check_completed(place, url, EXECUTIONS)
            counts = await row_counts(place, ours)
            assert counts == await row_counts(place, theirs)
            assert counts["events"] == EXECUTIONS * (1 + 2 * scenario.leases_per_execution)
            for table in CONTENTS:
                assert await contents(place, ours, table) == await contents(place, theirs, table)
            event_types, raw_event_types = await events_of(place, ours), await events_of(place, theirs)
            assert event_types == raw_event_types
            assert await text_size(place, theirs) == pytest.approx(await text_size(place, ours), rel=0.01)

    asyncio.run(main())


async def contents(place: Place, url: str, table: str) -> list[tuple[Any, ...]]:
    found = await place.fetch(url, f"SELECT {CONTENTS[table]} FROM {place.schema}{table}")
    return sorted((tuple(row) for row in found), key=repr)


async def events_of(place: Place, url: str) -> dict[int, list[list[tuple[str, str | None]]]]:
    """By execution, the rows in their order, each as the types and steps it tells of."""
    found: dict[int, list[list[tuple[str, str | None]]]] = {}
    query = f"SELECT execution_id, body FROM {place.schema}events ORDER BY id"
    for execution_id, body in await place.fetch(url, query):
        told = [(event["type"], event.get("step")) for event in json.loads(body)]
        found.setdefault(execution_id, []).append(told)
    return found


async def text_size(place: Place, url: str) -> int:
    """Of what was told: times in it may have a digit more or less."""
    [[events]] = await place.fetch(url, f"SELECT sum(length(body)) FROM {place.schema}events")
    history = "coalesce(sum(length(retry_history)), 0)"
    [[histories]] = await place.fetch(url, f"SELECT {history} FROM {place.schema}executions")
    return int(events + histories)
