"""Conditions: one expression that answers yes or no."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

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


class Condition:
    """A checked expression that answers yes or no."""

    __slots__ = ("_expressions", "source")

    def __init__(self, source: str, expressions: Expressions) -> None:
        self.source = source
        self._expressions = expressions

    def __repr__(self) -> str:
        return f"Condition({self.source!r})"

    @property
    def reads(self) -> Reads:
        return self._expressions.reads

    @property
    def names(self) -> frozenset[str]:
        """The variables that it reads."""
        return self.reads.names

    def evaluate(self, variables: Mapping[str, object], budget: Budget | None = None) -> bool:
        """The answer for these variables, or ConditionFailed: an undefined name is never silently false.

        Only what the expression reaches is looked at, so a large result costs nothing to a condition on
        `status_code`. A `budget` is shared with others.
        """
        evaluation = self._expressions.evaluation(variables, budget=budget)
        try:
            [value] = self._expressions.evaluate(evaluation)
            return truth(plain(value))
        except Exception as error:
            # Whatever goes wrong in an author's expression is for the author to read: no worker stops for it.
            raise ConditionFailed(
                f"the condition `{shown(self.source)}` has no answer: {reason_of(error)}"
            ) from error
        finally:
            if budget is not None:
                budget.left = evaluation.budget_left


@lru_cache(maxsize=1024)
def compile_condition(source: str) -> Condition:
    """Check an expression, written with or without `{{ }}`, and make it ready to evaluate."""
    if len(source) > EXPRESSION_CHARS_MAX:
        raise invalid(
            f"the condition is {len(source)} characters long",
            allowed=f"at most {EXPRESSION_CHARS_MAX} characters; compute longer logic in a step",
        )
    return Condition(source, compile_expressions([_without_braces(source)], of_condition=True))


def _without_braces(source: str) -> tuple[str, int]:
    """The expression itself, and the line of the source that it begins at."""
    match = _BRACES.fullmatch(source)
    if match is None:
        return source, 1
    return match["inner"], 1 + source.count("\n", 0, match.start("inner"))
