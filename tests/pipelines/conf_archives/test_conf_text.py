"""Which encoding the bytes of a .conf file are in, and that no bytes fail."""

from __future__ import annotations

import codecs
import io
from unittest import mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.pipelines.conf_archives import conf_text
from holdfast.pipelines.conf_archives.conf_text import BLOCK_BYTES, line_of_no_utf_8, text_blocks

LINES = "[stanza]\nkey = välue\n"


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"a = gr\xfcn\nb = sch\xf6n\n", None),
        ("# grün\n".encode() + b"b = 1\nc = sch\xf6n\n", 3),
        ("# grün\n".encode() * 50_000 + b"\xff", 50_001),
        (b"x" * (BLOCK_BYTES - 1) + "ü".encode() + b"\n\xff", 2),
        (b"x" * (BLOCK_BYTES - 1) + b"\xc3\n\xff", None),
        (codecs.BOM_UTF8 + b"a\n\xff", 2),
        ("grün".encode() + b"\n\xc3", 2),
    ],
)
def test_where_a_file_stops_being_utf_8_is_told(data: bytes, line: int | None) -> None:
    file = io.BytesIO(data)
    file.seek(2)
    assert text_blocks(io.BytesIO(data))[0] == "latin-1"
    assert line_of_no_utf_8(file) == line
    assert file.tell() == 2


def read(data: bytes) -> tuple[str, str]:
    encoding, blocks = text_blocks(io.BytesIO(data))
    return encoding, "".join(blocks)


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (LINES.encode(), "utf-8"),
        (codecs.BOM_UTF8 + LINES.encode(), "utf-8-bom"),
        (codecs.BOM_UTF16_LE + LINES.encode("utf-16-le"), "utf-16-le"),
        (codecs.BOM_UTF16_BE + LINES.encode("utf-16-be"), "utf-16-be"),
        (codecs.BOM_UTF32_LE + LINES.encode("utf-32-le"), "utf-32-le"),
        (codecs.BOM_UTF32_BE + LINES.encode("utf-32-be"), "utf-32-be"),
        (LINES.encode("utf-16-le"), "utf-16-le"),
        (LINES.encode("utf-16-be"), "utf-16-be"),
        (LINES.encode("latin-1"), "latin-1"),
    ],
)
def test_each_encoding_is_known_and_its_mark_is_dropped(data: bytes, encoding: str) -> None:
    assert read(data) == (encoding, LINES)


@pytest.mark.parametrize(
    "data",
    [
        codecs.BOM_UTF8,
        codecs.BOM_UTF16_LE,
        codecs.BOM_UTF16_BE,
        codecs.BOM_UTF32_LE,
        codecs.BOM_UTF32_BE,
        b"",
    ],
)
def test_a_file_without_text_has_no_blocks(data: bytes) -> None:
    assert [*text_blocks(io.BytesIO(data))[1]] == []


def test_utf_16_without_a_mark_may_hold_other_letters_among_the_ascii_ones() -> None:
    text = "# настройки of this app, and so on and on and on and on\n[a]\n"
    assert read(text.encode("utf-16-le")) == ("utf-16-le", text)
    assert read(text.encode("utf-16-be")) == ("utf-16-be", text)


@pytest.mark.parametrize("data", [b"a\0", b"a\0b = c\n", b"\0\0\0\0\0\0", b"a = b\0\0\0\0\0\0\0\0\0\0\0"])
def test_a_few_nul_characters_do_not_make_utf_16(data: bytes) -> None:
    assert read(data) == ("utf-8", data.decode())


def test_every_byte_is_a_character_of_its_own_where_it_is_not_utf_8() -> None:
    encoding, text = read(bytes(range(256)))
    assert encoding == "latin-1"
    assert len(set(text)) == 256
    assert text[:128] == bytes(range(128)).decode()


def test_the_quotes_and_dashes_of_windows_are_read() -> None:
    assert read(b"a = \x93b\x94 \x96 \x80 \x81\n") == ("latin-1", "a = “b” \N{EN DASH} € \x81\n")


@pytest.mark.parametrize("broken", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf"])
def test_one_broken_character_at_the_very_end_makes_the_whole_file_latin_1(broken: bytes) -> None:
    encoding, text = read(b"a" * BLOCK_BYTES * 2 + "ä".encode() + broken)
    assert encoding == "latin-1"
    assert text[BLOCK_BYTES * 2 :].startswith("Ã¤")


@pytest.mark.parametrize("shift", range(4))
def test_a_character_may_lie_across_two_blocks(shift: int) -> None:
    text = "a" * (BLOCK_BYTES - shift) + "\N{BEETLE}" + "b"
    assert read(text.encode()) == ("utf-8", text)
    wide = "a" * (BLOCK_BYTES // 2 - shift) + "\N{BEETLE}" + "b"
    assert read(codecs.BOM_UTF16_BE + wide.encode("utf-16-be")) == ("utf-16-be", wide)


def test_a_mark_of_utf_8_before_something_else_is_not_believed() -> None:
    assert read(codecs.BOM_UTF8 + b"a\xffb") == ("latin-1", "a\xffb")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (codecs.BOM_UTF16_LE + b"a\0b", "a�"),
        (codecs.BOM_UTF16_LE + b"\x00\xd8a\0", "�a"),
        (codecs.BOM_UTF16_BE + b"\xdc\x00\0a", "�a"),
        (codecs.BOM_UTF16_BE + b"\0a\xd8\x00", "a�"),
        (codecs.BOM_UTF32_LE + b"a\0\0\0\x00\xd8\0\0", "a�"),
    ],
)
def test_what_is_broken_in_a_certain_encoding_is_replaced(data: bytes, text: str) -> None:
    assert read(data)[1] == text


def test_the_file_is_read_from_its_beginning_wherever_it_stands() -> None:
    file = io.BytesIO(LINES.encode())
    file.seek(9)
    assert "".join(text_blocks(file)[1]) == LINES


def test_a_file_that_changes_after_it_was_checked_does_not_fail() -> None:
    file = io.BytesIO(b"abc")
    encoding, blocks = text_blocks(file)
    file.seek(0)
    file.write(b"a\xffc")
    assert (encoding, "".join(blocks)) == ("utf-8", "a�c")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_no_block_is_larger_than_what_is_read_at_once(encoding: str) -> None:
    _, blocks = text_blocks(io.BytesIO(("key = välue\n" * 100_000).encode(encoding)))
    sizes = [len(block) for block in blocks]
    assert len(sizes) > 10
    assert max(sizes) <= BLOCK_BYTES


@given(st.binary(max_size=60), st.integers(1, 7))
def test_any_bytes_are_text_without_lone_surrogates(data: bytes, block_bytes: int) -> None:
    encoding, text = read(data)
    text.encode()
    with mock.patch.object(conf_text, "BLOCK_BYTES", block_bytes):
        assert read(data) == (encoding, text)


@given(st.text(), st.sampled_from(["utf-8-sig", "utf-16", "utf-32"]))
def test_any_text_with_a_mark_comes_back(text: str, encoding: str) -> None:
    assume(not text.startswith("\0"))  # the marks of UTF-16 and a NUL are those of UTF-32
    assert read(text.encode(encoding))[1] == text
