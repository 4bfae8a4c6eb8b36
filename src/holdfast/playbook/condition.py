"""Conditions: one expression that answers yes or no, or several of them as one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from holdfast.core.errors import HoldfastError
from holdfast.playbook.expression import (
    EXPRESSION_CHARS_MAX,
    Budget,
    Expressions,
    compile_expressions,
    reason_of,
    shown,
)
from holdfast.playbook.guard import Reads, invalid
from holdfast.playbook.plain_data import plain, truth

_BRACES: Final = re.compile(r"\s*\{\{[-+]?(?P<inner>.*?)[-+]?\}\}\s*", re.DOTALL)


class ConditionFailed(HoldfastError):
    """A condition has no answer for these variables: that is recorded, and it counts as not given."""

    code = "condition_failed"


@dataclass(frozen=True, slots=True)
class Combined:
    """Conditions from several places: none of the first hold, and all of the others do.

    Each is asked for itself. Joined to one source by `not` and `and` they would be taken by Python's truth,
    for which the text "false" is true.
    """

    none: tuple[str, ...] = ()
    all: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For people."""
        return " and ".join([*(f"not ({text})" for text in self.none), *(f"({text})" for text in self.all)])

    @property
    def chars(self) -> int:
        return sum(map(len, self.none)) + sum(map(len, self.all))


class _Part(NamedTuple):
    source: str
    expressions: Expressions
    wanted: bool


class Condition:
    """Checked expressions that answer yes or no: yes where each of them answers what is wanted of it."""

    __slots__ = ("parts", "reads", "source")

    def __init__(self, source: str | Combined, parts: tuple[_Part, ...]) -> None:
        self.source = source
        self.parts = parts
        self.reads = Reads()
        for part in parts:
            self.reads |= part.expressions.reads

    def __repr__(self) -> str:
        return f"Condition({self.source!r})"

    @property
    def names(self) -> frozenset[str]:
        """The variables that it reads."""
        return self.reads.names

    def evaluate(self, variables: Mapping[str, object], budget: Budget | None = None) -> bool:
        """The answer for these variables, or ConditionFailed: an undefined name is never silently false.

        Only what the expression reaches is looked at, so a large result costs nothing to a condition on
        `status_code`. A `budget` is shared with others.
        """
        budget = budget or Budget()
        return all(_holds(part, variables, budget) is part.wanted for part in self.parts)


def _holds(part: _Part, variables: Mapping[str, object], budget: Budget) -> bool:
    evaluation = part.expressions.evaluation(variables, budget=budget)
    try:
        [value] = part.expressions.evaluate(evaluation)
        return truth(plain(value))
    except Exception as error:
        # Whatever goes wrong in an author's expression is for the author to read: no worker stops for it.
        raise ConditionFailed(
            f"the condition `{shown(part.source)}` has no answer: {reason_of(error)}"
        ) from error
    finally:
        budget.left = evaluation.budget_left


@lru_cache(maxsize=1024)
def compile_condition(source: str | Combined) -> Condition:
    """Check an expression, written with or without `{{ }}`, and make it ready to evaluate."""
    if isinstance(source, Combined):
        parts = [part._replace(wanted=False) for text in source.none for part in _parts(text)]
        return Condition(source, (*parts, *(part for text in source.all for part in _parts(text))))
    if len(source) > EXPRESSION_CHARS_MAX:
        raise invalid(
            f"the condition is {len(source)} characters long",
            allowed=f"at most {EXPRESSION_CHARS_MAX} characters; compute longer logic in a step",
        )
    expressions = compile_expressions([_without_braces(source)], of_condition=True)
    return Condition(source, (_Part(source, expressions, True),))


def _parts(source: str) -> tuple[_Part, ...]:
    return compile_condition(source).parts


def _without_braces(source: str) -> tuple[str, int]:
    """The expression itself, and the line of the source that it begins at."""
    match = _BRACES.fullmatch(source)
    if match is None:
        return source, 1
    return match["inner"], 1 + source.count("\n", 0, match.start("inner"))
