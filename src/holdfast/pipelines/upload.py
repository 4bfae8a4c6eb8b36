"""An upload: what stands in the workload of the execution that it was taken in for, and how it gets into the
storage.

    chunks ──▶ draft ──whole──▶ <folder>/ab/ab12…      by the upload itself, where the storage answers
                 └──────────the first step────▶        by its retries, where it did not

Files are kept under their checksum, so that what is uploaded twice is kept once, and to keep it again changes
nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core.errors import PermanentError, TransientError
from holdfast.storage import Storage

FILENAME_CHARS_MAX = 400

# How a folder that is not mounted looks: the file was there a moment before.
_AWAY = frozenset({"not_found", "validation_error"})


class Upload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`file` is its name in the storage; `draft` where it waits for a storage that did not answer."""

    filename: Annotated[str, Meta(min_length=1, max_length=FILENAME_CHARS_MAX)]
    size: Annotated[int, Meta(ge=0, le=2**53)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    file: str
    draft: Annotated[str, Meta(pattern="^[a-z]+-[0-9a-f]{32}$")] | None = None


@dataclass(frozen=True, slots=True)
class UploadPlace:
    """Where the uploads of one pipeline are kept, and what it says to an execution that has none."""

    folder: str
    prefix: str
    """Of the keys of its drafts, and of its folders of work."""
    what: str
    how: str

    def stored_name(self, sha256: str) -> str:
        return f"{self.folder}/{sha256[:2]}/{sha256}"

    def new_draft_key(self) -> str:
        return f"{self.prefix}-{secrets.token_hex(16)}"

    def upload_of(self, workload: object) -> Upload:
        """Of an execution that anybody who may act can have started, with any workload."""
        try:
            upload = msgspec.convert(workload, Upload)
            if upload.file != self.stored_name(upload.sha256):
                raise msgspec.ValidationError("`file` is not where a file of this checksum is stored")
            if upload.draft is not None and not upload.draft.startswith(f"{self.prefix}-"):
                raise msgspec.ValidationError(f"`draft` is no draft of {self.what}")
        except msgspec.ValidationError as error:
            raise PermanentError(
                f"This is no upload of {self.what}: {error}.",
                error_type="validation_error",
                user_message="There is nothing to parse",
                guidance=self.how,
            ) from None
        return upload


async def ensure_stored(storage: Storage, upload: Upload) -> None:
    """Where the storage does not have it yet, bring it there from the draft; may run twice. Of a draft that
    is not needed nothing stays."""
    is_there = await storage.exists(upload.file)
    if upload.draft is not None:
        async with storage.draft(upload.draft) as draft:
            if draft.kept is not None:
                return
            if is_there or await draft.sha256() != upload.sha256:
                await draft.discard()
            else:
                await draft.keep(upload.file)
                return
    if not is_there:
        raise TransientError(
            f"The upload {upload.filename!r} is neither in the storage nor in the spool of this machine.",
            error_type="storage_unavailable",
            user_message="The uploaded file is not in the storage yet",
            guidance="Check that the storage is there, and let a worker run where it was uploaded."
            " If the file is gone, upload it again: what has failed by then goes on with a retry.",
        )


def fetch(storage: Storage, upload: Upload, target: Path, beat: Callable[[], None]) -> None:
    """Bring it here, whole and as it was uploaded. `beat` is called between pieces, and may end it."""
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
            " retry what has failed.",
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
