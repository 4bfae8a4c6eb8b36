"""The benchmark beside other engines, as far as it goes without them: its arithmetic, its chart, what it does
with a contender that crashes or hangs, and its adapter for Holdfast on both stores."""

import contextlib
import fcntl
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from bench.peers import __main__ as command
from bench.peers.bars import percentile, ratio, spread, verdicts
from bench.peers.chart import chart
from bench.peers.contenders import ADAPTERS, CONTENDERS, PEERS, Contender
from bench.peers.measures import (
    CALLERS,
    DRAIN,
    DRAIN_TWO,
    EMBEDDED,
    LATENCY,
    MEASURES,
    RETRY,
    STEPS,
    Measure,
)
from bench.peers.places import Places
from bench.peers.report import described, table_of, to_keep
from bench.peers.sitting import Figures, Results, Sitting, best_setting
from bench.peers.turn import ROOT, Limits, Outcome, Programs, take_turn
from running import eventually, run

# For what must hang; long enough for a slow machine to start a process, and no work is done meanwhile.
SHORT = Limits(idle=10, stop=1)
LONG = Limits(idle=60, stop=10)
FOLDER = ROOT / "bench" / "peers"

# A contender in a file: its queue is a table of one number. What its worker does is the test's choice.
FAKE = """
    import json, os, signal, sqlite3, subprocess, sys, time
    from pathlib import Path
    sys.path.insert(0, {root!r})
    from bench.peers.adapters.tally import Tally

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    command, words = sys.argv[1], sys.argv[2:]
    folder = Path(os.environ["BENCH_TALLY"])
    settings = json.loads(os.environ["BENCH_SETTINGS"])
    database = sqlite3.connect(os.environ["BENCH_URL"].removeprefix("sqlite:///"), isolation_level=None)

    def work():
        {work}

    if command == "prepare":
        database.execute("CREATE TABLE left (jobs INTEGER)")
    elif command == "fill":
        database.execute("INSERT INTO left VALUES (?)", [int(words[1])])
        print(json.dumps({{"seconds": 0.5}}))
    elif command == "enqueue":
        print(json.dumps({{"seconds": settings.get("seconds", 1.0)}}))
    elif command == "work":
        work()
    database.close()
"""
DO_ALL = """tally = Tally(folder)
        for _ in range(database.execute("SELECT jobs FROM left").fetchone()[0]):
            tally.ended()
        database.execute("UPDATE left SET jobs = 0")
        time.sleep(60)"""


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with Places(durable=False) as servers:
        yield servers


def fake(folder: Path, work: str = "pass", name: str = "fake", **changes: Any) -> Contender:
    script = folder / f"{name}.py"
    script.write_text(textwrap.dedent(FAKE.format(root=str(ROOT), work=work)))
    given: dict[str, Any] = {
        "key": name,
        "name": name.title(),
        "package": "holdfast",
        "adapter": script,
        "store": "sqlite",
        "durability": "none",
        "keeps": "nothing",
        "measures": frozenset({"drain", "enqueue"}),
        "left": "SELECT jobs > 0 FROM left",
        "sizes": {"drain": 10, "enqueue": 10},
    }
    return Contender(**(given | changes))


def turn(contender: Contender, places: Places, limits: Limits = LONG, measure: Measure = DRAIN) -> Outcome:
    return take_turn(contender, measure, {}, 10, places, Programs(), limits)


# The arithmetic


@pytest.mark.parametrize(("part", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1), (0.501, 51)])
def test_a_percentile_is_the_least_figure_that_so_many_do_not_exceed(part: float, expected: int) -> None:
    assert percentile([float(number) for number in range(100, 0, -1)], part) == expected


def test_a_ratio_above_one_means_that_holdfast_is_ahead() -> None:
    assert ratio(DRAIN, 300, 100) == 3
    assert ratio(RETRY, 1, 4) == 4
    assert ratio(DRAIN, None, 100) is None
    assert ratio(DRAIN, 300, None) is None


def test_the_spread_of_the_reference_is_a_part_of_its_lowest() -> None:
    assert spread([100, 125, 110]) == 0.25


def by_text(table: dict[str, dict[str, float]]) -> dict[str, tuple[float | None, float | None, bool | None]]:
    return {verdict.text: (verdict.got, verdict.got_by_default, verdict.holds) for verdict in verdicts(table)}


