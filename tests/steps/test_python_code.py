"""Inline code: how it is called, what it may return, and all the ways in which it can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.catalogue import Category
from holdfast.core.failures import Failure
from holdfast.core.model import Failed, Leased
from holdfast.steps import supervised
from running import eventually, run
from typed_attempt import attempted, failure_of, judged, leased, result_of


def code_job(source: str, **options: Any) -> Leased:
    return leased("code/python", config={"code": textwrap.dedent(source)}, **options)


def result(source: str, **input: Any) -> Any:
    return result_of(code_job(source, input=input))


def failure(source: str, **input: Any) -> Failure:
    return failure_of(code_job(source, input=input))


def is_running(pid: int) -> bool:
    """Not a zombie either, which only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders of programs are made, to see that they are removed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


# how it is called


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def main(): return 1", 1),
        ("def main(input_data): return input_data", {"a": 1, "b": 2}),
        ("def main(input): return input", {"a": 1, "b": 2}),
        ("def main(a, b): return a + b", 3),
        ("def main(b, *, a): return [a, b]", [1, 2]),
        ("def main(a, c=5): return a + c", 6),
        ("def main(a, **rest): return rest", {"b": 2}),
        ("def main(input_data, a): return [a, len(input_data)]", [1, 2]),
        ("async def main(a): return a", 1),
        ("result = [1, None, 'ü']", [1, None, "ü"]),
        ("import math\nFACTOR = 2\ndef main(b): return math.sqrt(b * FACTOR)", 2.0),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nresult = P(3)", {"x": 3}),
        ("from datetime import date\nresult = date(2024, 2, 29)", "2024-02-29"),
        ("main = 3\nresult = 4", 4),
    ],
)
def test_code_is_called_by_the_names_of_its_parameters(source: str, expected: Any) -> None:
    assert result(source, a=1, b=2) == expected


def test_a_lone_input_data_is_the_whole_input_also_of_one_that_has_such_a_key() -> None:
    assert result("def main(input_data): return input_data", input_data=1, b=2) == {"input_data": 1, "b": 2}
    assert result("def main(input_data, b): return input_data", input_data=1, b=2) == 1


def test_code_is_no_template() -> None:
    assert result("def main(a): return f'{{{a}}}' + '{{ a }}'", a=1) == "{1}{{ a }}"


def test_its_own_with_is_rendered_over_what_was_handed_on() -> None:
    job = code_job(
        "def main(input_data): return input_data",
        input={"a": 1, "b": 2},
        inputs={"b": "{{ input.b + workload.more }}", "c": "{{ fetch.data.rows }}"},
        workload={"more": 40},
        outputs={"fetch": {"data": {"rows": [1, 2]}}},
    )
    assert result_of(job) == {"a": 1, "b": 42, "c": [1, 2]}


def test_a_parameter_that_the_input_lacks_is_named() -> None:
    told = failure("def main(rows, limit): return 1", limit=3)
    assert "main() asks for rows, and the step's input has limit" in told.message
    assert judged(told).category is Category.PERMANENT
    assert "input_data" in judged(told).guidance


def test_code_without_main_and_result_is_refused() -> None:
    told = failure("x = 1")
    assert "neither a function main nor a variable result" in told.message
    assert judged(told).category is Category.PERMANENT


# what it raises


def test_a_trace_shows_the_authors_own_lines_and_what_was_printed_before() -> None:
    told = failure(
        """\
        import json

        def deeper(x):
            return json.loads(x)

        def main(input_data):
            print("so far so good")
            return deeper("{")
        """
    )
    assert 'File "<code of step work>", line 8, in main\n    return deeper("{")' in told.stack_trace
    assert 'File "<code of step work>", line 4, in deeper' in told.stack_trace
    assert told.stack_trace.startswith("Printed by the code:\nso far so good\n")
    assert "code_child" not in told.stack_trace
    assert (told.exception, judged(told).error_type) == ("JSONDecodeError", "validation_error")


def test_a_syntax_error_is_permanent_and_names_the_line() -> None:
    told = failure("x = 1\nif x\n    y = 2\n")
    assert told.message.startswith("The code of step work is not valid Python, line 2: expected ':'")
    assert judged(told).category is Category.PERMANENT


@pytest.mark.parametrize(
    ("source", "error_type", "category"),
    [
        ("raise TimeoutError('slow')", "timeout", Category.TRANSIENT),
        ("class Flaky(Exception): pass\nraise Flaky('connection refused')", "connection_error", "transient"),
        ("class RateLimit(Exception): pass\nraise RateLimit()", "rate_limit", "transient"),
        ("import holdfast\nraise holdfast.TransientError('x', error_type='tide')", "tide", "transient"),
        ("from holdfast import PermanentError\nraise PermanentError('x')", "permanent_error", "permanent"),
        (
            "from holdfast.core.errors import TransientError as T\nraise T('x')",
            "transient_error",
            "transient",
        ),
        ("raise RuntimeError('what?')", "unknown", Category.UNKNOWN),
        ("import no_such_module_anywhere", "unknown", Category.UNKNOWN),
    ],
)
def test_what_code_raises_is_classified_as_ever(source: str, error_type: str, category: str) -> None:
    classification = judged(failure(source))
    assert (classification.error_type, classification.category) == (error_type, category)


