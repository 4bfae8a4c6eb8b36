"""Storage in a bucket of S3, or of a server that speaks like it.

    chunks ──write_stream──▶ parts of an upload ──completed──▶ prefix/june/north.csv
    chunks ──draft.write──▶ spool/<storage>-<key>.draft ──uploaded──▶ prefix/june/north.csv

An object is there once its upload was completed, and one that was cut off never is. What it had sent stays
with the server, unseen and paid for, until a lifecycle rule of the bucket removes it. Drafts lie on the disk
of the machine until they are whole: nothing can be appended on S3.

Who we are, where the bucket is and which server has it is told by the usual AWS_* variables, which obstore
reads when the storage is used first. Nothing waits for ever: every request is given some tries and some time.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import hashlib
import importlib.util
import os
import re
import tempfile
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from holdfast.core.errors import InvalidInput, PermanentError
from holdfast.core.masking import mask_secrets
from holdfast.storage.draft_file import DraftFile, DraftFolder
from holdfast.storage.drafts import Draft, open_draft
from holdfast.storage.faults import draft_fault
from holdfast.storage.interface import FORMS, Saved, Storage
from holdfast.storage.names import check_file_name
from holdfast.storage.s3_faults import cut_short, s3_fault, took_too_long

if TYPE_CHECKING:
    from obstore.store import S3Store

T = TypeVar("T")

KEY_BYTES_MAX = 1024  # what S3 takes
PART_BYTES = 8 * 1024**2
PARTS_MAX = 10_000  # what S3 takes
PARTS_AT_ONCE = 2  # with the one that is gathered, what a write holds in memory
READ_BYTES = 256 * 1024

CONNECT_SECONDS_MAX = 5.0
REQUEST_SECONDS_MAX = 45.0  # for a part over a slow line
READ_SECONDS_MAX = 86400.0  # for a whole file; one that stalls is given up much earlier
RETRY_SECONDS_MAX = 20.0  # after which a failed request is not tried again
RETRIES_MAX = 4
EXIT_SECONDS = 0.1
STALL_SECONDS_MAX = REQUEST_SECONDS_MAX + RETRY_SECONDS_MAX + 5.0  # for whatever the limits above do not see

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def address_of(url: str) -> tuple[str, str]:
    """The bucket and the prefix that s3://bucket/prefix names."""
    parts = urlsplit(url)
    shown = mask_secrets(url)
    if importlib.util.find_spec("obstore") is None:
        raise _missing(shown)
    if "@" in parts.netloc:
        raise InvalidInput(
            f"The address of the storage 's3://***@{parts.netloc.rpartition('@')[2]}' has credentials in it.",
            guidance=f"Give them by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. {FORMS}",
        )
    if parts.query or parts.fragment or not _BUCKET.fullmatch(parts.netloc):
        raise InvalidInput(f"{shown!r} is no address of a storage.", guidance=FORMS)
    prefix = unquote(parts.path).strip("/")
    if prefix:
        check_file_name(prefix)
    return parts.netloc, prefix


