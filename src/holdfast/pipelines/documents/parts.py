"""What a document consists of, as people look at it: its chunks, and what was found in them.

Nothing is shown in halves: chunks once it is parsed, findings once it is analyzed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.pipelines.documents.documents import Document
from holdfast.store.tables import Row, TablesStore

PAGE_CHARS_MAX = 8 * 1024**2
INT4_MAX = 2**31 - 1


class ChunkLine(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a document and where it stands: a `page` of a PDF, `cells` of a `sheet`, under a `heading`.
    So many characters at the beginning of its text as `overlap` says repeat what stood before."""

    id: int
    number: int
    kind: str
    text: str
    page: int | None
    sheet: str | None
    cells: str | None
    heading: str | None
    overlap: int
    created_at: float


class FindingLine(msgspec.Struct, frozen=True, kw_only=True):
    """`chunks` are the numbers of the first chunks that it stands in, `count` how often it was found; `value`
    is what can be calculated with."""

    number: int
    kind: str
    text: str
    value: Any
    score: float
    count: int
    chunks: list[int]
    created_at: float


async def chunks_of(
    store: TablesStore,
    document: Document,
    *,
    after: int | None = None,
    numbers: Sequence[int] | None = None,
    limit: int,
) -> list[ChunkLine]:
    if document.last_completed_stage is None:
        return []
    conditions, values = "", [document.id, -1 if after is None else min(after, INT4_MAX), limit]
    if numbers is not None:
        wanted = sorted({number for number in numbers if number <= INT4_MAX})
        if not wanted:
            return []
        conditions = f" AND number IN ({', '.join(map(str, wanted))})"
    rows = await store.fetch_rows(
        "SELECT id, number, kind, text, page, sheet, cells, heading, overlap, created_at"
        f" FROM holdfast_document_chunks WHERE document_id = $1 AND number > $2{conditions}"
        " ORDER BY number LIMIT $3",
        *values,
    )
    return [_chunk(row) for row in rows]


def _chunk(row: Row) -> ChunkLine:
    return ChunkLine(**dict(zip(ChunkLine.__struct_fields__, row, strict=True)))


async def findings_of(
    store: TablesStore, document: Document, *, kind: str | None = None
) -> list[FindingLine]:
    """All of them: there are a few hundred at most."""
    if document.analyzed_at is None:
        return []
    condition, values = ("", []) if kind is None else (" AND kind = $2", [kind])
    rows = await store.fetch_rows(
        "SELECT number, kind, text, value, score, count, chunks, created_at"
        f" FROM holdfast_document_findings WHERE document_id = $1{condition} ORDER BY number",
        document.id,
        *values,
    )
    return [_finding(row) for row in rows]


def _finding(row: Row) -> FindingLine:
    number, kind, text, value, score, count, chunks, created_at = row
    return FindingLine(
        number=number,
        kind=kind,
        text=text,
        value=None if value is None else msgspec.json.decode(value),
        score=score,
        count=count,
        chunks=msgspec.json.decode(chunks),
        created_at=created_at,
    )
