"""Requests, read within bounds: of size, of time, and of what all of them together may hold in memory.

A body that is too large is not kept, but read to its end for a while, so that its sender, who may not listen
before all is sent, gets to read why it was refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request

from holdfast.server.problems import Refused
from holdfast.wire import BODY_BYTES_MAX

BODY_SECONDS_MAX = 30.0
# Of all bodies that are being read, or that are worked on, at one time.
BODIES_BYTES_MAX = 256 * 1024 * 1024
DRAIN_SECONDS_MAX = 10.0
DRAIN_BYTES_MAX = 256 * 1024 * 1024
QUERY_CHARS_MAX = 16_384
LARGE_BYTES = 1024 * 1024


class Bodies:
    """The bodies that one server has: whoever has read one says when it is done with it."""

    def __init__(self, *, seconds_max: float = BODY_SECONDS_MAX, bytes_max: int = BODY_BYTES_MAX) -> None:
        self._seconds_max = seconds_max
        self._bytes_max = bytes_max
        self._held = 0

    async def read(self, request: Request) -> bytes:
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._bytes_max:
            raise self._too_large(f"{int(announced):,} bytes")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(
                415,
                "unsupported_encoding",
                f"A request in {request.headers['content-encoding']!r} is not read.",
                "Send it without a Content-Encoding.",
            )
        chunks: list[bytes] = []
        size = 0
        is_whole = False
        try:
            async with asyncio.timeout(self._seconds_max):
                async for chunk in request.stream():
                    size += len(chunk)
                    self._held += len(chunk)
                    if size > self._bytes_max:
                        raise self._too_large("more")
                    if self._held > BODIES_BYTES_MAX:
                        raise Refused(
                            503,
                            "busy",
                            "The server has too many large requests at once.",
                            "Send it again in a moment, or send smaller ones.",
                            retry_after=1.0,
                        )
                    chunks.append(chunk)
            is_whole = True
        except TimeoutError:
            raise Refused(
                408,
                "too_slow",
                f"The request was not sent within {self._seconds_max:g} seconds.",
                "Send it again over a better connection, or in smaller parts.",
            ) from None
        except ClientDisconnect:
            raise Refused(400, "disconnected", "The request broke off.", "Send it again.") from None
        finally:
            if not is_whole:
                self._held -= size
        return b"".join(chunks)

    def done(self, size: int) -> None:
        self._held -= size

    def _too_large(self, told: str) -> Refused:
        return Refused(
            413,
            "request_too_large",
            f"The request has {told}; the limit is {self._bytes_max:,} bytes.",
            "Send it in several parts; keep large data in a file or object store and pass its address.",
        )


async def drain(request: Request) -> None:
    """Read on without keeping anything, for a while."""
    left = DRAIN_BYTES_MAX
    with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):
        async with asyncio.timeout(DRAIN_SECONDS_MAX):
            while left > 0:
                message = await request.receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))


def check_path(request: Request) -> None:
    if "\N{REPLACEMENT CHARACTER}" in request.scope["path"]:  # which stands for bytes that are no UTF-8
        raise Refused(400, "malformed_path", "The address is not UTF-8 text.", _HELP)


def check_media_type(request: Request, allowed: tuple[str, ...]) -> None:
    """A browser sends other types across sites without asking; these it does not."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in allowed:
        named = " or ".join(allowed)
        raise Refused(
            415,
            "unsupported_media_type",
            f"The Content-Type is {given!r}." if given else "The request has no Content-Type.",
            f"Send {named}, with that Content-Type.",
        )


def decoded(body: bytes, kind: Any) -> Any:
    # Of millions of small lists the collector looks at all that were read so far, again and again: that takes
    # ten times as long as reading them, and nobody is answered meanwhile. No other thread runs before it is
    # on again.
    collects = len(body) >= LARGE_BYTES and gc.isenabled()
    if collects:
        gc.disable()
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid_request", f"The request does not fit: {error}.", _HELP) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, "malformed_json", f"The request is not JSON: {error}.", _HELP) from None
    except RecursionError:
        raise Refused(400, "malformed_json", "The request is nested too deeply.", _HELP) from None
    finally:
        if collects:
            gc.enable()


_HELP = "What it takes is described at /docs."


def decoded_query(request: Request, kind: type | None) -> Any:
    """Each name once, and only those that mean something here."""
    known: Mapping[str, Any] = (
        {} if kind is None else {field.encode_name: field for field in msgspec.structs.fields(kind)}
    )
    text = request.scope.get("query_string", b"")
    if len(text) > QUERY_CHARS_MAX:
        raise Refused(400, "query_too_long", "The query is too long.", _HELP)
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except (ValueError, UnicodeDecodeError):
        raise Refused(
            400, "malformed_query", "The query is not UTF-8 text, or has too many parts.", _HELP
        ) from None
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            allowed = f"Allowed are: {', '.join(known)}." if known else "This address takes no parameters."
            raise Refused(422, "invalid_request", f"There is no parameter {name!r}.", allowed)
        if name in given:
            raise Refused(422, "invalid_request", f"The parameter {name!r} is given twice.", "Give it once.")
        given[name] = value
    if kind is None:
        return None
    try:
        found: Any = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid_request", f"The parameters do not fit: {error}.", _HELP) from None
    for name in given:
        if getattr(found, known[name].name) is None:  # as `null` is read where it is no text
            message = f"The parameter {name!r} has no value."
            raise Refused(422, "invalid_request", message, "Leave it out, or give one.")
    return found
