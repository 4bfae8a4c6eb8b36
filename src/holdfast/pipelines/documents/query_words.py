"""What a person typed, as what to look for: words, and phrases in quotes. Nothing of it is an operator.

'pump "spare parts" war' ──▶ pump, the phrase "spare parts", war and what begins with it
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

QUERY_CHARS_MAX = 2_000
PARTS_MAX = 24
PART_CHARS_MAX = 200
PREFIX_CHARS_MIN = 2

_PIECE = re.compile(r'"([^"]*)"?|([^\s"]+)')
_QUOTES = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"'))
# They join letters in some scripts; all others of their kind say nothing.
_JOINERS = "\u200c\u200d"


class Part(NamedTuple):
    """`is_prefix`: it may go on, as whoever typed it may not be done."""

    text: str
    is_prefix: bool = False


def cleaned(query: str) -> str:
    """Without what no text has: control characters, marks of direction, halves of characters."""
    kept = query[:QUERY_CHARS_MAX].translate(_QUOTES)
    if kept.isascii() and kept.isprintable():
        return kept
    return "".join(
        " " if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Cn") and char not in _JOINERS else char
        for char in unicodedata.normalize("NFC", kept)
    )


def parts_of(query: str) -> list[Part]:
    """Of a clean one: each part once, with something in it that words are made of."""
    found: dict[str, Part] = {}
    for match in _PIECE.finditer(query):
        phrase, word = match.groups()
        text = " ".join((word if phrase is None else phrase).split())[:PART_CHARS_MAX]
        if not any(char.isalnum() for char in text):
            continue
        is_last = match.end() == len(query)
        is_prefix = is_last and phrase is None and text.isalnum() and len(text) >= PREFIX_CHARS_MIN
        found.setdefault(text.casefold(), Part(text, is_prefix))
    return list(found.values())[:PARTS_MAX]
