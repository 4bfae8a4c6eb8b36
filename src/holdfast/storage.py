"""Files that are too large for a result, kept by name: what a step downloads, what a later step reads.

    chunks ──write_stream──▶ .partial-<token> ──sync, rename──▶ name

A file is there whole or not at all. It is written beside its place under a name that nobody can ask for,
synced, and renamed; a process that dies on the way leaves a partial file, which is never taken for a whole
one and is removed by a later writer once the lock of the dead one is gone. Writing a name again replaces it,
so a step may run twice. Names are relative paths and cannot lead out of the folder.

The calls that block run in threads. Storage is a folder of the machine; `Storage.open` is where others will
be chosen by their address.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from holdfast.core.errors import HoldfastError, InvalidInput, PermanentError, TransientError
from holdfast.core.masking import mask_secrets

T = TypeVar("T")

NAME_CHARS_MAX = 500
PART_BYTES_MAX = 200  # of a name between two slashes; file systems hold 255 bytes
WRITE_BYTES = 256 * 1024
READ_BYTES = 256 * 1024
PARTIAL_SECONDS_MIN = 3600.0  # before a partial file is looked at by anybody but its writer

_PARTIAL = ".partial-"
_MAY_HEAL = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EROFS}
    | {errno.ETIMEDOUT, errno.ENODEV, errno.ENXIO, errno.EBUSY, errno.EAGAIN, errno.ENOTCONN, errno.EHOSTDOWN}
)
_NAME_TAKEN = frozenset({errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY})


@dataclass(frozen=True, slots=True)
class Saved:
    name: str
    size: int
    sha256: str


class Storage(ABC):
    """Every call raises InvalidInput for a bad name, TransientError `storage_unavailable` where trying again
    may help, and PermanentError where it will not."""

    @staticmethod
    def open(url: str) -> Storage:
        """The storage that an address or a path names. Nothing is made or touched yet."""
        return FolderStorage(_folder_of(url))

    @abstractmethod
    async def write_stream(self, name: str, chunks: AsyncIterable[bytes]) -> Saved:
        """Keep all chunks under this name, in place of what was there, or nothing."""

    @abstractmethod
    def read(self, name: str) -> AsyncIterator[bytes]:
        """The file's bytes, in chunks; of one version of it, even where it is replaced meanwhile."""

    @abstractmethod
    async def exists(self, name: str) -> bool: ...

    @abstractmethod
    async def delete(self, name: str) -> None:
        """Also where there is none: a step that deletes may run twice."""


def _folder_of(url: str) -> Path:
    if not url or "\0" in url:
        raise InvalidInput("The address of the storage is empty or has NUL characters.", guidance=_FORMS)
    parts = urlsplit(url)
    if "://" not in url:
        return Path(url).expanduser()
    if parts.scheme == "s3":
        raise InvalidInput(
            f"Storage on S3 ({mask_secrets(url)}) is not supported yet.", guidance=f"{_FORMS} S3 comes later."
        )
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
        raise InvalidInput(f"{mask_secrets(url)!r} is no address of a storage.", guidance=_FORMS)
    return Path(unquote(parts.path))


_FORMS = "Use the path of a folder, or file:///path/of/a/folder."


def check_file_name(name: object) -> str:
    """A relative path with / between its parts that stays where it is put."""
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"The name of a stored file must be a text, not {name!r}.", guidance=_NAMES)
    if len(name) > NAME_CHARS_MAX:
        raise InvalidInput(
            f"The name of a stored file has {len(name)} characters; the limit is {NAME_CHARS_MAX}.",
            guidance=_NAMES,
        )
    if not name.isprintable() or "\\" in name:  # surrogates are not printable either
        raise InvalidInput(f"The name of a stored file {name!r} has a forbidden character.", guidance=_NAMES)
    for part in name.split("/"):
        if not part or part.startswith("."):
            why = "has an empty part" if not part else f"has the part {part!r}, which begins with a dot"
            raise InvalidInput(f"The name of a stored file {name!r} {why}.", guidance=_NAMES)
        if len(part.encode()) > PART_BYTES_MAX:
            raise InvalidInput(
                f"The name of a stored file has a part of more than {PART_BYTES_MAX} bytes.", guidance=_NAMES
            )
    return name


_NAMES = "Use a relative path such as reports/2024.csv, without .., hidden parts or control characters."


