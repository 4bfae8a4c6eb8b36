"""The signs, codes and words of currencies, of shares, and of large numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from holdfast.pipelines.documents.findings.numerals import SPACES

CODES = frozenset(
    [
        "AED",
        "ARS",
        "AUD",
        "BGN",
        "BRL",
        "CAD",
        "CHF",
        "CLP",
        "CNY",
        "COP",
        "CZK",
        "DKK",
        "EGP",
        "EUR",
        "GBP",
        "HKD",
        "HRK",
        "HUF",
        "IDR",
        "ILS",
        "INR",
        "ISK",
        "JPY",
        "KES",
        "KRW",
        "KWD",
        "MAD",
        "MXN",
        "MYR",
        "NGN",
        "NOK",
        "NZD",
        "PEN",
        "PHP",
        "PKR",
        "PLN",
        "QAR",
        "RON",
        "RSD",
        "RUB",
        "SAR",
        "SEK",
        "SGD",
        "THB",
        "TRY",
        "TWD",
        "UAH",
        "USD",
        "VND",
        "ZAR",
    ]
)
SIGNS = {
    "€": "EUR",
    "£": "GBP",
    "¥": "JPY",
    "₹": "INR",
    "₽": "RUB",
    "₩": "KRW",
    "₺": "TRY",
    "₴": "UAH",
    "₪": "ILS",
    "₫": "VND",
    "₱": "PHP",
    "₦": "NGN",
    "฿": "THB",
    "$": "USD",
}
# The letters before a dollar sign say whose dollar it is.
DOLLARS = {
    "US": "USD",
    "CA": "CAD",
    "C": "CAD",
    "AU": "AUD",
    "A": "AUD",
    "NZ": "NZD",
    "HK": "HKD",
    "S": "SGD",
    "SG": "SGD",
    "R": "BRL",
    "MX": "MXN",
    "NT": "TWD",
}
WORDS = {
    "euro": "EUR",
    "euros": "EUR",
    "eur": "EUR",
    "dollar": "USD",
    "dollars": "USD",
    "us dollars": "USD",
    "u.s. dollars": "USD",
    "pounds sterling": "GBP",
    "pound sterling": "GBP",
    "franken": "CHF",
    "schweizer franken": "CHF",
    "swiss francs": "CHF",
    "sfr": "CHF",
    "yen": "JPY",
    "zł": "PLN",
    "kč": "CZK",
}
SHARES = {
    "%": "percent",
    "percent": "percent",
    "per cent": "percent",
    "pct": "percent",
    "prozent": "percent",
    "pour cent": "percent",
    "por ciento": "percent",
    "per cento": "percent",
    "procent": "percent",
    "percentage points": "percentage_points",
    "percentage point": "percentage_points",
    "prozentpunkte": "percentage_points",
    "basis points": "basis_points",
    "bps": "basis_points",
    "‰": "permille",
}
_THOUSAND, _MILLION, _BILLION, _TRILLION = (Decimal(10) ** power for power in (3, 6, 9, 12))
TIMES: dict[str, Decimal] = {
    **dict.fromkeys(("thousand", "tausend", "tsd", "k", "mille", "mil"), _THOUSAND),
    **dict.fromkeys(
        (
            "million",
            "millions",
            "mio",
            "mn",
            "mln",
            "m",
            "mm",
            "millionen",
            "millones",
            "millón",
            "milioni",
            "miljoen",
        ),
        _MILLION,
    ),
    **dict.fromkeys(
        (
            "billion",
            "billions",
            "bn",
            "b",
            "mrd",
            "md",
            "mds",
            "milliarde",
            "milliarden",
            "milliard",
            "milliards",
            "mil millones",
            "miliardi",
            "miljard",
        ),
        _BILLION,
    ),
    **dict.fromkeys(("trillion", "trillions", "tn", "billionen"), _TRILLION),
}
# Who writes these parts thousands by a point: 322.284 Mio. €.
TIMES_OF_DECIMAL_COMMA = frozenset(
    [
        *("tausend", "tsd", "mio", "millionen", "millones", "millón", "milioni", "miljoen"),
        *("mrd", "mds", "milliarde", "milliarden", "mil millones", "miliardi", "miljard", "billionen"),
    ]
)
# Before a sign or a code without a space: k€, M€, TEUR.
SHORT_TIMES = {
    "k": _THOUSAND,
    "T": _THOUSAND,
    "M": _MILLION,
    "Mio": _MILLION,
    "Md": _BILLION,
    "Mrd": _BILLION,
}


def _one_of(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))


# A currency on another line belongs to what stands there: lines of one paragraph come as one.
_SPACE = f"[{SPACES}]"
_SIGN = f"[{''.join(SIGNS)}]"
_CODE = f"(?-i:{_one_of(CODES)})"
_SHARE_WORD = _one_of(word for word in SHARES if len(word) > 1)
_ATTACHED_ONLY = ("k", "b", "mm")

_HINT = re.compile(f"[%‰]|{_SIGN}|{_one_of(CODES)}")
_HINT_WORDS = (
    *("euro", "dollar", "pound", "franken", "francs", "yen", "sfr", "zł", "kč", "eur", "rs"),
    *(
        "percent",
        "per cent",
        "pct",
        "prozent",
        "pour cent",
        "por ciento",
        "per cento",
        "procent",
        "basis point",
        "bps",
    ),
)


_CURRENCY = re.compile(rf"{_SIGN}|(?<!\w){_CODE}(?!\w)")
_WITH_POINT = re.compile(r"[$£]|USD|GBP")


def has_currency(text: str) -> bool:
    """Whether it names one by its sign or its code."""
    return _CURRENCY.search(text) is not None


def may_part_thousands(number: str, beside: str) -> bool:
    """Dollars and pounds have a point before their decimals: $1.125 is a price of something small."""
    return "." not in number or _WITH_POINT.search(beside) is None


def may_have_amounts(text: str) -> bool:
    """Whether anything in it could make an amount of a number."""
    if _HINT.search(text):
        return True
    lower = text.lower()
    return any(word in lower for word in _HINT_WORDS)


# What follows a number, every part of which may be missing.
AFTER = re.compile(
    rf"\)?(?:[.,][\u2013\u2014-]{{1,2}})?"
    rf"(?:(?P<times>{_SPACE}?(?:{_one_of(word for word in TIMES if word not in _ATTACHED_ONLY)})"
    rf"|{_one_of(_ATTACHED_ONLY)})\b\.?)?"
    rf"(?:{_SPACE}{{0,2}}(?P<share>%|‰|(?:{_SHARE_WORD})(?!\w))"
    rf"|{_SPACE}{{0,2}}(?:de |d['’])?(?P<short>(?-i:k|T|Mio|M|Mrd|Md)\.?)?"
    rf"(?P<unit>{_SIGN}|(?:{_CODE}|{_one_of(WORDS)})(?!\w)))?",
    re.IGNORECASE,
)
# What stands right before a number: a currency, and the sign or the bracket between the two.
BEFORE = re.compile(
    rf"(?:(?<!\w)(?P<short>k|T|M))?"
    rf"(?:(?:(?<!\w)(?P<beside>{_one_of(CODES)}) ?)?"
    rf"(?:(?P<letters>(?<!\w)[A-Z]{{1,2}})?(?P<dollar>\$)|(?P<mark>{_SIGN}))"
    rf"|(?:(?<![A-Za-z])|(?<=[kTM]))(?P<code>{_one_of(CODES)}|SFr|Rs)\.?)"
    rf"{_SPACE}?(?P<sign>[\u2212\u2013-]?)(?P<open>\(?)\Z"
)
BEFORE_CHARS = 12
# Between two numbers of a range: the first may leave its currency or its millions to the second.
RANGE = re.compile(
    rf"(?P<currency>{_SPACE}?(?:{_SIGN}|{_CODE}))?{_SPACE}?"
    rf"(?P<joint>[\u2013\u2014-]|\bto\b|\bbis\b|\bà\b|\ba\b|\band\b|\bund\b|\bet\b|\by\b|\bor\b|\boder\b)"
    rf"{_SPACE}?(?P<again>(?:[A-Z]{{1,2}})?\$|{_SIGN}|{_CODE})?{_SPACE}?"
)
RANGE_CHARS_MAX = 16
# The characters that may end what BEFORE finds, for a quick look.
MAY_END_AHEAD = frozenset(f"{SPACES}-\u2212\u2013(.") | frozenset(SIGNS) | frozenset("".join(CODES) + "rs")
