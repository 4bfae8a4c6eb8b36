"""`holdfast ingest`: configuration archives from files, uploaded and parsed.

On a database the command works on its runs itself, beside whatever workers there are; a server's runs are
worked on there. Either way it waits for their ends, unless it is told not to: what was uploaded is safe, and
goes on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from holdfast.cli.going_on import typed
from holdfast.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, database_option, json_option, opened
from holdfast.cli.output import sentence
from holdfast.core.errors import HoldfastError, InvalidInput, PermanentError
from holdfast.core.masking import mask_secrets

if TYPE_CHECKING:
    from holdfast.cli.ingest_screen import Screen
    from holdfast.client import AnyEngine
    from holdfast.pipelines.conf_archives.runs import Run

PIECE_BYTES = 256 * 1024
LOOK_SECONDS = 0.1
LOOK_SECONDS_AFAR = 0.5
PARSED_AT_ONCE = 2

# In the head of an upload these stand for something else: folders, a quotation mark, the end of a line.
_NOT_FOR_HEADS = re.compile(r"\\|%(?=22|0[AD])", re.IGNORECASE)


@click.command(
    epilog="Example:  holdfast ingest etc.tgz TA_web.zip props.conf",
    short_help="Upload and parse configuration archives.",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--again", is_flag=True, help="Make a new run of a file that was uploaded before.")
@click.option("--lane", type=click.Choice(["manual", "bulk"]), default="manual", show_default=True,
              help="manual goes first: a person waits for it.")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Upload only: a worker will parse it.")
@database_option
@json_option
def ingest(files: tuple[Path, ...], again: bool, lane: str, no_wait: bool, url: str, as_json: bool) -> None:
    """Upload each FILE (.tar, .tar.gz, .tgz, .spl, .tar.bz2, .tar.xz, .zip, or a single .conf) and parse it.

    The same file gives the same run. The exit code is 0 where all runs are COMPLETE, 1 where one has failed.
    """
    from holdfast.addresses import is_server
    from holdfast.cli.ingest_screen import screen_for
    from holdfast.cli.output import show_json

    _check_files(files)
    screen = screen_for(silent=as_json, server=mask_secrets(url) if is_server(url) else None)
    kept: list[str] = []

    async def work() -> list[Run]:
        async with opened(url, create=True) as engine:
            door = door_to(engine)
            with screen, _told_with_errors(kept):
                runs = [await _uploaded(door, file, screen, kept, lane=lane, again=again) for file in files]
                if not no_wait:
                    runs = await _ended(engine, door, runs, screen)
            return runs

    try:
        runs = asyncio.run(work())
    except KeyboardInterrupt:
        screen.left_behind()
        sys.stdout.flush()
        os._exit(EXIT_INTERRUPTED)  # an ordinary exit would wait for the thread that parses
    if as_json:
        show_json({"items": runs})
    else:
        screen.end(runs, is_waited_for=not no_wait)
    sys.exit(EXIT_FAILED if any(run.status == "FAILED" for run in runs) else 0)


def _check_files(files: Sequence[Path]) -> None:
    """All of them, before anything is sent."""
    from holdfast.pipelines.conf_archives.archive import HEAD_BYTES
    from holdfast.pipelines.conf_archives.intake import check_kind

    for file in files:
        try:
            if not file.is_file():
                what = (
                    "is a folder" if file.is_dir() else "is not there" if not file.exists() else "is no file"
                )
                raise InvalidInput(
                    f"{str(file)!r} {what}.",
                    guidance="Give archives or .conf files. A folder can be packed:  tar czf app.tgz FOLDER",
                )
            with file.open("rb") as opened_file:
                check_kind(_name_of(file), opened_file.read(HEAD_BYTES))
        except PermanentError as error:
            error.args = (f"{file}: {error}", *error.args[1:])
            raise
        except OSError as error:
            raise _unreadable(file, error) from None


def _name_of(path: Path) -> str:
    """A name on a disk may be any bytes. It comes out as a server would take it from an upload, so that a
    file has the same name on both ways; a backslash is a character like others here, and cuts nothing off."""
    from holdfast.pipelines.conf_archives.archive_names import decoded
    from holdfast.server.multipart import plain_filename

    name = plain_filename(_NOT_FOR_HEADS.sub("_", decoded(os.fsencode(path.name))))
    if not name:
        raise InvalidInput(
            f"{str(path)!r} has a name of blanks and control characters only.",
            guidance="Give the file a name that can be shown.",
        )
    return name


class UnusableFile(InvalidInput):
    """It names the file itself."""


def _unreadable(path: Path, error: OSError) -> UnusableFile:
    return UnusableFile(
        f"{str(path)!r} cannot be read: {error.strerror or error}.",
        guidance="Check that it is there, its permissions, and the disk that it is on.",
    )


class Source:
    """A file as it is sent. What is wrong with it is told as its own fault; left as an OSError it would pass
    for one of the output or of the server. One that changes meanwhile is given up before its end: with that,
    what was sent would be taken for the whole file."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._digest = hashlib.sha256()
        self._count = 0

    @property
    def sha256(self) -> str:
        """Of what has been read."""
        return self._digest.hexdigest()

    def read(self, size: int) -> bytes:
        try:
            piece = self._file.read(size)
        except OSError as error:
            raise _unreadable(self._path, error) from error
        self._count += len(piece)
        if self._count > self._size or (not piece and self._count < self._size):
            than = "longer" if self._count > self._size else "shorter"
            raise UnusableFile(
                f"{str(self._path)!r} changed while it was sent: it is {than} than the {self._size:,} bytes"
                " that it had.",
                guidance="Nothing of it was taken in. Send it again when nobody writes to it any more.",
            )
        self._digest.update(piece)
        return piece

    def tell(self) -> int:
        return self._count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """It is read once, from its beginning. httpx only asks for its size in this way, which must be the
        one that is looked after here."""
        return self._size if whence == os.SEEK_END else offset


