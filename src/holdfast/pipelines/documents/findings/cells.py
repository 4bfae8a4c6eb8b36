"""The cells of a table: which hold numbers, and of what.

"1,234.56"   "€ 12"   "(45.0)"   "12 %"   "-3"   "1e+20"      a number, with its unit where it has one
"2024-01-03" "12:30"  "Q3"       "n/a"                        text
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from holdfast.pipelines.documents.findings.money_words import CODES, SIGNS
from holdfast.pipelines.documents.findings.numerals import number_of

_CELL_CHARS_MAX = 48
_MINUS = "\u2212\u2013-"  # the hyphen last: in a set of characters it is itself only there
_EXPONENT_MOST = 60

_NUMBER_CELL = re.compile(
    rf"(?P<sign>[+{_MINUS}]?)(?P<open>\(?)\s?(?P<ahead>[^\d\s()+.,{_MINUS}]{{1,4}})?\s?(?P<inner>[{_MINUS}]?)(?P<inner_open>\(?)"
    r"(?P<number>\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+(?:[.,]\d+)?|\d+(?:[.,'’]\d+)*)"
    r"(?P<exponent>[eE][+-]?\d{1,3})?\s?(?P<behind>[^\d\s()]{1,6})?\s?(?P<close>\)?)"
)
# A word in a cell of numbers that is its unit, and no name: "12 kg".
_UNIT = re.compile(r"%|‰|[A-Za-zµ°²³/€$£¥]{1,6}[²³]?|[^\x00-\x7f]{1,2}")
_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?")
_DIGIT = re.compile(r"\d")
_BLANK = frozenset({"", "-", "–", "—", "n/a", "N/A", "na", "k.A.", "k. A.", "."})
_TOTAL = re.compile(
    r"(?:grand |sub-?|running )?totals?\b|sum\b|summe\b|gesamt|zwischensumme\b|insgesamt\b"
    r"|total général\b|sous-total|suma\b|subtotal|totale\b|totaal\b|somme\b|Σ",
    re.IGNORECASE,
)
_UNIT_OF_HEADER = re.compile(r"[(\[]\s?([^()\[\]]{1,16})\s?[)\]]|\bin ([A-Z]{3}|[€$£%]|[kM]€|T€|TEUR)(?!\w)")


class Number(NamedTuple):
    value: Decimal
    unit: str


def number_in(cell: str, *, comma_is_decimal: bool) -> Number | None:
    """The number that a cell is, and nothing but that; None for any other cell."""
    if _PLAIN_NUMBER.fullmatch(cell) and not (comma_is_decimal and cell[-4:-3] == "."):
        return Number(Decimal(cell), "")
    if len(cell) > _CELL_CHARS_MAX or not _DIGIT.search(cell):
        return None
    match = _NUMBER_CELL.fullmatch(cell)
    if match is None or bool(match["open"]) + bool(match["inner_open"]) != bool(match["close"]):
        return None
    ahead, behind = match["ahead"] or "", match["behind"] or ""
    if (ahead and behind) or (ahead and not _is_currency(ahead)) or (behind and not _UNIT.fullmatch(behind)):
        return None
    value = number_of(match["number"], comma_is_decimal=comma_is_decimal and not match["exponent"])
    if value is None:
        return None
    if match["exponent"]:
        try:
            value = value.scaleb(int(match["exponent"][1:]))
        except InvalidOperation:  # pragma: no cover: three digits of an exponent are in range
            return None
        if value and abs(value.adjusted()) > _EXPONENT_MOST:
            return None
    is_below_zero = bool(match["close"] or match["inner"] or (match["sign"] and match["sign"] in _MINUS))
    unit = SIGNS.get(ahead or behind, ahead or behind)
    return Number(-value if is_below_zero else value, unit)


def _is_currency(text: str) -> bool:
    return text in SIGNS or text.rstrip(".") in CODES or text in ("US$", "A$", "C$", "CHF", "Fr.", "Rs.")


def is_blank(cell: str) -> bool:
    return cell in _BLANK


def names_a_total(cells: list[str]) -> bool:
    """One of the first words of the row says that it adds up the others."""
    words = [cell for cell in cells[:3] if cell and not cell[0].isdigit()]
    return any(len(cell) <= 60 and _TOTAL.match(cell) is not None for cell in words)


def unit_of_header(name: str) -> str:
    found = _UNIT_OF_HEADER.search(name)
    if not found:
        return ""
    unit = (found[1] or found[2]).strip().removeprefix("in ")
    return SIGNS.get(unit, unit)
