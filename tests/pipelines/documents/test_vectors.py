"""Vectors as they are stored: by each kind of database, again and again, and never beside another model's."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import asyncpg
import numpy as np
import pytest

from holdfast.bench.postgres import TemporaryPostgres
from holdfast.pipelines.documents import nearest, vector_index
from holdfast.pipelines.documents.nearest import Near, NearestVectors, _Block
from holdfast.pipelines.documents.vector_index import index_name
from holdfast.pipelines.documents.vector_tables import vector_tables_for
from holdfast.pipelines.documents.vectors import (
    BYTES,
    COUNT_VECTORS,
    DELETE_OTHER_VECTORS,
    DELETE_VECTORS,
    normalised,
    packed,
    unpacked,
    written,
)
from holdfast.store import Store
from holdfast.store.tables import table_writer
from running import run
from store_scenario import opened
from vector_scenario import (
    MODEL,
    add_chunks,
    embed,
    pending,
    prepare,
    random_vectors,
    remove_document,
    with_writer,
    writing,
)

TEXTS = [f"text {number}" for number in range(10)]


def on_server(server: TemporaryPostgres, database: str, *statements: str) -> None:
    async def execute() -> None:
        db = await asyncpg.connect(server.url(database))
        try:
            for statement in statements:
                await db.execute(statement)
        finally:
            await db.close()

    asyncio.run(execute())


@pytest.fixture
def pgvector_url(postgres_url: str) -> str:
    """A superuser's: the extension is made with the table."""
    return postgres_url


@pytest.fixture
def bytea_url(postgres_server: TemporaryPostgres) -> Iterator[str]:
    """Of a role that may make tables, and no extension."""
    name = f"test_{uuid4().hex}"
    postgres_server.create_database(name)
    role = f"plain_{uuid4().hex[:12]}"
    # pgvector trusts nobody but superusers; the role owns nothing.
    on_server(
        postgres_server, name, f"CREATE ROLE {role} LOGIN", f'GRANT CREATE ON DATABASE "{name}" TO {role}'
    )
    yield postgres_server.url(name).replace("postgres@", f"{role}@")
    postgres_server.drop_database(name)
    on_server(postgres_server, "postgres", f"DROP ROLE {role}")


@pytest.fixture(params=["sqlite", "pgvector", "bytea"])
def vector_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    prepare(url)
    return url


def kind_at(url: str) -> Any:
    with writing(url) as (_, writer):
        return writer.kind


def find(url: str, vector: Any, model: str = MODEL, **more: Any) -> list[Near]:
    async def look() -> list[Near]:
        async with opened(url) as store:
            return await NearestVectors(store).find(model, vector, **{"limit": 5, "least": -1.0, **more})

    return run(look())


# The table


def test_the_database_decides_how_vectors_are_kept(
    sqlite_url: str, pgvector_url: str, bytea_url: str
) -> None:
    for url in (sqlite_url, pgvector_url, bytea_url):
        prepare(url)
    assert kind_at(sqlite_url) == BYTES
    assert kind_at(bytea_url) == BYTES
    assert kind_at(pgvector_url).schema == "public"


def test_an_extension_in_a_schema_of_its_own_is_used(
    postgres_server: TemporaryPostgres, postgres_url: str
) -> None:
    database = postgres_url.partition("@/")[2].partition("?")[0]
    on_server(
        postgres_server, database, 'CREATE SCHEMA "odd Place"', 'CREATE EXTENSION vector SCHEMA "odd Place"'
    )
    prepare(postgres_url)
    assert kind_at(postgres_url).schema == '"odd Place"'
    add_chunks(postgres_url, 1, TEXTS)
    embed(postgres_url, 1, vectors=random_vectors(10))
    assert len(find(postgres_url, random_vectors(1))) == 5


def test_the_kind_of_a_table_stays_when_the_extension_comes(
    postgres_server: TemporaryPostgres, bytea_url: str
) -> None:
    prepare(bytea_url)
    assert kind_at(bytea_url) == BYTES
    database = bytea_url.partition("@/")[2].partition("?")[0]
    on_server(postgres_server, database, "CREATE EXTENSION vector")
    assert kind_at(bytea_url) == BYTES


