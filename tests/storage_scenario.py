"""What the tests of storages share: files and drafts in one call, and what lies in a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from holdfast.storage import Saved, Storage
from running import run


async def chunks_of(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def write(storage: Storage, name: str, *chunks: bytes) -> Saved:
    return run(storage.write_stream(name, chunks_of(chunks)))


def content(storage: Storage, name: str) -> bytes:
    async def gather() -> bytes:
        return b"".join([chunk async for chunk in storage.read(name)])

    return run(gather())


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def put(storage: Storage, key: str, *chunks: bytes, note: dict[str, Any] | None = None) -> int:
    """An attempt that is left: its size then."""

    async def scenario() -> int:
        async with storage.draft(key) as draft:
            if note is not None:
                await draft.begin(note)
            for chunk in chunks:
                await draft.write(chunk)
            return draft.size

    return run(scenario())


def found(storage: Storage, key: str) -> tuple[int, dict[str, Any]]:
    async def scenario() -> tuple[int, dict[str, Any]]:
        async with storage.draft(key) as draft:
            return draft.size, draft.note

    return run(scenario())


async def kept(storage: Storage, key: str, *chunks: bytes, name: str = "a") -> Saved:
    async with storage.draft(key) as draft:
        for chunk in chunks:
            await draft.write(chunk)
        return await draft.keep(name)


def bytes_in(where: Path) -> list[str]:
    """The drafts that lie there; what they were kept as may stay noted."""
    return sorted(path.name for path in where.glob("*.draft"))


NAMES_THAT_LEAD_ELSEWHERE = [
    *("", "/etc/passwd", "../x", "a/../../x", "a/./b", "a//b", "a/", ".", "..", ".hidden", "a/.partial-1"),
    *("a\0b", "a\nb", "a\\b", "\ud800", "x" * 201, "x/" * 300 + "x", None, 5, "é" * 150),
]
