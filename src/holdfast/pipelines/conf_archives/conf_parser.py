r"""The stanzas of a .conf or .meta file, read by Splunk's rules from text that comes in blocks.

    blocks ──▶ windows of an even size ──▶ lists of whole lines ──▶ stanzas, and faults of single lines

No text fails. A line that makes no sense gives a `Fault`, which comes before the stanza it stands in, and
the next line is read. A generator holds one stanza and one window, whatever the size of the file.

Lines end with LF, CRLF or CR; no other character ends one. White space is the space and the tab. A U+FEFF at
the beginning of a line is dropped: where files were joined, their marks stand in the middle.

Headers. `[name]`, indented or not. The name is all up to the last `]` of the line, so it may hold brackets:
`[source::/var/log/[a-z]/x]`. Only where white space and a comment follow the `]` that closes the first
bracket does the name end there: `[name] # see [other]`. Nothing in a name is unescaped or stripped: `[a\]b]`
is `a\]b`, `[ a ]` is ` a `, and `[]`, which is the whole app in a .meta file, is the empty name. Text behind
the `]` that is no comment is a fault, and the stanza is read. Without any `]` the rest of the line is the
name, and a fault tells it. A header is never continued.

Comments. A line that begins with `#` or `;`, indented or not. It is never continued, as a comment must not
swallow the header under it, and never looked into: whatever it holds, it is no fault. Nothing that follows
other text is a comment.

Settings. `key = value`, split at the first `=`, which must stand in the first line. Where the last character
of a line is a backslash, the value goes on: the backslash is dropped, the newline is kept, and the next line
is taken whole, whatever it looks like. Of two backslashes one is dropped. A backslash before white space
continues nothing and stays; at the end of the file it is dropped. The value loses the white space at its
beginning and at its end, and none around the newlines within. A line that is no setting (without `=`, without
a key, or with a NUL, which PostgreSQL cannot store) is a fault together with the lines that continue it.

Bounds. A setting, with all its lines, of more than LINE_CHARS_MAX characters is left out. Of a stanza with
more than ENTRIES_MAX settings or STANZA_CHARS_MAX characters the rest is left out. So is the whole of a
stanza of which the name has more than NAME_CHARS_MAX characters or the header holds a NUL, as its settings
belong to no other. Each is one fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

LINE_CHARS_MAX = 256 * 1024
NAME_CHARS_MAX = 4_000
STANZA_CHARS_MAX = 512 * 1024
ENTRIES_MAX = 20_000
EXCERPT_CHARS_MAX = 80

# Two windows have fewer characters than a line may have: only the first of their lines can be too long.
_WINDOW_CHARS = 64 * 1024
_SPACE = " \t"
_BRACKET = re.compile(r"[\[\]]")
_COMMENT_FOLLOWS = re.compile(r"[ \t]+[#;]")
# A mark of the encoding belongs to the beginning of a file, and stands in it where files were joined.
_MARKED_LINE = re.compile(r"[ \t\ufeff]*\ufeff")


class Entry(NamedTuple):
    """One setting. `line` is the one that it begins in."""

    key: str
    value: str
    line: int


class Stanza(NamedTuple):
    """A header and what stands under it. `entries` are in the order of the file, repeated keys too; the
    settings before the first header, which Splunk takes for those of [default], have no header."""

    name: str
    position: int
    line: int
    has_header: bool
    entries: list[Entry]


class Fault(NamedTuple):
    """What could not be read, in words for an administrator."""

    line: int
    message: str


def parse(blocks: Iterable[str]) -> Iterator[Stanza | Fault]:
    """The stanzas and faults of a text without lone surrogates, however it is cut into blocks."""
    reader = _Reader()
    for lines in _line_lists(blocks):
        yield from reader.read(lines)
    yield from reader.finish()


def settings_of(stanza: Stanza) -> dict[str, str]:
    """Each key's last value."""
    return {key: value for key, value, _ in stanza.entries}


# From blocks to lines


class _Lines(NamedTuple):
    """Whole lines without their ends. `chars` is no less than they have together. Where they are not plain,
    one may hold a NUL or be too long."""

    lines: list[str]
    chars: int
    is_plain: bool


