"""The rows of one sheet: XML ─▶ Row(number, columns, texts), in the order of the file.

Only cells that are there are touched: a sheet with one cell in its last corner has one row of one cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from holdfast.pipelines.documents.reading.columns import COLUMNS_MAX, column_number
from holdfast.pipelines.documents.reading.number_formats import PLAIN_CHARS_MAX, Shown, general
from holdfast.pipelines.documents.reading.packed import Package
from holdfast.pipelines.documents.reading.refusals import invalid, shown
from holdfast.pipelines.documents.reading.xlsx_parts import pieces, rich_text, text_of

ROWS_MAX = 1_048_576
CONVERTERS_MAX = 10_000

_PREFIX = re.compile(r"<\w+:worksheet\b")
_SHEET_END = re.compile(r"</(?:\w+:)?sheetData\s*>|<(?:\w+:)?sheetData\s*/>")
_ROW_BEGIN = re.compile(r"<(?:\w+:)?row\b\s*")
_ROW_NUMBER = re.compile(r"\br\s*=\s*[\"'](\d{1,7})[\"']")
# As every known program writes them; the attributes behind the place come in any order.
_CELL = re.compile(
    r"<(?:\w+:)?c r=\"([A-Z]{1,3})\d{1,7}\"([^>]*)>\s*"
    r"(?:<(?:\w+:)?f[^>]*>(?:[^<]*</(?:\w+:)?f>\s*)?)?"
    r"(?:<(?:\w+:)?v(?:\s[^>]*)?>([^<]*)</(?:\w+:)?v>|<(?:\w+:)?is>(.*?)</(?:\w+:)?is>)",
    re.DOTALL,
)
# Without a prefix this one is faster, and hardly any program writes prefixes.
_PLAIN_CELL = re.compile(r"<c r=\"([A-Z]+)[0-9]+\"([^>]*)><v>([^<]+)<")
_PLAIN_CELL_WITH_FORMULA = re.compile(
    r"<c r=\"([A-Z]+)[0-9]+\"([^>]*)>(?:<f[^>]*>(?:[^<]*</f>)?)?<v>([^<]+)<"
)
_VALUE = re.compile(r"<(?:\w+:)?(?:v|is)[\s>]")
_ANY_CELL = re.compile(r"<(?:\w+:)?c(\s[^>]*)?>(.*?)(?=<(?:\w+:)?c[\s/>]|\Z)", re.DOTALL)
_ANY_VALUE = re.compile(r"<(?:\w+:)?v(?:\s[^>]*)?>([^<]*)</(?:\w+:)?v>")
_ANY_INLINE = re.compile(r"<(?:\w+:)?is(?:\s[^>]*)?>(.*?)</(?:\w+:)?is>", re.DOTALL)
_PLACE = re.compile(r"\br\s*=\s*[\"']\$?([A-Za-z]{1,3})\$?\d+[\"']")
_ATTRIBUTE = re.compile(r"\b([st])\s*=\s*[\"']([^\"']*)[\"']")
_WITHOUT_VALUE = re.compile(
    r"(?:</(?:\w+:)?f>|<(?:\w+:)?f\b[^>]*/>)\s*(?:<(?:\w+:)?v\s*/>|<v></v>)?\s*</(?:\w+:)?c>"
)
_TEXT_TYPES = frozenset({"s", "str", "inlineStr"})


class _Converters(dict[str, Callable[[str], str]]):
    """By the attributes of cells, of which there are a few; each is made when the first such cell comes."""

    def __init__(self, make: Callable[[str], Callable[[str], str]]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, attributes: str) -> Callable[[str], str]:
        return self._make(attributes)


class Row(NamedTuple):
    number: int
    columns: list[int]
    """From 0, in their order."""
    texts: list[str]
    share: float
    """How far the sheet is read."""


class SheetRows:
    def __init__(
        self, package: Package, part: str, texts: dict[str, str], styles: list[Shown | None]
    ) -> None:
        self._package = package
        self._part = part
        self._shared_texts = texts
        self._styles = styles
        self._converters = _Converters(self._converter)
        self._columns: list[int] = []
        self._last_number = 0
        self._share = 0.0
        # The cells of the row that came last.
        self._cells: Sequence[Sequence[str]] = []
        self._begin = self._end = 0
        self.formulas_without_value = 0

    def rows(self) -> Iterator[Row]:
        """Those that have anything in them."""
        size = max(self._package.size_of(self._part), 1)
        has_prefix: bool | None = None
        piece = ""
        with self._package.opened(self._part) as file:
            for piece, at in pieces(file, "row>", self._part, self._package.shown):
                self._share = min(at / size, 1.0)
                if has_prefix is None:
                    has_prefix = _PREFIX.search(piece, 0, 65536) is not None
                if not has_prefix:
                    yield from self._rows_in(piece)
                else:
                    yield from self._unusual_rows(_ROW_BEGIN.split(piece)[1:])
        if _SHEET_END.search(piece) is None:  # it stands behind the last row
            raise self._damaged("no end")

    def _rows_in(self, piece: str) -> Iterator[Row]:
        # Whether something is in the piece is asked with long words: to look for short ones takes longer.
        rows = piece.split("<row ")[1:]  # each from its attributes to the next row
        counts = [row.count("<v") for row in rows]
        count = sum(counts)
        if "inlineStr" in piece or "<row>" in piece:
            return self._unusual_rows(_ROW_BEGIN.split(piece)[1:])
        has_formulas = "</f>" in piece
        if has_formulas:
            self.formulas_without_value += len(_WITHOUT_VALUE.findall(piece))
        else:
            cells = _PLAIN_CELL.findall(piece)
            if len(cells) == count:
                return self._plain_rows(rows, counts, cells)
        cells = _PLAIN_CELL_WITH_FORMULA.findall(piece)
        return self._plain_rows(rows, counts, cells) if len(cells) == count else self._unusual_rows(rows)

    def _plain_rows(
        self, rows: list[str], counts: list[int], all_cells: list[tuple[str, str, str]]
    ) -> Iterator[Row]:
        """Each value is in one of the cells that were found, and these are in the order of the rows."""
        all_texts = self._texts_of(all_cells)
        columns, first, last, is_dense = self._columns, "", "", False
        end = 0
        self._cells = all_cells
        for row, count in zip(rows, counts, strict=True):
            if row[:3] == 'r="':
                self._last_number = number = self._number(row[3 : row.find('"', 3)])
            else:
                number = self._number_of(row)
            if not count:
                continue
            begin, end = end, end + count
            texts = all_texts[begin:end]
            if not any(texts):
                continue
            # Where as many cells have the same ends and there is no gap, they are in the same columns.
            if not (
                is_dense
                and len(columns) == count
                and all_cells[begin][0] == first
                and all_cells[end - 1][0] == last
            ):
                first, last = all_cells[begin][0], all_cells[end - 1][0]
                columns = self._checked([column_number(cell[0]) for cell in all_cells[begin:end]])
                is_dense = columns == list(range(columns[0], columns[0] + count))
            self._begin, self._end = begin, end
            yield Row(number, columns, texts, self._share)

    def _texts_of(self, cells: list[tuple[str, str, str]]) -> list[str]:
        converters = self._converters
        try:
            # What is said here twice is quicker than a call.
            return [
                value
                if (converter := converters[attributes]) is general
                and len(value) < PLAIN_CHARS_MAX
                and value[-1] != "0"
                and "E" not in value
                else converter(value)
                for _, attributes, value in cells
            ]
        except KeyError:  # a text is not there, or its number is written in another way
            return [self._converter(attributes)(value) for _, attributes, value in cells]

    def _unusual_rows(self, rows: list[str]) -> Iterator[Row]:
        """With texts of their own in them, or with prefixes, or stranger."""
        for fragment in rows:
            number = self._number_of(fragment)
            cells = _CELL.findall(fragment)
            if len(cells) != len(_VALUE.findall(fragment)):
                columns, texts, cells = self._strange_cells(fragment)
            else:
                columns = [column_number(cell[0]) for cell in cells]
                texts = [
                    rich_text(inline) if inline else self._converter(attributes)(value)
                    for _, attributes, value, inline in cells
                ]
            if any(texts):
                self._begin, self._end, self._cells = 0, len(cells), cells
                yield Row(number, self._checked(columns), texts, self._share)

    def _number_of(self, row: str) -> int:
        if row[:3] == 'r="':
            told = row[3 : row.find('"', 3)]
        else:
            found = _ROW_NUMBER.search(row, 0, row.find(">"))
            told = str(self._last_number + 1) if found is None else found[1]
        self._last_number = number = self._number(told)
        return number

    def _number(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = 0
        if not 1 <= number <= ROWS_MAX:
            raise self._damaged(f"a row {text[:20]!r}")
        return number

    @property
    def last_is_all_text(self) -> bool:
        """Of the row that came last: no number, no date in it."""
        cells = self._cells[self._begin : self._end]
        return all(dict(_ATTRIBUTE.findall(cell[1])).get("t", "n") in _TEXT_TYPES for cell in cells)

    def _strange_cells(self, row: str) -> tuple[list[int], list[str], list[tuple[str, str]]]:
        """Cells that do not say where they are, or whose elements are written in an unusual way."""
        columns: list[int] = []
        texts: list[str] = []
        cells: list[tuple[str, str]] = []
        column = -1
        for attributes, content in _ANY_CELL.findall(row):
            place = _PLACE.search(attributes)
            column = column_number(place[1].upper()) if place is not None else column + 1
            value = _ANY_VALUE.search(content)
            inline = _ANY_INLINE.search(content)
            if inline is not None:
                texts.append(rich_text(inline[1]))
            elif value is not None:
                texts.append(self._converter(attributes)(value[1]))
            else:
                continue
            columns.append(column)
            cells.append(("", attributes))
        return columns, texts, cells

    def _checked(self, columns: list[int]) -> list[int]:
        if columns and max(columns) >= COLUMNS_MAX:
            raise self._damaged(f"a column {max(columns) + 1:,}")
        return columns

    def _converter(self, attributes: str) -> Callable[[str], str]:
        """What shows the value of a cell with these attributes."""
        told = dict(_ATTRIBUTE.findall(attributes))
        kind = told.get("t", "n")
        if kind == "s":
            if len(self._converters) < CONVERTERS_MAX:
                self._converters[attributes] = self._shared_texts.__getitem__
            return self._shared
        converter: Callable[[str], str]
        if kind in ("str", "inlineStr", "e", "d"):
            converter = text_of
        elif kind == "b":
            converter = _truth
        else:
            style = told.get("s", "0")
            index = int(style) if style.isascii() and style.isdecimal() and len(style) < 9 else 0
            converter = (self._styles[index] if index < len(self._styles) else None) or general
        if len(self._converters) < CONVERTERS_MAX:
            self._converters[attributes] = converter
        return converter

    def _shared(self, value: str) -> str:
        number = value.strip()
        try:
            return self._shared_texts[str(int(number))] if len(number) < 10 else self._shared_texts[number]
        except (ValueError, KeyError):
            raise self._damaged(f"a text {number[:20]!r}, which there is not") from None

    def _damaged(self, what: str) -> Exception:
        return invalid(f"Part {shown(self._part)} of {self._package.shown} has {what}.")


def _truth(value: str) -> str:
    return "TRUE" if value.strip() in ("1", "true") else "FALSE"
