"""`holdfast demo` as people and scripts meet it: a process of its own, its output in a pipe."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from faults.processes import is_alive
from holdfast import Holdfast
from holdfast.cli.demo_pipeline import PIPELINE
from holdfast.cli.demo_story import Item, Killed, Start
from holdfast.cli.demo_verdict import Findings, surprises
from running import eventually, run

# The demo gives up after 90 seconds, and then ends its workers.
TIMEOUT_SECONDS = 150
DEMO = (sys.executable, "-m", "holdfast", "demo")


def run_demo(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """In a temporary folder of its own, so that what it leaves behind can be seen."""
    return subprocess.run(
        [*DEMO, *options],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder), "FORCE_COLOR": "1", "http_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("demo")
    return run_demo(folder=folder), folder


def lines_about(output: str, name: str) -> list[str]:
    return [line for line in output.splitlines() if name in line]


def test_all_goes_as_expected_and_nothing_is_left_behind(
    piped: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, folder = piped
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.iterdir()) == []


def test_a_pipe_gets_plain_lines(piped: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    assert "\x1b" not in piped[0].stdout
    assert "\r" not in piped[0].stdout


@pytest.mark.parametrize(
    ("name", "stage", "words"),
    [
        (
            "north.csv",
            "fetch",
            "Processing service unavailable (service_unavailable, transient; http status 503)",
        ),
        ("south.csv", "locate", "Processing timed out (timeout, transient; exception type TimeoutError)"),
        ("east.csv", "fetch", "Network connection error (connection_error, transient;"),
        ("west.csv", "publish", "Service temporarily busy (rate_limit, transient; raised as TransientError)"),
        ("coast.csv", "locate", "An unexpected error occurred: the catalogue said"),
    ],
)
def test_what_can_heal_is_told_with_its_reason_and_delay_and_then_healed(
    piped: tuple[subprocess.CompletedProcess[str], Path], name: str, stage: str, words: str
) -> None:
    told = lines_about(piped[0].stdout, name)
    failed = [line for line in told if "failed:" in line and words in line]
    assert failed, told
    assert "attempt 1/4" in failed[0]
    assert f" {stage} " in failed[0]
    assert "Retrying in " in failed[0]
    assert any("done at attempt" in line and "healed" in line for line in told), told


def test_what_cannot_heal_stops_at_once_and_a_retry_by_hand_resumes_where_it_failed(
    piped: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    output = piped[0].stdout
    told = lines_about(output, "islands.csv")
    assert sum("failed:" in line for line in told) == 1
    assert "permanent_error: Retrying will not help: File appears to be invalid or corrupted" in output
    assert "Put a complete copy of islands.csv at the service, then retry it with force." in output
    assert any("locate" in line and "skipped: already completed" in line for line in told)
    assert told.index(next(line for line in told if "retried by hand, from fetch" in line)) < told.index(
        next(line for line in told if "publish  done" in line)
    )


def test_a_worker_is_killed_and_another_goes_on_at_the_stage_where_it_was(
    piped: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    output = piped[0].stdout
    killed = re.search(r"Worker (\d+) is killed \(SIGKILL\). It had plains.csv in fetch, (\d+)% done", output)
    assert killed is not None, output
    before, after = output[: killed.start()], output[killed.end() :]
    assert f"{killed[1]}" in next(line for line in before.splitlines() if line.startswith("Workers  "))
    assert 40 <= int(killed[2]) < 100
    assert re.search(rf"workers +\d+ was started in place of {killed[1]}", after)
    told = [line for line in lines_about(after, "plains.csv") if re.match(r" *\d+\.\ds ", line)]
    assert f"the lease of worker {killed[1]} has run out" in told[0]
    assert "Processing was interrupted (worker_lost, transient;" in told[1]
    assert re.search(r"fetch +attempt 2/4 starts in worker \d+; locate is not run again", told[2])
    assert killed[1] not in told[2]
    assert not any(" locate  " in line for line in told)
    assert f"Worker {killed[1]} was killed while plains.csv was in fetch." in after
    assert "worker killed in fetch, went on there" in after
    assert "Rows in table demo_totals: 8 of 8 inputs, each written once." in after


@pytest.fixture
def demo_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'own.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.mark.parametrize("demo_url", ["sqlite", "postgresql"], indirect=True)
def test_json_tells_the_same_on_a_database_of_ones_own(demo_url: str, tmp_path: Path) -> None:
    done = run_demo("--json", "--db", demo_url, folder=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    record: dict[str, Any] = json.loads(done.stdout)
    assert record["as_expected"] is True
    assert record["problems"] == []
    items = {item["input"]: item for item in record["items"]}
    assert {item["result"] for item in items.values()} == {"completed"}
    assert items["inland.csv"]["errors"] == []
    assert [error["error_type"] for error in items["north.csv"]["errors"]][:2] == ["service_unavailable"] * 2
    assert items["north.csv"]["attempts"]["fetch"] >= 3
    assert items["islands.csv"]["errors"][0]["is_final"] is True
    assert items["islands.csv"]["kept"] == ["locate"]
    assert items["islands.csv"]["attempts"]["locate"] == 1
    assert record["refused_retry"]["code"] == "permanent_error"
    killed = record["killed_worker"]
    assert (killed["input"], killed["stage"]) == ("plains.csv", "fetch")
    assert 0 < killed["progress"] < 1
    assert killed["stages_run_after"] == ["fetch", "publish"]
    assert killed["replaced_by"] not in (killed["pid"], None)
    assert killed["taken_over_by"] not in (killed["pid"], None)
    assert "worker_lost" in [error["error_type"] for error in items["plains.csv"]["errors"]]
    assert record["rows_written"] == len(items)
    assert not any(map(is_alive, (killed["pid"], killed["replaced_by"], killed["taken_over_by"])))


def processes_of(kept: Path) -> dict[int, set[int]]:
    """From the log: the supervisor, and the workers that it started."""
    found: dict[int, set[int]] = {}
    log = (kept / "holdfast.log").read_text()
    for supervisor, worker in re.findall(r" (\d+) holdfast.supervisor: Worker process (\d+) started", log):
        found.setdefault(int(supervisor), set()).add(int(worker))
    return found


def two_at_work(kept: Path) -> tuple[int, set[int]] | None:
    """The supervisor and its workers, as soon as two of them live; the demo kills one some time."""
    [(supervisor, started)] = processes_of(kept).items()
    workers = set(filter(is_alive, started))
    return (supervisor, workers) if len(workers) == 2 else None


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name
)
def test_no_process_is_left_behind_however_it_ends(number: signal.Signals, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    # As a script starts it in the background, where Ctrl-C is ignored at first.
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *DEMO, "--keep", "--db", url],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith(" complete\n"):
            break
    [kept] = tmp_path.glob("holdfast-demo-*")
    supervisor, workers = run(eventually(lambda: two_at_work(kept), TIMEOUT_SECONDS), 2 * TIMEOUT_SECONDS)
    assert is_alive(supervisor)

    process.send_signal(number)

    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == (-number if number is signal.SIGKILL else 130)
    assert "Traceback" not in errors

    async def then() -> None:
        await eventually(lambda: not any(map(is_alive, (supervisor, *workers))), TIMEOUT_SECONDS)
        if number is not signal.SIGKILL:  # what had not ended waits for nobody
            async with Holdfast(url) as hf:
                page = await hf.executions(path=PIPELINE)
                assert "completed" in {view.status.value for view in page.items}
                assert "running" not in {view.status.value for view in page.items}

    try:
        run(then(), 2 * TIMEOUT_SECONDS)
    finally:
        if is_alive(supervisor):  # its workers follow it
            os.kill(supervisor, signal.SIGKILL)


def test_workers_that_end_at_once_end_the_demo_with_what_they_said(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'worker' in sys.orig_argv:\n"
        "    os.write(2, b'no worker starts here')\n"
        "    os._exit(7)\n"
    )
    done = subprocess.run(
        DEMO,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert [line for line in done.stdout.splitlines() if line.startswith("Not as expected")] == [
        "Not as expected: The workers have ended with code 7: no worker starts here"
    ]


def told_of_a_kill(starts: list[Start], replaced_by: int | None = 3) -> set[str]:
    """What is not as expected where worker 1 was killed during the first fetch, and these followed."""
    item = Item("plains.csv", 1, 4, starts=[Start("locate", 1, 1), Start("fetch", 1, 1)])
    item.killed = Killed(1, item.name, "fetch", 1, 0.5, 2)
    item.starts += starts
    return set(surprises(Findings(items=[item], replaced_by=replaced_by)))


def test_a_kill_that_does_not_end_as_promised_is_told() -> None:
    fetch, publish = Start("fetch", 2, 2), Start("publish", 1, 2)
    as_promised = told_of_a_kill([fetch, publish])
    not_resumed = {"plains.csv did not go on at fetch with locate kept."}
    assert told_of_a_kill([Start("locate", 2, 2), fetch, publish]) - as_promised == not_resumed
    assert told_of_a_kill([publish]) - as_promised == not_resumed
    assert told_of_a_kill([]) - as_promised == not_resumed
    by_the_dead = told_of_a_kill([fetch, Start("publish", 1, 1)])
    assert by_the_dead - as_promised == {"Worker 1 was killed and worked on."}
    alone = told_of_a_kill([fetch, publish], replaced_by=None)
    assert alone - as_promised == {"No worker was started in place of 1."}
    assert "No worker was killed." in set(surprises(Findings()))


def test_keep_leaves_the_database_and_the_log(tmp_path: Path) -> None:
    done = run_demo("--keep", folder=tmp_path)

    assert done.returncode == 0
    [kept] = tmp_path.iterdir()
    assert f"Kept: {kept}" in done.stdout
    assert (kept / "demo.db").exists()
    assert "service_unavailable" in (kept / "holdfast.log").read_text()


def test_a_terminal_gets_colours_and_a_table(tmp_path: Path) -> None:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        DEMO,
        cwd=tmp_path,
        env=os.environ | {"TERM": "xterm-256color", "TMPDIR": str(tmp_path), "COLUMNS": "80", "LINES": "40"},
        stdout=child,
        stderr=child,
        stdin=child,
    )
    os.close(child)
    output = read_all(parent)
    assert process.wait(TIMEOUT_SECONDS) == 0
    assert "\x1b[3" in output
    assert "running 1/4" in output
    assert "How each one ended" in output
    assert re.search(r"running 1/4, \d+%", output)
    assert "worker killed" in output
    assert "[/]" not in output


def read_all(terminal: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # how a terminal says that nobody writes to it any more
            part = b""
        if not part:
            os.close(terminal)
            return b"".join(parts).decode()
        parts.append(part)


def test_an_address_that_is_none_is_refused_with_a_sentence(tmp_path: Path) -> None:
    done = run_demo("--db", "mysql://root:secret@host/x", folder=tmp_path)

    assert done.returncode == 2
    assert done.stdout == ""
    assert "is not the address of a database" in done.stderr
    assert "secret" not in done.stderr
