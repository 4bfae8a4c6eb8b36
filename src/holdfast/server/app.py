"""The HTTP application: every endpoint behind one way in and one way out.

access ──▶ route ──▶ read within bounds ──▶ decode ──▶ handler ──▶ encode, compress ──▶ answer
             └ whatever goes wrong on the way is told as {"error": {code, message, guidance}}
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.core.access import Right
from holdfast.core.errors import HoldfastError
from holdfast.pipelines import registry
from holdfast.server import (
    api_access,
    api_batches,
    api_catalog,
    api_executions,
    api_queue,
    api_steering,
    api_watching,
)
from holdfast.server.access import Access
from holdfast.server.docs_page import docs_page
from holdfast.server.endpoints import Answer, Ask, Endpoint
from holdfast.server.identity import NOBODY, Identity
from holdfast.server.openapi import document
from holdfast.server.problems import Refused, told
from holdfast.server.reading import (
    Bodies,
    check_media_type,
    check_path,
    decoded,
    decoded_query,
    drain,
)
from holdfast.server.services import Services
from holdfast.server.uploads import Upload

# Of a body that nobody reads, and that has arrived as a whole with the head or right behind it.
UNREAD_BYTES_MAX = 16 * 1024
ADMITTED_SECONDS = 5.0
WHO = "holdfast.who"  # in the scope of a request
COMPRESSED_BYTES_MIN = 1_024
COMPRESSED_IN_THREAD_BYTES = 256 * 1024
COMPRESSION_LEVEL = 5
_JSON = "application/json"
_ENCODER = msgspec.json.Encoder()


def all_endpoints() -> list[Endpoint]:
    families = (api_executions, api_catalog, api_batches, api_queue, api_steering, api_watching, api_access)
    own = [endpoint for family in families for endpoint in family.endpoints]
    return [*own, *registry.all_endpoints()]


def create_app(services: Services, access: Access) -> ASGIApp:
    endpoints = all_endpoints()
    registry.check_settings(of_worker=False)
    registry.provide_all(services.engine)
    bodies = Bodies()
    described = msgspec.json.encode(document(endpoints, services.version))
    page = docs_page(document(endpoints, services.version)).encode()

    async def openapi(request: Request) -> Response:
        return await _packed(request, described, media_type=_JSON)

    async def docs(request: Request) -> Response:
        return await _packed(request, page, headers=_PAGE_HEADERS, media_type="text/html")

    # Paths of a playbook have slashes, so what is below them is looked for first.
    routes = [_route(endpoint, services, bodies, access) for endpoint in _specific_first(endpoints)]
    routes += [Route("/openapi.json", openapi), Route("/docs", docs)]
    app = Starlette(
        routes=routes, exception_handlers={404: _no_such_page, 405: _no_such_method, Exception: _failed}
    )
    # Nobody described those, and behind a proxy they would lead from https to http.
    app.router.redirect_slashes = False
    open_paths = frozenset(endpoint.path for endpoint in endpoints if endpoint.needs is Right.NONE)
    return _Guarded(app, access, services, open_paths)


_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'",
}
# Of every answer, unless it has its own: nothing of it is run, framed, guessed at or told to other sites.
_SAFE_HEADERS = {
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}


def _specific_first(endpoints: list[Endpoint]) -> list[Endpoint]:
    return sorted(endpoints, key=lambda endpoint: ":path}" in endpoint.path)


def _route(endpoint: Endpoint, services: Services, bodies: Bodies, access: Access) -> Route:
    async def serve(request: Request) -> Response:
        is_taken = endpoint.body is not None or endpoint.upload
        size = None if is_taken or _has_large_body(request) else 0
        upload: Upload | None = None
        try:
            who: Identity = request.scope[WHO]
            who.admit(endpoint.needs)
            ask = Ask(request, services, access, who, decoded_query(request, endpoint.query))
            if endpoint.body is not None:
                body = await bodies.read(request)
                size = len(body)
                ask.body = _decoded_body(request, endpoint, body)
                del body  # it may be large, and what it says is kept
            if endpoint.upload:
                ask.upload = upload = Upload(request)
            answer = await endpoint.handler(ask)
            response = await _response(ask, endpoint, answer)
            is_left = size is None and not isinstance(response, StreamingResponse)
        except Exception as error:
            response = problem_response(error)
            is_left = size is None
        finally:
            bodies.done(size or 0)
        is_left = is_left and not (upload is not None and upload.is_read)
        return _Draining(response, request) if is_left else response

    return Route(endpoint.path.replace(":int}", ":number}"), serve, methods=[endpoint.method])


class _Number(Convertor[int]):
    """Starlette's own takes any number of digits, and Python reads no more than a few thousand of them."""

    regex = "[0-9]{1,100}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())


def _decoded_body(request: Request, endpoint: Endpoint, body: bytes) -> Any:
    if not body and endpoint.body_optional:
        return endpoint.body()
    check_media_type(request, endpoint.media_types)
    return body if endpoint.body is bytes else decoded(body, endpoint.body)


