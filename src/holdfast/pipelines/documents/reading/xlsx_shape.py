"""What the rows of a sheet have in common, as one pattern that finds all of them at once.

    <row r="2"><c r="A2" t="s"><v>7</v></c><c r="B2" s="1"/></row>   learned from some rows
    <row r="([0-9]+)"…><c r="A…" t="s"><v>(…)</v></c>…</row>         finds those that look alike

A column may have several variants (a number, a text, a formula, an empty cell) or be absent from some rows.
What no row of the sample had, the pattern does not find; such a row is read by itself.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from holdfast.pipelines.documents.reading.columns import COLUMNS_MAX, column_letters, column_number

ROW_BEGIN = re.compile(r"<row\b\s*")
SLOTS_MAX = 256
ATTRIBUTES_CHARS_MAX = 200
ROW_CHARS_MAX = 64 * 1024

_CELL = re.compile(
    r"<c r=\"([A-Z]{1,3})[0-9]{1,7}\"([^<>]*?)(?:/>|>"
    r"(<f[^<>]*>(?:[^<]*</f>)?)?"
    r"(?:<v>[^<]+(</v>)|<is><t(?: xml:space=\"preserve\")?>[^<]+</t>(</is>)|<v></v>|<v ?/>)?</c>)"
)
_FORMULA = r"<f[^<>]*>(?:[^<]*</f>)?"


class Form(Enum):
    VALUE = f"(?:{_FORMULA})?<v>([^<]+)</v></c>"
    PLAIN_VALUE = "<v>([^<]+)</v></c>"
    INLINE = '<is><t(?: xml:space="preserve")?>([^<]+)</t></is></c>'
    WITHOUT_VALUE = "(<f)[^<>]*>(?:[^<]*</f>)?(?:<v></v>|<v ?/>)?</c>"
    EMPTY = "(?:<v></v>|<v ?/>)?</c>"
    CLOSED = ""


_UNFOUND = frozenset({Form.EMPTY, Form.CLOSED})


class Slot(NamedTuple):
    """What one group of the pattern finds."""

    column: int
    attributes: str
    form: Form


class Shape:
    def __init__(self) -> None:
        self._variants: dict[int, dict[tuple[str, Form], None]] = {}
        self._optional: set[int] = set()
        self._has_rows = False
        self._pattern = re.compile(r"<row\b()()")
        self.slots: list[Slot] = []
        """As the groups, of which the first is the number of the row."""

    def found(self, xml: str) -> list[tuple[str, ...]]:
        """Of each row what its groups have; of one that does not look like this, only empty texts."""
        return self._pattern.findall(xml)

    def attributes_of(self, row: tuple[str, ...]) -> list[str]:
        """Of the cells with a value in a row that was found."""
        return [
            slot.attributes
            for slot, value in zip(self.slots, row[1:], strict=True)
            if value and slot.form is not Form.WITHOUT_VALUE
        ]

    def copy(self) -> Shape:
        other = Shape()
        other._variants = {column: dict(variants) for column, variants in self._variants.items()}
        other._optional, other._has_rows = set(self._optional), self._has_rows
        return other

    def learn(self, rows: list[str]) -> bool:
        """Each from its attributes on. Whether there was anything to learn."""
        before = (sum(map(len, self._variants.values())), len(self._optional))
        for row in rows:
            self._learn(row)
        after = (sum(map(len, self._variants.values())), len(self._optional))
        if after == before:
            return False
        self._compile()
        return bool(self.slots)

    def _learn(self, row: str) -> None:
        begin, end = row.find(">") + 1, row.find("</row>")
        if not 0 < end - begin < ROW_CHARS_MAX:
            return
        cells = list(_CELL.finditer(row, begin, end))
        if sum(cell.end() - cell.start() for cell in cells) != end - begin:
            return
        variants: dict[int, tuple[str, Form]] = {}
        last = -1
        for cell in cells:
            column, attributes = column_number(cell[1]), cell[2]
            if not last < column < COLUMNS_MAX or len(attributes) > ATTRIBUTES_CHARS_MAX:
                return
            variants[column] = (attributes, _form_of(cell))
            last = column
        slots = sum(map(len, self._variants.values()))
        if slots + sum(each not in self._variants.get(at, ()) for at, each in variants.items()) > SLOTS_MAX:
            return
        if self._has_rows:
            self._optional |= self._variants.keys() ^ variants.keys()
        self._has_rows = True
        for column, variant in variants.items():
            self._variants.setdefault(column, {})[variant] = None

    def _compile(self) -> None:
        self.slots = []
        cells = []
        for column, variants in sorted(self._variants.items()):
            forms = []
            for attributes, form in variants:
                if form is Form.PLAIN_VALUE and (attributes, Form.VALUE) in variants:
                    continue
                forms.append(f"{re.escape(attributes)}{'/' if form is Form.CLOSED else ''}>{form.value}")
                if form not in _UNFOUND:
                    self.slots.append(Slot(column, attributes, form))
            cell = f'<c r="{column_letters(column)}[0-9]{{1,7}}"(?:{"|".join(forms)})'
            cells.append(f"(?:{cell})?" if column in self._optional else cell)
        if self.slots:
            self._pattern = re.compile(f'<row r="([0-9]{{1,7}})"[^<>]*>{"".join(cells)}</row>|<row\\b')


def _form_of(cell: re.Match[str]) -> Form:
    formula, value, inline = cell[3], cell[4], cell[5]
    if inline:
        return Form.INLINE
    if value:
        return Form.VALUE if formula else Form.PLAIN_VALUE
    if formula:
        return Form.WITHOUT_VALUE
    return Form.CLOSED if cell[0].endswith("/>") else Form.EMPTY
