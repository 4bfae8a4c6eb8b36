"""`holdfast demo` as people and scripts meet it: a process of its own, its output in a pipe."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_SECONDS = 100
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
        ("south.csv", "fetch", "Processing timed out (timeout, transient; exception type TimeoutError)"),
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
