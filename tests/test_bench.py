"""`holdfast bench` with tiny sizes: the shape of its answer, and the honesty of its yardstick."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.bench import claims, conf, copies, documents, engine_run, fleet, raw, submits
from holdfast.bench.bare_documents import BareProcess
from holdfast.bench.fleet import Fleet
from holdfast.bench.made_documents import Kind as DocumentKind
from holdfast.bench.made_documents import MadeDocument, write_document
from holdfast.bench.places import Place, PostgresPlace, SqlitePlace, check_statuses, row_counts
from holdfast.bench.postgres import TemporaryPostgres
from holdfast.bench.scenarios import CLAIM, DRAIN, PIPELINE, SCENARIOS, SUBMIT, Kind, Scenario, application
from holdfast.bench.suite import CONCURRENCIES, RAW_LOOPS, Sitting
from holdfast.bench.table import show
from holdfast.cli.bench import SCENARIO_NAMES, bench
from holdfast.worker import loop
from running import eventually, run

RATES = {"rate", "raw_rate", "ratio"}
TIMES = {"p50_ms", "p99_ms"}
ITEM_COSTS = {f"{part}_{of}" for part in ("submit", "settle", "open", "status") for of in ("us", "ratio")}
CLAIM_COSTS = {"claim_ms", "empty_ms", "future_ratio", "future_empty_ratio", "backlog_ratio"}
FIGURES = {
    Kind.SUBMIT: {"callers_rate", "callers_ratio", "bulk_rate", "bulk_ratio", "raw_rate"},
    Kind.RATES: RATES,
    Kind.PROCESSES: {"rate", "one_rate", "ratio"},
    Kind.SETTINGS: {"rate", "best_rate", "best_concurrency", "ratio"}
    | {f"rate_at_{number}" for number in CONCURRENCIES},
    Kind.LATENCY: TIMES,
    Kind.BATCH: ITEM_COSTS,
    Kind.CLAIM: CLAIM_COSTS,
    Kind.HTTP: {"rate", "direct_rate", "ratio", "p50_ms", "p99_ms"},
    Kind.STREAMS: {"rate", "alone_rate", "ratio", "listeners", "events", "server_mb"},
    Kind.SCRAPE: {
        f"{name}_{part}_ms" for name in ("metrics", "api", "queued") for part in ("first", "p50", "max")
    },
    Kind.GROWTH: {"rate", "queued_rate", "queued_ratio", "finished_rate", "finished_ratio"}
    | {"claim_ms", "claim_queued_ratio", "claim_finished_ratio"}
    | {f"{tenth}_tenth_{figure}" for tenth in ("first", "last") for figure in ("rate", "mb")}
    | {"tenths_ratio"},
    Kind.CONF: {
        "parse_mb_rate",
        "peer_mb_rate",
        "peer_ratio",
        "rate",
        "ratio",
        "archive_rate",
        "archive_ratio",
    }
    | {"raw_rate", "memory_mb", "memory_large_mb", "memory_ratio"},
    Kind.DOCUMENTS: {
        f"{kind}_{figure}"
        for kind in ("pdf", "docx", "xlsx", "txt")
        for figure in ("rate", "bare_rate", "ratio")
    }
    | {"mix_ratio", "cores", "cores_ratio", "cores_bare_ratio"}
    | {"rate", "chunks_rate", "embed_rate", "embed_ratio", "search_p50_ms", "search_p95_ms"},
}

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


@pytest.fixture
def keeps_what_it_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker gives back what has waited a second for a slot, which a machine that stands still makes it do;
    the rows would tell of it."""
    monkeypatch.setattr(loop, "PREFETCH_WAIT_SECONDS_MAX", 600.0)


@pytest.fixture(scope="module")
def postgres_place() -> Iterator[PostgresPlace]:
    # A server of its own: the databases of a sitting go with their server.
    with TemporaryPostgres(durable=False) as server:
        yield PostgresPlace(server)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return SqlitePlace(tmp_path)
    found: PostgresPlace = request.getfixturevalue("postgres_place")
    return found


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


