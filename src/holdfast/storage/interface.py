"""What a storage is: files by name, whole or not at all, and drafts of files that take several attempts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from holdfast.core.errors import InvalidInput
from holdfast.core.masking import mask_secrets

if TYPE_CHECKING:
    from holdfast.storage.drafts import Draft

FORMS = "Use the path of a folder, file:///path/of/a/folder, or s3://bucket/prefix."


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
        """The storage that an address or a path names. Nothing is made, reached or touched yet."""
        # Here, since both build on this file; and S3 is imported where it is used.
        from holdfast.storage.folder import FolderStorage

        if not url or "\0" in url:
            raise InvalidInput("The address of the storage is empty or has NUL characters.", guidance=FORMS)
        if "://" not in url:
            return FolderStorage(Path(url).expanduser())
        parts = urlsplit(url)
        if parts.scheme == "s3":
            from holdfast.storage.s3 import S3Storage, address_of

            return S3Storage(*address_of(url))
        if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise InvalidInput(f"{mask_secrets(url)!r} is no address of a storage.", guidance=FORMS)
        return FolderStorage(Path(unquote(parts.path)))

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

    @abstractmethod
    def draft(self, key: str, bytes_max: int | None = None) -> AbstractAsyncContextManager[Draft]:
        """A file that is written over several attempts; the key is the same in all of them. It holds no more
        than `bytes_max` bytes: one that was found to hold more is forgotten."""
