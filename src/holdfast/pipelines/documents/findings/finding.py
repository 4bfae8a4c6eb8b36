"""A finding, the chunk that it was found in, and what keeps findings small.

    ChunkText ──analysis──▶ finding(kind, text, value, …) ──bounded, storable──▶ Finding

The order of a list of findings is the order to show them in: kind by kind as in `KINDS`, within a kind the
most telling first; the sentences of the summary stand as they do in the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, get_args

import msgspec

Kind = Literal["summary", "phrase", "party", "date", "amount", "table"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Together no more than 300 a document.
MOST: dict[Kind, int] = {"summary": 5, "phrase": 40, "party": 60, "date": 60, "amount": 80, "table": 40}

TEXT_CHARS_MAX = 2_000
VALUE_BYTES_MAX = 16 * 1024
CHUNKS_MAX = 50
_COUNT_MAX = 2**31 - 1

# What no store takes (NUL, halves of a surrogate pair), what is no character, and what is not seen and only
# changes how the text around it is shown: marks of direction, joiners of nothing, hyphens that are not there.
_UNFIT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufdd0-\ufdef\ufeff\ufff0-\ufffb\ufffe\uffff]"
)


class ChunkText(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk as the analysis gets it."""

    number: int
    kind: str
    text: str
    page: int | None = None
    sheet: str | None = None
    cells: str | None = None
    heading: str | None = None
    overlap: int = 0
    """How many characters at the beginning of `text` repeat what the chunk before has: not counted twice."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing found in a document.

    `value` by kind (whatever stands in brackets may be missing):

        summary   {"position": 1}: the place of the sentence in the summary
        phrase    null
        party     {"type": "organization" or "person", ["role": "Seller"], ["domain": "acme.example"]}
        date      {"date": "2024-03-03", "precision": "day", ["ambiguous": true, "other": "2024-03-04"],
                  "context": "…"}; a month is {"date": "2024-03", "precision": "month"}, a quarter
                  {"date": "2024-Q3", "precision": "quarter", "from": "2024-07-01", "to": "2024-09-30"}
        amount    {"amount": "1234.56", "currency": "EUR", "context": "…"}, or "unit": "percent" in place of
                  the currency; a model may say what a date or an amount is: "meaning": "…"
        table     {"rows": 12, ["sheet": …], ["cells": "A1:F20"], "columns": [{"name", "count", "min", "max",
                  ["sum"], ["mean"], ["unit"], ["total"]}], ["columns_left_out": 3]}; numbers are decimal text
    """

    kind: Kind
    text: str
    value: Any
    score: float
    """How telling it is beside the others of its kind: from 0 to 1."""
    chunks: list[int]
    """The numbers of the chunks it was found in, rising; the first CHUNKS_MAX of them."""
    count: int = 1
    """How often it occurs."""


def finding(
    kind: Kind, text: str, *, value: Any = None, score: float, chunks: Iterable[int], count: int = 1
) -> Finding:
    """A finding within its bounds, with nothing in it that cannot be stored or shown."""
    value = storable_value(value)
    if len(msgspec.json.encode(value)) > VALUE_BYTES_MAX:
        value = None
    numbers = sorted(set(chunks))[:CHUNKS_MAX]
    return Finding(
        kind=kind,
        text=shortened(one_line(text), TEXT_CHARS_MAX),
        value=value,
        score=round(min(1.0, max(0.0, score)), 4),
        chunks=numbers,
        count=min(max(1, count), _COUNT_MAX),
    )


def storable(text: str) -> str:
    """The text without characters that a store refuses or a page shows as something else."""
    if text.isascii() and text.isprintable():
        return text
    return _UNFIT.sub("", text)


def storable_value(value: Any) -> Any:
    """JSON of which every text is storable."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): storable_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [storable_value(each) for each in value]
    return value


def one_line(text: str) -> str:
    return " ".join(storable(text).split())


def shortened(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1].rstrip()}…"
