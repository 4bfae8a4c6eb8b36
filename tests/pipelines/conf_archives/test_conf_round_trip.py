"""What is written is read again, and what cannot be written is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from holdfast.pipelines.conf_archives.conf_parser import LINE_CHARS_MAX, Entry, Fault, Stanza, parse
from holdfast.pipelines.conf_archives.conf_writer import write

Meaning = list[tuple[str, int, bool, list[tuple[str, str]]]]


def meaning(items: list[Stanza]) -> Meaning:
    return [
        (name, position, has_header, [(key, value) for key, value, _ in entries])
        for name, position, _, has_header, entries in items
    ]


def stanzas(text: str) -> list[Stanza]:
    return [item for item in parse([text]) if isinstance(item, Stanza)]


def one(name: str = "s", key: str = "k", value: str = "v", has_header: bool = True) -> Stanza:
    return Stanza(name, 0, 1, has_header, [Entry(key, value, 2 if has_header else 1)])


def test_the_text_is_one_that_an_administrator_would_write() -> None:
    settings = [
        Entry("search", "index=main \n  | stats count", 1),
        Entry("path", "C:\\logs\\", 3),
        Entry("a", "", 4),
    ]
    written = write([one("default", "owner", "me", has_header=False), Stanza("s", 1, 3, True, settings)])
    assert written == (
        "owner = me\n\n[s]\nsearch = index=main \\\n  | stats count\npath = C:\\logs\\ \na = \n\n"
    )


def test_no_stanzas_are_no_text() -> None:
    assert write([]) == ""


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "\n",
            "\n\n",
            "a\n",
            "\na",
            "a \n b",
            "\\",
            "a\\",
            "\\\n\\",
            "a\\\\",
            "a\\\nb",
            "a\n\\",
            "#",
            "a\n# b",
        ),
        *("a\n[b]\nc = d", "a = b", "; c", "a\n \nb", "\x0b\u2028\x85\xa0", "x" * 100_000, "😀\n" * 1_000),
    ],
)
def test_a_value_comes_back(value: str) -> None:
    after = Stanza("after", 1, 9, True, [])
    assert meaning(stanzas(write([one(value=value), after]))) == meaning([one(value=value), after])


@pytest.mark.parametrize(
    "name", ["", " ", "a]b", "a[b]c", "[", "]", "a\\", "a\\]", "x [y] #1", "# a", "a = b"]
)
def test_a_name_comes_back(name: str) -> None:
    assert meaning(stanzas(write([one(name=name)]))) == meaning([one(name=name)])


@pytest.mark.parametrize(
    "value", [" a", "a ", "a\n ", "\ta", "a\rb", "\0", "a\n\ufeffb", "x" * LINE_CHARS_MAX]
)
def test_a_value_that_no_line_says_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="no line says the value"):
        write([one(value=value)])


@pytest.mark.parametrize("key", ["", " k", "k ", "a=b", "a\nb", "a\r", "#k", ";k", "[k", "k\0"])
def test_a_key_that_no_line_says_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="no line says"):
        write([one(key=key)])


@pytest.mark.parametrize("name", ["a] # b", "a\nb", "a\r", "a\0", "a]\nk = v\n[b", "x" * LINE_CHARS_MAX])
def test_a_name_that_no_header_says_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no header says the name"):
        write([one(name=name)])


@pytest.mark.parametrize(
    "refused",
    [
        [one(), one("default", has_header=False)],
        [one("other", has_header=False)],
        [Stanza("default", 0, 1, False, [])],
    ],
)
def test_only_the_settings_at_the_beginning_need_no_header(refused: list[Stanza]) -> None:
    with pytest.raises(ValueError, match="cannot be written without a header"):
        write(refused)


# Anything

tricky = st.sampled_from(
    [*"\n\\[]#;= \t\r\0ab", "\x0b", "\x85", "\u2028", "\ufeff", " # ", "\\\n", "\na = ", "\n[s]\n", "é", "😀"]
)
tricky_text = st.lists(tricky, max_size=30).map("".join)
any_text = tricky_text | st.text()


@given(any_text)
@example("a = b\\")
@example("  \ufeff \ufeffk = v\n\ufeff[s]\na = b\\\n \ufeffc")
@example("[x\nk = \\ \n[a] # b]\n= c")
def test_what_was_read_from_any_text_is_written_and_read_again(text: str) -> None:
    read = stanzas(text)
    written = [*parse([write(read)])]
    assert not any(isinstance(item, Fault) for item in written)
    assert meaning([item for item in written if isinstance(item, Stanza)]) == meaning(read)
    assert write(stanzas(write(read))) == write(read)


def _without(text: str, characters: str) -> str:
    return text.translate(dict.fromkeys(map(ord, characters)))


names = any_text.map(lambda text: _without(text, "\n\r\0"))
keys = any_text.map(lambda text: _without(text, "\n\r\0=").strip(" \t").lstrip("[#; \t\ufeff") or "key")
values = any_text.map(lambda text: re.sub("\n[ \t\ufeff]*\ufeff", "\n", _without(text, "\r\0")).strip(" \t"))
any_stanza = st.builds(
    lambda name, settings: Stanza(name, 0, 1, True, [Entry(key, value, 1) for key, value in settings]),
    names.filter(lambda name: meaning(stanzas(f"[{name}]")) == [(name, 0, True, [])]),
    st.lists(st.tuples(keys, values), max_size=4),
)


@given(st.lists(any_stanza, max_size=4), st.booleans())
def test_what_is_written_is_read_again(written: list[Stanza], is_first_without_header: bool) -> None:
    numbered = [stanza._replace(position=position) for position, stanza in enumerate(written)]
    if is_first_without_header:
        assume(numbered and numbered[0].entries)
        numbered[0] = numbered[0]._replace(name="default", has_header=False)
    items = [*parse([write(numbered)])]
    assert not any(isinstance(item, Fault) for item in items)
    assert meaning([item for item in items if isinstance(item, Stanza)]) == meaning(numbered)