def test_a_bar_is_judged_by_the_best_settings_and_the_defaults_are_told_beside_it() -> None:
    found = by_text(
        {
            "drain": {"holdfast-postgresql": 8, "holdfast-postgresql-best": 16, "pgqueuer": 10, "bullmq": 20},
            "retry": {"holdfast-postgresql": 2, "holdfast-postgresql-best": 1, "pg-boss": 2},
        }
    )
    assert found["drain on PostgreSQL against PgQueuer"] == (1.6, 0.8, True)
    assert found["drain on PostgreSQL against BullMQ"] == (0.8, 0.4, False)
    assert found["retries on PostgreSQL against pg-boss"] == (2, 1, True)
    assert found["drain on PostgreSQL: the defaults against the best"] == (0.5, 0.5, False)
    assert found["three steps on SQLite against FlexiQ"] == (None, None, None)


def test_a_bar_that_is_a_figure_knows_which_way_is_better() -> None:
    table = {
        "bulk": {"holdfast-postgresql": 39_999.0},
        "latency": {"holdfast-postgresql": 4.0},
        "embedded": {"holdfast-sqlite": 2.1},
    }
    found = by_text(table)
    assert found["bulk enqueue on PostgreSQL"] == (39_999, 39_999, False)
    assert found["pick-up on PostgreSQL, median"] == (4, 4, True)
    assert found["pick-up embedded on SQLite, median"] == (2.1, 2.1, False)


def test_many_callers_are_held_against_the_best_peer_on_postgresql_one_by_one() -> None:
    one_by_one = {"pgqueuer": 100.0, "pg-boss": 200.0, "bullmq": 5_000.0, "holdfast-postgresql": 900.0}
    found = by_text({"enqueue": one_by_one, "callers": {"holdfast-postgresql": 2_000.0}})
    assert found["enqueue from 100 callers against the best PostgreSQL peer one by one"] == (10, 10, True)


def test_two_processes_are_held_against_one_with_the_same_settings() -> None:
    one = {"holdfast-postgresql": 10.0, "holdfast-postgresql-best": 20.0}
    two = {"holdfast-postgresql": 15.0, "holdfast-postgresql-best": 22.0}
    assert by_text({"drain": one, "drain-two": two})["drain by two processes against one"] == (1.5, 1.5, True)


def test_the_best_setting_is_the_one_with_the_best_figure() -> None:
    tried = [
        ({"batch": 1}, Outcome(5.0)),
        ({"batch": 2}, Outcome(failure="no")),
        ({"batch": 3}, Outcome(9.0)),
    ]
    assert best_setting(DRAIN, tried) == {"batch": 3}
    assert best_setting(RETRY, tried) == {"batch": 1}
    assert best_setting(DRAIN, [({"batch": 7}, Outcome(failure="no")), ({}, Outcome(failure="no"))]) == {
        "batch": 7
    }


def test_latencies_of_all_rounds_are_judged_together() -> None:
    figures = Figures({}, 3, runs=[1.0, 5.0], latencies=[0.001, 0.001, 0.001, 0.005, 0.009])
    assert (figures.figure, figures.p99) == (1, 9)


# Those who take part


def test_every_adapter_belongs_to_a_contender_and_every_contender_is_described() -> None:
    machinery = {"__init__.py", "adapting.py", "adapting.mjs", "tally.py"}
    files = {path.name for path in ADAPTERS.iterdir() if path.is_file()} - machinery
    assert files == {contender.adapter.name for contender in CONTENDERS.values()}
    readme = (FOLDER / "README.md").read_text()
    for contender in CONTENDERS.values():
        assert contender.measures <= set(MEASURES)
        assert f"| {contender.name} |" in readme, f"{contender.name} has no row in bench/peers/README.md"
        assert contender.durability in readme, f"{contender.name}: its durability is not the one told"


def test_every_measure_is_described() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert [name for name in MEASURES if f"| `{name}` |" not in readme] == []


