"""Tables that have become text: lines that each are a label and the same number of figures.

    Austria        8.9   83,879   Vienna
    Belgium       11.5   30,689   Brussels

Three such lines in a row make a table. Where the columns are parted by tabs or wide gaps, the line before may
name them; else it names them where it ends in as many words as there are figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.pipelines.documents.findings.numerals import NUMBER_OF_COLUMN

ROWS_MIN = 3
_LINE_CHARS_MAX = 300
_FIGURES_MAX = 30

_FIGURE = re.compile(
    rf"(?:(?<=\s)|^)[\u2212\u2013+-]?\(?(?:[$€£¥]\s?)?[\u2212-]?(?:{NUMBER_OF_COLUMN.pattern})(?:\s?%|\s?[€$£])?\)?(?=\s|$)"
)
_GAP = re.compile(r"\t[ \t]{0,8}| {2,12}")
_DIGIT = re.compile(r"\d")
# A line of nothing but years names columns.
_YEARS = re.compile(r"^\D*(?:(?:FY ?)?(?:19|20)\d\d[A-Z]?\s{1,8}){1,8}(?:FY ?)?(?:19|20)\d\d[A-Z]?\s*$")
_SENTENCE_END = re.compile(r"[a-zß-ÿ][.!?]$")
_YEAR_OR_WORD = re.compile(r"[^\d\s]\S*|(?:19|20)\d\d\S{0,3}")


class TextTable(NamedTuple):
    names: list[str]
    rows: list[list[str]]


class _Row(NamedTuple):
    label: str
    figures: tuple[str, ...]
    ends_in_figures: bool


def text_tables(text: str) -> Iterator[TextTable]:
    if len(_DIGIT.findall(text)) < 2 * ROWS_MIN:
        return
    rows: list[_Row] = []
    before = header = ""
    for line in (*text.split("\n"), ""):
        row = None if not rows and _YEARS.search(line) else _row(line)
        if row and (not rows or len(row.figures) == len(rows[-1].figures)):
            if not rows:
                header = before
            rows.append(row)
        else:
            yield from _table(header, rows)
            rows = [row] if row else []
            header = before
        before = line
    yield from _table(header, rows)


def _row(line: str) -> _Row | None:
    """A line with a run of figures: two or more, or one with a gap before it."""
    stripped = line.strip()
    if not stripped or len(stripped) > _LINE_CHARS_MAX or not _DIGIT.search(stripped):
        return None
    if _SENTENCE_END.search(stripped):
        return None
    run: list[re.Match[str]] = []
    for match in _FIGURE.finditer(stripped):
        if run and stripped[run[-1].end() : match.start()].strip():
            if len(run) >= 2:
                break
            run = []
        run.append(match)
    if not run or len(run) > _FIGURES_MAX:
        return None
    label = stripped[: run[0].start()].strip()
    has_gap = _GAP.search(stripped) is not None
    if (len(run) < 2 and not has_gap) or not any(map(str.isalpha, label)) or len(label.split()) > 10:
        return None
    ends = not stripped[run[-1].end() :].strip()
    return _Row(label, tuple(match[0].strip() for match in run), ends)


def _table(header: str, rows: list[_Row]) -> Iterator[TextTable]:
    if len(rows) >= ROWS_MIN:
        named = all(row.ends_in_figures for row in rows)
        names = _names(header.strip(), len(rows[0].figures)) if named else []
        yield TextTable(names, [[row.label, *row.figures] for row in rows])


def _names(header: str, figures: int) -> list[str]:
    parts = _GAP.split(header)
    if len(parts) in (figures, figures + 1) and figures > 1:
        return ["", *parts][-figures - 1 :]
    words = header.split()
    named = words[-figures:]
    if len(words) in (figures, figures + 1, figures + 2) and all(map(_YEAR_OR_WORD.fullmatch, named)):
        return [" ".join(words[:-figures]), *named]
    return []
