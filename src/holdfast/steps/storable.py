"""Values from elsewhere, made such that a store can hold them as JSON.

Databases and services give more kinds of values than JSON has, and some that a store refuses. Nothing is lost
silently where a text can carry it: decimals, dates, UUIDs and numbers without end become texts, bytes become
base64. NUL characters and lone surrogates, which no store can hold, become U+FFFD.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec

from holdfast.core.payload import PAYLOAD_DEPTH_MAX

# What is around a value in an output takes some of the depth that a payload may have.
DEPTH_MAX = PAYLOAD_DEPTH_MAX - 10
INTEGER_DIGITS_MAX = 1000  # more than any reader has use for, and cheap to write

_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")


class TooDeep(ValueError):
    """Nested deeper than a payload may be."""


def storable(value: Any, depth: int = DEPTH_MAX) -> Any:
    """The value as plain data: texts, numbers, booleans, None, lists and mappings with texts as keys."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _endless(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        _check(depth)
        return {storable_key(key): storable(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        _check(depth)
        return [storable(inner, depth - 1) for inner in value]
    return storable_text(_as_text(value))


def storable_text(text: str) -> str:
    if text.isascii() and "\x00" not in text:
        return text
    return _NOT_STORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def storable_key(key: object) -> str:
    return storable_text(key) if isinstance(key, str) else storable_text(_as_text(key))


def _check(depth: int) -> None:
    if depth <= 0:
        raise TooDeep(f"nested deeper than {DEPTH_MAX} levels")


def _integer(value: int) -> int | str:
    if abs(value) < 10**INTEGER_DIGITS_MAX:
        return int(value)
    return hex(value)  # in decimal it would cost quadratic time, and Python refuses


def _endless(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _as_text(value: object) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, Decimal):
        return format(value, "f") if abs(value.adjusted() if value.is_finite() else 0) < 100 else str(value)
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _duration(value: timedelta) -> str:
    """As ISO 8601 has it: P1DT2.5S."""
    sign, value = ("-", -value) if value < timedelta() else ("", value)
    seconds = f"{value.seconds}.{value.microseconds:06}".rstrip("0").rstrip(".")
    days = f"{value.days}D" if value.days else ""
    return f"{sign}P{days}T{seconds}S" if seconds != "0" or not days else f"{sign}P{days}"


def interval_text(months: int, days: int, microseconds: int) -> str:
    """As ISO 8601 has it, of databases that keep these three apart: P1M2DT3.5S."""
    sign = "-" if microseconds < 0 else ""
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    clock = f"{sign}{seconds}.{fraction:06}".rstrip("0").rstrip(".")
    text = (f"{months}M" if months else "") + (f"{days}D" if days else "")
    return f"P{text}" + (f"T{clock}S" if microseconds or not text else "")


# ── JSON that somebody else wrote ────────────────────────────────────────────────────────────────


def parse_json(encoded: bytes, charset: str = "") -> Any:
    """What JSON of any sender holds, fit to be stored; ValueError where it is no JSON, TooDeep where it is
    nested too deeply. NaN and Infinity, which some senders write, are read as texts. `charset` is what the
    sender says of it, and counts where it is no UTF-8, 16 or 32, which JSON should be."""
    text = _decoded(encoded, charset).removeprefix("\ufeff")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return storable(_read_leniently(text))
    # Most JSON needs no second look.
    has_numbers_too_long = _LONG_NUMBER.search(text) is not None
    if "\\u0000" in text or has_numbers_too_long or text.count("[") + text.count("{") > DEPTH_MAX:
        return storable(value)
    return value


# From its first digit only: looked for at each, a long number would cost quadratic time.
_LONG_NUMBER = re.compile(r"(?<!\d)\d{400}")


def _decoded(encoded: bytes, charset: str) -> str:
    try:
        return encoded.decode(json.detect_encoding(encoded))
    except UnicodeDecodeError:
        if not charset:
            raise
    try:
        return encoded.decode(charset)
    except LookupError as error:  # a codec of Python that yields no text
        raise ValueError(str(error)) from None


def _read_leniently(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=str, parse_float=_float, parse_int=_int)
    except RecursionError:
        raise TooDeep(f"nested deeper than {DEPTH_MAX} levels") from None


def _float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


def _int(text: str) -> int | str:
    return int(text) if len(text) <= INTEGER_DIGITS_MAX else text
