"""An http step whose server does not finish: what it has said already counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest

from holdfast.core.model import Completed, Failed, Leased, Outcome
from holdfast.steps import http, http_exchange
from holdfast.steps.interface import StepCall, spare_seconds
from running import eventually, run
from scripted_server import ScriptedServer
from typed_attempt import attempted, judged, leased


def unfinished(
    server: ScriptedServer, *lines: str, body: bytes = b""
) -> Callable[[BaseHTTPRequestHandler], None]:
    """These lines, a length of a hundred bytes, at most the first of them, and then nothing."""

    def act(handler: BaseHTTPRequestHandler) -> None:
        head = "".join(f"{line}\r\n" for line in (*lines, "content-length: 100", ""))
        handler.wfile.write(head.encode() + body)
        handler.wfile.flush()
        server.hold(handler)

    return act


@pytest.mark.parametrize(
    ("lines", "error_type", "status", "seconds"),
    [
        (("HTTP/1.1 401 No",), "auth_error", 401, None),
        (("HTTP/1.1 503 Busy", "retry-after: 7"), "service_unavailable", 503, 7),
    ],
)
def test_a_status_counts_where_the_body_never_comes(
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    lines: tuple[str, ...],
    error_type: str,
    status: int,
    seconds: float | None,
) -> None:
    monkeypatch.setattr(http_exchange, "BODY_SECONDS_MAX", 0.1)
    server.answer("/no", act=unfinished(server, *lines, body=b"half of a "))
    job = leased("type/http", config={"url": f"{server.url}/no"}, timeout=30)
    outcome = run(closing(job))
    assert isinstance(outcome, Failed)
    failure = outcome.failure
    assert (judged(failure).error_type, failure.status_code, failure.retry_after) == (
        error_type,
        status,
        seconds,
    )
    assert failure.data is None  # not a part as if it were all


def test_a_redirect_is_followed_where_its_body_never_comes(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_exchange, "BODY_SECONDS_MAX", 0.1)
    server.answer("/old", act=unfinished(server, "HTTP/1.1 302 Found", "location: /new"))
    server.answer("/new", json="here")
    outcome = run(closing(leased("type/http", config={"url": f"{server.url}/old"}, timeout=30)))
    assert isinstance(outcome, Completed)
    assert '"here"' in outcome.result


def test_a_redirect_is_followed_where_its_body_breaks_off(server: ScriptedServer) -> None:
    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 302 Found\r\nlocation: /new\r\ncontent-length: 100\r\n\r\nhalf")
        handler.close_connection = True

    server.answer("/old", act=cut)
    server.answer("/new", json="here")
    outcome = run(closing(leased("type/http", config={"url": f"{server.url}/old"})))
    assert isinstance(outcome, Completed)


@pytest.mark.parametrize("lines", [("HTTP/1.1 503 Busy",), ("HTTP/1.1 302 Found", "location: /new")])
def test_an_attempt_that_waits_for_such_a_body_can_be_cancelled(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...]
) -> None:
    monkeypatch.setattr(http_exchange, "BODY_SECONDS_MAX", 600)
    waiting: list[StepCall] = []
    timeout_of = http_exchange._body_timeout

    def noted(call: StepCall) -> asyncio.Timeout:
        waiting.append(call)
        return timeout_of(call)

    monkeypatch.setattr(http_exchange, "_body_timeout", noted)
    server.answer("/no", act=unfinished(server, *lines))

    async def scenario() -> None:
        call = StepCall(config={"url": f"{server.url}/no"})
        task = asyncio.ensure_future(http.run(call))
        await eventually(lambda: waiting)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await http.close()

    run(scenario())


def test_what_can_be_done_without_takes_at_most_half_of_the_time_left() -> None:
    assert spare_seconds(2.0, ends_at=100.0, now=50.0) == 2.0
    assert spare_seconds(2.0, ends_at=100.0, now=97.0) == 1.5
    assert spare_seconds(2.0, ends_at=100.0, now=101.0) == 0.0
    call = StepCall(config={}, timeout_seconds=30.0, begun=1000.0)
    assert call.ends_at == 1030.0


async def closing(job: Leased) -> Outcome:
    try:
        return await attempted(job)
    finally:
        await http.close()
