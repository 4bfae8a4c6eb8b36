"""A piece of a text around what was looked for, and where in it that stands. No markup: offsets are for
whoever shows it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from holdfast.pipelines.documents.query_words import Part

SNIPPET_CHARS = 200
BEFORE_CHARS = 60  # of it, before the first match
MATCHES_MAX = 50

_SPACE = re.compile(r"\s+")


class Snippet(NamedTuple):
    text: str
    matches: list[tuple[int, int]]


@lru_cache(maxsize=4_096)
def _folded(char: str) -> str:
    """One character for one, so that places stay what they are."""
    plain = unicodedata.normalize("NFD", char)[0].lower()
    return plain if len(plain) == 1 else char


def folded(text: str) -> str:
    return text.lower() if text.isascii() else "".join(map(_folded, text))


def pattern_of(parts: Sequence[Part]) -> re.Pattern[str] | None:
    """What finds the parts in a folded text, as whole words."""
    forms = []
    for part in sorted(parts, key=lambda part: -len(part.text)):
        words = re.findall(r"\w+", folded(part.text))
        if words:
            end = r"\w*" if part.is_prefix else ""
            forms.append(r"[\W_]{1,3}".join(map(re.escape, words)) + end)
    return re.compile(rf"(?<!\w)(?:{'|'.join(forms)})(?!\w)") if forms else None


def snippet_of(text: str, pattern: re.Pattern[str] | None, *, overlap: int = 0) -> Snippet:
    """About SNIPPET_CHARS of it; where nothing matches, its beginning, without what the text before ends
    with."""
    plain = _SPACE.sub(" ", text)
    found = []
    if pattern is not None:
        found = [match.span() for match in pattern.finditer(folded(plain))]
    if found:
        start = max(0, _densest(found) - BEFORE_CHARS)
    else:
        start = len(_SPACE.sub(" ", text[:overlap])) if overlap < len(text) else 0
    start = max(0, min(start, len(plain) - SNIPPET_CHARS))
    end = min(len(plain), start + SNIPPET_CHARS)
    kept = [span for span in found if start <= span[0] < end]
    start, end = _at_words(plain, start, end, kept)
    kept = [(max(first, start), min(last, end)) for first, last in kept][:MATCHES_MAX]
    before = "…" if start else ""
    after = "…" if end < len(plain) else ""
    shift = len(before) - start
    places = [(first + shift, last + shift) for first, last in kept if first < last]
    return Snippet(f"{before}{plain[start:end]}{after}", places)


def _densest(found: Sequence[tuple[int, int]]) -> int:
    """Where the stretch begins that has the most matches."""
    room = SNIPPET_CHARS - BEFORE_CHARS
    best = last = 0
    for first in range(len(found)):
        while last < len(found) and found[last][1] <= found[first][0] + room:
            last += 1
        if last - first > best:
            best, start = last - first, found[first][0]
    return start if best else found[0][0]


def _at_words(text: str, start: int, end: int, kept: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Moved to where no word is cut, unless there is no such place near."""
    if start and not text[start - 1].isspace():
        space = text.find(" ", start, kept[0][0] if kept else end)
        if 0 <= space < start + BEFORE_CHARS:
            start = space
    if end < len(text) and not text[end].isspace():
        space = text.rfind(" ", kept[-1][1] if kept and kept[-1][1] < end else start, end)
        if space > end - BEFORE_CHARS:
            end = space
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
