"""Texts with `{{ expressions }}` in them.

One expression alone, with at most whitespace around it, has its value as it is: a list, a number, a mapping.
Among other text it is written out, as text or as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from holdfast.core.errors import HoldfastError
from holdfast.playbook.evaluation import Evaluation
from holdfast.playbook.expression import (
    Budget,
    Expressions,
    Secrets,
    compile_expressions,
    reason_of,
    shown,
)
from holdfast.playbook.guard import Reads, invalid
from holdfast.playbook.plain_data import ErrorValue, plain
from holdfast.playbook.text_parts import Part, has_marks, split_text
from holdfast.playbook.unfolding import Given

TEXT_CHARS_MAX: Final = 100_000
TEXT_EXPRESSIONS_MAX: Final = 200
# All expressions of a text together: compiling takes some 0.05 s for each 2,000 characters.
TEXT_EXPRESSION_CHARS_MAX: Final = 4_000
CACHED_CHARS_MAX: Final = 4_000
# Reasons cut what they quote.
SECRET_COMPARED_CHARS: Final = 16


class TemplateFailed(HoldfastError):
    """A template has no value for these variables. `place` is where it stands in a larger value, or ""."""

    code = "template_failed"
    place: str = ""


class Setting(NamedTuple):
    """What texts that belong together are evaluated in; `given` is what they have given so far."""

    variables: Mapping[str, object]
    secrets: Secrets | None
    budget: Budget
    given: Given


class Text:
    """A checked text. `is_constant`: it holds no expression, and its value costs nothing."""

    __slots__ = ("_expressions", "_parts", "expression_chars", "is_constant", "source")

    def __init__(self, source: str, parts: list[Part], expressions: Expressions | None) -> None:
        self.source = source
        self._parts = parts
        self._expressions = expressions
        self.is_constant = expressions is None
        self.expression_chars = sum(len(part.text) for part in parts if part.is_expression)

    def __repr__(self) -> str:
        return f"Text({self.source!r})"

    @property
    def reads(self) -> Reads:
        return _NOTHING if self._expressions is None else self._expressions.reads

    @property
    def names(self) -> frozenset[str]:
        """The variables that it reads."""
        return self.reads.names

    @property
    def secrets(self) -> frozenset[str]:
        """The names of the secrets that it needs."""
        return self.reads.secrets

    def evaluate(self, variables: Mapping[str, object], secrets: Secrets | None = None) -> Any:
        """Its value for these variables, or TemplateFailed.

        `secrets` finds the value of a secret by its name; without it, a text that needs one fails. The value
        may share its lists and mappings with the variables: copy before you change.
        """
        return self.evaluate_in(Setting(variables, secrets, Budget(), Given()))

    def evaluate_in(self, setting: Setting, place: str = "") -> Any:
        """As `evaluate`, in a setting shared with others; `place` is told where it fails."""
        if self._expressions is None:
            return "".join(part.text for part in self._parts)
        evaluation = self._expressions.evaluation(setting.variables, setting.secrets, setting.budget)
        try:
            values = self._expressions.evaluate(evaluation)
            if len(self._parts) > 1:
                return self._joined(evaluation, values)
            alone = plain(values[0])
            given = setting.given
            add = given.add_handed_on if self._expressions.hands_on else given.add_made
            add(evaluation, alone)
            return str(alone) if isinstance(alone, ErrorValue) else alone
        except Exception as error:
            # Whatever goes wrong in an author's expression is for the author to read: no worker stops for it.
            # With a secret in it the trace of it ends here.
            cause = None if self.secrets else error
            raise _failed(self.source, place, error, evaluation) from cause
        finally:
            setting.budget.left = evaluation.budget_left

    @property
    def is_mixed(self) -> bool:
        """Expressions among other text."""
        return not self.is_constant and len(self._parts) > 1

    def evaluate_parts(
        self, variables: Mapping[str, object], secrets: Secrets | None = None, place: str = ""
    ) -> list[str | tuple[Any, str]]:
        """The text as it is made of: its own text, and each expression's value with how it is written. For a
        text whose language has rules for values, such as SQL."""
        if self._expressions is None:
            return ["".join(part.text for part in self._parts)]
        evaluation = self._expressions.evaluation(variables, secrets, Budget())
        try:
            following = iter(self._expressions.evaluate(evaluation))
            return [
                self._written(evaluation, next(following)) if part.is_expression else part.text
                for part in self._parts
            ]
        except Exception as error:
            raise _failed(self.source, place, error, evaluation) from (None if self.secrets else error)

    @staticmethod
    def _written(evaluation: Evaluation, value: object) -> tuple[Any, str]:
        alone = plain(value)
        text = evaluation.text(alone)
        return (str(alone) if isinstance(alone, ErrorValue) else alone), text

    def _joined(self, evaluation: Evaluation, values: list[object]) -> str:
        following = iter(values)
        written = [
            evaluation.text(plain(next(following))) if part.is_expression else part.text
            for part in self._parts
        ]
        return evaluation.join("", written)


_NOTHING: Final = Reads()


def _failed(source: str, place: str, error: Exception, evaluation: Evaluation) -> TemplateFailed:
    where = f"{place}: " if place else ""
    reason = reason_of(error)
    if any(value[:SECRET_COMPARED_CHARS] in reason for value in evaluation.secrets_read if value):
        reason = "the reason would tell a secret"
    guidance = error.guidance if isinstance(error, HoldfastError) else ""
    failed = TemplateFailed(f"{where}`{shown(source)}` has no value: {reason}", guidance=guidance)
    failed.place = place
    return failed


def compile_text(source: str) -> Text:
    """Check a text and make it ready to evaluate; ConditionInvalid names the line and what is allowed."""
    if not has_marks(source):
        return Text(source, [Part(source)], None)
    if len(source) > TEXT_CHARS_MAX:
        raise invalid(
            f"a text with expressions is {len(source)} characters long", allowed=f"at most {TEXT_CHARS_MAX}"
        )
    return _cached(source) if len(source) <= CACHED_CHARS_MAX else _compile(source)


def _compile(source: str) -> Text:
    parts = split_text(source, expressions_max=TEXT_EXPRESSIONS_MAX)
    expressions = [part for part in parts if part.is_expression]
    if not expressions:
        return Text(source, parts, None)
    chars = sum(len(part.text) for part in expressions)
    if chars > TEXT_EXPRESSION_CHARS_MAX:
        raise invalid(
            f"the expressions of the text are {chars} characters long",
            allowed=f"at most {TEXT_EXPRESSION_CHARS_MAX} together; compute the text in a step",
        )
    if len(expressions) == 1 and all(part.is_expression or part.text.isspace() for part in parts):
        parts = expressions
    return Text(source, parts, compile_expressions(expressions, of_condition=False))


_cached = lru_cache(maxsize=1024)(_compile)
