"""Shell steps: commands with and without a shell, their output within bounds, their exit codes judged."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.catalogue import Category
from holdfast.core.error_rules import ErrorRule
from holdfast.core.failures import Failure, classify
from holdfast.core.model import Failed, Leased
from running import eventually, run
from typed_attempt import attempted, failure_of, judged, leased, outcome_of, result_of


def shell_job(command: Any, *, shell: bool = False, timeout: float = 60.0, **config: Any) -> Leased:
    return leased("code/shell", config={"command": command, "shell": shell, **config}, timeout=timeout)


def output(command: Any, **config: Any) -> Any:
    return result_of(shell_job(command, **config))


def failure(command: Any, **config: Any) -> Failure:
    return failure_of(shell_job(command, **config))


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def test_a_list_is_run_as_it_is_and_no_shell_looks_at_it() -> None:
    said = "$HOME; `id` | $(id) * \" ' ü"
    assert output(["printf", "%s", said]) == {"exit_code": 0, "stdout": said, "stderr": "", "data": said}


def test_a_text_needs_leave_for_a_shell_beside_it() -> None:
    told = failure("echo hello")
    assert "must be a list" in told.message
    assert "shell: true" in (told.guidance or "")
    assert output("echo hello | tr a-z A-Z", shell=True)["data"] == "HELLO"


@pytest.mark.parametrize(
    ("written", "data"),
    [
        ('{"rows": [1, 2.5, null]}\n', {"rows": [1, 2.5, None]}),
        ("42\n", 42),
        ("one\ntwo\n\n", "one\ntwo\n"),
        ("", ""),
        ("NaN", "NaN"),
        ("007", "007"),
        ('{"a": 1} trailing', '{"a": 1} trailing'),
        ("[" * 200 + "]" * 200, "[" * 200 + "]" * 200),
        ('"\\u0000"', '"\\u0000"'),
    ],
)
def test_data_is_json_where_the_output_is_json_else_the_text(written: str, data: Any) -> None:
    assert output(["printf", "%s", written])["data"] == data


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert output(["printf", r"a\377b\000c"])["stdout"] == "a\ufffdb\ufffdc"


def test_numbers_and_booleans_are_arguments_too() -> None:
    assert output(["printf", "%s %s %s", 3, 2.5, True])["data"] == "3 2.5 true"


@pytest.mark.parametrize("command", [[], None, "", ["echo", None], ["echo", ["x"]], ["echo", "a\0b"], {}])
def test_what_is_no_command_is_refused(command: Any) -> None:
    assert judged(failure(command)).error_type == "validation_error"


def test_the_environment_is_minimal_and_takes_what_the_step_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_TOKEN", "very secret")
    seen = output(
        python("import os, json; print(json.dumps(dict(os.environ)))"), env={"NAME": "ü", "COUNT": 3}
    )
    assert set(seen["data"]) - {"TZ", "LC_CTYPE"} == {"PATH", "LANG", "HOME", "TMPDIR", "NAME", "COUNT"}
    assert (seen["data"]["NAME"], seen["data"]["COUNT"]) == ("ü", "3")


def test_the_worker_s_folder_is_the_working_directory_unless_the_step_names_one(tmp_path: Path) -> None:
    assert output(["pwd"])["data"] == os.getcwd()
    assert output(["pwd"], cwd=str(tmp_path))["data"] == str(tmp_path.resolve())
    told = failure(["pwd"], cwd=str(tmp_path / "nowhere"))
    assert judged(told).error_type == "not_found"
    assert "working directory" in told.message and "re-upload" not in judged(told).guidance


@pytest.mark.parametrize(("given", "read"), [("a\nü", "a\nü"), ([{"id": 1}], '[{"id":1}]'), (None, "")])
def test_stdin_is_a_text_or_json_and_else_empty(given: Any, read: str) -> None:
    assert output(["cat"], stdin=given)["stdout"] == read


def test_a_large_stdin_that_nobody_reads_holds_up_nothing() -> None:
    assert output(["true"], stdin="x" * 1_000_000)["exit_code"] == 0


def test_a_value_cannot_be_pasted_into_a_shell_s_text() -> None:
    job = leased(
        "code/shell", config={"command": "echo {{ workload.name }}", "shell": True}, workload={"name": "; id"}
    )
    told = failure_of(job)
    assert "a value could be read as a command" in told.message
    safe = leased(
        "code/shell",
        config={"command": 'echo "$NAME"', "shell": True, "env": {"NAME": "{{ workload.name }}"}},
        workload={"name": "; id"},
    )
    assert result_of(safe)["data"] == "; id"


# exit codes


@pytest.mark.parametrize(
    ("exit_code", "error_type", "category"),
    [
        (1, "unknown", Category.UNKNOWN),
        (75, "transient_error", Category.TRANSIENT),
        (124, "timeout", Category.TRANSIENT),
        (126, "validation_error", Category.PERMANENT),
        (127, "not_found", Category.PERMANENT),
        (137, "process_crashed", Category.TRANSIENT),
        (139, "process_crashed", Category.TRANSIENT),
        (141, "unknown", Category.UNKNOWN),
    ],
)
def test_exit_codes_are_judged(exit_code: int, error_type: str, category: Category) -> None:
    classification = judged(failure(f"exit {exit_code}", shell=True))
    assert (classification.error_type, classification.category) == (error_type, category)


def test_the_end_of_stderr_tells_more_and_is_classified_by_its_words() -> None:
    told = failure("echo working; echo 'curl: (7) Connection refused' >&2; exit 7", shell=True)
    assert told.message == "The command ended with exit code 7: curl: (7) Connection refused"
    assert told.stack_trace == "stdout:\nworking\n\nstderr:\ncurl: (7) Connection refused\n"
    assert judged(told).error_type == "connection_error"


def test_an_errors_rule_may_name_an_exit_code() -> None:
    told = failure("exit 3", shell=True)
    rule = ErrorRule("not_ready", message="exit code 3")
    assert classify(told, [rule]).category is Category.TRANSIENT
    permanent = ErrorRule("validation_error", message="exit code 75")
    assert classify(failure("exit 75", shell=True), [permanent]).category is Category.PERMANENT


def test_a_signal_is_named() -> None:
    told = failure(python("import os; os.kill(os.getpid(), 15)"))
    assert told.message == "The command was ended by SIGTERM (terminated), and wrote nothing."
    assert judged(told).error_type == "process_crashed"


@pytest.mark.parametrize("command", ["no-such-program-here", "/nonexistent/program"])
def test_a_program_that_is_not_there_is_permanent(command: str) -> None:
    told = failure([command, "x"])
    assert judged(told).error_type == "not_found"
    assert "was not found" in told.message and "install" in judged(told).guidance


def test_a_file_that_cannot_be_executed_is_permanent(tmp_path: Path) -> None:
    file = tmp_path / "data.txt"
    file.write_text("x")
    classification = judged(failure([str(file)]))
    assert (classification.error_type, classification.category) == ("validation_error", Category.PERMANENT)


# bounds


def test_a_command_that_talks_too_much_does_not_fail_and_says_what_was_cut() -> None:
    seen = output(
        python("import sys; print('x' * 3_000_000); print('e' * 3_000_000 + 'END', file=sys.stderr)")
    )
    assert seen["cut"] == ["data", "stderr", "stdout"]
    assert seen["stdout"].startswith("xxx") and seen["stderr"].endswith("END\n") and seen["data"] is None
    assert len(json.dumps(seen)) < 1_048_576


@pytest.mark.parametrize("character", ["x", "\\x01", "ü", "\\x00"])
def test_an_output_that_fits_in_memory_but_not_in_the_store_is_cut_to_fit(character: str) -> None:
    seen = output(python(f"print('{character}' * 900_000)"))
    assert seen["cut"] and seen["data"] is None and len(seen["stdout"]) > 100_000


def test_data_is_kept_before_the_text_it_was_read_from() -> None:
    seen = output(python("import json; print(json.dumps(list(range(100_000))))"))
    assert seen["data"] == list(range(100_000))
    assert seen["cut"] == ["stdout"]


def test_memory_is_limited() -> None:
    job = shell_job(python("x = bytearray(300 * 1024 * 1024); print('done')"))
    assert result_of(job)["data"] == "done"
    told = failure_of(job, environ={"HOLDFAST_CODE_MEMORY": "200MB"})
    assert "MemoryError" in told.message


@pytest.mark.skipif(sys.platform != "linux", reason="who is whose child can be told on Linux only")
def test_nothing_is_left_running_at_its_timeout(tmp_path: Path) -> None:
    command = f"setsid sleep 1000 & echo $! > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/pids; sleep 1000"

    async def scenario() -> None:
        attempt = asyncio.create_task(attempted(shell_job(command, shell=True, timeout=15.0)))
        pid = int(await eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text()))
        outcome = await attempt
        assert isinstance(outcome, Failed) and judged(outcome.failure).error_type == "timeout"
        await eventually(lambda: not Path(f"/proc/{pid}").exists())

    run(scenario())


def test_what_it_leaves_in_the_background_does_not_hold_it_up() -> None:
    assert output("sleep 1000 & echo started", shell=True)["data"] == "started"


def test_a_worker_without_leave_does_not_offer_it() -> None:
    with pytest.raises(KeyError):
        outcome_of(shell_job(["true"]), leave=_no_leave())


def _no_leave() -> Any:
    from holdfast.worker.typed import Leave

    return Leave()
