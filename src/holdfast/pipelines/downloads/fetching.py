"""The step `download`: fetch a file in a stream, go on where it broke, and put it into its place once whole.

    draft ──Range, If-Range──▶ portal ──206──▶ appended      the same file, from where it broke
                                      ──200──▶ begun anew    another file, or a portal that knows no ranges
    whole ──length, size, checksum──▶ renamed into its place; or thrown away and fetched anew

What was fetched outlives a broken connection, a failed attempt and a killed worker: it is kept as a draft,
with the validator of the file it belongs to. A connection that breaks is taken up again at once while it
brings anything; then the attempt fails, and its retry goes on from there.

Whole is what its length says, or the end of its chunks. A body whose end is only the end of its connection is
taken for whole where a size or a checksum proves it, and refused otherwise.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import httpx

from holdfast.core.errors import PermanentError, TransientError
from holdfast.core.retry import parse_retry_after
from holdfast.pipelines.downloads.asking import (
    SILENCE_SECONDS_MAX,
    as_sent,
    call_of,
    checked_item,
    headers_for,
)
from holdfast.pipelines.downloads.item import Item
from holdfast.pipelines.downloads.naming import harmless, name_told
from holdfast.pipelines.downloads.partial import (
    Note,
    covers_all,
    is_coded,
    is_ended_by_closing,
    is_of_same,
    note_of,
    range_of,
)
from holdfast.pipelines.downloads.settings import BYTES_MAX, file_bytes_max, origin_of
from holdfast.steps.http_body import ResponseInvalid, is_packed, pieces_of
from holdfast.steps.http_exchange import exchanged, longest_wait, status_error
from holdfast.steps.http_request import Request, request_of, shown_url
from holdfast.steps.interface import StepCall, StepSettings
from holdfast.storage import Draft, Storage
from holdfast.worker.context import Context

log = logging.getLogger("holdfast.downloads")

# Within one attempt: how often it goes on after a connection broke, and begins anew with another file.
RESUMES_MAX = 10
FRESH_STARTS_MAX = 2
RESUME_SECONDS_MIN, RESUME_SECONDS_MAX = 0.1, 5.0

# In words that are as true of the last attempt as of the first.
_STAYS = "If it stays so,"


class _Anew(Exception):
    """What is there does not belong to what the portal has now."""


async def fetch(ctx: Context, requested: Mapping[str, Any], auth: Mapping[str, str]) -> dict[str, Any]:
    # A worker may begin a handler in one task and go on with it in another; timeouts belong to one.
    await asyncio.sleep(0)
    item = checked_item(ctx)
    storage = Storage.open(StepSettings.from_environment(os.environ).storage)
    url = requested["download_url"]
    key = hashlib.sha256(f"{requested['id']}\n{url}".encode()).hexdigest()[:40]
    async with storage.draft(key) as draft:
        # By an attempt whose report was lost. Who retries it by hand wants what is there now.
        saved, resumed = draft.kept if ctx.attempt > 1 else None, 0
        if saved is None:
            fetching = Fetching(ctx, item, requested, auth, draft)
            name = await fetching.until_whole()
            saved = await draft.keep(item.file or f"downloads/{ctx.execution_id}/{name}")
            resumed = fetching.resumed
    return {"file": saved.name, "size": saved.size, "resumed": resumed, "sha256": saved.sha256}


class Fetching:
    """One attempt at one file."""

    def __init__(
        self, ctx: Context, item: Item, requested: Mapping[str, Any], auth: Mapping[str, str], draft: Draft
    ) -> None:
        self._ctx = ctx
        self._item = item
        self._url: str = requested["download_url"]
        self._sha256 = item.sha256 or requested.get("sha256")
        self._headers = headers_for(self._url, self._own_headers(), auth)
        self._draft = draft
        self._bytes_max = file_bytes_max(os.environ)
        self.resumed = 0
        """How often it went on with a part that was there already."""

    def _own_headers(self) -> dict[str, str]:
        """The item's, which are for the portal that it names, and not for wherever that leads."""
        fetched = self._item.fetched
        named = self._item.asked.url if fetched.url is None else fetched.url
        return fetched.headers if origin_of(as_sent(named)) == origin_of(self._url) else {}

    async def until_whole(self) -> str:
        """The name that the portal gives the file, once all of it is in the draft and has been checked."""
        broken, fresh = 0, 0
        while True:
            before = self._draft.size
            try:
                await self._go_on()
                break
            except _Anew as reason:
                fresh += 1
                log.info("Execution %d: the file is fetched anew: %s.", self._ctx.execution_id, reason)
                await self._draft.begin({})
                if fresh > FRESH_STARTS_MAX:
                    raise self._changes(reason) from None
            except httpx.TransportError as error:
                broken += 1
                brought = self._draft.size - before
                if brought <= 0 or broken > RESUMES_MAX or not self._can_go_on():
                    raise
                log.info(
                    "Execution %d: the connection broke after %d more bytes, and is taken up again. %s",
                    self._ctx.execution_id,
                    brought,
                    error,
                )
                await asyncio.sleep(min(RESUME_SECONDS_MIN * 2**broken, RESUME_SECONDS_MAX))
        await self._check()
        note = Note.of(self._draft.note)
        return harmless(note.name)

    def _can_go_on(self) -> bool:
        """Whether what is there can be told from a part of another file."""
        note = Note.of(self._draft.note)
        return note.url == self._url and not note.packed and bool(note.validator or self._sha256)

    async def _go_on(self) -> None:
        """One request, from where the draft ends."""
        if self._draft.size and not self._can_go_on():
            await self._draft.begin({})
        headers = {**self._headers, "accept-encoding": "identity"}
        if self._draft.size:
            note = Note.of(self._draft.note)
            if note.total == self._draft.size:
                return  # whole, and its worker was lost before it was put into its place
            headers["range"] = f"bytes={self._draft.size}-"
            if note.validator:
                headers["if-range"] = note.validator
        config = {"url": self._url, "method": "GET", "headers": headers, "timeout": SILENCE_SECONDS_MAX}
        call = call_of(self._ctx, config)
        request = request_of(call)
        async with exchanged(request, call) as response:
            await self._take(response, request, call)

    async def _take(self, response: httpx.Response, request: Request, call: StepCall) -> None:
        status, shown = response.status_code, request.shown
        if status == 416 and self._draft.size:
            # A file of another length may end here as well: only a proof tells that this one does.
            is_all = covers_all(response.headers, self._draft.size)
            if is_all and self._is_proved(Note.of(self._draft.note)):
                return
            raise _Anew("the portal has less than what is there")
        if status >= 400:
            raise await status_error(response, request, call)
        if status in (202, 204):
            raise _not_ready(response, shown)
        ends_at = None
        if status == 206 and self._draft.size:
            total, ends_at = self._continued(response)
            self.resumed += 1
        elif status in (200, 203):
            note = note_of(response, self._url, name_told(response.headers, str(response.url)))
            total = note.total
            self._check_announced(total, shown)
            self._check_ending(response, note, shown)
            await self._draft.begin(note.to_dict())
        else:
            raise ResponseInvalid(
                f"{shown} answered {status}, and not with a file.", guidance="Ask the portal's owner."
            )
        await self._append(response, total, ends_at, shown)

    def _continued(self, response: httpx.Response) -> tuple[int | None, int]:
        """The length of the whole, as a part that fits tells it, and where the part ends."""
        note, told = Note.of(self._draft.note), range_of(response.headers)
        if told is None or told.first != self._draft.size:
            raise _Anew("the portal sent another part than was asked for")
        if is_coded(response.headers):
            raise _Anew("the portal packed what comes next")
        if note.total is not None and told.total not in (None, note.total):
            raise _Anew("it has another length now")
        if not is_of_same(note, response.headers) and not self._sha256:
            raise _Anew("it is another file now")
        total = note.total if told.total is None else told.total
        if total is None and not self._is_proved(note):
            raise _Anew("the portal does not say whether more comes after what comes next")
        self._check_announced(total, "The portal")
        return total, told.last + 1

    def _check_announced(self, total: int | None, shown: str) -> None:
        if total is not None and total > self._bytes_max:
            raise self._too_large(f"{shown} announced a file of {total:,} bytes")
        if total is not None and self._item.size not in (None, total):
            raise _mismatch("size", f"the file has {total:,} bytes, and not {self._item.size:,}")

    def _check_ending(self, response: httpx.Response, note: Note, shown: str) -> None:
        if is_packed(response.headers):
            raise ResponseInvalid(
                f"{shown} answered in the coding {response.headers['content-encoding'][:40]!r}, which nobody"
                " asked for.",
                guidance="Ask the portal's owner.",
            )
        if is_ended_by_closing(response.headers) and not self._is_proved(note):
            raise PermanentError(
                f"{shown} does not say how long the file is: where it breaks could not be told from its end.",
                error_type="length_unknown",
                user_message="The portal does not say how long the file is",
                guidance="Submit the item anew with the size or the sha256 of the file.",
            )

    def _is_proved(self, note: Note) -> bool:
        """Whether more than the end of what is sent tells that it is whole."""
        return bool(self._sha256 or note.sha256) or self._item.size is not None

    async def _append(
        self, response: httpx.Response, total: int | None, ends_at: int | None, shown: str
    ) -> None:
        draft = self._draft
        async with aclosing(pieces_of(response)) as pieces:
            async for piece in pieces:
                if draft.size + len(piece) > self._bytes_max:
                    await draft.discard()
                    raise self._too_large(f"{shown} sent more than {self._bytes_max:,} bytes")
                if ends_at is not None and draft.size + len(piece) > ends_at:
                    raise _Anew("the portal sent more than it had announced")
                await draft.write(piece)
                if total:
                    self._ctx.progress(min(draft.size / total, 1.0))
        is_packed_away = Note.of(draft.note).packed
        if total is not None and not is_packed_away and draft.size != total:
            raise httpx.RemoteProtocolError(f"the file ended after {draft.size:,} of {total:,} bytes")

    async def _check(self) -> None:
        """That it is the file that was meant; one that is not is of no use to anybody."""
        draft, size = self._draft, self._item.size
        if size not in (None, draft.size):
            had = draft.size
            await draft.discard()
            raise _mismatch("size", f"the file has {had:,} bytes, and not {size:,}")
        expected = self._sha256 or Note.of(draft.note).sha256
        if expected is not None and (found := await draft.sha256()) != expected.lower():
            await draft.discard()
            raise _mismatch("checksum", f"the file has the SHA-256 {found}, and not {expected.lower()}")

    def _changes(self, reason: Exception) -> TransientError:
        return TransientError(
            f"GET {shown_url(httpx.URL(self._url))} went on with another file each time: {reason}.",
            error_type="file_changes",
            user_message="The file changes while it is fetched",
            guidance=f"{_STAYS} ask the portal's owner.",
        )

    def _too_large(self, what: str) -> PermanentError:
        return PermanentError(
            f"{what}; the limit is {self._bytes_max:,}.",
            error_type="file_too_large",
            user_message="The file is larger than is allowed",
            guidance=f"If it is meant to be so large, raise {BYTES_MAX} of the workers; then retry it with"
            " force.",
        )


def _not_ready(response: httpx.Response, shown: str) -> TransientError:
    return TransientError(
        f"{shown} answered {response.status_code}: the file is not there yet.",
        error_type="not_ready",
        user_message="The report is not ready yet",
        retry_after=parse_retry_after(longest_wait(response.headers.get("retry-after", "")), time.time()),
    )


def _mismatch(what: str, told: str) -> TransientError:
    return TransientError(
        f"It is not the file that was meant: {told}.",
        error_type=f"{what}_mismatch",
        user_message="The file is not the one that was meant, or was damaged on its way",
        guidance=f"{_STAYS} check the {what} that the item gives, or retry it from the stage request.",
    )