def test_any_other_name_of_holdfast_can_be_imported_too() -> None:
    assert result("from holdfast import Retry\nresult = Retry().max_attempts") == 3


# what it does to its process


@pytest.mark.parametrize(
    ("source", "message", "error_type"),
    [
        ("import os\nos._exit(3)", "ended with exit code 3", "process_exited"),
        ("import os\nos._exit(0)", "ended with exit code 0", "process_exited"),
        ("import sys\nsys.exit(3)", "called exit(3)", "process_exited"),
        ("exit()", "called exit(None)", "process_exited"),
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
            "was ended by SIGKILL",
            "process_crashed",
        ),
        ("import ctypes\ndef main():\n    ctypes.string_at(0)", "was ended by SIGSEGV", "process_crashed"),
    ],
)
def test_the_end_of_its_process_is_told_as_what_it_was(source: str, message: str, error_type: str) -> None:
    told = failure(source)
    assert message in told.message
    assert judged(told).error_type == error_type


def test_a_crash_in_native_code_is_told_with_the_line_that_led_there() -> None:
    told = failure("import ctypes\ndef main():\n    ctypes.string_at(0)")
    assert 'File "<code of step work>", line 3 in main' in told.stack_trace


def test_too_much_memory_is_refused_by_the_system() -> None:
    job = code_job("x = bytearray(200 * 1024 * 1024)\nresult = 1")
    assert result_of(job) == 1
    told = failure_of(job, environ={"HOLDFAST_CODE_MEMORY": "100MB"})
    assert told.message == "The code of step work needed more memory than its limit of 100 MB."
    assert judged(told).error_type == "memory_limit"


def test_a_lack_of_memory_is_told_even_where_none_is_left() -> None:
    job = code_job("kept = []\nwhile True: kept.append(bytearray(100_000))")
    told = failure_of(job, environ={"HOLDFAST_CODE_MEMORY": "100MB"})
    assert "needed more memory than its limit" in told.message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("result = object()", "cannot be written as JSON"),
        ("result = {1: 2}", "the key 1 at $, which is not a string"),
        ("result = float('nan')", "holds nan"),
        ("result = 'a\\0b'", "has a NUL character"),
        ("result = '\\ud800'", "cannot be written as JSON"),
        ("result = []\nresult.append(result)", "cannot be written as JSON"),
        ("result = 'x' * 2_000_000", "the limit is 1,048,576 bytes"),
        ("result = eval('[' * 90 + ']' * 90)\nfor _ in range(20): result = [result]", "nested deeper"),
    ],
)
def test_a_result_that_cannot_be_stored_is_a_permanent_failure(source: str, message: str) -> None:
    told = failure(source)
    assert message in told.message
    assert judged(told).category is Category.PERMANENT


def test_it_has_a_folder_of_its_own_which_is_removed_and_nothing_of_the_worker(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_TOKEN", "very secret")
    seen = result(
        """
        import os, pathlib, sys
        pathlib.Path("left.txt").write_text("x")
        os.mkdir("deeper")
        result = {
            "env": dict(os.environ), "cwd": os.getcwd(), "stdin": sys.stdin.read(),
            "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
        }
        """
    )
    assert set(seen["env"]) - {"TZ", "LC_CTYPE"} == {"PATH", "LANG", "HOME", "TMPDIR"}
    assert seen["cwd"] == seen["env"]["HOME"] == seen["env"]["TMPDIR"]
    assert Path(seen["cwd"]).parent == home
    assert seen["stdin"] == ""
    assert len(seen["fds"]) <= 5  # its three streams, the answer, and the listing itself
    assert list(home.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="who is whose child can be told on Linux only")
@pytest.mark.parametrize("options", ["", "start_new_session=True"])
def test_what_it_leaves_running_is_killed_with_its_end(options: str) -> None:
    pid = result(
        f"""
        import subprocess
        result = subprocess.Popen(["sleep", "1000"], {options}).pid
        """
    )
    assert not is_running(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="who is whose child can be told on Linux only")
def test_children_of_children_in_groups_of_their_own_are_killed_too() -> None:
    pids = result(
        """
        import os, time
        def fork(depth):
            reading, writing = os.pipe()
            if os.fork() == 0:
                os.setsid()
                os.write(writing, str(os.getpid()).encode())
                if depth:
                    fork(depth - 1)
                while True:
                    time.sleep(1)
            return int(os.read(reading, 20))
        result = [fork(2) for _ in range(5)]
        """
    )
    assert len(pids) == 5
    assert not [pid for pid in pids if is_running(pid)]


def test_what_it_forks_does_not_answer_for_it() -> None:
    assert (
        result("import os\nforked = os.fork()\nif forked: os.waitpid(forked, 0)\nresult = forked != 0")
        is True
    )


def test_what_it_prints_is_logged_within_bounds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="holdfast.steps"):
        assert result("print('first')\nprint('x' * 3_000_000)\nresult = 1") == 1
    [record] = [record for record in caplog.records if record.name == "holdfast.steps"]
    assert "first" in record.getMessage()
    assert len(record.getMessage()) < 200_000


