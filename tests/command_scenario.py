"""How tests use the command line: `holdfast(url, "queue")` runs a command here and gives what it said.

`told` makes the history that a command is to show, with the story-telling of the engine's tests; its
clock stands in the year 1970, which is long ago for the commands.
"""

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from click.testing import CliRunner

from engine_scenario import Scenario, scenario
from holdfast.cli import commands
from running import run
from store_scenario import ENVIRONMENT

LIMIT_SECONDS = 60


class Said:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"exit code {self.code}\nstdout: {self.out}\nstderr: {self.err}"


def holdfast(url: str | None, *args: object, stdin: str | bytes | None = None, **env: str | None) -> Said:
    """Run a command; whatever it raises beyond its exit code is the test's."""
    command = [*map(str, args), *(["--db", url] if url else [])]
    done = CliRunner().invoke(commands, command, input=stdin, env={"HOLDFAST_DB": None, **env})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Said(done.exit_code, done.stdout, done.stderr)


async def holdfast_meanwhile(url: str, *args: object) -> Said:
    """The same beside what runs on this event loop."""
    return await asyncio.to_thread(holdfast, url, *args)


def told(url: str, story: Callable[[Scenario], Awaitable[Any]]) -> Any:
    async def play() -> Any:
        async with scenario(url) as played:
            return await story(played)

    return run(play())


def all_shown(terminal: int) -> bytes:
    """What it gets until whoever writes to it has ended."""
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # how Linux says that the other end is closed
            return shown
        if not part:
            return shown
        shown += part


def on_a_terminal(url: str, *args: object, answer: str = "") -> tuple[int, str]:
    """The exit code and all that the terminal got, when a person types this answer."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast", *map(str, args), "--db", url]
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        os.write(ours, answer.encode())
        shown = all_shown(ours)
        return process.wait(LIMIT_SECONDS), shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
