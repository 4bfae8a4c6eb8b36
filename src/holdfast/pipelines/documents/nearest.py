"""Which stored vectors are nearest to one: asked of pgvector, or found here by comparing with all.

    pgvector        the index answers; within one document, or where they are few, the table itself
    bytes           read once, kept in memory, and compared with in a thread, block by block

What is kept is checked before each search: how many vectors there are, the greatest number and the sum of
their numbers tell of any that came, went or were made anew. What is too much to be kept is read for each
search.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.pipelines.documents.vector_tables import KIND_OF_VECTORS
from holdfast.pipelines.documents.vectors import (
    BYTES,
    INDEXED_DIMENSIONS_MAX,
    VectorKind,
    kind_of,
    of_model,
    unpacked,
    written,
)
from holdfast.store.tables import Row, TablesStore

if TYPE_CHECKING:
    from holdfast.pipelines.documents.vectors import Vectors

BLOCK_ROWS = 8_192
KEPT_BYTES_MAX = 256 * 1024**2
KEPT_AS = 4  # bytes for each number
SCAN_DEPTH = 250  # of the index of pgvector: how many it looks at more closely

_STATE = """
SELECT count(*), coalesce(max(seq), 0), coalesce(sum(seq), 0) FROM holdfast_document_embeddings
WHERE model = $1 AND dimensions = $2 AND seq <= $3"""
_NEXT = f"""
SELECT seq, chunk_id, document_id, vector FROM holdfast_document_embeddings
WHERE model = $1 AND dimensions = $2 AND seq > $3 ORDER BY seq LIMIT {BLOCK_ROWS}"""
_ALL_NUMBERS = "SELECT seq FROM holdfast_document_embeddings WHERE model = $1 AND dimensions = $2"
_NEWEST = 2**62


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

    def only(self, mask: Any) -> _Block:
        return _Block(self.seq[mask], self.chunk_id[mask], self.document_id[mask], self.rows[mask])

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
        return int(self.blocks[-1].seq[-1]) if self.blocks else 0

    def state(self, upto: int) -> tuple[int, int, int]:
        """As `_STATE` tells it of the table."""
        count = greatest = total = 0
        for block in self.blocks:
            known = block.seq[block.seq <= upto]
            if len(known):
                count, total = count + len(known), total + int(known.sum())
                greatest = int(known[-1])
        return count, greatest, total

    def add(self, block: _Block) -> None:
        """Small ones, as they come while a document is embedded, are put together."""
        if self.blocks and len(self.blocks[-1].seq) + len(block.seq) <= BLOCK_ROWS:
            self.blocks[-1] = self.blocks[-1].followed_by(block)
        else:
            self.blocks.append(block)


class NearestVectors:
    """Of one store, for one process."""

    def __init__(self, store: TablesStore, *, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._store = store
        self._kept_bytes_max = kept_bytes_max
        self._kind: VectorKind | None = None
        self._kept: _Kept | None = None
        self._one_at_a_time = asyncio.Lock()

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
        """Those of the model that are at least so similar, the most similar first. `vector` is one row."""
        if self._kind is None:
            self._kind = (
                BYTES
                if self._store.dialect == "sqlite"
                else kind_of(await self._store.fetch_rows(KIND_OF_VECTORS))
            )
        if self._kind.is_halfvec:
            return await self._asked(self._kind, model, vector, limit, least, document_id, kind)
        among = None if kind is None else await self._documents(kind)
        best: list[Near] = []
        async for blocks in self._groups(model, int(vector.shape[1])):
            found = await asyncio.to_thread(_best, blocks, vector, limit, least, document_id, among)
            best = sorted(best + found, key=lambda near: -near.similarity)[:limit]
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
        # The settings hold for this statement. Where a condition leaves much out, the index goes on looking.
        sql = f"""
            WITH set AS MATERIALIZED (
                SELECT set_config('hnsw.ef_search', '{SCAN_DEPTH}', true) AS depth,
                       set_config('hnsw.iterative_scan', 'relaxed_order', true) AS iterative
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

    async def _groups(self, model: str, dims: int) -> Any:
        """The blocks to compare with: all at once where they are kept, else one after the other."""
        async with self._one_at_a_time:
            state = await self._state(model, dims, _NEWEST)
            is_too_much = state[0] * dims * KEPT_AS > self._kept_bytes_max
            if is_too_much:
                self._kept = None
            else:
                blocks = await self._refreshed(model, dims, state)
        if not is_too_much:
            yield blocks
            return
        last = 0
        while found := await self._store.fetch_rows(_NEXT, model, dims, last):
            last = found[-1][0]
            yield [await asyncio.to_thread(_Block.of, found)]

    async def _state(self, model: str, dims: int, upto: int) -> tuple[int, int, int]:
        [row] = await self._store.fetch_rows(_STATE, model, dims, upto)
        count, greatest, total = map(int, row)
        return count, greatest, total

    async def _refreshed(self, model: str, dims: int, state: tuple[int, int, int]) -> list[_Block]:
        kept = self._kept
        if kept is None or (kept.model, kept.dims) != (model, dims):
            kept = _Kept(model, dims)
        if kept.state(_NEWEST) != state:
            # What goes may be the newest; what comes meanwhile is for the next time to count.
            counted = max(kept.last, state[1])
            await self._read_on(kept)
            if kept.state(counted) != state and not await self._without_gone(kept):
                # What was committed late, with a number below those that were read before.
                kept = _Kept(model, dims)
                await self._read_on(kept)
        self._kept = kept
        return list(kept.blocks)

    async def _read_on(self, kept: _Kept) -> None:
        while found := await self._store.fetch_rows(_NEXT, kept.model, kept.dims, kept.last):
            kept.add(await asyncio.to_thread(_Block.of, found))
            if len(found) < BLOCK_ROWS:
                return

    async def _without_gone(self, kept: _Kept) -> bool:
        """Leave out what is not there any more; whether all that is there is kept."""
        import numpy as np

        rows = await self._store.fetch_rows(_ALL_NUMBERS, kept.model, kept.dims)
        there = np.array([row[0] for row in rows], np.int64)
        blocks = [block.only(np.isin(block.seq, there)) for block in kept.blocks]
        kept.blocks = [block for block in blocks if len(block.seq)]
        known = sum(len(block.seq) for block in kept.blocks)
        return known >= int((there <= kept.last).sum())


def _best(
    blocks: list[_Block],
    vector: Vectors,
    limit: int,
    least: float,
    document_id: int | None,
    among: list[int] | None,
) -> list[Near]:
    import numpy as np

    if not blocks:
        return []
    near_ids, similarities = [], []
    for block in blocks:
        similarity = block.rows @ vector[0]
        is_near = similarity >= least
        if document_id is not None:
            is_near &= block.document_id == document_id
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
