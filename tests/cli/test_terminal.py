"""What only a real process shows: a terminal that is asked and answers, and a reader that goes away."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_scenario import LIMIT_SECONDS, all_shown, holdfast, on_a_terminal, told
from engine_scenario import Scenario, stage
from holdfast.cli.output import wrapped
from playbook_files import BROKEN, playbook, written
from store_scenario import ENVIRONMENT


async def failures(s: Scenario) -> None:
    """Both failed at send; the result of parse is there."""
    await s.define(stage("parse", attempts=1), stage("send", attempts=1))
    for _ in range(2):
        await s.submit({"words": "many words " * 30})
    for job in await s.lease():
        await s.complete(job, '"kept"')
    for job in await s.lease():
        await s.fail(job, "connection refused \x1b]0;evil\x07")


@pytest.fixture
def url(sqlite_url: str) -> str:
    told(sqlite_url, failures)
    return sqlite_url


def test_a_full_retry_asks_before_results_are_lost(url: str) -> None:
    code, shown = on_a_terminal(url, "retry", 1, "--full", answer="n\n")
    assert code == 1 and "discards the results up to parse" in shown and "Nothing was changed." in shown
    assert holdfast(url, "status", 1, "--json").json["status"] == "failed"
    code, shown = on_a_terminal(url, "retry", 1, "--full", answer="y\n")
    assert code == 0 and "runs again from parse" in shown


def test_a_redrive_of_many_asks_with_the_number_of_them(url: str) -> None:
    code, shown = on_a_terminal(url, "redrive", "--all", answer="n\n")
    assert code == 1 and "2 executions would be started again." in shown and "Go on?" in shown
    code, shown = on_a_terminal(url, "redrive", "--all", answer="y\n")
    assert code == 0 and "2 executions were started again." in shown


def test_a_terminal_gets_tables_and_no_foreign_commands(url: str) -> None:
    code, shown = on_a_terminal(url, "status", 1)
    assert code == 0 and "─" in shown and "\x1b[" in shown  # a table, in colours of our own
    assert "\x1b]0;" not in shown and "evil" in shown
    code, shown = on_a_terminal(url, "dead")
    assert code == 0 and "holdfast redrive --path p" in shown


def test_a_terminal_shows_pauses_and_limits(url: str) -> None:
    code, shown = on_a_terminal(url, "pause", "step", "p/send", "--by", "ann", "--reason", "many words " * 20)
    assert code == 0 and "Step p/send is paused." in shown and "holdfast resume step p/send" in shown
    code, shown = on_a_terminal(url, "status")
    assert code == 0 and "step p/send paused by ann since" in shown
    holdfast(url, "limits", "set", "portal", 5)
    code, shown = on_a_terminal(url, "limits", "list")
    assert code == 0 and "─" in shown and "portal" in shown


def test_a_reader_that_goes_away_ends_a_command_without_a_word(url: str) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "holdfast", "queue", "--db", url]
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=LIMIT_SECONDS, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    "args", [["--help"], ["status"], ["status", "1", "--json"], ["status", "99", "--json"], ["retry", "1"]]
)
def test_a_full_disk_under_the_output_is_a_sentence_and_an_exit_code_of_its_own(
    url: str, args: list[str]
) -> None:
    command = [sys.executable, "-m", "holdfast", *args]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            env={**ENVIRONMENT, "HOLDFAST_DB": url},
            timeout=LIMIT_SECONDS,
            check=False,
        )
    assert done.returncode == 74
    assert b"The output cannot be written: No space left on device." in done.stderr
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_run_on_a_full_disk_says_so_too(sqlite_url: str, tmp_path: Path, options: list[str]) -> None:
    file = written(tmp_path, playbook("  - {step: a, type: sleep, seconds: 0}\n"))
    command = [sys.executable, "-m", "holdfast", "run", file, "--db", sqlite_url, *options]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=LIMIT_SECONDS, check=False
        )
    assert done.returncode == 74 and b"The output cannot be written" in done.stderr
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr


# narrow ones


LONG = "a_step_whose_name_" * 4


async def long_names(s: Scenario) -> None:
    await s.define(stage(LONG, attempts=1), stage("send", attempts=2))
    await s.submit()
    await s.complete(await s.lease_one(), '"the output"')
    for _ in range(2):
        s.tick(3600)
        await s.fail(await s.lease_one(), "many words " * 200)


def test_a_narrow_terminal_has_room_for_what_long_names_are(sqlite_url: str) -> None:
    told(sqlite_url, long_names)
    code, shown = at_columns(60, sqlite_url, "status", "1")
    outputs = shown.partition("Outputs")[2].partition("Failed attempts")[0]
    assert code == 0 and re.search(r'a_step_whose_name_a_ +"the output"', outputs), outputs
    failed = shown.partition("Failed attempts")[2]
    assert failed.count("many") < 40 and "…" in failed and "holdfast events 1" in failed
    piped = holdfast(sqlite_url, "status", 1).out.partition("Failed attempts")[2]
    assert piped.count("many") == 400  # a pipe gets all of it


def test_refusals_are_wrapped_between_words(sqlite_url: str, tmp_path: Path) -> None:
    code, shown = at_columns(60, sqlite_url, "run", written(tmp_path, BROKEN))
    lines = shown.splitlines()
    assert code == 2 and max(len(line) for line in lines if " " in line.strip()) <= 60
    assert "There is no" in shown.replace("\n    ", " ")


def test_a_command_that_does_not_fit_behind_its_words_gets_a_line_of_its_own() -> None:
    command = "holdfast redrive --path shop/prices --server http://jobs.example:8083"
    assert list(wrapped(f"  Start them again:  {command}", 60)) == ["  Start them again:", f"    {command}"]
    assert list(wrapped(f"Start them again:  {command}", 100)) == [f"Start them again:  {command}"]


def test_a_command_on_a_line_of_its_own_is_not_wrapped() -> None:
    command = f"  holdfast run --resume 1 --db sqlite:///{'x' * 90}"
    assert list(wrapped(f"Type in a while:\n{command}", 40)) == ["Type in a while:", command]


def test_no_color_means_no_styles_either(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told(sqlite_url, failures)
    monkeypatch.setitem(ENVIRONMENT, "NO_COLOR", "1")
    code, shown = on_a_terminal(sqlite_url, "status", 1)
    assert code == 0 and "─" in shown and not re.search(r"\x1b\[[0-9;]*m", shown)


def at_columns(columns: int, url: str, *args: str) -> tuple[int, str]:
    """What a terminal that is so wide gets, without its colours."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *args, "--db", url],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**ENVIRONMENT, "TERM": "xterm", "COLUMNS": str(columns)},
    )
    os.close(theirs)
    try:
        shown = all_shown(ours).decode()
        return process.wait(LIMIT_SECONDS), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r\n", "\n")
    finally:
        process.kill()
        process.wait()
        os.close(ours)
