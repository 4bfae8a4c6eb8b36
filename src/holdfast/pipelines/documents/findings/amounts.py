"""Amounts of money and shares, with what they are of: EUR 1,234.56, 1.234,56 €, $5m, 12,5 %.

A number alone is no amount; what stands right before it or behind it makes it one. Each is kept as decimal
text and counted once however it is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from holdfast.pipelines.documents.findings.finding import MOST, Finding, finding
from holdfast.pipelines.documents.findings.language import DECIMAL_COMMA
from holdfast.pipelines.documents.findings.money_words import (
    AFTER,
    BEFORE,
    BEFORE_CHARS,
    CODES,
    DOLLARS,
    MAY_END_AHEAD,
    RANGE,
    RANGE_CHARS_MAX,
    SHARES,
    SHORT_TIMES,
    SIGNS,
    TIMES,
    TIMES_OF_DECIMAL_COMMA,
    WORDS,
    may_have_amounts,
    may_part_thousands,
)
from holdfast.pipelines.documents.findings.numerals import NUMBER, DecimalMark, number_of, plain
from holdfast.pipelines.documents.findings.passage import Passage, context_of
from holdfast.pipelines.documents.findings.stop_words import STOP_WORDS
from holdfast.pipelines.documents.findings.tally import Sightings, Tally

_SHARES_MOST = 30
_MINUS = "-\u2212\u2013"
# Before a dash these make it a range or a compound.
_JOINS = re.compile(r"[\w%€$£).,]")
_AMOUNT_MAX = Decimal(10) ** 18

# In running text brackets mostly repeat what the words before them say; after these words they are a minus.
_BELOW_ZERO = re.compile(
    r"\b(?:loss|losses|deficit|net|of|was|were|to|income|result|cash|flow|verlust|ergebnis|perte|résultat|pérdida)"
    r":?$",
    re.IGNORECASE,
)
_TELLING = re.compile(
    r"total|sum|price|fee|amount|due|pay|cost|budget|revenue|profit|salary|rent|turnover|sales|capital|value"
    r"|gesamt|betrag|preis|summe|umsatz|gewinn|miete|netto|brutto|montant|prix|importe|precio|chiffre",
    re.IGNORECASE,
)
# A clause or a day in a text with a decimal comma: it shows nothing of how the document writes amounts.
_CLAUSE = re.compile(r"\d{1,2}\.\d{1,2}")
_YEAR = re.compile(r"(?:19|20)\d\d")
_CENTS = re.compile(r".*[.,]\d\d")
_NEXT_NUMBER = re.compile(r"[ \u00a0\u202f]{0,2}[-\u2212(]?(?=\d)")
_WORD_BEHIND = re.compile(r" ([^\W\d_]{2,30})")
_RANGE_FALLS_MOST = 20  # "from $30 to $2 million" falls; "$500 to $2 million" does not


class Amount(NamedTuple):
    amount: str
    unit: str
    is_money: bool


class _Place(NamedTuple):
    """How a number is to be read where it stands."""

    passage: Passage
    is_comma: bool
    point_may_part_thousands: bool
    units_stand_behind: bool


class _Borrowed(NamedTuple):
    """What a number of a range has from the other one."""

    times: str = ""
    unit: str = ""


class Amounts:
    def __init__(self, decimal_mark: DecimalMark) -> None:
        self._tally: Tally[Amount] = Tally()
        self._mark = decimal_mark

    def add(self, passage: Passage) -> None:
        if not may_have_amounts(passage.text):
            return
        text, overlap = passage.text, passage.overlap
        for start, end, amount in amounts_in(passage, self._mark):
            if end > overlap:
                self._tally.add(
                    amount,
                    passage.number,
                    text[start:end],
                    partial(context_of, passage, start, end),
                )

    def findings(self) -> list[Finding]:
        """Money first, then shares; the most frequent and the most telling first."""
        scored = [(_score(key, seen), key, seen) for key, seen in self._tally.seen.items()]
        scored.sort(key=lambda item: (-item[0], item[2].order))
        shares = [item for item in scored if not item[1].is_money][:_SHARES_MOST]
        money = [item for item in scored if item[1].is_money][: MOST["amount"] - len(shares)]
        best = max((item[0] for item in (*money, *shares)), default=1.0)
        return [
            finding(
                "amount",
                seen.text,
                value=_value(key, seen.context),
                score=score / best,
                chunks=seen.chunks,
                count=seen.count,
            )
            for score, key, seen in (*money, *shares)
        ]


def amounts_in(passage: Passage, mark: DecimalMark) -> Iterator[tuple[int, int, Amount]]:
    """The amounts of a passage, and where they stand; `mark` learns from its numbers."""
    text = passage.text
    numbers = list(NUMBER.finditer(text))
    for number in numbers:
        if not _CLAUSE.fullmatch(number[0]) or _has_unit(text, number):
            mark.see(number[0])
        if _is_plain_money(text, number):
            mark.see_money(number[0])
    is_comma = mark.is_comma(passage.language in DECIMAL_COMMA)
    taken = behind = 0
    lent = _Borrowed()
    for index, number in enumerate(numbers):
        following = numbers[index + 1] if index + 1 < len(numbers) else None
        borrowed, lent = lent, _Borrowed()
        if following and following.start() - number.end() <= RANGE_CHARS_MAX:
            mine, lent = _range(text, number, following, is_comma)
            borrowed = _Borrowed(mine or borrowed.times, borrowed.unit)
        place = _Place(passage, is_comma, is_comma or not mark.is_seen, behind > 0)
        found = _amount(place, number, taken, borrowed)
        if not found:
            lent = _Borrowed()
            continue
        start, taken, amount = found
        if lent.unit:
            lent = _Borrowed("", amount.unit if amount.is_money else "")
        behind += 0 if not amount.is_money else 1 if start == number.start() else -1
        if not amount.is_money or amount.amount != "0":
            yield found


def _has_unit(text: str, number: re.Match[str]) -> bool:
    behind = AFTER.match(text, number.end())
    return bool(behind and behind[0]) or text[number.start() - 1 : number.start()] in SIGNS


def _is_plain_money(text: str, number: re.Match[str]) -> bool:
    """With its currency, and not in thousands or millions."""
    if number[0].isdecimal():  # most are, and show no mark
        return False
    behind = AFTER.match(text, number.end())
    if behind is None or behind["times"] or behind["share"]:
        return False
    start = number.start()
    ahead = BEFORE.search(text[max(0, start - BEFORE_CHARS) : start])
    unit = (ahead[0] if ahead else "") + (behind["unit"] or "")
    return bool(unit) and may_part_thousands(number[0], unit)


def _range(text: str, first: re.Match[str], second: re.Match[str], is_comma: bool) -> tuple[str, _Borrowed]:
    """The times-word that the first number of a range has from the second, and what it lends to that one."""
    joint = RANGE.fullmatch(text, first.end(), second.start())
    if joint is None:
        return "", _Borrowed()
    behind = AFTER.match(text, second.end())
    is_span = joint["joint"] in ("-", "\u2013", "\u2014", "to", "bis", "à", "a")
    if behind is None or not behind["times"] or not (is_span or not joint["again"]):
        return "", _Borrowed()
    values = [number_of(number[0], comma_is_decimal=is_comma) for number in (first, second)]
    if values[0] is None or values[1] is None or values[0] > _RANGE_FALLS_MOST * values[1]:
        return "", _Borrowed()
    if not behind["unit"] and not behind["share"] and not joint["again"]:
        # "EUR 5 and 20 million people": the second number is of something else.
        word = _WORD_BEHIND.match(text, behind.end())
        if word and not any(word[1].lower() in STOP_WORDS[language] for language in ("en", "de", "fr", "es")):
            return "", _Borrowed()
    return behind["times"], _Borrowed("", "" if joint["again"] or behind["unit"] else "of the first")


def _amount(
    place: _Place, number: re.Match[str], taken: int, borrowed: _Borrowed
) -> tuple[int, int, Amount] | None:
    passage, is_comma = place.passage, place.is_comma
    text, start, end = passage.text, number.start(), number.end()
    behind = AFTER.match(text, end)
    if behind is None:  # never: each part of it may be missing
        return None
    ahead = None
    if not behind["share"] and text[start - 1 : start] in MAY_END_AHEAD:
        ahead = BEFORE.search(text[max(taken, start - BEFORE_CHARS) : start])
    times = Decimal(1)
    if word := (behind["times"] or borrowed.times).strip().lower():
        times = TIMES[word]
        # 322.284 Mio.: where no number has shown the mark, the word does.
        if word in TIMES_OF_DECIMAL_COMMA and place.point_may_part_thousands and "." in number[0]:
            is_comma = True
    value = number_of(number[0], comma_is_decimal=is_comma)
    own = behind["unit"] if behind["unit"] and not _is_of_next(place, number, behind) else ""
    if ahead:
        begin, end = start - len(ahead[0]), behind.end("times") if behind["times"] else end
        unit = _currency_ahead(ahead)
        if ahead["dollar"] and own in CODES and not (ahead["letters"] or ahead["beside"]):
            unit, end = own, behind.end()
        times *= SHORT_TIMES.get(ahead["short"] or "", 1)
    elif (behind["share"] or own) and not text[start - 1 : start].isalnum():
        begin, end = start, behind.end()
        unit = SHARES[behind["share"].lower()] if behind["share"] else _currency_behind(own)
        times *= SHORT_TIMES.get((behind["short"] or "").rstrip("."), 1)
    elif borrowed.unit and behind["times"]:
        begin, end, unit = start, behind.end("times"), borrowed.unit
    elif borrowed.times and (lender := _unit_of_range(text, number)):
        begin, unit = start, lender
    else:
        return None
    if value is None or value * times >= _AMOUNT_MAX:
        return None
    begin, end, is_below_zero = _signed(passage, begin, number.end(), end, ahead)
    amount = -value * times if is_below_zero else value * times
    is_money = not behind["share"]
    return begin, end, Amount(plain(amount, money=is_money), unit, is_money)


def _unit_of_range(text: str, first: re.Match[str]) -> str:
    """The currency behind the second number: from 5 to 10 million dollars."""
    second = NUMBER.search(text, first.end(), first.end() + RANGE_CHARS_MAX + 12)
    behind = AFTER.match(text, second.end()) if second else None
    return _currency_behind(behind["unit"]) if behind and behind["unit"] else ""


def _is_of_next(place: _Place, number: re.Match[str], behind: re.Match[str]) -> bool:
    """The currency between two numbers belongs to the second: "in 2024 EUR 5 million", "note 12 EUR 500"."""
    text = place.passage.text
    if behind["times"] or behind["short"] or not (_NEXT_NUMBER.match(text, behind.end("unit"))):
        return False
    following = NUMBER.search(text, behind.end("unit"), behind.end("unit") + 40)
    if following is None:
        return False
    if _YEAR.fullmatch(number[0]):
        return True
    if behind["unit"] not in SIGNS and behind["unit"] not in CODES:
        return False  # words of currencies stand behind their numbers
    after = AFTER.match(text, following.end())
    has_own = after is not None and bool(after["unit"] or after["share"])
    is_year = _YEAR.fullmatch(following[0]) and not (after and after["times"])
    if has_own or is_year or (_CENTS.fullmatch(number[0]) and not _CENTS.fullmatch(following[0])):
        return False
    return not place.units_stand_behind


def _currency_ahead(ahead: re.Match[str]) -> str:
    if ahead["beside"]:
        return ahead["beside"]
    if ahead["dollar"]:
        return DOLLARS.get(ahead["letters"] or "US", "USD")
    return (
        SIGNS[ahead["mark"]]
        if ahead["mark"]
        else {"SFr": "CHF", "Rs": "INR"}.get(ahead["code"], ahead["code"])
    )


def _currency_behind(unit: str) -> str:
    return SIGNS.get(unit) or WORDS.get(unit.lower()) or unit


def _signed(
    passage: Passage, begin: int, number_end: int, end: int, ahead: re.Match[str] | None
) -> tuple[int, int, bool]:
    """Where the amount begins and ends with its sign or its brackets, and whether it is below zero."""
    text = passage.text
    if ahead and ahead["sign"]:
        return begin, end, True
    char = text[begin - 1 : begin]
    if char and char in _MINUS and not _JOINS.match(text[begin - 2 : begin - 1]):
        return begin - 1, end, True
    close = text.find(")", number_end, end + 1)
    if close < 0:
        return begin, end, False
    if ahead and ahead["open"]:
        return begin, max(end, close + 1), True
    words = text[max(0, begin - 15) : max(0, begin - 1)].rstrip()
    if char == "(" and (passage.is_table or not words[-1:].isalpha() or _BELOW_ZERO.search(words)):
        return begin - 1, max(end, close + 1), True
    return begin, min(end, close) if close >= number_end and end > close else end, False


def _score(key: Amount, seen: Sightings) -> float:
    size = len(key.amount.partition(".")[0].lstrip("-"))
    score = 1.0 + math.sqrt(min(seen.count, 25)) + (0.3 * min(size, 12) if key.is_money else 0.0)
    return score * (1.5 if _TELLING.search(seen.context) else 1.0)


def _value(key: Amount, context: str) -> dict[str, Any]:
    return {"amount": key.amount, ("currency" if key.is_money else "unit"): key.unit, "context": context}