def test_the_table_is_made_by_either_way(store_url: str) -> None:
    async def make() -> None:
        async with opened(store_url) as store:
            await store.make_tables(vector_tables_for(store.dialect))

    run(make())
    prepare(store_url)
    assert with_writer(store_url, lambda tx, writer: writer.count(tx, 1)) == 0


# Writing


def test_a_document_is_embedded_page_by_page(vector_url: str) -> None:
    add_chunks(vector_url, 1, TEXTS)
    page = pending(vector_url, 1, limit=4)
    assert [(chunk.number, chunk.text) for chunk in page] == [(n, f"text {n}") for n in range(4)]
    ids = [chunk.id for chunk in page]
    with_writer(vector_url, lambda tx, writer: writer.add(tx, 1, ids, random_vectors(4), 1.0))
    assert [chunk.number for chunk in pending(vector_url, 1, limit=4)] == [4, 5, 6, 7]
    assert [chunk.number for chunk in pending(vector_url, 1, after=7)] == [8, 9]
    assert with_writer(vector_url, lambda tx, writer: writer.count(tx, 1)) == 4


def test_what_is_written_again_changes_nothing(vector_url: str) -> None:
    add_chunks(vector_url, 1, TEXTS)
    ids = [chunk.id for chunk in pending(vector_url, 1)]
    for seed in (1, 2):
        found = random_vectors(10, seed=seed)
        with_writer(vector_url, lambda tx, writer, found=found: writer.add(tx, 1, ids, found, 1.0))
    [best] = find(vector_url, random_vectors(10)[3:4], limit=1)
    assert best.chunk_id == ids[3]
    assert best.similarity == pytest.approx(1.0, abs=2e-3)


def test_another_model_takes_the_place_of_the_one_before(vector_url: str) -> None:
    add_chunks(vector_url, 1, TEXTS)
    embed(vector_url, 1, vectors=random_vectors(10))
    assert len(pending(vector_url, 1, "other")) == 10
    embed(vector_url, 1, "other", vectors=random_vectors(10, 16))
    assert with_writer(vector_url, lambda tx, writer: writer.count(tx, 1)) == 0
    assert with_writer(vector_url, lambda tx, writer: writer.count(tx, 1), "other") == 10
    assert find(vector_url, random_vectors(1)) == []
    assert len(find(vector_url, random_vectors(1, 16), "other")) == 5


def test_a_chunk_that_is_gone_gets_no_vector(vector_url: str) -> None:
    add_chunks(vector_url, 1, TEXTS)
    ids = [chunk.id for chunk in pending(vector_url, 1)]
    remove_document(vector_url, 1)
    with_writer(vector_url, lambda tx, writer: writer.add(tx, 1, ids, random_vectors(10), 1.0))
    assert with_writer(vector_url, lambda tx, writer: writer.count(tx, 1)) == 0


def test_nothing_is_written_of_nothing(vector_url: str) -> None:
    with_writer(vector_url, lambda tx, writer: writer.add(tx, 1, [], random_vectors(0), 1.0))


def test_the_vectors_of_a_document_are_removed_together(vector_url: str) -> None:
    for document in (1, 2):
        add_chunks(vector_url, document, TEXTS)
        embed(vector_url, document, vectors=random_vectors(10, seed=document))
    with_writer(vector_url, lambda tx, _: tx.execute(DELETE_OTHER_VECTORS, 1, MODEL))
    assert with_writer(vector_url, lambda tx, _: tx.fetch(COUNT_VECTORS, 1, MODEL)) == [(10,)]
    with_writer(vector_url, lambda tx, _: tx.execute(DELETE_OTHER_VECTORS, 1, "other"))
    with_writer(vector_url, lambda tx, _: tx.execute(DELETE_VECTORS, 2))
    for document in (1, 2):
        assert with_writer(vector_url, lambda tx, writer, d=document: writer.count(tx, d)) == 0


