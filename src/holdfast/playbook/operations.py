"""All that an expression can do: its operators, its filters and its tests.

They replace Jinja2's own. Each sees plain data only, refuses what it cannot take in words for the author,
and pays the evaluation's budget for what it reads and makes.
"""

import operator
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias

from jinja2 import Undefined, pass_context

from holdfast.playbook.evaluation import STEP_PRICE, Evaluation
from holdfast.playbook.plain_data import NUMBER_BITS_MAX, NUMBERS, TEXTS, Sequence, is_bounded, kind_of, plain

REPEAT_MAX: Final = 10_000
ROUND_DIGITS_MAX: Final = 30

P = ParamSpec("P")
Function: TypeAlias = Callable[..., object]


def _over_plain_data(
    function: Callable[Concatenate[Evaluation, P], object],
) -> Callable[Concatenate[Evaluation, P], object]:
    """Let a filter, test or operation see plain data only."""

    @pass_context
    @wraps(function)
    def guarded(evaluation: Evaluation, /, *args: P.args, **kwargs: P.kwargs) -> object:
        for value in (*args, *kwargs.values()):
            plain(value)
        return function(evaluation, *args, **kwargs)

    return guarded


def _bounded(value: object) -> float:
    """The number itself, provided that it is one and not a huge one."""
    if not isinstance(value, int | float):
        raise TypeError(f"a number is needed, and this is {kind_of(plain(value))}")
    if isinstance(value, int) and not is_bounded(value):
        raise OverflowError(f"numbers are limited to {NUMBER_BITS_MAX} bits")
    return value


def _sequence(value: object) -> Sequence:
    if not isinstance(value, list | tuple):
        raise TypeError(f"a list is needed, and this is {kind_of(value)}")
    return value


# --- Operators ----------------------------------------------------------------------------------------------


def _calculate(symbol: str, left: float, right: float) -> float:
    left, right = _bounded(left), _bounded(right)
    # The result of a power is judged before it is made: its operands say how long it will be.
    if symbol == "**" and isinstance(left, int) and (left.bit_length() - 1) * right >= NUMBER_BITS_MAX:
        raise OverflowError(f"numbers are limited to {NUMBER_BITS_MAX} bits")
    return _bounded(ARITHMETIC[symbol](left, right))


def _repeat(evaluation: Evaluation, value: str | Sequence, times: int) -> object:
    if len(value) * times > REPEAT_MAX:
        raise OverflowError(f"repeating is limited to {REPEAT_MAX} characters or items")
    repeated = str(value) * times if isinstance(value, str) else value * times
    evaluation.pay_for_new(repeated)
    return repeated


def operate(evaluation: Evaluation, symbol: str, left: object, right: object) -> object:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return _calculate(symbol, left, right)
    if symbol == "%" and isinstance(left, str):
        raise TypeError("formatting with `%` is not allowed; join text with `~`")
    if symbol == "*" and isinstance(left, str | list | tuple) and isinstance(right, int):
        return _repeat(evaluation, left, right)
    if symbol == "*" and isinstance(left, int) and isinstance(right, str | list | tuple):
        return _repeat(evaluation, right, left)
    if symbol == "+" and isinstance(left, str) and isinstance(right, str):
        return evaluation.join("", [left, right])
    if symbol == "+" and isinstance(left, list | tuple) and type(left) is type(right):
        evaluation.pay_for_new(left)
        evaluation.pay_for_new(_sequence(right))
        return ARITHMETIC[symbol](left, right)
    raise TypeError(f"`{symbol}` cannot take {kind_of(left)} and {kind_of(right)}")


ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}

_COMPARISONS: Final[Mapping[str, tuple[str, Callable[[Any, Any], bool]]]] = {
    "eq": ("==", operator.eq),
    "ne": ("!=", operator.ne),
    "gt": (">", operator.gt),
    "gteq": (">=", operator.ge),
    "lt": ("<", operator.lt),
    "lteq": ("<=", operator.le),
    "in": ("in", lambda left, right: left in right),
    "notin": ("not in", lambda left, right: left not in right),
}


@_over_plain_data
def _compare(evaluation: Evaluation, first: object, *chain: object) -> bool:
    """`a < b <= c`, as operator and operand in turn."""
    left = first
    for name, right in zip(chain[::2], chain[1::2], strict=True):
        symbol, holds = _COMPARISONS[str(name)]
        if name in ("in", "notin"):
            # A key is found without reading the mapping.
            evaluation.pay_to_read(left if isinstance(right, dict) else right)
        elif kind_of(left) == kind_of(right):
            evaluation.pay_to_read(left)
            evaluation.pay_to_read(right)
        try:
            if not holds(left, right):
                return False
        except TypeError:
            raise TypeError(f"`{symbol}` cannot compare {kind_of(left)} with {kind_of(right)}") from None
        left = right
    return True


@_over_plain_data
def _concat(evaluation: Evaluation, *values: object) -> str:
    return evaluation.join("", [evaluation.text(value) for value in values])


@_over_plain_data
def _slice(evaluation: Evaluation, value: object, start: Any, stop: Any, step: Any) -> object:
    if not isinstance(value, str | list | tuple):
        raise TypeError(f"only text and lists have slices, and this is {kind_of(value)}")
    # Never longer than the whole, so the whole is what is paid.
    evaluation.pay_for_new(value)
    return value[start:stop:step]


@_over_plain_data
def _literal(evaluation: Evaluation, value: object) -> object:
    """A list, tuple or mapping written in the expression: an undefined item is found here, not overlooked."""
    for item in value.values() if isinstance(value, dict) else _sequence(value):
        plain(item)
    return value


