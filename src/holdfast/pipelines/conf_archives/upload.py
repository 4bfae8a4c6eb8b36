"""An upload: what stands in the workload of its run's execution, and how it gets into the storage.

    chunks ──▶ draft ──whole──▶ conf_archives/ab/ab12…      by the upload itself, where the storage answers
                 └──▶ (PENDING) ──the step `store`──▶       by its retries, where it did not

Files are kept under their checksum, so that what is uploaded twice is kept once, and to keep it again changes
nothing.
"""

from __future__ import annotations

import secrets
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core.errors import PermanentError, TransientError
from holdfast.storage import Storage

FILENAME_CHARS_MAX = 400


class Upload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`file` is its name in the storage; `draft` where it waits for a storage that did not answer."""

    filename: Annotated[str, Meta(min_length=1, max_length=FILENAME_CHARS_MAX)]
    size: Annotated[int, Meta(ge=0)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    file: str
    draft: Annotated[str, Meta(pattern="^conf-[0-9a-f]{32}$")] | None = None

    def __post_init__(self) -> None:
        if self.file != stored_name(self.sha256):
            raise ValueError("`file` is not where a file of this checksum is stored")


def new_draft_key() -> str:
    return f"conf-{secrets.token_hex(16)}"


def upload_of(workload: object) -> Upload:
    """Of an execution that anybody who may act can have started, with any workload."""
    try:
        return msgspec.convert(workload, Upload)
    except msgspec.ValidationError as error:
        raise PermanentError(
            f"This is no upload of a configuration archive: {error}.",
            error_type="validation_error",
            user_message="There is nothing to parse",
            guidance="Upload it by `holdfast ingest FILE`, or by POST /v1/uploads.",
        ) from None


def stored_name(sha256: str) -> str:
    return f"conf_archives/{sha256[:2]}/{sha256}"


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
            guidance="Will retry automatically. Let a worker run where it was uploaded, or upload it again; a"
            " run that has failed by then goes on with a retry.",
        )
