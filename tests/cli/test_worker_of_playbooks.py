"""`holdfast worker` for playbooks: without a program, with functions, with leave only where it is given."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_scenario import LIMIT_SECONDS, holdfast
from holdfast import Holdfast
from holdfast.pipelines.registry import all_functions
from playbook_files import CHAIN, playbook, written
from store_scenario import ENVIRONMENT

CALL = """
  - step: double
    type: python
    call: worker_test_steps:double
    with: {n: "{{ workload.n }}"}
"""
FUNCTIONS = "def double(n):\n    return 2 * n\n\n\ndef other():\n    pass\n"


@contextlib.contextmanager
def worker(folder: Path, url: str, *options: str) -> Iterator[None]:
    command = [sys.executable, "-m", "holdfast", "worker", "--db", url, "--grace", "0", *options]
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    try:
        yield
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def test_a_worker_without_a_program_calls_the_functions_it_is_given(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "worker_test_steps.py").write_text(FUNCTIONS)
    file = written(tmp_path, playbook(CALL, workload="{n: 1}"))
    assert holdfast(store_url, "catalog", "add", file).code == 0
    waiting = holdfast(store_url, "submit", "tests/flow")
    assert "No living worker offers its first step" in waiting.err
    status = holdfast(store_url, "status").out
    assert "worker_test_steps:double" in status
    assert "holdfast worker --functions worker_test_steps:double" in status
    with worker(tmp_path, store_url, "--functions", "worker_test_steps"):
        said = holdfast(store_url, "submit", "tests/flow", "--set", "n=21", "--within", "60s", "--json")
        assert (said.code, said.json["result"]) == (0, 42), said
        assert holdfast(store_url, "status", 1, "--within", "60s", "--json").json["result"] == 2


def test_code_is_left_to_a_worker_with_leave_for_it(sqlite_url: str, tmp_path: Path) -> None:
    holdfast(sqlite_url, "catalog", "add", written(tmp_path, CHAIN))
    holdfast(sqlite_url, "submit", "tests/flow")
    with worker(tmp_path, sqlite_url):
        other = written(
            tmp_path, playbook("  - step: nap\n    type: sleep\n    seconds: 0\n", path="tests/nap")
        )
        holdfast(sqlite_url, "catalog", "add", other)
        assert holdfast(sqlite_url, "submit", "tests/nap", "--within", "60s").code == 0
        [job] = holdfast(sqlite_url, "queue", "--status", "queued", "--json").json["items"]
        assert (job["step"], job["attempts"]) == ("greet", 0)
        status = holdfast(sqlite_url, "status").out
        assert "1 job waits for inline code" in status and "holdfast worker --allow-code" in status
    with worker(tmp_path, sqlite_url, "--allow-code"):
        said = holdfast(sqlite_url, "status", 1, "--within", "60s", "--json")
        assert (said.code, said.json["result"]["chars"]) == (0, 9)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], (set(), False, False)),
        (["--functions", "worker_test_steps:double"], ({"worker_test_steps:double"}, False, False)),
        (
            ["--functions", "worker_test_steps", "--allow-code", "--allow-shell"],
            ({"worker_test_steps:double", "worker_test_steps:other"}, True, True),
        ),
        (["--app", "worker_test_app:hf", "--allow-shell"], ({"own"}, False, True)),
        (
            ["--app", "worker_test_app:hf", "--functions", "worker_test_steps:other"],
            ({"own", "worker_test_steps:other"}, False, False),
        ),
    ],
)
def test_the_flags_reach_the_worker(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    expected: tuple[set[str], bool, bool],
) -> None:
    (tmp_path / "worker_test_steps.py").write_text(FUNCTIONS)
    app = (
        "from holdfast import Holdfast\nhf = Holdfast()\n\n\n@hf.function(name='own')\ndef own():\n    pass\n"
    )
    (tmp_path / "worker_test_app.py").write_text(app)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("worker_test_steps", "worker_test_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    used = []

    def run_worker(hf: Holdfast, *, allow_code: bool, allow_shell: bool, **_: object) -> None:
        assert all_functions().keys() <= hf._functions.keys()
        used.append((hf._functions.keys() - all_functions().keys(), allow_code, allow_shell))

    monkeypatch.setattr("holdfast.Holdfast.run_worker", run_worker)
    assert holdfast(None, "worker", *options).code == 0
    assert used == [expected]
    for name in ("worker_test_steps", "worker_test_app"):
        sys.modules.pop(name, None)


def test_functions_that_are_not_there_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for spec in ("nothing_of_that_name", "json:nothing", "json:", ":x"):
        said = holdfast(None, "worker", "--functions", spec)
        assert said.code == 2 and said.err.startswith("holdfast: "), said
