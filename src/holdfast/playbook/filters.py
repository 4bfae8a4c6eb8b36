"""The filters of expressions that take one value; those that take a list are in `list_filters`."""

from collections.abc import Callable, Mapping
from math import inf, log10
from typing import Final
from urllib.parse import quote

from jinja2 import Undefined, pass_context

from holdfast.playbook.evaluation import (
    CALL_PRICE,
    CHARS_PARSED_PER_UNIT,
    STEP_PRICE,
    WIDE_CHAR_PRICE,
    Evaluation,
)
from holdfast.playbook.list_filters import LIST_FILTERS
from holdfast.playbook.operations import Function, bounded, over_plain_data
from holdfast.playbook.plain_data import NUMBER_BITS_MAX, is_bounded, kind_of, plain

ROUND_DIGITS_MAX: Final = 30
ROUND_DIGIT_PRICE: Final = 1
URL_CHAR_PRICE: Final = 3


@pass_context
def _default(
    evaluation: Evaluation, value: object, default_value: object = "", boolean: bool = False
) -> object:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


@over_plain_data
def _length(evaluation: Evaluation, value: object) -> int:
    if not isinstance(value, str | list | tuple | dict):
        raise TypeError(f"{kind_of(value)} has no length")
    return len(value)


def _cased(change: Callable[[str], str]) -> Function:
    @over_plain_data
    def changed(evaluation: Evaluation, value: object) -> str:
        text = evaluation.text(value)
        evaluation.pay_for_new(text)
        return change(text)

    return changed


@over_plain_data
def _tojson(evaluation: Evaluation, value: object) -> str:
    return evaluation.json(value)


@over_plain_data
def _replace(evaluation: Evaluation, value: object, old: object, new: object) -> str:
    text, old_text, new_text = (evaluation.text(part) for part in (value, old, new))
    evaluation.pay_to_search(text)
    # Judged before it is made; what an empty `old` is replaced in is every place between two characters.
    evaluation.pay_for_new(text)
    price = WIDE_CHAR_PRICE if not new_text.isascii() else 1
    evaluation.pay(text.count(old_text) * len(new_text) * price)
    return text.replace(old_text, new_text)


@over_plain_data
def _split(evaluation: Evaluation, value: object, separator: object = None) -> list[str]:
    """By default at any whitespace."""
    if not isinstance(value, str) or not isinstance(separator, str | None):
        raise TypeError("only text can be split, at a text")
    evaluation.pay_for_new(value)
    evaluation.pay_to_search(value)
    parts_max = len(value) // 2 + 1 if separator is None else value.count(separator) + 1
    evaluation.pay(parts_max * STEP_PRICE)
    return str(value).split(separator)


@over_plain_data
def _urlencode(evaluation: Evaluation, value: object) -> str:
    """Text for one part of a path (`/` stays), a mapping for a query."""
    if not isinstance(value, dict):
        return _quoted_for_url(evaluation, evaluation.text(value), "/")
    pairs = []
    for key, item in value.items():
        quoted = (_quoted_for_url(evaluation, evaluation.text(plain(part)), "") for part in (key, item))
        pairs.append("=".join(quoted))
    return evaluation.join("&", pairs)


def _quoted_for_url(evaluation: Evaluation, text: str, safe: str) -> str:
    # Up to 4 bytes a character, and 3 characters and a place in a list for each byte.
    evaluation.pay(CALL_PRICE)
    evaluation.pay(len(text) * (URL_CHAR_PRICE if text.isascii() else 4 * URL_CHAR_PRICE))
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError:
        raise ValueError("the text holds half of a character, which no address can hold") from None


@over_plain_data
def _string(evaluation: Evaluation, value: object) -> str:
    return evaluation.text(value)


def _parsed(evaluation: Evaluation, value: object) -> float | None:
    """The number that is meant, if any."""
    if isinstance(value, str):
        evaluation.pay(len(value) // CHARS_PARSED_PER_UNIT)
        if len(value) > NUMBER_BITS_MAX:
            raise OverflowError("the text is too long for a number")
        for kind in (int, float):
            try:
                return bounded(kind(value))
            except ValueError:
                continue
    return bounded(value) if isinstance(value, int | float) else None


@over_plain_data
def _int(evaluation: Evaluation, value: object, default: object = 0) -> object:
    number = _parsed(evaluation, value)
    return default if number is None or not is_bounded(number) else int(number)


@over_plain_data
def _float(evaluation: Evaluation, value: object, default: object = 0.0) -> object:
    number = _parsed(evaluation, value)
    return default if number is None or not is_bounded(number) else float(number)


@over_plain_data
def _abs(evaluation: Evaluation, value: object) -> float:
    return abs(bounded(value))


@over_plain_data
def _round(evaluation: Evaluation, value: object, precision: object = 0) -> float:
    if not isinstance(precision, int) or abs(precision) > ROUND_DIGITS_MAX:
        raise TypeError(f"rounding takes up to {ROUND_DIGITS_MAX} digits")
    number = bounded(value)
    # All digits before the point are found on the way, of which a large one has hundreds.
    if isinstance(number, float) and 1 < abs(number) < inf:
        evaluation.pay(ROUND_DIGIT_PRICE * int(log10(abs(number))))
    return round(number, precision)


FILTERS: Final[Mapping[str, Function]] = {
    "abs": _abs,
    "capitalize": _cased(str.capitalize),
    "count": _length,
    "d": _default,
    "default": _default,
    "float": _float,
    "int": _int,
    "length": _length,
    "lower": _cased(str.lower),
    "replace": _replace,
    "round": _round,
    "split": _split,
    "string": _string,
    "tojson": _tojson,
    "trim": _cased(str.strip),
    "upper": _cased(str.upper),
    "urlencode": _urlencode,
    **LIST_FILTERS,
}
