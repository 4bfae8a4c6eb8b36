"""A hundred documents whose embedding service fails as a real one does: all complete, each is parsed once,
and no chunk is embedded again after its vector was stored. Real sockets, both stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from document_scenario import text
from holdfast import Holdfast
from holdfast.core.model import EventType
from holdfast.engine import Engine
from holdfast.pipelines.documents import embedders
from holdfast.pipelines.documents.documents import Document, Documents, DocumentStatus
from holdfast.pipelines.documents.intake import intake_for
from holdfast.pipelines.documents.patience import Patience
from holdfast.pipelines.documents.playbook import playbook_text
from holdfast.pipelines.documents.settings import DocumentSettings
from holdfast.pipelines.registry import all_functions
from model_server import RESET, UNAVAILABLE, Asked, Fault, ModelServer, seeded
from pipeline_scenario import pieces
from running import eventually, run

DOCUMENTS = 100
PARAGRAPHS = 6
BATCH = 4
WITHIN = 240.0
# As a service behind a limit: mostly too many at once; sometimes away, silent, or cut off.
FAULTS = (
    *[Fault("busy", 429, retry_after=seconds) for seconds in ("0", "0", "1")],
    *(UNAVAILABLE, RESET, Fault("cut"), Fault("html")),
)
SILENT = (15, 90)  # of all requests, these are never answered


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "HOLDFAST_STORAGE": str(tmp_path / "files"),
        "HOLDFAST_SPOOL": str(tmp_path / "spool"),
        "HOLDFAST_DOCUMENTS_CHUNK_CHARS": "200",
        "HOLDFAST_EMBEDDINGS_MODEL": "test-model",
        "HOLDFAST_EMBEDDINGS_BATCH": str(BATCH),
        "HOLDFAST_EMBEDDINGS_TIMEOUT": "2s",
    }.items():
        monkeypatch.setenv(name, value)


@asynccontextmanager
async def at_work(url: str, **options: Any) -> AsyncIterator[tuple[Holdfast, Engine]]:
    hf = Holdfast(url)
    hf.add_functions(all_functions())
    async with hf, hf.working(**options):
        await hf.add_playbook(playbook_text(DocumentSettings.from_environment()))
        engine = await hf.engine()
        assert isinstance(engine, Engine)
        yield hf, engine


class Room:
    """Many documents, dropped at once."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._documents = Documents(engine)

    async def fill(self, count: int) -> list[int]:
        await self._documents.prepare()
        intake = intake_for(self.engine)
        return [
            (await intake.take(f"{number}.txt", pieces(text(PARAGRAPHS, of=f"of {number}")))).id
            for number in range(count)
        ]

    async def all_complete(self, count: int) -> list[Document]:
        async def complete() -> list[Document] | None:
            failed = await self._documents.page(status=DocumentStatus.FAILED)
            assert not failed, failed[0].processing_error
            found = await self._documents.page(status=DocumentStatus.COMPLETE, limit=count + 1)
            return found if len(found) == count else None

        shown = await eventually(complete, WITHIN, every=0.2)
        assert shown is not None
        return shown

    async def assert_nothing_was_done_twice(self, server: ModelServer, ids: list[int]) -> Counter[str]:
        """How many attempts there were at each stage, in all."""
        attempts: Counter[str] = Counter()
        for id_ in ids:
            events = await self.engine.events(id_, limit=1_000)
            of_it = Counter(it.step for it in events if it.type is EventType.ACTION_STARTED)
            assert of_it["parsing"] == 1
            attempts.update({str(step): count for step, count in of_it.items()})
        chunks = await self.engine.store.fetch_rows(
            "SELECT c.text FROM holdfast_document_chunks c"
            " JOIN holdfast_document_embeddings e ON e.chunk_id = c.id"
        )
        assert len(chunks) == len(ids) * PARAGRAPHS
        for (chunk,) in chunks:
            assert server.answered_texts[chunk.strip()] == 1, chunk
        return attempts


def test_a_hundred_documents_complete_although_the_service_fails(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = seeded(11, 0.25, FAULTS)

    def rule(asked: Asked) -> Fault | None:
        return Fault("hang") if asked.number in SILENT else fails(asked)

    async def scenario(server: ModelServer) -> None:
        async with at_work(store_url, concurrency=8) as (_, engine):
            room = Room(engine)
            ids = await room.fill(DOCUMENTS)
            await room.all_complete(DOCUMENTS)
            attempts = await room.assert_nothing_was_done_twice(server, ids)
            print(f"{len(server.requests)} requests, {dict(attempts)}")
            assert len(server.requests) > DOCUMENTS * PARAGRAPHS / BATCH

    with ModelServer() as server:
        server.fails = rule
        monkeypatch.setenv("HOLDFAST_EMBEDDINGS_URL", server.url)
        run(scenario(server), WITHIN + 60)


def test_an_outage_that_is_longer_than_an_attempts_patience_is_waited_out_by_retries(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = embedders.Patience
    assert opened is Patience
    monkeypatch.setattr("holdfast.pipelines.documents.endpoint.Patience", lambda: Patience(0.1))
    monkeypatch.setenv("HOLDFAST_DOCUMENTS_RETRY_DELAYS", "0.5,1,2,4,8,8,8")
    count, good_for = 20, 12  # requests, before the outage

    async def scenario(server: ModelServer) -> None:
        async with at_work(store_url, concurrency=4) as (_, engine):
            room = Room(engine)
            ids = await room.fill(count)

            async def all_wait() -> bool:
                """Some for the second time: of those that had begun, with vectors already."""
                retrying = await Documents(engine).page(status=DocumentStatus.RETRYING, limit=count)
                return len(server.requests) > good_for and len(retrying) > count // 2

            await eventually(all_wait, WITHIN)
            [(stored,)] = await engine.store.fetch_rows("SELECT count(*) FROM holdfast_document_embeddings")
            assert 0 < stored <= good_for * BATCH
            server.fails = lambda _: None
            await room.all_complete(count)
            attempts = await room.assert_nothing_was_done_twice(server, ids)
            assert attempts["embedding"] > count

    with ModelServer() as server:
        server.fails = lambda asked: UNAVAILABLE if asked.number > good_for else None
        monkeypatch.setenv("HOLDFAST_EMBEDDINGS_URL", server.url)
        run(scenario(server), WITHIN + 60)


def test_a_document_that_is_cancelled_does_not_wait_for_the_service(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(server: ModelServer) -> None:
        async with at_work(store_url, concurrency=1, lease_seconds=3) as (hf, engine):
            first, second = await Room(engine).fill(2)
            await eventually(lambda: len(server.requests) > 0, WITHIN)
            server.fails = lambda _: None
            await hf.cancel(first)
            documents = Documents(engine)

            async def second_is_complete() -> bool:
                return (await documents.get(second)).status == "complete"

            await eventually(second_is_complete, WITHIN)
            assert (await documents.get(first)).status == "failed"

    with ModelServer() as server:
        server.fails = lambda _: Fault("busy", 429, retry_after="4")
        monkeypatch.setenv("HOLDFAST_EMBEDDINGS_URL", server.url)
        run(scenario(server), WITHIN)
