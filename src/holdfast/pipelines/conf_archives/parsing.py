"""The step `parse`: every .conf of the archive, read in a stream and written in parts.

    storage ──▶ a file in the work folder ──▶ members ──▶ text ──▶ stanzas ──▶ rows

Nothing of the archive is ever put under a name of its own. What one attempt has written another one clears,
and the run is COMPLETE together with its step, or not at all.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError, PermanentError, StaleLease, TransientError
from holdfast.pipelines.conf_archives.reading import Reading
from holdfast.pipelines.conf_archives.run_writer import RunWriter, clear_leftovers, task_id_of
from holdfast.pipelines.conf_archives.settings import ConfSettings, open_storage, work_folder
from holdfast.pipelines.conf_archives.tables import COMPLETE_RUN
from holdfast.pipelines.conf_archives.upload import Upload, ensure_stored, upload_of
from holdfast.storage import Storage
from holdfast.store.postgres_tables import in_schema
from holdfast.store.tables import table_writer
from holdfast.worker.context import Context

HEARTBEAT_SECONDS = 30.0
WORK_PREFIX = "conf-"
WORK_SECONDS_MIN = 3600.0  # before the folder of a dead attempt is removed by another one
FETCHED_SHARE, READ_SHARE = 0.05, 0.99  # of the progress that people see, when that is done

# How a folder that is not mounted looks: the file was there a moment before.
_AWAY = frozenset({"not_found", "validation_error"})

_ALREADY_COMPLETED = {"status": "already_completed"}


def parse_upload(ctx: Context) -> dict[str, Any]:
    upload = upload_of(ctx.workload)
    settings = ConfSettings.from_environment(os.environ)
    task_id = task_id_of(ctx.job.queue_id, ctx.job.fence)
    started = time.monotonic()
    with closing(table_writer(ctx.database)) as tables:
        stored_bytes_max = settings.stored_bytes_max(upload.size)
        writer = RunWriter(tables, ctx.execution_id, task_id, time.time, stored_bytes_max)
        if not writer.begin(upload):
            return _ALREADY_COMPLETED
        beat = _Beat(ctx, writer)
        writer.clear(beat)
        clear_leftovers(tables, beat)
        try:
            with _work_folder() as folder:
                archive = folder / "archive"
                _fetch(open_storage(), upload, archive, beat)
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


def _fetch(storage: Storage, upload: Upload, target: Path, beat: Callable[[], None]) -> None:
    digest = hashlib.sha256()
    with target.open("xb") as file, closing(_read(storage, upload)) as chunks:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
            beat()
    if digest.hexdigest() != upload.sha256:
        raise TransientError(
            f"What the storage gave for {upload.filename!r} is not what was uploaded: its SHA-256 is"
            f" {digest.hexdigest()}, not {upload.sha256}.",
            error_type="storage_unavailable",
            user_message="The stored file is damaged",
            guidance=f"If it stays so, remove {upload.file} from the storage, upload the file again, and"
            " retry this run.",
        )


def _read(storage: Storage, upload: Upload) -> Generator[bytes, None, None]:
    """Its event loop stands still between two chunks: what writes to PostgreSQL meanwhile has one, too."""
    with asyncio.Runner() as runner:
        runner.run(ensure_stored(storage, upload))
        chunks = aiter(storage.read(upload.file))

        async def next_chunk() -> bytes | None:
            return await anext(chunks, None)

        try:
            while (chunk := runner.run(next_chunk())) is not None:
                yield chunk
        except PermanentError as error:
            if error.error_type not in _AWAY:
                raise
            raise TransientError(str(error), error_type="storage_unavailable") from error


class _Told:
    """How much of the upload has been read, for people; None where that is not known."""

    def __init__(self, ctx: Context, upload: Upload, beat: _Beat) -> None:
        self._ctx = ctx
        self._size = max(1, upload.size)
        self._beat = beat

    def __call__(self, consumed: int | None) -> None:
        if consumed is not None:
            share = min(1.0, consumed / self._size)
            self._ctx.progress(FETCHED_SHARE + (READ_SHARE - FETCHED_SHARE) * share)
        self._beat()


class _Beat:
    """Ends an attempt that is in vain, and gives a sign of life where nothing was written for long."""

    def __init__(self, ctx: Context, writer: RunWriter) -> None:
        self._ctx = ctx
        self._writer = writer
        self._due = time.monotonic() + HEARTBEAT_SECONDS

    def __call__(self) -> None:
        if self._ctx.lease_lost:
            raise StaleLease(f"Run {self._ctx.execution_id} was cancelled, or goes on elsewhere.")
        if time.monotonic() >= self._due:
            self._writer.flush()
            self._due = time.monotonic() + HEARTBEAT_SECONDS


@contextmanager
def _work_folder() -> Iterator[Path]:
    """A folder of this attempt's own; those that killed ones have left are removed."""
    spool = work_folder()
    _remove_abandoned(spool)
    folder = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=spool))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(spool: Path) -> None:
    for folder in spool.glob(f"{WORK_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < WORK_SECONDS_MIN:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # another one was quicker, or it is not ours to look at
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # its attempt lives
        finally:
            os.close(descriptor)
