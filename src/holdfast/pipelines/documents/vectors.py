"""Vectors as they are stored, and as a step writes them: in parts, each of which may be written again.

    VectorWriter(tables, model) ──▶ chunks that have no vector of this model yet, page by page
                                ──▶ add: what is there of this model stays, what is of another is replaced

A vector is a row of an array of float32 with the length 1, or 0 where there is nothing to say. It is stored
with 16 bits for each number, which changes no ranking that a person could see. A chunk has one vector. Those
of another length are another model's, whatever its name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from holdfast.pipelines.documents import vector_index
from holdfast.pipelines.documents.vector_tables import KIND_OF_VECTORS, vector_tables_for
from holdfast.store.tables import Row, TableTransaction, TableWriter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]

log = logging.getLogger("holdfast.documents")

PAGE_CHUNKS = 256

DELETE_VECTORS = "DELETE FROM holdfast_document_embeddings WHERE document_id = $1"
"""To be run before a document's chunks are removed, in the same transaction."""
DELETE_OTHER_VECTORS = "DELETE FROM holdfast_document_embeddings WHERE document_id = $1 AND model <> $2"
_DELETE_OTHER_LENGTHS = """
DELETE FROM holdfast_document_embeddings WHERE document_id = $1 AND model = $2 AND dimensions <> $3"""
COUNT_VECTORS = "SELECT count(*) FROM holdfast_document_embeddings WHERE document_id = $1 AND model = $2"
CHUNKS_WITHOUT_VECTOR = """
SELECT c.id, c.number, c.text FROM holdfast_document_chunks c
WHERE c.document_id = $1 AND c.number > $3 AND (
    SELECT count(*) FROM holdfast_document_embeddings e WHERE e.chunk_id = c.id AND e.model = $2
) = 0
ORDER BY c.number LIMIT $4"""
# Counted, as PostgreSQL would read all vectors that there are to find out which of a page are not among them.

_ADD_SQLITE = """
INSERT OR REPLACE INTO holdfast_document_embeddings
    (chunk_id, document_id, model, dimensions, vector, created_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6
WHERE EXISTS (SELECT 1 FROM holdfast_document_chunks WHERE id = ?1 AND document_id = ?2)
AND NOT EXISTS (
    SELECT 1 FROM holdfast_document_embeddings WHERE chunk_id = ?1 AND model = ?3 AND dimensions = ?4
)"""
_ADD_POSTGRESQL = """
INSERT INTO holdfast_document_embeddings AS held
    (chunk_id, document_id, model, dimensions, vector, created_at)
SELECT new.chunk_id, new.document_id, new.model, new.dimensions, new.vector{cast}, new.created_at
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::int[], $5::{given}[], $6::float8[])
     AS new (chunk_id, document_id, model, dimensions, vector, created_at)
JOIN holdfast_document_chunks c ON c.id = new.chunk_id AND c.document_id = new.document_id
ON CONFLICT (chunk_id) DO UPDATE SET
    seq = DEFAULT, model = excluded.model, dimensions = excluded.dimensions, vector = excluded.vector,
    created_at = excluded.created_at
WHERE held.model <> excluded.model OR held.dimensions <> excluded.dimensions"""


class PendingChunk(NamedTuple):
    id: int
    number: int
    text: str


class VectorKind(NamedTuple):
    """How a database keeps vectors. `schema` is that of pgvector; None where they are bytes."""

    schema: str | None
    version: tuple[int, ...] = ()
    """Of pgvector."""

    @property
    def is_halfvec(self) -> bool:
        return self.schema is not None

    @property
    def goes_on(self) -> bool:
        """Whether the index looks further where a condition has left too little of what it found."""
        return self.version >= GOES_ON_FROM

    @property
    def cast(self) -> str:
        return f"::{self.schema}.halfvec"


GOES_ON_FROM = (0, 8)
BYTES = VectorKind(None)


def kind_of(rows: Sequence[Row]) -> VectorKind:
    """From what KIND_OF_VECTORS answers."""
    [(name, schema, version)] = rows
    if name != "halfvec":
        return BYTES
    return VectorKind(schema, tuple(int(part) for part in (version or "").split(".") if part.isdecimal()))


def packed(vectors: Vectors) -> list[bytes]:
    return [row.tobytes() for row in vectors.astype("<f2")]


