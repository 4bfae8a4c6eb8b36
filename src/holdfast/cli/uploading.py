"""What the commands share that upload files: a file as it is sent, its name, what is told where one cannot be
read or an error comes between two, and the worker beside a command that ends its own uploads itself."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from holdfast.cli.going_on import typed
from holdfast.cli.output import sentence
from holdfast.core.errors import HoldfastError, InvalidInput, PermanentError

if TYPE_CHECKING:
    from holdfast.client import AnyEngine

PIECE_BYTES = 256 * 1024
LOOK_SECONDS = 0.1
LOOK_SECONDS_AFAR = 0.5
KEPT_TOLD_MAX = 10

# In the head of an upload these stand for something else: folders, a quotation mark, the end of a line.
_NOT_FOR_HEADS = re.compile(r"\\|%(?=22|0[AD])", re.IGNORECASE)


def name_of(path: Path) -> str:
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


def unreadable(path: Path, error: OSError) -> UnusableFile:
    return UnusableFile(
        f"{str(path)!r} cannot be read: {error.strerror or error}.",
        guidance="Check that it is there, its permissions, and the disk that it is on.",
    )


@contextlib.contextmanager
def opened_file(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    with file:
        yield file


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

    def check_received(self, sha256: str, what: str, id_: int) -> None:
        """That what a server got, and has made this of, is what was read here."""
        if sha256 != self.sha256:
            raise PermanentError(
                f"What the server got is not what was sent; it made {what} {id_} of it.",
                error_type="checksum_mismatch",
                guidance=f"Something on the way changed it. Cancel that {what}, and upload the file again:\n"
                f"  {typed(f'holdfast cancel {id_}')}",
            )

    def read(self, size: int) -> bytes:
        try:
            piece = self._file.read(size)
        except OSError as error:
            raise unreadable(self._path, error) from error
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

    async def pieces(self) -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(self.read, PIECE_BYTES):
            yield piece

    def tell(self) -> int:
        return self._count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """It is read once, from its beginning. httpx only asks for its size in this way, which must be the
        one that is looked after here."""
        return self._size if whence == os.SEEK_END else offset


class Watched(io.RawIOBase):
    """A file that tells how much of it was read."""

    def __init__(self, file: BinaryIO, told: Callable[[int], None]) -> None:
        self._file = file
        self._told = told

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self._told(len(piece))
        return piece

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


@contextlib.contextmanager
def told_with_errors(kept: Sequence[str]) -> Iterator[None]:
    """An error says what was made before it: with --json it is all that is said."""
    try:
        yield
    except HoldfastError as error:
        if kept:
            more = len(kept) - KEPT_TOLD_MAX
            named = ", ".join(kept[:KEPT_TOLD_MAX]) + (f" and {more:,} more" if more > 0 else "")
            told = f"{sentence(str(error))} Uploaded before, and kept: {named}."
            error.args = (told, *error.args[1:])
        raise


@contextlib.contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """What is wrong with one of many files is told with its name."""
    try:
        yield
    except UnusableFile:
        raise
    except HoldfastError as error:
        error.args = (f"{path}: {error}", *error.args[1:])
        raise


@contextlib.asynccontextmanager
async def working_on(pipeline: str, engine: AnyEngine, *, concurrency: int) -> AsyncIterator[None]:
    """A worker for this built-in pipeline for as long as the block lasts; a server has its own."""
    from holdfast.cli.run_work import working_for
    from holdfast.engine import Engine
    from holdfast.pipelines.registry import built_in
    from holdfast.steps.registry import FUNCTION_PREFIX
    from holdfast.worker.typed import Leave, typed_handlers

    if not isinstance(engine, Engine):
        yield
        return
    found = built_in(pipeline)
    assert found is not None
    functions = found.functions()
    offered = typed_handlers(Leave(), functions, payload_bytes_max=engine.payload_bytes_max)
    handlers = {key: offered[key] for key in offered if key.removeprefix(FUNCTION_PREFIX) in functions}
    with quiet():
        async with working_for(engine, handlers, family=None, concurrency=concurrency):
            yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What is logged of errors, the command tells itself."""
    log = logging.getLogger("holdfast")
    silent = logging.NullHandler()
    before, log.propagate = log.propagate, False
    log.addHandler(silent)
    try:
        yield
    finally:
        log.removeHandler(silent)
        log.propagate = before
