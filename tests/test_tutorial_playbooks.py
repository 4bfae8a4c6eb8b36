"""docs/tutorial-playbooks.md, done step by step at a terminal of 80 columns: it shows what the page says.

Blocks are taken in their order: yaml is written to the file that its first line names, sh is typed, and what
`text` shows must have been on the screen after it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.errors import InvalidInput
from holdfast.playbook.load import load_playbook
from tutorial_terminal import ROOT, Service, Terminal, terminal_in, told_in

PAGE = ROOT / "docs" / "tutorial-playbooks.md"
SERVICE = Service("python3 examples/flaky_service.py", "127.0.0.1:9000")
PHRASES = {"Stop the service with Ctrl-C": "stop"}


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with terminal_in(tmp_path, SERVICE) as at:
        yield at


def test_the_tutorial_goes_as_it_says(terminal: Terminal) -> None:
    told = told_in(PAGE, PHRASES)
    kinds = [kind for kind, _ in told]
    assert set(kinds) == {"yaml", "sh", "text", "stop"} and kinds.count("yaml") == 3
    for kind, content in told:
        if kind == "yaml":
            name = content.splitlines()[0].removeprefix("# ")
            (terminal.folder / name).write_text(terminal.of_the_day(content))
        elif kind == "sh":
            terminal.type_all(content)
        elif kind == "stop":
            terminal.stop(SERVICE)
        else:
            terminal.assert_shown(content)


def test_all_but_the_first_playbook_of_the_tutorial_are_right() -> None:
    playbooks = [content for kind, content in told_in(PAGE) if kind == "yaml"]
    with pytest.raises(InvalidInput, match="retrys"):
        load_playbook(playbooks[0].encode(), name="fruit.yaml")
    for playbook in playbooks[1:]:
        assert load_playbook(playbook.encode(), name="fruit.yaml").definition.path == "tutorial/fruit"
