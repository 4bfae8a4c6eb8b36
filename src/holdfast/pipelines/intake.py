"""Taking uploads in: by a server from a request, or by a command from a file.

The bytes go into a draft of the storage while their checksum is taken, and from there into their place; the
execution is made once they are safe. The same file gives the same execution, unless another one is asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from holdfast.core.errors import HoldfastError, IdempotencyConflict, PermanentError, TransientError
from holdfast.core.model import Lane
from holdfast.engine import Engine
from holdfast.engine.records import Submission
from holdfast.pipelines.upload import Upload, UploadPlace
from holdfast.storage import Draft, Storage
from holdfast.store.tables import TableSet

HEAD_BYTES = 1024


class TakenIn(NamedTuple):
    """`id` is that of the execution. `created` is False where the file had been uploaded before; `stored`
    where the storage does not have it yet."""

    id: int
    created: bool
    stored: bool
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class IntakeRules:
    """What one pipeline does of its own. `check` refuses a file by its name and its first bytes; `key_of`
    says what makes it the same file; `add_row` is the statement that adds its row."""

    path: str
    place: UploadPlace
    tables_for: Callable[[str], TableSet]
    add_row: str
    check: Callable[[str, bytes], None]
    key_of: Callable[[Upload, bytes], str]
    too_large: str
    """What to do about a file that is."""
    find_complete: str | None = None
    """The statement that finds what is complete of this checksum, and whose execution may be forgotten."""


class Intake:
    """Of one engine and one storage."""

    def __init__(self, engine: Engine, storage: Storage, rules: IntakeRules, *, bytes_max: int) -> None:
        self._engine = engine
        self._storage = storage
        self._rules = rules
        self.bytes_max = bytes_max
        self.too_large = rules.too_large

    async def take(
        self,
        filename: str,
        chunks: AsyncIterable[bytes],
        *,
        lane: Lane = Lane.MANUAL,
        again: bool = False,
        expected_sha256: str | None = None,
    ) -> TakenIn:
        place = self._rules.place
        draft_key = place.new_draft_key()
        async with self._storage.draft(draft_key) as draft:
            try:
                await draft.begin({})
                sha256, head = await self._written(draft, filename, chunks)
                check_sha256(filename, sha256, expected_sha256)
                size = draft.size
                upload = Upload(filename=filename, size=size, sha256=sha256, file=place.stored_name(sha256))
                is_stored = await self._kept(draft, upload)
            except BaseException:
                with contextlib.suppress(HoldfastError):  # what led here is what is told
                    await _discard(draft)
                raise
        # A draft that was left is safe: only then is there an execution that names it.
        if not is_stored:
            upload = msgspec.structs.replace(upload, draft=draft_key)
        key = None if again else self._rules.key_of(upload, head)
        id_, created = await self._submitted(upload, lane, key)
        if not (is_stored or created):
            async with self._storage.draft(draft_key) as draft:  # that one has another draft
                await draft.discard()
        return TakenIn(id_, created, is_stored, size, sha256)

    async def _written(self, draft: Draft, filename: str, chunks: AsyncIterable[bytes]) -> tuple[str, bytes]:
        """Its checksum and its first bytes."""
        digest, head = hashlib.sha256(), b""
        is_checked = False
        async for chunk in chunks:
            if draft.size + len(chunk) > self.bytes_max:
                raise PermanentError(
                    f"The file {filename!r} has more than {self.bytes_max:,} bytes.",
                    error_type="file_too_large",
                    guidance=self.too_large,
                )
            digest.update(chunk)
            if not is_checked:
                head += chunk[: HEAD_BYTES - len(head)]
                if len(head) >= HEAD_BYTES:
                    self._rules.check(filename, head)
                    is_checked = True
            await draft.write(chunk)
        if not is_checked:
            self._rules.check(filename, head)
        return digest.hexdigest(), head

    async def _kept(self, draft: Draft, upload: Upload) -> bool:
        """Where the storage does not answer, the draft stays for the retries of the first step."""
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
                [Submission(path=self._rules.path, workload=workload, lane=lane, idempotency_key=key)]
            )
        except IdempotencyConflict:
            # The same file has come at the same time, under another name or as another draft.
            if key is None or (known := await self._known(key)) is None:
                raise
            return known, False
        await self._add_row(submitted.id, upload, await engine.now())
        return submitted.id, submitted.created

    async def _known(self, key: str) -> int | None:
        """The execution of a file that was taken in before. Whoever did so may have died before its row was
        added, or be about to add it."""
        known = await self._engine.store.execution_by_key(self._rules.path, key)
        if known is None:
            return await self._complete(key)
        await self._add_row(known.id, self._rules.place.upload_of(known.workload), known.created_at)
        return known.id

    async def _complete(self, key: str) -> int | None:
        store, rules = self._engine.store, self._rules
        if rules.find_complete is None:
            return None
        await store.make_tables(rules.tables_for(store.dialect))
        found = await store.fetch_rows(rules.find_complete, key)
        return int(found[0][0]) if found else None

    async def _add_row(self, id_: int, upload: Upload, created_at: float) -> None:
        store = self._engine.store
        await store.make_tables(self._rules.tables_for(store.dialect))
        await store.write_rows(
            self._rules.add_row, id_, upload.filename, upload.size, upload.sha256, created_at
        )


async def _discard(draft: Draft) -> None:
    if not draft.is_kept:
        await draft.discard()


def check_sha256(filename: str, found: str, expected: str | None) -> None:
    if expected is not None and found != expected.lower():
        raise PermanentError(
            f"The file {filename!r} has come with the SHA-256 {found}, and not {expected.lower()}.",
            error_type="checksum_mismatch",
            guidance="It was changed on its way, or the checksum is another file's. Send it again.",
        )


def key_with_name(upload: Upload) -> str:
    """Where the same content under another name is something else."""
    name = hashlib.sha256(upload.filename.encode(errors="surrogatepass")).hexdigest()
    return f"{upload.sha256} {name}"
