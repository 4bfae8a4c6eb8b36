"""The analysis by a model behind an OpenAI-compatible API: window by window, the answers put together.

    chunks ──▶ windows ──asked──▶ answers ──what the document bears out──▶ merged ──▶ findings
    summaries of windows ──asked, while there are more than one──▶ the summary

An answer that is cut off, or a request that is too large, is asked again in two halves. An answer that is no
JSON by the schema is asked once more and is then a fault that may heal. Tables are added up by rules, as
without a model: nobody should have to check a model's sums.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import PermanentError, TransientError
from holdfast.pipelines.documents.endpoint_answers import TooMuchAtOnce
from holdfast.pipelines.documents.findings import llm_answers as answers
from holdfast.pipelines.documents.findings.finding import (
    CHUNKS_MAX,
    MOST,
    ChunkText,
    Finding,
    Kind,
    finding,
    storable,
)
from holdfast.pipelines.documents.findings.language import Languages
from holdfast.pipelines.documents.findings.llm_answers import Answer, Borne, Evidence, Trouble
from holdfast.pipelines.documents.findings.llm_requests import (
    asked_once_more,
    findings_body,
    summary_body,
    windows,
    without,
)
from holdfast.pipelines.documents.findings.numerals import DecimalMark
from holdfast.pipelines.documents.findings.passage import Passage, prepared
from holdfast.pipelines.documents.findings.tables import Tables

if TYPE_CHECKING:
    from holdfast.pipelines.documents.settings import EndpointSettings

Ask = Callable[[dict[str, Any]], dict[str, Any]]
Beat = Callable[[float | None], None]

log = logging.getLogger("holdfast.documents")

_HELD_MAX = 2_000
_SENTENCES_AT_ONCE = 60
_HALVED_CHARS_MIN = 500
# What a service may not know, though its API is compatible.
_MAY_BE_LEFT_OUT = {"response_format": ("response_format", "json_schema"), "temperature": ("temperature",)}


def analyze_by_model(
    chunks: Iterable[ChunkText], endpoint: EndpointSettings, *, ask: Ask, beat: Beat
) -> list[Finding]:
    """The findings of a document. `ask` posts the body of a request to /chat/completions and gives the
    answer; its errors pass through. `beat` is called between chunks and requests, and may raise."""
    model = _Model(endpoint.model, ask, beat)
    tables, languages = Tables(DecimalMark()), Languages()

    def seen() -> Iterator[ChunkText]:
        for chunk in chunks:
            beat(None)
            passage = prepared(chunk)
            tables.add(passage.in_language(languages.of(passage.text)))
            yield chunk

    merged = {kind: _Merged(kind) for kind in ("phrase", "party", "date", "amount")}
    summary = _Summaries(model)
    for window in windows(seen()):
        for answer, part in model.findings_of(window):
            evidence = Evidence(part)
            merged["phrase"].add(answers.phrases(answer, evidence))
            merged["party"].add(answers.parties(answer, evidence))
            merged["date"].add(answers.dates(answer, evidence))
            merged["amount"].add(answers.amounts(answer, evidence))
            summary.add(answers.sentences(answer, evidence))
    model.finish()
    found = [one for kind in merged.values() for one in kind.findings()]
    return [*summary.findings(), *found, *tables.findings()]


class _Model:
    """Asked for one document; it remembers what the service has not understood, and what it refused."""

    def __init__(self, name: str, ask: Ask, beat: Beat) -> None:
        self._name = name
        self._ask = ask
        self._beat = beat
        self._left_out: set[str] = set()
        self._answered = 0
        self._refused: list[str] = []

    def findings_of(self, window: list[Passage]) -> Iterator[tuple[answers.FindingsAnswer, list[Passage]]]:
        """The answers for a window, in as many parts as it takes."""
        try:
            answer = self._asked(findings_body(self._name, window), answers.FindingsAnswer)
        except TooMuchAtOnce:
            if _halves(window) is None:
                raise
            answer = Trouble.CUT_OFF
        if answer is Trouble.CUT_OFF:
            halves = _halves(window)
            if halves is None:
                raise _bad_answer("is cut off even for a single chunk, and so no JSON")
            for half in halves:
                yield from self.findings_of(half)
        elif not isinstance(answer, Trouble):
            yield answer, window

    def summary_of(self, sentences: list[str]) -> answers.SummaryAnswer | Trouble:
        return self._asked(summary_body(self._name, sentences), answers.SummaryAnswer)

    def _asked(self, body: dict[str, Any], shape: type[Answer]) -> Answer | Trouble:
        what = ""
        for once_more in (False, True):
            self._beat(None)
            given = self._sent(asked_once_more(body) if once_more else body)
            found = answers.read(given, shape)
            if not isinstance(found, tuple):
                self._answered += 1
                return found
            trouble, what = found
            if trouble is Trouble.REFUSED:
                log.warning("The analysis service refused a part of a document: %s", storable(what))
                self._refused.append(what)
                return trouble
            if trouble is Trouble.CUT_OFF:
                return trouble
        raise _bad_answer(f"is not by the schema, twice: {what}")

    def _sent(self, body: dict[str, Any]) -> dict[str, Any]:
        """Without what the service says that it does not know."""
        while True:
            try:
                return self._ask(without(body, self._left_out))
            except TooMuchAtOnce:
                raise
            except PermanentError as error:
                said = str(error)
                unknown = {
                    name
                    for name, words in _MAY_BE_LEFT_OUT.items()
                    if name not in self._left_out and any(word in said for word in words)
                }
                if not unknown:
                    raise
                self._left_out |= unknown

    def finish(self) -> None:
        """What was refused is missing; where all of it was, there is no analysis."""
        if self._refused and not self._answered:
            raise PermanentError(
                f"The analysis service refused the document: {self._refused[0]}",
                error_type="analysis_refused",
                user_message="The analysis service refused to analyze this document",
                guidance="Use another model, or leave HOLDFAST_ANALYSIS_URL unset, to analyze it by rules.",
            )


def _halves(window: list[Passage]) -> tuple[list[Passage], list[Passage]] | None:
    if len(window) > 1:
        middle = len(window) // 2
        return window[:middle], window[middle:]
    [passage] = window
    if len(passage.text) < _HALVED_CHARS_MIN:
        return None
    middle = passage.text.rfind(" ", 0, len(passage.text) // 2)
    middle = middle if middle > 0 else len(passage.text) // 2
    return [passage.part(0, middle)], [passage.part(middle, len(passage.text))]


def _bad_answer(what: str) -> TransientError:
    return TransientError(
        f"The answer of the analysis service {what}",
        error_type="bad_answer",
        user_message="The analysis service gave an answer that cannot be read",
        guidance="If it stays so, set HOLDFAST_ANALYSIS_MODEL to a model that can answer by a JSON schema.",
    )


@dataclass(slots=True)
class _Item:
    text: str
    value: dict[str, Any] | None
    order: int
    weight: float
    chunks: list[int]
    count: int


class _Merged:
    """The items of one kind from all windows; those that are named first and often weigh most."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._items: dict[Any, _Item] = {}
        self._order = 0

    def add(self, found: list[Borne]) -> None:
        for rank, borne in enumerate(found):
            weight = 1.0 / math.sqrt(1 + rank)
            known = self._items.get(borne.key)
            if known is None:
                self._order += 1
                self._items[borne.key] = _Item(
                    borne.text, borne.value, self._order, weight, borne.chunks, len(borne.chunks)
                )
                continue
            known.weight += weight
            known.count += len(set(borne.chunks) - set(known.chunks))
            known.chunks = sorted({*known.chunks, *borne.chunks})[:CHUNKS_MAX]
            # A role or a meaning that only a later window tells.
            if known.value is not None and borne.value is not None:
                known.value = borne.value | known.value
        if len(self._items) > _HELD_MAX:
            kept = sorted(self._items.items(), key=lambda item: (-item[1].weight, item[1].order))
            self._items = dict(kept[: _HELD_MAX // 2])

    def findings(self) -> list[Finding]:
        items = sorted(self._items.values(), key=lambda item: (-item.weight, item.order))[: MOST[self._kind]]
        best = items[0].weight if items else 1.0
        return [
            finding(
                self._kind,
                item.text,
                value=item.value,
                score=item.weight / best,
                chunks=item.chunks,
                count=item.count,
            )
            for item in items
        ]


class _Summaries:
    """The sentences of the windows so far; too many of them are summed up themselves."""

    def __init__(self, model: _Model) -> None:
        self._model = model
        self._sentences: list[tuple[str, list[int]]] = []
        self._windows = 0

    def add(self, sentences: list[tuple[str, list[int]]]) -> None:
        self._windows += 1
        self._sentences += sentences
        if len(self._sentences) > _SENTENCES_AT_ONCE:
            self._shorten()

    def _shorten(self) -> None:
        told = self._sentences
        answer = self._model.summary_of([text for text, _ in told])
        if isinstance(answer, Trouble):  # refused or cut off: some sentences of each part, rather than none
            step = math.ceil(len(told) / MOST["summary"])
            self._sentences = told[::step]
            return
        shortened = []
        for item in answer.summary[: MOST["summary"]]:
            chunks = {chunk for number in item.chunks if 0 <= number < len(told) for chunk in told[number][1]}
            text = storable(item.sentence)[: answers.SENTENCE_CHARS_MAX].strip()
            if text and chunks:
                shortened.append((text, sorted(chunks)[:CHUNKS_MAX]))
        self._sentences = shortened or told[: MOST["summary"]]

    def findings(self) -> list[Finding]:
        if self._windows > 1 and len(self._sentences) > MOST["summary"]:
            self._shorten()
        return [
            finding("summary", text, value={"position": position}, score=1.0, chunks=chunks)
            for position, (text, chunks) in enumerate(self._sentences[: MOST["summary"]], start=1)
        ]
