"""SQL as an author writes it, taken apart just far enough: where parameters are, and where statements end.

    query ──statements──▶ [Statement] ──bound──▶ text with the database's own placeholders, and the values

One style for every database: `:name` (or `$name`) with a mapping of params, `?` (or `$1`) with a list. What
looks like a parameter in a string, a quoted name, a comment, a cast (`::`) or a slice is none. Params never
become part of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any

from holdfast.steps.fields import refused

QUERY_CHARS_MAX = 1024 * 1024
# The tokens of a query take some hundred times its own memory.
CACHED_CHARS_MAX = 20_000


class Dialect(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    DUCKDB = "duckdb"


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    """`space`, `quoted`, `word`, `named`, `numbered`, `mark` (?), `escaped` (??), `end` (;), `place` (of the
    value of a template, see sql_literals) or `other`."""
    text: str


# Whatever is not closed reaches to the end of the text: the database will say so.
_COMMON = r"""
    (?P<space>\s+|--[^\n]*)
  | (?P<word>[^\W\d][\w$]*)
  | (?P<number>\d[\w.]*)
  | (?P<cast>::|:=)
  | (?P<escaped>\?\?)
  | (?P<operator>\?[|&](?!\w)|@\?)
  | (?P<mark>\?)
  | (?P<numbered>\$\d+)
  | (?P<named>(?<![\w\])'"`:])[:$](?P<name>[^\W\d]\w*))
  | (?P<end>;)
  | (?P<place>\x00\d+\x00)
  | (?P<other>.)
"""
_QUOTED = r""" "(?:[^"]|"")*(?:"|\Z) | '(?:[^']|'')*(?:'|\Z) """
_SQLITE = rf"""
    (?P<comment>/\*(?:.*?)(?:\*/|\Z))
  | (?P<quoted>{_QUOTED} | `(?:[^`]|``)*(?:`|\Z) | \[[^\]]*(?:\]|\Z))
  | {_COMMON}
"""
_OTHERS = rf"""
    (?P<nested>/\*)
  | (?P<quoted>(?:(?<![\w$])[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)) | {_QUOTED}
      | (?<![\w$])\$(?P<tag>[^\W\d]\w*)?\$ (?:.*?) (?:\$(?(tag)(?P=tag))\$|\Z))
  | {_COMMON}
"""
_FLAGS = re.VERBOSE | re.DOTALL
_PATTERNS = {
    Dialect.SQLITE: re.compile(_SQLITE, _FLAGS),
    Dialect.POSTGRESQL: re.compile(_OTHERS, _FLAGS),
    Dialect.DUCKDB: re.compile(_OTHERS, _FLAGS),
}
_KINDS = frozenset({"space", "quoted", "word", "named", "numbered", "mark", "escaped", "end", "place"})
_COMMENT_EDGE = re.compile(r"/\*|\*/")


def tokens(query: str, dialect: Dialect) -> Iterator[Token]:
    pattern, place = _PATTERNS[dialect], 0
    while place < len(query):
        match = pattern.match(query, place)
        assert match is not None  # any character is something
        kind, end = match.lastgroup or "other", match.end()
        if kind == "nested":
            kind, end = "space", _end_of_comment(query, end)
        elif kind == "comment":
            kind = "space"
        yield Token(kind if kind in _KINDS else "other", query[place:end])
        place = end


def _end_of_comment(query: str, place: int) -> int:
    """Comments within comments are counted, as the standard has it."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(query, place):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(query)


# ── statements ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Statement:
    tokens: tuple[Token, ...]

    @cached_property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """In upper case: keywords, and names that are not quoted."""
        return tuple(token.text.upper() for token in self.tokens if token.kind == "word")

    @property
    def verb(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def is_empty(self) -> bool:
        return all(token.kind in ("space", "end") for token in self.tokens)


def statements(query: str, dialect: Dialect) -> tuple[Statement, ...]:
    """Cut after each semicolon that ends a statement; what is only space and comments is left out."""
    return _cached(query, dialect) if len(query) <= CACHED_CHARS_MAX else _statements(query, dialect)


@lru_cache(maxsize=256)
def _cached(query: str, dialect: Dialect) -> tuple[Statement, ...]:
    return _statements(query, dialect)


def _statements(query: str, dialect: Dialect) -> tuple[Statement, ...]:
    found: list[Statement] = []
    current: list[Token] = []
    depth = 0
    body = 0  # of a function that is written in SQL, between BEGIN ATOMIC and END
    words: list[str] = []
    for token in tokens(query, dialect):
        current.append(token)
        if token.kind == "other":
            depth += {"(": 1, ")": -1}.get(token.text, 0)
        elif token.kind == "word" and dialect is Dialect.POSTGRESQL:
            words.append(token.text.upper())
            body += _body_change(words, body)
        elif token.kind == "end" and depth <= 0 and body <= 0:
            found.append(Statement(tuple(current)))
            current, words, depth, body = [], [], 0, 0
    found.append(Statement(tuple(current)))
    return tuple(statement for statement in found if not statement.is_empty)


def _body_change(words: list[str], body: int) -> int:
    word = words[-1]
    if body == 0:
        is_routine = words[0] == "CREATE" and ("FUNCTION" in words[:4] or "PROCEDURE" in words[:4])
        return 1 if is_routine and words[-2:] == ["BEGIN", "ATOMIC"] else 0
    return {"CASE": 1, "END": -1}.get(word, 0)


# ── a step is one transaction ────────────────────────────────────────────────────────────────────

_BEGINS = re.compile(r"BEGIN( TRANSACTION| WORK| IMMEDIATE| EXCLUSIVE| DEFERRED)*|START TRANSACTION")
_COMMITS = re.compile(r"(COMMIT|END)( TRANSACTION| WORK)?")


def without_own_transaction(found: Sequence[Statement]) -> list[Statement]:
    """The batch without BEGIN at its beginning and COMMIT at its end, which the step does itself. Elsewhere
    they would split what a failure must undo as one."""
    kept = list(found)
    if len(kept) > 1 and _BEGINS.fullmatch(" ".join(kept[0].words)):
        kept = kept[1:]
        if kept and _COMMITS.fullmatch(" ".join(kept[-1].words)):
            kept = kept[:-1]
    for statement in kept:
        words = statement.words[:2]
        is_rollback = statement.verb == "ROLLBACK" and "TO" not in statement.words
        is_other = statement.verb in ("BEGIN", "COMMIT", "END", "ABORT")
        if is_rollback or is_other or words in (("START", "TRANSACTION"), ("PREPARE", "TRANSACTION")):
            raise refused(
                f"The query has {statement.verb} in the middle of a step, which is one transaction.",
                "Leave it out: all statements of a step are committed together, or none is.",
            )
    return kept


# ── parameters ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Bound:
    parts: tuple[str | int, ...]
    """Text, and where a value goes its place among them."""
    values: tuple[Any, ...]

    def render(self, placeholder: Callable[[int], str]) -> str:
        return "".join(part if isinstance(part, str) else placeholder(part) for part in self.parts)


def bound(statement: Statement, params: Mapping[str, Any] | Sequence[Any]) -> Bound:
    """Each place has a value of its own, so that a name may be used twice with two types."""
    if not params:
        return Bound((statement.text,), ())
    if isinstance(params, Mapping):
        return _bound_by_name(statement, params)
    return _bound_by_place(statement, list(params))


def _bound_by_name(statement: Statement, params: Mapping[str, Any]) -> Bound:
    parts: list[str | int] = []
    values: list[Any] = []
    missing = []
    for token in statement.tokens:
        if token.kind != "named":
            parts.append(token.text)
        elif (name := token.text[1:]) in params:
            parts.append(len(values))
            values.append(params[name])
        else:
            missing.append(token.text)
    if missing:
        known = ", ".join(list(params)[:20])
        raise refused(
            f"The query asks for {', '.join(dict.fromkeys(missing))}, and params has {known[:200]}.",
            "Add it to params. A colon that is no parameter needs a space after it.",
        )
    return Bound(tuple(parts), tuple(values))


def _bound_by_place(statement: Statement, params: list[Any]) -> Bound:
    numbers = [int(token.text[1:]) for token in statement.tokens if token.kind == "numbered"]
    marks = sum(token.kind == "mark" for token in statement.tokens)
    asked = max(numbers) if numbers else marks
    if asked != len(params) or (numbers and min(numbers) < 1):
        raise refused(
            f"The query asks for {asked} values, and params has {len(params)}.",
            "Give one for each ? of the query; write ?? for a ? that is none.",
        )
    parts: list[str | int] = []
    values: list[Any] = []
    for token in statement.tokens:
        if numbers and token.kind == "numbered":
            parts.append(len(values))
            values.append(params[int(token.text[1:]) - 1])
        elif not numbers and token.kind == "mark":
            parts.append(len(values))
            values.append(params[len(values)])
        elif not numbers and token.kind == "escaped":
            parts.append("?")
        else:
            parts.append(token.text)
    return Bound(tuple(parts), tuple(values))
