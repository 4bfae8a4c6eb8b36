"""docs/tutorial-downloads.md, done step by step at a terminal of 80 columns: it shows what the page says.

Blocks are taken in their order: jsonl is written to items.jsonl, sh is typed, and what `text` shows must have
been on the screen after it. What passes (`text passing`) is compared where the screen has caught it.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tutorial_terminal import ROOT, Service, Terminal, terminal_in, told_in

PAGE = ROOT / "docs" / "tutorial-downloads.md"
PORTAL = Service("python3 examples/portal.py", "127.0.0.1:9100")
SERVER = Service("holdfast serve", "127.0.0.1:8083")
PHRASES = {"Stop the portal with Ctrl-C": "stop", "Look at the portal's terminal": "look"}
BULK_AT_ONCE = 3


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with terminal_in(tmp_path, PORTAL, SERVER) as at:
        yield at


def test_the_tutorial_goes_as_it_says(terminal: Terminal) -> None:
    done = []
    for kind, content in told_in(PAGE, PHRASES):
        done.append(kind)
        if kind == "jsonl":
            (terminal.folder / "items.jsonl").write_text(terminal.of_the_day(content))
        elif kind == "sh":
            terminal.type_all(content)
        elif kind == "text" or (kind == "text passing" and "; download begins" in terminal.shown):
            terminal.assert_shown(content)
        elif kind == "look":
            terminal.look_at(PORTAL)
        elif kind == "stop":
            terminal.stop(PORTAL)
            seen = re.search(r"at most (\d+) at once", terminal.shown)
            assert seen is not None and int(seen[1]) <= BULK_AT_ONCE
    assert set(done) == {"jsonl", "sh", "text", "text passing", "look", "stop"}
