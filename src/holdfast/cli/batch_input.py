"""The items of a batch, read from a file or a stream without ever holding all of it.

    bytes as they come ─▶ Items.feed ─▶ the items that are complete ─▶ Items.finish at the end

One JSON value a line, or, where the first character is `[`, one JSON array of them. What is wrong is refused
with its line. A file can be read twice: it is checked to its end before anything of it is stored. A pipe
cannot; what came before a wrong line may be stored already, and whoever reads here says so.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import re
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec

from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.payload import PAYLOAD_BYTES_MAX_DEFAULT, encode_payload

READ_BYTES = 64 * 1024
# Spaces do not count against what a workload may be, so a line may be longer than one.
ITEM_BYTES_MAX = 4 * PAYLOAD_BYTES_MAX_DEFAULT
# An error so near to the end of what is there may be a word that is cut in two.
CUT_CHARS = 16
STDIN = "-"

_SPACES = re.compile(r"[ \t\r\n]*")
_MARK_UTF8 = codecs.BOM_UTF8
_SCANNER = json.JSONDecoder()
_EXAMPLE = """One JSON value a line, for example {"id": 7}; or one JSON array of them."""


Check = Callable[[Any], object]
"""Raises InvalidInput for an item that its pipeline has no use for, by itself or beside those before it."""


class WrongLine(InvalidInput):
    """What is wrong is in this line of the input."""

    def __init__(self, message: str, *, line: int, guidance: str) -> None:
        super().__init__(message, guidance=guidance)
        self.line = line


class Item(NamedTuple):
    workload: Any
    line: int


class Items:
    """Takes bytes, gives items; `what` names their origin in errors."""

    def __init__(
        self, what: str, bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT, check: Check | None = None
    ) -> None:
        self._what = what
        self._bytes_max = bytes_max
        self._check = check
        self._head = b""
        self._format: _Lines | _Array | None = None

    def feed(self, data: bytes, *, is_end: bool = False) -> list[Item]:
        """The items that these bytes have completed; all of them are right, or the first wrong one is
        raised."""
        if self._format is None:
            self._head += data
            if len(self._head) < len(_MARK_UTF8) and not is_end:
                return []  # too few to tell what they are
            self._refuse_foreign(self._head)
            data = self._head.removeprefix(_MARK_UTF8)
            if not data.strip() and not is_end:
                self.check_size(len(self._head), 1)
                return []
            self._head = b""
            self._format = _Array(self) if data.lstrip()[:1] == b"[" else _Lines(self)
        return self._format.feed(data, is_end=is_end)

    def finish(self) -> list[Item]:
        return self.feed(b"", is_end=True)

    # what both formats do

    def item(self, text: bytes | str, line: int) -> Item:
        try:
            workload = msgspec.json.decode(text)
        except UnicodeDecodeError:
            assert isinstance(text, bytes)
            raise self.not_utf8(text, line) from None
        except RecursionError:
            raise self.wrong("is nested too deeply", line) from None
        except msgspec.DecodeError as error:
            if isinstance(text, bytes):
                self._refuse_bytes(text, line)
            why = str(error).removeprefix("JSON is malformed: ").rstrip(".")
            raise self.wrong(f"is not JSON: {why}", line) from None
        try:
            encode_payload(workload, what=f"item in line {line:,} of {self._what}", bytes_max=self._bytes_max)
        except HoldfastError as error:
            raise WrongLine(str(error), line=line, guidance=error.guidance or "") from None
        if self._check is not None:
            try:
                self._check(workload)
            except InvalidInput as error:
                told = f"Line {line:,} of {self._what}: {error}"
                raise WrongLine(told, line=line, guidance=error.guidance or _EXAMPLE) from None
        return Item(workload, line)

    def wrong(self, how: str, line: int, guidance: str = "") -> WrongLine:
        return WrongLine(f"Line {line:,} of {self._what} {how}.", line=line, guidance=guidance or _EXAMPLE)

    def not_utf8(self, text: bytes, line: int) -> WrongLine:
        try:
            text.decode()
            place = ""
        except UnicodeDecodeError as error:
            line += text.count(b"\n", 0, error.start)
            place = f" (byte 0x{text[error.start]:02x})"
        return self.wrong(
            f"is not UTF-8 text{place}",
            line,
            "Convert it first, for example:  iconv -f windows-1252 -t utf-8",
        )

    def check_size(self, size: int, line: int) -> None:
        if size > ITEM_BYTES_MAX:
            raise self.wrong(
                f"has an item of more than {ITEM_BYTES_MAX:,} bytes",
                line,
                "Keep large data in a file or object store and pass its address.",
            )

    def _refuse_bytes(self, text: bytes, line: int) -> None:
        if b"\0" in text:
            raise self.wrong(
                "has NUL bytes", line, "Is it UTF-16? Convert it first:  iconv -f utf-16 -t utf-8"
            )
        try:
            text.decode()
        except UnicodeDecodeError:
            raise self.not_utf8(text, line) from None

    def _refuse_foreign(self, head: bytes) -> None:
        for marks, kind, advice in (
            ((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "UTF-16 text", "iconv -f utf-16 -t utf-8"),
            ((b"\x1f\x8b",), "compressed", "zcat"),
        ):
            if head.startswith(marks):
                raise InvalidInput(
                    f"{self._what} is {kind}.",
                    guidance=f"Convert it on the way:  {advice} FILE | holdfast batch submit PIPELINE -",
                )

    def none_there(self) -> InvalidInput:
        return InvalidInput(f"There are no items in {self._what}.", guidance=_EXAMPLE)


class _Lines:
    def __init__(self, items: Items) -> None:
        self._items = items
        self._rest = bytearray()
        self._line = 1
        self._empty: int | None = None

    def feed(self, data: bytes, *, is_end: bool) -> list[Item]:
        self._rest += data
        *lines, rest = self._rest.split(b"\n") if b"\n" in data or is_end else [self._rest]
        if is_end:
            lines.append(rest)
            rest = bytearray()
        found = []
        for line in lines:
            item = self._of(bytes(line))
            if item is not None:
                found.append(item)
            self._line += 1
        self._rest = bytearray(rest)
        self._items.check_size(len(self._rest), self._line)
        return found

    def _of(self, line: bytes) -> Item | None:
        """None for an empty line; that is one too many, unless only such lines follow."""
        if not line.strip():
            self._empty = self._line if self._empty is None else self._empty
            return None
        if self._empty is not None:
            raise self._items.wrong(
                "is empty", self._empty, "Leave it out; an item without a workload is written null."
            )
        self._items.check_size(len(line), self._line)
        return self._items.item(line, self._line)


class _Array:
    _BEFORE, _FIRST, _VALUE, _AFTER, _OVER = range(5)

    def __init__(self, items: Items) -> None:
        self._items = items
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._place = 0
        self._line = 1
        self._state = self._BEFORE
        self._wanted = 0

    def feed(self, data: bytes, *, is_end: bool) -> list[Item]:
        try:
            self._text += self._decoder.decode(data, is_end)
        except UnicodeDecodeError as error:
            raise self._items.not_utf8(bytes(error.object), self._line_at(len(self._text))) from None
        found: list[Item] = []
        if len(self._text) >= self._wanted or is_end:
            while self._go_on(found, is_end=is_end):
                pass
            self._text, self._place = self._text[self._place :], 0
            # What is not complete is looked at again once there is twice as much of it.
            self._wanted = 2 * len(self._text)
        if is_end and self._state != self._OVER:
            raise self._wrong("ends before the array does; its last character must be ]")
        return found

    def _go_on(self, found: list[Item], *, is_end: bool) -> bool:
        """Past the next piece; False where it is not there yet."""
        text = self._text
        self._move_to(_SPACES.match(text, self._place).end())  # type: ignore[union-attr]
        if self._place == len(text):
            return False
        char = text[self._place]
        if self._state == self._OVER:
            raise self._wrong("has something behind the end of the array; a file that begins with [ is one")
        if self._state == self._BEFORE:
            self._state = self._FIRST
        elif self._state == self._AFTER:
            if char not in ",]":
                raise self._wrong(f"has {char!r} where a comma or ] is due")
            self._state = self._VALUE if char == "," else self._OVER
        elif char == "]" and self._state == self._FIRST:
            self._state = self._OVER
        else:
            return self._take(found, is_end=is_end)
        self._place += 1
        return True

    def _take(self, found: list[Item], *, is_end: bool) -> bool:
        end = self._end_of_item(is_end=is_end)
        if end is None or (end == len(self._text) and not is_end):  # a number may go on
            self._items.check_size(len(self._text) - self._place, self._line)
            return False
        found.append(self._items.item(self._text[self._place : end], self._line))
        self._move_to(end)
        self._state = self._AFTER
        return True

    def _move_to(self, place: int) -> None:
        self._line = self._line_at(place)
        self._place = place

    def _end_of_item(self, *, is_end: bool) -> int | None:
        """Where the value ends; None where the rest of it may be still to come."""
        try:
            return _SCANNER.raw_decode(self._text, self._place)[1]
        except RecursionError:
            raise self._wrong("is nested too deeply") from None
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated") or error.pos > len(self._text) - CUT_CHARS
            if is_cut and not is_end:
                return None
            raise self._items.wrong(f"is not JSON: {error.msg}", self._line_at(error.pos)) from None

    def _line_at(self, place: int) -> int:
        return self._line + self._text.count("\n", self._place, place)

    def _wrong(self, how: str) -> InvalidInput:
        return self._items.wrong(how, self._line)


class Source:
    """A file's name, or `-` for stdin."""

    def __init__(
        self, name: str | None, bytes_max: int, new_check: Callable[[], Check | None] = lambda: None
    ) -> None:
        self._bytes_max = bytes_max
        self._new_check = new_check
        self.name = STDIN if name is None else name
        self.what = "stdin" if self.name == STDIN else self.name

    @property
    def is_file(self) -> bool:
        """Whether it can be read twice."""
        return self.name != STDIN and os.path.isfile(self.name)

    def checked(self) -> int:
        """How many items the file has, all of them right."""
        items, count = Items(self.what, self._bytes_max, self._new_check()), 0
        with self._opened() as file:
            while data := file.read(READ_BYTES):
                count += len(items.feed(data))
        return count + len(items.finish())

    async def read(self) -> AsyncGenerator[list[Item], None]:
        """Items as they come; from a pipe as soon as they are there."""
        items = Items(self.what, self._bytes_max, self._new_check())
        with self._opened() as file:
            while data := await _read(file):
                if found := items.feed(data):
                    yield found
        if found := items.finish():
            yield found

    def none_there(self) -> InvalidInput:
        return Items(self.what).none_there()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        if self.name == STDIN:
            yield sys.stdin.buffer
            return
        try:
            with open(self.name, "rb", buffering=0) as file:
                yield file
        except OSError as error:
            raise InvalidInput(
                f"The items cannot be read from {self.name!r}: {error.strerror or error}.",
                guidance="Check the name of the file; a relative one starts in this folder.",
            ) from None


async def _read(file: BinaryIO) -> bytes:
    """What is there next, empty at the end. A pipe is waited for beside the event loop's other work."""
    descriptor = _pipe_of(file)
    if descriptor is None:
        return file.read(READ_BYTES)
    loop, is_ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, is_ready.set)
    try:
        await is_ready.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, READ_BYTES)


def _pipe_of(file: BinaryIO) -> int | None:
    """Its number where reading may have to wait: pipes, sockets, terminals."""
    try:
        descriptor = file.fileno()
    except OSError:  # not a file of the system's
        return None
    mode = os.fstat(descriptor).st_mode
    waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
    return descriptor if waits else None
