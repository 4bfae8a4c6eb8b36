"""What stands in a .conf file by Splunk's rules, what is told of the lines that make no sense, and that no
text is too large or too strange to be read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipelines.conf_archives import conf_parser
from holdfast.pipelines.conf_archives.conf_parser import (
    ENTRIES_MAX,
    EXCERPT_CHARS_MAX,
    LINE_CHARS_MAX,
    NAME_CHARS_MAX,
    STANZA_CHARS_MAX,
    Entry,
    Fault,
    Stanza,
    parse,
    settings_of,
)


def stanzas(text: str) -> list[Stanza]:
    return [item for item in parse([text]) if isinstance(item, Stanza)]


def faults(text: str) -> list[Fault]:
    return [item for item in parse([text]) if isinstance(item, Fault)]


def settings(text: str) -> list[tuple[str, str]]:
    """Of a text in which nothing is wrong and no header stands."""
    assert faults(text) == []
    return [(entry.key, entry.value) for stanza in stanzas(text) for entry in stanza.entries]


def test_a_file_is_read_with_its_order_lines_and_repetitions() -> None:
    text = "\n".join(
        [
            "# settings of all",
            "owner = me",
            "",
            "[source::/var/log/x]",
            "  TRANSFORMS-a b = one, two  ",
            "key=1",
            "key = 2",
            "[empty]",
            "[source::/var/log/x]",
            "search = a \\",
            "  | b",
            "after =",
        ]
    )
    assert [*parse([text])] == [
        Stanza("default", 0, 2, False, [Entry("owner", "me", 2)]),
        Stanza(
            "source::/var/log/x",
            1,
            4,
            True,
            [Entry("TRANSFORMS-a b", "one, two", 5), Entry("key", "1", 6), Entry("key", "2", 7)],
        ),
        Stanza("empty", 2, 8, True, []),
        Stanza("source::/var/log/x", 3, 9, True, [Entry("search", "a \n  | b", 10), Entry("after", "", 12)]),
    ]


def test_of_repeated_keys_the_last_value_counts() -> None:
    (stanza,) = stanzas("[s]\na = 1\nb = 2\na = 3")
    assert settings_of(stanza) == {"a": "3", "b": "2"}


@pytest.mark.parametrize("text", ["", "\n", "\r\n \t\n", "# only a comment", "; another\n"])
def test_a_file_without_settings_has_no_stanza(text: str) -> None:
    assert [*parse([text])] == []


# Headers


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("[name]", "name"),
        ("  \t[name] \t", "name"),
        ("[]", ""),
        ("[ name ]", " name "),
        ("[views/foo%2Fbar]", "views/foo%2Fbar"),
        ("[source::/var/log/[a-z]/x]", "source::/var/log/[a-z]/x"),
        ("[source::...[/\\\\]x]", "source::...[/\\\\]x"),
        ("[a]b]", "a]b"),
        (r"[a\]b\[c]", r"a\]b\[c"),
        ("[name\\]", "name\\"),
        ("[name] # comment", "name"),
        ("[name]# comment", "name"),
        ("[name] ; comment", "name"),
        ("[name] # comment with ]", "name"),
        ("[a[b]c] # see [other]", "a[b]c"),
        ("[errors [prod] #1]", "errors [prod] #1"),
        ("[a]#b]", "a]#b"),
        ("[name = value]", "name = value"),
        ("[[x]]", "[x]"),
    ],
)
def test_a_header_is_read(line: str, name: str) -> None:
    assert [*parse([f"{line}\nk = v"])] == [Stanza(name, 0, 1, True, [Entry("k", "v", 2)])]


@pytest.mark.parametrize(
    ("line", "name"), [("[name", "name"), (" [name # x ", "name # x"), ("[", ""), ("[name\\", "name\\")]
)
def test_a_header_without_its_end_is_told_and_still_parts_the_stanzas(line: str, name: str) -> None:
    fault, first, second = _told_first(f"[before]\n{line}\nk = v")
    assert (fault.line, "no ]" in fault.message) == (2, True)
    assert first == Stanza("before", 0, 1, True, [])
    assert second == Stanza(name, 1, 2, True, [Entry("k", "v", 3)])


@pytest.mark.parametrize("rest", ["k = v", "\\", "x # y"])
def test_text_behind_a_header_is_told(rest: str) -> None:
    fault, stanza = _told_first(f"[name] {rest}\na = b")
    assert fault == Fault(1, f"what follows the ] of this header is left out: {rest}")
    assert stanza == Stanza("name", 0, 1, True, [Entry("a", "b", 2)])


def _told_first(text: str) -> tuple[Any, ...]:
    """The faults, and after them the stanzas."""
    return (*faults(text), *stanzas(text))


# Comments


@pytest.mark.parametrize("line", ["# c", "  # c = d", "#", "; c = d", "\t;", "# [x]", "#\0", "# [x] = \\"])
def test_a_comment_is_passed_over(line: str) -> None:
    assert settings(f"a = b\n{line}\nc = d") == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize("value", ["b # c", "b ; c", "#", ";", "#ff0000"])
def test_nothing_in_a_value_is_a_comment(value: str) -> None:
    assert settings(f"a = {value}") == [("a", value)]


# Settings


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("a=b", "a", "b"),
        (" \ta \t=\t b \t", "a", "b"),
        ("a =", "a", ""),
        ("a == b", "a", "= b"),
        ("a = b = c", "a", "b = c"),
        ("EXTRACT-my field, or [two] = x", "EXTRACT-my field, or [two]", "x"),
        ("a]b = [c]", "a]b", "[c]"),
        ('a = " b "', "a", '" b "'),
        ("a = b\\ ", "a", "b\\"),
        ("a = \\d+\\s", "a", "\\d+\\s"),
        ("a = \xa0b\xa0", "a", "\xa0b\xa0"),
    ],
)
def test_a_setting_is_read(line: str, key: str, value: str) -> None:
    assert settings(line) == [(key, value)]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("no sign", "no ="),
        ("= value", "no key before its ="),
        ("  =", "no key before its ="),
        ("| stats count", "no ="),
        ("\\ ", "no ="),
    ],
)
def test_a_line_that_is_no_setting_is_told_and_the_others_are_read(line: str, told: str) -> None:
    fault, stanza = _told_first(f"[s]\na = b\n{line}\nc = d")
    assert fault.line == 3
    assert f"has {told} and" in fault.message
    assert fault.message.endswith(line.strip())
    assert [entry.line for entry in stanza.entries] == [2, 4]


def test_a_fault_shows_only_the_beginning_of_a_long_line() -> None:
    (fault,) = faults("x" * 5_000)
    assert fault.message.endswith(": " + "x" * 79 + "…")
    (fault,) = faults("y" * 80)
    assert fault.message.endswith(": " + "y" * 80)


# Continued lines


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a = b\\\nc", "b\nc"),
        ("a = b \\\n  c", "b \n  c"),
        ("a = \\\n* | stats count", "\n* | stats count"),
        ("a =\\\n\\\n\\\nb", "\n\n\nb"),
        ("a = b\\\n# c", "b\n# c"),
        ("a = b\\\n[c]", "b\n[c]"),
        ("a = b\\\nc = d", "b\nc = d"),
        ("a = b\\\\\nc", "b\\\nc"),
        ("a = b\\\n\n", "b\n"),
        ("a = b\\\n   \n", "b\n"),
        ("a = b\\\nc \t", "b\nc"),
        ("a = b\\\nc\\ ", "b\nc\\"),
        ("a = b\\", "b"),
        ("a = b \\\n", "b"),
        ("a = b\\\\", "b\\"),
        ("a = b\\\nc \\", "b\nc"),
        ("a = b\\\r\nc\\\rd", "b\nc\nd"),
    ],
)
def test_a_backslash_at_the_end_of_a_line_continues_the_value(text: str, value: str) -> None:
    assert settings(text) == [("a", value)]


def test_the_lines_after_a_continued_value_are_numbered_as_in_the_file() -> None:
    (stanza,) = stanzas("\n[s]\na = b\\\n\\\nc\nd = e\\\n\nf = g")
    assert [(entry.key, entry.line) for entry in stanza.entries] == [("a", 3), ("d", 6), ("f", 8)]


def test_white_space_after_the_backslash_ends_the_value() -> None:
    fault, stanza = _told_first("a = b \\ \n| c")
    assert fault.line == 2
    assert stanza.entries == [Entry("a", "b \\", 1)]


def test_neither_comments_nor_headers_are_continued() -> None:
    assert [*parse(["# a \\\n[s]\n; b \\\nk = v"])] == [Stanza("s", 0, 2, True, [Entry("k", "v", 4)])]
    assert stanzas("[s\\\nk = v")[0].entries == [Entry("k", "v", 2)]


@pytest.mark.parametrize(
    "text", ["key \\\n= value", "| stats \\\n| where a = b \\\n[c]", "= \\\na = b", "\\\na = b"]
)
def test_what_is_no_setting_is_left_out_with_the_lines_that_continue_it(text: str) -> None:
    first = text.partition("\n")[0].rstrip("\\").rstrip()
    (fault,) = [*parse([text])]
    assert isinstance(fault, Fault)
    assert (fault.line, fault.message.endswith(f"left out: {first}")) == (1, True)


# Ends of lines, and characters that are none


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_all_ends_of_lines_are_known(end: str) -> None:
    expected = [Stanza("s", 0, 1, True, [Entry("a", "b", 2), Entry("c", "d", 4)])]
    lines = ["[s]", "a = b", "", "c = d"]
    assert [*parse([end.join(lines)])] == expected
    assert [*parse([end.join(lines) + end])] == expected


def test_ends_of_lines_may_be_mixed() -> None:
    (stanza,) = stanzas("a = 1\r\rb = 2\n\rc = 3\r\n\nd = 4\r")
    assert [entry.line for entry in stanza.entries] == [1, 3, 5, 7]


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_no_other_character_ends_a_line_or_is_white_space(character: str) -> None:
    assert settings(f"a = {character}b{character}c = d{character}") == [
        ("a", f"{character}b{character}c = d{character}")
    ]


def test_a_setting_with_a_nul_is_told_and_left_out() -> None:
    fault, stanza = _told_first("a = b\nc = \0d\ne = f")
    assert fault.line == 2
    assert fault.message.endswith("c = �d")
    assert [entry.key for entry in stanza.entries] == ["a", "e"]


def test_a_nul_is_told_with_its_own_line_and_leaves_out_the_whole_setting() -> None:
    fault, stanza = _told_first("a = b\\\nc\\\n\0\\\nd\ne = f")
    assert fault.line == 3
    assert stanza.entries == [Entry("e", "f", 5)]


def test_a_stanza_with_a_nul_in_its_name_is_left_out_whole() -> None:
    fault, first, second = _told_first("[a]\nb = c\n[d\0]\ne = f\nno sign\ng = \\\n[h]\n[i]\nj = k")
    assert (fault.line, "\0" in fault.message) == (3, False)
    assert (first.name, first.position, first.entries) == ("a", 0, [Entry("b", "c", 2)])
    assert (second.name, second.position, second.entries) == ("i", 1, [Entry("j", "k", 9)])


# Bounds


def test_a_line_may_be_as_long_as_the_bound_and_no_longer() -> None:
    longest = "a=" + "x" * (LINE_CHARS_MAX - 2)
    assert len(settings(longest)[0][1]) == LINE_CHARS_MAX - 2
    fault, stanza = _told_first(f"[s]\n{longest}y\nb = c")
    assert fault.line == 2
    assert stanza.entries == [Entry("b", "c", 3)]


def test_a_continued_value_counts_as_one_line() -> None:
    part = "x" * 1_023 + "\\\n"
    text = "a=" + part * (LINE_CHARS_MAX // 1_024)
    fault, stanza = _told_first(f"{text}[s]\nb = c")
    assert fault.line == 1
    assert stanza.entries == [Entry("b", "c", LINE_CHARS_MAX // 1_024 + 2)]


def test_a_line_that_is_too_long_is_still_continued_by_its_backslash() -> None:
    fault, stanza = _told_first("a = " + "x" * LINE_CHARS_MAX + "\\\n[s]\nb = c")
    assert fault.line == 1
    assert stanza == Stanza("default", 0, 3, False, [Entry("b", "c", 3)])


def test_a_stanza_of_which_the_header_is_too_long_is_left_out_whole() -> None:
    fault, first, second = _told_first("[a]\n[" + "x" * LINE_CHARS_MAX + "]\nb = c\n[d]")
    assert (fault.line, len(fault.message) < 200) == (2, True)
    assert (first.name, first.entries, second.name, second.line) == ("a", [], "d", 4)


@pytest.mark.parametrize(
    "text",
    ["\ufeff[a]\nx = 1\n", "[a]\nx = 1\n\ufeff\ufeff[b]\ny = 2", " \ufeff [b]\n\ufeff# c\n\ufeffy = 2"],
)
def test_marks_where_files_were_joined_are_dropped(text: str) -> None:
    expected = [stanza for stanza in ("a", "b") if f"[{stanza}]" in text]
    found = [*parse([text])]
    assert [item.name for item in found if isinstance(item, Stanza)] == expected
    assert len(found) == len(expected)
    assert [entry.key for item in found if isinstance(item, Stanza) for entry in item.entries] == [
        {"a": "x", "b": "y"}[name] for name in expected
    ]


def test_a_name_may_be_as_long_as_it_can_be_asked_for() -> None:
    longest = "n" * NAME_CHARS_MAX
    [stanza] = parse([f"[{longest}]\n"])
    assert isinstance(stanza, Stanza) and stanza.name == longest
    [fault] = parse([f"[{longest}n]\na = b\n"])
    assert isinstance(fault, Fault) and "too long" in fault.message


def test_a_long_comment_is_passed_over() -> None:
    assert settings("#" * LINE_CHARS_MAX * 2 + "\\\na = b") == [("a", "b")]


def test_what_stands_behind_too_much_white_space_is_told() -> None:
    assert [fault.line for fault in faults(" " * (LINE_CHARS_MAX + 1) + "a = b ")] == [1]


@pytest.mark.parametrize("line", ["k = v\n", "k = v\\\nw\n"])
def test_of_a_stanza_with_too_many_settings_the_rest_is_left_out(line: str) -> None:
    fault, first, second = _told_first("[s]\n" + line * (ENTRIES_MAX + 9) + "no sign\n[t]\na = b")
    assert fault.line == 2 + ENTRIES_MAX * line.count("\n")
    assert "stanza [s]" in fault.message
    assert (len(first.entries), second.entries[0].key) == (ENTRIES_MAX, "a")


def test_of_a_stanza_with_too_many_characters_the_rest_is_left_out() -> None:
    count = STANZA_CHARS_MAX // 1_000
    fault, first, second = _told_first("[]\n" + f"k={'x' * 999}\n" * (count + 9) + "[t]")
    assert fault.line == 2 + count
    assert (len(first.entries), second.name) == (count, "t")


def test_a_stanza_may_be_as_large_as_the_bounds() -> None:
    assert faults("[s]\n" + "k=v\n" * ENTRIES_MAX) == []
    assert faults("[]\n" + f"k={'x' * 1_023}\n" * (STANZA_CHARS_MAX // 1_024)) == []


def _peak_bytes(blocks: Iterable[str]) -> int:
    tracemalloc.start()
    try:
        for item in parse(blocks):
            del item
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("block", "count"),
    [
        ("x" * 65_536, 300),  # no end of a line
        ("[" * 65_536, 300),
        ("\\\n" * 32_768, 20),
        ("\N{SNOWMAN}\\\n" * 20_000, 20),
        ("[a]\n" * 16_384, 1),
        ("no sign\n" * 8_192, 4),
        ("k = v\n" * 10_000, 6),
        (f"k = {'x' * 60_000}\n", 200),
        ("\0\n\r" * 20_000, 1),
    ],
)
def test_a_hostile_file_needs_little_memory(block: str, count: int) -> None:
    assert _peak_bytes(block for _ in range(count)) < 20_000_000


def test_a_million_blocks_of_one_character_are_read_as_one_line() -> None:
    count = LINE_CHARS_MAX - 2

    def blocks() -> Iterator[str]:
        yield from "a="
        for _ in range(count):
            yield "\N{SNOWMAN}"
            yield from ("", "", "")

    (stanza,) = [*parse(blocks())]
    assert isinstance(stanza, Stanza)
    assert stanza.entries[0].value == "\N{SNOWMAN}" * count


def test_each_stanza_comes_before_the_text_behind_the_next_block_is_asked_for() -> None:
    asked = 0

    def blocks() -> Iterator[str]:
        nonlocal asked
        while True:
            asked += 1
            yield "[s]\nk = v\n" * 10_000

    items = parse(blocks())
    assert next(items) == Stanza("s", 0, 1, True, [Entry("k", "v", 2)])
    assert asked == 1


# By another parser, which is slow and simple

FRAGMENTS = [
    *(
        "\n",
        "\r\n",
        "\r",
        "\\",
        "\\\n",
        "\\\r\n",
        "\\ \n",
        " ",
        "\t",
        "=",
        " = ",
        "a = b",
        "key",
        "\n[s]\n",
        "[",
        "]",
    ),
    *(
        "\n[a[b]c] # d]\n",
        "#",
        ";",
        "\n# c \\\n",
        "\0",
        "\x0b",
        "\u2028",
        "\x85",
        "x" * 9,
        " " * 12,
        "\nk = v\n",
        "é😀",
    ),
]
conf_like = st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)


class Bounds(NamedTuple):
    """What is patched in, so that small texts go beyond it."""

    line: int
    entries: int
    stanza: int
    excerpt: int
    window: int


WIDE = Bounds(LINE_CHARS_MAX, ENTRIES_MAX, STANZA_CHARS_MAX, EXCERPT_CHARS_MAX, window=65_536)
NARROW = Bounds(line=10, entries=2, stanza=14, excerpt=5, window=5)


def read_in_windows(blocks: Iterable[str], bounds: Bounds) -> list[Stanza | Fault]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conf_parser, "_WINDOW_CHARS", bounds.window)
        patch.setattr(conf_parser, "LINE_CHARS_MAX", bounds.line)
        patch.setattr(conf_parser, "ENTRIES_MAX", bounds.entries)
        patch.setattr(conf_parser, "STANZA_CHARS_MAX", bounds.stanza)
        patch.setattr(conf_parser, "EXCERPT_CHARS_MAX", bounds.excerpt)
        return [*parse(blocks)]


def lines_of(text: str) -> list[str]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def name_by_hand(header: str) -> tuple[str, bool]:
    """The name, and whether something is wrong."""
    depth = 0
    for at, character in enumerate(header):
        depth += (character == "[") - (character == "]")
        if depth == 0:
            rest = header[at + 1 :]
            if rest[:1] in (" ", "\t") and rest.lstrip(" \t")[:1] in ("#", ";"):
                return header[1:at], False
            break
    if "]" not in header:
        return header[1:], True
    name, _, rest = header[1:].rpartition("]")
    return name, rest.lstrip(" \t")[:1] not in ("", "#", ";")


def read_by_hand(text: str, bounds: Bounds) -> list[Stanza | int]:
    """The stanzas, and the lines of the faults."""
    read: list[Stanza | int] = []
    lines = lines_of(text)
    stanza = Stanza("default", 0, 0, False, [])
    is_dropped = is_full = False
    position = at = 0

    def close() -> int:
        if is_dropped or not (stanza.has_header or stanza.entries):
            return position
        line = stanza.line if stanza.has_header else stanza.entries[0].line
        read.append(stanza._replace(line=line, position=position))
        return position + 1

    while at < len(lines):
        number, line = at + 1, lines[at]
        at += 1
        is_long = len(line) > bounds.line
        shown = line[: bounds.line] if is_long else line
        begin = shown.strip(" \t")[:1]
        if begin in ("#", ";") or (not begin and not is_long):
            continue
        if begin == "[":
            position = close()
            name, is_wrong = name_by_hand(shown.strip(" \t"))
            is_dropped, is_full = is_long or "\0" in line, False
            stanza = Stanza(name, 0, number, True, [])
            if is_wrong or is_dropped:
                read.append(number)
            continue
        whole = [line]
        while whole[-1].endswith("\\") and at < len(lines):
            whole.append(lines[at])
            at += 1
        if is_dropped or is_full:
            continue
        value = "\n".join(part.removesuffix("\\") for part in whole)
        key, equals, value = value.partition("=")
        key, value = key.strip(" \t"), value.strip(" \t")
        if sum(map(len, whole)) > bounds.line:
            read.append(number)
        elif any("\0" in part for part in whole):
            read.append(number + next(i for i, part in enumerate(whole) if "\0" in part))
        elif not equals or not key or "\n" in key:
            read.append(number)
        else:
            entries = [*stanza.entries, Entry(key, value, number)]
            chars = len(stanza.name) + sum(len(entry.key) + len(entry.value) for entry in entries)
            is_full = len(entries) > bounds.entries or chars > bounds.stanza
            if is_full:
                read.append(number)
            else:
                stanza.entries.append(entries[-1])
    close()
    return read


def without_messages(items: list[Stanza | Fault]) -> list[Stanza | int]:
    return [item.line if isinstance(item, Fault) else item for item in items]


either_bounds = pytest.mark.parametrize("bounds", [WIDE, NARROW], ids=["wide", "narrow"])


@either_bounds
@given(text=conf_like, window=st.integers(1, 5))
def test_a_simple_parser_reads_the_same(bounds: Bounds, text: str, window: int) -> None:
    expected = read_by_hand(text, bounds)
    assert without_messages(read_in_windows([text], bounds)) == expected
    assert without_messages(read_in_windows([text], bounds._replace(window=window))) == expected


@either_bounds
@given(pieces=st.lists(conf_like, max_size=6), window=st.integers(1, 5))
def test_any_cutting_into_blocks_reads_the_same(bounds: Bounds, pieces: list[str], window: int) -> None:
    whole = read_in_windows(["".join(pieces)], bounds)
    assert read_in_windows(pieces, bounds._replace(window=window)) == whole
    assert read_in_windows("".join(pieces), bounds._replace(window=window)) == whole


@given(st.text())
def test_any_text_is_read_with_lines_that_are_in_it(text: str) -> None:
    count = len(lines_of(text))
    last = 0
    for item in parse([text]):
        assert 1 <= item.line <= count
        if isinstance(item, Fault):
            assert "\0" not in item.message
            continue
        for entry in item.entries:
            assert last < entry.line <= count
            assert "\0" not in entry.key + entry.value
            last = entry.line