class FolderStorage(Storage):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._looked_after: set[Path] = set()

    async def write_stream(self, name: str, chunks: AsyncIterable[bytes]) -> Saved:
        partial = _Partial(self._path(name))
        try:
            await self._in_thread(name, lambda: self._begin(partial))
            async for chunk in chunks:
                if partial.gather(chunk) >= WRITE_BYTES:
                    await self._in_thread(name, partial.write)
            await self._in_thread(name, partial.finish)
        except BaseException:
            await asyncio.to_thread(partial.abandon)
            raise
        return Saved(name, partial.size, partial.digest.hexdigest())

    async def read(self, name: str) -> AsyncIterator[bytes]:
        path = self._path(name)
        file = await self._in_thread(name, lambda: path.open("rb"))
        try:
            while chunk := await self._in_thread(name, lambda: file.read(READ_BYTES)):
                yield chunk
        finally:
            file.close()

    async def exists(self, name: str) -> bool:
        path = self._path(name)
        return await self._in_thread(name, path.is_file)

    async def delete(self, name: str) -> None:
        path = self._path(name)

        def unlink() -> None:
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                _sync_folder(path.parent)

        await self._in_thread(name, unlink)

    def _path(self, name: str) -> Path:
        return self._folder / check_file_name(name)

    async def _in_thread(self, name: str, call: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(call)
        except OSError as error:
            raise _in_our_words(error, name, self._folder) from error

    def _begin(self, partial: _Partial) -> None:
        folder = partial.target.parent
        _make_folders(folder)
        if folder not in self._looked_after:
            self._looked_after.add(folder)
            _remove_abandoned(folder)
        partial.begin()


class _Partial:
    """A file on its way. The lock tells others that its writer lives. One thread at a time uses it: a call
    that was cut off may still be under way, or yet to begin, when the file is abandoned."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.size = 0
        self.digest = hashlib.sha256()
        self._path = target.parent / f"{_PARTIAL}{secrets.token_hex(8)}"
        self._file: BinaryIO | None = None
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._turn = threading.Lock()
        self._has_ended = False

    def begin(self) -> None:
        with self._turn:
            if not self._has_ended:
                self._file = self._path.open("xb", buffering=0)
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def gather(self, chunk: bytes) -> int:
        """Small chunks are written together. The answer is how many bytes wait to be written."""
        self._gathered.append(chunk)
        self._gathered_bytes += len(chunk)
        return self._gathered_bytes

    def write(self) -> None:
        with self._turn:
            self._write()

    def _write(self) -> None:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if self._file is None or self._has_ended:
            return
        for chunk in gathered:
            rest = memoryview(chunk)
            while rest:
                rest = rest[self._file.write(rest) :]
            self.digest.update(chunk)
            self.size += len(chunk)

    def finish(self) -> None:
        with self._turn:
            self._write()
            if self._file is None or self._has_ended:
                return
            os.fsync(self._file.fileno())
            os.replace(self._path, self.target)
            self._has_ended = True
            self._file.close()
            _sync_folder(self.target.parent)

    def abandon(self) -> None:
        with self._turn:
            if self._file is not None:
                self._file.close()
                if not self._has_ended:
                    self._path.unlink(missing_ok=True)
            self._has_ended = True


def _remove_abandoned(folder: Path) -> None:
    """Partial files whose writer is dead. A young one may be of a writer that has not locked it yet."""
    for path in folder.glob(f"{_PARTIAL}*"):
        try:
            if time.time() - path.stat().st_mtime < PARTIAL_SECONDS_MIN:
                continue
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        except OSError:
            continue  # its writer lives, another one was quicker, or it is not ours to remove


def _make_folders(folder: Path) -> None:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        _sync_folder(each.parent)


def _sync_folder(folder: Path) -> None:
    """A rename is kept over a loss of power once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _in_our_words(error: OSError, name: str, folder: Path) -> HoldfastError:
    why = error.strerror or type(error).__name__
    if error.errno in _MAY_HEAL:
        return TransientError(
            f"The file {name!r} could not be kept or read in the storage {folder}: {why}.",
            error_type="storage_unavailable",
        )
    if isinstance(error, FileNotFoundError):
        return PermanentError(
            f"There is no file {name!r} in the storage {folder}.",
            error_type="not_found",
            user_message="A stored file was not found",
            guidance="Check its name, and whether the step that saves it has run on the same storage.",
        )
    if error.errno in _NAME_TAKEN:
        return PermanentError(
            f"The file {name!r} cannot be in the storage {folder}: {why}.",
            error_type="validation_error",
            user_message="The name of a stored file cannot be used",
            guidance="The name, or a folder in it, is taken by something else. Choose another one.",
        )
    return PermanentError(
        f"The storage {folder} may not be used for the file {name!r}: {why}.",
        error_type="auth_error",
        user_message="The storage may not be used",
        guidance="Check the permissions of the folder in HOLDFAST_STORAGE, or name another one.",
    )
