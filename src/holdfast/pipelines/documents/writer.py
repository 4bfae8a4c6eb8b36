"""What one attempt writes of a document: its chunks, its vectors, its findings.

    begin(stage) ──▶ the document is this attempt's, and stands where the stage begins ──▶ parts ──▶ (the
    stage is done, by the step)

What an earlier stage has stored is never touched. A stage that was done before and is begun again, as a
person has asked for that, is cleared with all that was built on it. One that failed on its way is not: the
vectors that it has stored are as good as new ones, and it goes on behind them. What it cannot go on with, the
chunks of half a file, it clears itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.errors import PermanentError
from holdfast.pipelines.documents.findings.finding import ChunkText, Finding, storable
from holdfast.pipelines.documents.playbook import Stage
from holdfast.pipelines.documents.reading.chunk import Chunk
from holdfast.pipelines.documents.tables import ADD_DOCUMENT, CLEAR_CHUNKS, tables_for
from holdfast.pipelines.documents.vector_tables import vector_tables_for
from holdfast.pipelines.documents.vectors import (
    DELETE_OTHER_VECTORS,
    DELETE_VECTORS,
    PendingChunk,
    VectorWriter,
)
from holdfast.pipelines.held_row import HeldRow
from holdfast.pipelines.upload import Upload
from holdfast.store.tables import Row, TableTransaction, TableWriter

PART_ROWS_MAX = 1_000
PART_CHARS_MAX = 2_000_000
READ_ROWS = 500

_CHUNKS = {
    "sqlite": """
        INSERT INTO holdfast_document_chunks
            (document_id, number, kind, text, page, sheet, cells, heading, overlap, created_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "postgresql": """
        INSERT INTO holdfast_document_chunks
            (document_id, number, kind, text, page, sheet, cells, heading, overlap, created_at)
        SELECT * FROM unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::int[], $6::text[],
                             $7::text[], $8::text[], $9::int[], $10::float8[])""",
}
_FINDINGS = {
    "sqlite": "INSERT INTO holdfast_document_findings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "postgresql": """
        INSERT INTO holdfast_document_findings
        SELECT * FROM unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::text[], $6::float8[],
                             $7::int[], $8::text[], $9::float8[])""",
}

# How far a document must be for a stage to begin, and what it is set back to where it is further.
_BEGINS_AT: dict[Stage, str | None] = {
    Stage.PARSING: None,
    Stage.EMBEDDING: "parsed",
    Stage.ANALYZING: "embedded",
}
_SET_BACK = {
    Stage.PARSING: """last_completed_stage = NULL, parsed_at = NULL, embedded_at = NULL, analyzed_at = NULL,
        kind = NULL, title = NULL, facts = NULL, chunks = 0, findings = 0, embedding_model = NULL""",
    Stage.EMBEDDING: """last_completed_stage = 'parsed', embedded_at = NULL, analyzed_at = NULL, findings = 0,
        embedding_model = NULL""",
}
if TYPE_CHECKING:
    from holdfast.pipelines.documents.vectors import Vectors

_ORDER = (None, "parsed", "embedded", "analyzed", "complete")

_encode = msgspec.json.Encoder().encode


class DocumentWriter:
    """Used by one thread."""

    def __init__(self, writer: TableWriter, document_id: int, task_id: str, now: Callable[[], float]) -> None:
        self._writer = writer
        self._id = document_id
        self._task_id = task_id
        self._now = now
        self._held = HeldRow(writer, "holdfast_documents", document_id, task_id, now, what="Document")
        self._pending: list[Chunk] = []
        self._pending_chars = 0
        self.chunk_count = 0

    def begin(self, stage: Stage, upload: Upload) -> str | None:
        """Make the document this attempt's; how far it is for it. Of a stage that was done before, what was
        built on it is removed."""
        self._writer.make_tables(tables_for(self._writer.dialect))
        self._writer.make_tables(vector_tables_for(self._writer.dialect))
        now = self._now()

        def begin(tx: TableTransaction) -> str | None:
            tx.execute(ADD_DOCUMENT, self._id, upload.filename, upload.size, upload.sha256, now)
            [(stage_found, holder)] = tx.fetch(
                "SELECT last_completed_stage, task_id FROM holdfast_documents"
                f" WHERE id = $1{self._held.lock}",
                self._id,
            )
            found: str | None = stage_found
            self._held.check(holder)
            if _ORDER.index(found) < _ORDER.index(_BEGINS_AT[stage]):
                raise _not_so_far(self._id, stage, found)
            if found == "complete" or (found == "analyzed" and stage is Stage.ANALYZING):
                set_back = ""
            else:
                is_done = found != _BEGINS_AT[stage]
                set_back = f", {_SET_BACK[stage]}" if is_done else ""
                found = _BEGINS_AT[stage]
                if is_done:
                    # With that: an attempt that finds the document set back takes what is there for its own.
                    self._clear_what_was_built(tx)
            tx.execute(
                "UPDATE holdfast_documents SET task_id = $2, last_heartbeat = $3,"
                f" started_at = coalesce(started_at, $3){set_back} WHERE id = $1",
                self._id,
                self._task_id,
                now,
            )
            return found

        return self._writer.write(begin)

    def sign_of_life(self) -> None:
        self._held.write(lambda tx: None)

    # Chunks

    def clear_chunks(self, between: Callable[[], None]) -> None:
        """Remove what an earlier attempt at parsing has left, in parts; `between` may end it."""
        self._pending, self._pending_chars = [], 0
        while self._held.write(self._clear_some_chunks):
            between()
        self.chunk_count = 0

    def _clear_what_was_built(self, tx: TableTransaction) -> None:
        """On chunks: before these go, and where vectors are made anew."""
        self._clear_findings(tx)
        tx.execute(DELETE_VECTORS, self._id)

    def _clear_findings(self, tx: TableTransaction) -> None:
        tx.execute("DELETE FROM holdfast_document_findings WHERE document_id = $1", self._id)

    def _clear_some_chunks(self, tx: TableTransaction) -> int:
        return tx.execute(CLEAR_CHUNKS, self._id)

    def add_chunks(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._pending.append(chunk)
            self._pending_chars += len(chunk.text)
            if len(self._pending) >= PART_ROWS_MAX or self._pending_chars >= PART_CHARS_MAX:
                self.flush()

    def flush(self) -> None:
        """Write what was gathered, in one transaction; also where it is nothing, as a sign of life."""
        pending, first, now = self._pending, self.chunk_count, self._now()
        self._pending, self._pending_chars = [], 0
        rows: list[Row] = [
            (
                *(self._id, number, chunk.kind, chunk.text, chunk.page, chunk.sheet, chunk.cells),
                *(chunk.heading, chunk.overlap, now),
            )
            for number, chunk in enumerate(pending, first)
        ]
        self._held.write(lambda tx: tx.execute_many(_CHUNKS[self._writer.dialect], rows))
        self.chunk_count += len(rows)

    def is_cancelled(self) -> bool:
        return self._held.is_cancelled()

    # Vectors

    def vectors_of(self, model: str) -> VectorWriter:
        """Those of another model say nothing to this one's, and are removed."""
        self._held.write(lambda tx: tx.execute(DELETE_OTHER_VECTORS, self._id, model))
        return VectorWriter(self._writer, model)

    def count_vectors(self, vectors: VectorWriter) -> int:
        return self._writer.write(lambda tx: vectors.count(tx, self._id))

    def chunks_without(self, vectors: VectorWriter, after: int, limit: int) -> list[PendingChunk]:
        """The next ones behind the chunk of number `after`."""
        return self._writer.write(lambda tx: vectors.pending(tx, self._id, after=after, limit=limit))

    def add_vectors(self, vectors: VectorWriter, chunks: Sequence[PendingChunk], found: Vectors) -> None:
        ids, now = [chunk.id for chunk in chunks], self._now()
        self._held.write(lambda tx: vectors.add(tx, self._id, ids, found, now))

    # Findings

    def chunk_texts(self) -> Iterator[ChunkText]:
        """All chunks in order, page by page."""
        after = -1
        while True:
            rows = self._writer.write(
                lambda tx, after=after: tx.fetch(  # type: ignore[misc]
                    "SELECT number, kind, text, page, sheet, cells, heading, overlap"
                    " FROM holdfast_document_chunks WHERE document_id = $1 AND number > $2"
                    f" ORDER BY number LIMIT {READ_ROWS}",
                    self._id,
                    after,
                )
            )
            for number, kind, text, page, sheet, cells, heading, overlap in rows:
                yield ChunkText(
                    number=number,
                    kind=kind,
                    text=text,
                    page=page,
                    sheet=sheet,
                    cells=cells,
                    heading=heading,
                    overlap=overlap,
                )
            if len(rows) < READ_ROWS:
                return
            after = rows[-1][0]

    def store_findings(self, findings: Sequence[Finding]) -> None:
        """All of them at once, in place of what an attempt before has left: the document is analyzed."""
        now = self._now()
        rows: list[Row] = [
            (
                *(self._id, number, found.kind, storable(found.text)),
                None if found.value is None else _encode(found.value).decode(),
                found.score if math.isfinite(found.score) else 0.0,
                found.count,
                _encode(found.chunks).decode(),
                now,
            )
            for number, found in enumerate(findings)
        ]

        def store(tx: TableTransaction) -> None:
            self._clear_findings(tx)
            tx.execute_many(_FINDINGS[self._writer.dialect], rows)
            tx.execute(
                "UPDATE holdfast_documents SET last_completed_stage = 'analyzed', analyzed_at = $2,"
                " findings = $3 WHERE id = $1 AND last_completed_stage = 'embedded'",
                self._id,
                now,
                len(rows),
            )

        self._held.write(store)

    def counts(self) -> tuple[int, int]:
        """Of its chunks and of its findings, once these stages are done."""
        sql = "SELECT chunks, findings FROM holdfast_documents WHERE id = $1"
        [(chunks, findings)] = self._writer.write(lambda tx: tx.fetch(sql, self._id))
        return chunks, findings


def _not_so_far(document_id: int, stage: Stage, found: str | None) -> PermanentError:
    return PermanentError(
        f"Document {document_id} is {found or 'not parsed'}, which is not far enough for {stage}.",
        error_type="validation_error",
        user_message="What an earlier stage had stored is not there",
        guidance="Retry it in full.",
    )


# With the completion of a step: guarded like the writes above, by the document's attempt.

PARSED = """
UPDATE holdfast_documents
SET last_completed_stage = 'parsed', parsed_at = $3, last_heartbeat = $3, kind = $4, title = $5, facts = $6,
    chunks = $7
WHERE id = $1 AND task_id = $2 AND last_completed_stage IS NULL"""

EMBEDDED = """
UPDATE holdfast_documents
SET last_completed_stage = 'embedded', embedded_at = $3, last_heartbeat = $3, embedding_model = $4
WHERE id = $1 AND task_id = $2 AND last_completed_stage = 'parsed'"""

COMPLETE = """
UPDATE holdfast_documents
SET last_completed_stage = 'complete', completed_at = $3, last_heartbeat = $3
WHERE id = $1 AND task_id = $2 AND last_completed_stage = 'analyzed'"""
