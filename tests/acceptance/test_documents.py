"""Documents whose workers are killed in each of their stages: each goes on at that stage, and what the stages
before had stored is as it was. Real processes, both stores."""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from acceptance.documents_app import AROUND, COMPLETED, Death
from document_scenario import text
from faults.processes import Fleet
from holdfast import Holdfast
from holdfast.core.model import EventType
from holdfast.engine import Engine
from holdfast.pipelines.documents.documents import DocumentDetails, Documents
from holdfast.pipelines.documents.intake import intake_for
from holdfast.pipelines.documents.playbook import Stage, playbook_text
from holdfast.pipelines.documents.settings import DocumentSettings
from pipeline_scenario import pieces
from running import eventually, run

SCRIPT = Path(__file__).parent / "documents_app.py"
DOCUMENTS = 8
PARAGRAPHS = 40
WORKERS = 2
LEASE_SECONDS = 2.0
WITHIN = 180.0
STAGES = [stage.value for stage in Stage]


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path / "files"))
    monkeypatch.setenv("HOLDFAST_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("HOLDFAST_DOCUMENTS_CHUNK_CHARS", "200")
    monkeypatch.setenv("HOLDFAST_DOCUMENTS_RETRY_DELAYS", "0.01,0.01,0.01,0.01,0.01")


class Watched:
    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self._folder = folder

    async def upload(self, number: int) -> int:
        content = text(PARAGRAPHS, of=f"of {number}")
        return (await intake_for(self.engine).take(f"{number}.txt", pieces(content))).id

    async def completed(self, document_id: int) -> DocumentDetails:
        documents = Documents(self.engine)

        async def ended() -> DocumentDetails | None:
            found = await documents.details(document_id)
            assert found.status != "failed", found.processing_error
            return found if found.status == "complete" else None

        shown = await eventually(ended, WITHIN, every=0.1)
        assert shown is not None
        return shown

    def deaths(self) -> list[Death]:
        notes = sorted((self._folder / "deaths").glob("*.*"))
        return [msgspec.json.decode(note.read_bytes(), type=Death) for note in notes]

    async def assert_it_went_on_at(self, death: Death) -> None:
        """What was there when it died is there still, with the same ids and times."""
        chunks = await self.engine.store.fetch_rows(
            "SELECT id, created_at FROM holdfast_document_chunks WHERE document_id = $1", death.document
        )
        vectors = await self.engine.store.fetch_rows(
            "SELECT seq, chunk_id, created_at FROM holdfast_document_embeddings WHERE document_id = $1",
            death.document,
        )
        if death.stage != Stage.PARSING or death.place == COMPLETED:
            assert set(death.chunks) <= set(chunks) and all(at < death.at for _, at in chunks)
            assert set(death.vectors) <= set(vectors)
        if death.stage == Stage.ANALYZING:
            assert all(at < death.at for _, _, at in vectors)
        if death.place not in (AROUND, COMPLETED):
            events = await self.engine.events(death.document, limit=1_000)
            lost = [it.step for it in events if it.type is EventType.LEASE_LOST]
            assert death.stage in lost


def test_a_worker_is_killed_in_each_stage_of_each_document_and_each_goes_on_there(
    store_url: str, tmp_path: Path
) -> None:
    seed = secrets.token_hex(4)
    print(f"seed {seed}")

    async def scenario(fleet: Fleet) -> None:
        async with Holdfast(store_url) as hf, hf.sweeping(LEASE_SECONDS):
            text_of_playbook = playbook_text(DocumentSettings.from_environment())
            # Two workers share what kills them: a document that waits beside another one is no killer.
            await hf.add_playbook(text_of_playbook.replace("    timeout: 6h\n", "    max_crashes: 20\n"))
            engine = await hf.engine()
            assert isinstance(engine, Engine)
            await Documents(engine).prepare()
            watched = Watched(engine, fleet.folder)
            ids = [await watched.upload(number) for number in range(DOCUMENTS)]
            workers = [fleet.start(SCRIPT, str(LEASE_SECONDS), "lives", seed) for _ in range(WORKERS)]
            shown = [await watched.completed(id_) for id_ in ids]
            for worker in workers:
                assert worker.stop() == 0, worker.told()
            deaths = watched.deaths()
            print(Counter((death.stage, death.place) for death in deaths))
            assert Counter(death.stage for death in deaths) == dict.fromkeys(STAGES, DOCUMENTS)
            for death in deaths:
                await watched.assert_it_went_on_at(death)
            for document in shown:
                assert document.chunks == document.embedded_chunks == PARAGRAPHS
                events = await engine.events(document.id, limit=1_000)
                done = [it.step for it in events if it.type is EventType.ACTION_COMPLETED]
                assert done == STAGES  # each stage was done once

    with Fleet(tmp_path, store_url) as fleet:
        run(scenario(fleet), 400)
