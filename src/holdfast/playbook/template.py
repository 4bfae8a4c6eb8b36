"""Every expression that a playbook's author writes is evaluated here, and nowhere else.

    source ──Jinja2's parser──▶ syntax tree ──guard──▶ guarded tree ──sandbox──▶ yes, no, or ConditionFailed

A condition passes through three gates. The parser is Jinja2's. The `guard` then walks the syntax tree: it
lets through plain expressions only and turns every operation whose cost depends on its operands into one
of our `operations`. Last, the `evaluation` runs in the `sandbox` over `plain_data`, and pays for all that
it reads and makes out of one budget, so that no expression, however written, holds a worker for long or
grows its memory.

Nothing here reads a clock, a file or the network.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from jinja2 import TemplateSyntaxError, nodes
from jinja2.environment import Template
from jinja2.parser import Parser

from holdfast.core.errors import HoldfastError
from holdfast.playbook.guard import BRACKETS_MAX, ConditionInvalid, Guard, invalid, nested_too_deeply
from holdfast.playbook.plain_data import error_value, plain, truth
from holdfast.playbook.sandbox import ENVIRONMENT

__all__ = ["Condition", "ConditionFailed", "ConditionInvalid", "compile_condition", "error_value"]

SOURCE_CHARS_MAX: Final = 2_000
SOURCE_SHOWN_CHARS_MAX: Final = 300
REASON_CHARS_MAX: Final = 500

_OUTCOME: Final = "_outcome"  # begins with an underscore, so no author can name it
_BRACES: Final = re.compile(r"\s*\{\{[-+]?(?P<inner>.*?)[-+]?\}\}\s*", re.DOTALL)


class ConditionFailed(HoldfastError):
    """A condition has no answer for these variables: that is recorded, and it counts as not given."""

    code = "condition_failed"


class Condition:
    """A checked expression that answers yes or no."""

    __slots__ = ("_template", "source")

    def __init__(self, source: str, template: Template) -> None:
        self.source = source
        self._template = template

    def __repr__(self) -> str:
        return f"Condition({self.source!r})"

    def evaluate(self, variables: Mapping[str, object]) -> bool:
        """The answer for these variables, or ConditionFailed: an undefined name is never silently false.

        Only what the expression reaches is looked at, so a large result costs nothing to a condition on
        `status_code`.
        """
        # `shared` keeps the variables the only names there are: no globals are mixed in.
        context = self._template.new_context(dict(variables), shared=True)
        try:
            list(self._template.root_render_func(context))
            return truth(plain(context.vars[_OUTCOME]))
        except Exception as error:
            # Whatever goes wrong in an author's expression is for the author to read: no worker stops for it.
            reason = (str(error) or type(error).__name__)[:REASON_CHARS_MAX]
            shown = self.source.strip()[:SOURCE_SHOWN_CHARS_MAX]
            raise ConditionFailed(f"the condition `{shown}` has no answer: {reason}") from error


@lru_cache(maxsize=1024)
def compile_condition(source: str) -> Condition:
    """Check an expression, written with or without `{{ }}`, and make it ready to evaluate."""
    if len(source) > SOURCE_CHARS_MAX:
        raise invalid(
            f"the condition is {len(source)} characters long",
            allowed=f"at most {SOURCE_CHARS_MAX} characters; compute longer logic in a step",
        )
    return Condition(source, _compile(_without_braces(source)))


def _without_braces(source: str) -> str:
    """The expression itself, on the same lines as in the source, so that errors point at the right one."""
    match = _BRACES.fullmatch(source)
    if match is None:
        return source
    return "\n" * source.count("\n", 0, match.start("inner")) + match["inner"]


def _compile(expression: str) -> Template:
    try:
        guarded = Guard().visit(_parse(expression))
        body: list[nodes.Node] = [nodes.Assign(nodes.Name(_OUTCOME, "store"), guarded, lineno=1)]
        return ENVIRONMENT.from_string(nodes.Template(body, lineno=1))
    except TemplateSyntaxError as error:
        raise invalid(
            f"not an expression: {error.message}",
            line=error.lineno,
            allowed="one Jinja2 expression such as `status_code >= 500`, with or without {{ }}; no statement",
        ) from error
    except RecursionError as error:
        raise nested_too_deeply(None) from error


def _parse(expression: str) -> nodes.Node:
    brackets = 0
    for token in ENVIRONMENT.lexer.tokenize(expression, state="variable"):
        brackets += (token.type in {"lparen", "lbracket", "lbrace"}) - (
            token.type in {"rparen", "rbracket", "rbrace"}
        )
        if brackets > BRACKETS_MAX:
            raise nested_too_deeply(token.lineno)
    parser = Parser(ENVIRONMENT, expression, state="variable")
    parsed = parser.parse_expression()
    if not parser.stream.eos:
        parser.fail("there is more after the end of the expression")
    parsed.set_environment(ENVIRONMENT)
    return parsed
