"""YAML as playbooks are written in: scalars of 1.2, the line of everything, faults instead of surprises."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.playbook.document import Document, read
from holdfast.playbook.faults import Unreadable


def value(text: str | bytes) -> Any:
    return read(text).value


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("on", "on"),
        ("NO", "NO"),
        ("yes", "yes"),
        ("12:30:00", "12:30:00"),
        ("2026-01-31", "2026-01-31"),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-7", -7),
        ("1_000", "1_000"),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1.2.3", "1.2.3"),
        ("True", True),
        ("false", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("9223372036854775807", 9223372036854775807),
    ],
)
def test_scalars_are_those_of_yaml_1_2(written: str, expected: object) -> None:
    found = value(f"a: {written}\n")["a"]
    assert (found, type(found)) == (expected, type(expected))


def test_every_place_has_its_line() -> None:
    document = read("a: 1\nb:\n  - x\n  - {c: 1,\n     d: 2}\n")
    assert document.line(("a",)) == 1
    assert document.line(("b", 0)) == 3
    assert document.line(("b", 1, "d")) == 5
    assert document.line(("b", 1, "missing")) == 4  # the nearest around it
    assert document.line(("missing",)) == 1


def test_lines_inside_a_literal_block_are_those_of_the_file() -> None:
    document: Document = read("a:\n  code: |\n    one\n    two\n  folded: >\n    one\n    two\n")
    assert document.line_in(("a", "code"), 2) == 4
    assert document.line_in(("a", "folded"), 2) == 5  # which of its lines is not known


def test_an_alias_is_what_it_stands_for() -> None:
    assert value("a: &x {p: [1]}\nb: *x\n") == {"a": {"p": [1]}, "b": {"p": [1]}}


def test_what_is_wrong_in_several_places_is_told_together() -> None:
    with pytest.raises(Unreadable) as caught:
        read("a: 1\na: 2\nb: !x 1\nc: *none\n<<: {}\n1: 2\n")
    assert [fault.line for fault in caught.value.faults] == [2, 3, 4, 5, 6]


def test_windows_line_ends_are_line_ends() -> None:
    document = read(b"a: 1\r\nb:\r\n  c: |\r\n    x\r\n    y\r\n")
    assert document.line(("b", "c")) == 3
    assert document.value["b"]["c"] == "x\ny\n"