# how it is ended


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "while True: print('x' * 100_000)",
        "import signal\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: signal.pause()",
        "import os, time\nos.close(1); os.close(2)\nwhile True: time.sleep(1)",
    ],
)
def test_at_its_timeout_it_is_killed(source: str, home: Path) -> None:
    async def scenario() -> None:
        outcome = await attempted(code_job(source, timeout=2.0))
        assert isinstance(outcome, Failed)
        assert judged(outcome.failure).error_type == "timeout"
        await eventually(lambda: not list(home.iterdir()))  # removed when it has ended

    run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="who is whose child can be told on Linux only")
def test_cancelled_it_ends_with_everything_it_has_started(home: Path) -> None:
    source = """
        import os, pathlib, subprocess, time
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid} .")
        time.sleep(1000)
        """

    async def scenario() -> None:
        task = asyncio.create_task(attempted(code_job(source)))
        pids = await eventually(lambda: _pids_in(home))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await eventually(lambda: not any(map(is_running, pids)))
        await eventually(lambda: not list(home.iterdir()))

    run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="who is whose child can be told on Linux only")
def test_it_ends_also_while_a_fork_of_the_worker_holds_its_pipe_open(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "END_SECONDS_MAX", 600)  # when a supervisor is killed that does not hear
    source = """
        import os, pathlib, time
        pathlib.Path("pids").write_text(f"{os.getpid()} .")
        time.sleep(1000)
        """

    async def scenario() -> int:
        task = asyncio.create_task(attempted(code_job(source)))
        pids = await eventually(lambda: _pids_in(home))
        forked = os.fork()
        if forked == 0:
            signal.pause()  # until it is killed
        try:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await eventually(lambda: not any(map(is_running, pids)))
        finally:
            os.kill(forked, signal.SIGKILL)
        return forked

    os.waitpid(run(scenario()), 0)


def _pids_in(home: Path) -> list[int]:
    for file in home.glob("*/pids"):
        *pids, end = file.read_text().split() or [""]
        if end == ".":
            return [int(pid) for pid in pids]
    return []


@pytest.mark.skipif(sys.platform != "linux", reason="who is whose child can be told on Linux only")
def test_it_does_not_outlive_a_worker_that_is_killed(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        pids = run(eventually(lambda: _pids_in(tmp_path)))
        os.kill(worker.pid, signal.SIGKILL)
        run(eventually(lambda: not any(map(is_running, pids))))
        run(eventually(lambda: not list(tmp_path.iterdir())))
    finally:
        worker.kill()
        worker.wait()


_WORKER = '''
from typed_attempt import leased, outcome_of
outcome_of(leased("code/python", config={"code": """
import os, pathlib, subprocess, time
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
pathlib.Path(os.environ["HOME"], "pids").write_text(f"{os.getpid()} {child.pid} .")
time.sleep(1000)
"""}))
'''


def test_a_supervisor_that_is_killed_is_told() -> None:
    told = failure("import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(1000)")
    assert "the one that watched over it has ended" in told.message
    assert judged(told).category is Category.TRANSIENT


def test_a_process_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised.sys, "executable", "/nonexistent/python")
    told = failure("result = 1")
    assert "could not be started: the system refused" in told.message
    assert judged(told).category is Category.UNKNOWN


def test_many_at_once_do_not_disturb_each_other() -> None:
    async def scenario() -> list[Any]:
        jobs = [code_job("def main(n): return n * n", input={"n": n}) for n in range(8)]
        return [getattr(one, "result", one) for one in await asyncio.gather(*map(attempted, jobs))]

    assert run(scenario()) == [str(n * n) for n in range(8)]


@pytest.mark.parametrize(
    "source",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nresult = 1",
        "import concurrent.futures as futures, time\npool = futures.ThreadPoolExecutor()\n"
        "def main():\n    pool.submit(time.sleep, 1000)\n    return 1",
    ],
    ids=["thread", "pool"],
)
def test_a_thread_that_does_not_end_does_not_hold_up_an_answer(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "END_SECONDS_MAX", 600)  # for what was told to end, which this was not
    assert result_of(code_job(source, timeout=30)) == 1


def test_an_answer_is_handed_out_before_the_time_of_its_attempt_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervised, "ANSWERED_SECONDS_MAX", 600)
    source = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nresult = 1"

    async def scenario() -> supervised.Ended:
        code = {"source": source, "step": "work", "input": "{}", "output_bytes_max": 100, "memory_shown": ""}
        program = supervised.Program(step="work", code=code, answer_bytes_max=1000, ends_at=time.monotonic())
        return await supervised.run_supervised(program)

    assert run(scenario()).answer.kept.endswith(b"R1")
