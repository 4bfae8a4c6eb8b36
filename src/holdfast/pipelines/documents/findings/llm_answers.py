"""What a model has answered: read by the one shape it may have, believed where the document bears it out.

A name, a phrase, a date or an amount that stands nowhere in the chunks of the request is dropped, and so
are the numbers of chunks that were not in it, and dates and amounts that are none. All is cut to its bound.
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from holdfast.pipelines.documents.findings.finding import one_line, shortened
from holdfast.pipelines.documents.findings.llm_requests import OTHERS_ASKED, PHRASES_ASKED, SENTENCES_ASKED
from holdfast.pipelines.documents.findings.numerals import plain
from holdfast.pipelines.documents.findings.passage import Passage, context_of

SENTENCE_CHARS_MAX, NAME_CHARS_MAX, WORDS_CHARS_MAX = 600, 200, 120
_ANSWER_CHARS_MAX = 1_000_000
_DECIMAL = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,8})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}(?:-[0-9]{2})?|[0-9]{4}-Q[1-4]")
_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL)


class SummarySentence(msgspec.Struct):
    sentence: str
    chunks: list[int]


class Phrase(msgspec.Struct):
    text: str
    chunks: list[int]


class Party(msgspec.Struct):
    name: str
    type: Literal["organization", "person"]
    chunks: list[int]
    role: str | None = None


class Date(msgspec.Struct):
    text: str
    date: str
    chunks: list[int]
    meaning: str | None = None


class Amount(msgspec.Struct):
    text: str
    amount: str | int | float
    chunks: list[int]
    currency: str | None = None
    unit: str | None = None
    meaning: str | None = None


class SummaryAnswer(msgspec.Struct):
    summary: list[SummarySentence]


class FindingsAnswer(SummaryAnswer):
    phrases: list[Phrase]
    parties: list[Party]
    dates: list[Date]
    amounts: list[Amount]


class Trouble(Enum):
    """Why an answer is none."""

    REFUSED = "refused"
    CUT_OFF = "cut off"
    NOT_BY_SCHEMA = "not by the schema"


Answer = TypeVar("Answer", bound=SummaryAnswer)


def read(answer: dict[str, Any], shape: type[Answer]) -> Answer | tuple[Trouble, str]:
    """The answer in its shape, or what is wrong with it, and words for the log."""
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        content, refusal = message.get("content"), message.get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        return Trouble.NOT_BY_SCHEMA, "no choices with a message"
    finish = choice.get("finish_reason")
    if refusal or finish == "content_filter":
        return Trouble.REFUSED, shortened(one_line(str(refusal or "its content filter")), 200)
    if not isinstance(content, str) or len(content) > _ANSWER_CHARS_MAX:
        return Trouble.NOT_BY_SCHEMA, "no text, or far too much"
    fenced = _FENCE.fullmatch(content)
    try:
        return msgspec.json.decode(fenced[1] if fenced else content, type=shape)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        if finish == "length":
            return Trouble.CUT_OFF, "the answer is longer than the service lets it be"
        return Trouble.NOT_BY_SCHEMA, shortened(one_line(str(error)), 200)


class Borne(NamedTuple):
    """An item that the document bears out: what it is counted by, how to show it, and where it stands."""

    key: Any
    text: str
    value: dict[str, Any] | None
    chunks: list[int]


class Evidence:
    """The chunks of a request, to look up what is said about them."""

    def __init__(self, window: list[Passage]) -> None:
        self._passages = window
        self._texts = [(passage.number, " ".join(passage.text.casefold().split())) for passage in window]
        self._numbers = {passage.number for passage in window}

    def chunks_of(self, text: str, claimed: list[int]) -> list[int]:
        """Where the text stands: in those of the claimed chunks that have it, else in any."""
        wanted = " ".join(text.casefold().split())
        has = [number for number, chunk in self._texts if wanted and wanted in chunk]
        return [number for number in has if number in claimed] or has

    def known(self, claimed: list[int]) -> list[int]:
        return sorted(self._numbers.intersection(claimed))

    def context(self, text: str, chunk: int) -> str:
        passage = next(passage for passage in self._passages if passage.number == chunk)
        at = passage.text.find(text)
        return context_of(passage, at, at + len(text)) if at >= 0 else ""


def sentences(answer: SummaryAnswer, evidence: Evidence) -> list[tuple[str, list[int]]]:
    found = []
    for item in answer.summary[:SENTENCES_ASKED]:
        text, chunks = _line(item.sentence, SENTENCE_CHARS_MAX), evidence.known(item.chunks)
        if text and chunks:
            found.append((text, chunks))
    return found


def phrases(answer: FindingsAnswer, evidence: Evidence) -> list[Borne]:
    found = []
    for item in answer.phrases[: 2 * PHRASES_ASKED]:
        text = _line(item.text, WORDS_CHARS_MAX)
        if chunks := evidence.chunks_of(text, item.chunks):
            found.append(Borne(text.casefold(), text, None, chunks))
    return found


def parties(answer: FindingsAnswer, evidence: Evidence) -> list[Borne]:
    found = []
    for item in answer.parties[: 2 * OTHERS_ASKED]:
        name = _line(item.name, NAME_CHARS_MAX)
        if chunks := evidence.chunks_of(name, item.chunks):
            value: dict[str, Any] = {"type": item.type}
            if role := _line(item.role or "", WORDS_CHARS_MAX):
                value["role"] = role
            found.append(Borne(name.casefold(), name, value, chunks))
    return found


def dates(answer: FindingsAnswer, evidence: Evidence) -> list[Borne]:
    found = []
    for item in answer.dates[: 2 * OTHERS_ASKED]:
        text = _line(item.text, WORDS_CHARS_MAX)
        precision = _precision(item.date)
        if precision and (chunks := evidence.chunks_of(text, item.chunks)):
            value = {"date": item.date, "precision": precision}
            found.append(
                Borne(item.date, text, value | _said(item.meaning, text, chunks[0], evidence), chunks)
            )
    return found


def amounts(answer: FindingsAnswer, evidence: Evidence) -> list[Borne]:
    found = []
    for item in answer.amounts[: 2 * OTHERS_ASKED]:
        text = _line(item.text, WORDS_CHARS_MAX)
        amount = _decimal(item.amount)
        currency = (item.currency or "").strip().upper()
        is_money = bool(re.fullmatch("[A-Z]{3}", currency))
        if amount is None or not (is_money or (item.unit or "").strip().lower() in ("percent", "%")):
            continue
        if chunks := evidence.chunks_of(text, item.chunks):
            written = plain(amount, money=is_money)
            value = {
                "amount": written,
                **({"currency": currency} if is_money else {"unit": "percent"}),
            }
            key = (written, currency if is_money else "percent")
            found.append(Borne(key, text, value | _said(item.meaning, text, chunks[0], evidence), chunks))
    return found


def _said(meaning: str | None, text: str, chunk: int, evidence: Evidence) -> dict[str, str]:
    said = {"context": evidence.context(text, chunk)}
    if words := _line(meaning or "", WORDS_CHARS_MAX):
        said["meaning"] = words
    return said


def _line(text: str, chars_max: int) -> str:
    return shortened(one_line(text[: 4 * chars_max]), chars_max)


def _precision(date: str) -> str:
    """Of a date that there is; empty for any other."""
    if not _DATE.fullmatch(date):
        return ""
    if "Q" in date:
        return "quarter"
    try:
        datetime.date.fromisoformat(date if len(date) == 10 else f"{date}-01")
    except ValueError:
        return ""
    return "day" if len(date) == 10 else "month"


def _decimal(amount: str | int | float) -> Decimal | None:
    text = str(amount).strip().replace(",", "")
    return Decimal(text) if _DECIMAL.fullmatch(text) else None