def test_vectors_survive_being_stored() -> None:
    found = random_vectors(50, 256)
    assert np.abs(unpacked(packed(found)) - found).max() < 5e-4
    assert np.abs(np.array([eval(text) for text in written(found)]) - found).max() < 1e-4


def test_vectors_of_nothing_and_of_no_numbers_are_zero() -> None:
    odd = np.array([[0, 0], [np.nan, np.inf], [3, 4], [1e38, 1e38], [1e-40, 0]], np.float32)
    rows = [[0, 0], [0, 0], [0.6, 0.8], [0.7071, 0.7071], [1, 0]]
    assert np.allclose(normalised(odd), rows, atol=1e-4)
    assert normalised(np.zeros((0, 4), np.float32)).shape == (0, 4)


# The index of pgvector


ODD_MODEL = "it's holdfast_a\\model"


def index_state(url: str, model: str) -> str:
    sql = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)"
    rows = with_writer(url, lambda tx, _: tx.fetch(sql, f"holdfast.{index_name(model, 8)}"))
    return {(): "none", ((True,),): "valid", ((False,),): "broken"}[tuple(map(tuple, rows))]


def add_and_embed(url: str, document: int, rows: Any, model: str = MODEL) -> None:
    add_chunks(url, document, [f"text {number}" for number in range(len(rows))])
    embed(url, document, model, vectors=rows)


def pass_an_hour(url: str) -> None:
    sql = f"UPDATE holdfast_document_indexes SET tried_at = tried_at - {vector_index.TRIED_AGAIN_SECONDS + 1}"
    with_writer(url, lambda tx, _: tx.execute(sql))


@pytest.fixture
def indexed_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_index, "INDEXED_FROM", 5)


def test_an_index_is_made_when_there_are_enough_vectors(
    pgvector_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_index, "INDEXED_FROM", 300)
    prepare(pgvector_url)
    found = random_vectors(400)
    for document in (1, 2):
        add_and_embed(pgvector_url, document, found[200 * (document - 1) :][:200], ODD_MODEL)
        assert index_state(pgvector_url, ODD_MODEL) == ("none" if document == 1 else "valid")
    best = find(pgvector_url, found[250:251], ODD_MODEL, limit=5)
    exact = np.sort(found @ found[250])[::-1][:5]
    assert [near.similarity for near in best] == pytest.approx(exact.tolist(), abs=5e-3)
    assert len(find(pgvector_url, found[:1], ODD_MODEL, kind="txt")) == 5
    assert find(pgvector_url, found[:1], ODD_MODEL, kind="pdf") == []


def test_the_index_answers_a_search(pgvector_url: str, indexed_early: None) -> None:
    prepare(pgvector_url)
    add_and_embed(pgvector_url, 1, random_vectors(2_000))
    asked: list[str] = []

    async def look() -> list[str]:
        async with opened(pgvector_url) as store:
            fetch = store.fetch_rows

            async def explained(sql: str, *values: Any) -> Any:
                if "<#>" in sql:
                    asked.extend(row[0] for row in await fetch(f"EXPLAIN {sql}", *values))
                return await fetch(sql, *values)

            store.fetch_rows = explained  # type: ignore[method-assign]
            await NearestVectors(store).find(MODEL, random_vectors(1), limit=5, least=-1.0)
        return asked

    assert index_name(MODEL, 8) in "\n".join(run(look()))


def test_an_index_is_made_once_and_by_one(pgvector_url: str, indexed_early: None) -> None:
    prepare(pgvector_url)
    add_chunks(pgvector_url, 1, TEXTS)
    embed(pgvector_url, 1, vectors=random_vectors(10))
    assert index_state(pgvector_url, MODEL) == "valid"
    pass_an_hour(pgvector_url)
    with writing(pgvector_url) as (_, writer):
        assert writer.finish(pgvector_url) is None  # nothing was added
        writer._dimensions = 8
        assert writer.finish(pgvector_url) is None  # there is one


