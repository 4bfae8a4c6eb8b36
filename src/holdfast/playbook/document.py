"""YAML read with the place of everything in it.

    bytes ──▶ text ──libyaml's events──▶ plain values, and the line of each ──▶ or faults, each with its line

Scalars are those of YAML 1.2: `on`, `NO` and `12:30:00` are texts, `010` is ten. What would surprise its
author is a fault: a key that is given twice, a tag, a merge, a number that no JSON holds. What would hurt the
reader is one too: a file that is too large, nested too deeply, or unfolds without end.
"""

from __future__ import annotations

import codecs
import math
import re
from itertools import islice
from typing import Any, Final, NamedTuple

import yaml

from holdfast.playbook.faults import FAULTS_KEPT_MAX, NAMES_SHOWN_MAX, Fault, Unreadable, cut, value_shown

BYTES_MAX: Final = 1024 * 1024
VALUES_MAX: Final = 200_000
CHARS_MAX: Final = 2 * BYTES_MAX
DEPTH_MAX: Final = 50
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1

Path = tuple[str | int, ...]

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+", re.ASCII)
_OCTAL = re.compile(r"0o([0-7]+)")
_HEX = re.compile(r"0x([0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STRING_TAGS = ("tag:yaml.org,2002:str", "!")
_COLLECTION_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_NUMBER_DIGITS_MAX = 400
_LINE_END = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # as libyaml counts them
_NESTED_KEY = "<key>"  # where a value stands that has no place of its own
_QUOTE_TEMPLATES = 'Put the template in quotes: "{{ … }}".'


class Document(NamedTuple):
    """`lines` has the line of each place, `texts` the line of a literal block's own first line."""

    text: str
    value: Any
    lines: dict[Path, int]
    texts: dict[Path, int]

    def line(self, path: Path) -> int:
        """Of this place, or of the nearest one around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def line_in(self, path: Path, line: int) -> int:
        """Of a line inside a text, counted from 1; of the text itself, where it is no literal block."""
        return self.texts[path] + line - 1 if path in self.texts else self.line(path)


def read(source: bytes | str) -> Document:
    """The one document of a file, or Unreadable."""
    text = _decoded(source)
    if odd := _NOT_ALLOWED.search(text):
        raise _unreadable(
            _line_at(text, odd.start()),
            f"The character U+{ord(odd[0]):04X} is not allowed in a playbook.",
            "Remove it, or write it as an escape in a quoted text.",
        )
    loader = yaml.CSafeLoader(text)
    try:
        value, lines, texts = _Reading(loader).document()
        return Document(text, value, lines, texts)
    except yaml.MarkedYAMLError as error:
        raise Unreadable([_syntax_fault(error, text)]) from None
    except yaml.YAMLError as error:
        raise _unreadable(1, f"This is not YAML: {error}.", "") from None
    finally:
        loader.dispose()


def _decoded(source: bytes | str) -> str:
    if isinstance(source, str):
        if len(source) > BYTES_MAX:
            raise _too_large(len(source), "characters")
        return source.removeprefix("\ufeff")
    if len(source) > BYTES_MAX:
        raise _too_large(len(source), "bytes")
    encoding = "utf-8-sig"
    if source.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        encoding = "utf-32"
    elif source.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        return source.decode(encoding)
    except UnicodeDecodeError as error:
        # Bytes before the fault are sound, so lines can be counted in them.
        before = source[: error.start].decode(encoding, errors="ignore")
        raise _unreadable(
            _line_at(before, len(before)),
            f"Byte {error.start + 1} of the file (0x{source[error.start]:02x}) is no"
            f" {encoding.removesuffix('-sig').upper()} text.",
            "Save the file as UTF-8.",
        ) from None


def _too_large(size: int, unit: str) -> Unreadable:
    return _unreadable(
        1, f"The file has {size:,} {unit}.", f"At most {BYTES_MAX:,}; put long data elsewhere."
    )


def _unreadable(line: int, message: str, allowed: str) -> Unreadable:
    return Unreadable([Fault(line, "", message, allowed)])


def _line_at(text: str, position: int) -> int:
    return sum(1 for _ in _LINE_END.finditer(text, 0, position)) + 1


def _syntax_fault(error: yaml.MarkedYAMLError, text: str) -> Fault:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    lines = _LINE_END.split(text)
    # A fault at the very end is told at the last line with something in it.
    while line > 1 and (line > len(lines) or not lines[line - 1].strip()):
        line -= 1
    written = lines[line - 1]
    indent = written[: len(written) - len(written.lstrip())]
    if "\t" in indent or "'\\t'" in str(error.problem):
        return Fault(line, "", "The line is indented with a tab.", "Indent with spaces.")
    context = f"{error.context}: " if error.context else ""
    began = error.context_mark
    since = f" (it began in line {began.line + 1})" if began and began.line + 1 < line else ""
    allowed = _QUOTE_TEMPLATES if "{{" in written else "Check quotes, colons, brackets and indentation."
    return Fault(line, "", f"This is not YAML: {context}{error.problem}{since}.", allowed)


class _Anchored(NamedTuple):
    """A value that aliases stand for, and what it unfolds to."""

    value: Any
    values: int
    chars: int


class _Reading:
    """Goes through libyaml's events itself: its own composer recurses without a bound, and crashes the
    process on a file of brackets."""

    def __init__(self, loader: yaml.CSafeLoader) -> None:
        self._loader = loader
        self._lines: dict[Path, int] = {}
        self._texts: dict[Path, int] = {}
        self._faults: list[Fault] = []
        self._anchors: dict[str, _Anchored | None] = {}
        self._values = 0
        self._chars = 0

    def document(self) -> tuple[Any, dict[Path, int], dict[Path, int]]:
        self._loader.get_event()  # the stream's start
        if self._loader.check_event(yaml.StreamEndEvent):
            raise _unreadable(1, "The file is empty.", "A playbook has apiVersion, metadata and a workflow.")
        self._loader.get_event()  # the document's start
        value = self._value(())
        self._loader.get_event()  # and its end
        if not self._loader.check_event(yaml.StreamEndEvent):
            second: Any = self._loader.peek_event()
            self._fault(second, (), "There is a second document in the file.", "One playbook a file.")
        if self._faults:
            raise Unreadable(self._faults)
        return value, self._lines, self._texts

    def _fault(self, event: yaml.Event, path: Path, message: str, allowed: str = "") -> None:
        self._faults.append(Fault(_line(event), shown(path), message, allowed))
        if len(self._faults) >= FAULTS_KEPT_MAX:
            raise Unreadable(self._faults)

    def _pay(self, event: yaml.Event, path: Path, values: int, chars: int) -> None:
        self._values += values
        self._chars += chars
        if self._values > VALUES_MAX or self._chars > CHARS_MAX:
            most, what = (VALUES_MAX, "values") if self._values > VALUES_MAX else (CHARS_MAX, "characters")
            message = f"The file unfolds to too many {what}."
            self._stop(event, path, message, f"At most {most:,}; aliases count as what they stand for.")

    def _stop(self, event: yaml.Event, path: Path, message: str, allowed: str) -> None:
        """Reading on would cost what the bound is there to save."""
        self._fault(event, path, message, allowed)
        raise Unreadable(self._faults)

    def _value(self, path: Path) -> Any:
        event: Any = self._loader.get_event()
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        before, chars_before = self._values, self._chars
        self._pay(event, path, 1, len(event.value) if isinstance(event, yaml.ScalarEvent) else 0)
        if len(path) > DEPTH_MAX:
            self._stop(event, (), "The file is nested too deeply.", f"At most {DEPTH_MAX} levels.")
        self._lines.setdefault(path, _line(event))
        anchor = event.anchor
        if anchor is not None:
            self._anchors[anchor] = None  # until it is complete
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, path)
        else:
            if event.tag is not None and event.tag not in _COLLECTION_TAGS:
                self._fault(
                    event, path, f"The tag {_tag_shown(event.tag)} is not allowed.", "Plain YAML only."
                )
            value = (
                self._sequence(path) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(path)
            )
        if anchor is not None:
            self._anchors[anchor] = _Anchored(value, self._values - before, self._chars - chars_before)
        return value

    def _alias(self, event: yaml.AliasEvent, path: Path) -> Any:
        anchored = self._anchors.get(str(event.anchor))
        if anchored is None:
            complete = (f"*{name}" for name, value in self._anchors.items() if value is not None)
            known = ", ".join(islice(complete, NAMES_SHOWN_MAX))
            message = f"The alias *{cut(str(event.anchor))} stands for nothing that is complete before it."
            self._fault(event, path, message, known[:200] or "There is no anchor before it.")
            return None
        self._pay(event, path, anchored.values, anchored.chars)
        self._lines.setdefault(path, _line(event))
        return anchored.value

    def _sequence(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while not self._loader.check_event(yaml.SequenceEndEvent):
            items.append(self._value((*path, len(items))))
        self._loader.get_event()
        return items

    def _mapping(self, path: Path) -> dict[str, Any]:
        read: dict[str, Any] = {}
        first: dict[str, int] = {}
        while not self._loader.check_event(yaml.MappingEndEvent):
            event: Any = self._loader.peek_event()
            faults = len(self._faults)
            key = self._value((*path, _NESTED_KEY))
            self._lines.pop((*path, _NESTED_KEY), None)
            if not isinstance(key, str):
                del self._faults[faults:]
                self._refuse_key(event, path)
                self._value((*path, _NESTED_KEY))
                continue
            place = (*path, key)
            self._lines.setdefault(place, _line(event))
            if key == "<<":
                allowed = "Write the fields out; what all steps share goes in `defaults`."
                self._fault(event, path, "Mappings cannot be merged with <<.", allowed)
            elif key in first:
                message = f"{value_shown(key)} is given twice, first in line {first[key]}."
                self._fault(event, place, message, "Keep one of them.")
            first.setdefault(key, _line(event))
            value = self._value(place)
            read.setdefault(key, value)
        self._loader.get_event()
        return read

    def _refuse_key(self, event: yaml.Event, path: Path) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._fault(event, path, f"The key {event.value[:80]!r} is no text.", "Put it in quotes.")
        elif isinstance(event, yaml.MappingStartEvent):
            self._fault(event, path, "A mapping stands where a key must be.", _QUOTE_TEMPLATES)
        else:
            self._fault(event, path, "A key must be a text.", "Write `name: value`.")

    def _scalar(self, event: yaml.ScalarEvent, path: Path) -> Any:
        plain, quoted = event.implicit
        if event.style == "|":
            self._texts[path] = _line(event) + 1
        if "\0" in event.value:
            self._fault(event, path, "The text holds a NUL character, which no store keeps.", "Remove it.")
        if plain:
            return self._plain(event, path)
        if not quoted and event.tag not in _STRING_TAGS:
            self._fault(event, path, f"The tag {_tag_shown(event.tag)} is not allowed.", "Plain YAML only.")
        return event.value

    def _plain(self, event: yaml.ScalarEvent, path: Path) -> Any:
        value = plain_scalar(event.value)
        if isinstance(value, _NoNumber):
            message = f"The number {event.value[:40]} cannot be kept as it is."
            self._fault(event, path, message, "Numbers of 64 bits; in quotes it is a text.")
            return None
        return value


class _NoNumber:
    """Looks like one, and no JSON holds it."""


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    line: int = event.start_mark.line
    return line + 1


def _tag_shown(tag: str | None) -> str:
    return (tag or "").replace("tag:yaml.org,2002:", "!!")[:80]


def plain_scalar(text: str) -> str | int | float | bool | _NoNumber | None:
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if _INT.fullmatch(text):
        return _integer(text, 10)
    if octal := _OCTAL.fullmatch(text):
        return _integer(octal[1], 8)
    if hexadecimal := _HEX.fullmatch(text):
        return _integer(hexadecimal[1], 16)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else _NoNumber()
    return _NoNumber() if _NOT_FINITE.fullmatch(text) else text


def _integer(digits: str, base: int) -> int | _NoNumber:
    if len(digits) > _NUMBER_DIGITS_MAX:  # more than Python agrees to read
        return _NoNumber()
    number = int(digits, base)
    return number if INTEGER_MIN <= number <= INTEGER_MAX else _NoNumber()


def shown(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{cut(part)}" if text else cut(part)
    return text
