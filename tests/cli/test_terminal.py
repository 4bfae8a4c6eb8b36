"""What only a real process shows: a terminal that is asked and answers, and a reader that goes away."""

import os
import subprocess
import sys

import pytest

from command_scenario import LIMIT_SECONDS, holdfast, on_a_terminal, told
from engine_scenario import Scenario, stage
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
