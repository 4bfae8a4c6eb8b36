"""Documents with chunks and vectors, put into a store for the tests of vectors and of the search.

add_document(url, 1, ["a text", "another one"], filename="pumps.txt")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from holdfast.pipelines.documents.local_embedder import local_embedder
from holdfast.pipelines.documents.tables import tables_for
from holdfast.pipelines.documents.vectors import DELETE_VECTORS, PendingChunk, VectorWriter
from holdfast.store.tables import TableTransaction, TableWriter, table_writer
from running import run
from store_scenario import opened

MODEL = "wordllama/l2_supercat_256"


def prepare(url: str) -> None:
    async def make() -> None:
        async with opened(url) as store:
            await store.make_tables(tables_for(store.dialect))

    run(make())


@contextmanager
def writing(url: str, model: str = MODEL) -> Iterator[tuple[TableWriter, VectorWriter]]:
    with closing(table_writer(url)) as tables:
        yield tables, VectorWriter(tables, model)


def add_chunks(
    url: str,
    document_id: int,
    texts: Sequence[str],
    *,
    filename: str = "a.txt",
    kind: str = "txt",
    stage: str | None = "parsed",
    overlap: int = 0,
) -> None:
    def add(tx: TableTransaction) -> None:
        tx.execute(
            "INSERT INTO holdfast_documents (id, filename, size, sha256, created_at, kind, task_id,"
            " parsed_at, last_completed_stage) VALUES ($1, $2, 1, 'x', 0, $3, '1-1', 0, $4)",
            document_id,
            filename,
            kind,
            stage,
        )
        for number, text in enumerate(texts):
            tx.execute(
                "INSERT INTO holdfast_document_chunks (document_id, number, kind, text, page, heading,"
                " overlap, created_at) VALUES ($1, $2, 'text', $3, $4, $5, $6, 0)",
                document_id,
                number,
                text,
                number + 1,
                "1 Intro",
                overlap if number else 0,
            )

    with closing(table_writer(url)) as tables:
        tables.write(add)


def embed(url: str, document_id: int, model: str = MODEL, vectors: Any = None) -> None:
    """By the local model, unless vectors are given."""
    with writing(url, model) as (tables, writer):
        chunks = tables.write(lambda tx: writer.pending(tx, document_id, limit=100_000))
        if not chunks:
            return
        if vectors is None:
            vectors = local_embedder().embed([chunk.text for chunk in chunks], beat=lambda: None)
        ids = [chunk.id for chunk in chunks]
        tables.write(lambda tx: writer.add(tx, document_id, ids, vectors, 1.0))
        if (making := writer.finish(url)) is not None:
            making.join(60)
            assert not making.is_alive()


def add_document(url: str, document_id: int, texts: Sequence[str], **more: Any) -> None:
    add_chunks(url, document_id, texts, **more)
    embed(url, document_id)


def remove_document(url: str, document_id: int) -> None:
    def remove(tx: TableTransaction) -> None:
        tx.execute(DELETE_VECTORS, document_id)
        tx.execute("DELETE FROM holdfast_document_chunks WHERE document_id = $1", document_id)
        tx.execute("DELETE FROM holdfast_documents WHERE id = $1", document_id)

    with closing(table_writer(url)) as tables:
        tables.write(remove)


def with_writer(url: str, action: Callable[[TableTransaction, VectorWriter], Any], model: str = MODEL) -> Any:
    with writing(url, model) as (tables, writer):
        return tables.write(lambda tx: action(tx, writer))


def pending(url: str, document_id: int, model: str = MODEL, **more: Any) -> list[PendingChunk]:
    return with_writer(url, lambda tx, writer: writer.pending(tx, document_id, **more), model)


def random_vectors(count: int, dims: int = 8, seed: int = 1) -> Any:
    found = np.random.default_rng(seed).normal(size=(count, dims)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)
