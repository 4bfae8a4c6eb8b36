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
    DOLLARS,
    MAY_END_AHEAD,
    SHARES,
    SHORT_TIMES,
    SIGNS,
    TIMES,
    WORDS,
    may_have_amounts,
)
from holdfast.pipelines.documents.findings.numerals import NUMBER, DecimalMark, number_of, plain
from holdfast.pipelines.documents.findings.passage import Passage, context_of
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


class _Amount(NamedTuple):
    amount: str
    unit: str
    is_money: bool


class Amounts:
    def __init__(self, decimal_mark: DecimalMark) -> None:
        self._tally: Tally[_Amount] = Tally()
        self._mark = decimal_mark

    def add(self, passage: Passage) -> None:
        if not may_have_amounts(passage.text):
            return
        text, overlap = passage.text, passage.overlap
        for start, end, amount in self._found(passage):
            if end > overlap:
                self._tally.add(
                    amount,
                    passage.number,
                    text[start:end],
                    partial(context_of, passage, start, end),
                )

    def _found(self, passage: Passage) -> Iterator[tuple[int, int, _Amount]]:
        numbers = list(NUMBER.finditer(passage.text))
        for number in numbers:
            self._mark.see(number[0])
        is_comma = self._mark.is_comma(passage.language in DECIMAL_COMMA)
        taken = 0
        for number in numbers:
            found = _amount(passage, number, is_comma, taken)
            if found:
                taken = found[1]
                yield found

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


def _amount(
    passage: Passage, number: re.Match[str], is_comma: bool, taken: int
) -> tuple[int, int, _Amount] | None:
    text, start, end = passage.text, number.start(), number.end()
    behind = AFTER.match(text, end)
    if behind is None:  # never: each part of it may be missing
        return None
    ahead = None
    if not behind["share"] and text[start - 1 : start] in MAY_END_AHEAD:
        ahead = BEFORE.search(text[max(taken, start - BEFORE_CHARS) : start])
    value = number_of(number[0], comma_is_decimal=is_comma)
    times = Decimal(1)
    if behind["times"]:
        times = TIMES[behind["times"].strip().lower()]
        value = _with_fraction(number[0], value)
    if ahead:
        begin, end = start - len(ahead[0]), behind.end("times") if behind["times"] else end
        unit = _currency_ahead(ahead)
        times *= SHORT_TIMES.get(ahead["short"] or "", 1)
    elif (behind["share"] or behind["unit"]) and not text[start - 1 : start].isalnum():
        begin, end = start, behind.end()
        unit = SHARES[behind["share"].lower()] if behind["share"] else _currency_behind(behind["unit"])
        times *= SHORT_TIMES.get((behind["short"] or "").rstrip("."), 1)
    else:
        return None
    if value is None or value * times >= _AMOUNT_MAX:
        return None
    begin, end, is_below_zero = _signed(passage, begin, number.end(), end, ahead)
    amount = -value * times if is_below_zero else value * times
    is_money = not behind["share"]
    return begin, end, _Amount(plain(amount, money=is_money), unit, is_money)


def _with_fraction(written: str, value: Decimal | None) -> Decimal | None:
    """1.234 million and 1,234 Mio. are a little more than one million in any language."""
    whole, _, fraction = written.replace(",", ".").partition(".")
    return Decimal(f"{whole}.{fraction}") if whole.isdecimal() and fraction.isdecimal() else value


def _currency_ahead(ahead: re.Match[str]) -> str:
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


def _score(key: _Amount, seen: Sightings) -> float:
    size = len(key.amount.partition(".")[0].lstrip("-"))
    score = 1.0 + math.sqrt(min(seen.count, 25)) + (0.3 * min(size, 12) if key.is_money else 0.0)
    return score * (1.5 if _TELLING.search(seen.context) else 1.0)


def _value(key: _Amount, context: str) -> dict[str, Any]:
    return {"amount": key.amount, ("currency" if key.is_money else "unit"): key.unit, "context": context}