class S3Storage(Storage):
    def __init__(self, bucket: str, prefix: str = "") -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._shown = mask_secrets(f"s3://{bucket}/{prefix}".rstrip("/"))
        self._connected: S3Store | None = None
        self._reader: S3Store | None = None

    async def write_stream(self, name: str, chunks: AsyncIterable[bytes]) -> Saved:
        digest, size = hashlib.sha256(), 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal size
            async for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        await self._upload(name, counted(), PART_BYTES)
        return Saved(name, size, digest.hexdigest())

    async def read(self, name: str) -> AsyncIterator[bytes]:
        key = self._key(name)
        if self._reader is None:  # the time of a request has all of its answer in it
            self._reader = _connect(self._bucket, self._shown, os.environ, READ_SECONDS_MAX)
        store = self._reader
        found = await self._asked(name, store.get_async(key))
        count = 0
        stream = found.stream(min_chunk_size=READ_BYTES).__aiter__()
        while True:
            try:
                chunk = bytes(await self._asked(name, stream.__anext__()))
            except StopAsyncIteration:
                break
            count += len(chunk)
            yield chunk
        if count != found.meta["size"]:
            raise cut_short(name, self._shown, count, found.meta["size"])

    async def exists(self, name: str) -> bool:
        key = self._key(name)
        store = self._store()
        if await self._is_there(name, store.head_async(key)):
            return True
        # The answer to a question without a body does not say which is missing, the file or its bucket.
        return await self._is_there(name, store.get_async(key))

    async def delete(self, name: str) -> None:
        key = self._key(name)
        await self._is_there(name, self._store().delete_async(key))

    def draft(self, key: str, bytes_max: int | None = None) -> AbstractAsyncContextManager[Draft]:
        # Of this storage alone, since all storages of the machine share the spool.
        place = "\0".join([_endpoint(os.environ), self._bucket, self._prefix])
        prefix = f"{hashlib.sha256(place.encode()).hexdigest()[:16]}-"
        folder = DraftFolder(spool_folder(os.environ), prefix, is_private=True)
        return open_draft(folder, key, bytes_max, self._keep, self._size_of)

    async def _size_of(self, name: str) -> int | None:
        key = self._key(name)
        try:
            found = await self._asked(name, self._store().head_async(key))
        except PermanentError as error:
            if error.error_type != "not_found":
                raise
            return None
        return found["size"]

    async def _keep(self, file: DraftFile, name: str) -> None:
        part_bytes = max(PART_BYTES, -(-file.size // (PARTS_MAX - 1)))
        try:
            await self._upload(name, file.pieces(), part_bytes)
        except OSError as error:
            raise draft_fault(error, name, str(file.path.parent)) from error

    async def _upload(self, name: str, chunks: AsyncIterable[bytes], part_bytes: int) -> None:
        key = self._key(name)
        store = self._store()
        import obstore

        writer = obstore.open_writer_async(store, key, buffer_size=part_bytes, max_concurrency=PARTS_AT_ONCE)
        async for chunk in chunks:
            if chunk:
                await self._asked(name, writer.write(chunk), is_write=True)
        # Only this makes an object of it: whatever was raised before leaves none.
        await self._asked(name, writer.close(), is_write=True)

    def _key(self, name: str) -> str:
        key = f"{self._prefix}/{check_file_name(name)}".lstrip("/")
        if len(key.encode()) > KEY_BYTES_MAX:
            raise InvalidInput(
                f"The name of a stored file has, with the prefix of {self._shown}, more than"
                f" {KEY_BYTES_MAX} bytes.",
                guidance="Use a shorter name: that is what S3 takes.",
            )
        return key

    def _store(self) -> S3Store:
        if self._connected is None:
            self._connected = _connect(self._bucket, self._shown, os.environ, REQUEST_SECONDS_MAX)
        return self._connected

    async def _is_there(self, name: str, answer: Awaitable[object]) -> bool:
        try:
            await self._asked(name, answer)
        except PermanentError as error:
            if error.error_type != "not_found":
                raise
            return False
        return True

    async def _asked(self, name: str, answer: Awaitable[T], *, is_write: bool = False) -> T:
        """What the server answers, or why it does not."""
        from obstore.exceptions import BaseError

        try:
            async with asyncio.timeout(STALL_SECONDS_MAX):
                return await answer
        except TimeoutError as error:
            raise took_too_long(name, self._shown, STALL_SECONDS_MAX) from error
        except (BaseError, OSError) as error:
            raise s3_fault(error, name, self._shown, is_write=is_write) from error


def _missing(shown: str) -> InvalidInput:
    return InvalidInput(
        f"Storage on S3 ({shown}) needs the package obstore, which is not installed.",
        guidance="pip install 'holdfast[s3]'",
    )


def _connect(bucket: str, shown: str, environ: Mapping[str, str], request_seconds_max: float) -> S3Store:
    """Nothing is sent yet."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ImportError as error:
        raise _missing(shown) from error

    def seconds(amount: float) -> timedelta:
        return timedelta(seconds=amount)

    _end_quietly()
    try:
        return S3Store(
            bucket,
            client_options={
                "allow_http": _endpoint(environ).startswith("http://"),
                "connect_timeout": seconds(CONNECT_SECONDS_MAX),
                "timeout": seconds(request_seconds_max),
            },
            retry_config={
                "max_retries": RETRIES_MAX,
                "retry_timeout": seconds(RETRY_SECONDS_MAX),
                "backoff": {"init_backoff": seconds(0.1), "max_backoff": seconds(5.0), "base": 2},
            },
        )
    except (BaseError, ValueError) as error:
        raise s3_fault(error, "", shown, is_write=False) from error


@functools.cache
def _end_quietly() -> None:
    """Give the threads of obstore a moment when Python exits. One that has just brought an answer has yet to
    put away what it brought it in, and to do so with an interpreter that is half gone aborts the process."""
    atexit.register(time.sleep, EXIT_SECONDS)


def _endpoint(environ: Mapping[str, str]) -> str:
    return next((environ[name].strip().lower() for name in _ENDPOINTS if environ.get(name)), "")


def spool_folder(environ: Mapping[str, str]) -> Path:
    """Where drafts of files for S3 lie."""
    named = environ.get("HOLDFAST_SPOOL", "").strip()
    return Path(named).expanduser() if named else Path(tempfile.gettempdir()) / "holdfast-spool"
