"""Tables of figures: what stands in their columns, in short.

A table comes in chunks of lines whose cells are joined by " | ". A long one goes on in the next chunk, which
repeats the header row. Tables without figures are told nowhere: they are text.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.pipelines.documents.findings.cells import is_blank, number_in
from holdfast.pipelines.documents.findings.column_text import text_tables
from holdfast.pipelines.documents.findings.columns import COLUMNS_TOLD_MAX, Columns
from holdfast.pipelines.documents.findings.finding import CHUNKS_MAX, MOST, Finding, finding, shortened
from holdfast.pipelines.documents.findings.language import DECIMAL_COMMA
from holdfast.pipelines.documents.findings.money_words import SIGNS, has_currency, may_part_thousands
from holdfast.pipelines.documents.findings.numerals import SPACES, DecimalMark
from holdfast.pipelines.documents.findings.passage import Passage

CELL_MARK = " | "
_HELD_MOST = 4 * MOST["table"]
_ROWS_BEFORE_FIGURES = 5
_CELLS_SEEN_FOR_MARK = 60
_CELL_CHARS_FOR_MARK = 24
_NAME_CHARS_FOR_MARK = 80
_TOLD_COLUMNS = 6

_WHOLE_MONEY = re.compile(r"\d[.,]\d{3}(?!\d)")
_AROUND_NUMBER = "".join({*SPACES, *SIGNS, *string.ascii_letters, *"-\u2212()."})
_RANGE = re.compile(r"([A-Z]{1,3})(\d{1,7})(?::([A-Z]{1,3})(\d{1,7}))?")
_YEAR = re.compile(r"(?:FY ?)?(?:19|20)\d\d(?:[/-]\d\d)?[A-Z]?")


@dataclass(slots=True)
class _Table:
    order: int
    sheet: str | None
    heading: str | None
    page: int | None
    chunks: list[int] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    """The ranges of the first and the last chunk."""
    header: list[str] = field(default_factory=list)
    waiting: list[list[str]] = field(default_factory=list)
    """Rows before the first figures: the last of them is the header."""
    columns: Columns | None = None

    def add(self, row: list[str], *, comma_is_decimal: bool) -> None:
        if self.columns is None:
            if not self._has_figures(row, comma_is_decimal) and len(self.waiting) < _ROWS_BEFORE_FIGURES:
                self.waiting.append(row)
                return
            self.columns = Columns(self._names(row))
        self.columns.add(row, comma_is_decimal=comma_is_decimal)

    def _has_figures(self, row: list[str], comma_is_decimal: bool) -> bool:
        """Years alone are names of columns, unless the row is one of a thing and its columns have names."""
        places = [
            place
            for place, cell in enumerate(row)
            if number_in(cell, comma_is_decimal=comma_is_decimal) is not None
        ]
        if not all(_YEAR.fullmatch(row[place]) for place in places):
            return True
        above = self.waiting[-1] if self.waiting else []
        are_named = len(above) > max(places, default=0) and not any(
            is_blank(above[place]) for place in places
        )
        return bool(places) and are_named and not is_blank(row[0])

    def _names(self, first: list[str]) -> list[str]:
        """The last row of words, where it names at least half of the columns."""
        for row in reversed(self.waiting):
            named = sum(1 for cell in row if not is_blank(cell))
            if named >= max(1, len(first) / 2):
                return row
        return []


class Tables:
    def __init__(self, decimal_mark: DecimalMark) -> None:
        self._mark = decimal_mark
        self._open: _Table | None = None
        self._told: list[tuple[int, _Table, list[dict[str, Any]]]] = []
        self._order = 0

    def add(self, passage: Passage) -> None:
        if not passage.is_table:
            self._close()
            if passage.is_prose:
                self._add_text(passage)
            return
        is_continued = self._continues(passage)
        if not is_continued:
            self._close()
            self._open = self._begun(passage)
        table = self._open
        assert table is not None
        _note(table, passage)
        rows = [
            _cells(line)
            for line in (passage.fresh if is_continued else passage.text).split("\n")
            if line.strip()
        ]
        if rows and not table.header:
            table.header = rows[0]
        self._learn(table.header, rows)
        is_comma = self._mark.is_comma(passage.language in DECIMAL_COMMA)
        for row in rows:
            if is_continued and row == table.header:
                continue
            table.add(row, comma_is_decimal=is_comma)

    def _add_text(self, passage: Passage) -> None:
        for found in text_tables(passage.fresh):
            table = self._begun(passage)
            _note(table, passage)
            table.columns = Columns(found.names)
            self._learn(found.names, found.rows)
            is_comma = self._mark.is_comma(passage.language in DECIMAL_COMMA)
            for row in found.rows:
                table.columns.add(row, comma_is_decimal=is_comma)
            self._open = table
            self._close()

    def _begun(self, passage: Passage) -> _Table:
        self._order += 1
        return _Table(self._order, passage.sheet, passage.heading, passage.page)

    def _continues(self, passage: Passage) -> bool:
        table = self._open
        if table is None or table.sheet != passage.sheet:
            return False
        if passage.overlap:
            repeated = _cells(passage.text[: passage.overlap].split("\n", 1)[0])
            return not table.header or repeated == table.header or passage.sheet is None
        return _adjoin(table.cells[-1] if table.cells else None, passage.cells)

    def _learn(self, header: list[str], rows: list[list[str]]) -> None:
        seen = 0
        for row in rows:
            for place, cell in enumerate(row):
                if not cell or len(cell) >= _CELL_CHARS_FOR_MARK:
                    continue
                if cell[-1].isdecimal():
                    self._mark.see(cell.lstrip("-\u2212(€$£ "))
                    seen += 1
                if _WHOLE_MONEY.search(cell):
                    self._learn_money(cell, header[place] if place < len(header) else "")
            if seen > _CELLS_SEEN_FOR_MARK:
                break

    def _learn_money(self, cell: str, name: str) -> None:
        beside = f"{cell} {name[:_NAME_CHARS_FOR_MARK]}"
        if has_currency(beside) and may_part_thousands(cell, beside):
            self._mark.see_money(cell.strip(_AROUND_NUMBER))

    def _close(self) -> None:
        table, self._open = self._open, None
        if table is None or table.columns is None:
            return
        table.columns.finish()
        told = table.columns.told
        if told and table.columns.rows >= 2:
            self._told.append((table.columns.rows * len(told), table, told))
        if len(self._told) > _HELD_MOST:
            self._told = self._largest()

    def _largest(self) -> list[tuple[int, _Table, list[dict[str, Any]]]]:
        return sorted(self._told, key=lambda item: (-item[0], item[1].order))[: MOST["table"]]

    def findings(self) -> list[Finding]:
        """The largest of them, in their order."""
        self._close()
        largest = self._largest()
        most = largest[0][0] if largest else 1
        return [
            finding(
                "table",
                _in_words(table, told),
                value=_value(table, told),
                score=(size / most) ** 0.5,
                chunks=table.chunks,
            )
            for size, table, told in sorted(largest, key=lambda item: item[1].order)
        ]


def _cells(line: str) -> list[str]:
    if line.startswith("| "):  # its first cell is empty, and the space before it was lost
        line = f" {line}"
    if line.endswith(" |"):
        line = f"{line} "
    return [cell.strip() for cell in line.split(CELL_MARK)]


def _note(table: _Table, passage: Passage) -> None:
    if len(table.chunks) < CHUNKS_MAX:
        table.chunks.append(passage.number)
    if passage.cells:
        table.cells = [*table.cells[:1], passage.cells]


def _adjoin(before: str | None, cells: str | None) -> bool:
    """The range begins in the row below the other one, in the same column."""
    above, below = _RANGE.fullmatch(before or ""), _RANGE.fullmatch(cells or "")
    if above is None or below is None:
        return False
    return above[1] == below[1] and int(below[2]) == int(above[4] or above[2]) + 1


def _range(cells: list[str]) -> str | None:
    first, last = (
        _RANGE.fullmatch(cells[0]) if cells else None,
        _RANGE.fullmatch(cells[-1]) if cells else None,
    )
    if first is None or last is None:
        return cells[0] if cells else None
    return f"{first[1]}{first[2]}:{last[3] or last[1]}{last[4] or last[2]}"


def _value(table: _Table, told: list[dict[str, Any]]) -> dict[str, Any]:
    assert table.columns is not None
    value: dict[str, Any] = {"rows": table.columns.rows}
    if table.sheet is not None:
        value["sheet"] = shortened(table.sheet, 100)
    if cells := _range(table.cells):
        value["cells"] = shortened(cells, 40)
    value["columns"] = told[:COLUMNS_TOLD_MAX]
    if len(told) > COLUMNS_TOLD_MAX:
        value["columns_left_out"] = len(told) - COLUMNS_TOLD_MAX
    return value


def _in_words(table: _Table, told: list[dict[str, Any]]) -> str:
    assert table.columns is not None
    place = table.sheet or (table.heading or "").rpartition(" › ")[2]
    place = place or (f"Page {table.page}" if table.page else "Table")
    parts = list(_columns_in_words(told[:_TOLD_COLUMNS]))
    if len(told) > _TOLD_COLUMNS:
        parts.append(f"and {len(told) - _TOLD_COLUMNS} more columns of figures")
    return f"{shortened(place, 100)}, {table.columns.rows} rows: {'; '.join(parts)}"


def _columns_in_words(told: list[dict[str, Any]]) -> Iterator[str]:
    for column in told:
        unit = f" {column['unit']}" if column.get("unit") else ""
        words = f"{column['name']} {column['min']} to {column['max']}{unit}"
        if "sum" in column:
            words += f", sum {column['sum']}"
        yield words
