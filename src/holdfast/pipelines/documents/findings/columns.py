"""The columns of a table that hold figures: how many, from which to which, their sum and their mean.

Rows are added one by one and not kept. The last row is held back until it is known whether it only adds up
the ones above: such a row is told as the column's total and is no part of its figures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any

from holdfast.pipelines.documents.findings.cells import (
    Number,
    is_blank,
    names_a_total,
    number_in,
    unit_of_header,
)
from holdfast.pipelines.documents.findings.finding import shortened
from holdfast.pipelines.documents.findings.numerals import plain

COLUMNS_READ_MAX = 200
COLUMNS_TOLD_MAX = 30
_NAME_CHARS_MAX = 80
_NUMBERS_SHARE_MIN = 0.6
_MEAN_PLACES = Decimal("0.0001")
# More digits than these are the noise of binary fractions.
_DIGITS_TOLD_MAX = 14
_ROUNDED = Context(prec=12)
# Enough digits for any table; a hostile one cannot ask for more.
_EXACT = Context(prec=90)

_NO_QUANTITY = re.compile(
    r"(?:^|[\W_])(?:id|nr|no|num|number|nummer|code|zip|plz|phone|tel|telefon|year|jahr|année|año|ean|isbn|sku|index"
    r"|pos|position|row|line|key|iban|bic|kundennr|artikelnr|rechnungsnr|month|monat|day|tag)(?:$|[\W_])",
    re.IGNORECASE,
)
# Of these a mean tells something, and a sum nothing.
_RATE = re.compile(
    r"price|preis|prix|precio|prezzo|rate\b|satz\b|taux|percent|prozent|share|average|mean|mittel",
    re.IGNORECASE,
)
_ID_ENDING = re.compile(r"(?:[a-z]I[dD]|_id|nummer|[- ]?nr\.?)$")


@dataclass(slots=True)
class _Column:
    numbers: int = 0
    others: int = 0
    least: Decimal | None = None
    most: Decimal | None = None
    sum: Decimal = Decimal(0)
    unit: str | None = None
    is_one_unit: bool = True
    are_years: bool = True
    are_consecutive: bool = True
    last: Decimal | None = None
    stated_total: Decimal | None = None

    def add(self, number: Number) -> None:
        value = number.value
        self.numbers += 1
        self.least = value if self.least is None or value < self.least else self.least
        self.most = value if self.most is None or value > self.most else self.most
        self.sum = _EXACT.add(self.sum, value)
        self.is_one_unit = self.is_one_unit and (self.unit is None or self.unit == number.unit)
        self.unit = number.unit
        self.are_years = self.are_years and 1800 <= value <= 2200 and value == int(value)
        self.are_consecutive = self.are_consecutive and (
            value in (0, 1) if self.last is None else value == self.last + 1
        )
        self.last = value

    @property
    def is_numeric(self) -> bool:
        return self.numbers >= 2 and self.numbers >= _NUMBERS_SHARE_MIN * (self.numbers + self.others)

    @property
    def common_unit(self) -> str:
        return (self.unit or "") if self.is_one_unit else ""


@dataclass(slots=True)
class Columns:
    """The figures of one table, row by row."""

    names: list[str]
    rows: int = 0
    _columns: list[_Column] = field(default_factory=list)
    _last: tuple[list[str], list[Number | None]] | None = None

    def add(self, cells: list[str], *, comma_is_decimal: bool) -> None:
        if all(is_blank(cell) for cell in cells):
            return
        cells = cells[:COLUMNS_READ_MAX]
        numbers = [number_in(cell, comma_is_decimal=comma_is_decimal) for cell in cells]
        if names_a_total(cells) and any(numbers):
            self._settle()
            self._state_total(numbers)
            return
        self._settle()
        self._last = cells, numbers

    def _settle(self) -> None:
        """The row held back is one of figures."""
        if self._last is None:
            return
        cells, numbers = self._last
        self._last = None
        self.rows += 1
        while len(self._columns) < len(cells):
            self._columns.append(_Column())
        for column, cell, number in zip(self._columns, cells, numbers, strict=False):
            if number is not None:
                column.add(number)
            elif not is_blank(cell):
                column.others += 1

    def _state_total(self, numbers: list[Number | None]) -> None:
        for column, number in zip(self._columns, numbers, strict=False):
            if number is not None:
                column.stated_total = number.value

    def finish(self) -> None:
        """No more rows come."""
        if self._last and self._adds_up(*self._last):
            self._state_total(self._last[1])
            self._last = None
        self._settle()

    def _adds_up(self, cells: list[str], numbers: list[Number | None]) -> bool:
        """Without a word that says so: nothing but the sums of two or more columns, or of the only one."""
        pairs = [
            (column, number)
            for column, number in zip(self._columns, numbers, strict=False)
            if number is not None and column.is_numeric and not column.are_consecutive
        ]
        if self.rows < 2 or not pairs or (cells[0] and numbers[0] is None):
            return False
        if len(pairs) == 1 and not any(is_blank(cell) for cell in cells):
            return False
        return all(column.sum == number.value != 0 for column, number in pairs)

    @property
    def told(self) -> list[dict[str, Any]]:
        """What there is to tell of each column of figures."""
        return [
            _told(column, self._name(place), place)
            for place, column in enumerate(self._columns)
            if column.is_numeric
        ]

    def _name(self, place: int) -> str:
        name = self.names[place] if place < len(self.names) else ""
        return shortened(" ".join(name.split()), _NAME_CHARS_MAX)


def _without_noise(number: Decimal) -> str:
    return plain(_ROUNDED.plus(number) if len(number.as_tuple().digits) > _DIGITS_TOLD_MAX else number)


def _told(column: _Column, name: str, place: int) -> dict[str, Any]:
    unit = column.common_unit or unit_of_header(name)
    told: dict[str, Any] = {
        "name": name or f"column {place + 1}",
        "count": column.numbers,
        "min": _without_noise(column.least or Decimal(0)),
        "max": _without_noise(column.most or Decimal(0)),
    }
    names_things = bool(_NO_QUANTITY.search(name) or _ID_ENDING.search(name))
    if not (names_things or column.are_years or (column.are_consecutive and place == 0)):
        if unit not in ("%", "‰") and column.is_one_unit and not _RATE.search(name):
            told["sum"] = _without_noise(column.sum)
        told["mean"] = plain(
            _EXACT.divide(column.sum, Decimal(column.numbers)).quantize(_MEAN_PLACES, context=_EXACT)
        )
    if unit:
        told["unit"] = unit
    if column.stated_total is not None:
        told["total"] = plain(column.stated_total)
    return told