# The guard writes these into an expression as filters; the underscore keeps authors from naming them.
OPERATIONS: Final[Mapping[str, Function]] = {
    "_compare": _compare,
    "_concat": _concat,
    "_literal": _literal,
    "_slice": _slice,
}

# --- Filters ------------------------------------------------------------------------------------------------


@pass_context
def _default(
    evaluation: Evaluation, value: object, default_value: object = "", boolean: bool = False
) -> object:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


@_over_plain_data
def _length(evaluation: Evaluation, value: object) -> int:
    if not isinstance(value, str | list | tuple | dict):
        raise TypeError(f"{kind_of(value)} has no length")
    return len(value)


def _cased(change: Callable[[str], str]) -> Function:
    @_over_plain_data
    def changed(evaluation: Evaluation, value: object) -> str:
        text = evaluation.text(value)
        evaluation.pay_for_new(text)
        return change(text)

    return changed


@_over_plain_data
def _string(evaluation: Evaluation, value: object) -> str:
    return evaluation.text(value)


def _parsed(value: object) -> float | None:
    """The number that is meant, if any."""
    if isinstance(value, str):
        if len(value) > NUMBER_BITS_MAX:
            raise OverflowError("the text is too long for a number")
        for kind in (int, float):
            try:
                return _bounded(kind(value))
            except ValueError:
                continue
    return _bounded(value) if isinstance(value, int | float) else None


@_over_plain_data
def _int(evaluation: Evaluation, value: object, default: object = 0) -> object:
    number = _parsed(value)
    return default if number is None or not is_bounded(number) else int(number)


@_over_plain_data
def _float(evaluation: Evaluation, value: object, default: object = 0.0) -> object:
    number = _parsed(value)
    return default if number is None else float(number)


@_over_plain_data
def _abs(evaluation: Evaluation, value: object) -> float:
    return abs(_bounded(value))


@_over_plain_data
def _round(evaluation: Evaluation, value: object, precision: object = 0) -> float:
    if not isinstance(precision, int) or abs(precision) > ROUND_DIGITS_MAX:
        raise TypeError(f"rounding takes up to {ROUND_DIGITS_MAX} digits")
    return round(_bounded(value), precision)


def _end(index: int) -> Function:
    @_over_plain_data
    def item(evaluation: Evaluation, value: object) -> object:
        if not isinstance(value, str | list | tuple):
            raise TypeError(f"text or a list is needed, and this is {kind_of(value)}")
        if not value:
            return evaluation.environment.undefined("there is no first or last item: it is empty")
        return plain(value[index])

    return item


@_over_plain_data
def _join(evaluation: Evaluation, value: object, d: object = "") -> str:
    texts = []
    for item in _sequence(value):
        evaluation.pay(STEP_PRICE)
        texts.append(evaluation.text(item))
    return evaluation.join(evaluation.text(d), texts)


def _alike(evaluation: Evaluation, value: object) -> tuple[Sequence, set[type]]:
    """A list that can be summed up in one value, read and paid for, and the types of its items."""
    items = _sequence(value)
    evaluation.pay_to_read(items)
    kinds = set(map(type, items))
    if not (kinds <= NUMBERS or kinds <= TEXTS):
        raise TypeError("the items of the list are neither all numbers nor all text")
    return items, kinds


def _extreme(choose: Callable[[Any], object]) -> Function:
    @_over_plain_data
    def chosen(evaluation: Evaluation, value: object) -> object:
        items, _ = _alike(evaluation, value)
        return choose(items) if items else evaluation.environment.undefined("the list is empty")

    return chosen


@_over_plain_data
def _sum(evaluation: Evaluation, value: object) -> float:
    items: Any
    items, kinds = _alike(evaluation, value)
    if not kinds <= NUMBERS:
        raise TypeError("only numbers can be added up, and these are text")
    return _bounded(sum(items))


FILTERS: Final[Mapping[str, Function]] = {
    "abs": _abs,
    "count": _length,
    "default": _default,
    "first": _end(0),
    "float": _float,
    "int": _int,
    "join": _join,
    "last": _end(-1),
    "length": _length,
    "lower": _cased(str.lower),
    "max": _extreme(max),
    "min": _extreme(min),
    "round": _round,
    "string": _string,
    "sum": _sum,
    "trim": _cased(str.strip),
    "upper": _cased(str.upper),
}

# --- Tests --------------------------------------------------------------------------------------------------


def _is(*kinds: type, but_not: type = Undefined) -> Function:
    @_over_plain_data
    def matches(evaluation: Evaluation, value: object) -> bool:
        return isinstance(value, kinds) and not isinstance(value, but_not)

    return matches


def _same(constant: object) -> Function:
    @_over_plain_data
    def matches(evaluation: Evaluation, value: object) -> bool:
        return value is constant

    return matches


@pass_context
def _defined(evaluation: Evaluation, value: object) -> bool:
    return not isinstance(value, Undefined)


@pass_context
def _undefined(evaluation: Evaluation, value: object) -> bool:
    return isinstance(value, Undefined)


@_over_plain_data
def _divisible(evaluation: Evaluation, value: object, num: object) -> bool:
    return _bounded(value) % _bounded(num) == 0


TESTS: Final[Mapping[str, Function]] = {
    "boolean": _is(bool),
    "defined": _defined,
    "divisibleby": _divisible,
    "false": _same(False),
    "float": _is(float),
    "integer": _is(int, but_not=bool),
    "mapping": _is(dict),
    "none": _same(None),
    "number": _is(int, float, but_not=bool),
    "sequence": _is(list, tuple, str),
    "string": _is(str),
    "true": _same(True),
    "undefined": _undefined,
}
