"""docs/tutorial-documents.md, done step by step at a terminal of 80 columns: it shows what the page says.

Blocks are taken in their order: sh is typed, and what `text` shows must have been on the screen after it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tutorial_terminal import ROOT, Service, Terminal, terminal_in, told_in

PAGE = ROOT / "docs" / "tutorial-documents.md"
SERVER = Service("holdfast serve", "127.0.0.1:8083")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with terminal_in(tmp_path, SERVER) as at:
        yield at


def test_the_tutorial_goes_as_it_says(terminal: Terminal) -> None:
    done = []
    for kind, content in told_in(PAGE):
        done.append(kind)
        if kind == "sh":
            terminal.type_all(content)
        elif kind == "text":
            terminal.assert_shown(content)
    assert set(done) == {"sh", "text"}
