"""Templates in the text of a query: each value is written as a literal, and can be nothing else.

    WHERE name = {{ name }}           ▶  WHERE name =  'O''Brien'
    WHERE name LIKE '%{{ part }}%'    ▶  WHERE name LIKE '%O''Brien%'
    INTERVAL '{{ n }} days'           ▶  INTERVAL '3 days'

Whatever a value holds (quotes, semicolons, a whole statement), it stays the one literal that it stands for,
or the one quoted name; where neither can be, the query is refused. `params` are bound and need none of this:
it is for playbooks that were written for engines which paste.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.steps.fields import refused
from holdfast.steps.sql_text import Dialect, Token, tokens

GUIDANCE = "Write :name there, and params: {name: …} beside the query."

# A query cannot hold NUL: it marks the places without being mistaken for anything.
_MARK = "\0"
_PLACE = re.compile(rf"{_MARK}(\d+){_MARK}")


@dataclass(frozen=True, slots=True)
class Written:
    """The value of an expression in a query, and how it is written among other text."""

    value: Any
    text: str


def with_literals(parts: Sequence[str | Written], dialect: Dialect) -> str:
    values = [part for part in parts if isinstance(part, Written)]
    texts = [part if isinstance(part, str) else part.text for part in parts]
    if any(_MARK in text for text in texts):
        raise refused("The query has a NUL character.")
    places = iter(range(len(values)))
    marked = "".join(part if isinstance(part, str) else f"{_MARK}{next(places)}{_MARK}" for part in parts)
    return "".join(_token(token, values, dialect) for token in tokens(marked, dialect))


def _token(token: Token, values: Sequence[Written], dialect: Dialect) -> str:
    if _MARK not in token.text:
        return token.text
    if token.kind == "place":
        # With spaces: it must not grow together with what stands beside it, such as E or a minus.
        return f" {_literal(values[int(token.text.strip(_MARK))], dialect)} "
    if token.kind == "space":
        return _PLACE.sub("", token.text)  # in a comment
    quote = token.text[0]
    if token.kind == "quoted" and quote in ("'", '"') and token.text.endswith(quote) and len(token.text) > 1:
        return _in_quotes(token.text, quote, values, dialect)
    raise refused(
        f"The query has a template where no value can be written safely: {_shown(token)}.", GUIDANCE
    )


def _in_quotes(text: str, quote: str, values: Sequence[Written], dialect: Dialect) -> str:
    def written(match: re.Match[str]) -> str:
        return values[int(match[1])].text.replace(quote, quote * 2)

    inner = _PLACE.sub(written, text[1:-1])
    return _text(inner, dialect) if quote == "'" else f"{quote}{inner}{quote}"


def _literal(written: Written, dialect: Dialect) -> str:
    value = written.value
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return repr(value)
    return _text(written.text.replace("'", "''"), dialect)


def _text(inner: str, dialect: Dialect) -> str:
    """A literal; its quotes are doubled already. PostgreSQL may be set to read a backslash in one: E says how
    it is meant."""
    if dialect is Dialect.POSTGRESQL and "\\" in inner:
        escaped = inner.replace("\\", "\\\\")
        return f" E'{escaped}'"
    return f"'{inner}'"


def _shown(token: Token) -> str:
    return _PLACE.sub("{{ … }}", token.text)[:80]
