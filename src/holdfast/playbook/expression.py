"""From the source of expressions to something that can be evaluated.

    source ──Jinja2's parser──▶ syntax tree ──guard──▶ guarded tree ──▶ Expressions, evaluated in the sandbox

Conditions, texts and values are all made of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jinja2 import TemplateSyntaxError, nodes
from jinja2.environment import Template
from jinja2.parser import Parser

from holdfast.core.masking import clean_message
from holdfast.playbook.evaluation import BUDGET, CALL_PRICE, Evaluation
from holdfast.playbook.guard import BRACKETS_MAX, Guard, Reads, hands_on, invalid, nested_too_deeply
from holdfast.playbook.sandbox import ENVIRONMENT

EXPRESSION_CHARS_MAX: Final = 2_000
SOURCE_SHOWN_CHARS_MAX: Final = 300
REASON_CHARS_MAX: Final = 500
_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")

Secrets = Callable[[str], str]


class Budget:
    """What is left for evaluations that belong together."""

    __slots__ = ("left",)

    def __init__(self, left: int = BUDGET) -> None:
        self.left = left


@dataclass(frozen=True, slots=True)
class Expressions:
    """Checked expressions of one source, evaluated one after the other. `hands_on`: there is one alone, and
    its value is a part of what it reads."""

    reads: Reads
    hands_on: bool
    _count: int
    _templates: tuple[Template, ...]

    def evaluation(
        self, variables: Mapping[str, object], secrets: Secrets | None = None, budget: Budget | None = None
    ) -> Evaluation:
        # `shared` keeps the variables the only names there are: no globals are mixed in. They are not copied:
        # nothing is ever written to them, and they may be many.
        names = variables if isinstance(variables, dict) else dict(variables)
        evaluation = self._templates[0].new_context(names, shared=True)
        assert isinstance(evaluation, Evaluation)
        evaluation.secrets = secrets
        if budget is not None:
            evaluation.budget_left = budget.left
        return evaluation

    def evaluate(self, evaluation: Evaluation) -> list[object]:
        """The value of each: still to be made `plain`."""
        evaluation.pay(CALL_PRICE)
        for template in self._templates:
            list(template.root_render_func(evaluation))
        return [evaluation.vars[_variable(number)] for number in range(self._count)]


def _variable(number: int) -> str:
    return f"_value_{number}"  # begins with an underscore, so no author can name it


def compile_expressions(sources: Sequence[tuple[str, int]], *, of_condition: bool) -> Expressions:
    """Each with the line that it begins at, so that errors point at the right one."""
    reads = Reads()
    templates: list[Template] = []
    body: list[nodes.Node] = []
    chars = 0
    is_handed_on = len(sources) == 1
    try:
        for number, (source, line) in enumerate(sources):
            # Compiled in pieces: the trees of a piece are gone before the next is begun.
            if body and chars + len(source) > EXPRESSION_CHARS_MAX:
                templates.append(_compile(body))
                body, chars = [], 0
            guard = Guard(of_condition=of_condition)
            parsed = _parse(source, line, of_condition)
            is_handed_on = is_handed_on and hands_on(parsed)
            guarded = guard.visit(parsed)
            reads |= guard.reads
            body.append(nodes.Assign(nodes.Name(_variable(number), "store"), guarded, lineno=1))
            chars += len(source)
        return Expressions(reads, is_handed_on, len(sources), (*templates, _compile(body)))
    except RecursionError as error:
        # The limits leave room on the stack, but the caller may have used it up.
        raise nested_too_deeply(None) from error


def _compile(body: list[nodes.Node]) -> Template:
    return ENVIRONMENT.from_string(nodes.Template(body, lineno=1))


def _parse(source: str, first_line: int, of_condition: bool) -> nodes.Node:
    try:
        _check_tokens(source, first_line)
        parser = Parser(ENVIRONMENT, source, state="variable")
        parsed = parser.parse_expression()
        if not parser.stream.eos:
            parser.fail("there is more after the end of the expression")
        parsed.set_environment(ENVIRONMENT)
        if first_line > 1:
            _move(parsed, first_line - 1)
    except TemplateSyntaxError as error:
        example = (
            "one Jinja2 expression such as `status_code >= 500`, with or without {{ }}; no statement"
            if of_condition
            else "one Jinja2 expression between {{ and }}, such as {{ workload.url }}"
        )
        line = error.lineno + first_line - 1
        raise invalid(f"not an expression: {error.message}", line=line, allowed=example) from error
    except RecursionError as error:
        raise nested_too_deeply(first_line) from error
    return parsed


def _check_tokens(source: str, first_line: int) -> None:
    brackets = 0
    for token in ENVIRONMENT.lexer.tokenize(source, state="variable"):
        brackets += (token.type in {"lparen", "lbracket", "lbrace"}) - (
            token.type in {"rparen", "rbracket", "rbrace"}
        )
        if brackets > BRACKETS_MAX:
            raise nested_too_deeply(token.lineno + first_line - 1)
        if token.type == "string" and _HALF_CHARACTER.search(token.value):
            raise invalid(
                "a text holds half of a character, which nothing can store",
                line=token.lineno + first_line - 1,
                allowed="the character itself, or \\U and its eight digits: '\\U0001f600'",
            )


def _move(parsed: nodes.Node, lines: int) -> None:
    parsed.lineno += lines
    for node in parsed.find_all(nodes.Node):
        node.lineno += lines


def reason_of(error: Exception) -> str:
    """For people, and for a store: what it quotes of the data may be more than one can hold."""
    return clean_message(str(error) or type(error).__name__)[:REASON_CHARS_MAX]


def shown(source: str) -> str:
    return source.strip()[:SOURCE_SHOWN_CHARS_MAX]
