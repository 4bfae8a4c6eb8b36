"""A terminal of 80 columns, at which the tests of the tutorials type what a page says.

    with terminal_in(tmp_path, PORTAL, SERVER) as terminal:
        terminal.type("python3 examples/portal.py")      a service: it goes on in a terminal of its own
        terminal.type("holdfast batch submit …")         anything else: to its end
        terminal.assert_shown("Batch 1 … is submitted")

Lines go through a shell, in an empty folder that has the examples of this checkout. Services listen on ports
that are free, also between a stop and the next start, and texts of a page are read with those. In what a page
shows `…` stands for anything, and times are those of the day.
"""

import contextlib
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from command_scenario import all_shown
from ports import kept_ports

ROOT = Path(__file__).parent.parent
LIMIT_SECONDS = 120
STOP_SECONDS = 10
SHOWN_SECONDS = 30
POLL_SECONDS = 0.02
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SECONDS = re.compile(r"\b\d+(\.\d+)? (s|min)\b")
HEREDOC = re.compile(r"<<'(\w+)'")
BLOCK = re.compile(r"^```(\w+(?: \w+)?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def told_in(page: Path, phrases: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """What there is to do, in order: blocks with what stands behind their fence, and phrases of the text that
    ask for something, with what these are called."""
    text = page.read_text()
    found = [(match.start(), match[1], match[2]) for match in BLOCK.finditer(text)]
    for phrase, kind in (phrases or {}).items():
        found += [(match.start(), kind, "") for match in re.finditer(phrase.replace(" ", r"\s"), text)]
    return [(kind, content) for _, kind, content in sorted(found)]


def commands_in(block: str) -> Iterator[str]:
    """One after the other, each with the lines that it goes on in: behind a backslash, or as its heredoc."""
    lines = iter(block.splitlines())
    for line in lines:
        while line.endswith("\\"):
            line = f"{line[:-1]} {next(lines)}"
        if (found := HEREDOC.search(line)) is not None:
            end = found[1]
            line = "\n".join([line, *takewhile(end.__ne__, lines), end])
        yield line


@dataclass(frozen=True)
class Service:
    """A program that runs until Ctrl-C: how a line that starts it begins, and where it listens."""

    command: str
    address: str


class _Started:
    """A service that runs, or did; all that it has said."""

    def __init__(self, line: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "-c", line],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C reaches the shell and what it runs
        )
        self._said = b""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while part := os.read(self._process.stdout.fileno(), 65_536):
            self._said += part

    @property
    def said(self) -> str:
        return self._said.decode(errors="replace")

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def end(self, by: signal.Signals) -> None:
        """All that it said is there then, also its last words."""
        if self._process.stdout is None or self._process.stdout.closed:
            return
        # Where the tests run in the background, what they start may be deaf to Ctrl-C.
        for sent in (by, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
                break
        self._reading.join(STOP_SECONDS)
        self._process.stdout.close()


class Terminal:
    def __init__(self, folder: Path, ports: Mapping[Service, int], programs: Path) -> None:
        self.folder = folder
        self.code = 0
        self._ports = ports
        self._started: dict[Service, _Started] = {}
        self._looked_at: _Started | None = None
        self._shown = ""
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            **{"TERM": "xterm", "COLUMNS": "80", "LINES": "24", "PYTHONUNBUFFERED": "1"},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }

    def type_all(self, block: str) -> None:
        for line in commands_in(block):
            self.type(line)

    def type(self, line: str) -> None:
        line = self.of_the_day(line)
        self._looked_at = None
        if line.startswith("export "):
            name, _, value = shlex.split(line)[1].partition("=")
            self._environment[name] = value
            self._shown = ""
        elif (service := self._service_of(line)) is not None:
            self._start(service, line)
        else:
            self._run(line)

    def _service_of(self, line: str) -> Service | None:
        begun = re.sub(r"^(\w+=\S+ +)*", "", line)  # what is set for this command alone
        return next((service for service in self._ports if begun.startswith(service.command)), None)

    def _start(self, service: Service, line: str) -> None:
        self.stop(service)
        started = _Started(f"{line} --port {self._ports[service]}", self.folder, self._environment)
        self._started[service] = self._looked_at = started
        address = self.of_the_day(service.address)
        deadline = time.monotonic() + LIMIT_SECONDS
        while address not in started.said:
            assert started.runs and time.monotonic() < deadline, f"{line}: {started.said}"
            time.sleep(POLL_SECONDS)

    def _run(self, line: str) -> None:
        ours, theirs = pty.openpty()
        process: subprocess.Popen[Any] = subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=self._environment,
            start_new_session=True,
        )
        os.close(theirs)
        stuck = threading.Timer(LIMIT_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        stuck.start()
        try:
            self._shown = all_shown(ours).decode()
            self.code = process.wait(LIMIT_SECONDS)
        finally:
            stuck.cancel()
            process.kill()
            process.wait()
            os.close(ours)

    def look_at(self, service: Service) -> None:
        """What is shown is what that one has said, and says."""
        self._looked_at = self._started[service]

    def stop(self, service: Service) -> None:
        """Ctrl-C in its terminal."""
        if service in self._started:
            self.look_at(service)
            self._started[service].end(signal.SIGINT)

    def close(self) -> None:
        for started in self._started.values():
            started.end(signal.SIGKILL)

    def of_the_day(self, text: str) -> str:
        for service, port in self._ports.items():
            text = text.replace(service.address, f"127.0.0.1:{port}")
        return text

    @property
    def shown(self) -> str:
        return plain(self._shown if self._looked_at is None else self._looked_at.said)

    def assert_shown(self, expected: str) -> None:
        """A service that still runs may have yet to say it."""
        deadline = time.monotonic() + SHOWN_SECONDS
        while True:
            shown = self.shown
            missing = _missing(self.of_the_day(expected), shown)
            may_come = self._looked_at is not None and self._looked_at.runs
            if missing is None or not may_come or time.monotonic() >= deadline:
                break
            time.sleep(POLL_SECONDS)
        assert missing is None, f"not shown (any more): {missing}\n{shown}"


def plain(text: str) -> str:
    """Without colours, times, and the places at which lines are broken."""
    return " ".join(SECONDS.sub("N s", ESCAPES.sub("", text)).split())


def _missing(expected: str, shown: str) -> str | None:
    """The first part that does not follow on those before it."""
    place = 0
    for part in filter(None, map(plain, expected.split("…"))):
        found = shown.find(part, place)
        if found < 0:
            return part
        place = found + len(part)
    return None


@contextlib.contextmanager
def terminal_in(folder: Path, *services: Service) -> Iterator[Terminal]:
    """In a folder `clone` of this one; `python3` and `holdfast` are those that the tests run with."""
    clone, programs = folder / "clone", folder / "programs"
    for made in (clone, programs):
        made.mkdir()
    (clone / "examples").symlink_to(ROOT / "examples")
    commands = {"python3": [sys.executable], "holdfast": [sys.executable, "-m", "holdfast"]}
    for name, command in commands.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (programs / name).chmod(0o755)
    with kept_ports(len(services)) as ports:
        terminal = Terminal(clone, dict(zip(services, ports, strict=True)), programs)
        try:
            yield terminal
        finally:
            terminal.close()
