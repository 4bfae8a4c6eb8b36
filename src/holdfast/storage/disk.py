"""What storages do with a disk: calls in threads, folders that are synced, files put in place whole.

    bytes ──▶ .partial-<token> ──sync, rename──▶ target

A process that dies on the way leaves a partial file, which is never taken for a whole one and is removed by a
later writer once the lock of the dead one is gone.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

T = TypeVar("T")

WRITE_BYTES = 256 * 1024
READ_BYTES = 256 * 1024
PARTIAL_SECONDS_MIN = 3600.0  # before a partial file is looked at by anybody but its writer

_PARTIAL = ".partial-"


async def to_its_end(call: Callable[[], T]) -> T:
    """Run a call in a thread, and be cancelled only once it has ended: nobody else uses what it works on
    while it still does."""
    under_way = asyncio.get_running_loop().run_in_executor(None, call)
    cancelled: asyncio.CancelledError | None = None
    while not under_way.done():
        try:
            await asyncio.wait([under_way])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        under_way.exception()  # seen, and less than the order to stop
        raise cancelled
    return under_way.result()


class PartialFile:
    """A file on its way. The lock tells others that its writer lives. One thread at a time uses it: a call
    that was cut off may still be under way, or yet to begin, when the file is abandoned."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.size = 0
        self.digest = hashlib.sha256()
        self._path = target.parent / f"{_PARTIAL}{secrets.token_hex(8)}"
        self._file: BinaryIO | None = None
        self._gathered: list[bytes] = []
        self.gathered_bytes = 0
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
        self.gathered_bytes += len(chunk)
        return self.gathered_bytes

    def write(self) -> None:
        with self._turn:
            self._write()

    def _write(self) -> None:
        gathered, self._gathered, self.gathered_bytes = self._gathered, [], 0
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
            sync_folder(self.target.parent)

    def abandon(self) -> None:
        with self._turn:
            if self._file is not None:
                self._file.close()
                if not self._has_ended:
                    self._path.unlink(missing_ok=True)
            self._has_ended = True


def remove_abandoned(folder: Path) -> None:
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


def make_folders(folder: Path) -> None:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """A rename is kept over a loss of power once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
