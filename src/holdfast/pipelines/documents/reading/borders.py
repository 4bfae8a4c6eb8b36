"""Where running text may be cut, and what of a chunk the next one repeats.

Each function looks at a few hundred characters with the string methods that are written in C: a document has
thousands of borders.
"""

from __future__ import annotations

import re
import unicodedata

_ASCII_ENDS = (". ", ".\n", "? ", "?\n", "! ", "!\n")
_ENDS = (*_ASCII_ENDS, "。", "！", "？", "… ", "…\n", "؟ ", "। ")
CELL_END = ("| ",)

_NOT_SPACE = re.compile(r"\S")
_SENTENCE_BEGIN = re.compile(r"(?:[.!?…؟।]\s+|[。！？]\s*|\n\s*\n)(?=\S)")
_WORD_BEGIN = re.compile(r"\s+(?=\S)")
_SEAM_CHARS_MAX = 64

_ZERO_WIDTH_JOINER = "\u200d"
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_VARIATIONS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
_CHARACTER_LENGTH_MAX = 64


def sentence_ends_of(text: str) -> tuple[str, ...]:
    return _ASCII_ENDS if text.isascii() else _ENDS


def word_after(text: str, at: int) -> int:
    found = _NOT_SPACE.search(text, at)
    return len(text) if found is None else found.start()


def border_of(text: str, begin: int, end: int, sentence_ends: tuple[str, ...]) -> int:
    """Behind `begin`, not behind `end`, which is within the text: the best place to cut."""
    middle = (begin + end) // 2
    border = text.rfind("\n\n", middle, end)
    if border > 0:
        return border
    border = max([text.rfind(sentence_end, middle, end) for sentence_end in sentence_ends])
    if border > 0:
        return border + 1
    border = text.rfind("\n", middle, end)
    if border > 0:
        return border
    border = text.rfind(" ", begin + (end - begin) // 4, end)
    return border if border > 0 else _between_characters(text, begin, end)


def seam(text: str, border: int, following: int) -> str:
    """The white space between two chunks, made short."""
    if border == following:
        return ""
    lines = text.count("\n", border, min(following, border + _SEAM_CHARS_MAX))
    return "\n\n" if lines > 1 else "\n" if lines else " "


def end_to_repeat(text: str, chars_max: int) -> str:
    """The last sentences of a chunk, else its last words."""
    if chars_max <= 0 or len(text) < 2 * chars_max:
        return ""
    end = text[-chars_max:]
    found = _SENTENCE_BEGIN.search(end) or _WORD_BEGIN.search(end)
    if found is not None:
        return end[found.end() :]
    return end[next((at for at in range(len(end)) if not _is_continued_at(end, at)), len(end)) :]


def _between_characters(text: str, begin: int, end: int) -> int:
    """What is seen as one character may be many: a letter and its accents, an emoji and its skin tone."""
    for border in range(end, max(begin + 1, end - _CHARACTER_LENGTH_MAX), -1):
        if not _is_continued_at(text, border):
            return border
    return end


def _is_continued_at(text: str, at: int) -> bool:
    character = text[at]
    code = ord(character)
    if code < 0x300:
        return False
    return (
        unicodedata.category(character)[0] == "M"
        or character == _ZERO_WIDTH_JOINER
        or (at > 0 and text[at - 1] == _ZERO_WIDTH_JOINER)
        or code in _SKIN_TONES
        or any(code in variations for variations in _VARIATIONS)
    )
