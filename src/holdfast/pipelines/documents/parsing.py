"""The step `parsing`: the file is read in a process apart, and its text kept in chunks.

    storage ──▶ a file in the work folder ──▶ a reading process ──chunks, in parts──▶ rows

The document is parsed together with its step, or not at all: the chunks of half a file are never looked for,
and the next attempt removes them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from holdfast.core.errors import HoldfastError, PermanentError
from holdfast.pipelines.documents.leftovers import clear_leftovers
from holdfast.pipelines.documents.playbook import Stage
from holdfast.pipelines.documents.reading.chunk import Chunk, Facts, ReadLimits
from holdfast.pipelines.documents.reading.readers import readers
from holdfast.pipelines.documents.stage_attempt import ALREADY_COMPLETED, StageAttempt, stage_attempt
from holdfast.pipelines.documents.writer import PARSED
from holdfast.pipelines.places import attempt_folder, open_storage
from holdfast.pipelines.upload import fetch
from holdfast.worker.context import Context

FETCHED_SHARE, READ_SHARE = 0.05, 0.99  # of the progress that people see, when that is done


def parse_document(ctx: Context) -> dict[str, Any]:
    with stage_attempt(ctx, Stage.PARSING) as attempt:
        if attempt.found == "complete":
            return ALREADY_COMPLETED
        writer = attempt.writer
        writer.clear_chunks(attempt.beat)
        clear_leftovers(attempt.tables, attempt.beat)
        try:
            facts = _read(attempt)
            writer.flush()
            told = msgspec.json.encode(facts).decode()
            attempt.complete(PARSED, facts.kind, facts.title, told, writer.chunk_count)
        except Exception as error:
            with suppress(HoldfastError):  # what led here is what is told
                if isinstance(error, PermanentError) or ctx.is_last_attempt or writer.is_cancelled():
                    writer.clear_chunks(lambda: None)  # no attempt follows that would do it
            raise
    return {
        "kind": facts.kind,
        "pages": facts.pages,
        "sheets": len(facts.sheets),
        "characters": facts.characters,
        "chunks": writer.chunk_count,
        "warnings": len(facts.warnings),
    }


def _read(attempt: StageAttempt) -> Facts:
    ctx, upload, settings = attempt.ctx, attempt.upload, attempt.settings
    limits = ReadLimits(
        seconds_max=settings.parse_seconds_max,
        memory_bytes_max=settings.parse_memory_bytes,
        chunk_chars_max=settings.chunk_chars_max,
        overlap_chars=settings.overlap_chars,
        text_chars_max=settings.text_chars_max,
        unpacked_bytes_max=settings.unpacked_bytes_max,
    )

    def take(chunks: list[Chunk], share: float) -> None:
        attempt.writer.add_chunks(chunks)
        ctx.progress(FETCHED_SHARE + (READ_SHARE - FETCHED_SHARE) * min(1.0, max(0.0, share)))
        attempt.beat()

    with attempt_folder("document-") as folder:
        file = folder / "file"
        fetch(open_storage(), upload, file, attempt.beat)
        ctx.progress(FETCHED_SHARE)
        return readers().read(file, filename=upload.filename, limits=limits, on_chunks=take)
