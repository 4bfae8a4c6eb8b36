"""Storage in a folder of the machine, or of a network file system that several machines share.

    chunks ──write_stream──▶ june/.partial-<token> ──sync, rename──▶ june/north.csv
    chunks ──draft.write──▶ .drafts/<key>.draft ──sync, rename──▶ june/north.csv

What is on its way lies under names that nobody can ask for.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

from holdfast.storage.disk import (
    READ_BYTES,
    WRITE_BYTES,
    PartialFile,
    make_folders,
    remove_abandoned,
    sync_folder,
    to_its_end,
)
from holdfast.storage.draft_file import DraftFile, DraftFolder
from holdfast.storage.drafts import Draft, open_draft
from holdfast.storage.faults import draft_fault, file_fault
from holdfast.storage.interface import Saved, Storage
from holdfast.storage.names import check_file_name

T = TypeVar("T")

DRAFTS = ".drafts"


class FolderStorage(Storage):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._looked_after: set[Path] = set()

    async def write_stream(self, name: str, chunks: AsyncIterable[bytes]) -> Saved:
        partial = PartialFile(self._path(name))
        try:
            await self._in_thread(name, lambda: self._begin(partial))
            async for chunk in chunks:
                if (asked := partial.gather(chunk)) >= WRITE_BYTES:
                    await self._in_thread(name, partial.write, asked)
            await self._in_thread(name, partial.finish, partial.gathered_bytes or None)
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
                sync_folder(path.parent)

        await self._in_thread(name, unlink)

    def draft(self, key: str, bytes_max: int | None = None) -> AbstractAsyncContextManager[Draft]:
        folder = DraftFolder(self._folder / DRAFTS)
        return open_draft(folder, key, bytes_max, self._keep, self._size_of)

    async def _size_of(self, name: str) -> int | None:
        path = self._path(name)
        return await self._in_thread(name, lambda: path.stat().st_size if path.is_file() else None)

    async def _keep(self, file: DraftFile, name: str) -> None:
        target = self._path(name)

        def put_in_place() -> bool:
            make_folders(target.parent)
            try:
                file.move_to(target)
            except FileNotFoundError as error:  # somebody has removed it: it is begun anew
                raise draft_fault(error, name, str(file.path.parent)) from error
            except OSError as error:
                if error.errno == errno.EXDEV:
                    return False
                raise
            sync_folder(target.parent)
            return True

        try:
            is_there = await to_its_end(put_in_place)
        except OSError as error:
            raise file_fault(error, name, str(self._folder)) from error
        if not is_there:  # a folder of the name lies on another file system
            await self.write_stream(name, file.pieces())

    def _path(self, name: str) -> Path:
        return self._folder / check_file_name(name)

    async def _in_thread(self, name: str, call: Callable[[], T], bytes_asked: int | None = None) -> T:
        try:
            return await asyncio.to_thread(call)
        except OSError as error:
            raise file_fault(error, name, str(self._folder), bytes_asked) from error

    def _begin(self, partial: PartialFile) -> None:
        folder = partial.target.parent
        make_folders(folder)
        if folder not in self._looked_after:
            self._looked_after.add(folder)
            remove_abandoned(folder)
        partial.begin()
