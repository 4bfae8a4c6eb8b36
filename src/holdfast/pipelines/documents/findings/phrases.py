"""Key phrases: what a document speaks of, in its own words.

    paragraph ──parted at stop words, marks and numbers──▶ runs of words ──1 to 4 in a row──▶ candidates
    candidates ──how often, but not inside longer ones; where; in how many chunks──▶ the phrases

A phrase that only occurs inside a longer one ("protection officer") counts for that one alone (the C-value of
term extraction). Forms of a word are counted together, and the plainest form is shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.pipelines.documents.findings.finding import CHUNKS_MAX, MOST, Finding, finding
from holdfast.pipelines.documents.findings.money_words import CODES
from holdfast.pipelines.documents.findings.party_words import LEGAL_FORMS
from holdfast.pipelines.documents.findings.passage import Passage
from holdfast.pipelines.documents.findings.prose import paragraphs
from holdfast.pipelines.documents.findings.stop_words import CONNECTORS, STOP_WORDS

WORDS_MAX = 4
_WORD_CHARS_MIN, _WORD_CHARS_MAX = 3, 40
_LEGAL_FORMS = frozenset(map(str.casefold, LEGAL_FORMS))
_VALUES = frozenset({"true", "false", "null", "none", "nan"})
_FORMS_MAX = 50_000
_PHRASES_MAX = 60_000
_CANDIDATES_MAX = 4_000
_RUN_WORDS_MAX = 12
_SHORT_DOCUMENT_WORDS = 400
_RARE_PHRASES_MOST = 12  # of which some occur only once
_COMPOUND_CHARS = 11  # from which a single German word says as much as two English ones

_TOKEN = re.compile(r"[^\W\d_]\w*(?:['’&-]\w+)*|\d[\w.,:/%-]*|[^\w\s]|_|\t| {2,}")
_ELIDING = ("fr", "it")
_ELISION = re.compile(r"^(?:[cdjlmnst]|qu|lorsqu|jusqu|dell|nell|all|sull)['’](?=\w)", re.IGNORECASE)
_SCRIPT_WITHOUT_SPACES = "\u2e80"
_CONNECTED = "\x1f"


@dataclass(slots=True)
class _Seen:
    form: str
    first: int
    """How many words stood before it."""
    language: str
    count: int = 0
    spread: int = 0
    """In how many chunks."""
    headed: bool = False
    chunks: list[int] = field(default_factory=list)


class Phrases:
    def __init__(self) -> None:
        self._stems: dict[str, dict[str, str]] = {}
        self._seen: dict[str, _Seen] = {}
        self._last_heading: str | None = None
        self.words = 0

    def add(self, passage: Passage) -> list[str]:
        """Count the passage's phrases; its paragraphs, for who needs them too."""
        texts = (
            [cell for line in passage.fresh.split("\n") for cell in line.split(" | ")]
            if passage.is_table
            else list(paragraphs(passage.fresh))
        )
        found = self._candidates(texts, passage.language)
        if passage.heading and passage.heading != self._last_heading:
            self._last_heading = passage.heading
            titles = passage.heading.split(" › ")[-1:]
            self._count(self._candidates(titles, passage.language), passage, headed=True)
        self._count(found, passage, headed=False)
        return [] if passage.is_table else texts

    def discount(self, lines: Iterable[tuple[str, int]], language: str) -> None:
        """Take back what was counted of lines that turned out to be no text."""
        for line, times in lines:
            for key in self._candidates([line], language):
                if key in self._seen:
                    self._seen[key].count -= times

    def weight(self, stem: str) -> float:
        """How much a single word is at the heart of the document."""
        seen = self._seen.get(stem)
        return 0.0 if seen is None or seen.count < 1 else math.log2(1 + seen.count)

    def stem(self, word: str, language: str) -> str:
        """A word's form to count it by; empty for a word that says nothing of its own."""
        stems = self._stems.setdefault(language, {})
        stem = stems.get(word)
        if stem is None:
            if len(stems) >= _FORMS_MAX:
                stems.clear()
            stem = stems[word] = _stem(word, language)
        return stem

    def content_of(self, sentence: str, language: str) -> list[str]:
        found = (self.stem(token, language) for token in _TOKEN.findall(sentence))
        return [stem for stem in found if stem and stem != _CONNECTED]

    def _candidates(self, texts: Iterable[str], language: str) -> dict[str, tuple[int, str]]:
        """How often each is in the texts, and its first form."""
        stems = self._stems.setdefault(language, {})
        counted: dict[str, tuple[int, str]] = {}
        for text in texts:
            run: list[tuple[str, str]] = []
            for token in _TOKEN.findall(text):
                stem = stems.get(token)
                if stem is None:
                    stem = self.stem(token, language)
                if not stem or (stem == _CONNECTED and not run):
                    if run:
                        _count_run(run, counted)
                        run = []
                    continue
                run.append((stem, token))
                if stem != _CONNECTED:
                    self.words += 1
                if len(run) >= _RUN_WORDS_MAX:
                    _count_run(run, counted)
                    run = []
            if run:
                _count_run(run, counted)
        return counted

    def _count(self, found: dict[str, tuple[int, str]], passage: Passage, *, headed: bool) -> None:
        seen, chunk, language = self._seen, passage.number, passage.language
        for key, (times, form) in found.items():
            known = seen.get(key)
            if known is None:
                if len(seen) >= _PHRASES_MAX:
                    self._forget()
                    seen = self._seen
                known = seen[key] = _Seen(form, self.words, language)
            elif form != known.form and _plainness(form) < _plainness(known.form):
                known.form = form
            known.count += times
            known.headed = known.headed or headed
            if not known.chunks or known.chunks[-1] != chunk:
                known.spread += 1
                if len(known.chunks) < CHUNKS_MAX:
                    known.chunks.append(chunk)

    def _forget(self) -> None:
        by_weight = sorted(self._seen.items(), key=lambda item: (-item[1].count, -item[1].first))
        self._seen = dict(by_weight[: _PHRASES_MAX // 2])

    def findings(
        self, organizations: frozenset[str] = frozenset(), words_of_persons: frozenset[str] = frozenset()
    ) -> list[Finding]:
        """The most telling first. The names of organisations and of persons are told elsewhere."""
        chosen: list[tuple[float, str, _Seen]] = []
        singles = 0
        for score, key, seen in self._ranked():
            if len(chosen) == MOST["phrase"] or (seen.count < 2 and len(chosen) >= _RARE_PHRASES_MOST):
                break
            is_single = " " not in key
            if is_single and singles >= MOST["phrase"] // 3:
                continue
            form = seen.form.casefold()
            words = set(form.split())
            is_name = words & _LEGAL_FORMS or words & words_of_persons or _is_part_of_one(form, organizations)
            if is_name:
                continue
            if any(_says_the_same(key, seen.count, other, kept.count) for _, other, kept in chosen):
                continue
            singles += is_single
            chosen.append((score, key, seen))
        best = chosen[0][0] if chosen else 1.0
        return [
            finding(
                "phrase", _shown(seen), score=math.sqrt(score / best), chunks=seen.chunks, count=seen.count
            )
            for score, _, seen in chosen
        ]

    def _ranked(self) -> Iterator[tuple[float, str, _Seen]]:
        able = [item for item in self._seen.items() if item[1].count >= 1 and _is_noun(*item)]
        if self.words > _SHORT_DOCUMENT_WORDS:
            able = [item for item in able if item[1].count > 1]
        able.sort(key=lambda item: (-item[1].count, item[1].first, item[0]))
        able = able[:_CANDIDATES_MAX]
        inside = _inside_longer(able)
        ranked = [(self._score(key, seen, inside.get(key, 0.0)), key, seen) for key, seen in able]
        ranked.sort(key=lambda item: (-item[0], item[2].first, item[1]))
        return (item for item in ranked if item[0] > 0)

    def _score(self, key: str, seen: _Seen, inside: float) -> float:
        words = key.count(" ") + 1 - key.count(_CONNECTED)
        own = seen.count - inside
        if words == 1:
            own *= _weight_of_single(seen.form, seen.language)
        if seen.count < 2:
            own = 0.5 if 1 < words < WORDS_MAX else 0.0
        spread = 1 + math.log2(max(1, seen.spread)) / 4
        position = 1 + 0.5 * (1 - seen.first / max(1, self.words))
        return own * math.log2(1 + min(words, 3)) * spread * position * (1.5 if seen.headed else 1.0)


def _count_run(run: list[tuple[str, str]], counted: dict[str, tuple[int, str]]) -> None:
    for begin in range(len(run)):
        if run[begin][0] == _CONNECTED:
            continue
        key = form = ""
        words = 0
        for stem, token in run[begin : begin + WORDS_MAX + 2]:
            words += stem != _CONNECTED
            if words > WORDS_MAX:
                break
            key = f"{key} {stem}" if key else stem
            form = f"{form} {token}" if form else token
            if stem != _CONNECTED:
                times, known = counted.get(key, (0, form))
                if known != form and _plainness(form) < _plainness(known):
                    known = form
                counted[key] = times + 1, known


def _stem(word: str, language: str) -> str:
    if not word[0].isalpha() or word[0] >= _SCRIPT_WITHOUT_SPACES:
        return ""
    lower = word.lower().replace("’", "'")
    if language in _ELIDING:
        elided = _ELISION.match(lower)
        if elided:
            lower = lower[elided.end() :]
    if word in CODES:
        return ""
    if lower in CONNECTORS.get(language, ()):
        return _CONNECTED
    if (
        lower in STOP_WORDS[language]
        or lower in _VALUES
        or not _WORD_CHARS_MIN <= len(lower) <= _WORD_CHARS_MAX
    ):
        # Two capitals are a name: EU, IT, UK.
        return (
            lower
            if len(word) == 2 and word.isalpha() and word.isupper() and lower not in STOP_WORDS[language]
            else ""
        )
    lower = lower.removesuffix("'s").removesuffix("'")
    if lower in STOP_WORDS[language] or ("'" in lower and language == "en"):
        return ""
    return _without_ending(lower, language)


def _without_ending(word: str, language: str) -> str:
    if len(word) < 5:
        return (
            word.removesuffix("s") if language == "en" and len(word) == 4 and word[-2] not in "siu" else word
        )
    if language == "en":
        if word.endswith("ies"):
            return f"{word[:-3]}y"
        if word.endswith(("sses", "shes", "ches", "xes")):
            return word[:-2]
        return word[:-1] if word[-1] == "s" and word[-2] not in "siu" else word
    if language == "de":
        for ending in ("en", "em", "er", "es", "e", "n", "s"):
            if word.endswith(ending) and len(word) - len(ending) >= 4:
                return word[: -len(ending)]
        return word
    return word.rstrip("sx") if language in ("fr", "es", "pt") else word


def _shown(seen: _Seen) -> str:
    """Without the article that some languages join to a word."""
    return _ELISION.sub("", seen.form, count=1) if seen.language in _ELIDING else seen.form


def _plainness(form: str) -> tuple[int, int]:
    """Of two forms the one with fewer capitals is shown, else the shorter one."""
    return sum(map(str.isupper, form)), len(form)


def _is_noun(key: str, seen: _Seen) -> bool:
    """As far as its looks tell: in German a capital, in English no ending of an adverb or of the past."""
    last = seen.form.rpartition(" ")[2]
    if seen.language == "de":
        return last[0].isupper()
    if seen.language != "en":
        return True
    if seen.count > 1 or " " not in key:
        return not last.endswith("ly")
    return not last.endswith("ly") and not any(word.endswith("ed") for word in key.split(" ")[1:])


def _is_part_of_one(form: str, names: frozenset[str]) -> bool:
    return form in names or (" " in form and any(form in name or name in form for name in names))


def _weight_of_single(form: str, language: str) -> float:
    is_name = form[0].isupper() and language != "de"
    if len(form) <= 6 and form.isupper():
        return 0.9
    if language in ("de", "nl") and len(form) >= _COMPOUND_CHARS:
        return 1.2
    return 0.6 if is_name else 0.35


def _inside_longer(able: list[tuple[str, _Seen]]) -> dict[str, float]:
    """How often each phrase occurs as a part of longer ones that occur twice or more: on average over them.
    A single word: as often as all pairs have it, for it should be told only where it stands alone."""
    sums: dict[str, list[int]] = {}
    for key, seen in able:
        words = key.split(" ")
        if seen.count < 2 or len(words) < 2:
            continue
        spans = {
            " ".join(words[begin:end])
            for begin in range(len(words))
            for end in range(begin + 1, len(words) + 1)
        }
        for part in spans - {key}:
            is_single = " " not in part
            if is_single and len(words) > 2 and _CONNECTED not in words:
                continue
            total = sums.setdefault(part, [0, 0])
            total[0] += seen.count
            total[1] = 1 if is_single else total[1] + 1
    return {part: total / times for part, (total, times) in sums.items()}


def _says_the_same(key: str, count: int, other: str, other_count: int) -> bool:
    if f" {key} " in f" {other} ":
        return count < 2 * other_count
    if f" {other} " in f" {key} ":
        return count * 2 > other_count or " " in other
    words, others = key.split(" "), other.split(" ")
    # Two windows on one longer phrase.
    for shared in range(1 if count == 1 else 2, min(len(words), len(others))):
        if words[-shared:] == others[:shared] or others[-shared:] == words[:shared]:
            return count <= other_count
    return set(words) == set(others)
