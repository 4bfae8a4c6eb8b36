"""The tests of expressions: `x is defined`, `x is divisibleby 3`; `select` and its kind name them too."""

from collections.abc import Mapping
from typing import Final

from jinja2 import Undefined, pass_context

from holdfast.playbook.evaluation import Evaluation
from holdfast.playbook.operations import Function, bounded, compared, over_plain_data


def _is(*kinds: type, but_not: type = Undefined) -> Function:
    @over_plain_data
    def matches(evaluation: Evaluation, value: object) -> bool:
        return isinstance(value, kinds) and not isinstance(value, but_not)

    return matches


def _same(constant: object) -> Function:
    @over_plain_data
    def matches(evaluation: Evaluation, value: object) -> bool:
        return value is constant

    return matches


@pass_context
def _defined(evaluation: Evaluation, value: object) -> bool:
    return not isinstance(value, Undefined)


@pass_context
def _undefined(evaluation: Evaluation, value: object) -> bool:
    return isinstance(value, Undefined)


@over_plain_data
def _divisible(evaluation: Evaluation, value: object, num: object) -> bool:
    return bounded(value) % bounded(num) == 0


def _compares(name: str) -> Function:
    @over_plain_data
    def holds(evaluation: Evaluation, value: object, other: object) -> bool:
        return compared(evaluation, value, name, other)

    return holds


TESTS: Final[Mapping[str, Function]] = {
    "boolean": _is(bool),
    "defined": _defined,
    "divisibleby": _divisible,
    "eq": _compares("eq"),
    "equalto": _compares("eq"),
    "false": _same(False),
    "float": _is(float),
    "ge": _compares("gteq"),
    "greaterthan": _compares("gt"),
    "gt": _compares("gt"),
    "in": _compares("in"),
    "integer": _is(int, but_not=bool),
    "le": _compares("lteq"),
    "lessthan": _compares("lt"),
    "lt": _compares("lt"),
    "mapping": _is(dict),
    "ne": _compares("ne"),
    "none": _same(None),
    "number": _is(int, float, but_not=bool),
    "sequence": _is(list, tuple, str),
    "string": _is(str),
    "true": _same(True),
    "undefined": _undefined,
}