def unpacked(stored: Sequence[bytes]) -> Vectors:
    """Of vectors of one length."""
    import numpy as np

    halves = np.frombuffer(b"".join(stored), dtype="<f2").reshape(len(stored), -1)
    return halves.astype(np.float32)


def written(vectors: Vectors) -> list[str]:
    """As pgvector reads them."""
    form = "[" + ",".join(["%.5g"] * vectors.shape[1]) + "]"
    return [form % tuple(row) for row in vectors.tolist()]


def normalised(vectors: Vectors) -> Vectors:
    """Of length 1 each; what has none, or is beyond all numbers, stays or becomes 0."""
    import numpy as np

    finite = np.nan_to_num(vectors.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    # By the greatest number first: squares of what is very small or very great would be 0, or no number.
    greatest = np.abs(finite).max(axis=1, keepdims=True, initial=0.0)
    finite = np.divide(finite, greatest, out=np.zeros_like(finite), where=greatest > 0)
    lengths = np.linalg.norm(finite, axis=1, keepdims=True)
    rows: Vectors = np.divide(finite, lengths, out=np.zeros_like(finite), where=lengths > 0)
    return rows


class VectorWriter:
    """Beside a writer of tables, and used by its thread. Statements are run in the transactions of the step,
    which knows whether it may still write."""

    def __init__(self, tables: TableWriter, model: str) -> None:
        self._tables = tables
        self.model = model
        tables.make_tables(vector_tables_for(tables.dialect))
        self.kind = (
            BYTES
            if tables.dialect == "sqlite"
            else kind_of(tables.write(lambda tx: tx.fetch(KIND_OF_VECTORS)))
        )
        self._dimensions: int | None = None
        self._looks_again = False
        self.replaced = 0
        """Vectors that were of another length."""

    def pending(
        self, tx: TableTransaction, document_id: int, *, after: int = -1, limit: int = PAGE_CHUNKS
    ) -> list[PendingChunk]:
        """The next chunks of a document, by their number, that have no vector of this model. Behind the last
        one come those that have lost theirs meanwhile."""
        rows = tx.fetch(CHUNKS_WITHOUT_VECTOR, document_id, self.model, after, limit)
        if not rows and self._looks_again:
            self._looks_again = False
            rows = tx.fetch(CHUNKS_WITHOUT_VECTOR, document_id, self.model, -1, limit)
        return [PendingChunk(*row) for row in rows]

    def count(self, tx: TableTransaction, document_id: int) -> int:
        [(count,)] = tx.fetch(COUNT_VECTORS, document_id, self.model)
        return int(count)

    def add(
        self,
        tx: TableTransaction,
        document_id: int,
        chunk_ids: Sequence[int],
        vectors: Vectors,
        created_at: float,
    ) -> None:
        """Harmless where some are there already; what is for a chunk that is gone is left out."""
        if not chunk_ids:
            return
        dims = int(vectors.shape[1])
        if dims != self._dimensions:
            # Only now is it known: the service has been changed since an attempt before this one.
            self.replaced += tx.execute(_DELETE_OTHER_LENGTHS, document_id, self.model, dims)
            self._looks_again = self.replaced > 0
            self._dimensions = dims
        stored: Sequence[bytes | str] = written(vectors) if self.kind.is_halfvec else packed(vectors)
        rows = [
            (chunk_id, document_id, self.model, dims, vector, created_at)
            for chunk_id, vector in zip(chunk_ids, stored, strict=True)
        ]
        tx.execute_many(self._statement(), rows)

    def _statement(self) -> str:
        if self._tables.dialect == "sqlite":
            return _ADD_SQLITE
        if self.kind.is_halfvec:
            return _ADD_POSTGRESQL.format(cast=self.kind.cast, given="text")
        return _ADD_POSTGRESQL.format(cast="", given="bytea")

    def finish(self, url: str) -> threading.Thread | None:
        """When a document has its vectors: the index of pgvector is made as soon as there are so many that it
        counts, on the database of this address; by the thread, for which nobody has to wait."""
        dims = self._dimensions
        if not self.kind.is_halfvec or dims is None:
            return None
        try:
            if not self._tables.write(lambda tx: vector_index.is_turn(tx, self.model, dims)):
                return None
        except Exception:  # the next document's turn; this one has its vectors
            log.warning("Whether %s needs an index could not be found out.", self.model, exc_info=True)
            return None
        return vector_index.start_making(url, self.kind, self.model, dims)