class EngineDoor:
    """Runs on a database."""

    look_seconds = LOOK_SECONDS

    def __init__(self, engine: Any) -> None:
        from holdfast.pipelines.conf_archives.intake import intake_for
        from holdfast.pipelines.conf_archives.runs import Runs

        self._intake = intake_for(engine)
        self._runs = Runs(engine)
        self._store = engine.store

    async def upload(self, name: str, file: Source, *, lane: str, again: bool) -> tuple[int, bool]:
        from holdfast.core.model import Lane

        taken = await self._intake.take(name, _pieces(file), lane=Lane(lane), again=again)
        return taken.id, taken.created

    async def run(self, run_id: int) -> Run:
        await self._runs.prepare()
        return await self._runs.get(run_id)

    async def progress(self, run_id: int) -> float:
        shares = [job.progress or 0.0 for job in await self._store.jobs_of([run_id]) if job.step == "parse"]
        return max(shares, default=0.0)


class ServerDoor:
    """The same through a server."""

    look_seconds = LOOK_SECONDS_AFAR

    def __init__(self, client: Any) -> None:
        self._client = client

    async def upload(self, name: str, file: Source, *, lane: str, again: bool) -> tuple[int, bool]:
        body = cast(BinaryIO, file)
        answer = await self._client.transport.upload("/v1/uploads", name, body, lane=lane, again=again)
        if answer.sha256 != file.sha256:
            raise PermanentError(
                f"What the server got is not what was sent; it made run {answer.run_id} of it.",
                error_type="checksum_mismatch",
                guidance="Something on the way changed it. Cancel that run, and upload the file again:\n"
                f"  {typed(f'holdfast cancel {answer.run_id}')}",
            )
        return answer.run_id, answer.created

    async def run(self, run_id: int) -> Run:
        from holdfast.pipelines.conf_archives.runs import Run

        found: Run = await self._client.transport.get(f"/v1/runs/{run_id}", Run)
        return found

    async def progress(self, run_id: int) -> float:
        found = await self._client.queue(execution_id=run_id, limit=10)
        return max((job.progress or 0.0 for job in found.items if job.step == "parse"), default=0.0)


Door = EngineDoor | ServerDoor


def door_to(engine: AnyEngine) -> Door:
    from holdfast.engine import Engine

    return EngineDoor(engine) if isinstance(engine, Engine) else ServerDoor(engine)


async def _pieces(file: Source) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
        yield piece


@contextlib.contextmanager
def _told_with_errors(kept: Sequence[str]) -> Iterator[None]:
    """An error says which runs were made before it: with --json it is all that is said."""
    try:
        yield
    except HoldfastError as error:
        if kept:
            told = f"{sentence(str(error))} Uploaded before, and kept: {', '.join(kept)}."
            error.args = (told, *error.args[1:])
        raise


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from error
    with file:
        yield file


async def _uploaded(
    door: Door, path: Path, screen: Screen, kept: list[str], *, lane: str, again: bool
) -> Run:
    name = _name_of(path)
    with _opened(path) as file, screen.uploading(name, file) as watched:
        try:
            run_id, created = await door.upload(name, Source(path, watched), lane=lane, again=again)
        except UnusableFile:
            raise
        except HoldfastError as error:
            error.args = (f"{path}: {error}", *error.args[1:])
            raise
    kept.append(f"run {run_id} ({name})")
    run = await door.run(run_id)
    screen.uploaded(run, created=created)
    return run


async def _ended(engine: AnyEngine, door: Door, runs: Sequence[Run], screen: Screen) -> list[Run]:
    found = {run.id: run for run in runs}
    async with _working(engine, is_needed=not all(_is_over(run) for run in found.values())):
        while open_ := [run_id for run_id, run in found.items() if not _is_over(run)]:
            for run_id in open_:
                found[run_id] = await door.run(run_id)
                screen.parsing(found[run_id], await door.progress(run_id))
            await asyncio.sleep(door.look_seconds)
    return [found[run.id] for run in runs]


def _is_over(run: Run) -> bool:
    return run.status in ("COMPLETE", "FAILED")


@contextlib.asynccontextmanager
async def _working(engine: AnyEngine, *, is_needed: bool) -> AsyncIterator[None]:
    from holdfast.cli.run_work import working_for
    from holdfast.engine import Engine
    from holdfast.pipelines.conf_archives.playbook import PATH
    from holdfast.pipelines.registry import built_in
    from holdfast.steps.registry import FUNCTION_PREFIX
    from holdfast.worker.typed import Leave, typed_handlers

    if not is_needed or not isinstance(engine, Engine):
        yield
        return
    pipeline = built_in(PATH)
    assert pipeline is not None
    functions = pipeline.functions()
    offered = typed_handlers(Leave(), functions, payload_bytes_max=engine.payload_bytes_max)
    handlers = {key: offered[key] for key in offered if key.removeprefix(FUNCTION_PREFIX) in functions}
    with _quiet():
        async with working_for(engine, handlers, family=None, concurrency=PARSED_AT_ONCE):
            yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What the worker logs of errors, the command tells itself."""
    log = logging.getLogger("holdfast")
    silent = logging.NullHandler()
    before, log.propagate = log.propagate, False
    log.addHandler(silent)
    try:
        yield
    finally:
        log.removeHandler(silent)
        log.propagate = before