def test_every_figure_has_its_place_in_a_table_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Large figures, as of the full sizes; nothing is cut off, and each ratio says what it is a part of."""
    figures = {
        kind: {name: 12.34 if name.endswith(("ratio", "ms", "us")) else 123_456 for name in sorted(names)}
        for kind, names in FIGURES.items()
    }
    results = {
        name: dict.fromkeys(("sqlite", "postgresql"), figures[scenario.kind])
        for name, scenario in SCENARIOS.items()
    }
    show(results, Sitting())
    told = capsys.readouterr().out
    tables = told.partition("submit: ")[0]
    assert "…" not in tables and max(len(line) for line in tables.split("\n")) <= 80
    for scenario in SCENARIOS.values():
        rows = [line.split() for line in tables.split("\n") if line.split()[:1] == [scenario.name]]
        assert {row[1] for row in rows} == {"sqlite", "postgresql"}
        assert f"{scenario.name}: {scenario.about}" in told
    words = " ".join(tables.split())
    for heading in ("of raw", "1 process /s", "of best", "of empty", "of first", "MB last"):
        assert heading in words


def test_the_rows_in_a_claims_way_are_real_and_none_of_them_is_leased(place: Place) -> None:
    """Copied, not submitted: each has its execution, its turn in the claim index, and the right time."""

    async def main() -> None:
        async with place.database() as url:
            for delay in (claims.FUTURE_SECONDS, 0.0):
                await copies.fill_queued(place, url, CLAIM, 30, delay=delay)
            async with application(url, CLAIM, lambda _: None) as app:
                engine = await app.engine()
                leased = await engine.lease("bench", [f"{PIPELINE}/work"], 100)
                assert len({job.execution_id for job in leased.jobs}) == 30
                assert {job.workload for job in leased.jobs} == {f'{{"number":{n}}}' for n in range(30)}
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


@pytest.mark.usefixtures("keeps_what_it_leased")
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
                await check_statuses(place, url, {"completed": EXECUTIONS})
            counts = await row_counts(place, ours)
            assert counts["events"] == EXECUTIONS * (1 + scenario.leases_per_execution)
            await assert_same_rows(place, ours, theirs)

    asyncio.run(main())


def test_raw_submits_leave_the_same_rows_as_those_of_the_engine(place: Place) -> None:
    count = submits.BULK + 7

    async def main() -> None:
        async with place.database() as callers, place.database() as bulk, place.database() as bare:
            await submits.by_callers(place, callers, SUBMIT, count)
            await submits.in_bulk(place, bulk, SUBMIT, count)
            await submits.raw(place, bare, SUBMIT, count)
            await check_statuses(place, bare, {"running": count + 1})
            await assert_same_rows(place, callers, bare)
            await assert_same_rows(place, bulk, bare)

    asyncio.run(main())


@pytest.mark.usefixtures("keeps_what_it_leased")
@pytest.mark.parametrize("finished", [False, True], ids=["queued", "finished"])
def test_copied_executions_are_as_the_engine_would_have_left_them(
    place: Place, finished: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "COPIES_PER_TRANSACTION", 8)
    pipeline, count = SCENARIOS["pipeline"], 1 + 3 * 8 + 1

    async def main() -> None:
        async with place.database() as ours, place.database() as copied:
            await engine_run.fill(ours, pipeline, count)
            if finished:
                await engine_run.run(ours, pipeline, count)
                await copies.fill_finished(place, copied, pipeline, count)
            else:
                await copies.fill_queued(place, copied, pipeline, count)
            await check_statuses(place, copied, {"completed" if finished else "running": count})
            await assert_same_rows(place, ours, copied)

    asyncio.run(main())


def test_worker_processes_drain_what_is_there_and_are_gone_afterwards(place: Place) -> None:
    async def main() -> None:
        async with place.database() as url:
            await engine_run.fill(url, DRAIN, 40)
            async with Fleet(url, DRAIN, 2) as workers:
                pids = workers.pids
                assert workers.calls == 0, "nobody works before the word"
                workers.go()
                [first, last] = await workers.pass_marks([1, 40])
                assert first.at <= last.at
                assert last.memory_bytes > 1_000_000
            await check_statuses(place, url, {"completed": 40})
            assert [pid for pid in pids if is_alive(pid)] == []

    run(main())


def test_a_worker_process_that_dies_ends_the_measurement_and_takes_the_others_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        place = SqlitePlace(tmp_path)
        async with place.database() as url:
            with pytest.raises(RuntimeError, match="in the middle of the work"):
                async with Fleet(url, DRAIN, 2) as workers:
                    pids = workers.pids
                    workers.go()
                    os.kill(pids[0], signal.SIGKILL)
                    await workers.pass_marks([1])
            assert [pid for pid in pids if is_alive(pid)] == []

    run(main())


def test_a_worker_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """Its standard input is a pipe that nobody else holds."""
    program = (
        "import asyncio, os, signal, sys\n"
        "from holdfast.bench.fleet import Fleet\n"
        "from holdfast.bench.scenarios import DRAIN\n"
        "async def main():\n"
        "    async with Fleet(sys.argv[1], DRAIN, 1) as workers:\n"
        "        workers.go()\n"
        "        print(*workers.pids, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run(
        [sys.executable, "-c", program, f"sqlite:///{tmp_path}/bench.db"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,  # a worker that lives on holds stderr open
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run(eventually(lambda: not is_alive(int(killed.stdout))))


def test_the_conf_text_is_typical_and_the_same_each_time() -> None:
    text = conf.conf_text(1_000)
    assert text == conf.conf_text(1_000)
    lines = text.decode().split("\n")
    assert 35 <= sum(len(line) for line in lines) / len([line for line in lines if line]) <= 45
    assert 5 <= len([line for line in lines if " = " in line]) / 1_000 <= 7
    assert any(line.startswith("#") for line in lines) and any(line.endswith("\\") for line in lines)


def test_raw_inserts_leave_the_same_stanzas_as_the_writer_of_the_pipeline(
    place: Place, tmp_path: Path
) -> None:
    stanzas = conf.PART_ROWS_MAX + 7
    text = tmp_path / "props.conf"
    text.write_bytes(conf.conf_text(stanzas))

    async def main() -> None:
        async with place.database() as ours, place.database() as bare:
            await conf.stored_seconds(place, ours, text, stanzas)
            rows = await conf.stored_rows(place, ours)
            await conf.raw_seconds(place, bare, rows)
            assert len(rows) == stanzas
            assert await conf.stored_rows(place, bare) == rows

    asyncio.run(main())


def test_an_archive_is_parsed_in_a_process_of_its_own_whose_memory_is_watched(place: Place) -> None:
    stanzas = conf.STANZAS_PER_FILE + 3

    async def main() -> None:
        async with place.database() as url:
            taken = await conf.archive_run(place, url, stanzas)
            assert taken.seconds > 0 and taken.memory_bytes > 0
            rows = await conf.stored_rows(place, url)
            assert {row[3] for row in rows} == {f"etc/apps/TA_{n}/default/props.conf" for n in (0, 1)}
            await check_statuses(place, url, {"completed": 1})

    run(main())


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_a_peer_that_is_not_installed_is_told(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf, "PEER_MODULE", "no_such_parser")
    asked = ["--store", "sqlite", "--scenario", "conf", "--size", "20", *options]
    result = CliRunner().invoke(bench, asked)
    assert result.exit_code == 0, result.output
    assert result.stderr == f"{conf.PEER_MISSING}\n"
    if options:
        assert set(json.loads(result.stdout)["conf"]["sqlite"]) == {
            name for name in FIGURES[Kind.CONF] if not name.startswith("peer")
        }
    else:
        assert "not installed" in result.stdout


@pytest.mark.parametrize("way", [conf.parse_seconds, conf.peer_seconds])
def test_text_that_was_not_parsed_as_a_whole_has_no_rate(
    way: Callable[[Path, int], float], tmp_path: Path
) -> None:
    text = tmp_path / "props.conf"
    text.write_bytes(conf.conf_text(5))
    with pytest.raises(RuntimeError, match=r"5 stanzas were parsed.*not 6"):
        way(text, 6)


@pytest.mark.parametrize("kind", documents.KINDS)
def test_a_made_document_is_the_same_each_time(kind: DocumentKind, tmp_path: Path) -> None:
    made = [write_document(tmp_path / f"{number}.{kind}", kind, 3, seed=7) for number in range(2)]
    assert made[0].path.read_bytes() == made[1].path.read_bytes()
    assert made[0].pieces > 900
    other = write_document(tmp_path / f"other.{kind}", kind, 3, seed=8)
    assert other.path.read_bytes() != made[0].path.read_bytes()


def test_both_sides_find_in_the_made_documents_all_that_is_in_them(tmp_path: Path) -> None:
    turns = documents.read_in_turns(tmp_path, 4, 1, lambda _: None)
    assert turns.pages == dict.fromkeys(documents.KINDS, 1 + 1 + 4)
    assert all(characters > 10_000 for characters in turns.characters.values())
    for side in (turns.ours, turns.bare):
        assert {kind: len(seconds) for kind, seconds in side.items()} == dict.fromkeys(
            documents.KINDS, documents.READ_ROUNDS
        )
    assert list(map(len, (turns.ours_one, turns.ours_cores, turns.bare_one, turns.bare_cores))) == [1] * 4


def test_a_document_of_which_words_are_missing_has_no_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_more(path: Path, kind: DocumentKind, pages: int, seed: int) -> MadeDocument:
        made = write_document(path, kind, pages, seed)
        return MadeDocument(made.path, made.kind, made.pages, made.pieces + 1)

    monkeypatch.setattr(documents, "write_document", with_more)
    with pytest.raises(RuntimeError, match=r"pieces were found in .*, and not"):
        documents.read_in_turns(tmp_path, 1, 1, lambda _: None)


def test_documents_are_worked_on_by_the_real_steps_in_a_process_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        place = SqlitePlace(tmp_path)
        async with place.database() as url:
            worked = await documents.worked_on(place, url, tmp_path / "files", 1)
            assert worked.seconds > 0 and worked.embed_seconds > 0
            assert worked.chunks > 4 * documents.DOCUMENT_PAGES
            await check_statuses(place, url, {"completed": 8})

    (tmp_path / "files").mkdir()
    run(main())


def test_the_process_of_the_bare_libraries_ends_with_the_one_that_asks(tmp_path: Path) -> None:
    program = (
        "import os, signal\n"
        "from holdfast.bench.bare_documents import BareProcess\n"
        "bare = BareProcess()\n"
        "print(bare.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run(eventually(lambda: not is_alive(int(killed.stdout))))


def test_a_bare_library_that_fails_ends_the_measurement(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with closing(BareProcess()) as bare, pytest.raises(RuntimeError, match="bare library of pdf has died"):
        bare.ask("pdf", [tmp_path / "none.pdf"])
    assert "FileNotFoundError" in capfd.readouterr().err


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_documents_whose_readers_are_not_installed_are_left_out_and_told(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MODULES", (*documents.MODULES, "no_such_reader"))
    asked = ["--store", "sqlite", "--scenario", "documents", "--size", "1", *options]
    result = CliRunner().invoke(bench, asked)
    assert result.exit_code == 0, result.output
    assert result.stderr == f"{documents.MISSING}\n"
    assert json.loads(result.stdout) == {} if options else "PDF" not in result.stdout


def test_work_that_was_not_done_has_no_rate(tmp_path: Path) -> None:
    async def main() -> None:
        place = SqlitePlace(tmp_path)
        async with place.database() as url:
            await engine_run.fill(url, DRAIN, 3)
            with pytest.raises(RuntimeError, match="running"):
                await check_statuses(place, url, {"completed": 3})

    asyncio.run(main())


def is_alive(pid: int) -> bool:
    """A process that has ended and that nobody has asked about yet is not."""
    return fleet.memory_bytes(pid) > 0


async def assert_same_rows(place: Place, ours: str, theirs: str) -> None:
    assert await row_counts(place, ours) == await row_counts(place, theirs)
    for table in CONTENTS:
        assert await contents(place, ours, table) == await contents(place, theirs, table)
    assert await events_of(place, ours) == await events_of(place, theirs)
    assert await text_size(place, theirs) == pytest.approx(await text_size(place, ours), rel=0.01)


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
