"""Numbers as people write them: 1,234.56 and 1.234,56 and 1 234,56 and 1'234.56.

The last of two different marks parts the fraction. A single mark before exactly three digits can be either:
`comma_is_decimal` decides, which comes from the language and from what the document's other numbers show.
"""

from __future__ import annotations

import re
from decimal import Decimal

NUMBER_CHARS_MAX = 30

SPACES = " \u00a0\u2007\u2009\u202f"
_HARD_SPACES = "\u00a0\u2007\u2009\u202f"
NUMBER = re.compile(
    rf"(?<![\d.,])(?:\d{{1,3}}(?:[{SPACES}]\d{{3}}){{1,5}}(?!\d)(?:[.,]\d{{1,4}}(?!\d))?|\d+(?:[.,'’]\d+)*)"
)
# In columns a plain space stands between two numbers.
NUMBER_OF_COLUMN = re.compile(
    rf"(?<![\d.,])(?:\d{{1,3}}(?:[{_HARD_SPACES}]\d{{3}}){{1,5}}(?!\d)(?:[.,]\d{{1,4}}(?!\d))?|\d+(?:[.,'’]\d+)*)"
)
_THOUSANDS = re.compile(r"\d{1,3}(?:\D\d{3})+")
_THOUSANDS_OF_MONEY = re.compile(r"[1-9]\d{0,2}[.,]\d{3}")
_INDIAN_THOUSANDS = re.compile(r"\d{1,2}(?:,\d{2})+,\d{3}")


def number_of(text: str, *, comma_is_decimal: bool) -> Decimal | None:
    """The number without its sign; None where the marks make no number: a version, an address, a date."""
    if len(text) > NUMBER_CHARS_MAX:
        return None
    if text.isdecimal():
        return Decimal(text)
    whole, fraction = _parted(text, comma_is_decimal)
    if whole is None:
        return None
    digits = "".join(filter(str.isdecimal, whole))
    return Decimal(f"{digits}.{fraction}" if fraction else digits)


def _parted(text: str, comma_is_decimal: bool) -> tuple[str | None, str]:
    marks = [char for char in text if not char.isdecimal()]
    last = marks[-1]
    if last not in ".,":
        return (text if _THOUSANDS.fullmatch(text) else None), ""
    whole, _, fraction = text.rpartition(last)
    if len(marks) == 1:
        is_either = len(fraction) == 3 and len(whole) <= 3 and whole != "0"
        if is_either and comma_is_decimal == (last == "."):
            return whole + fraction, ""
        return whole, fraction
    if marks.count(last) == 1:  # the others part thousands
        fits = len(set(marks[:-1])) == 1 and (
            _THOUSANDS.fullmatch(whole) or _INDIAN_THOUSANDS.fullmatch(whole)
        )
        return (whole, fraction) if fits else (None, "")
    if len(set(marks)) > 1:
        return None, ""
    return (text if _THOUSANDS.fullmatch(text) or _INDIAN_THOUSANDS.fullmatch(text) else None), ""


def shows_comma_decimal(text: str) -> bool | None:
    """Whether a number can only be read with a comma as its decimal mark, or only with a point."""
    if len(text) > NUMBER_CHARS_MAX:
        return None
    last = max(text.rfind("."), text.rfind(","))
    if last < 0:
        return None
    marks = {char for char in text if char in ".,"}
    after = len(text) - last - 1
    if len(marks) == 2 and text.count(text[last]) == 1:
        return text[last] == ","
    if len(marks) == 1 and text.count(text[last]) == 1 and after in (1, 2):
        return text[last] == ","
    return None


class DecimalMark:
    """Which decimal mark a document uses, as far as its numbers so far tell. Where none can be read in one
    way only, amounts of money tell: hardly any has three decimals, so 1.500 EUR is written by who writes
    1.500,00."""

    def __init__(self) -> None:
        self._commas = self._points = 0
        self._commas_by_money = self._points_by_money = 0

    def see(self, number: str) -> None:
        shown = shows_comma_decimal(number)
        if shown is not None:
            self._commas += shown
            self._points += not shown

    def see_money(self, number: str) -> None:
        if _THOUSANDS_OF_MONEY.fullmatch(number):
            self._commas_by_money += "." in number
            self._points_by_money += "," in number

    @property
    def is_seen(self) -> bool:
        return self._commas + self._points > 0

    def is_comma(self, by_language: bool) -> bool:
        commas, points = self._commas, self._points
        if not self.is_seen:
            commas, points = self._commas_by_money, self._points_by_money
        if commas > 2 * points:
            return True
        if points > 2 * commas:
            return False
        return by_language


def plain(number: Decimal, *, money: bool = False) -> str:
    """As text, without an exponent or zeros that say nothing; of money with both digits of the cents."""
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    if money and "." in text and len(text.rpartition(".")[2]) == 1:
        text += "0"
    return "0" if text in ("-0", "") else text
