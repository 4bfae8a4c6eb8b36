"""What one attempt may write, while others come and go; and the analysis by a service, as a step."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from document_scenario import Docs, rehearsed, text
from holdfast.core.errors import PermanentError, StaleLease
from holdfast.pipelines.documents.documents import Documents
from holdfast.pipelines.documents.intake import DOCUMENT_UPLOADS
from holdfast.pipelines.documents.playbook import Stage
from holdfast.pipelines.documents.reading.chunk import Chunk
from holdfast.pipelines.documents.writer import EMBEDDED, PARSED, DocumentWriter
from holdfast.pipelines.upload import Upload
from holdfast.store import store_from_url
from holdfast.store.tables import TableWriter, table_writer
from model_server import Fault, ModelServer

SHA256 = "ab" * 32
UPLOAD = Upload(filename="a.txt", size=1, sha256=SHA256, file=DOCUMENT_UPLOADS.stored_name(SHA256))
ID = 7


@contextmanager
def tables(url: str) -> Iterator[TableWriter]:
    async def prepare() -> None:
        store = store_from_url(url)
        await store.open()
        await store.close()

    asyncio.run(prepare())
    with closing(table_writer(url)) as writer:
        yield writer


def writer_of(tables: TableWriter, task_id: str) -> DocumentWriter:
    return DocumentWriter(tables, ID, task_id, time.time)


def rows(tables: TableWriter, sql: str) -> list[tuple[Any, ...]]:
    return tables.write(lambda tx: tx.fetch(sql))


def complete(tables: TableWriter, task_id: str) -> int:
    values = (ID, task_id, 5.0, "txt", None, "{}", 1)
    return tables.write(lambda tx: tx.execute(PARSED, *values))


def test_an_attempt_that_was_given_up_writes_nothing_more(store_url: str) -> None:
    with tables(store_url) as db:
        old, new = writer_of(db, "3-1"), writer_of(db, "3-2")
        assert old.begin(Stage.PARSING, UPLOAD) is None
        old.add_chunks([Chunk("of the old one")])
        old.flush()
        assert new.begin(Stage.PARSING, UPLOAD) is None
        for write in (old.flush, old.sign_of_life, lambda: old.clear_chunks(lambda: None)):
            with pytest.raises(StaleLease, match="3-1 works in vain"):
                write()
        assert complete(db, "3-1") == 0
        new.clear_chunks(lambda: None)
        new.add_chunks([Chunk("of the new one")])
        new.flush()
        assert complete(db, "3-2") == 1
        assert rows(db, "SELECT text FROM holdfast_document_chunks") == [("of the new one",)]
        with pytest.raises(StaleLease):
            old.begin(Stage.PARSING, UPLOAD)


def test_a_stage_does_not_begin_before_the_one_before_it_is_done(store_url: str) -> None:
    with tables(store_url) as db:
        writer = writer_of(db, "3-1")
        for stage in (Stage.EMBEDDING, Stage.ANALYZING):
            with pytest.raises(PermanentError, match="not far enough") as refused:
                writer.begin(stage, UPLOAD)
            assert refused.value.guidance == "Retry it in full."
        assert writer.begin(Stage.PARSING, UPLOAD) is None


def test_a_stage_that_is_done_again_is_cleared_as_it_begins(store_url: str) -> None:
    """In one transaction: where it dies behind that, the next one finds nothing to take for its own."""
    with tables(store_url) as db:
        first = writer_of(db, "3-1")
        first.begin(Stage.PARSING, UPLOAD)
        first.add_chunks([Chunk("a text")])
        first.flush()
        assert complete(db, "3-1") == 1
        embedded = writer_of(db, "4-1")
        embedded.begin(Stage.EMBEDDING, UPLOAD)
        vectors = embedded.vectors_of("a model")
        [chunk] = embedded.chunks_without(vectors, -1, 10)
        embedded.add_vectors(vectors, [chunk], np.ones((1, 4), dtype=np.float32))
        values = (ID, "4-1", 6.0, "a model")
        assert db.write(lambda tx: tx.execute(EMBEDDED, *values)) == 1
        assert writer_of(db, "5-1").begin(Stage.EMBEDDING, UPLOAD) == "parsed"
        assert rows(db, "SELECT count(*) FROM holdfast_document_embeddings") == [(0,)]
        assert rows(db, "SELECT last_completed_stage, embedded_at FROM holdfast_documents") == [
            ("parsed", None)
        ]


def test_what_the_rows_say_of_a_stage_is_checked_by_the_database(store_url: str) -> None:
    with tables(store_url) as db:
        writer_of(db, "3-1").begin(Stage.PARSING, UPLOAD)
        for wrong in (
            "last_completed_stage = 'cooked'",
            "last_completed_stage = 'parsed', parsed_at = NULL",
            "last_completed_stage = 'complete', parsed_at = 1, embedded_at = 1",
            "completed_at = 1",
        ):
            with pytest.raises(Exception, match=r"(?i)check|constraint"):
                rows(db, f"UPDATE holdfast_documents SET {wrong} RETURNING id")


def test_an_attempt_at_what_is_complete_already_changes_nothing(docs: Docs) -> None:
    done = docs.run("notes.txt", text(4))
    again = docs.upload("notes.txt", text(4), again=True)
    docs.do(Documents(docs.engine).prepare())
    docs.do(
        docs.engine.store.write_rows(
            "UPDATE holdfast_documents SET last_completed_stage = 'complete', task_id = '1-1', parsed_at = 1,"
            " embedded_at = 1, analyzed_at = 1, completed_at = 2 WHERE id = $1",
            again.id,
        )
    )
    docs.drain()
    outputs = docs.do(docs.engine.view(again.id)).outputs
    assert {outputs[stage.value]["status"] for stage in Stage} == {"already_completed"}
    assert docs.chunk_rows(again.id) == [] and len(docs.chunk_rows(done.id)) == 4
    assert docs.shown(again.id).completed_at == 2


def answer(_: dict[str, Any]) -> str:
    """As a model says it that keeps to the schema; each name and amount stands in the text."""
    return json.dumps(
        {
            "summary": [{"sentence": "Acme Ltd shall pay Northwind GmbH.", "chunks": [1]}],
            "phrases": [],
            "parties": [{"name": "Acme Ltd", "type": "organization", "role": "Buyer", "chunks": [1]}],
            "dates": [],
            "amounts": [],
        }
    )


def test_a_service_analyzes_in_the_place_of_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer() as server:
        server.says = answer
        server.fails = lambda asked: Fault("busy", 429, retry_after="0") if asked.number == 1 else None
        environ = {"HOLDFAST_ANALYSIS_URL": server.url, "HOLDFAST_ANALYSIS_MODEL": "a-model"}
        with rehearsed(tmp_path, **environ) as docs:
            document = docs.run("notes.txt", text(3))
            assert document.status == "complete", document.processing_error
            found = docs.findings(document.id)
            assert ("party", "Acme Ltd") in [(one.kind, one.text) for one in found]
            assert docs.do(docs.engine.view(document.id)).outputs["analyzing"]["by"] == "a-model"
        assert len(server.requests) == 2
