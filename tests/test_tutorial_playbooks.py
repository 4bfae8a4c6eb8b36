"""docs/tutorial-playbooks.md, done step by step at a terminal of 80 columns: it shows what the page says.

Blocks are taken in their order: yaml is written to the file that its first line names, sh is typed, and what
`text` shows must have been on the screen after it. There `…` stands for anything; times and the port of the
service are those of the day.
"""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_scenario import all_shown
from holdfast.core.errors import InvalidInput
from holdfast.playbook.load import load_playbook

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial-playbooks.md"
BLOCK = re.compile(r"^```(yaml|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVICE = "python3 examples/flaky_service.py"
STOPPED = "Stop the service with Ctrl-C"
ADDRESS = "127.0.0.1:9000"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SECONDS = re.compile(r"\b\d+(\.\d+)? (s|min)\b")
LIMIT_SECONDS = 120


def blocks() -> list[tuple[str, str]]:
    """What there is to do: blocks with their kinds, and the stop of the service."""
    text = PAGE.read_text()
    found = [(match.start(), match[1], match[2]) for match in BLOCK.finditer(text)]
    found += [(match.start(), "stop", "") for match in re.finditer(STOPPED, text)]
    return [(kind, content) for _, kind, content in sorted(found)]


class Terminal:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown = ""
        self.code = 0
        self._service: subprocess.Popen[Any] | None = None
        self._port = "0"

    def type(self, line: str) -> None:
        if line == SERVICE:
            self._start_service()
            return
        program, *args = line.split()
        assert program == "holdfast", line
        ours, theirs = pty.openpty()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            **{"TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        }
        command = [sys.executable, "-m", "holdfast", *args]
        process = subprocess.Popen(
            command, cwd=self.folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        try:
            self.shown = all_shown(ours).decode()
            self.code = process.wait(LIMIT_SECONDS)
        finally:
            process.kill()
            process.wait()
            os.close(ours)

    def _start_service(self) -> None:
        """On a free port at first, and on the same one again."""
        command = [sys.executable, "-u", str(ROOT / "examples" / "flaky_service.py"), "--port", self._port]
        self._service = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._service.stdout is not None
        self._port = self._service.stdout.readline().split(".")[3].rpartition(":")[2]
        assert self._port.isdigit()

    def stop_service(self) -> None:
        if self._service is not None:
            self._service.kill()
            self._service.communicate()
            self._service = None

    def of_the_day(self, text: str) -> str:
        return text.replace(ADDRESS, f"127.0.0.1:{self._port}")


def plain(text: str) -> str:
    """Without colours, times, and the places at which lines are broken."""
    return " ".join(SECONDS.sub("N s", ESCAPES.sub("", text)).split())


def assert_shown(expected: str, shown: str) -> None:
    place, rest = 0, plain(shown)
    for part in filter(None, map(plain, expected.split("…"))):
        found = rest.find(part, place)
        assert found >= 0, f"not shown (any more): {part}\n{rest}"
        place = found + len(part)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    at = Terminal(tmp_path)
    try:
        yield at
    finally:
        at.stop_service()


def test_the_tutorial_goes_as_it_says(terminal: Terminal) -> None:
    told = blocks()
    assert [kind for kind, _ in told].count("yaml") == 3
    # The port is known from the first start on; the playbooks that are written before it only need one.
    terminal.type(SERVICE)
    terminal.stop_service()
    for kind, content in told:
        if kind == "yaml":
            name = content.splitlines()[0].removeprefix("# ")
            (terminal.folder / name).write_text(terminal.of_the_day(content))
        elif kind == "sh":
            for line in content.splitlines():
                terminal.type(line)
        elif kind == "stop":
            terminal.stop_service()
        else:
            assert_shown(terminal.of_the_day(content), terminal.shown)


def test_all_but_the_first_playbook_of_the_tutorial_are_right() -> None:
    playbooks = [content for kind, content in blocks() if kind == "yaml"]
    with pytest.raises(InvalidInput, match="retrys"):
        load_playbook(playbooks[0].encode(), name="fruit.yaml")
    for playbook in playbooks[1:]:
        assert load_playbook(playbook.encode(), name="fruit.yaml").definition.path == "tutorial/fruit"