async def _response(ask: Ask, endpoint: Endpoint, answer: Any) -> Response:
    request = ask.request
    value, status, headers = answer if isinstance(answer, Answer) else (answer, 200, {})
    if isinstance(value, Response):
        return value
    if isinstance(value, AsyncIterator):
        if request.method == "HEAD":  # it would go on for ever, and nobody hears it
            return Response(None, status, dict(headers), media_type=endpoint.plain[status])
        admitted = _while_admitted(value, ask)
        return StreamingResponse(admitted, status, dict(headers), media_type=endpoint.plain[status])
    if status in (204, 304):
        return Response(status_code=status, headers=dict(headers))
    if status in endpoint.plain:
        return await _packed(request, value.encode(), status, headers, media_type=endpoint.plain[status])
    content = _ENCODER.encode(value)
    told_headers = {"cache-control": "no-store", **headers}
    if endpoint.hot:
        return Response(content, status, told_headers, media_type=_JSON)
    return await _packed(request, content, status, told_headers, media_type=_JSON)


async def _while_admitted(chunks: AsyncIterator[Any], ask: Ask) -> AsyncIterator[Any]:
    """A stream ends where the token that opened it counts no longer."""
    checked_at = time.monotonic()
    async with contextlib.aclosing(chunks):  # type: ignore[type-var]
        async for chunk in chunks:
            if time.monotonic() - checked_at >= ADMITTED_SECONDS:
                checked_at = time.monotonic()
                try:
                    await ask.check_still()
                except Refused:
                    return
                except HoldfastError:
                    pass  # the database is away: whoever listens is told when it is back
            yield chunk


async def _packed(
    request: Request,
    content: bytes,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    media_type: str,
) -> Response:
    """Compressed, where that is worth it and whoever asks takes it."""
    told_headers = dict(headers or {})
    if len(content) >= COMPRESSED_BYTES_MIN:
        told_headers["vary"] = "Accept-Encoding"
        if _takes_gzip(request.headers):
            content = await _compressed(content)
            told_headers["content-encoding"] = "gzip"
    return Response(content, status, told_headers, media_type=media_type)


def _takes_gzip(headers: Mapping[str, str]) -> bool:
    for part in headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


async def _compressed(content: bytes) -> bytes:
    if len(content) < COMPRESSED_IN_THREAD_BYTES:
        return gzip.compress(content, COMPRESSION_LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, content, COMPRESSION_LEVEL, mtime=0)


def problem_response(error: Exception) -> Response:
    status, body, headers = told(error)
    headers["cache-control"] = "no-store"
    return Response(_ENCODER.encode(body), status, headers, media_type=_JSON)


async def _no_such_page(request: Request, error: Exception) -> Response:
    refusal = Refused(
        404, "no_such_address", f"There is nothing at {request.scope['path']!r}.", "What there is: /docs."
    )
    return _unread(problem_response(refusal), request)


async def _failed(request: Request, error: Exception) -> Response:
    return problem_response(error)


async def _no_such_method(request: Request, error: Exception) -> Response:
    # Each method of an address is a route of its own, and the error knows of one.
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    here = [route for route in routes if route.path_regex.match(request.scope["path"])]
    allowed = ", ".join(sorted({method for route in here for method in route.methods or ()}))
    refusal = Refused(
        405,
        "no_such_method",
        f"{request.method} means nothing at {request.scope['path']!r}.",
        f"Allowed: {allowed}.",
        headers={"allow": allowed},
    )
    return _unread(problem_response(refusal), request)


def _unread(response: Response, request: Request) -> Response:
    """The answer to a request whose body nobody reads."""
    return _Draining(response, request) if _has_large_body(request) else response


def _has_large_body(request: Request) -> bool:
    """Whether more of it may still come when the answer is there."""
    announced = request.headers.get("content-length", "0")
    is_large = announced.isdecimal() and int(announced) > UNREAD_BYTES_MAX
    return is_large or "transfer-encoding" in request.headers


class _Draining(Response):
    """An answer that comes before all of the request was read: the rest is read before the connection ends,
    because a reset would take the answer with it."""

    def __init__(self, response: Response, request: Request) -> None:
        super().__init__(response.body, response.status_code)
        self.raw_headers = [*response.raw_headers, (b"connection", b"close")]
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        await drain(self._request)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Guarded:
    """Nobody reaches a route whom the server does not know; and each answer is counted."""

    def __init__(self, app: ASGIApp, access: Access, services: Services, open_paths: frozenset[str]) -> None:
        self._app = app
        self._access = access
        self._services = services
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        is_begun = False

        async def counting(message: Any) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                self._services.requests[message["status"]] += 1
                given = {name for name, _ in message["headers"]}
                safe = [header for header in _SAFE_HEADERS.items() if header[0] not in given]
                message["headers"] = [*message["headers"], *safe]
                if self._services.is_stopping and b"connection" not in given:
                    # One that came at the last moment was not there to be closed when the others were.
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        request = Request(scope, receive)
        try:
            try:
                self._access.check_page(request)
                # Not request.url: that is made of the Host header, too.
                is_open = scope["path"] in self._open_paths
                scope[WHO] = NOBODY if is_open else await self._access.identify(request)
                check_path(request)
            except Exception as error:
                await _Draining(problem_response(error), request)(scope, receive, counting)
                return
            await self._app(scope, receive, counting)
        except asyncio.CancelledError:
            if not self._services.is_stopping:
                raise
            if not is_begun:  # the time is over that a server which is being stopped gives
                refusal = Refused(
                    503,
                    "stopping",
                    "The server was stopped in the middle of this request.",
                    "Look whether it was done before you send it again.",
                )
                await problem_response(refusal)(scope, receive, counting)
