"""Which chunks have the words of a query, the best first: FTS5 on SQLite, a tsvector on PostgreSQL.

Chunks with all of the words are what was asked for. Where these are few, others follow that have some of the
words, the rarest of them: what nearly every chunk has tells nothing, and to rank all of them takes its time.

SQLite ranks all that it finds, PostgreSQL only so many of them: to know how near the words stand, it has to
unpack each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.pipelines.documents.query_words import Part
from holdfast.store.tables import TablesStore

RANKED_MAX = 5_000  # rows that PostgreSQL ranks
SOME_ROWS_MAX = {"sqlite": 20_000, "postgresql": 5_000}  # that have some of the words

# A text that is one word may go on.
_TERMS = """
SELECT phraseto_tsquery('simple', words)::text,
       CASE WHEN is_prefix AND words ~ '^[^ ]+$' THEN to_tsquery('simple', words || ':*')::text END
FROM (
    SELECT trim(holdfast_document_words_of(part)) AS words, is_prefix, place
    FROM unnest($1::text[], $2::bool[]) WITH ORDINALITY AS given (part, is_prefix, place) OFFSET 0
) AS folded ORDER BY place"""
_IS_SHOWN = "d.last_completed_stage IS NOT NULL"


class WordSearch:
    def __init__(self, store: TablesStore) -> None:
        self._store = store
        self._some_rows_max = SOME_ROWS_MAX[store.dialect]

    async def find(
        self, parts: Sequence[Part], *, limit: int, enough: int, document_id: int | None, kind: str | None
    ) -> list[int]:
        """The numbers of chunks. Less than `enough` with all words make it look for those with some."""
        terms = await self._terms(parts)
        if not terms:
            return []
        where = _Where(document_id, kind)
        found = await self._ranked(self._joined(terms, all_of_them=True), [], where, limit)
        if len(found) >= enough or len(terms) == 1:
            return found
        rare = await self._rare(terms)
        if not rare:
            return found
        some = await self._ranked(
            self._joined([term for term, _ in rare], all_of_them=False), rare, where, limit
        )
        return list(dict.fromkeys([*found, *some]))[:limit]

    async def _terms(self, parts: Sequence[Part]) -> list[str]:
        """Each part as the store's language for searches has it; without those that say nothing there."""
        if self._store.dialect == "sqlite":
            return [_for_fts(part) for part in parts]
        rows = await self._store.fetch_rows(
            _TERMS, [part.text for part in parts], [part.is_prefix for part in parts]
        )
        terms = []
        for exact, begun in rows:
            if forms := [form for form in (exact, begun) if form]:
                terms.append(f"({' | '.join(forms)})")
        return terms

    def _joined(self, terms: Sequence[str], *, all_of_them: bool) -> str:
        if self._store.dialect == "sqlite":
            return (" AND " if all_of_them else " OR ").join(terms)
        return (" & " if all_of_them else " | ").join(terms)

    async def _rare(self, terms: Sequence[str]) -> list[tuple[str, float]]:
        """The rarest words that not too many chunks have between them, each with what it weighs."""
        most = self._some_rows_max + 1
        if self._store.dialect == "sqlite":
            matching = "SELECT rowid FROM holdfast_document_words WHERE holdfast_document_words MATCH $1"
        else:
            matching = "SELECT id FROM holdfast_document_chunks WHERE words @@ $1::text::tsquery"
        counted: list[tuple[int, str]] = []
        for term in terms:
            sql = f"SELECT count(*) FROM ({matching} LIMIT {most}) AS counted"
            [(count,)] = await self._store.fetch_rows(sql, term)
            if count:
                counted.append((count, term))
        rare: list[tuple[str, float]] = []
        rows = 0
        for count, term in sorted(counted):
            rows += count
            if rare and rows > self._some_rows_max:
                break
            rare.append((term, math.log(1 + most / count)))
        return rare

    async def _ranked(
        self, query: str, weighed: Sequence[tuple[str, float]], where: _Where, limit: int
    ) -> list[int]:
        values: list[Any] = [query]
        if self._store.dialect == "sqlite":
            conditions = where.conditions(values)
            sql = f"""
                SELECT w.rowid FROM holdfast_document_words w
                JOIN holdfast_document_chunks c ON c.id = w.rowid
                JOIN holdfast_documents d ON d.id = c.document_id
                WHERE w.holdfast_document_words MATCH $1 AND {conditions}
                ORDER BY bm25(holdfast_document_words), w.rowid LIMIT {limit}"""
        else:
            # It knows no rare words: what each weighs is added up for those that a chunk has.
            weights = []
            for term, weight in weighed:
                values.append(term)
                weights.append(
                    f"CASE WHEN words @@ ${len(values)}::text::tsquery THEN {weight:.4f} ELSE 0 END"
                )
            rank = " + ".join([*weights, "ts_rank_cd(words, $1::text::tsquery, 4 | 32)"])
            conditions = where.conditions(values)
            sql = f"""
                SELECT id FROM (
                    SELECT c.id, c.words FROM holdfast_document_chunks c
                    JOIN holdfast_documents d ON d.id = c.document_id
                    WHERE c.words @@ $1::text::tsquery AND {conditions} LIMIT {RANKED_MAX}
                ) found ORDER BY {rank} DESC, id LIMIT {limit}"""
        return [row[0] for row in await self._store.fetch_rows(sql, *values)]


class _Where:
    def __init__(self, document_id: int | None, kind: str | None) -> None:
        self._given = {"c.document_id": document_id, "d.kind": kind}

    def conditions(self, values: list[Any]) -> str:
        found = [_IS_SHOWN]
        for column, value in self._given.items():
            if value is not None:
                values.append(value)
                found.append(f"{column} = ${len(values)}")
        return " AND ".join(found)


def _for_fts(part: Part) -> str:
    """In quotes nothing is an operator. A whole word counts for more than the beginning of another."""
    quoted = '"' + part.text.replace('"', '""') + '"'
    return f"({quoted} OR {quoted} *)" if part.is_prefix else quoted
