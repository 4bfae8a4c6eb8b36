"""Requests to services, made on one event loop in a thread of its own, for threads that wait for them.

A request that nobody wants any more is given up at once, and each has a time in all, however slowly its
answer drips. The connections stay open between requests, whichever attempt makes them. Redirects are not
followed, and no cookies kept.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from holdfast.pipelines.documents.endpoint_answers import Answered
from holdfast.request_log import unlogged

BEAT_SECONDS = 0.4
CONNECT_SECONDS_MAX = 10.0
ANSWER_BYTES_MAX = 128 * 1024**2
ERROR_BYTES_MAX = 8 * 1024
THREAD_NAME = "holdfast-services"

_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=15.0)


class Requests:
    def __init__(self) -> None:
        self.process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._clients: dict[bool, httpx.AsyncClient] = {}
        threading.Thread(target=self._loop.run_forever, name=THREAD_NAME, daemon=True).start()

    def post(
        self,
        url: str,
        headers: Mapping[str, str],
        content: bytes,
        *,
        seconds: float,
        beat: Callable[[], None],
    ) -> Answered:
        """What httpx raises, and TimeoutError, pass; so does what `beat` raises, called while it waits."""
        asked = asyncio.run_coroutine_threadsafe(self._post(url, headers, content, seconds), self._loop)
        try:
            while not wait([asked], BEAT_SECONDS).done:
                beat()
        except BaseException:
            asked.cancel()
            raise
        return asked.result()

    async def _post(self, url: str, headers: Mapping[str, str], content: bytes, seconds: float) -> Answered:
        with unlogged():
            async with asyncio.timeout(seconds):
                return await self._exchanged(url, headers, content, seconds)

    async def _exchanged(
        self, url: str, headers: Mapping[str, str], content: bytes, seconds: float
    ) -> Answered:
        timeout = httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS_MAX), pool=None)
        client = self._client(url)
        request = client.build_request("POST", url, headers=headers, content=content, timeout=timeout)
        response = await client.send(request, stream=True, auth=None, follow_redirects=False)
        try:
            return await _answered(response)
        finally:
            await response.aclose()

    def _client(self, url: str) -> httpx.AsyncClient:
        # The environment's proxies are for what is elsewhere; on this machine there is none in between.
        is_here = _is_loopback(httpx.URL(url).host)
        client = self._clients.get(is_here)
        if client is None:
            no_cookies = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
            client = httpx.AsyncClient(limits=_LIMITS, cookies=no_cookies, trust_env=not is_here)
            self._clients[is_here] = client
        return client


async def _answered(response: httpx.Response) -> Answered:
    is_error = response.status_code >= 300
    limit = ERROR_BYTES_MAX if is_error else ANSWER_BYTES_MAX
    body = bytearray()
    is_too_large = False
    try:
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > limit:
                is_too_large = True
                break
    except httpx.HTTPError:
        if not is_error:  # of an error the status is what counts
            raise
    return Answered(
        response.status_code,
        bytes(body[:limit]),
        retry_after=response.headers.get("retry-after"),
        location=response.headers.get("location"),
        is_html="html" in response.headers.get("content-type", ""),
        is_too_large=is_too_large,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


_LOCK = threading.Lock()
_REQUESTS: Requests | None = None


def requests() -> Requests:
    """Of this process; one that was forked has a thread of its own."""
    global _REQUESTS
    with _LOCK:
        if _REQUESTS is None or _REQUESTS.process != os.getpid():
            _REQUESTS = Requests()
        return _REQUESTS
