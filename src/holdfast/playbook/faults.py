"""What is wrong with a playbook: each fault with its line, its field and what is allowed there.

All faults of a file are collected and told together, in the order of their lines, so that its author mends
them in one go. How many are collected is bounded, and so is what is said about each: a broken file of ten
thousand steps costs no more to refuse than to accept.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any, Final, NamedTuple

from holdfast.core.errors import DefinitionInvalid

FAULTS_SHOWN_MAX: Final = 100
FAULTS_KEPT_MAX: Final = 1_000
NAMES_SHOWN_MAX: Final = 40
VALUE_SHOWN_CHARS_MAX: Final = 80
MESSAGE_CHARS_MAX: Final = 2_000
_NAMES_FOLDED_MAX: Final = 10_000
_NAMES_COMPARED_MAX: Final = 500
_SENTENCE: Final = re.compile(r"[A-Z][a-z]* ")
_SUGGESTIONS_MAX: Final = FAULTS_SHOWN_MAX
_SIMILARITY_MIN: Final = 0.6


class Fault(NamedTuple):
    """What is wrong, where, and what is allowed there."""

    line: int
    field: str
    message: str
    allowed: str = ""

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"{where}{self.message}{self._then}"

    @property
    def _then(self) -> str:
        """A whole sentence stands for itself."""
        if not self.allowed:
            return ""
        return f" {self.allowed}" if _SENTENCE.match(self.allowed) else f" Allowed: {self.allowed}"


class Unreadable(Exception):
    """A file that is no YAML, or none that a playbook may be written in."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(faults)
        self.faults = faults


class PlaybookInvalid(DefinitionInvalid):
    """The playbook is refused; `faults` says why, one by one."""

    code = "playbook_invalid"

    def __init__(self, name: str, faults: Iterable[Fault], *, more: int = 0) -> None:
        self.name = name
        self.faults = tuple(sorted(set(faults)))
        hidden = len(self.faults) - FAULTS_SHOWN_MAX + more
        lines = [f"{name}:{fault.line}: {fault}" for fault in self.faults[:FAULTS_SHOWN_MAX]]
        if hidden > 0:
            lines.append(f"{name}: and {hidden:,} more")
        super().__init__("\n".join(lines), guidance="Correct these places and try again.")


class Faults:
    """Collects; `more` counts those that there was no room for."""

    def __init__(self) -> None:
        self.found: list[Fault] = []
        self.more = 0
        self._suggestions_left = _SUGGESTIONS_MAX

    def add(self, fault: Fault) -> None:
        if len(self.found) < FAULTS_KEPT_MAX:
            if len(fault.message) > MESSAGE_CHARS_MAX:  # it quotes a value: what is wrong stands around it
                half = MESSAGE_CHARS_MAX // 2
                fault = fault._replace(message=f"{fault.message[:half]}…{fault.message[-half:]}")
            self.found.append(fault)
        else:
            self.more += 1

    @property
    def has_room_for_detail(self) -> bool:
        """Whether a fault may still cost something to describe: comparing names does."""
        return self._suggestions_left > 0

    def nearest(self, written: object, known: Collection[str]) -> str | None:
        """What may have been meant; the first faults only are worth looking for it."""
        if not self.has_room_for_detail:
            return None
        self._suggestions_left -= 1
        return _nearest(written, known)

    def did_you_mean(self, written: object, known: Collection[str]) -> str:
        """A sentence, or nothing where nothing is near."""
        return suggestion(self.nearest(written, known))


def suggestion(near: str | None) -> str:
    return f" Did you mean {near!r}?" if near else ""


def _nearest(written: object, known: Collection[str]) -> str | None:
    if not isinstance(written, str) or len(written) > VALUE_SHOWN_CHARS_MAX:
        return None
    folded = {name.lower(): name for name in reversed(list(islice(known, _NAMES_FOLDED_MAX)))}
    if written.lower() in folded:
        return folded[written.lower()]
    alike = [name for name in folded if abs(len(name) - len(written)) <= 3][:_NAMES_COMPARED_MAX]
    found = difflib.get_close_matches(written.lower(), alike, 1, _SIMILARITY_MIN)
    return folded[found[0]] if found else None


def listed(names: Collection[str], *, more: int = 0) -> str:
    """For people: all of a few, the first of many; and that there are `more` of them."""
    rest = max(0, len(names) - NAMES_SHOWN_MAX) + more
    return ", ".join(map(cut, islice(names, NAMES_SHOWN_MAX))) + (f" and {rest:,} more" if rest > 0 else "")


def value_shown(value: Any) -> str:
    """As its author would recognise it: in YAML's words, bounded."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    # Nothing is quoted whole to be cut then: it may be long, and quoted often.
    return cut(repr(value[:VALUE_SHOWN_CHARS_MAX] if isinstance(value, str) else value))


def cut(text: str) -> str:
    return text if len(text) <= VALUE_SHOWN_CHARS_MAX else f"{text[: VALUE_SHOWN_CHARS_MAX - 1]}…"
