"""The built-in pipeline `documents` as tests use it: the real engine, a storage in a folder.

with rehearsed(tmp_path, url=store_url) as docs:
    document = docs.run("notes.txt", text(20))
    assert document.status == "complete"
    assert docs.chunks(document.id)[0].number == 0
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.pipelines.documents.documents import DocumentDetails, Documents
from holdfast.pipelines.documents.intake import DOCUMENT_RULES
from holdfast.pipelines.documents.parts import ChunkLine, FindingLine, chunks_of, findings_of
from holdfast.pipelines.documents.playbook import playbook_text
from holdfast.pipelines.documents.settings import DocumentSettings
from holdfast.pipelines.intake import Intake, TakenIn
from holdfast.pipelines.places import open_storage
from holdfast.store.tables import Row
from pipeline_scenario import RehearsedPipeline, pieces, rehearsed_pipeline

TOPICS = (
    "The turbine was inspected on 3 March 2024 and its bearings were found to be worn",
    "Acme Ltd shall pay 1,250.00 EUR to Northwind GmbH within thirty days of the delivery",
    "Rainfall in the valley rose by 12 percent while the reservoir stayed below its mark",
    "The museum bought two paintings and a clock from the estate of a retired sailor",
    "Patients who slept longer than eight hours reported fewer headaches in the spring",
)


def text(paragraphs: int, *, of: str = "") -> bytes:
    """Paragraphs that all differ; about 150 characters each."""
    return "\n\n".join(
        f"{TOPICS[number % len(TOPICS)]}, as note {number} {of} says. It was kept in folder {number * 7}."
        for number in range(paragraphs)
    ).encode()


class Docs(RehearsedPipeline):
    """A rehearsal of the pipeline, on a clock that jumps."""

    def upload(self, filename: str, content: bytes, **more: Any) -> TakenIn:
        async def take() -> TakenIn:
            intake = Intake(self.engine, open_storage(), DOCUMENT_RULES, bytes_max=64 * 1024**2)
            return await intake.take(filename, pieces(content), **more)

        return self.do(take())

    def run(self, filename: str, content: bytes, **more: Any) -> DocumentDetails:
        """Uploaded, and worked on to its end."""
        taken = self.upload(filename, content, **more)
        self.drain()
        return self.shown(taken.id)

    def shown(self, document_id: int) -> DocumentDetails:
        async def get() -> DocumentDetails:
            documents = Documents(self.engine)
            await documents.prepare()
            return await documents.details(document_id)

        return self.do(get())

    def chunks(self, document_id: int) -> list[ChunkLine]:
        async def read() -> list[ChunkLine]:
            document = await Documents(self.engine).get(document_id)
            return await chunks_of(self.engine.store, document, limit=100_000)

        return self.do(read())

    def findings(self, document_id: int) -> list[FindingLine]:
        async def read() -> list[FindingLine]:
            document = await Documents(self.engine).get(document_id)
            return await findings_of(self.engine.store, document)

        return self.do(read())

    def chunk_rows(self, document_id: int) -> list[Row]:
        """As they are stored, shown or not: with what tells whether they were written again."""
        return self.rows_of(
            "SELECT id, number, text, created_at FROM holdfast_document_chunks WHERE document_id = $1"
            " ORDER BY number",
            document_id,
        )

    def vector_rows(self, document_id: int) -> list[Row]:
        return self.rows_of(
            "SELECT chunk_id, seq, model, created_at FROM holdfast_document_embeddings"
            " WHERE document_id = $1 ORDER BY chunk_id",
            document_id,
        )

    def finding_rows(self, document_id: int) -> list[Row]:
        return self.rows_of(
            "SELECT number, kind, text, created_at FROM holdfast_document_findings"
            " WHERE document_id = $1 ORDER BY number",
            document_id,
        )


@contextmanager
def rehearsed(folder: Path, *, url: str | None = None, **environ: str) -> Iterator[Docs]:
    def playbook() -> str:
        return playbook_text(DocumentSettings.from_environment())

    environ = {"HOLDFAST_DOCUMENTS_CHUNK_CHARS": "200", **environ}
    with rehearsed_pipeline(Docs, playbook, folder, url=url, prefix="document", **environ) as docs:
        yield docs
