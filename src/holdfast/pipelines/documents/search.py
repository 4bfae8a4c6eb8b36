"""The search of documents: by words and by meaning, put together.

    query ──words──▶ chunks that have them, ranked ──┐
          └─vector─▶ chunks that are near, ranked ───┴─▶ fused ──▶ spread over documents ──▶ hits

The two rankings have nothing in common but their order, so it is their places that are added up (reciprocal
rank fusion): what both find comes first, then what one of them is sure of. Where there is no vector to be
had, words alone are searched, and the answer says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias
from weakref import WeakKeyDictionary, proxy

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.pipelines.documents.nearest import Near, NearestVectors, TooManyAtOnce
from holdfast.pipelines.documents.query_vectors import QueryVector, QueryVectors
from holdfast.pipelines.documents.query_words import Part, cleaned, parts_of
from holdfast.pipelines.documents.settings import DocumentSettings
from holdfast.pipelines.documents.snippets import pattern_of, snippet_of
from holdfast.pipelines.documents.tables import tables_for
from holdfast.pipelines.documents.vector_tables import vector_tables_for
from holdfast.pipelines.documents.word_search import WordSearch
from holdfast.store.tables import Row, TablesStore

FoundBy: TypeAlias = Literal["words", "vectors"]

LIMIT_MAX = 100
CANDIDATES = 200  # of each ranking
OF_ONE_DOCUMENT = 3  # before other documents have had their turn
FUSION = 60  # the usual constant: the first places count for more, and no place for everything

_CHUNKS = """
SELECT c.id, c.document_id, d.filename, c.number, c.page, c.sheet, c.cells, c.heading, c.text, c.overlap
FROM holdfast_document_chunks c JOIN holdfast_documents d ON d.id = c.document_id
WHERE d.last_completed_stage IS NOT NULL AND c.id IN ({places})"""
_PLACES = """
SELECT c.id, c.document_id, c.number
FROM holdfast_document_chunks c JOIN holdfast_documents d ON d.id = c.document_id
WHERE d.last_completed_stage IS NOT NULL AND c.id IN ({places})"""


class ChunkFound(msgspec.Struct, frozen=True):
    id: int
    number: int


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """`matches` are [start, end] in characters of the snippet; there is none where only the meaning is near.
    A greater score is better, and says nothing beyond its search."""

    document_id: int
    filename: str
    chunk: ChunkFound
    page: int | None
    sheet: str | None
    cells: str | None
    heading: str | None
    snippet: str
    matches: list[tuple[int, int]]
    score: float
    found_by: list[FoundBy]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """`vectors` tells whether meaning was searched as well, and `reason` why it was not."""

    items: list[Hit]
    next: None = None
    vectors: bool
    reason: str | None = None


_searches: WeakKeyDictionary[TablesStore, Search] = WeakKeyDictionary()


def search_of(store: TablesStore) -> Search:
    """The one of this process, with what it has in memory; that goes with the store."""
    if store not in _searches:
        # A store that its own search held would never go.
        _searches[store] = Search(proxy(store), DocumentSettings.from_environment())
    return _searches[store]


class Search:
    """Of one store, for one process: it keeps vectors in memory where the database cannot compare them."""

    def __init__(
        self, store: TablesStore, settings: DocumentSettings, *, vectors: QueryVectors | None = None
    ) -> None:
        self._store = store
        self._words = WordSearch(store)
        self._nearest = NearestVectors(store)
        self._vectors = vectors or QueryVectors(settings)
        self._has_tables = False

    async def find(
        self, query: str, *, limit: int = 20, document_id: int | None = None, kind: str | None = None
    ) -> Found:
        """At most `limit` hits, in one document or in documents of one kind where that is asked."""
        if not 1 <= limit <= LIMIT_MAX:
            raise InvalidInput(
                f"limit is {limit}; allowed is 1 to {LIMIT_MAX}.", guidance="Ask for fewer hits."
            )
        text = cleaned(query)
        parts = parts_of(text)
        if not parts:
            return Found(items=[], vectors=False, reason="There is no word to search for.")
        if not self._has_tables:
            for tables in (tables_for(self._store.dialect), vector_tables_for(self._store.dialect)):
                await self._store.make_tables(tables)
            self._has_tables = True
        by_words = await self._words.find(
            parts, limit=CANDIDATES, enough=limit, document_id=document_id, kind=kind
        )
        near: list[Near] = []
        query_vector = await self._vectors.of(" ".join(part.text for part in parts))
        if isinstance(query_vector, str):
            reason: str | None = query_vector
        else:
            near, reason = await self._near(query_vector, document_id, kind)
        items = await self._hits(by_words, [chunk.chunk_id for chunk in near], parts, limit, document_id)
        return Found(items=items, vectors=reason is None, reason=reason)

    async def _near(
        self, asked: QueryVector, document_id: int | None, kind: str | None
    ) -> tuple[list[Near], str | None]:
        """And why there is none, where that is not because nothing is near."""
        try:
            near = await self._nearest.find(
                asked.model,
                asked.vector,
                limit=CANDIDATES,
                least=asked.similarity_min,
                document_id=document_id,
                kind=kind,
            )
        except TooManyAtOnce:
            return [], "Too many are searching by meaning at the moment. Search again in a few seconds."
        return near, None if near else await self._none_of_model(asked)

    async def _none_of_model(self, asked: QueryVector) -> str | None:
        """Where documents have vectors, and all of them are of other models."""
        there = "EXISTS (SELECT 1 FROM holdfast_document_embeddings"
        [(own, some)] = await self._store.fetch_rows(
            f"SELECT {there} WHERE model = $1 AND dimensions = $2), {there})",
            asked.model,
            int(asked.vector.shape[1]),
        )
        if some and not own:
            return "The documents were embedded by another model. Upload them again, asking for new ones."
        return None

    async def _hits(
        self,
        by_words: Sequence[int],
        by_vectors: Sequence[int],
        parts: Sequence[Part],
        limit: int,
        document_id: int | None,
    ) -> list[Hit]:
        scores: dict[int, float] = {}
        for ranking in (by_words, by_vectors):
            for place, chunk_id in enumerate(ranking, 1):
                scores[chunk_id] = scores.get(chunk_id, 0.0) + 1 / (FUSION + place)
        if not scores:
            return []
        rows = await self._fetched(_PLACES, list(scores))
        ranked = sorted(rows, key=lambda row: (-scores[row[0]], row[0]))
        chosen = [row[0] for row in (ranked if document_id is not None else _spread(ranked))[:limit]]
        texts = {row[0]: row for row in await self._fetched(_CHUNKS, chosen)}
        pattern, word_ids, vector_ids = pattern_of(parts), set(by_words), set(by_vectors)
        hits = []
        for chunk_id in chosen:
            if chunk_id not in texts:  # removed between the two statements
                continue
            _, document, filename, number, page, sheet, cells, heading, text, overlap = texts[chunk_id]
            snippet = snippet_of(text, pattern, overlap=overlap)
            found_by: list[FoundBy] = []
            if chunk_id in word_ids:
                found_by.append("words")
            if chunk_id in vector_ids:
                found_by.append("vectors")
            hits.append(
                Hit(
                    document_id=document,
                    filename=filename,
                    chunk=ChunkFound(chunk_id, number),
                    page=page,
                    sheet=sheet,
                    cells=cells,
                    heading=heading,
                    snippet=snippet.text,
                    matches=snippet.matches,
                    score=round(scores[chunk_id], 6),
                    found_by=found_by,
                )
            )
        return hits

    async def _fetched(self, sql: str, ids: Sequence[int]) -> list[Row]:
        places = ", ".join(f"${place}" for place in range(1, len(ids) + 1))
        return await self._store.fetch_rows(sql.format(places=places), *ids) if ids else []


def _spread(ranked: Sequence[Row]) -> list[Row]:
    """Some of each document first, and no neighbours, which repeat each other; then the rest."""
    first, rest = [], []
    shown: dict[int, list[int]] = {}
    for row in ranked:
        _, document, number = row
        numbers = shown.setdefault(document, [])
        if len(numbers) >= OF_ONE_DOCUMENT or any(abs(number - other) <= 1 for other in numbers):
            rest.append(row)
        else:
            numbers.append(number)
            first.append(row)
    return first + rest
