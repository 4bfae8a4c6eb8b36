"""The values that expressions work on: plain data, the text of an error, and the outputs of steps.

Whatever an expression reads or makes passes through `plain`: nothing with operators or attributes of its
own gets in, and an undefined value is an error with its reason, never silently false.
"""

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

from jinja2 import Undefined, UndefinedError

# About the range of a float: more than any count, size or identifier needs.
NUMBER_BITS_MAX: Final = 1_024

_FALSE_WORDS: Final = frozenset({"", "false", "0", "no", "off"})

Sequence: TypeAlias = list[object] | tuple[object, ...]


class ErrorValue(str):
    """The text of an error, which also tells its type and category to expressions."""

    __slots__ = ("category", "type")

    type: str
    category: str

    @property
    def message(self) -> str:
        return str(self)


def error_value(message: str, *, type: str, category: str) -> ErrorValue:
    """The `error` variable: text to search in, with `.type`, `.category` and `.message`."""
    value = ErrorValue(message)
    value.type = type
    value.category = category
    return value


class StepOutput:
    """What a step gave, as a variable: its plain value, except that `.data` is always there.

    A mark, not a value: `plain` takes it off, so no list, mapping or result ever holds one.
    """

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __bool__(self) -> bool:
        # `and`, `or`, `not` and `if` of an expression ask the variable itself.
        return bool(plain(self.value))


class StepOutputs(StepOutput):
    """The variable `steps`: a mapping whose values are outputs of steps."""

    __slots__ = ()

    value: dict[str, object]


def data_of(output: object) -> object:
    """Its `data` where it is a mapping that has one, else the output itself."""
    return output["data"] if isinstance(output, dict) and "data" in output else output


_KINDS: Final[Mapping[type, str]] = {
    type(None): "none",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "text",
    ErrorValue: "text",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
}
NUMBERS: Final = frozenset({bool, int, float})
TEXTS: Final = frozenset({str, ErrorValue})
ATOMS: Final = frozenset({type(None), bool, int, float, str})


def plain(value: object) -> object:
    """The value itself, provided that it is defined and is plain data.

    The types are exact: a subclass could bring operators of its own.
    """
    if isinstance(value, StepOutput):
        value = value.value
    if isinstance(value, Undefined):
        raise UndefinedError(value._undefined_message)
    if type(value) not in _KINDS:
        raise TypeError(f"only plain data can be used, and this is a {type(value).__name__}")
    return value


def kind_of(value: object) -> str:
    return _KINDS[type(value)]


def truth(value: object) -> bool:
    # Text may come from a template or an environment variable, where "false" means false.
    if isinstance(value, str):
        word = value.strip()
        return len(word) > 5 or word.lower() not in _FALSE_WORDS
    return bool(value)


def is_bounded(value: float) -> bool:
    return value.bit_length() <= NUMBER_BITS_MAX if isinstance(value, int) else math.isfinite(value)
