"""A chunk made ready for the analysis: clean text of which no part can cost more than its length.

    ChunkText ──prepared──▶ Passage ──without_repeated_lines──▶ Passage ──▶ phrases, dates, amounts …

What makes patterns slow is taken out here, once: words of hundreds of characters (no words at all) and white
space without end. What stands on every page, at its top or its bottom, is taken out too once it is known as
such: a page's header is no subject of the document, however often it stands there.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from holdfast.pipelines.documents.findings.finding import ChunkText, shortened, storable

WORD_CHARS_MAX = 200
_SPACE_CHARS_MAX = 12
_CONTEXT_BEFORE, _CONTEXT_AFTER, _CONTEXT_SENTENCE_MIN = 80, 60, 15

# Scripts without spaces between words are left alone.
_LONG_WORD = re.compile(rf"[^\s\u2e80-\uffff]{{{WORD_CHARS_MAX + 1},}}")
_LONG_SPACE = re.compile(rf"\s{{{_SPACE_CHARS_MAX + 1},}}")
_HYPHEN_OF_PDF = re.compile("\ufffe\n?|\u00ad\n?")
_LIGATURES = {
    "\ufb00": "ff",
    "\ufb01": "fi",
    "\ufb02": "fl",
    "\ufb03": "ffi",
    "\ufb04": "ffl",
    "\ufb05": "st",
}
_LIGATURE = re.compile("[\ufb00-\ufb05]")
_SENTENCE_BEGINS = re.compile(r"(?<=[\w%)€][.!?]) +(?=[^\W\d_])")
_DIGITS = re.compile(r"\d+")

_MARGIN_LINES = 3
_MARGIN_LINE_CHARS_MAX = 120
_MARGIN_LINES_KEPT = 5_000
_PAGES_TO_REPEAT = 3
_SHARE_OF_PAGES = 1 / 3


@dataclass(frozen=True, slots=True)
class Passage:
    number: int
    kind: str
    text: str
    overlap: int
    page: int | None
    sheet: str | None
    cells: str | None
    heading: str | None
    language: str = "en"

    @property
    def is_table(self) -> bool:
        return self.kind == "table"

    @property
    def is_prose(self) -> bool:
        return self.kind in ("text", "note")

    def part(self, begin: int, end: int) -> Passage:
        overlap = max(0, min(self.overlap, end) - begin)
        return replace(self, text=self.text[begin:end], overlap=overlap)

    def in_language(self, language: str) -> Passage:
        return replace(self, language=language)

    @property
    def fresh(self) -> str:
        """The text without what the chunk before has as well."""
        return self.text[self.overlap :]


def prepared(chunk: ChunkText) -> Passage:
    overlap = min(max(chunk.overlap, 0), len(chunk.text))
    repeated = clean(chunk.text[:overlap])
    return Passage(
        number=chunk.number,
        kind=chunk.kind,
        text=repeated + clean(chunk.text[overlap:]),
        overlap=len(repeated),
        page=chunk.page,
        sheet=chunk.sheet,
        cells=chunk.cells,
        heading=chunk.heading,
    )


def clean(text: str) -> str:
    """The text in one form of each character, with nothing in it that is not seen or of no use."""
    if not text.isascii():
        text = _LIGATURE.sub(lambda match: _LIGATURES[match[0]], _HYPHEN_OF_PDF.sub("", text))
        text = unicodedata.normalize("NFC", storable(text).replace("\u2028", "\n").replace("\u2029", "\n"))
    else:
        text = storable(text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _LONG_WORD.sub(" ", text)
    return _LONG_SPACE.sub(lambda match: "\n\n" if "\n" in match[0] else " " * 4, text)


def context_of(passage: Passage, start: int, end: int) -> str:
    """The words around a place of the text, from its own line as far as that goes; of a table its row."""
    text = passage.text
    left = max(0, start - _CONTEXT_BEFORE)
    before = text[left:start].rpartition("\n\n")[2]
    line = before.rpartition("\n")[2]
    sentence = _SENTENCE_BEGINS.split(line)[-1]
    # A date on a line of its own says nothing without the line above it.
    is_enough = passage.is_table or any(map(str.isalpha, line))
    before = (sentence if len(sentence) >= _CONTEXT_SENTENCE_MIN else line) if is_enough else before
    if left > 0 and len(before) == start - left:
        before = f"…{before.partition(' ')[2]}"
    after = text[end : end + _CONTEXT_AFTER].partition("\n" if is_enough else "\n\n")[0]
    after = _SENTENCE_BEGINS.split(text[end - 1 : end] + after, maxsplit=1)[0][1:]
    if end + _CONTEXT_AFTER < len(text) and len(after) == _CONTEXT_AFTER:
        after = f"{after.rpartition(' ')[0]}…"
    return shortened(" ".join(f"{before}{text[start:end]}{after}".split()), 240)


class MarginLines:
    """The lines at the top and the bottom of pages, and which of them are on many."""

    def __init__(self) -> None:
        self._pages_of: dict[str, int] = {}
        self._example_of: dict[str, str] = {}
        self._pages = 0
        self.repeated: dict[str, str] = {}
        """How a line looks without its numbers, and what it was when it was first seen."""

    def without_repeated_lines(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        """Each passage without the lines that are known to repeat by then."""
        before: Passage | None = None
        for passage in passages:
            if before is not None:
                yield self._seen(before, is_last=passage.page != before.page, is_first=self._is_first)
                self._is_first = passage.page != before.page
            before = passage
        if before is not None:
            yield self._seen(before, is_last=True, is_first=self._is_first)

    _is_first = True

    def _seen(self, passage: Passage, *, is_first: bool, is_last: bool) -> Passage:
        if passage.page is None or passage.is_table:
            return passage
        self._pages += is_first
        lines = passage.fresh.split("\n")
        at: set[int] = set()
        if is_first:
            at |= _edge(lines, range(len(lines)))
        if is_last:
            at |= _edge(lines, range(len(lines) - 1, -1, -1))
        dropped = {index for index in at if self._repeats(lines[index].strip())}
        if not dropped:
            return passage
        kept = "\n".join("" if index in dropped else line for index, line in enumerate(lines))
        return replace(passage, text=passage.text[: passage.overlap] + kept)

    def _repeats(self, line: str) -> bool:
        if len(line) > _MARGIN_LINE_CHARS_MAX:
            return False
        key = _DIGITS.sub("#", line)
        if key in self.repeated:
            return True
        if len(self._pages_of) > _MARGIN_LINES_KEPT:
            self._pages_of.clear()
            self._example_of.clear()
        self._example_of.setdefault(key, line)
        pages = self._pages_of[key] = self._pages_of.get(key, 0) + 1
        if pages < _PAGES_TO_REPEAT or pages < self._pages * _SHARE_OF_PAGES:
            return False
        self.repeated[key] = self._example_of[key]
        return True

    def sightings_counted(self) -> Iterator[tuple[str, int]]:
        """The repeated lines, and how often each was taken for text before it was known."""
        for key, line in self.repeated.items():
            yield line, self._pages_of.get(key, _PAGES_TO_REPEAT) - 1


def _edge(lines: list[str], order: range) -> set[int]:
    """The outermost lines with text: three, or fewer of a page that has few."""
    written = [index for index in order if lines[index].strip()]
    return set(written[: max(1, min(_MARGIN_LINES, len(written) // 4))])
