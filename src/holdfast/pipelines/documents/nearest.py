"""Which stored vectors are nearest to one: asked of pgvector, or found here by comparing with all.

    pgvector        the index answers; within one document, or where they are few, the table itself
    bytes           read once, kept in memory, and compared with in a thread, block by block; within one
                    document, only its own are read

What is kept is checked before each search: how many vectors there are, the greatest number and the sum of
their numbers tell of any that came, went or were made anew. The same is then asked of each block, and those
of which it is not true any more are read again. What is too much to be kept is read for each search, of which
only a few are let do so at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.pipelines.documents.vector_index import INDEXED_DIMENSIONS_MAX, of_model
from holdfast.pipelines.documents.vector_tables import KIND_OF_VECTORS
from holdfast.pipelines.documents.vectors import BYTES, VectorKind, kind_of, unpacked, written
from holdfast.store.tables import Row, TablesStore

if TYPE_CHECKING:
    from holdfast.pipelines.documents.vectors import Vectors

BLOCK_ROWS = 8_192
KEPT_BYTES_MAX = 256 * 1024**2
KEPT_AS = 4  # bytes for each number
READ_AT_ONCE_MAX = 2  # searches that read all vectors, which takes seconds of a core and of the disk
READ_WAIT_SECONDS = 3.0
SCAN_DEPTH = 250  # of the index of pgvector: how many it looks at more closely
GOING_ON = "hnsw.iterative_scan"

_STATE = """
SELECT count(*), coalesce(max(seq), 0), coalesce(sum(seq), 0) FROM holdfast_document_embeddings
WHERE model = $1 AND dimensions = $2 AND seq > $3 AND seq <= $4"""
_COLUMNS = "SELECT seq, chunk_id, document_id, vector FROM holdfast_document_embeddings"
_NEXT = f"""
{_COLUMNS} WHERE model = $1 AND dimensions = $2 AND seq > $3 ORDER BY seq LIMIT {BLOCK_ROWS}"""
_BETWEEN = f"""
{_COLUMNS} WHERE model = $1 AND dimensions = $2 AND seq > $3 AND seq <= $4 ORDER BY seq"""
# By the document alone: with the model beside it, SQLite would go through all of the model's.
_IN_DOCUMENT = f"""
SELECT seq, chunk_id, document_id, vector, model, dimensions FROM holdfast_document_embeddings
WHERE document_id = $1 AND seq > $2 ORDER BY seq LIMIT {BLOCK_ROWS}"""
_NEWEST = 2**62


class TooManyAtOnce(Exception):
    """Others are reading all vectors already, and were waited for."""


class _State(NamedTuple):
    """What tells whether two sets of rows are the same."""

    rows: int
    greatest: int
    total: int


class Near(NamedTuple):
    chunk_id: int
    similarity: float


@dataclass(slots=True)
class _Block:
    """Rows of vectors with their numbers; never changed once it is there."""

    seq: Any
    chunk_id: Any
    document_id: Any
    rows: Vectors

    @classmethod
    def of(cls, found: list[Row]) -> _Block:
        import numpy as np

        seq, chunk_id, document_id, stored = zip(*found, strict=True)
        return cls(
            np.array(seq, np.int64),
            np.array(chunk_id, np.int64),
            np.array(document_id, np.int64),
            unpacked(stored),
        )

    @property
    def state(self) -> _State:
        return _State(len(self.seq), self.last, int(self.seq.sum()))

    @property
    def last(self) -> int:
        return int(self.seq[-1])

    def followed_by(self, other: _Block) -> _Block:
        import numpy as np

        return _Block(
            np.concatenate((self.seq, other.seq)),
            np.concatenate((self.chunk_id, other.chunk_id)),
            np.concatenate((self.document_id, other.document_id)),
            np.concatenate((self.rows, other.rows)),
        )


@dataclass(slots=True)
class _Kept:
    model: str
    dims: int
    blocks: list[_Block] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.blocks[-1].last if self.blocks else 0

    def state(self, upto: int) -> _State:
        """As `_STATE` tells it of the table."""
        count = greatest = total = 0
        for block in self.blocks:
            known = block.seq[block.seq <= upto]
            if len(known):
                count, total = count + len(known), total + int(known.sum())
                greatest = int(known[-1])
        return _State(count, greatest, total)

    def add(self, block: _Block) -> None:
        """Small ones, as they come while a document is embedded, are put together."""
        if self.blocks and len(self.blocks[-1].seq) + len(block.seq) <= BLOCK_ROWS:
            self.blocks[-1] = self.blocks[-1].followed_by(block)
        else:
            self.blocks.append(block)

    def add_rows(self, rows: list[Row]) -> None:
        if rows:
            self.add(_Block.of(rows))


class NearestVectors:
    """Of one store, for one process."""

    def __init__(self, store: TablesStore, *, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._store = store
        self._kept_bytes_max = kept_bytes_max
        self._kind: VectorKind | None = None
        self._kept: _Kept | None = None
        self._one_at_a_time = asyncio.Lock()
        self._readings = asyncio.Semaphore(READ_AT_ONCE_MAX)

    async def find(
        self,
        model: str,
        vector: Vectors,
        *,
        limit: int,
        least: float,
        document_id: int | None = None,
        kind: str | None = None,
    ) -> list[Near]:
        """Those of the model that are at least so similar, the most similar first. `vector` is one row.
        TooManyAtOnce where all would have to be read, and others do so already."""
        if self._kind is None:
            self._kind = (
                BYTES
                if self._store.dialect == "sqlite"
                else kind_of(await self._store.fetch_rows(KIND_OF_VECTORS))
            )
        if self._kind.is_halfvec:
            return await self._asked(self._kind, model, vector, limit, least, document_id, kind)
        dims = int(vector.shape[1])
        among = None if kind is None else await self._documents(kind)

        async def best_of(blocks: list[_Block]) -> list[Near]:
            return await asyncio.to_thread(_best, blocks, vector, limit, least, among)

        if document_id is not None:
            pages = self._in_document(model, dims, document_id)
        elif (blocks := await self._kept_blocks(model, dims)) is not None:
            return await best_of(blocks)
        else:
            pages = self._all(model, dims)
        best: list[Near] = []
        async with aclosing(pages):
            async for block in pages:
                best = sorted(best + await best_of([block]), key=lambda near: -near.similarity)[:limit]
        return best

    async def _asked(
        self,
        how: VectorKind,
        model: str,
        vector: Vectors,
        limit: int,
        least: float,
        document_id: int | None,
        kind: str | None,
    ) -> list[Near]:
        dims = int(vector.shape[1])
        given = f"$1::text{how.cast}"
        column = "e.vector"
        if document_id is None and dims <= INDEXED_DIMENSIONS_MAX:
            column += f"{how.cast}({dims})"  # as in the index; without it, the index is out of the question
            given += f"({dims})"
        distance = f"{column} OPERATOR({how.schema}.<#>) {given}"
        values: list[Any] = [written(vector)[0]]
        where = [of_model(model, dims)]
        if document_id is not None:
            values.append(document_id)
            where.append(f"e.document_id = ${len(values)}")
        if kind is not None:
            values.append(kind)
            where.append(
                "EXISTS (SELECT 1 FROM holdfast_documents d"
                f" WHERE d.id = e.document_id AND d.kind = ${len(values)})"
            )
        # The settings hold for this statement. Where a condition leaves much out, the index goes on looking:
        # it can since a certain version, and what an older one does not know is an error.
        going_on = f"set_config('{GOING_ON}', 'relaxed_order', true)" if how.goes_on else "''"
        sql = f"""
            WITH set AS MATERIALIZED (
                SELECT set_config('hnsw.ef_search', '{SCAN_DEPTH}', true) AS depth, {going_on} AS iterative
            )
            SELECT near.chunk_id, near.similarity FROM set CROSS JOIN LATERAL (
                SELECT e.chunk_id, -({distance}) AS similarity FROM holdfast_document_embeddings e
                WHERE {" AND ".join(where)} AND set.depth IS NOT NULL AND set.iterative IS NOT NULL
                ORDER BY {distance} LIMIT {limit}
            ) near ORDER BY near.similarity DESC"""
        rows = await self._store.fetch_rows(sql, *values)
        return [Near(*row) for row in rows if row[1] >= least]

    async def _documents(self, kind: str) -> list[int]:
        return [
            row[0]
            for row in await self._store.fetch_rows("SELECT id FROM holdfast_documents WHERE kind = $1", kind)
        ]

    async def _in_document(self, model: str, dims: int, document_id: int) -> AsyncGenerator[_Block]:
        last = 0
        while rows := await self._store.fetch_rows(_IN_DOCUMENT, document_id, last):
            last = rows[-1][0]
            own = [row[:4] for row in rows if row[4:] == (model, dims)]
            if own:
                yield await asyncio.to_thread(_Block.of, own)
            if len(rows) < BLOCK_ROWS:
                return

    async def _all(self, model: str, dims: int) -> AsyncGenerator[_Block]:
        try:
            async with asyncio.timeout(READ_WAIT_SECONDS):
                await self._readings.acquire()
        except TimeoutError:
            raise TooManyAtOnce from None
        try:
            last = 0
            while rows := await self._store.fetch_rows(_NEXT, model, dims, last):
                last = rows[-1][0]
                yield await asyncio.to_thread(_Block.of, rows)
        finally:
            self._readings.release()

    async def _kept_blocks(self, model: str, dims: int) -> list[_Block] | None:
        """All there is; None where that is too much to be kept."""
        async with self._one_at_a_time:
            state = await self._state(model, dims, 0, _NEWEST)
            if state.rows * dims * KEPT_AS > self._kept_bytes_max:
                self._kept = None
                return None
            return await self._refreshed(model, dims, state)

    async def _state(self, model: str, dims: int, after: int, upto: int) -> _State:
        [row] = await self._store.fetch_rows(_STATE, model, dims, after, upto)
        return _State(*map(int, row))

    async def _refreshed(self, model: str, dims: int, state: _State) -> list[_Block]:
        kept = self._kept
        if kept is None or (kept.model, kept.dims) != (model, dims):
            kept = _Kept(model, dims)
        if kept.state(_NEWEST) != state:
            # What goes may be the newest; what comes meanwhile is for the next time to count.
            counted = max(kept.last, state.greatest)
            await self._read_on(kept)
            if kept.state(counted) != state:
                kept = await self._mended(kept)
        self._kept = kept
        return list(kept.blocks)

    async def _read_on(self, kept: _Kept) -> None:
        while rows := await self._store.fetch_rows(_NEXT, kept.model, kept.dims, kept.last):
            await asyncio.to_thread(kept.add_rows, rows)
            if len(rows) < BLOCK_ROWS:
                return

    async def _mended(self, kept: _Kept) -> _Kept:
        """With those blocks read again of which something is gone, and those before whose end something was
        committed late."""
        mended = _Kept(kept.model, kept.dims)
        after = 0
        for block in kept.blocks:
            if await self._state(kept.model, kept.dims, after, block.last) == block.state:
                await asyncio.to_thread(mended.add, block)
            else:
                rows = await self._store.fetch_rows(_BETWEEN, kept.model, kept.dims, after, block.last)
                await asyncio.to_thread(mended.add_rows, rows)
            after = block.last
        return mended


def _best(
    blocks: list[_Block],
    vector: Vectors,
    limit: int,
    least: float,
    among: list[int] | None,
) -> list[Near]:
    import numpy as np

    if not blocks:
        return []
    near_ids, similarities = [], []
    for block in blocks:
        similarity = block.rows @ vector[0]
        is_near = similarity >= least
        if among is not None:
            is_near &= np.isin(block.document_id, among)
        near_ids.append(block.chunk_id[is_near])
        similarities.append(similarity[is_near])
    chunk_ids, similar = np.concatenate(near_ids), np.concatenate(similarities)
    if len(similar) > limit:
        places = np.argpartition(-similar, limit - 1)[:limit]
        chunk_ids, similar = chunk_ids[places], similar[places]
    found = zip(chunk_ids.tolist(), similar.tolist(), strict=True)
    return sorted((Near(*one) for one in found), key=lambda near: -near.similarity)
