"""The rows of one sheet: XML ─▶ Rows(number, columns, the texts of each), in the order of the file.

Rows that look alike are found by one pattern, and their values are shown column by column, which takes a
third of the time (xlsx_shape.py); the others are read one by one. Both find the same values, and what shows
them is the same.

Only cells that are there are touched: a sheet with one cell in its last corner has one row of one cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import compress
from operator import add
from typing import NamedTuple, TypeAlias

from holdfast.pipelines.documents.reading.columns import COLUMNS_MAX, column_number
from holdfast.pipelines.documents.reading.number_formats import GENERAL, Shown, one_by_one
from holdfast.pipelines.documents.reading.packed import Package
from holdfast.pipelines.documents.reading.refusals import invalid, shown
from holdfast.pipelines.documents.reading.xlsx_parts import TEXT, pieces, rich_text
from holdfast.pipelines.documents.reading.xlsx_shape import ROW_BEGIN, Form, Shape, Slot

ROWS_MAX = 1_048_576
CONVERTERS_MAX = 10_000
ALIKE_MIN = 100
"""In a sheet of fewer rows it takes longer to learn how they look than to read them one by one."""
UNLIKE_SHARE_MAX = 1 / 16
"""Where more rows of a piece look different, it is learned how,"""
SAMPLE_ROWS = 8
"""from so many of them,"""
LEARNINGS_MAX = 12
"""and so many times in a sheet."""
ANEW_SHARE = 7 / 8
"""Where so many look different another table has begun."""

_PREFIX = re.compile(r"<\w+:worksheet\b")
_SHEET_END = re.compile(r"</(?:\w+:)?sheetData\s*>|<(?:\w+:)?sheetData\s*/>")
_PREFIXED_ROW_BEGIN = re.compile(r"<(?:\w+:)?row\b\s*")
_ROW_END = re.compile(r"</(?:\w+:)?row\s*>")
_ROW_NUMBER = re.compile(r"\br\s*=\s*[\"'](\d{1,7})[\"']")
# As most programs write them, without a prefix.
_PLAIN_CELL = re.compile(
    r"<c r=\"([A-Z]{1,7})\d{1,7}\"([^>]*)>(?:<f[^>]*>(?:[^<]*</f>)?)?<v>([^<]+)</v></c>()"
)
# As every known program writes them; the attributes behind the place come in any order.
_CELL = re.compile(
    r"<(?:\w+:)?c r=\"([A-Z]{1,7})\d{1,7}\"([^>]*)>\s*"
    r"(?:<(?:\w+:)?f[^>]*>(?:[^<]*</(?:\w+:)?f>\s*)?)?"
    r"(?:<(?:\w+:)?v(?:\s[^>]*)?>([^<]*)</(?:\w+:)?v>|<(?:\w+:)?is>(.*?)</(?:\w+:)?is>)",
    re.DOTALL,
)
_VALUE = re.compile(r"<(?:\w+:)?(?:v|is)[\s>]")
_ANY_CELL = re.compile(r"<(?:\w+:)?c(\s[^>]*)?>(.*?)(?=<(?:\w+:)?c[\s/>]|\Z)", re.DOTALL)
_ANY_VALUE = re.compile(r"<(?:\w+:)?v(?:\s[^>]*)?>([^<]*)</(?:\w+:)?v>")
_ANY_INLINE = re.compile(r"<(?:\w+:)?is(?:\s[^>]*)?>(.*?)</(?:\w+:)?is>", re.DOTALL)
_PLACE = re.compile(r"\br\s*=\s*[\"']\$?([A-Za-z]{1,7})\$?\d+[\"']")
_ATTRIBUTE = re.compile(r"\b([st])\s*=\s*[\"']([^\"']*)[\"']")
_WITHOUT_VALUE = re.compile(
    r"(?:</(?:\w+:)?f>|<(?:\w+:)?f\b[^>]*/>)\s*(?:<(?:\w+:)?v\s*/>|<v></v>)?\s*</(?:\w+:)?c>"
)
_TEXT_TYPES = frozenset({"s", "str", "inlineStr"})

_Key: TypeAlias = tuple[bool, ...]
"""Which of the columns of a shape a row has."""


class _Converters(dict[str, Shown]):
    """By the attributes of cells, of which there are a few; each is made when the first such cell comes."""

    def __init__(self, make: Callable[[str], Shown]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, attributes: str) -> Shown:
        return self._make(attributes)


class Rows(NamedTuple):
    """One row, or several that follow one another and have the same columns."""

    number: int
    """Of the first."""
    columns: list[int]
    """From 0, in their order."""
    texts: list[tuple[str, ...]]
    """Of each row."""
    share: float
    """How far the sheet is read."""


class _Block(NamedTuple):
    """Rows of a piece that look alike: each as it was found, its number, its texts, its key."""

    shape: Shape
    found: list[tuple[str, ...]]
    numbers: list[int]
    columns: list[int]
    texts: list[tuple[str, ...]]
    keys: list[_Key | None] | None


class SheetRows:
    def __init__(
        self, package: Package, part: str, texts: dict[str, str], styles: list[Shown | None]
    ) -> None:
        self._package = package
        self._part = part
        self._shared_texts = texts
        self._styles = styles
        self._shared_shown = Shown(self._shared, self._all_shared)
        self._converters = _Converters(self._converter)
        self._size = 1
        self._shape = Shape()
        self._learnings = LEARNINGS_MAX
        self._last_number = 0
        self._share = 0.0
        # Of the cells in the first of the rows that came last.
        self._attributes: Callable[[], list[str]] = list
        self.formulas_without_value = 0

    def rows(self) -> Iterator[Rows]:
        """Those that have anything in them."""
        self._size = max(self._package.size_of(self._part), 1)
        has_prefix: bool | None = None
        piece = ""
        with self._package.opened(self._part) as file:
            for piece, at in pieces(file, "row>", self._part, self._package.shown):
                self._share = min(at / self._size, 1.0)
                if has_prefix is None:
                    has_prefix = _PREFIX.search(piece, 0, 65536) is not None
                if has_prefix:
                    yield from self._each_by_itself(_PREFIXED_ROW_BEGIN.split(piece)[1:])
                else:
                    yield from self._rows_in(piece)
        if _SHEET_END.search(piece, max(piece.rfind("row>"), 0)) is None:  # it stands behind the last row
            raise self._damaged("no end")

    # Rows that look alike

    def _rows_in(self, piece: str) -> Iterator[Rows]:
        shape, found, unlike = self._found_in(piece)
        others = ROW_BEGIN.split(piece)[1:] if unlike else []
        if len(unlike) == len(found):
            yield from self._each_by_itself(others)
            return
        alike = [row for row in found if row[0]] if unlike else found
        told, *groups = zip(*alike, strict=True)
        numbers = list(map(int, told))
        if not 1 <= min(numbers) <= max(numbers) <= ROWS_MAX:
            raise self._damaged(f"a row {next(n for n in numbers if not 1 <= n <= ROWS_MAX)}")
        block = _Block(shape, alike, numbers, *self._shown(shape.slots, groups))
        begin = 0
        for count, at in enumerate(unlike):
            yield from self._runs(block, begin, at - count)
            yield from self._each_by_itself([others[at]])
            begin = at - count
        yield from self._runs(block, begin, len(alike))

    def _runs(self, block: _Block, begin: int, stop: int) -> Iterator[Rows]:
        """Parted where rows or cells are left out."""
        shape, found, numbers, columns, texts, keys = block
        while begin < stop:
            number, key = numbers[begin], keys and keys[begin]
            end = begin + 1
            if keys is None and numbers[begin:stop] == list(range(number, number + stop - begin)):
                end = stop
            while end < stop and numbers[end] == number + end - begin and (keys is None or keys[end] == key):
                end += 1
            self._last_number = number + end - begin - 1
            if keys is None or key:
                rows, those = texts[begin:end], columns
                if key and not all(key):
                    rows, those = [tuple(compress(row, key)) for row in rows], list(compress(columns, key))
                self._attributes = partial(shape.attributes_of, found[begin])
                yield Rows(number, those, rows, self._share)
            begin = end

    def _found_in(self, piece: str) -> tuple[Shape, list[tuple[str, ...]], list[int]]:
        """What a shape finds in each row, once it fits nearly all of them, and which it does not fit."""
        while True:
            shape = self._shape
            found = shape.found(piece)
            unlike = [at for at, row in enumerate(found) if not row[0]]
            if (
                len(unlike) <= len(found) * UNLIKE_SHARE_MAX
                or len(found) * self._size < len(piece) * ALIKE_MIN
            ):
                return shape, found, unlike
            if not self._learnings:
                if len(unlike) > len(found) // 2:  # to look for what is not there takes time
                    self._shape = Shape()
                return shape, found, unlike
            self._learnings -= 1
            learned = Shape() if len(unlike) > len(found) * ANEW_SHARE else shape.copy()
            rows = ROW_BEGIN.split(piece)[1:]
            # The first one may be a header, which looks like no other.
            if not learned.learn([rows[at] for at in unlike[1 :: max(len(unlike) // SAMPLE_ROWS, 1)]]):
                return shape, found, unlike
            self._shape = learned

    def _shown(
        self, slots: Sequence[Slot], groups: Sequence[Sequence[str]]
    ) -> tuple[list[int], list[tuple[str, ...]], list[_Key | None] | None]:
        """The columns, the texts of each row in them, and which of them it has, if not each row has all:
        None for a row with nothing to show."""
        columns: list[int] = []
        values: list[Sequence[str]] = []
        shown: list[Sequence[str]] = []
        for slot, group in zip(slots, groups, strict=True):
            if slot.form is Form.WITHOUT_VALUE:
                self.formulas_without_value += len(group) - group.count("")
                continue
            converter = TEXT if slot.form is Form.INLINE else self._converters[slot.attributes]
            texts = converter.many(group) if all(group) else _where_given(group, converter)
            if columns and columns[-1] == slot.column:  # a cell has one of them
                values[-1] = list(map(add, values[-1], group))
                shown[-1] = list(map(add, shown[-1], texts))
            else:
                columns.append(slot.column)
                values.append(group)
                shown.append(texts)
        if not columns:  # only formulas without a value
            return columns, [], [None] * len(groups[0])
        rows = list(zip(*shown, strict=True))
        if all(map(all, values)) and any(map(all, shown)):
            return columns, rows, None
        given = zip(*values, strict=True)
        return (
            columns,
            rows,
            [tuple(map(bool, row)) if any(texts) else None for row, texts in zip(given, rows, strict=True)],
        )

    # Other rows

    def _each_by_itself(self, rows: Sequence[str]) -> Iterator[Rows]:
        """Each row from its attributes to the next row."""
        for fragment in rows:
            number = self._number_of(fragment)
            end = _ROW_END.search(fragment)
            row = fragment[: end.start()] if end is not None else fragment
            if "f" in row:
                self.formulas_without_value += len(_WITHOUT_VALUE.findall(row))
            columns, texts, attributes = self._cells_of(row)
            if any(texts):
                self._attributes = lambda attributes=attributes: attributes  # type: ignore[misc]
                if max(columns) >= COLUMNS_MAX:
                    raise self._damaged(f"a column {max(columns) + 1:,}")
                yield Rows(number, columns, [tuple(texts)], self._share)

    def _cells_of(self, row: str) -> tuple[list[int], list[str], list[str]]:
        """Their columns, texts and attributes."""
        cells = _PLAIN_CELL.findall(row)
        if 2 * len(cells) != row.count("v>") or "is>" in row:
            cells = _CELL.findall(row)
            if len(cells) != len(_VALUE.findall(row)):
                return self._strange_cells(row)
            cells = [cell for cell in cells if cell[2] or cell[3]]
        converters = self._converters
        return (
            [column_number(cell[0]) for cell in cells],
            [
                rich_text(inline) if inline else converters[attributes].one(value)
                for _, attributes, value, inline in cells
            ],
            [cell[1] for cell in cells],
        )

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

    def _strange_cells(self, row: str) -> tuple[list[int], list[str], list[str]]:
        """Cells that do not say where they are, or whose elements are written in an unusual way."""
        columns: list[int] = []
        texts: list[str] = []
        told: list[str] = []
        column = -1
        for attributes, content in _ANY_CELL.findall(row):
            place = _PLACE.search(attributes)
            column = column_number(place[1].upper()) if place is not None else column + 1
            value = _ANY_VALUE.search(content)
            inline = _ANY_INLINE.search(content)
            if inline is not None and inline[1]:
                texts.append(rich_text(inline[1]))
            elif value is not None and value[1]:
                texts.append(self._converters[attributes].one(value[1]))
            else:
                continue
            columns.append(column)
            told.append(attributes)
        return columns, texts, told

    # Both

    @property
    def is_all_text(self) -> bool:
        """Of the first of the rows that came last: no number, no date in it."""
        return all(dict(_ATTRIBUTE.findall(each)).get("t", "n") in _TEXT_TYPES for each in self._attributes())

    def _converter(self, attributes: str) -> Shown:
        """What shows the value of a cell with these attributes."""
        told = dict(_ATTRIBUTE.findall(attributes))
        kind = told.get("t", "n")
        converter: Shown
        if kind == "s":
            converter = self._shared_shown
        elif kind in ("str", "inlineStr", "e", "d"):
            converter = TEXT
        elif kind == "b":
            converter = _TRUTH
        else:
            style = told.get("s", "0")
            index = int(style) if style.isascii() and style.isdecimal() and len(style) < 9 else 0
            converter = (self._styles[index] if index < len(self._styles) else None) or GENERAL
        if len(self._converters) < CONVERTERS_MAX:
            self._converters[attributes] = converter
        return converter

    def _all_shared(self, values: Sequence[str]) -> list[str]:
        try:
            return list(map(self._shared_texts.__getitem__, values))
        except KeyError:  # a text is not there, or its number is written in another way
            return list(map(self._shared, values))

    def _shared(self, value: str) -> str:
        if (text := self._shared_texts.get(value)) is not None:
            return text
        number = value.strip()
        try:
            return self._shared_texts[str(int(number))] if len(number) < 10 else self._shared_texts[number]
        except (ValueError, KeyError):
            raise self._damaged(f"a text {number[:20]!r}, which there is not") from None

    def _damaged(self, what: str) -> Exception:
        return invalid(f"Part {shown(self._part)} of {self._package.shown} has {what}.")


def _where_given(values: Sequence[str], converter: Shown) -> list[str]:
    """An empty one is no value, and stays empty."""
    texts = iter(converter.many(list(filter(None, values))))
    return [next(texts) if value else "" for value in values]


def _truth(value: str) -> str:
    return "TRUE" if value.strip() in ("1", "true") else "FALSE"


_TRUTH = one_by_one(_truth)
