"""Files that are written over several attempts, each of which may be killed at any moment.

    async with storage.draft(key) as draft:
        if draft.note.get("etag") != etag:      # of what was there, if anything
            await draft.begin({"etag": etag})
        async for chunk in the_rest(draft.size):
            await draft.write(chunk)
        saved = await draft.keep("june/north.csv")

Left without keep, also by an exception, a draft lies where it is until the next attempt goes on with it, or
until nobody has for a week. One attempt at a time has it. Another one that still lives, though its job was
given to somebody else, is waited for a little; then the newcomer writes a draft of its own, which nobody goes
on with: to download twice is better than to mix two downloads.

What a draft was kept as stays noted for a week: `draft.kept` tells it to an attempt that comes again because
the end of the one before was never heard of, as long as that file is there.

Small chunks are gathered and written together, in threads. A kill loses what is gathered: bytes of about a
second.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from holdfast.core.errors import HoldfastError
from holdfast.storage.disk import WRITE_BYTES, to_its_end
from holdfast.storage.draft_file import DraftFile, DraftFolder, checked_note
from holdfast.storage.faults import draft_fault, too_large
from holdfast.storage.interface import Saved
from holdfast.storage.names import check_draft_key, check_file_name

T = TypeVar("T")

LOCK_SECONDS_MAX = 5.0  # for which another attempt is waited for
LOCK_LOOK_SECONDS = 0.05
GATHER_SECONDS_MAX = 1.0

Keep = Callable[[DraftFile, str], Awaitable[None]]
"""Puts a draft in the storage under a name, whole."""

SizeOf = Callable[[str], Awaitable[int | None]]
"""How large the file of a name is in the storage; None where there is none."""


@asynccontextmanager
async def open_draft(
    folder: DraftFolder, key: str, bytes_max: int | None, keep: Keep, size_of: SizeOf
) -> AsyncIterator[Draft]:
    draft = Draft(folder, check_draft_key(key), bytes_max, keep, size_of)
    try:
        await draft._take()
        yield draft
    except BaseException:
        # What led here is what is told, be there room for the gathered bytes or not.
        with contextlib.suppress(HoldfastError):
            await draft._leave()
        raise
    await draft._leave()


class Draft:
    """One attempt's hold on a draft; used by one task at a time."""

    def __init__(
        self, folder: DraftFolder, key: str, bytes_max: int | None, keep: Keep, size_of: SizeOf
    ) -> None:
        self._folder = folder
        self._key = key
        self._bytes_max = bytes_max
        self._keep = keep
        self._size_of = size_of
        self._file = DraftFile(folder, folder.prefix + key)
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._written_at = time.monotonic()
        self._broken: HoldfastError | None = None

    @property
    def size(self) -> int:
        """How many bytes are there and can be trusted, those of this attempt among them."""
        return self._file.size + self._gathered_bytes

    @property
    def kept(self) -> Saved | None:
        """The file that it has become, where an earlier attempt kept it and its end was never heard of; None
        where there is work left to do."""
        return self._file.kept

    @property
    def is_kept(self) -> bool:
        """Whether this attempt has kept it: it is no draft any more."""
        return self._file.is_over

    @property
    def note(self) -> dict[str, Any]:
        """What was noted when they were begun; {} where nothing was."""
        return dict(self._file.note)

    async def begin(self, note: Mapping[str, Any]) -> None:
        """Forget what is there, and note this for whoever goes on with what is written from now on."""
        self._check_that_it_is_one()
        checked = checked_note(note)
        self._drop_gathered()
        self._broken = None
        await self._on_disk(lambda: self._file.begin(checked))

    async def write(self, chunk: bytes) -> None:
        """Append. Once that has failed it fails until `begin`: no bytes may be missing in the middle."""
        self._check_that_it_is_one()
        if self._broken is not None:
            raise self._broken
        if self._bytes_max is not None and self.size + len(chunk) > self._bytes_max:
            raise too_large(
                f"draft {self._key!r}", str(self._folder.path), f"more than {self._bytes_max:,} bytes"
            )
        self._gathered.append(chunk)
        self._gathered_bytes += len(chunk)
        is_late = time.monotonic() - self._written_at >= GATHER_SECONDS_MAX
        if self._gathered_bytes >= WRITE_BYTES or is_late:
            await self._write_out()

    async def sha256(self) -> str:
        """Of all of it. What earlier attempts wrote is read once."""
        self._check_that_it_is_one()
        await self._write_out()
        while await self._on_disk(self._file.digest_more):
            pass
        return self._file.hexdigest()

    async def keep(self, name: str) -> Saved:
        """It is whole: from now on it is the file of this name, in place of what was there, and no draft."""
        self._check_that_it_is_one()
        check_file_name(name)
        digest = await self.sha256()
        if self._broken is not None:
            raise self._broken
        saved = Saved(name, self._file.size, digest)
        await self._on_disk(lambda: self._file.promise(saved))
        await self._keep(self._file, name)
        if not self._file.is_over:
            await self._on_disk(self._file.remove_bytes)
        return saved

    async def discard(self) -> None:
        """Forget all of it, the note too."""
        self._check_that_it_is_one()
        self._drop_gathered()
        self._broken = None
        await self._on_disk(self._file.forget)

    async def _take(self) -> None:
        deadline = time.monotonic() + LOCK_SECONDS_MAX
        while True:
            is_ours = await self._on_disk(self._file.take)
            if is_ours:
                break
            if is_ours is None or time.monotonic() >= deadline:
                await self._take_another()
                break
            await asyncio.sleep(LOCK_LOOK_SECONDS)
        if self._bytes_max is not None and self._file.size > self._bytes_max:
            await self._on_disk(self._file.forget)
        kept = self._file.kept
        if kept is not None and await self._size_of(kept.name) != kept.size:
            await self._on_disk(self._file.forget)  # it was removed since, or never got there

    async def _take_another(self) -> None:
        await self._on_disk(self._file.close)
        own = f"{self._folder.prefix}{self._key}.{secrets.token_hex(8)}"
        self._file = DraftFile(self._folder, own, is_private=True)
        await self._on_disk(self._file.take)

    async def _write_out(self) -> None:
        gathered, asked = self._gathered, self._gathered_bytes
        self._drop_gathered()
        if gathered and self._broken is None:
            await self._on_disk(lambda: self._file.append(gathered), asked)

    def _drop_gathered(self) -> None:
        self._gathered, self._gathered_bytes = [], 0
        self._written_at = time.monotonic()

    async def _leave(self) -> None:
        gathered, asked = self._gathered, self._gathered_bytes
        self._drop_gathered()

        def leave() -> None:
            try:
                if gathered and self._broken is None:
                    self._file.append(gathered)
            finally:
                try:
                    self._file.leave()
                finally:
                    self._file.close()

        await self._on_disk(leave, asked or None)

    async def _on_disk(self, call: Callable[[], T], bytes_asked: int | None = None) -> T:
        def watched() -> T:
            try:
                return call()
            except OSError as error:
                # Said here, and not where it is waited for: whoever is cancelled meanwhile is not told.
                fault = draft_fault(error, self._key, str(self._folder.path), bytes_asked)
                self._broken = fault
                raise fault from error

        return await to_its_end(watched)

    def _check_that_it_is_one(self) -> None:
        if self._file.is_over:
            raise RuntimeError(f"The draft {self._key!r} was kept, and is a draft no more.")
