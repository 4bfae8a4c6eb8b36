"""How tests use the command line: `holdfast(url, "queue")` runs a command here and gives what it said.

`told` makes the history that a command is to show, with the story-telling of the engine's tests; its
clock stands in the year 1970, which is long ago for the commands.
"""

import asyncio
import contextlib
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from click.testing import CliRunner

from engine_scenario import Scenario, scenario
from holdfast.cli import commands
from holdfast.cli.going_on import at
from running import run
from served_stores import address_options
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
    command = [*map(str, args), *(address_options(url) if url else [])]
    environment = {"HOLDFAST_DB": None, "HOLDFAST_SERVER": None, "HOLDFAST_TOKEN": None, **env}
    done = CliRunner().invoke(commands, command, input=stdin, env=environment)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Said(done.exit_code, done.stdout, done.stderr)


def there(url: str) -> str:
    """What stands behind the commands that one of `holdfast(url, …)` advises to type."""
    return at(address_options(url)[1])


async def holdfast_meanwhile(url: str, *args: object) -> Said:
    """The same beside what runs on this event loop."""
    return await asyncio.to_thread(holdfast, url, *args)


@contextlib.contextmanager
def process(*args: object, **env: str) -> Iterator[subprocess.Popen[str]]:
    """`holdfast` as a process of its own; killed where it would outlive the test."""
    started = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *map(str, args)],
        env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stuck = threading.Timer(2 * LIMIT_SECONDS, started.kill)
    stuck.start()
    try:
        yield started
    finally:
        stuck.cancel()
        started.kill()
        started.communicate()


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


def on_a_terminal(url: str, *args: object, answer: str = "", **env: str) -> tuple[int, str]:
    """The exit code and all that the terminal got, when a person types this answer."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast", *map(str, args), *address_options(url)]
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "100", **env}
    started = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        os.write(ours, answer.encode())
        shown = all_shown(ours)
        return started.wait(LIMIT_SECONDS), shown.decode()
    finally:
        started.kill()
        started.wait()
        os.close(ours)
