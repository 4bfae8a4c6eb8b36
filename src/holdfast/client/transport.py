"""One server, spoken with over HTTP: JSON out and in, and what it refuses raised as what it is.

A server that cannot be reached raises ServerUnavailable, which is a StoreUnavailable: whoever can wait for a
database can wait for a server. Nothing is sent twice here but what only looks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import httpx
import msgspec

from holdfast.addresses import check_server_url
from holdfast.core import errors
from holdfast.core.errors import (
    AccessRefused,
    HoldfastError,
    InvalidInput,
    PayloadTooLarge,
    RetryRefused,
    ServerUnavailable,
)
from holdfast.core.masking import mask_secrets
from holdfast.request_log import unlogged
from holdfast.wire import BODY_BYTES_MAX, TOKEN_VARIABLE, ErrorAnswer, Problem

CONNECT_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 65.0
UPLOAD_SECONDS_MAX = 600.0  # for the storage behind the server to take a file
JSON = "application/json"
YAML = "application/yaml"


class Transport:
    """Belongs to the event loop it is first used on."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self.url = check_server_url(url)
        self._token = _checked_token(token or os.environ.get(TOKEN_VARIABLE) or None)
        self._http: httpx.AsyncClient | None = None

    def twin(self) -> Transport:
        """Another one to the same server, for another event loop."""
        return Transport(self.url, token=self._token)

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            parts = urlsplit(self.url)
            host = parts.hostname or ""
            headers = {"accept": JSON, "user-agent": "holdfast"}
            if self._token is not None:
                headers["authorization"] = f"Bearer {self._token}"
            self._http = httpx.AsyncClient(
                # Not as a part of the address, which errors name.
                base_url=parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
                auth=None
                if parts.username is None
                else (unquote(parts.username), unquote(parts.password or "")),
                headers=headers,
                timeout=httpx.Timeout(
                    ANSWER_SECONDS_MAX, connect=CONNECT_SECONDS_MAX, pool=ANSWER_SECONDS_MAX
                ),
                limits=httpx.Limits(max_connections=32, max_keepalive_connections=16, keepalive_expiry=60.0),
                # Certificates are loaded only where they are looked at; nobody's proxy leads to this machine.
                verify=self.url.startswith("https://"),
                trust_env=host not in ("127.0.0.1", "localhost", "::1"),
            )
        return self._http

    async def get(self, path: str, kind: Any = Any, /, **query: Any) -> Any:
        return await self.send("GET", path, kind, query=query)

    async def post(self, path: str, body: Any, kind: Any = Any) -> Any:
        return await self.send("POST", path, kind, body=body)

    async def send(
        self,
        method: str,
        path: str,
        kind: Any = Any,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        media_type: str = JSON,
        seconds: float = ANSWER_SECONDS_MAX,
        accepted: tuple[int, ...] = (),
    ) -> Any:
        """What it answers, as this kind of record. Statuses that are `accepted` are answers, too."""
        content: bytes | None = None
        if body is not None:
            content = body if isinstance(body, bytes) else _encoded(body)
            if len(content) > BODY_BYTES_MAX:
                raise PayloadTooLarge(
                    f"The request has {len(content):,} bytes; a server takes {BODY_BYTES_MAX:,} at once.",
                    guidance="Send less at a time, or keep large data elsewhere and pass its address.",
                )
        given = {name: _as_text(value) for name, value in (query or {}).items() if value is not None}
        response = await self._tried(method, path, content, given, media_type, seconds)
        if not response.is_success and response.status_code not in accepted:
            raise self._refused(response)
        return self._decoded(response, kind)

    async def upload(self, path: str, filename: str, file: BinaryIO, answer: Any, /, **query: Any) -> Any:
        """Send a file, as it is read; it must not change its size meanwhile. `answer` is the type of what
        comes back."""
        given = {name: _as_text(value) for name, value in query.items()}
        try:
            with unlogged():
                response = await self._client().post(
                    path,
                    params=given,
                    files={"file": (filename, file, "application/octet-stream")},
                    timeout=httpx.Timeout(UPLOAD_SECONDS_MAX, connect=CONNECT_SECONDS_MAX),
                )
        except (httpx.RequestError, OSError) as error:
            raise self._away(error) from error
        if not response.is_success:
            raise self._refused(response)
        return self._decoded(response, answer)

    def _decoded(self, response: httpx.Response, kind: Any) -> Any:
        try:
            return msgspec.json.decode(response.content, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ServerUnavailable(
                f"What {self._shown} answers is not understood: {error}.",
                guidance="Is it a Holdfast server, and of a version that fits this one?",
            ) from error

    async def _tried(
        self,
        method: str,
        path: str,
        content: bytes | None,
        query: Mapping[str, str],
        media_type: str,
        seconds: float,
    ) -> httpx.Response:
        headers = {} if content is None else {"content-type": media_type}
        tries = 2 if method == "GET" else 1  # a connection that was kept may have been closed meanwhile
        for left in reversed(range(tries)):
            started = time.monotonic()
            try:
                with unlogged():
                    return await self._client().request(
                        method,
                        path,
                        content=content,
                        params=query,
                        headers=headers,
                        timeout=httpx.Timeout(seconds, connect=CONNECT_SECONDS_MAX),
                    )
            except (httpx.InvalidURL, UnicodeError) as error:
                raise InvalidInput(
                    f"This cannot be asked of {self._shown}: {error}.",
                    guidance="Check its address, and what was given for characters that are no text.",
                ) from error
            except (httpx.RequestError, OSError, RuntimeError) as error:
                if isinstance(error, RuntimeError) and "closed" not in str(error):
                    raise
                is_stale = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
                if left and is_stale and time.monotonic() - started < 1.0:
                    continue
                raise self._away(error) from error
        raise AssertionError("unreachable")

    @property
    def _shown(self) -> str:
        return f"the server at {mask_secrets(self.url)}"

    def _away(self, error: Exception) -> ServerUnavailable:
        reason = str(error).strip() or type(error).__name__
        return ServerUnavailable(
            f"{self._shown.capitalize()} does not answer: {reason}",
            guidance="Check that `holdfast serve` runs there and can be reached. It is safe to try again.",
        )

    def _refused(self, response: httpx.Response) -> HoldfastError:
        try:
            problem = msgspec.json.decode(response.content, type=ErrorAnswer).error
        except (msgspec.MsgspecError, UnicodeDecodeError):
            told = (
                f"{self._shown.capitalize()} answered {response.status_code} without a reason of Holdfast's."
            )
            return ServerUnavailable(told, guidance="Is it a Holdfast server, or something in between?")
        return error_of(problem, response.status_code)

    async def close(self) -> None:
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()


def _checked_token(token: str | None) -> str | None:
    """Told here, and without the token: what refuses it further down shows it."""
    if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
        raise InvalidInput(
            f"The token in {TOKEN_VARIABLE} has characters that no token has: line breaks, blanks at its"
            " ends, or letters beyond ASCII.",
            guidance="Set it to what the server has, to the letter.",
        )
    return token


def _encoded(body: Any) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidInput(
            f"The request cannot be written as JSON: {error}.",
            guidance="Use plain data: dicts with string keys, lists, strings, numbers, booleans and None.",
        ) from error


def _as_text(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def error_of(problem: Problem, status: int) -> HoldfastError:
    """The error that the engine raised there, raised here."""
    if problem.code in errors.REFUSAL_CODES:
        return RetryRefused(
            problem.message,
            code=problem.code,  # type: ignore[arg-type]
            guidance=problem.guidance,
            retry_after=problem.retry_after,
        )
    if status in (401, 403):
        return AccessRefused(problem.message, guidance=problem.guidance)
    kind = _kinds().get(problem.code)
    if status == 429:
        kind = ServerUnavailable  # nothing is wrong with what was asked: later it will be answered
    if kind is None:
        kind = PayloadTooLarge if status == 413 else InvalidInput if status < 500 else ServerUnavailable
    error = kind(problem.message, guidance=problem.guidance)
    error.code = problem.code
    return error


_KINDS: dict[str, type[HoldfastError]] = {}


def _kinds() -> dict[str, type[HoldfastError]]:
    """Those whose constructor takes a message and guidance alone, by their codes."""
    if not _KINDS:
        for kind in _below(HoldfastError):
            if kind.__module__ == errors.__name__ and kind is not RetryRefused:
                _KINDS.setdefault(kind.code, kind)
    return _KINDS


def _below(kind: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from _below(inner)