def test_the_peers_are_pinned_and_no_address_is_named() -> None:
    lines = (FOLDER / "requirements.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z-]+(\[[a-z]+\])?==[0-9][0-9a-z.]*", pin) for pin in pins), pins
    package = json.loads((FOLDER / "package.json").read_text())
    assert all(re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", pin) for pin in package["dependencies"].values())
    named = {re.split(r"[\[=]", pin)[0] for pin in pins} | set(package["dependencies"])
    assert {peer.package for peer in PEERS} <= named


def test_without_node_its_peers_are_told_as_missing(tmp_path: Path) -> None:
    there, missing = command.split(list(CONTENDERS.values()), Programs(node=None, node_root=tmp_path))
    assert {"graphile-worker", "pg-boss", "bullmq"} == {
        key for key, why in missing.items() if "no Node" in why
    }
    assert "holdfast-postgresql" in {contender.key for contender in there}


def test_a_peer_of_node_that_is_not_installed_is_told_as_missing(tmp_path: Path) -> None:
    programs = Programs(node="node", node_root=tmp_path)
    assert "pg-boss is not installed" in command.split([CONTENDERS["pg-boss"]], programs)[1]["pg-boss"]


# Turns


def test_a_turn_lasts_until_the_tables_say_that_nothing_is_left(tmp_path: Path, places: Places) -> None:
    outcome = turn(fake(tmp_path, DO_ALL), places)
    assert outcome.failure is None
    assert outcome.figure is not None and outcome.figure > 0
    assert outcome.also == {"bulk": 20}


def test_handlers_that_have_ended_are_not_enough(tmp_path: Path, places: Places) -> None:
    forgetful = DO_ALL.replace("SET jobs = 0", "SET jobs = 1")
    outcome = turn(fake(tmp_path, forgetful), places, SHORT)
    assert outcome.failure == "All 10 handlers have ended, and its tables still have jobs to do."


def test_a_worker_that_crashes_is_a_failure_with_its_last_words(tmp_path: Path, places: Places) -> None:
    outcome = turn(fake(tmp_path, "sys.exit('the disk is on fire')"), places)
    assert outcome.figure is None
    assert outcome.failure == "Its worker ended with code 1.\nthe disk is on fire"


def test_tables_that_cannot_be_asked_are_a_failure(tmp_path: Path, places: Places) -> None:
    outcome = turn(fake(tmp_path, DO_ALL, left="SELECT 1 FROM another_version"), places)
    assert outcome.failure is not None and "no such table: another_version" in outcome.failure


def test_a_command_that_says_nothing_is_a_failure(tmp_path: Path, places: Places) -> None:
    outcome = turn(fake(tmp_path, left="SELECT 1"), places, measure=CALLERS)
    assert outcome.failure == "`callers` did not say how long it took: []."


def test_a_worker_that_hangs_is_ended_with_all_it_has_started(tmp_path: Path, places: Places) -> None:
    lock = tmp_path / "lock"
    child = f"import fcntl, time; file = open({str(lock)!r}, 'w'); fcntl.flock(file, 2); time.sleep(600)"
    hanging = f"signal.signal(15, signal.SIG_IGN); subprocess.run([sys.executable, '-c', {child!r}])"
    outcome = turn(fake(tmp_path, hanging), places, SHORT)
    assert outcome.failure == "Nothing was finished for 10 s; 0 of 10 were."

    def is_free() -> bool:
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    run(eventually(is_free))


def test_a_contender_that_fails_does_not_end_the_sitting(tmp_path: Path, places: Places) -> None:
    candidates = [{"seconds": 2.0}, {"seconds": 0.5}, {"seconds": 1.0}]
    good = fake(tmp_path, DO_ALL, "good", candidates=candidates)
    bad = fake(tmp_path, "sys.exit(7)", "bad")
    told: list[str] = []
    sitting = Sitting(
        [bad, good],
        [MEASURES["enqueue"], DRAIN, MEASURES["bulk"]],
        places=places,
        programs=Programs(),
        rounds=2,
        limits=LONG,
        tell=told.append,
    )
    results = sitting.run()
    assert results["drain"]["bad"].failure == "Its worker ended with code 7."
    assert "drain, round 1: Bad: failed: Its worker ended with code 7." in told
    assert not [line for line in told if line.startswith("drain, round 2: Bad")]
    assert len(results["drain"]["good"].runs) == 2
    assert results["enqueue"]["good"].runs == [20, 20]
    assert results["drain"]["good"].settings == {"seconds": 0.5}, (
        "the choice of one measure serves the others"
    )
    assert len(sitting.reference) == 3


@pytest.mark.parametrize(
    ("key", "measure", "size"),
    [
        ("holdfast-postgresql", DRAIN_TWO, 60),
        ("holdfast-postgresql", RETRY, 20),
        ("holdfast-postgresql", LATENCY, 3),
        ("holdfast-sqlite", STEPS, 20),
        ("holdfast-sqlite", EMBEDDED, 3),
    ],
    ids=lambda value: value.name if isinstance(value, Measure) else str(value),
)
def test_holdfast_is_one_contender_among_them(key: str, measure: Measure, size: int, places: Places) -> None:
    outcome = take_turn(CONTENDERS[key], measure, {"concurrency": 4}, size, places, Programs(), LONG)
    assert outcome.failure is None
    assert outcome.figure is not None and outcome.figure > 0
    assert len(outcome.latencies) == (size if measure in (LATENCY, EMBEDDED) else 0)


# What a sitting says


def a_sitting(results: Results) -> dict[str, Any]:
    return described(
        results=results,
        contenders=list(CONTENDERS.values()),
        missing={},
        reference=[100.0, 110.0, 105.0],
        programs=Programs(),
        postgres="18",
        rounds=3,
        quick=False,
    )


def everybody() -> Results:
    results: Results = {}
    for number, (name, _) in enumerate(MEASURES.items()):
        results[name] = {
            key: Figures({"batch": 5}, 10, runs=[10.0 + number, 30.0, 20.0])
            for key, contender in CONTENDERS.items()
            if name in contender.measures
        }
    results["drain"]["celery"] = Figures({}, 10, failure="It <crashed> & burned.")
    return results


def test_the_json_says_what_is_needed_to_judge_a_figure() -> None:
    sitting = json.loads(json.dumps(a_sitting(everybody())))
    assert sitting["reference"] == {"rows_per_second": [100, 110, 105], "spread": 0.1}
    assert sitting["contenders"]["holdfast-sqlite"]["version"]
    entry = sitting["measures"]["drain"]["figures"]["pgqueuer"]
    assert entry == {
        "figure": 20,
        "runs": [10, 30, 20],
        "jobs": 10,
        "settings": {"batch": 5},
        "holdfast_ratio": 1,
    }
    failed = sitting["measures"]["drain"]["figures"]["celery"]
    assert (failed["figure"], failed["failure"]) == (None, "It <crashed> & burned.")
    assert {"text", "needed", "got", "got_by_default", "unit", "holds", "goal"} == set(sitting["bars"][0])


def test_a_failed_contender_has_no_place_in_the_table_of_figures() -> None:
    assert "celery" not in table_of(everybody())["drain"]


def test_the_chart_is_well_formed_and_shows_every_contender() -> None:
    drawn = ElementTree.fromstring(chart(a_sitting(everybody())))
    texts = ["".join(element.itertext()) for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    in_memory = {contender.name + "*" for contender in CONTENDERS.values() if contender.store == "broker"}
    durable = {contender.name for contender in CONTENDERS.values() if contender.store != "broker"}
    assert in_memory == {"BullMQ*", "Celery*"} and in_memory | durable <= set(texts)
    assert "failed" in texts
    style = "".join(element.text or "" for element in drawn.iter("{http://www.w3.org/2000/svg}style"))
    assert "prefers-color-scheme: dark" in style and "url(" not in style and "@import" not in style


def test_the_command_measures_and_writes_what_it_found(
    tmp_path: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "Places", lambda: contextlib.nullcontext(places))
    out, drawn = tmp_path / "out.json", tmp_path / "made" / "chart.svg"
    arguments = ["--quick", "--only", "holdfast-sqlite", "--measure", "callers", "--out", str(out)]
    ran = CliRunner().invoke(command.main, [*arguments, "--chart", str(drawn)])
    assert ran.exit_code == 0, ran.output
    assert "not measured" in ran.output and "Holdfast, SQLite" in ran.output
    sitting = json.loads(out.read_text())
    assert list(sitting["measures"]) == ["callers"]
    assert sitting["measures"]["callers"]["figures"]["holdfast-sqlite"]["figure"] > 0
    assert ElementTree.fromstring(drawn.read_text()).tag.endswith("svg")


def test_a_file_keeps_the_sentence_of_a_failure_and_not_the_last_words_of_its_process() -> None:
    figures = {"celery": {"failure": "Nothing was finished for 60 s.\n/home/ann/bin/celery: warm shutdown"}}
    sitting = {"measures": {"retry": {"figures": figures}}}
    kept = to_keep(sitting)
    assert kept["measures"]["retry"]["figures"]["celery"]["failure"] == "Nothing was finished for 60 s."
    assert "celery: warm" in figures["celery"]["failure"]
