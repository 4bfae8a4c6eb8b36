"""The items of a batch as they are read: lines or an array, and what is refused with its line."""

from typing import Any

import pytest

from holdfast.cli import batch_input
from holdfast.cli.batch_input import Items
from holdfast.core.errors import InvalidInput


def items_of(data: bytes, *, by: int) -> list[Any]:
    items = Items("f")
    found = [item for start in range(0, len(data), by) for item in items.feed(data[start : start + by])]
    return [item.workload for item in [*found, *items.finish()]]


@pytest.mark.parametrize("by", [1, 3, 1000])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a":1}\n2\n', [{"a": 1}, 2]),
        (b'1\r\n"\xc3\xa9"\r\n\r\n\n  ', [1, "é"]),
        (b"null", [None]),
        (b"\xef\xbb\xbf1\n2", [1, 2]),
        (b"", []),
        (b"\n \n", []),
        (b"[]", []),
        (
            b' \n [123456,"a,]\\"[",\n{"b":[1,2]},[[]], null ]\n\n',
            [123456, 'a,]"[', {"b": [1, 2]}, [[]], None],
        ),
        (b'\xef\xbb\xbf["\xc3\xa9"]', ["é"]),
    ],
)
def test_items_are_lines_or_an_array_however_the_bytes_come(data: bytes, expected: Any, by: int) -> None:
    assert items_of(data, by=by) == expected


@pytest.mark.parametrize("by", [1, 1000])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'1\n{"a":\n3', "Line 2 of f is not JSON"),
        (b"1\nNaN\n", "Line 2 of f is not JSON"),
        (b"1\n\n\n2\n", "Line 2 of f is empty"),
        (b'1\n2\n"\xe9"\n', r"Line 3 of f is not UTF-8 text \(byte 0xe9\)"),
        (b"1\n\xe9\n", r"Line 2 of f is not UTF-8 text \(byte 0xe9\)"),
        (b'[\n1,\n"\xe9"]', r"Line 3 of f is not UTF-8 text \(byte 0xe9\)"),
        (b'"a"\n2\0\n', "Line 2 of f has NUL bytes"),
        (b'1\n"\\u0000"', "item in line 2 of f has a NUL character"),
        (b"[1,\n,2]", "Line 2 of f is not JSON"),
        (b"[1\n2]", "Line 2 of f has '2' where a comma or ] is due"),
        (b"[1,\n2", "Line 2 of f ends before the array does"),
        (b"[1,\n2]\n[3]", "Line 3 of f has something behind the end of the array"),
        (b"1\n" + b"[" * 3000, "Line 2 of f is nested too deeply"),
        (b"[1,\n" + b"[" * 3000, "Line 2 of f is nested too deeply"),
        ("[1]".encode("utf-16"), "f is UTF-16 text"),
        (b"\x1f\x8b\x08\x00", "f is compressed"),
    ],
)
def test_what_is_no_item_is_refused_with_its_line(data: bytes, words: str, by: int) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        items_of(data, by=by)
    assert refused.value.guidance


@pytest.mark.parametrize("data", [b'1\n"%s"\n', b'1\n"%s', b'[1,\n"%s"]', b'[1,\n"%s'])
def test_a_huge_item_is_refused_before_it_fills_the_memory(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_input, "ITEM_BYTES_MAX", 1000)
    with pytest.raises(InvalidInput, match="Line 2 of f has an item of more than 1,000 bytes"):
        items = Items("f")
        for part in (data % (b"x" * 5000)).split(b"x"):
            items.feed(part + b"x")
        items.finish()
