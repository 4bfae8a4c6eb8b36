"""Where a listener is in the feed of events, and the word that stands for it.

A position is the highest row that was told, and the gaps: rows below it that could not be seen then. As text
it is `1.LAST` and the gaps behind it, in runs: `1.940.17-3.5` is row 940 without rows 17, 18, 19 and 24. The
leading 1 is the version of the format. Clients hand it back as Last-Event-ID, on any server and at any later
time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.core.errors import InvalidInput

# What a token tells of gaps. With more of them it stands for an earlier place, from which more is told again.
TOKEN_RUNS_MAX = 100
TOKEN_GAPS_MAX = 2_000
TOKEN_CHARS_MAX = 4_000

# The largest number that a database takes for a row.
ROW_MAX = 2**63 - 1

_TOKEN = re.compile(r"1\.([0-9]{1,18})((?:\.[0-9]{1,18}(?:-[0-9]{1,6})?)*)")


class Position(NamedTuple):
    last: int
    gaps: frozenset[int] = frozenset()

    @property
    def token(self) -> str:
        return Gaps(self.gaps).token(self.last)


class Gaps:
    """Gaps written down once, for as many tokens as there are rows told while they stay the same."""

    def __init__(self, gaps: Iterable[int]) -> None:
        self._text = ""
        # The first of the gaps that there was no room for.
        self._untold: int | None = None
        told = end = 0
        for number, (first, length) in enumerate(_runs(sorted(gaps))):
            count = min(length, TOKEN_GAPS_MAX - told) if number < TOKEN_RUNS_MAX else 0
            if count:
                self._text += f".{first - end}" + (f"-{count}" if count > 1 else "")
                told, end = told + count, first + count - 1
            if count < length:
                self._untold = first + count
                break

    def token(self, last: int) -> str:
        return f"1.{last if self._untold is None else min(last, self._untold - 1)}{self._text}"


def _runs(ids: list[int]) -> Iterable[tuple[int, int]]:
    first = count = 0
    for id_ in ids:
        if count and id_ == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = id_, 1
    if count:
        yield first, count


def parse_token(text: str) -> Position:
    """InvalidInput where no feed can have given it out."""
    known = _TOKEN.fullmatch(text) if len(text) <= TOKEN_CHARS_MAX else None
    position = None if known is None else _position(int(known[1]), known[2])
    if position is None:
        shown = text if len(text) <= 40 else f"{text[:40]}…"
        raise InvalidInput(
            f"{shown!r} is no place in the feed of events.",
            guidance="Give back the id of the last event that you were told, or none to be told what comes.",
        )
    return position


def _position(last: int, runs: str) -> Position | None:
    gaps: list[int] = []
    end = 0
    for run in runs.split(".")[1:]:
        step, _, length = run.partition("-")
        first, count = end + int(step), int(length or 1)
        if first == end or not 0 < count <= TOKEN_GAPS_MAX - len(gaps):
            return None
        gaps += range(first, first + count)
        end = gaps[-1]
    return Position(last, frozenset(gaps)) if end <= ROW_MAX else None
