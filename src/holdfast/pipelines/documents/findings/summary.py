"""A summary in the document's own sentences: three to five of them, in their order.

Each sentence is weighed by the words that the document is about, by where it stands, and by whether it can
stand alone. Of a long document only the best few hundred sentences so far are held; they are weighed again
as more of the document is known. What says the same as a chosen sentence is not chosen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.pipelines.documents.findings.finding import MOST, Finding, finding
from holdfast.pipelines.documents.findings.passage import Passage
from holdfast.pipelines.documents.findings.phrases import Phrases
from holdfast.pipelines.documents.findings.prose import sentences

_CHARS_MIN, _CHARS_MAX = 40, 420
_WORDS_MIN, _WORDS_MAX = 7, 65
_HELD, _HELD_MOST = 300, 600
_OPENING_SENTENCES = 8
_SAME_SHARE = 0.5
_LETTERS_SHARE_MIN = 0.6

_LETTERS = re.compile(r"[^\W\d_]+")
_NO_PROSE = re.compile(
    r"\||https?://|www\.|@|\.{4}|_{3}|©|\(c\) \d{4}|all rights reserved|[=<>{}\\]", re.IGNORECASE
)
_LEANS_ON_THE_ONE_BEFORE = frozenset(
    [
        "he",
        "she",
        "it",
        "they",
        "this",
        "that",
        "these",
        "those",
        "such",
        "however",
        "therefore",
        "thus",
        "hence",
        "moreover",
        "furthermore",
        "also",
        "but",
        "and",
        "so",
        "then",
        "here",
        "there",
        "additionally",
        "consequently",
        "its",
        "their",
        "his",
        "her",
        "er",
        "sie",
        "es",
        "dies",
        "diese",
        "dieser",
        "dieses",
        "jedoch",
        "daher",
        "deshalb",
        "dabei",
        "auch",
        "aber",
        "und",
        "so",
        "dann",
        "hierbei",
        "damit",
        "darüber",
        "il",
        "elle",
        "ils",
        "elles",
        "ce",
        "cela",
        "cette",
        "ces",
        "cependant",
        "donc",
        "ainsi",
        "mais",
        "et",
        "puis",
        "or",
        "él",
        "ella",
        "ellos",
        "este",
        "esta",
        "esto",
        "estos",
        "sin",
        "embargo",
        "además",
        "pero",
        "y",
        "así",
        "entonces",
        "por",
    ]
)


@dataclass(frozen=True, slots=True)
class _Candidate:
    text: str
    chunk: int
    order: int
    stems: frozenset[str]
    stands_alone: bool


class Summary:
    def __init__(self, phrases: Phrases) -> None:
        self._phrases = phrases
        self._held: list[_Candidate] = []
        self._texts: set[str] = set()
        self._order = 0

    def add(self, passage: Passage, paragraphs: list[str]) -> None:
        """Take the whole sentences of a passage."""
        if not passage.is_prose:
            return
        for place, paragraph in enumerate(paragraphs):
            for number, sentence in enumerate(sentences(paragraph, passage.language)):
                is_cut = not sentence.is_whole or (place == 0 and number == 0 and self._is_cut(passage))
                if not is_cut and _is_prose(sentence.text):
                    self._hold(sentence.text, passage)
        if len(self._held) > _HELD_MOST:
            self._held = sorted(self._best()[:_HELD], key=lambda held: held.order)
            self._texts = {held.text for held in self._held}

    @staticmethod
    def _is_cut(passage: Passage) -> bool:
        """The text before goes on in this passage's first sentence."""
        before = passage.text[: passage.overlap].rstrip()
        return bool(before) and before[-1] not in ".!?:…"

    def _hold(self, text: str, passage: Passage) -> None:
        self._order += 1
        if text in self._texts:
            return
        stems = frozenset(self._phrases.content_of(text, passage.language))
        first = _LETTERS.search(text)
        if first is None or len(stems) < 3:
            return
        self._texts.add(text)
        alone = first[0].lower() not in _LEANS_ON_THE_ONE_BEFORE
        self._held.append(_Candidate(text, passage.number, self._order, stems, alone))

    def _best(self) -> list[_Candidate]:
        scores = {held.order: self._score(held) for held in self._held}
        return sorted(self._held, key=lambda held: (-scores[held.order], held.order))

    def _score(self, held: _Candidate) -> float:
        weights = sum(map(self._phrases.weight, held.stems))
        score = weights / math.sqrt(len(held.stems) + 4)
        if held.order <= _OPENING_SENTENCES:
            score *= 1 + 0.5 * (1 - (held.order - 1) / _OPENING_SENTENCES)
        score *= 0.6 if held.text[-1] == "?" else 1.0
        return score if held.stands_alone else score * 0.6

    def findings(self, beat: Callable[[float | None], None]) -> list[Finding]:
        beat(None)
        wanted = 3 if self._order < 15 else 4 if self._order < 60 else MOST["summary"]
        chosen: list[_Candidate] = []
        for held in self._best():
            if len(chosen) == wanted:
                break
            if not any(_overlap(held.stems, other.stems) > _SAME_SHARE for other in chosen):
                chosen.append(held)
        scores = {held.order: self._score(held) for held in chosen}
        best = max(scores.values(), default=0.0) or 1.0
        return [
            finding(
                "summary",
                held.text,
                value={"position": position},
                score=scores[held.order] / best,
                chunks=[held.chunk],
            )
            for position, held in enumerate(sorted(chosen, key=lambda held: held.order), start=1)
        ]


def _is_prose(text: str) -> bool:
    if not _CHARS_MIN <= len(text) <= _CHARS_MAX or not _WORDS_MIN <= text.count(" ") + 1 <= _WORDS_MAX:
        return False
    if text[0].islower() or text.isupper() or text[-1] == "…" or _NO_PROSE.search(text):
        return False
    letters = sum(map(len, _LETTERS.findall(text)))
    if letters < _LETTERS_SHARE_MIN * len(text):
        return False
    # A title that ran into the sentence, a list of names.
    capitals = sum(1 for word in text.split() if word[0].isupper())
    return capitals <= 0.6 * (text.count(" ") + 1)


def _overlap(some: frozenset[str], others: frozenset[str]) -> float:
    return len(some & others) / min(len(some), len(others))