def test_while_another_process_makes_an_index_nobody_waits_for_it(
    pgvector_url: str, indexed_early: None
) -> None:
    prepare(pgvector_url)
    add_chunks(pgvector_url, 1, TEXTS)
    with_writer(pgvector_url, lambda tx, _: None)
    locked, done = threading.Event(), threading.Event()

    def hold(tx: Any) -> None:
        tx.fetch(f"SELECT pg_advisory_xact_lock({vector_index._INDEXING})")
        locked.set()
        done.wait(30)

    def other() -> None:
        with closing(table_writer(pgvector_url)) as tables:
            tables.write(hold)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert locked.wait(30)
        embed(pgvector_url, 1, vectors=random_vectors(10))
        assert index_state(pgvector_url, MODEL) == "none"
    finally:
        done.set()
        thread.join()


def test_an_index_that_cannot_be_made_is_no_error_and_is_tried_again_in_an_hour(
    pgvector_url: str, indexed_early: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(pgvector_url)
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(vector_index, "_SETTINGS", "SELECT nonsense")
        add_and_embed(pgvector_url, 1, random_vectors(10))
    assert "could not be made" in caplog.text
    assert len(find(pgvector_url, random_vectors(1))) == 5
    add_and_embed(pgvector_url, 2, random_vectors(10, seed=2))
    assert index_state(pgvector_url, MODEL) == "none"
    pass_an_hour(pgvector_url)
    add_and_embed(pgvector_url, 3, random_vectors(10, seed=3))
    assert index_state(pgvector_url, MODEL) == "valid"


def test_what_a_build_that_was_cut_off_has_left_is_replaced(
    postgres_server: TemporaryPostgres, pgvector_url: str, indexed_early: None
) -> None:
    prepare(pgvector_url)
    add_and_embed(pgvector_url, 1, random_vectors(10))
    database = pgvector_url.partition("@/")[2].partition("?")[0]
    on_server(
        postgres_server,
        database,
        "UPDATE pg_index SET indisvalid = false"
        f" WHERE indexrelid = 'holdfast.{index_name(MODEL, 8)}'::regclass",
    )
    assert index_state(pgvector_url, MODEL) == "broken"
    pass_an_hour(pgvector_url)
    add_and_embed(pgvector_url, 2, random_vectors(10, seed=2))
    assert index_state(pgvector_url, MODEL) == "valid"


# What is near


def test_the_nearest_come_first(vector_url: str) -> None:
    add_chunks(vector_url, 1, [f"text {n}" for n in range(60)])
    found = random_vectors(60)
    embed(vector_url, 1, vectors=found)
    asked = random_vectors(1, seed=9)
    best = find(vector_url, asked, limit=10)
    exact = np.sort(found @ asked[0])[::-1][:10]
    assert [near.similarity for near in best] == pytest.approx(exact.tolist(), abs=2e-3)
    least = float(exact[4]) + 1e-3
    assert len(find(vector_url, asked, limit=10, least=least)) == 4


def test_it_can_be_looked_for_in_one_document_or_one_kind(vector_url: str) -> None:
    for document, kind in ((1, "txt"), (2, "pdf"), (3, "pdf")):
        add_chunks(vector_url, document, TEXTS, kind=kind)
        embed(vector_url, document, vectors=random_vectors(10, seed=document))
    own = {chunk_id for (chunk_id,) in with_writer(vector_url, chunk_ids(2))}
    asked = random_vectors(1, seed=9)
    assert {near.chunk_id for near in find(vector_url, asked, limit=30, document_id=2)} == own
    assert len(find(vector_url, asked, limit=30, kind="pdf")) == 20
    assert find(vector_url, asked, limit=30, kind="docx") == []


def chunk_ids(document: int) -> Any:
    sql = "SELECT id FROM holdfast_document_chunks WHERE document_id = $1"
    return lambda tx, _: tx.fetch(sql, document)


def test_where_there_are_no_vectors_nothing_is_near(vector_url: str) -> None:
    with_writer(vector_url, lambda tx, _: None)
    assert find(vector_url, random_vectors(1)) == []


@pytest.mark.parametrize("kept_bytes_max", [10**9, 0], ids=["kept", "read each time"])
def test_what_is_found_follows_what_is_stored(
    vector_url: str, kept_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added, removed, embedded anew, and committed late: a search after it knows."""
    monkeypatch.setattr(nearest, "BLOCK_ROWS", 16)
    asked = random_vectors(1, seed=99)

    def expected() -> int:
        sql = "SELECT count(*) FROM holdfast_document_embeddings WHERE model = $1"
        return int(with_writer(vector_url, lambda tx, _: tx.fetch(sql, MODEL))[0][0])

    async def story() -> None:
        async with opened(vector_url) as store:
            near = NearestVectors(store, kept_bytes_max=kept_bytes_max)

            async def found() -> dict[int, float]:
                best = await near.find(MODEL, asked, limit=1_000, least=-1.0)
                return {one.chunk_id: round(one.similarity, 2) for one in best}

            async def is_right(count: int) -> None:
                best = await found()
                assert len(best) == count == await asyncio.to_thread(expected)
                fresh = NearestVectors(store)
                again = await fresh.find(MODEL, asked, limit=1_000, least=-1.0)
                assert best == {one.chunk_id: round(one.similarity, 2) for one in again}

            for document in range(1, 6):
                await asyncio.to_thread(add_chunks, vector_url, document, TEXTS)
                rows = random_vectors(10, seed=document)
                await asyncio.to_thread(embed, vector_url, document, MODEL, rows)
                await is_right(10 * document)
            await asyncio.to_thread(remove_document, vector_url, 2)
            await is_right(40)
            # One is removed and another is added between two searches: the count stays what it was.
            await asyncio.to_thread(remove_document, vector_url, 5)
            await asyncio.to_thread(add_chunks, vector_url, 6, TEXTS)
            await asyncio.to_thread(embed, vector_url, 6, MODEL, random_vectors(10, seed=6))
            await is_right(40)
            await asyncio.to_thread(with_writer, vector_url, lambda tx, _: tx.execute(DELETE_VECTORS, 1))
            await asyncio.to_thread(embed, vector_url, 1, MODEL, random_vectors(10, seed=77))
            await is_right(40)
            await asyncio.to_thread(embed, vector_url, 1, "other", random_vectors(10, 16))
            await is_right(30)
            for document in (1, 3, 4, 6):
                await asyncio.to_thread(remove_document, vector_url, document)
            await is_right(0)

    run(story())


def test_what_is_committed_late_is_found(vector_url: str) -> None:
    """With a number below those that were read before it."""
    asked = random_vectors(1, seed=99)

    async def story(store: Store) -> None:
        near = NearestVectors(store)
        for document in (1, 2):
            await asyncio.to_thread(add_chunks, vector_url, document, TEXTS)
            await asyncio.to_thread(embed, vector_url, document, MODEL, random_vectors(10, seed=document))
        if await asyncio.to_thread(near_is_asked, vector_url):
            return
        assert len(await near.find(MODEL, asked, limit=100, least=-1.0)) == 20
        kept = near._kept
        assert kept is not None
        # As if the first document's had not been there when all was read.
        [block] = kept.blocks
        own = block.document_id == 2
        kept.blocks = [_Block(block.seq[own], block.chunk_id[own], block.document_id[own], block.rows[own])]
        assert len(await near.find(MODEL, asked, limit=100, least=-1.0)) == 20

    async def with_store() -> None:
        async with opened(vector_url) as store:
            await story(store)

    run(with_store())


def near_is_asked(url: str) -> bool:
    """Of the database, which keeps nothing here."""
    return bool(kind_at(url).is_halfvec)


def test_vectors_that_are_too_long_for_an_index_are_found_without(pgvector_url: str) -> None:
    prepare(pgvector_url)
    add_chunks(pgvector_url, 1, TEXTS[:3])
    found = random_vectors(3, 4_100)
    embed(pgvector_url, 1, vectors=found)
    [best] = find(pgvector_url, found[1:2], limit=1)
    assert best.similarity == pytest.approx(1.0, abs=5e-3)
