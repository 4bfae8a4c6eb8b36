"""`holdfast documents show`: one document, from where it stands to what was found in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.documents_door import document_of, door_to
from holdfast.cli.documents_words import STYLES, badge, named, told_place, told_size
from holdfast.cli.going_on import typed
from holdfast.cli.options import opened
from holdfast.cli.output import (
    DIM,
    HEAD,
    clipped,
    counted,
    fields,
    hint,
    is_terminal,
    moment,
    say,
    show_json,
    shown,
    table,
    wall_time,
)

if TYPE_CHECKING:
    from holdfast.cli.documents_door import Door
    from holdfast.pipelines.documents.documents import Document, DocumentDetails
    from holdfast.pipelines.documents.parts import ChunkLine, FindingLine

CHUNKS_PER_PAGE = 100
MESSAGE_CHARS = 100
FINDING_CHARS = 120
SHEETS_TOLD_MAX = 10
# Of each kind so many are told; the most telling ones come first.
TOLD_MAX = {"summary": 5, "phrase": 12, "party": 8, "date": 8, "amount": 8, "table": 5}
KINDS = {
    "summary": "summary",
    "phrase": "key phrases",
    "party": "parties",
    "date": "dates",
    "amount": "amounts",
    "table": "tables",
}


async def show_one(url: str, document_id: int, *, with_chunks: bool, as_json: bool) -> None:
    async with opened(url) as engine:
        door = await door_to(engine)
        document = await document_of(door, document_id)
        findings = await door.findings(document)
        if as_json:
            # How many chunks and findings it has is in the document itself.
            record = {**msgspec.to_builtins(document), "found": findings}
            if with_chunks:
                record["text"] = [chunk async for chunk in _chunks(door, document)]
            show_json(record)
            return
        _show_document(document, await engine.now())
        if findings:
            say()
            _show_findings(document, findings, await _places(door, document, findings))
        if with_chunks:
            say()
            say("Text", HEAD)
            async for chunk in _chunks(door, document):
                _show_chunk(chunk)
    if is_terminal():
        say()
    if document.status == "failed" and document.retry.allowed:
        command = typed(f"holdfast documents retry {document_id}")
        hint(f"Retry from {document.retry.resumes_at}, once the cause is gone:  {command}")
    if not with_chunks and document.last_completed_stage is not None:
        hint(f"Its text:  {typed(f'holdfast documents show {document_id} --chunks')}")


async def _chunks(door: Door, document: Document) -> AsyncIterator[ChunkLine]:
    last: int | None = None
    while page := await door.chunks(document, after=last, limit=CHUNKS_PER_PAGE):
        for chunk in page:
            yield chunk
        last = page[-1].number


# where it stands


def _show_document(document: DocumentDetails, now: float) -> None:
    say(f"Document {document.id}: {named(document)}", HEAD)
    stands = (
        f"Failed at {document.stage}" if document.status == "failed" and document.stage else badge(document)
    )
    say(f"{stands}.", STYLES.get(document.status.value, ""))
    say()
    retries = []
    if document.retry_count:
        retries.append(f"{document.retry_count} automatic")
    if document.manual_retries:
        retries.append(f"{document.manual_retries} by hand")
    has_ended = document.status in ("complete", "failed")
    fields(
        [
            ("kind", _kind_of(document)),
            ("title", clipped(document.title, FINDING_CHARS) if document.title else None),
            ("size", told_size(document.size)),
            ("text", _text_of(document)),
            ("vectors", _vectors_of(document)),
            ("findings", document.findings or None),
            ("uploaded", moment(document.created_at, now)),
            ("parsed", moment(document.parsed_at, now)),
            ("embedded", moment(document.embedded_at, now)),
            ("analyzed", moment(document.analyzed_at, now)),
            ("sign of life", None if has_ended else moment(document.last_heartbeat, now)),
            ("next attempt", moment(document.retry_at, now)),
            ("retries", ", ".join(retries)),
        ]
    )
    if document.facts is not None and document.facts.warnings:
        say()
        say("Worth knowing", HEAD)
        for warning in document.facts.warnings:
            say(f"  {clipped(warning, 1_000)}")
    if document.processing_error is not None:
        _show_error(document, now)
    if document.retry_history and (len(document.retry_history) > 1 or document.processing_error is None):
        _show_history(document)


def _kind_of(document: DocumentDetails) -> str | None:
    facts = document.facts
    if facts is None or document.kind is None:
        return document.kind and document.kind.upper()
    parts = [document.kind.upper()]
    if facts.pages is not None:
        parts.append(counted(facts.pages, "page"))
    if facts.sheets:
        names = ", ".join(facts.sheets[:SHEETS_TOLD_MAX])
        more = len(facts.sheets) - SHEETS_TOLD_MAX
        more_told = f" and {more:,} more" if more > 0 else ""
        parts.append(f"{counted(len(facts.sheets), 'sheet')}: {clipped(names, FINDING_CHARS)}{more_told}")
    if facts.encoding:
        parts.append(f"encoding {facts.encoding}")
    return ", ".join(parts)


def _text_of(document: DocumentDetails) -> str | None:
    if document.last_completed_stage is None:
        return None
    chunks = counted(document.chunks, "chunk")
    if document.facts is None:
        return chunks
    return f"{counted(document.facts.characters, 'character')} in {chunks}"


def _vectors_of(document: DocumentDetails) -> str | None:
    if not document.embedded_chunks:
        return None
    of_all = "" if document.embedded_chunks == document.chunks else f" of {document.chunks:,}"
    by = f", by {document.embedding_model}" if document.embedding_model else ""
    return f"{document.embedded_chunks:,}{of_all}{by}"


def _show_error(document: DocumentDetails, now: float) -> None:
    error = document.processing_error
    assert error is not None
    say()
    say("What went wrong" if document.status == "failed" else "Last error", HEAD)
    fields(
        [
            ("what", f"{error.user_message}."),
            ("do", error.guidance),
            ("category", error.category.value),
            ("error", f"{error.error_type}: {clipped(error.message, MESSAGE_CHARS)}"),
            ("stage", error.stage),
            ("when", moment(error.timestamp, now)),
            ("retry", _told_retry(document, now)),
        ]
    )


def _told_retry(document: DocumentDetails, now: float) -> str | None:
    from holdfast.pipelines.documents.documents import GIVEN_UP

    retry = document.retry
    if document.status != "failed":
        return None
    left = f"{counted(retry.retries_left, 'retry', 'retries')} by hand left"
    if retry.allowed:
        return f"possible, resumes at {retry.resumes_at}; {left}"
    error = document.processing_error
    if error is not None and error.rule == GIVEN_UP:
        return "not possible: it was given up, and did not fail"
    if error is not None and error.category.value == "permanent":
        if not retry.retries_left:
            return (
                "not possible: it would fail in the same way, and was retried by hand as often as it may be"
            )
        return "not possible: it would fail in the same way (--force, once the cause is repaired)"
    if retry.cooldown_until is not None and retry.retries_left:
        return f"possible {moment(retry.cooldown_until, now)}, resumes at {retry.resumes_at}; {left}"
    return f"not possible: {retry.reason}"


def _show_history(document: DocumentDetails) -> None:
    say()
    say("Failed attempts", HEAD)
    table(
        ("when", "stage", "attempt", "error", "message"),
        [
            (
                wall_time(note.timestamp),
                note.stage,
                note.attempt,
                note.error_type,
                clipped(note.message, MESSAGE_CHARS),
            )
            for note in document.retry_history
        ],
    )


# what is in it


async def _places(door: Door, document: Document, findings: Sequence[FindingLine]) -> dict[int, str]:
    """Of the first chunks of those findings that are told."""
    numbers = {finding.chunks[0] for finding in _told(findings) if finding.chunks}
    if not numbers:
        return {}
    found = await door.chunks(document, numbers=sorted(numbers), limit=len(numbers))
    return {chunk.number: told_place(chunk) for chunk in found}


def _told(findings: Sequence[FindingLine]) -> Iterator[FindingLine]:
    for kind, most in TOLD_MAX.items():
        yield from [finding for finding in findings if finding.kind == kind][:most]


def _show_findings(document: Document, findings: Sequence[FindingLine], places: dict[int, str]) -> None:
    say("Findings", HEAD)
    lines, is_cut = [], False
    for kind, name in KINDS.items():
        of_kind = [finding for finding in findings if finding.kind == kind]
        told = [_told_finding(finding, places) for finding in of_kind[: TOLD_MAX[kind]]]
        if (more := len(of_kind) - len(told)) > 0:
            told.append(f"and {more:,} more")
            is_cut = True
        lines.append((name, (", " if kind == "phrase" else "\n").join(told)))
    fields(lines)
    if is_cut:
        hint(f"All of them:  {typed(f'holdfast documents show {document.id} --json')}")


def _told_finding(finding: FindingLine, places: dict[int, str]) -> str:
    text = clipped(finding.text, FINDING_CHARS * 3 if finding.kind == "summary" else FINDING_CHARS)
    if finding.kind == "phrase":
        return text
    value = finding.value if isinstance(finding.value, dict) else {}
    parts = []
    if finding.kind == "party" and value.get("role"):
        parts.append(str(value["role"]))
    if finding.kind == "date" and value.get("date") and value["date"] != finding.text:
        other = f" or {value['other']}" if value.get("ambiguous") and value.get("other") else ""
        parts.append(f"{value['date']}{other}")
    if place := places.get(finding.chunks[0] if finding.chunks else -1):
        parts.append(place)
    return f"{text} ({', '.join(parts)})" if parts else text


def _show_chunk(chunk: ChunkLine) -> None:
    where = [f"{chunk.number}", told_place(chunk), chunk.heading or ""]
    kind = chunk.kind if chunk.kind != "text" else ""
    say(f"[{', '.join(filter(None, [*where, kind]))}]", DIM)
    click.echo(shown(chunk.text[chunk.overlap :].strip("\n")))
