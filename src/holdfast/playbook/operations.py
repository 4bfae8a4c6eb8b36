"""What an expression can do by its operators, and what all operations share.

They replace Jinja2's own, as the `filters` and the `value_tests` do. Each sees plain data only, refuses what
it cannot take in words for the author, and pays the evaluation's budget for what it reads and makes.
"""

import operator
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias

from jinja2 import pass_context

from holdfast.core.errors import HoldfastError
from holdfast.playbook.evaluation import Evaluation
from holdfast.playbook.plain_data import (
    NUMBER_BITS_MAX,
    ErrorValue,
    Sequence,
    is_bounded,
    kind_of,
    plain,
)

REPEAT_MAX: Final = 10_000

P = ParamSpec("P")
Function: TypeAlias = Callable[..., object]


class SecretUnavailable(HoldfastError):
    """A secret has no value here; the words never hold one."""

    code = "secret_unavailable"


def over_plain_data(
    function: Callable[Concatenate[Evaluation, P], object],
) -> Callable[Concatenate[Evaluation, P], object]:
    """Let a filter, test or operation see plain data only."""

    @pass_context
    @wraps(function)
    def guarded(evaluation: Evaluation, /, *args: P.args, **kwargs: P.kwargs) -> object:
        plain_args: Any = map(plain, args)
        plain_kwargs: Any = {name: plain(value) for name, value in kwargs.items()}
        return function(evaluation, *plain_args, **plain_kwargs)

    return guarded


def bounded(value: object) -> float:
    """The number itself, provided that it is one and not a huge one."""
    if not isinstance(value, int | float):
        raise TypeError(f"a number is needed, and this is {kind_of(plain(value))}")
    if isinstance(value, int) and not is_bounded(value):
        raise OverflowError(f"numbers are limited to {NUMBER_BITS_MAX} bits")
    return value


def finite(value: object) -> float:
    """The result of a calculation: JSON knows no infinity."""
    number = bounded(value)
    if not is_bounded(number):
        raise OverflowError("the result is too large for a number")
    return number


def sequence(value: object) -> Sequence:
    if not isinstance(value, list | tuple):
        raise TypeError(f"a list is needed, and this is {kind_of(value)}")
    return value


# --- Operators ----------------------------------------------------------------------------------------------


def _calculate(symbol: str, left: float, right: float) -> float:
    left, right = bounded(left), bounded(right)
    # The result of a power is judged before it is made: its operands say how long it will be.
    if symbol == "**" and isinstance(left, int) and (left.bit_length() - 1) * right >= NUMBER_BITS_MAX:
        raise OverflowError(f"numbers are limited to {NUMBER_BITS_MAX} bits")
    return finite(ARITHMETIC[symbol](left, right))


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
        evaluation.pay_for_new(sequence(right))
        return ARITHMETIC[symbol](left, right)
    raise TypeError(f"`{symbol}` cannot take {kind_of(left)} and {kind_of(right)}")


def sign(symbol: str, value: object) -> object:
    """`-x` and `+x`."""
    if not isinstance(value, int | float):
        raise TypeError(f"`{symbol}` as a sign cannot take {kind_of(value)}")
    return -value if symbol == "-" else +value


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


def compared(evaluation: Evaluation, left: object, name: str, right: object) -> bool:
    symbol, holds = _COMPARISONS[name]
    if name in ("in", "notin"):
        if isinstance(right, str):
            evaluation.pay_to_search(right)
        # A key is found without reading the mapping.
        evaluation.pay_to_read(left if isinstance(right, dict) else right)
    elif kind_of(left) == kind_of(right):
        evaluation.pay_to_read(left)
        evaluation.pay_to_read(right)
    try:
        return holds(left, right)
    except TypeError:
        raise TypeError(f"`{symbol}` cannot compare {kind_of(left)} with {kind_of(right)}") from None


@over_plain_data
def _compare(evaluation: Evaluation, first: object, *chain: object) -> bool:
    """`a < b <= c`, as operator and operand in turn."""
    left = first
    for name, right in zip(chain[::2], chain[1::2], strict=True):
        if not compared(evaluation, left, str(name), right):
            return False
        left = right
    return True


@over_plain_data
def _concat(evaluation: Evaluation, *values: object) -> str:
    return evaluation.join("", [evaluation.text(value) for value in values])


@over_plain_data
def _slice(evaluation: Evaluation, value: object, start: Any, stop: Any, step: Any) -> object:
    if not isinstance(value, str | list | tuple):
        raise TypeError(f"only text and lists have slices, and this is {kind_of(value)}")
    # Never longer than the whole, so the whole is what is paid.
    evaluation.pay_for_new(value)
    return value[start:stop:step]


@pass_context
def _literal(evaluation: Evaluation, value: object) -> object:
    """A list, tuple or mapping written in the expression: an undefined item is found here, not overlooked,
    and what is more than plain data (an output, an error) becomes plain."""
    if isinstance(value, dict):
        return {_item(key): _item(item) for key, item in value.items()}
    items = map(_item, sequence(value))
    return tuple(items) if isinstance(value, tuple) else list(items)


def _item(value: object) -> object:
    known_plain = plain(value)
    return str(known_plain) if isinstance(known_plain, ErrorValue) else known_plain


@over_plain_data
def _secret(evaluation: Evaluation, name: str) -> str:
    """`secret("NAME")`: looked up where there is something to look it up with, on a worker."""
    if evaluation.secrets is None:
        raise SecretUnavailable(f"it needs the secret {name}, and secrets are resolved on a worker")
    try:
        value: object = evaluation.secrets(name)
    except HoldfastError as error:
        raise SecretUnavailable(str(error), guidance=error.guidance) from None
    except Exception as error:
        # Its words are left out: nobody knows what they quote.
        raise SecretUnavailable(f"the secret {name} cannot be read ({type(error).__name__})") from None
    if type(value) is not str:
        raise SecretUnavailable(f"the secret {name} is not text")
    evaluation.secrets_read += (value,)
    evaluation.pay_for_new(value)
    return value


# The guard writes these into an expression as filters; the underscore keeps authors from naming them.
OPERATIONS: Final[Mapping[str, Function]] = {
    "_compare": _compare,
    "_concat": _concat,
    "_literal": _literal,
    "_secret": _secret,
    "_slice": _slice,
}
