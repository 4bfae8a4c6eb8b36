"""Lines put together to paragraphs, and paragraphs parted into sentences.

A PDF gives a line for each line of the page, a DOCX one for each paragraph. A line that ends well before the
others and is followed by a capital is the end of something: a heading, an item, a paragraph.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

_SHORT_LINE = 0.7
# What parts the cells of a row, where nobody would write it so in a sentence.
_CELL_MARK = re.compile(r"\t|\||;(?=\S)|,(?=[^\s\d])|(?<=[^\s\d]),(?=\d)")
_ITEM = re.compile(r"(?:[•●▪◦‣∙*–—-]|\(?[0-9]{1,3}[.)]|\(?[a-zA-Z][.)])\s")
# A mark with neither another one before it: of a row of marks only the first is looked at.
_END = re.compile(r"(?<![.!?…])[.!?…]{1,4}[\"'”’»“)\]]{0,3}(?=\s|$)")
_LAST_WORD = re.compile(r"[\w.]{1,20}$")
_BEGINS = re.compile(r"[\s\"'“”„«(\[¿¡]*(.)", re.DOTALL)
_LAST_WORD_WINDOW = 20

_ABBREVIATIONS = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "st",
        "no",
        "nos",
        "vs",
        "etc",
        "inc",
        "ltd",
        "co",
        "corp",
        "al",
        "art",
        "arts",
        "fig",
        "figs",
        "sec",
        "para",
        "p",
        "pp",
        "ca",
        "approx",
        "est",
        "dept",
        "vol",
        "ed",
        "eds",
        "rev",
        "e.g",
        "i.e",
        "eg",
        "ie",
        "cf",
        "viz",
        "jan",
        "feb",
        "mar",
        "apr",
        "jun",
        "jul",
        "aug",
        "sep",
        "sept",
        "oct",
        "nov",
        "dec",
        "jr",
        "sr",
        "hon",
        "gen",
        "col",
        "lt",
        "sgt",
        "rep",
        "sen",
        "u.s",
        "u.k",
        "a.m",
        "p.m",
        "bzw",
        "z.b",
        "d.h",
        "u.a",
        "usw",
        "abs",
        "nr",
        "str",
        "tel",
        "vgl",
        "ggf",
        "evtl",
        "inkl",
        "zzgl",
        "ing",
        "dipl",
        "hr",
        "fr",
        "mio",
        "mrd",
        "bspw",
        "s.o",
        "s.u",
        "i.d.r",
        "u.u",
        "gem",
        "lfd",
        "m",
        "mm",
        "mme",
        "mlle",
        "n°",
        "av",
        "bd",
        "c.-à-d",
        "ex",
        "env",
        "tél",
        "sra",
        "srta",
        "dña",
        "d",
        "núm",
        "pág",
        "ud",
        "uds",
        "ee.uu",
        "art.º",
        "sig",
        "dott",
        "sigg",
    ]
)


_NUMBERED = re.compile(
    r"(?:\(?\d{1,3}(?:\.\d{1,3}){0,3}[.)]?|\([a-z]{1,3}\)|[a-z]\)|§ ?\d{1,4}[.:]?|[•●▪◦‣∙*–—-])\s{1,4}"
    r"(?=[^\W\d_])"
)


class Sentence(NamedTuple):
    text: str
    is_whole: bool
    """It ends with a mark."""


def flowing(text: str) -> str:
    """The text with a space in place of each line end that is only the page's; as long as it was."""
    lines = text.split("\n")
    if len(lines) == 1:
        return text
    width = max(map(len, lines))
    parts = [lines[0]]
    for before, line in itertools.pairwise(lines):
        above, below = before.strip(), line.strip()
        goes_on = above and below and not _begins_anew(above, below, width)
        parts += (" " if goes_on else "\n", line)
    return "".join(parts)


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a text, each in one line."""
    lines = text.split("\n")
    width = max(map(len, lines))
    parts: list[str] = []
    for line in lines:
        stripped = line.strip()
        if not stripped:
            if parts:
                yield _joined(parts)
                parts = []
            continue
        if parts and _begins_anew(parts[-1], stripped, width):
            yield _joined(parts)
            parts = []
        parts.append(stripped)
    if parts:
        yield _joined(parts)


def _begins_anew(before: str, line: str, width: int) -> bool:
    if _ITEM.match(line):
        return True
    if (cells := len(_CELL_MARK.findall(line))) and cells == len(_CELL_MARK.findall(before)):
        return True
    if line[0].islower() or before[-1] in ",-":
        return False
    return len(before) < _SHORT_LINE * width


def _joined(parts: list[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    joined = parts[0]
    for part in parts[1:]:
        if joined[-1] == "-" and len(joined) > 1 and joined[-2].isalpha() and part[0].islower():
            joined = joined[:-1] + part
        else:
            joined = f"{joined} {part}"
    return joined


def sentences(paragraph: str, language: str = "en") -> Iterator[Sentence]:
    begin = 0
    for mark in _END.finditer(paragraph):
        if _goes_on(paragraph, mark, language):
            continue
        yield Sentence(_unnumbered(paragraph[begin : mark.end()].strip()), True)
        begin = mark.end()
    rest = paragraph[begin:].strip()
    if rest:
        yield Sentence(rest, False)


def _unnumbered(sentence: str) -> str:
    """Without the number of its clause, or the mark of its item."""
    number = _NUMBERED.match(sentence)
    return sentence[number.end() :] if number and sentence[number.end()].isupper() else sentence


def _goes_on(paragraph: str, mark: re.Match[str], language: str) -> bool:
    """What follows begins no sentence, or the dot belongs to an abbreviation, an initial or an ordinal."""
    follows = _BEGINS.match(paragraph, mark.end())
    if follows and follows[1].islower():
        return True
    if follows is None or mark[0][0] != ".":
        return False
    last = _LAST_WORD.search(paragraph[max(0, mark.start() - _LAST_WORD_WINDOW) : mark.start()])
    if last is None:
        return False
    word = last[0]
    if word.isdigit():
        return len(word) <= 2 and language == "de"
    return (len(word) == 1 and word.isalpha() and word.isupper()) or word.lower() in _ABBREVIATIONS
