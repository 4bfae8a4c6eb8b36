"""A worker of the pipeline `documents` that dies: once in each stage of each document, at a place that is
drawn for it.

    documents_app.py URL FOLDER NAME PARENT LEASE_SECONDS [lives SEED]

What a life has
seen of a document's rows when it died is in the folder `deaths`, a file for each.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from acceptance.lives import Lives
from faults.processes import die_with
from holdfast import Holdfast
from holdfast.engine.step_transaction import StepTransaction
from holdfast.pipelines.documents import analyzing, embedding, parsing, writer  # noqa: F401 - before the first fork
from holdfast.pipelines.documents.playbook import Stage
from holdfast.pipelines.documents.stage_attempt import StageAttempt
from holdfast.pipelines.documents.writer import DocumentWriter
from holdfast.pipelines.registry import all_functions
from holdfast.store.postgres import PostgresStore  # noqa: F401
from holdfast.store.sqlite import SqliteStore  # noqa: F401

POLL_SECONDS: Final = 0.2
WAIT_SECONDS_MAX: Final = 300.0
SOON_SECONDS: Final = 0.006
BATCH: Final = 5
PART_CHUNKS: Final = 10

BEGUN, WRITING, WRITTEN, COMPLETING, AROUND, COMPLETED = (
    *("begun", "before a part", "after a part", "before it completes"),
    *("around its completion", "after its completion"),
)
PLACES: Final = (BEGUN, WRITING, WRITTEN, WRITTEN, COMPLETING, AROUND, COMPLETED)
PARTS_MAX: Final = 3


Rows: TypeAlias = tuple[list[tuple[int, float]], list[tuple[int, int, float]]]


class Death(msgspec.Struct, frozen=True):
    """`chunks` and `vectors` are the rows that were there: their ids and their times."""

    document: int
    stage: str
    place: str
    at: float
    chunks: list[tuple[int, float]]
    vectors: list[tuple[int, int, float]]


class Doom:
    """Of the attempt that this process works on."""

    def __init__(self, folder: Path, seed: str) -> None:
        self._folder = folder
        self._seed = seed
        self._place: tuple[str, int] | None = None
        self._counts: dict[str, int] = {}
        self._writer: DocumentWriter | None = None
        self._stage = ""
        self._rows_at_end: Rows = ([], [])

    def begin(self, writer: DocumentWriter, stage: Stage) -> None:
        self._writer, self._stage, self._counts, self._place = writer, stage.value, {}, None
        if not self._note(writer, stage.value).exists():
            draw = random.Random(f"{self._seed} {writer._id} {stage}")
            self._place = (draw.choice(PLACES), draw.randint(1, PARTS_MAX))

    def at(self, place: str) -> None:
        if self._place is None:
            return
        self._counts[place] = self._counts.get(place, 0) + 1
        wanted, count = self._place
        # A place that is not come by so often: then before the end.
        is_late = place == COMPLETING and wanted in (WRITING, WRITTEN)
        is_there = place == wanted and (place not in (WRITING, WRITTEN) or self._counts[place] == count)
        if is_there and place == AROUND:
            self._die_in(random.uniform(0, SOON_SECONDS), place)
        elif is_there or is_late:
            self._die_in(0, place)

    def _die_in(self, seconds: float, place: str) -> None:
        """Told of now: a moment later it may work on something else."""
        self._place = None
        writer, stage = self._writer, self._stage
        assert writer is not None
        # What completes the step has another connection; the attempt's own is closed by then.
        chunks, vectors = _rows(writer) if place in (BEGUN, WRITING, WRITTEN) else self._rows_at_end

        def die() -> None:
            death = Death(writer._id, stage, place, time.time(), chunks, vectors)
            self._note(writer, stage).write_bytes(msgspec.json.encode(death))
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(WAIT_SECONDS_MAX)  # the signal is on its way

        if not seconds:
            die()
        timer = threading.Timer(seconds, die)
        timer.daemon = True
        timer.start()

    def _note(self, writer: DocumentWriter, stage: str) -> Path:
        return self._folder / "deaths" / f"{writer._id}.{stage}"

    def install(self) -> None:
        begin, end, complete = DocumentWriter.begin, StageAttempt.complete, StepTransaction.complete

        def watched_begin(writer: DocumentWriter, stage: Stage, upload: Any) -> Any:
            self.begin(writer, stage)
            found = begin(writer, stage, upload)
            self.at(BEGUN)
            return found

        def watched_end(attempt: StageAttempt, *arguments: Any) -> None:
            self._rows_at_end = _rows(attempt.writer)
            end(attempt, *arguments)

        async def watched_complete(self_: StepTransaction, report: Any, definition_id: int) -> Any:
            self.at(COMPLETING)
            self.at(AROUND)
            ack = await complete(self_, report, definition_id)
            self.at(COMPLETED)
            return ack

        DocumentWriter.begin = watched_begin
        StageAttempt.complete = watched_end
        StepTransaction.complete = watched_complete
        for name in ("flush", "add_vectors", "store_findings"):
            setattr(DocumentWriter, name, self._part(getattr(DocumentWriter, name)))

    def _part(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            self.at(WRITING)
            answer = write(*arguments)
            self.at(WRITTEN)
            return answer

        return watched


def _rows(writer: DocumentWriter) -> Rows:
    def read(tx: Any) -> Rows:
        chunks = tx.fetch(
            "SELECT id, created_at FROM holdfast_document_chunks WHERE document_id = $1 ORDER BY id",
            writer._id,
        )
        vectors = tx.fetch(
            "SELECT seq, chunk_id, created_at FROM holdfast_document_embeddings WHERE document_id = $1"
            " ORDER BY seq",
            writer._id,
        )
        return chunks, vectors

    return writer._writer.write(read)


def work(url: str, name: str, lease_seconds: float) -> None:
    hf = Holdfast(url)
    hf.add_functions(all_functions())
    hf.run_worker(worker_id=name, concurrency=1, lease_seconds=lease_seconds, poll_seconds=POLL_SECONDS)


def main(
    url: str, folder_name: str, name: str, parent: str, lease: str, way: str = "", seed: str = ""
) -> None:
    die_with(int(parent))
    folder, lease_seconds = Path(folder_name), float(lease)
    if way != "lives":
        work(url, name, lease_seconds)
        return
    (folder / "deaths").mkdir(exist_ok=True)
    writer.PART_ROWS_MAX = PART_CHUNKS
    opened = embedding.open_embedder

    def in_small_batches(settings: Any) -> Any:
        embedder = opened(settings)
        embedder.batch_max = BATCH
        return embedder

    embedding.open_embedder = in_small_batches
    Doom(folder, seed).install()
    Lives(folder, name).live(lambda life: work(url, life, lease_seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