class _Unfinished:
    """A line of which the end has not come. One that is too long is cut to one character more than is
    allowed, which is a backslash where the line ends with one: it tells whether the line is continued."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.chars = 0
        self._last = ""

    def add(self, piece: str) -> None:
        if not piece:
            return
        if self.chars <= LINE_CHARS_MAX:
            self._pieces.append(piece)
        self.chars += len(piece)
        self._last = piece[-1]

    def take(self) -> str:
        line = "".join(self._pieces)
        if self.chars > LINE_CHARS_MAX:
            line = line[:LINE_CHARS_MAX] + ("\\" if self._last == "\\" else "…")
        self._pieces.clear()
        self.chars = 0
        return line


def _windows(blocks: Iterable[str]) -> Iterator[str]:
    """The text in pieces of about one size, so that neither a huge block nor a million tiny ones matter."""
    held: list[str] = []
    chars = 0
    for block in blocks:
        for begin in range(0, len(block), _WINDOW_CHARS):
            held.append(block[begin : begin + _WINDOW_CHARS])
            chars += len(held[-1])
            if chars >= _WINDOW_CHARS:
                yield "".join(held)
                held.clear()
                chars = 0
    yield "".join(held)


def _line_lists(blocks: Iterable[str]) -> Iterator[_Lines]:
    unfinished = _Unfinished()
    carriage_return = ""
    for window in _windows(blocks):
        text = carriage_return + window
        carriage_return = ""
        if "\r" in text:
            if text[-1] == "\r":  # a LF at the beginning of the next window belongs to it
                text, carriage_return = text[:-1], "\r"
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.split("\n")
        unfinished.add(lines[0])
        if len(lines) > 1:
            first, last = unfinished.take(), lines.pop()
            lines[0] = first
            if "\ufeff" in text or "\ufeff" in first:
                lines = [_unmarked(line) for line in lines]
            is_plain = "\0" not in text and "\0" not in first and len(first) <= LINE_CHARS_MAX
            yield _Lines(lines, len(first) + len(text), is_plain)
            unfinished.add(last)
    if carriage_return or unfinished.chars:
        last = _unmarked(unfinished.take())
        yield _Lines([last], len(last), is_plain=False)


def _unmarked(line: str) -> str:
    marked = _MARKED_LINE.match(line)
    return line if marked is None else line[marked.end() :]


# From lines to stanzas


def _gathered(lines: Iterable[tuple[int, str]]) -> tuple[str, bool]:
    """The text of the lines up to the first that is not continued, and whether there was one."""
    parts: list[str] = []
    for _, line in lines:
        if line[-1:] != "\\":
            parts.append(line)
            return "\n".join(parts), True
        parts.append(line[:-1])
    return "\n".join(parts), False


class _Setting:
    """A setting and the lines that continue it. Of one that is too long nothing is held."""

    def __init__(self, line: int) -> None:
        self._line = line
        self._texts: list[str] = []
        self._chars = 0

    def add(self, text: str, is_whole: bool) -> None:
        """One line of it or more. A backslash counts as the newline that it stands for."""
        self._chars += len(text) + (not is_whole)
        if self._is_too_long():
            self._texts.clear()
        else:
            self._texts.append(text)

    def _is_too_long(self) -> bool:
        return self._chars > LINE_CHARS_MAX

    def read(self) -> Entry | Fault:
        if self._is_too_long():
            return Fault(self._line, f"this setting has over {LINE_CHARS_MAX:,} characters; it is left out")
        text = "\n".join(self._texts)
        if (nul_at := text.find("\0")) >= 0:
            line = self._line + text.count("\n", 0, nul_at)
            return Fault(line, f"a NUL character cannot be kept; this setting is left out: {_excerpt(text)}")
        key, equals, value = text.partition("=")
        key = key.strip(_SPACE)
        if not equals or not key or "\n" in key:
            return _no_setting(self._line, text)
        return Entry(key, value.strip(_SPACE), self._line)


class _Reader:
    """The stanza that is being read, and the setting, if lines are missing from one."""

    def __init__(self) -> None:
        self._line_next = 1
        self._setting: _Setting | None = None
        self._position = 0
        self._begin("default", 0, has_header=False)

    def _begin(self, name: str, line: int, *, has_header: bool) -> None:
        self._name, self._line, self._has_header = name, line, has_header
        self._entries: list[Entry] = []
        self._entries_counted = 0
        self._chars = len(name)
        self._is_nameless = False  # it could not be read, and all under it is left out
        self._is_full = False  # the rest is left out

    def read(self, given: _Lines) -> Iterator[Stanza | Fault]:
        lines = enumerate(given.lines, self._line_next)
        self._line_next += len(given.lines)
        if self._setting is not None:
            yield from self._go_on(self._setting, *_gathered(lines))
        is_careful = not (given.is_plain and self._has_room_for(given))
        add = self._entries.append
        new_entry = tuple.__new__  # in half the time of the constructor
        for number, line in lines:
            text = line.strip(_SPACE)
            if not text:
                continue
            first = text[0]
            if first == "[":
                yield from self._open(number, line, text)
                add = self._entries.append
                continue
            if first == "#" or first == ";":
                continue
            if is_careful or line[-1] == "\\":
                text, is_whole = _gathered(chain(((number, line),), lines))
                if is_careful or not is_whole or len(text) > LINE_CHARS_MAX:
                    yield from self._go_on(_Setting(number), text, is_whole)
                    continue
                text = text.strip(_SPACE)
            key, equals, value = text.partition("=")
            key = key.rstrip(_SPACE)
            if equals and key and "\n" not in key:
                add(new_entry(Entry, (key, value.lstrip(_SPACE), number)))
            else:
                yield _no_setting(number, text)

    def finish(self) -> Iterator[Stanza | Fault]:
        if self._setting is not None:
            yield from self._keep(self._setting)
        yield from self._close()

    def _go_on(self, setting: _Setting, text: str, is_whole: bool) -> list[Fault]:
        """Adds to a setting. Where it is not whole by then, the next lines go on with it."""
        setting.add(text, is_whole)
        if is_whole:
            return self._keep(setting)
        self._setting = setting
        return []

    def _keep(self, setting: _Setting) -> list[Fault]:
        self._setting = None
        if self._is_nameless or self._is_full:
            return []
        read = setting.read()
        if isinstance(read, Fault):
            return [read]
        self._count()
        chars = self._chars + len(read.key) + len(read.value)
        if len(self._entries) < ENTRIES_MAX and chars <= STANZA_CHARS_MAX:
            self._entries.append(read)
            return []
        self._is_full = True
        bounds = f"{ENTRIES_MAX:,} settings or {STANZA_CHARS_MAX:,} characters"
        name = _excerpt(self._name)
        return [Fault(read.line, f"stanza [{name}] has more than {bounds}; it is left out from here on")]

    def _has_room_for(self, given: _Lines) -> bool:
        """Whether nothing in these lines can fill the stanza, or one that begins in them."""
        if self._is_nameless or self._is_full:
            return False
        self._count()
        has_entries = len(self._entries) + len(given.lines) <= ENTRIES_MAX
        return has_entries and self._chars + given.chars <= STANZA_CHARS_MAX

    def _count(self) -> None:
        for key, value, _ in self._entries[self._entries_counted :]:
            self._chars += len(key) + len(value)
        self._entries_counted = len(self._entries)

    def _open(self, number: int, line: str, text: str) -> list[Stanza | Fault]:
        read: list[Stanza | Fault] = [*self._close()]
        name, fault = _header_of(number, text)
        is_too_long = len(name) > NAME_CHARS_MAX or len(line) > LINE_CHARS_MAX
        if is_too_long:
            fault = Fault(number, f"this header is too long; its stanza is left out: {_excerpt(text)}")
        elif "\0" in text:
            fault = Fault(number, f"this header holds a NUL; its stanza is left out: {_excerpt(text)}")
        self._begin(name, number, has_header=True)
        self._is_nameless = is_too_long or "\0" in text
        if fault is not None:
            read.append(fault)
        return read

    def _close(self) -> list[Stanza]:
        if self._is_nameless or not (self._has_header or self._entries):
            return []
        line = self._line if self._has_header else self._entries[0].line
        stanza = Stanza(self._name, self._position, line, self._has_header, self._entries)
        self._position += 1
        return [stanza]


def _header_of(line: int, text: str) -> tuple[str, Fault | None]:
    """The name in a line that begins with a bracket, and what is wrong with the line."""
    end = text.rfind("]")
    if end < 0:
        message = f"this header has no ]; the rest of its line is taken for the name: {_excerpt(text)}"
        return text[1:], Fault(line, message)
    if text.find("]") == len(text) - 1:  # as nearly all are
        return text[1:-1], None
    depth = 0
    for bracket in _BRACKET.finditer(text):
        depth += 1 if bracket[0] == "[" else -1
        if depth == 0:
            if _COMMENT_FOLLOWS.match(text, bracket.end()):
                end = bracket.start()
            break
    rest = text[end + 1 :].lstrip(_SPACE)
    if rest and rest[0] not in "#;":
        return text[1:end], Fault(line, f"what follows the ] of this header is left out: {_excerpt(rest)}")
    return text[1:end], None


def _no_setting(line: int, text: str) -> Fault:
    first_line = text.partition("\n")[0]
    what = "no key before its =" if "=" in first_line else "no ="
    return Fault(line, f"this line has {what} and is left out: {_excerpt(text)}")


def _excerpt(text: str) -> str:
    """The beginning of the first line, fit to be stored."""
    line = (
        text[: EXCERPT_CHARS_MAX + 1]
        .partition("\n")[0]
        .strip(_SPACE)
        .replace("\0", "\N{REPLACEMENT CHARACTER}")
    )
    return line if len(line) <= EXCERPT_CHARS_MAX else line[: EXCERPT_CHARS_MAX - 1] + "…"
