"""A text with `{{ expressions }}` in it, taken apart; what stands between them is kept to the character.

Jinja2's own reader would change line ends and drop the last one, and it takes `${#name}` of a shell for the
beginning of a comment. Here only what is closed is a comment, and statements are refused.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from holdfast.playbook.expression import EXPRESSION_CHARS_MAX
from holdfast.playbook.guard import ConditionInvalid, invalid

_MARKS: Final = re.compile(r"\{[{%#]")
_STATEMENT: Final = re.compile(r"\{%[-+\s]")
_STRING_OR_BRACKET: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?P<open>[\[({])|(?P<close>[\])}])""", re.DOTALL
)

_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}


class Part(NamedTuple):
    """Literal text, or the source of an expression that begins at a line."""

    text: str
    line: int = 0  # 0: literal

    @property
    def is_expression(self) -> bool:
        return self.line > 0


def has_marks(source: str) -> bool:
    """Whether there may be anything to take apart."""
    return "{" in source and _MARKS.search(source) is not None


def split_text(source: str, *, expressions_max: int) -> list[Part]:
    parts = _Parts()
    position = expressions = 0
    while (mark := _MARKS.search(source, position)) is not None:
        start = mark.start()
        parts.add_literal(source[position:start])
        if mark[0] == "{{":
            expressions += 1
            if expressions > expressions_max:
                raise invalid(
                    f"the text has more than {expressions_max} expressions",
                    line=_line(source, start),
                    allowed=f"at most {expressions_max}; compute the text in a step",
                )
            position = _end_of_expression(source, start)
            parts.add_expression(source[start + 2 : position - 2], _line(source, start))
        else:
            end = parts.closed(source, start, "%}" if mark[0] == "{%" else "#}")
            if mark[0] == "{%" and (end is not None or _STATEMENT.match(source, start)):
                raise invalid(
                    "a {% statement %} cannot stand in a text",
                    line=_line(source, start),
                    allowed="{{ expressions }}; for a choice {{ a if condition else b }}, for a loop a step;"
                    " {{ '{%' }} writes the two characters",
                )
            if end is None:
                parts.add_literal(mark[0])
            position = start + 2 if end is None else end
    parts.add_literal(source[position:])
    parts.end_literal()
    return parts.found


class _Parts:
    """The parts found so far; a `-` inside the braces takes away the whitespace outside of them."""

    def __init__(self) -> None:
        self.found: list[Part] = []
        self._literal: list[str] = []
        self._trim_next = False
        self._absent: set[str] = set()

    def add_literal(self, text: str) -> None:
        if self._trim_next:
            text = text.lstrip()
            self._trim_next = not text
        self._literal.append(text)

    def end_literal(self, *, trim: bool = False) -> None:
        text = "".join(self._literal)
        self._literal.clear()
        text = text.rstrip() if trim else text
        if text:
            self.found.append(Part(text))

    def add_expression(self, inner: str, line: int) -> None:
        self.end_literal(trim=inner.startswith("-"))
        self._trim_next = inner.endswith("-")
        self.found.append(Part(inner[inner[:1] in ("-", "+") :].removesuffix("-"), line))

    def closed(self, source: str, start: int, closing: str) -> int | None:
        """Behind the closing mark. Once there is none it is looked for no more, or a text of nothing but
        marks would be read once for each of them."""
        end = -1 if closing in self._absent else source.find(closing, start + 2)
        if end < 0:
            self._absent.add(closing)
        return None if end < 0 else end + 2


def _end_of_expression(source: str, start: int) -> int:
    """Behind the `}}` that closes it: not one in a string, and not the end of a mapping in a mapping."""
    opened: list[str] = []
    end_max = start + 2 + EXPRESSION_CHARS_MAX + 2
    for found in _STRING_OR_BRACKET.finditer(source, start + 2, end_max):
        if found["open"]:
            opened.append(found[0])
        elif found["close"]:
            if not opened and source.startswith("}}", found.start()) and found.end() < end_max:
                return found.end() + 1
            if not opened or _CLOSING[opened[-1]] != found[0]:
                problem = f"`{opened[-1]}` is not closed" if opened else f"`{found[0]}` closes nothing"
                line = _line(source, found.start())
                raise invalid(f"not an expression: {problem}", line=line, allowed="brackets that match")
            opened.pop()
    raise _not_closed(source, start, too_long=len(source) >= end_max)


def _not_closed(source: str, start: int, *, too_long: bool) -> ConditionInvalid:
    if too_long:
        message = f"an expression has no end within {EXPRESSION_CHARS_MAX} characters"
    else:
        message = "an expression begins with {{ and has no end"
    return invalid(
        message,
        line=_line(source, start),
        allowed=f"}}}} at its end, after at most {EXPRESSION_CHARS_MAX} characters;"
        " {{ '{{' }} writes the two characters",
    )


def _line(source: str, position: int) -> int:
    return 1 + source.count("\n", 0, position)
