"""The dates of a document: days, months and quarters, normalised.

    03/04/2024   the 3rd of April or the 4th of March: decided in the end, by the document's other dates (a
                 day above 12 in the first or in the second place), else by its language; else ambiguous

A date is looked for around its year. That keeps the search cheap: most numbers of a text are no years.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from holdfast.pipelines.documents.findings.finding import MOST, Finding, finding
from holdfast.pipelines.documents.findings.language import DECIMAL_COMMA
from holdfast.pipelines.documents.findings.passage import Passage, context_of
from holdfast.pipelines.documents.findings.tally import Sightings, Tally

_YEAR = r"(?:1[5-9]|2[01])\d\d"
_NUMERIC = re.compile(
    rf"(?<![\w.,/-])(?:({_YEAR})([-/.])(\d{{1,2}})\2(\d{{1,2}})"
    rf"|(\d{{1,2}})([-/.])[ \u00a0]?(\d{{1,2}})\6[ \u00a0]?({_YEAR}|\d\d))(?![\d]|[-/.,]\d)"
)
_BY_YEAR = re.compile(rf"(?<![\d.,-])({_YEAR})(?![\d%]|[.,-]\d)")
_BEFORE_CHARS = 36
_DAY_MONTH = re.compile(
    r"(?:(?<![\d.,/])(\d{1,2})(?:st|nd|rd|th|er|re|º|\.)?[ \u00a0](?:day of |of |de |di )?)?"
    r"([^\W\d_]{3,10})\.?,?[ \u00a0](?:of |de |del |di )?$",
    re.IGNORECASE,
)
_MONTH_DAY = re.compile(r"([^\W\d_]{3,10})\.?[ \u00a0](\d{1,2})(?:st|nd|rd|th)?,?[ \u00a0]$", re.IGNORECASE)
_QUARTER = re.compile(
    r"(?:(?<!\w)[QT]([1-4])|(?<!\w)([1-4])[QT]"
    r"|(?<![\w.,])([1-4])(?:st|nd|rd|th|er|e|ème|º|°|\.)?[ \u00a0](?:quarter|quartal|trimestre|kwartaal)"
    r"|(first|second|third|fourth|erstes|zweites|drittes|viertes|ersten|zweiten|"
    r"dritten|vierten|premier|deuxième|troisième|quatrième|primer|segundo|tercer|cuarto)[ \u00a0]"
    r"(?:quarter|quartal|trimestre))(?:,?[ \u00a0](?:of |de |del )?|[/'-]|[ ][/-][ ])$",
    re.IGNORECASE,
)
_QUARTER_HINT = re.compile(r"[QTqt][1-4]|[1-4][QTqt]|uart|imestre|wartaal")
_QUARTER_AFTER = re.compile(r"[ /-]?[QT]([1-4])(?!\w)")
_ORDINALS = {
    word: number
    for number, words in enumerate(
        (
            "first erstes ersten premier primer",
            "second zweites zweiten deuxième segundo",
            "third drittes dritten troisième tercer",
            "fourth viertes vierten quatrième cuarto",
        ),
        start=1,
    )
    for word in words.split()
}
MONTHS: dict[str, int] = {
    word: number
    for number, words in enumerate(
        (
            "january jan januar jänner janvier janv enero ene gennaio gen januari janeiro",
            "february feb febr februar feber février févr fév febrero febbraio februari fevereiro",
            "march mar märz maerz mär mrz mars marzo maart março",
            "april apr avril avr abril abr aprile",
            "may mai mayo maggio mei maio",
            "june jun juni juin junio giugno junho",
            "july jul juli juillet juil julio luglio julho",
            "august aug août aout agosto ago augustus",
            "september sept sep septembre septiembre settembre setembro",
            "october oct oktober okt octobre octubre ottobre outubro",
            "november nov novembre noviembre novembro",
            "december dec dezember dez décembre déc diciembre dic dicembre dezembro",
        ),
        start=1,
    )
    for word in words.split()
}
_PIVOT = 69  # two digits from here on are of the last century

_OTHER_PRECISIONS = {"month": 0.7, "quarter": 0.7}
_TELLING = re.compile(
    r"effective|due|expir|deadline|dated|signed|start|commenc|terminat|deliver|issue|invoice|valid|birth"
    r"|fällig|datum|vom|frist|gültig|lieferung|échéance|date|signé|vence|fecha|firmad",
    re.IGNORECASE,
)


class _Key(NamedTuple):
    """A date; or a year with two numbers, of which either may be the day.

    `precision` is that of the finding, or what the date tells of how the document writes dates: "first" where
    only the first number can be the day, "second" where only the second.
    """

    date: str
    precision: str
    first: int = 0
    second: int = 0


class Dates:
    def __init__(self) -> None:
        self._tally: Tally[_Key] = Tally()
        self._day_first = self._month_first = 0

    def add(self, passage: Passage) -> None:
        text, overlap = passage.text, passage.overlap
        taken = -1
        for start, end, key in _found(text):
            if end <= overlap or start < taken:
                continue
            taken = end
            self._day_first += key.precision == "first"
            self._month_first += key.precision == "second"
            self._tally.add(key, passage.number, text[start:end], partial(context_of, passage, start, end))

    def findings(self, language: str) -> list[Finding]:
        """The most frequent, then the most telling ones first."""
        joined: dict[tuple[str, str, str], Sightings] = {}
        for key, seen in self._tally.seen.items():
            date, precision, other = self._decided(key, language)
            known = joined.get((date, precision, other))
            if known is None:
                joined[date, precision, other] = seen
            else:
                known.join(seen)
        scored = [(_score(key[1], seen), key, seen) for key, seen in joined.items()]
        scored.sort(key=lambda item: (-item[0], item[2].order, item[1]))
        best = scored[0][0] if scored else 1.0
        return [
            finding(
                "date",
                seen.text,
                value=_value(date, precision, other, seen.context),
                score=score / best,
                chunks=seen.chunks,
                count=seen.count,
            )
            for score, (date, precision, other), seen in scored[: MOST["date"]]
        ]

    def _decided(self, key: _Key, language: str) -> tuple[str, str, str]:
        if not key.first:
            precision = "day" if key.precision in ("first", "second") else key.precision
            return key.date, precision, ""
        day_first = f"{key.date}-{key.second:02}-{key.first:02}"
        month_first = f"{key.date}-{key.first:02}-{key.second:02}"
        if self._day_first and not self._month_first:
            return day_first, "day", ""
        if self._month_first and not self._day_first:
            return month_first, "day", ""
        if language in DECIMAL_COMMA:
            return day_first, "day", ""
        return month_first, "day", day_first


def _found(text: str) -> Iterator[tuple[int, int, _Key]]:
    numeric = [found for match in _NUMERIC.finditer(text) if (found := _numeric(match))]
    spelled = [found for match in _BY_YEAR.finditer(text) if (found := _spelled(text, match))]
    return iter(sorted([*numeric, *spelled], key=lambda found: (found[0], -found[1])))


def _numeric(match: re.Match[str]) -> tuple[int, int, _Key] | None:
    if match[1]:
        date = _day(int(match[1]), int(match[3]), int(match[4]))
        return (match.start(), match.end(), _Key(date, "day")) if date else None
    first, second, written_year, mark = int(match[5]), int(match[7]), match[8], match[6]
    if len(written_year) == 2 and (mark == "-" or len(match[5]) + len(match[7]) < 4):
        return None
    year = int(written_year)
    if len(written_year) == 2:
        year += 1900 if year >= _PIVOT else 2000
    place = match.start(), match.end()
    if mark == ".":
        date = _day(year, second, first)
        return (*place, _Key(date, "day")) if date else None
    if first > 12 or second > 12 or first == second:
        date = _day(year, second, first) or _day(year, first, second)
        which = "day" if first == second else "first" if first > 12 else "second"
        return (*place, _Key(date, which)) if date else None
    return (*place, _Key(str(year), "ambiguous", first, second)) if first and second else None


def _spelled(text: str, match: re.Match[str]) -> tuple[int, int, _Key] | None:
    begin, end, year = match.start(), match.end(), int(match[1])
    after = _QUARTER_AFTER.match(text, end)
    if after:
        return begin, after.end(), _Key(f"{year}-Q{after[1]}", "quarter")
    if begin == 0 or text[begin - 1] not in " \u00a0\n/'-Tt":
        return None
    left = max(0, begin - _BEFORE_CHARS)
    before = text[left:begin]
    words = [word.strip(",.").lower() for word in before.split()[-2:]]
    if not (MONTHS.keys() & words):
        return _quarter(before, left, end, year)
    found = _MONTH_DAY.search(before)
    if found and (month := MONTHS.get(found[1].lower())):
        date = _day(year, month, int(found[2]))
        return (left + found.start(), end, _Key(date, "day")) if date else None
    found = _DAY_MONTH.search(before)
    if found is None or not (month := MONTHS.get(found[2].lower())):
        return None
    if found[1]:
        date = _day(year, month, int(found[1]))
        return (left + found.start(), end, _Key(date, "day")) if date else None
    return left + found.start(2), end, _Key(f"{year}-{month:02}", "month")


def _quarter(before: str, left: int, end: int, year: int) -> tuple[int, int, _Key] | None:
    if not _QUARTER_HINT.search(before):
        return None
    quarter = _QUARTER.search(before)
    if quarter is None:
        return None
    number = next(filter(None, quarter.groups()))
    number = _ORDINALS.get(number.lower(), number)
    return left + quarter.start(), end, _Key(f"{year}-Q{number}", "quarter")


def _day(year: int, month: int, day: int) -> str:
    """The date as ISO writes it; empty for a day that there never was."""
    try:
        return datetime.date(year, month, day).isoformat()
    except ValueError:
        return ""


def _score(precision: str, seen: Sightings) -> float:
    score = (1.0 + math.sqrt(min(seen.count, 20))) * _OTHER_PRECISIONS.get(precision, 1.0)
    return score * (1.5 if _TELLING.search(seen.context) else 1.0)


def _value(date: str, precision: str, other: str, context: str) -> dict[str, Any]:
    value: dict[str, Any] = {"date": date, "precision": precision}
    if precision == "quarter":
        year, first = int(date[:4]), 3 * int(date[-1]) - 2
        last = 31 if first in (1, 10) else 30
        value |= {"from": f"{year}-{first:02}-01", "to": f"{year}-{first + 2:02}-{last}"}
    if other:
        value |= {"ambiguous": True, "other": other}
    return value | {"context": context}
