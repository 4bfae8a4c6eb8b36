"""The analysis by rules, on this machine: one pass over the chunks of a document.

    ChunkText ──prepared──▶ Passage ──without what repeats on each page──▶ phrases · summary · parties
                                                                           dates · amounts · tables

Each of the six counts what it looks for and holds only what is bounded; in the end each names the most
telling of what it has. The same chunks always give the same findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from holdfast.pipelines.documents.findings.amounts import Amounts
from holdfast.pipelines.documents.findings.dates import Dates
from holdfast.pipelines.documents.findings.finding import ChunkText, Finding
from holdfast.pipelines.documents.findings.language import Languages
from holdfast.pipelines.documents.findings.numerals import DecimalMark
from holdfast.pipelines.documents.findings.parties import Parties, names_of
from holdfast.pipelines.documents.findings.passage import MarginLines, Passage, prepared
from holdfast.pipelines.documents.findings.phrases import Phrases
from holdfast.pipelines.documents.findings.prose import flowing
from holdfast.pipelines.documents.findings.summary import Summary
from holdfast.pipelines.documents.findings.tables import Tables


def analyze(chunks: Iterable[ChunkText], *, beat: Callable[[float | None], None]) -> list[Finding]:
    """The findings of a document. `beat` is called between chunks, and may raise to end it."""
    languages, margins, decimal_mark = Languages(), MarginLines(), DecimalMark()
    phrases, parties, dates = Phrases(), Parties(), Dates()
    summary, amounts, tables = Summary(phrases), Amounts(decimal_mark), Tables(decimal_mark)

    def passages() -> Iterator[Passage]:
        for chunk in chunks:
            beat(None)
            passage = prepared(chunk)
            yield passage.in_language(languages.of(passage.text))

    for passage in margins.without_repeated_lines(passages()):
        tables.add(passage)
        summary.add(passage, phrases.add(passage))
        if not passage.is_table:
            passage = replace(passage, text=flowing(passage.text))
        amounts.add(passage)
        dates.add(passage)
        parties.add(passage)
    beat(None)
    phrases.discount(margins.sightings_counted(), languages.main)
    named = parties.findings()
    return [
        *summary.findings(beat),
        *phrases.findings(*names_of(named)),
        *named,
        *dates.findings(languages.main),
        *amounts.findings(),
        *tables.findings(),
    ]
