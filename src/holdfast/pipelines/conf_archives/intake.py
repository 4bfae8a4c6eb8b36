"""Taking uploads in: by a server from a request, or by a command from a file.

The bytes go into a draft of the storage while their checksum is taken, and from there into their place; the
run is made once they are safe. The same file gives the same run, unless another one is asked for: a .conf by
itself is the same where its name is, too, since that says what it is.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterable
from typing import NamedTuple

import msgspec

from holdfast.core.errors import HoldfastError, IdempotencyConflict, PermanentError, TransientError
from holdfast.core.model import Lane
from holdfast.engine import Engine
from holdfast.engine.records import Submission
from holdfast.pipelines.conf_archives.archive import Kind, kind_of
from holdfast.pipelines.conf_archives.playbook import PATH
from holdfast.pipelines.conf_archives.settings import UPLOAD_BYTES_MAX
from holdfast.pipelines.conf_archives.tables import ADD_RUN, tables_for
from holdfast.pipelines.conf_archives.upload import Upload, new_draft_key, stored_name, upload_of
from holdfast.storage import Draft, Storage

HEAD_BYTES = 1024


class TakenIn(NamedTuple):
    """`created` is False where the file had been uploaded before; `stored` where the storage has it."""

    run_id: int
    created: bool
    stored: bool
    size: int
    sha256: str


class Intake:
    """Of one engine and one storage."""

    def __init__(self, engine: Engine, storage: Storage, *, bytes_max: int) -> None:
        self._engine = engine
        self._storage = storage
        self._bytes_max = bytes_max

    async def take(
        self,
        filename: str,
        chunks: AsyncIterable[bytes],
        *,
        lane: Lane = Lane.MANUAL,
        again: bool = False,
        expected_sha256: str | None = None,
    ) -> TakenIn:
        draft_key = new_draft_key()
        async with self._storage.draft(draft_key) as draft:
            try:
                await draft.begin({})
                sha256, head = await self._written(draft, filename, chunks)
                check_sha256(filename, sha256, expected_sha256)
                size = draft.size
                upload = Upload(filename=filename, size=size, sha256=sha256, file=stored_name(sha256))
                is_stored = await self._kept(draft, upload)
            except BaseException:
                with contextlib.suppress(HoldfastError):  # what led here is what is told
                    await _discard(draft)
                raise
        # A draft that was left is safe: only then is there a run that names it.
        if not is_stored:
            upload = msgspec.structs.replace(upload, draft=draft_key)
        run_id, created = await self._submitted(upload, lane, None if again else _key_of(upload, head))
        if not (is_stored or created):
            async with self._storage.draft(draft_key) as draft:  # the run has another one
                await draft.discard()
        return TakenIn(run_id, created, is_stored, size, sha256)

    async def _written(self, draft: Draft, filename: str, chunks: AsyncIterable[bytes]) -> tuple[str, bytes]:
        """Its checksum and its first bytes."""
        digest, head = hashlib.sha256(), b""
        is_checked = False
        async for chunk in chunks:
            if draft.size + len(chunk) > self._bytes_max:
                raise PermanentError(
                    f"The file {filename!r} has more than {self._bytes_max:,} bytes.",
                    error_type="file_too_large",
                    guidance=f"Pack less of it, or raise {UPLOAD_BYTES_MAX} where it is taken in.",
                )
            digest.update(chunk)
            if not is_checked:
                head += chunk[: HEAD_BYTES - len(head)]
                if len(head) >= HEAD_BYTES:
                    check_kind(filename, head)
                    is_checked = True
            await draft.write(chunk)
        if not is_checked:
            check_kind(filename, head)
        return digest.hexdigest(), head

    async def _kept(self, draft: Draft, upload: Upload) -> bool:
        """Where the storage does not answer, the draft stays for the retries of the step `store`."""
        try:
            if await self._storage.exists(upload.file):
                await draft.discard()
            else:
                await draft.keep(upload.file)
        except TransientError:
            return False
        return True

    async def _submitted(self, upload: Upload, lane: Lane, key: str | None) -> tuple[int, bool]:
        engine = self._engine
        if key is not None and (known := await self._known(key)) is not None:
            return known, False
        workload = msgspec.to_builtins(upload)
        try:
            [submitted] = await engine.submit(
                [Submission(path=PATH, workload=workload, lane=lane, idempotency_key=key)]
            )
        except IdempotencyConflict:
            # The same file has come at the same time, under another name or as another draft.
            if key is None or (known := await self._known(key)) is None:
                raise
            return known, False
        await self._add_run(submitted.id, upload, await engine.now())
        return submitted.id, submitted.created

    async def _known(self, key: str) -> int | None:
        """The run of a file that was taken in before. Whoever did so may have died before it was added, or be
        about to add it."""
        known = await self._engine.store.execution_by_key(PATH, key)
        if known is None:
            return None
        await self._add_run(known.id, upload_of(known.workload), known.created_at)
        return known.id

    async def _add_run(self, run_id: int, upload: Upload, created_at: float) -> None:
        store = self._engine.store
        await store.make_tables(tables_for(store.dialect))
        await store.write_rows(ADD_RUN, run_id, upload.filename, upload.size, upload.sha256, created_at)


async def _discard(draft: Draft) -> None:
    if not draft.is_kept:
        await draft.discard()


def check_kind(filename: str, head: bytes) -> None:
    """Refuse what is no configuration at all; what is broken becomes a run that says so."""
    try:
        kind_of(filename, head)
    except PermanentError as error:
        if error.error_type == "unsupported_format":
            raise


def check_sha256(filename: str, found: str, expected: str | None) -> None:
    if expected is not None and found != expected.lower():
        raise PermanentError(
            f"The file {filename!r} has come with the SHA-256 {found}, and not {expected.lower()}.",
            error_type="checksum_mismatch",
            guidance="It was changed on its way, or the checksum is another file's. Send it again.",
        )


def _key_of(upload: Upload, head: bytes) -> str:
    """Of a single .conf the name says what it configures; and nothing at all is alike under any name."""
    try:
        is_named = kind_of(upload.filename, head) is Kind.CONF
    except PermanentError:
        is_named = not head
    if not is_named:
        return upload.sha256
    name = hashlib.sha256(upload.filename.encode(errors="surrogatepass")).hexdigest()
    return f"{upload.sha256} {name}"
