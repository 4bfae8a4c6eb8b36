"""The documents in step with the code: examples run, lists are complete, links lead somewhere."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import holdfast
from holdfast.cli import commands
from holdfast.cli.bench import SCENARIO_NAMES
from holdfast.core.catalogue import CATALOGUE
from holdfast.core.model import DeadReason, EventType
from holdfast.core.retry import RetryPolicy
from holdfast.playbook.filters import FILTERS
from holdfast.playbook.value_tests import TESTS
from holdfast.playbook.variables import RESERVED_NAMES

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "ops").rglob("*.md")])
EXAMPLES_TIMEOUT_SECONDS = 120

PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_blocks(path: Path) -> list[str]:
    return PYTHON_BLOCK.findall(path.read_text())


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if python_blocks(path)], ids=name_of)
def test_the_python_examples_of_a_page_run_one_after_the_other(path: Path, tmp_path: Path) -> None:
    """As one program in a process of its own, in an empty folder."""
    script = tmp_path / "example.py"
    script.write_text("\n\n".join(python_blocks(path)))
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "HOLDFAST_DB"},
        capture_output=True,
        text=True,
        timeout=EXAMPLES_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_and_the_tutorial_have_examples() -> None:
    assert python_blocks(ROOT / "README.md")
    assert len(python_blocks(ROOT / "docs" / "tutorial.md")) >= 4


def test_the_readme_gives_a_newcomer_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    first_block = text.split("```sh\n", 1)[1].split("```", 1)[0]
    assert [line.split("#")[0].strip() for line in first_block.splitlines()] == ["make run", "make test"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_relative_links_lead_to_a_file(path: Path) -> None:
    targets = [
        link.partition("#")[0]
        for link in LINK.findall(CODE_BLOCK.sub("", path.read_text()))
        if not link.startswith(("http://", "https://", "mailto:", "#"))
    ]
    broken = [target for target in targets if not (path.parent / target).exists()]
    assert broken == []


def test_every_page_of_the_documentation_can_be_reached() -> None:
    linked = {
        (path.parent / link.partition("#")[0]).resolve()
        for path in DOCUMENTS
        for link in LINK.findall(path.read_text())
        if not link.startswith("http")
    }
    pages = {path.resolve() for path in (ROOT / "docs").rglob("*.md") if path.name != "README.md"}
    assert pages - linked == set()


@pytest.mark.parametrize("name", sorted(commands.commands))
def test_every_command_and_option_is_documented(name: str) -> None:
    text = (REFERENCE / "cli.md").read_text()
    assert f"## holdfast {name}\n" in text
    section = text.split(f"## holdfast {name}\n", 1)[1].split("\n## ", 1)[0]
    command = commands.commands[name]
    parts = command.commands if isinstance(command, click.Group) else {}
    assert [part for part in parts if f"`holdfast {name} {part}" not in section] == []
    for option in [*command.params, *(option for part in parts.values() for option in part.params)]:
        if isinstance(option, click.Option) and not option.hidden:
            assert any(f"`{spelling}" in section for spelling in option.opts), option.opts


def test_every_scenario_of_the_bench_is_documented() -> None:
    section = (REFERENCE / "cli.md").read_text().split("## holdfast bench\n", 1)[1]
    [row] = [line for line in section.splitlines() if line.startswith("| `--scenario`")]
    assert [name for name in SCENARIO_NAMES if f"`{name}`" not in row] == []


def test_no_command_is_documented_that_does_not_exist() -> None:
    documented = re.findall(r"^## holdfast (\S+)$", (REFERENCE / "cli.md").read_text(), re.MULTILINE)
    assert set(documented) == set(commands.commands)


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert project["version"] == holdfast.__version__ == newest[1]


def table_rows(text: str) -> dict[str, list[str]]:
    """Rows of the tables whose first cell is a `name`, by that name."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip().strip("`"): [cell.strip() for cell in row[1:]] for row in rows}


def test_the_catalogue_of_errors_is_documented_word_for_word() -> None:
    documented = table_rows((REFERENCE / "errors.md").read_text())
    expected = {
        name: [
            entry.category.value,
            entry.user_message,
            entry.guidance,
            "the same" if entry.final_guidance == entry.guidance else entry.final_guidance,
        ]
        for name, entry in CATALOGUE.items()
    }
    assert documented == expected


def test_every_event_is_documented() -> None:
    assert set(table_rows((REFERENCE / "events.md").read_text())) == set(EventType)


def test_every_reason_for_a_dead_job_is_documented() -> None:
    assert set(DeadReason) <= set(table_rows((REFERENCE / "lifecycle.md").read_text()))


def test_every_field_of_a_retry_policy_is_documented_with_its_default() -> None:
    documented = table_rows((REFERENCE / "retry-policy.md").read_text())
    policy = RetryPolicy()
    for name in RetryPolicy.__dataclass_fields__:
        spelled = str(getattr(policy, name)).lower()
        assert documented[name][0] in (spelled, "max_attempts"), name


def test_every_filter_test_and_variable_of_templates_is_documented() -> None:
    text = (REFERENCE / "templates.md").read_text()
    variables = text.split("## Variables\n", 1)[1].split("\n## ", 1)[0]
    filters = text.split("### Filters\n", 1)[1].split("\n### ", 1)[0]
    tests = text.split("### Tests\n", 1)[1].split("\n## ", 1)[0]
    spelled = re.compile(r"`(\w+)[`(]")
    for section, known in ((filters, FILTERS), (tests, TESTS)):
        first_cells = [line.split(" |")[0] for line in section.splitlines()]
        assert {name for cell in first_cells for name in spelled.findall(cell)} == set(known)
    assert set(spelled.findall(variables)) >= RESERVED_NAMES


@pytest.mark.parametrize("name", [name for name in holdfast.__all__ if not name.startswith("_")])
def test_every_public_name_is_in_the_reference(name: str) -> None:
    pages = "".join(path.read_text() for path in REFERENCE.glob("*.md"))
    assert re.search(rf"\b{name}\b", pages)
