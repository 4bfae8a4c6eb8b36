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
from typing import Any, BinaryIO

from holdfast.core.errors import HoldfastError, PermanentError, StaleLease, TransientError
from holdfast.pipelines.conf_archives.archive import Kind, kind_of, members
from holdfast.pipelines.conf_archives.conf_parser import Fault, parse
from holdfast.pipelines.conf_archives.conf_text import text_blocks
from holdfast.pipelines.conf_archives.placing import is_conf, is_wanted, place_of
from holdfast.pipelines.conf_archives.run_writer import FileRead, RunWriter, task_id_of
from holdfast.pipelines.conf_archives.settings import ConfSettings, open_storage, work_folder
from holdfast.pipelines.conf_archives.tables import COMPLETE_RUN
from holdfast.pipelines.conf_archives.upload import Upload, upload_of
from holdfast.storage import Storage
from holdfast.store.postgres_tables import in_schema
from holdfast.store.tables import table_writer
from holdfast.worker.context import Context

HEARTBEAT_SECONDS = 30.0
HEAD_BYTES = 1024
WORK_PREFIX = "conf-"
WORK_SECONDS_MIN = 3600.0  # before the folder of a dead attempt is removed by another one
FETCHED_SHARE = 0.05  # of the progress that people see
TARGET_CHARS_SHOWN = 200

_ALREADY_COMPLETED = {"status": "already_completed"}


def parse_upload(ctx: Context) -> dict[str, Any]:
    upload = upload_of(ctx.workload)
    task_id = task_id_of(ctx.job.queue_id, ctx.job.fence)
    started = time.monotonic()
    with closing(table_writer(ctx.database)) as tables:
        writer = RunWriter(tables, ctx.execution_id, task_id, time.time)
        if not writer.begin(upload):
            return _ALREADY_COMPLETED
        beat = _Beat(ctx, writer)
        writer.clear(beat)
        try:
            with _work_folder() as folder:
                archive = folder / "archive"
                _fetch(open_storage(), upload, archive, beat)
                ctx.progress(FETCHED_SHARE)
                _read_all(ctx, upload, archive, folder, writer, beat)
        except (PermanentError, StaleLease) as error:
            if isinstance(error, PermanentError) or writer.is_cancelled():
                with suppress(HoldfastError):  # no attempt follows that would do it
                    writer.clear(lambda: None)
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
    with target.open("xb") as file, closing(_read(storage, upload.file)) as chunks:
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
            guidance=f"If it stays so, remove {upload.file} from the storage and upload the file again.",
        )


def _read(storage: Storage, name: str) -> Generator[bytes, None, None]:
    """Its event loop stands still between two chunks: what writes to PostgreSQL meanwhile has one, too."""
    with asyncio.Runner() as runner:
        chunks = aiter(storage.read(name))

        async def next_chunk() -> bytes | None:
            return await anext(chunks, None)

        while (chunk := runner.run(next_chunk())) is not None:
            yield chunk


def _read_all(
    ctx: Context, upload: Upload, archive: Path, folder: Path, writer: RunWriter, beat: Callable[[], None]
) -> None:
    def told(consumed: int) -> None:
        share = min(1.0, consumed / max(1, upload.size))
        ctx.progress(FETCHED_SHARE + (1 - FETCHED_SHARE) * share * 0.99)
        beat()

    with archive.open("rb") as file:
        kind = kind_of(upload.filename, file.read(HEAD_BYTES))
        if kind is Kind.CONF:
            _read_file(upload.filename, file, upload.size, writer, lambda: told(file.tell()))
            return
    has_conf = False
    limits = ConfSettings.from_environment(os.environ).limits
    with closing(members(archive, kind, limits, is_wanted, folder, progress=told)) as found:
        for member in found:
            if member.link_to is not None:
                _tell_link(member.path, member.link_to, writer)
                continue
            has_conf = has_conf or is_conf(member.path)
            _read_file(member.path, member.file, member.size, writer, beat)
    if not has_conf:
        raise PermanentError(
            f"There is no .conf file in {upload.filename!r}.",
            error_type="no_conf_files",
        )


def _read_file(path: str, file: BinaryIO, size: int, writer: RunWriter, beat: Callable[[], None]) -> None:
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    encoding, blocks = text_blocks(file)
    read = FileRead(path, place_of(path), encoding, size, digest)
    if encoding.startswith(("utf-16", "utf-32")):
        blocks = _with_losses_told(blocks, read)
    for found in parse(_watched(blocks, beat)):
        if isinstance(found, Fault):
            read.add_fault(found)
        else:
            writer.add_stanza(read, found)
    writer.end_file(read)


def _watched(blocks: Iterator[str], beat: Callable[[], None]) -> Iterator[str]:
    """By blocks: a file may have a million lines and no stanza."""
    for block in blocks:
        beat()
        yield block


def _with_losses_told(blocks: Iterator[str], read: FileRead) -> Iterator[str]:
    """Bytes that are no character of an encoding have become U+FFFD: the first line of them is told."""
    line, end = 1, ""
    is_told = False
    for block in blocks:
        if not is_told:
            at = block.find("\ufffd")
            is_told = at >= 0
            lines = (end + (block[:at] if is_told else block)).replace("\r\n", "\n").replace("\r", "\n")
            line += lines.count("\n") - (1 if end else 0)
            end = "\r" if block.endswith("\r") else ""
            if is_told:
                read.add_fault(Fault(line, f"from here on some characters are no {read.encoding}, and lost"))
        yield block


def _tell_link(path: str, target: str, writer: RunWriter) -> None:
    """What is not in the archive under its own name is told: nobody shall miss a file and not know why."""
    digest = hashlib.sha256(target.encode(errors="replace")).hexdigest()
    read = FileRead(path, place_of(path), "utf-8", 0, digest)
    told = f"a link to {target[:TARGET_CHARS_SHOWN]!r}, which is not followed"
    read.add_fault(Fault(1, f"{told}; pack what it leads to: tar -h --hard-dereference"))
    writer.end_file(read)


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
    spool.mkdir(0o700, parents=True, exist_ok=True)
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
