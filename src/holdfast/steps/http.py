"""The step type `http`: one request, its redirects, and what came back.

config ──request_of──▶ Request ──exchanged──▶ response ──_output──▶ {status_code, headers, url, data}
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx
import msgspec

from holdfast.steps.http_body import data_of, pieces_of, too_large
from holdfast.steps.http_exchange import close, content_length, exchanged, status_error
from holdfast.steps.http_request import Request, request_of, shown_url
from holdfast.steps.interface import StepCall
from holdfast.steps.storable import storable_text
from holdfast.storage import Storage

__all__ = ["close", "is_secret_header", "run"]

_SECRET_HEADERS = re.compile(
    r"(?:set-)?cookie2?|(?:proxy-)?authorization|(?:proxy-)?authentication-info"
    r"|(?:.+-)?(?:token|secret|password|session|session-id|(?:api|access|auth)-?key|auth)"
)
_MASK = "***"


def is_secret_header(name: str) -> bool:
    """Whether its value may open a door, by its lower-case name."""
    return _SECRET_HEADERS.fullmatch(name) is not None


async def run(call: StepCall) -> dict[str, Any]:
    # A worker may begin a handler in one task and go on with it in another; timeouts belong to one.
    await asyncio.sleep(0)
    request = request_of(call)
    async with exchanged(request, call) as response:
        return await _output(response, request, call)


async def _output(response: httpx.Response, request: Request, call: StepCall) -> dict[str, Any]:
    if response.status_code >= 400:
        raise await status_error(response, request, call)
    shown = f"{request.method} {shown_url(response.url)}"
    told = {
        "status_code": response.status_code,
        "headers": _shown_headers(response.headers),
        "url": str(response.url.copy_with(userinfo=b"", query=None, fragment=None)),
    }
    pieces = _bounded(response, request, call, shown)
    if request.save_to is not None:
        async with aclosing(pieces):
            saved = await Storage.open(call.settings.storage).write_stream(request.save_to, pieces)
        return {**told, "saved_to": saved.name, "size": saved.size, "sha256": saved.sha256}
    async with aclosing(pieces):
        body = b"".join([piece async for piece in pieces])
    output = {**told, **data_of(body, response.headers, shown)}
    # As JSON it may be up to six times as long: where that could be too much, see.
    output_max = call.settings.payload_bytes_max
    if 6 * len(body) > output_max // 2 and len(msgspec.json.encode(output)) > output_max:
        raise too_large(shown, output_max, is_saved=False)
    return output


async def _bounded(
    response: httpx.Response, request: Request, call: StepCall, shown: str
) -> AsyncGenerator[bytes, None]:
    expected = content_length(response.headers)
    is_saved = request.save_to is not None
    if expected is not None and expected > request.bytes_max and request.method != "HEAD":
        raise too_large(shown, request.bytes_max, is_saved=is_saved)
    size = 0
    async with aclosing(pieces_of(response)) as pieces:
        async for piece in pieces:
            size += len(piece)
            if size > request.bytes_max:
                raise too_large(shown, request.bytes_max, is_saved=is_saved)
            if expected:
                call.progress(min(size / expected, 1.0))
            yield piece


def _shown_headers(headers: httpx.Headers) -> dict[str, str]:
    """By lower-case names; what may open a door is not told."""
    return {
        storable_text(name): _MASK if is_secret_header(name) else storable_text(value)
        for name, value in headers.items()
    }
