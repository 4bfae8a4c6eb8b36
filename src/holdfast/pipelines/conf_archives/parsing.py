"""The step `parse`: every .conf of the archive, read in a stream and written in parts.

    storage ──▶ a file in the work folder ──▶ members ──▶ text ──▶ stanzas ──▶ rows

Nothing of the archive is ever put under a name of its own. What one attempt has written another one clears,
and the run is COMPLETE together with its step, or not at all.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from typing import Any

from holdfast.core.errors import HoldfastError, PermanentError, StaleLease
from holdfast.pipelines.conf_archives.intake import CONF_UPLOADS
from holdfast.pipelines.conf_archives.reading import Reading
from holdfast.pipelines.conf_archives.run_writer import RunWriter, clear_leftovers
from holdfast.pipelines.conf_archives.settings import ConfSettings
from holdfast.pipelines.conf_archives.tables import COMPLETE_RUN
from holdfast.pipelines.held_row import Beat, task_id_of
from holdfast.pipelines.places import attempt_folder, open_storage
from holdfast.pipelines.upload import Upload, fetch
from holdfast.store.postgres_tables import in_schema
from holdfast.store.tables import table_writer
from holdfast.worker.context import Context

FETCHED_SHARE, READ_SHARE = 0.05, 0.99  # of the progress that people see, when that is done

_ALREADY_COMPLETED = {"status": "already_completed"}


def parse_upload(ctx: Context) -> dict[str, Any]:
    upload = CONF_UPLOADS.upload_of(ctx.workload)
    settings = ConfSettings.from_environment(os.environ)
    task_id = task_id_of(ctx.job.queue_id, ctx.job.fence)
    started = time.monotonic()
    with closing(table_writer(ctx.database)) as tables:
        stored_bytes_max = settings.stored_bytes_max(upload.size)
        writer = RunWriter(tables, ctx.execution_id, task_id, time.time, stored_bytes_max)
        if not writer.begin(upload):
            return _ALREADY_COMPLETED
        beat = Beat(ctx, "Run", writer.flush)
        writer.clear(beat)
        clear_leftovers(tables, beat)
        try:
            with attempt_folder(f"{CONF_UPLOADS.prefix}-") as folder:
                archive = folder / "archive"
                fetch(open_storage(), upload, archive, beat)
                ctx.progress(FETCHED_SHARE)
                told = _Told(ctx, upload, beat)
                Reading(upload, archive, folder, settings.limits, writer, told).read_all()
        except Exception as error:
            with suppress(HoldfastError):  # what led here is what is told
                if isinstance(error, PermanentError) or ctx.is_last_attempt or writer.is_cancelled():
                    writer.clear(lambda: None)  # no attempt follows that would do it
            raise
        writer.flush()
    duration = time.monotonic() - started
    counts = (writer.files_parsed, writer.stanzas_created, writer.parse_errors)
    complete = COMPLETE_RUN if ctx.database.startswith("sqlite") else in_schema(COMPLETE_RUN)
    with ctx.transaction() as tx:
        if not tx.execute(complete, ctx.execution_id, task_id, time.time(), duration, *counts):
            raise StaleLease(f"Run {ctx.execution_id} is worked on by another attempt.")
    return {
        "status": "complete",
        "files_parsed": writer.files_parsed,
        "stanzas_created": writer.stanzas_created,
        "parse_errors": writer.parse_errors,
        "duration_seconds": round(duration, 3),
    }


class _Told:
    """How much of the upload has been read, for people; None where that is not known."""

    def __init__(self, ctx: Context, upload: Upload, beat: Beat) -> None:
        self._ctx = ctx
        self._size = max(1, upload.size)
        self._beat = beat

    def __call__(self, consumed: int | None) -> None:
        if consumed is not None:
            share = min(1.0, consumed / self._size)
            self._ctx.progress(FETCHED_SHARE + (READ_SHARE - FETCHED_SHARE) * share)
        self._beat()
