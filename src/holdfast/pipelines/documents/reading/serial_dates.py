"""The days and times of spreadsheets, which are numbers: days since 1899-12-30, or since 1904-01-01."""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from typing import NamedTuple

_DAY_0_OF_1900 = date(1899, 12, 30).toordinal()
_DAY_0_OF_1904 = date(1904, 1, 1).toordinal()
_LAST_DAY = date(9999, 12, 31).toordinal()
_LEAP_DAY = 60
"""The first spreadsheets took 1900 for a leap year, and all others since do as well."""
_DAY_MILLISECONDS = 86_400_000
_DAYS_CACHED_MAX = 16_384
_SERIAL_MAX = 10_000_000.0


class DateForm(NamedTuple):
    has_day: bool
    has_time: bool
    elapsed: str
    """The unit in which all of a duration is counted: h, m or s; empty for a time of the day."""
    has_seconds: bool
    has_fractions: bool


def shown_moment(number: str, form: DateForm, is_1904: bool) -> str | None:
    """As ISO; None where it is no moment."""
    try:
        serial = float(number)
    except ValueError:
        return None
    if not -_SERIAL_MAX < serial < _SERIAL_MAX:
        return None
    milliseconds = round(serial * _DAY_MILLISECONDS)
    if not form.has_fractions:
        milliseconds = (milliseconds + 500) // 1000 * 1000
    if form.elapsed:
        return _duration(milliseconds, form)
    if milliseconds < 0:
        return None
    days, rest = divmod(milliseconds, _DAY_MILLISECONDS)
    if not form.has_day:
        return _time(rest, form)
    day = _day(days, is_1904)
    if day is None:
        return None
    return f"{day} {_time(rest, form)}" if form.has_time else day


@lru_cache(_DAYS_CACHED_MAX)
def _day(days: int, is_1904: bool) -> str | None:
    if is_1904:
        ordinal = _DAY_0_OF_1904 + days
    elif days == _LEAP_DAY:
        return "1900-02-29"
    else:
        ordinal = _DAY_0_OF_1900 + days + (1 if days < _LEAP_DAY else 0)
    return date.fromordinal(ordinal).isoformat() if ordinal <= _LAST_DAY else None


def _time(milliseconds: int, form: DateForm) -> str:
    seconds, fraction = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours:02}:{minutes:02}"
    if form.has_seconds or seconds:
        text += f":{seconds:02}"
    return f"{text}.{fraction:03}".rstrip("0").rstrip(".") if fraction else text


def _duration(milliseconds: int, form: DateForm) -> str:
    sign, milliseconds = ("-", -milliseconds) if milliseconds < 0 else ("", milliseconds)
    seconds, fraction = divmod(milliseconds, 1000)
    end = f".{fraction:03}".rstrip("0") if fraction else ""
    if form.elapsed == "s":
        return f"{sign}{seconds}{end}"
    minutes, seconds = divmod(seconds, 60)
    if form.elapsed == "m":
        return f"{sign}{minutes}:{seconds:02}{end}"
    hours, minutes = divmod(minutes, 60)
    shown = f"{sign}{hours}:{minutes:02}"
    return f"{shown}:{seconds:02}{end}" if form.has_seconds or seconds else shown
