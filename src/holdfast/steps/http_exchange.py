"""How a request is sent and its answer begun: redirects, statuses, errors that say which request it was.

    Request ──exchanged──▶ response: its body is the caller's affair; of a status from 400 on, status_error

A status from 400 on is an error with that status, so that policies and rules can tell 503 from 404. What
httpx raises keeps its type, which classification knows. Nothing of a request's headers, query or credentials
is shown anywhere.

There is one client for each event loop, with its connections kept open between steps; `close` ends it. It
keeps no cookies: what one execution is given is no affair of the next.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from holdfast.core.errors import HoldfastError
from holdfast.core.retry import parse_retry_after
from holdfast.request_log import unlogged
from holdfast.steps.fields import refused
from holdfast.steps.http_body import data_of, first_words, pieces_of, raw_chunks_of
from holdfast.steps.http_request import Request, fault_of, shown_url
from holdfast.steps.http_target import PublicTransport
from holdfast.steps.interface import StepCall, StepSettings, spare_seconds

REDIRECTS_MAX = 10
# Of an answer that is thrown away, to use its connection again; of an error, to show its beginning.
DISCARDED_BYTES_MAX = 64 * 1024
ERROR_BYTES_MAX = 8 * 1024
# For either: a status counts, and a place to go on to, also where the body behind it never comes.
BODY_SECONDS_MAX = 2.0
RETRY_AFTERS_MAX = 10
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=15.0)

# What may go to another host than the playbook named: the rest may be a key to the first one.
_CARRIED = frozenset(
    {"accept", "accept-encoding", "accept-language", "content-length", "content-type", "host", "if-range"}
    | {"range", "user-agent"}
)
# A comma is between two values, and within a date behind the name of its day.
_RETRY_AFTER = re.compile(r"\s*(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,)?[^,]+")


class HttpStatusError(HoldfastError):
    """The server answered with a status from 400 on."""

    code = "http_status"

    def __init__(
        self, message: str, status_code: int, headers: Mapping[str, str], answered: Any = None
    ) -> None:
        super().__init__(message, guidance=_GUIDANCE.get(status_code, ""))
        self.status_code = status_code
        self.answered = answered
        """The data of its body, where that is short; retry conditions read it."""
        self.headers = dict(headers)
        """Retry-After, and nothing else."""
        self.user_message = _USER_MESSAGES.get(status_code, "")


# Where the catalogue's words are about documents.
_USER_MESSAGES = {404: "A service does not know this address", 410: "What was asked for is gone"}
_GUIDANCE = dict.fromkeys((404, 410), "Check the step's url and what its templates are given.")


# ── asking ───────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def exchanged(request: Request, call: StepCall) -> AsyncIterator[httpx.Response]:
    """The answer to a request, its redirects followed and its body yet to be read. What fails, also while it
    is read, says which request it was."""
    try:
        with unlogged():
            response = await _answer(_client(call.settings), request, call)
            try:
                yield response
            finally:
                await response.aclose()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _with_request(error, request) from error


def _with_request(error: Exception, request: Request) -> Exception:
    """The same error, with a message that says which request it was."""
    seconds = request.timeout.connect if isinstance(error, httpx.ConnectTimeout) else request.timeout.read
    if isinstance(error, httpx.TimeoutException):
        what = f"{type(error).__name__}, nothing came within {seconds:g} s"
    else:
        what = str(error) or type(error).__name__
    return type(error)(f"{request.shown} failed: {what}.")


async def _answer(client: httpx.AsyncClient, request: Request, call: StepCall) -> httpx.Response:
    hop = client.build_request(
        request.method,
        request.url,
        headers=[(name.encode(), value.encode()) for name, value in request.headers.items()],
        content=request.content,
        timeout=request.timeout,
    )
    for _ in range(REDIRECTS_MAX + 1):
        response = await client.send(hop, stream=True, auth=None, follow_redirects=False)
        if response.next_request is None or not request.follow_redirects:
            return response
        await _discard(response, call)
        hop = _redirected(hop, response.next_request)
    raise httpx.TooManyRedirects(f"it was redirected more than {REDIRECTS_MAX} times")


def _redirected(before: httpx.Request, after: httpx.Request) -> httpx.Request:
    fault = fault_of(after.url)
    if fault is not None:
        raise refused(
            f"{shown_url(before.url)} redirects to {shown_url(after.url)}, which has {fault}.",
            "Ask the service's owner; or use follow_redirects: false, which makes the redirect the answer.",
        )
    if _origin(before.url) != _origin(after.url):
        for name in set(after.headers) - _CARRIED:
            del after.headers[name]
    return after


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _discard(response: httpx.Response, call: StepCall) -> None:
    """Read what little there may be, so that the connection can be used again."""
    size = 0
    try:
        async with _body_timeout(call), raw_chunks_of(response) as chunks:
            async for raw in chunks:
                size += len(raw)
                if size > DISCARDED_BYTES_MAX:
                    break
    except (httpx.HTTPError, TimeoutError):
        pass  # where it leads to is known
    await response.aclose()


def _body_timeout(call: StepCall) -> asyncio.Timeout:
    return asyncio.timeout(spare_seconds(BODY_SECONDS_MAX, call.ends_at, time.monotonic()))


# ── what came back ───────────────────────────────────────────────────────────────────────────────


def content_length(headers: httpx.Headers) -> int | None:
    text = headers.get("content-length", "")
    return int(text) if text.isdecimal() and len(text) < 20 and "content-encoding" not in headers else None


async def status_error(response: httpx.Response, request: Request, call: StepCall) -> HttpStatusError:
    begin, is_whole = await _beginning(response, call)
    words = first_words(begin, response.headers.get("content-type", ""))
    status = f"{response.status_code} {response.reason_phrase[:60]}".strip()
    shown = f"{request.method} {shown_url(response.url)}"
    after = response.headers.get("retry-after")
    return HttpStatusError(
        f"{shown} answered {status}{f': {words}' if words else ''}",
        response.status_code,
        {} if after is None else {"retry-after": longest_wait(after)},
        _answered(begin, response.headers) if is_whole else None,
    )


async def _beginning(response: httpx.Response, call: StepCall) -> tuple[bytes, bool]:
    """Of a body, and whether it is all of it."""
    begin = bytearray()
    try:
        async with _body_timeout(call), aclosing(pieces_of(response)) as pieces:
            async for piece in pieces:
                begin += piece
                if len(begin) >= ERROR_BYTES_MAX:
                    return bytes(begin), False
    except (httpx.HTTPError, TimeoutError):
        return bytes(begin), False  # the status is what matters
    return bytes(begin), True


def longest_wait(retry_after: str) -> str:
    """The value that asks for the longest wait, where the header came more than once."""
    now = time.time()
    waits = [
        (seconds, value)
        for value in _RETRY_AFTER.findall(retry_after)[:RETRY_AFTERS_MAX]
        if (seconds := parse_retry_after(value, now)) is not None
    ]
    return max(waits)[1] if waits else retry_after


def _answered(body: bytes, headers: httpx.Headers) -> Any:
    try:
        found = data_of(body, headers, "")
    except HoldfastError:  # no JSON, although it says so
        return None
    return None if "encoding" in found else found["data"]


# ── the client ───────────────────────────────────────────────────────────────────────────────────

_CLIENTS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bool, httpx.AsyncClient]] = WeakKeyDictionary()


def _client(settings: StepSettings) -> httpx.AsyncClient:
    clients = _CLIENTS.setdefault(asyncio.get_running_loop(), {})
    client = clients.get(settings.http_private)
    if client is None:
        client = clients[settings.http_private] = _new_client(settings)
    return client


def _new_client(settings: StepSettings) -> httpx.AsyncClient:
    no_cookies = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
    if not settings.http_private:
        # No proxy either: it would be the one to choose the address.
        return httpx.AsyncClient(transport=PublicTransport(LIMITS), cookies=no_cookies, trust_env=False)
    try:
        return httpx.AsyncClient(limits=LIMITS, cookies=no_cookies)
    except (ImportError, ValueError) as error:
        raise refused(
            f"The proxy that this worker's environment names cannot be used: {error}",
            "Correct HTTP_PROXY, HTTPS_PROXY and ALL_PROXY of the worker, or unset them.",
        ) from error


async def close() -> None:
    """End the connections of this event loop. A later step opens new ones."""
    for client in _CLIENTS.pop(asyncio.get_running_loop(), {}).values():
        await client.aclose()
