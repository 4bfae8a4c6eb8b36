"""Numbers of a sheet as people see them: 0.25 with the format `0.0%` is 25.0%, 45000 with `d.m.yy` a day.

Dates and times are written as ISO has them, whatever their format's order is. What a format says beyond
decimals, thousands, percent, currency, exponents and text around them (fractions, conditions, digits apart)
is left out: the number is then shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from holdfast.pipelines.documents.reading.serial_dates import DateForm, shown_moment


class Shown(NamedTuple):
    """Makes texts of values as they are in the file; `many` at once makes the same, and is quicker."""

    one: Callable[[str], str]
    many: Callable[[Sequence[str]], Sequence[str]]


def one_by_one(one: Callable[[str], str]) -> Shown:
    return Shown(one, lambda values: list(map(one, values)))


BUILT_IN: dict[int, str] = {
    **{1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 11: "0.00E+00"},
    **{5: "$#,##0", 6: "$#,##0", 7: "$#,##0.00", 8: "$#,##0.00"},
    **{14: "yyyy-mm-dd", 15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy"},
    **{18: "h:mm AM/PM", 19: "h:mm:ss AM/PM", 20: "h:mm", 21: "h:mm:ss", 22: "m/d/yy h:mm"},
    **{37: "#,##0;(#,##0)", 38: "#,##0;(#,##0)", 39: "#,##0.00;(#,##0.00)", 40: "#,##0.00;(#,##0.00)"},
    **{41: "#,##0;-#,##0", 42: "$#,##0;-$#,##0", 43: "#,##0.00;-#,##0.00", 44: "$#,##0.00;-$#,##0.00"},
    **{45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss.0", 48: "##0.0E+0"},
    **dict.fromkeys((*range(27, 32), 36, *range(50, 55), 57, 58), "yyyy-mm-dd"),
    **dict.fromkeys((32, 33, 34, 35, 55, 56), "h:mm:ss"),
}
_FORMAT_CHARS_MAX = 500
PLAIN_CHARS_MAX = 16
"""A number with fewer characters is one that people wrote; a longer one was computed."""
_NUDGE = 1 + 1e-14
"""2.675 is a little less in binary, and yet it is rounded to 2.68."""
_CACHED_MAX = 8192

_TOKEN = re.compile(
    r"""
    "([^"]*)"?              # 1: text in quotes
    | \\(.)                 # 2: a character as it is
    | _. | \*.              # room, and filling
    | \[\$([^\]-]*)[^\]]*\] # 3: a currency, with its language
    | \[([^\]]*)\]          # 4: a colour, a condition, elapsed time
    | (E[+-])               # 5
    | ([0\#?.,%])           # 6: the number itself
    | (/)                   # 7: a fraction
    | (.)                   # 8
    """,
    re.VERBOSE | re.DOTALL,
)
_CONDITION = re.compile(r"[<>=]")
_ELAPSED = re.compile(r"h+|m+|s+", re.IGNORECASE)


class _Section(NamedTuple):
    before: str
    after: str
    has_number: bool
    percents: int
    thousands: int
    """Commas behind the last digit: each divides by a thousand."""
    is_grouped: bool
    digits_min: int
    decimals_min: int
    decimals_max: int
    exponent: bool


def shown_by(code: str, is_1904: bool) -> Shown | None:
    """None where a number is shown as it is."""
    if code in ("", "@") or code.lower() == "general" or len(code) > _FORMAT_CHARS_MAX:
        return None
    if (form := _date_form(code)) is not None:
        return one_by_one(lru_cache(_CACHED_MAX)(partial(_moment, form=form, is_1904=is_1904)))
    sections: list[_Section] = []
    for part in _sections(code)[:3]:
        section = _section(part)
        if section is None:
            return None
        sections.append(section)
    if len(sections) == 1 and (usual := _usual(sections[0])) is not None:
        return usual
    return one_by_one(partial(_formatted, sections=tuple(sections)))


def _usual(section: _Section) -> Shown | None:
    """Most formats are like 0.00 and #,##0.0%; they are shown quicker."""
    if section.before or section.exponent or not section.has_number or section.digits_min > 1:
        return None
    if section.decimals_min != section.decimals_max:
        return None
    factor = _NUDGE * 100.0**section.percents / 1000.0**section.thousands
    form = f"{',' if section.is_grouped else ''}.{section.decimals_max}f"
    after = section.after

    def usual(number: str) -> str:
        try:
            text = format(float(number) * factor, form)
        except ValueError:
            return number
        if text[0] == "-" and not text.strip("-0.,"):
            text = text[1:]
        return text + after

    def all_usual(numbers: Sequence[str]) -> list[str]:
        try:
            texts = [format(value, form) for value in map(factor.__mul__, map(float, numbers))]
        except ValueError:
            return list(map(usual, numbers))
        if "-0" in "".join(texts):
            return list(map(usual, numbers))
        return [text + after for text in texts] if after else texts

    return Shown(usual, all_usual)


def general(number: str) -> str:
    """Without what binary fractions add: 0.30000000000000004 is 0.3."""
    if len(number) < PLAIN_CHARS_MAX:
        if number.isdigit():
            return number
        if "E" not in number and "e" not in number:
            return number.rstrip("0").rstrip(".") if number[-1:] == "0" and "." in number else number
    try:
        value = float(number)
    except ValueError:
        return number
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.11g}".replace("e", "E")


def _all_general(numbers: Sequence[str]) -> Sequence[str]:
    joined = "".join(numbers)
    if max(map(len, numbers), default=0) < PLAIN_CHARS_MAX:
        if joined.isdigit():
            return numbers
        if "E" not in joined and "e" not in joined:
            return [general(number) if number[-1:] == "0" else number for number in numbers]
    return list(map(general, numbers))


GENERAL = Shown(general, _all_general)


def _moment(number: str, *, form: DateForm, is_1904: bool) -> str:
    return shown_moment(number, form, is_1904) or general(number)


# Parsing


def _tokens(code: str) -> list[tuple[str, ...]]:
    return _TOKEN.findall(code)


def _sections(code: str) -> list[str]:
    """Parted by semicolons that are not in quotes."""
    sections = [""]
    for found in _TOKEN.finditer(code):
        if found[8] == ";":
            sections.append("")
        else:
            sections[-1] += found[0]
    return sections


def _date_form(code: str) -> DateForm | None:
    letters = ""
    elapsed = ""
    for _, _, _, bracket, exponent, number, _, other in _tokens(_sections(code)[0]):
        if bracket and _ELAPSED.fullmatch(bracket):
            elapsed = elapsed or bracket[0].lower()
        elif exponent or number in ("0", "#", "?"):
            letters += number[:1] if letters.endswith((".", "0")) else "#"
        elif number == ".":
            letters += "."
        else:
            letters += other.lower()
    letters = letters.replace("am/pm", "").replace("general", "")
    has_day = "y" in letters or "d" in letters or "mmm" in letters
    has_time = bool(elapsed) or "h" in letters or "s" in letters
    if not has_time and "m" in letters:
        has_day = True
    if not (has_day or has_time) or letters.startswith("#"):
        return None
    return DateForm(has_day, has_time, elapsed, "s" in letters or elapsed == "s", ".0" in letters)


def _section(code: str) -> _Section | None:
    before, after, core = "", "", ""
    exponent = False
    percents = 0
    for quoted, escaped, currency, bracket, exponential, number, fraction, other in _tokens(code):
        if bracket and _CONDITION.search(bracket):
            return None
        literal = quoted or escaped or currency
        if fraction and core:
            return None
        literal = literal or fraction
        if exponential:
            exponent = True
        elif number == "%":
            percents += 1
            literal = "%"
        elif number and not exponent:
            if after.strip(" %"):
                return None  # text between digits
            core += number
            continue
        elif not number and other:
            if other.lower() in "gen" and core == "" and "general" in code.lower():
                return None
            literal = literal or other
        if core:
            after += literal
        else:
            before += literal
    whole, _, decimals = core.partition(".")
    digits = whole.replace(",", "")
    stripped = (core if "." not in core else decimals).rstrip(",")
    trailing = len(core if "." not in core else decimals) - len(stripped)
    if not digits and not decimals and core.strip(","):
        return None
    return _Section(
        before,
        after,
        bool(digits or decimals),
        percents,
        trailing,
        "," in whole.rstrip(","),
        max(digits.count("0"), 1),
        decimals.count("0"),
        sum(map(decimals.count, "0#?")),
        exponent,
    )


# Showing


def _formatted(number: str, *, sections: tuple[_Section, ...]) -> str:
    try:
        value = float(number)
    except ValueError:
        return number
    if value != value or value in (float("inf"), float("-inf")):
        return number
    section = sections[0]
    sign = "-" if value < 0 else ""
    if value < 0 and len(sections) > 1:
        section, sign = sections[1], ""
    elif value == 0 and len(sections) > 2:
        section = sections[2]
    if not section.has_number:
        return f"{section.before}{section.after}".strip()
    value = abs(value) * _NUDGE * 100**section.percents / 1000**section.thousands
    if section.exponent:
        text = f"{value:.{section.decimals_max}E}"
    else:
        text = f"{value:{',' if section.is_grouped else ''}.{section.decimals_max}f}"
        if section.decimals_min < section.decimals_max:
            unneeded = section.decimals_max - section.decimals_min
            kept = text[: len(text) - unneeded]
            text = (kept + text[len(text) - unneeded :].rstrip("0")).rstrip(".")
        if section.digits_min > 1:
            whole = text.partition(".")[0]
            text = "0" * (section.digits_min - len(whole)) + text
    if sign and not text.strip("0.,"):
        sign = ""
    return f"{sign}{section.before}{text}{section.after}".strip()
