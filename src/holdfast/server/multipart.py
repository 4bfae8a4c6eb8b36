"""multipart/form-data, taken apart as it comes: a pure parser that is fed pieces and asked for what they say.

    pieces of a body ──feed──▶ Parser ──next──▶ Part, bytes, bytes, …, PART_END, Part, …, END
                                          └ MORE: it cannot tell before another piece is fed

It keeps no more than the piece at hand, the head of a part, or the few bytes at the end of a piece that may
be the first of a delimiter. How the body was cut makes no difference to what comes out. Whatever a body is
made of, the one error is `Malformed`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal
from urllib.parse import unquote_to_bytes

HEAD_BYTES_MAX = 8 * 1024
# Before the first delimiter and behind the last, where nobody who sends a form has anything to say.
AROUND_BYTES_MAX = 4 * 1024
FILENAME_CHARS_MAX = 200
CONTENT_TYPE_CHARS_MAX = 200
CONTENT_TYPE_DEFAULT = "application/octet-stream"

_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")  # RFC 2046, 5.1.1
_PADDING = rb"[ \t]{0,64}"
_BREAK = b"\r\n"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# A backslash takes the next character with it, so that there is one way only to read a quoted text.
_PARAMETER = re.compile(rf'\s*;\s*({_TOKEN.pattern})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))')
_EXTENDED = re.compile(r"(utf-8|iso-8859-1)'[^']*'([^']*)", re.IGNORECASE)
_MEDIA_TYPE = re.compile(rf"{_TOKEN.pattern}/{_TOKEN.pattern}(?:;[ -~]*)?")
_FORBIDDEN = re.compile(r"[\0\r\n]")
# Those that end a line or turn the direction of writing are shown to people as something else than they are.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Malformed(ValueError):
    """What was sent is no multipart/form-data; the message says where it stops being that."""


class Signal(Enum):
    MORE = "nothing can be told before more is fed"
    PART_END = "the part has come as a whole"
    END = "the closing boundary has come"


@dataclass(frozen=True, slots=True)
class Part:
    """The head of a part. `filename` is None where it is a text field, and empty where it names nothing."""

    name: str
    filename: str | None
    content_type: str


Event = Part | bytes | Signal
_Data = bytes | Literal[Signal.MORE, Signal.PART_END]


class _State(Enum):
    PREAMBLE = 0
    HEAD = 1
    DATA = 2
    EPILOGUE = 3


def boundary_of(content_type: str) -> str:
    """The boundary that the Content-Type of a request names."""
    _, semicolon, rest = content_type.partition(";")
    boundary = _parameters(semicolon + rest).get("boundary")
    if boundary is None:
        raise Malformed("The Content-Type names no boundary.")
    if _BOUNDARY.fullmatch(boundary) is None:
        raise Malformed("The boundary in the Content-Type is not one of 1 to 70 plain characters.")
    return boundary


class Parser:
    """`boundary` is one that `boundary_of` has found."""

    def __init__(self, boundary: str) -> None:
        self._delimiter = _BREAK + b"--" + boundary.encode("ascii")
        # As it stands in a body, and as it may stand there when more has come.
        begun = re.escape(self._delimiter)
        self._line = re.compile(begun + rb"(?:(--)|%b\r\n)" % _PADDING)
        self._unended_line = re.compile(begun + rb"(?:-|%b\r?)\Z" % _PADDING)
        self._state = _State.PREAMBLE
        self._buffer = _BREAK  # so that the first delimiter is as any other
        self._at = 0
        self._around = 0

    def feed(self, piece: bytes) -> None:
        self._buffer = self._buffer[self._at :] + piece if self._at < len(self._buffer) else piece
        self._at = 0

    def next(self) -> Event:
        while self._state is _State.PREAMBLE:  # it ends as data does, and nobody wants it
            if (skipped := self._data()) is Signal.MORE:
                return Signal.MORE
            if skipped is not Signal.PART_END:
                self._count_around(len(skipped))
        if self._state is _State.HEAD:
            return self._head()
        if self._state is _State.DATA:
            return self._data()
        self._count_around(len(self._buffer) - self._at)
        self._at = len(self._buffer)
        return Signal.END

    def finish(self) -> None:
        """The body has no more: Malformed where it ought to have."""
        if self._state is _State.PREAMBLE:
            raise Malformed("The boundary that the Content-Type names is not in the body.")
        if self._state is not _State.EPILOGUE:
            raise Malformed("The upload broke off: it has no closing boundary.")

    def _count_around(self, size: int) -> None:
        self._around += size
        if self._around > AROUND_BYTES_MAX:
            where = "before the first" if self._state is _State.PREAMBLE else "behind the closing"
            raise Malformed(f"There are over {AROUND_BYTES_MAX:,} bytes {where} boundary.")

    def _data(self) -> _Data:
        """What stands before the next delimiter; then that it is there."""
        # A line that only begins like a delimiter belongs to the file, which may be a form itself. Patterns
        # pass over any number of those at once; where there is none, plain search is several times as fast.
        found = self._buffer.find(self._delimiter, self._at)
        if found < 0:
            return self._taken(self._begun_delimiter())
        line = self._line.search(self._buffer, found)
        if line is None:
            unended = self._unended_line.search(self._buffer, found)
            return self._taken(self._begun_delimiter() if unended is None else unended.start())
        if line.start() > self._at:
            return self._taken(line.start())
        is_last = line[1] is not None
        # A head begins with the line break before it, so that an empty one ends like any other.
        self._at = line.end() if is_last else line.end() - len(_BREAK)
        self._state = _State.EPILOGUE if is_last else _State.HEAD
        return Signal.PART_END

    def _taken(self, end: int) -> _Data:
        if end == self._at:
            return Signal.MORE
        data = self._buffer[self._at : end]  # the very piece that was fed, where it is the whole
        self._at = end
        return data

    def _begun_delimiter(self) -> int:
        """Where at the end of the buffer a delimiter may have begun; the end, where none has."""
        start = max(self._at, len(self._buffer) - len(self._delimiter) + 1)
        while (start := self._buffer.find(b"\r", start)) >= 0:
            if self._delimiter.startswith(self._buffer[start:]):
                return start
            start += 1
        return len(self._buffer)

    def _head(self) -> Part | Signal:
        end = self._buffer.find(b"\r\n\r\n", self._at)
        if (end if end >= 0 else len(self._buffer)) - self._at > HEAD_BYTES_MAX:
            raise Malformed(f"The head of a part has over {HEAD_BYTES_MAX:,} bytes.")
        if end < 0:
            return Signal.MORE
        part = _part(self._buffer[self._at + 2 : end])
        self._at = end + 4
        self._state = _State.DATA
        return part


def _part(head: bytes) -> Part:
    headers = dict(_headers(head))
    kind, semicolon, rest = headers.get("content-disposition", "").partition(";")
    if kind.strip().lower() != "form-data":
        raise Malformed("A part has no Content-Disposition of form-data.")
    encoding = headers.get("content-transfer-encoding", "binary").lower()
    if encoding not in ("binary", "8bit", "7bit"):
        raise Malformed(f"A part has the Content-Transfer-Encoding {encoding[:40]!r}: send it as it is.")
    told = _parameters(semicolon + rest)
    if "name" not in told:
        raise Malformed("A part has no name.")
    filename = told.get("filename")
    if "filename*" in told:
        filename = _extended(told["filename*"])
    content_type = headers.get("content-type", "")
    if len(content_type) > CONTENT_TYPE_CHARS_MAX or _MEDIA_TYPE.fullmatch(content_type) is None:
        content_type = CONTENT_TYPE_DEFAULT
    return Part(told["name"], None if filename is None else plain_filename(filename), content_type)


def _headers(head: bytes) -> Iterator[tuple[str, str]]:
    if not head:
        return
    seen: set[str] = set()
    # A name in an old encoding becomes one with marks in it, which is no reason to refuse a file.
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or _TOKEN.fullmatch(name) is None or _FORBIDDEN.search(value):
            raise Malformed("The head of a part has a line that is no header.")
        if name in seen:
            raise Malformed(f"The head of a part has {name[:40]!r} twice.")
        seen.add(name)
        yield name, value.strip()


def _parameters(text: str) -> dict[str, str]:
    """Of a header, from their first semicolon on."""
    told: dict[str, str] = {}
    at = 0
    while match := _PARAMETER.match(text, at):
        name, quoted, plain = match[1].lower(), match[2], match[3]
        if name in told:
            raise Malformed(f"A header has {name[:40]!r} twice.")
        told[name] = plain if quoted is None else _unquoted(quoted)
        at = match.end()
    if rest := text[at:].strip(" \t;"):
        raise Malformed(f"A header has parameters that cannot be read, from {rest[:40]!r} on.")
    return told


def _unquoted(text: str) -> str:
    """Browsers write a quotation mark as %22, others as RFC 2616 would have it; and nobody doubles the
    backslashes of a Windows path, so they stand for themselves before any other character."""
    text = re.sub(r'\\(["\\])', r"\1", text)
    return re.sub(r"%(22|0[AD])", lambda found: chr(int(found[1], 16)), text, flags=re.IGNORECASE)


def _extended(text: str) -> str:
    """As RFC 5987 writes what is not ASCII."""
    match = _EXTENDED.fullmatch(text)
    try:
        if match is not None:
            return unquote_to_bytes(match[2]).decode(match[1])
    except UnicodeDecodeError:
        pass
    raise Malformed("A part has a filename* that cannot be read.")


def plain_filename(given: str) -> str:
    """Of a path the last name, without what no name should have; empty where nothing is left. Of one that is
    too long the end is kept, which says what kind of file it is."""
    name = re.split(r"[/\\]", _CONTROLS.sub("", given))[-1]
    name = name.strip()[-FILENAME_CHARS_MAX:].strip()
    return "" if name in (".", "..") else name
