"""Reads a workbook, sheet by sheet, as rows of text: `Amount | 25.0% | 2024-03-01`.

The first row of a table, where it has only texts, is its header: each further chunk of the table begins with
it. A row that is blank ends a table where another header follows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.pipelines.documents.reading.chunk import Facts, ReadLimits
from holdfast.pipelines.documents.reading.chunks import Chunker
from holdfast.pipelines.documents.reading.packed import Package
from holdfast.pipelines.documents.reading.refusals import empty, invalid, shown, without_text
from holdfast.pipelines.documents.reading.warnings import Warnings
from holdfast.pipelines.documents.reading.xlsx_parts import (
    Sheet,
    is_1904,
    number_styles,
    shared_texts,
    sheets_of,
)
from holdfast.pipelines.documents.reading.xlsx_rows import SheetRows

CELL_SEPARATOR = " | "
EMPTY_CELLS_MAX = 20
"""More empty cells than these side by side are shown as so many."""


def read_xlsx(
    path: Path, filename: str, limits: ReadLimits, chunker: Chunker, facts: Facts, warnings: Warnings
) -> None:
    with Package(path, filename, limits) as package:
        part = package.main_part() or "xl/workbook.xml"
        facts.title = package.title()
        workbook = package.tree(part)
        sheets = sheets_of(package, workbook, part)
        if not sheets:
            raise invalid(f"{shown(filename)} is a workbook without any sheet.")
        facts.sheets = [sheet.name for sheet in sheets]
        others = {kind: name for kind, name in package.relations(part).values() if package.has(name)}
        styles = (
            number_styles(package.tree(others["styles"]), is_1904(workbook)) if "styles" in others else []
        )
        texts = shared_texts(package, others["sharedStrings"]) if "sharedStrings" in others else {}
        without_value = 0
        for index, sheet in enumerate(sheets):
            if sheet.kind != "worksheet":
                if sheet.kind == "chartsheet":
                    warnings.add(f"Sheet {shown(sheet.name)} is a chart and has no cells.")
                continue
            rows = SheetRows(package, sheet.part, texts, styles)
            before = chunker.characters
            _Sheet(sheet, chunker, (index / len(sheets), 1 / len(sheets))).read(rows)
            without_value += rows.formulas_without_value
            if sheet.is_hidden and chunker.characters > before:
                warnings.add(f"Sheet {shown(sheet.name)} is hidden; it was read.")
        if without_value:
            cells = "cell has" if without_value == 1 else "cells have"
            warnings.add(
                f"{without_value:,} {cells} a formula and no value. Open the workbook in a spreadsheet"
                " program, save it, and upload it again."
            )
        if not chunker.characters:
            if any("/media/" in name for name in package.names):
                raise without_text(f"{shown(filename)} is a workbook with pictures and empty cells.")
            raise empty(f"{shown(filename)} is a workbook with nothing in its cells.")


class _Sheet:
    def __init__(self, sheet: Sheet, chunker: Chunker, span: tuple[float, float]) -> None:
        self._sheet = sheet
        self._chunker = chunker
        self._begin, self._share = span
        self._base = 0
        """The column in which rows begin."""

    def read(self, rows: SheetRows) -> None:
        chunker = self._chunker
        chunker.place(sheet=self._sheet.name)
        header: list[int] = []  # its columns
        last_number, may_be_header = 0, True
        last_columns: list[int] = []
        line_of: Callable[[tuple[str, ...]], str] = CELL_SEPARATOR.join
        # A sheet may have a million rows: nothing is done for each of those that come together.
        for number, columns, rows_texts, share in rows.rows():
            chunker.share = self._begin + self._share * share
            is_header = False
            if number != last_number + 1:
                may_be_header = True
            last_number = number + len(rows_texts) - 1
            if may_be_header and len(columns) > 1:
                may_be_header = False
                is_header = columns != header and rows.is_all_text
                if is_header:
                    header = columns
                if is_header or not header:
                    self._base = columns[0]
                    last_columns = []
            if columns != last_columns:
                last_columns = columns
                line_of = self._line_of(columns)
            lines = list(map(line_of, rows_texts))
            if is_header:
                chunker.row(lines.pop(0), number, columns[0], columns[-1], is_header=True)
                number += 1
            chunker.rows(lines, number, columns[0], columns[-1])
        chunker.place()

    def _line_of(self, columns: list[int]) -> Callable[[tuple[str, ...]], str]:
        """Makes the line of a row, with the cells between that are empty."""
        cells: list[str] = []
        at = self._base
        for column in columns:
            cells.extend([""] * min(max(column - at, 0), EMPTY_CELLS_MAX))
            cells.append("%s")
            at = column + 1
        return CELL_SEPARATOR.join if len(cells) == len(columns) else CELL_SEPARATOR.join(cells).__mod__
