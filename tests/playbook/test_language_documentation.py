"""The reference of the language in step with its models, and every playbook in the documents a good one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from holdfast.playbook import document, language, scope
from holdfast.playbook.load import load_playbook

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PAGE = (ROOT / "docs" / "reference" / "playbook-language.md").read_text()
PLAYBOOK = re.compile(r"^```yaml\n(apiVersion:.*?)^```$", re.MULTILINE | re.DOTALL)


def playbooks() -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(ROOT).as_posix()}-{number}", text)
        for path in DOCUMENTS
        for number, text in enumerate(PLAYBOOK.findall(path.read_text()), 1)
    ]


def fields_of(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def section(title: str) -> str:
    level = title.split(" ")[0]
    return PAGE.split(f"\n{title}\n", 1)[1].split(f"\n{level} ", 1)[0].split("\n## ", 1)[0]


def documented(title: str) -> set[str]:
    """The names in the first cells of the section's tables."""
    rows = [line for line in section(title).splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" |")[0])}


@pytest.mark.parametrize("text", [text for _, text in playbooks()], ids=[name for name, _ in playbooks()])
def test_a_playbook_in_the_documents_loads(text: str) -> None:
    load_playbook(text)


def test_the_reference_has_playbooks() -> None:
    assert len(PLAYBOOK.findall(PAGE)) >= 5


COMMON = fields_of(language.ActionFields)


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("## On top", fields_of(language.Head) | {"workflow"}),
        ("## Every step", COMMON),
        ("## For each item of a list", fields_of(language.ForEachFields)),
        ("### http", fields_of(language.HttpStep) - COMMON | {"data", "payload"}),
        ("### python", fields_of(language.PythonStep) - COMMON),
        ("### sql", fields_of(language.SqlStep) - COMMON),
        ("### shell", fields_of(language.ShellStep) - COMMON),
        ("### sleep", fields_of(language.SleepStep) - COMMON),
        ("### playbook", fields_of(language.PlaybookStep) - COMMON),
        ("## Errors", fields_of(language.ErrorRuleFields)),
    ],
)
def test_every_field_is_documented_and_no_other(title: str, fields: set[str]) -> None:
    assert documented(title) == fields


def test_the_defaults_and_the_types_are_documented() -> None:
    [row] = [line for line in section("## On top").splitlines() if line.startswith("| `defaults`")]
    assert set(re.findall(r"`(\w+)`", row.split("|")[2])) == fields_of(language.Defaults)
    assert [kind for kind in language.TYPES if f"`{kind}`" not in PAGE and f"### {kind}\n" not in PAGE] == []


def test_the_bounds_are_those_of_the_code() -> None:
    table = section("## The YAML")
    for bound in (
        document.DEPTH_MAX,
        document.VALUES_MAX,
        language.STEPS_MAX,
        language.EDGES_MAX,
        scope.TEMPLATES_MAX,
        scope.EXPRESSION_CHARS_MAX,
    ):
        assert f"{bound:,}" in table
    assert document.BYTES_MAX == 1024 * 1024
