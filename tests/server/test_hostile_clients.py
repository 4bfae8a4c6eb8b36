"""Clients that keep to no rule of HTTP's: they cost a server neither memory nor connections, and nobody else
his time."""

import asyncio
import contextlib
import gc
import json
from typing import Any

import pytest

from holdfast.server import reading
from holdfast.server.problems import Refused
from holdfast.server.protocol import HEAD_BYTES_MAX, BoundedProtocol
from running import eventually
from serving import Served, on_a_server

SOON_SECONDS = 60  # of a test that fails; reached by none that does not


async def answered(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """One answer of several on a connection."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SOON_SECONDS)
    first, *lines = head.decode().strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, await reader.readexactly(int(headers.get("content-length", 0)))


def connections(s: Served) -> set[Any]:
    return s.service._server.server_state.connections


@pytest.mark.parametrize("trailer", [b"x: y\r\n", b"y"], ids=["many", "one"])
@pytest.mark.parametrize("address", [b"GET /api/queue/signal?ticket=TICKET&wait=60", b"POST /api/events"])
def test_trailers_without_an_end_are_cut_off(sqlite_url: str, address: bytes, trailer: bytes) -> None:
    async def story(s: Served) -> None:
        ticket = (await s.get("/api/queue/signal")).json["ticket"]
        reader, writer = await s.open_socket()
        writer.write(
            address.replace(b"TICKET", b"%d" % ticket)
            + b" HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: "
        )
        await writer.drain()
        writer.write(trailer * (8 * HEAD_BYTES_MAX))  # more than comes at once
        with contextlib.suppress(ConnectionError):  # it is not read to its end, either
            await asyncio.wait_for(reader.read(), reading.BODY_SECONDS_MAX - 5)
        await eventually(lambda: len(connections(s)) <= 1)  # the client of the test has one
        writer.close()

    on_a_server(sqlite_url, story)


@pytest.mark.parametrize("rest", [b"\r\n", b"x"], ids=["line breaks", "a body that nobody reads"])
def test_what_comes_behind_an_answer_and_is_no_request_keeps_no_connection(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    async def story(s: Served) -> None:
        reader, writer = await s.open_socket()
        length = b"" if rest == b"\r\n" else b"content-length: 1000\r\n"
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n" + length + b"\r\n")
        assert (await answered(reader))[0] == 200
        monkeypatch.setattr(BoundedProtocol, "head_seconds_max", 0.2)
        writer.write(rest)
        assert await asyncio.wait_for(reader.read(), SOON_SECONDS) == b""
        writer.close()

    on_a_server(sqlite_url, story)


def test_an_answer_that_nobody_reads_is_given_up(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "reader_seconds_max", 0.2)

    async def story(s: Served) -> None:
        await s.define()
        for _ in range(12):
            await s.start("x" * 1_000_000)
        await s.http.aclose()
        await eventually(lambda: not connections(s))
        _, writer = await s.open_socket()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = json.dumps({"worker_id": "w2", "limit": 12}).encode()
        writer.write(
            b"POST /api/queue/lease HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        await eventually(lambda: any(one.cycle is not None for one in connections(s)))
        await eventually(lambda: not connections(s))
        writer.close()

    on_a_server(sqlite_url, story)


def test_many_requests_that_come_at_once_are_all_answered(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        reader, writer = await s.open_socket()
        asked = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-padding: " + b"x" * 1_000 + b"\r\n\r\n"
        writer.write(asked * 300)
        for _ in range(300):
            assert (await answered(reader))[0] == 200
        writer.close()

    on_a_server(sqlite_url, story)


def test_a_head_that_comes_slowly_behind_a_request_does_not_cut_off_its_answer(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(s: Served) -> None:
        ticket = (await s.get("/api/queue/signal")).json["ticket"]
        reader, writer = await s.open_socket()
        writer.write(b"GET /api/queue/signal?ticket=%d&wait=1 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % ticket)
        await eventually(lambda: any(one._is_answering() for one in connections(s)))
        monkeypatch.setattr(BoundedProtocol, "head_seconds_max", 0.2)
        writer.write(b"GET /hea")
        assert (await answered(reader))[0] == 200
        assert (await answered(reader))[0] == 408
        writer.close()

    on_a_server(sqlite_url, story)


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_a_request_that_was_read_and_refused_keeps_its_connection(sqlite_url: str, kind: str) -> None:
    async def story(s: Served) -> None:
        reader, writer = await s.open_socket()
        for _ in range(2):
            writer.write(
                b"POST /api/executions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: %b\r\n"
                b"content-length: 2\r\n\r\n[]" % kind.encode()
            )
            status, headers, _ = await answered(reader)
            assert status in (415, 422) and "connection" not in headers
        writer.close()

    on_a_server(sqlite_url, story)


def test_the_head_of_a_stream_is_told_and_ends(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        reader, writer = await s.open_socket()
        writer.write(b"HEAD /api/events/stream HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SOON_SECONDS)
        assert b" 200 " in head and b"text/event-stream" in head
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert (await answered(reader))[0] == 200
        writer.close()

    on_a_server(sqlite_url, story)


def test_what_large_requests_hold_together_is_bounded_until_they_are_answered(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BODIES_BYTES_MAX", 10_000)

    async def story(s: Served) -> None:
        await s.define()
        types = ["p/a" + "x" * 400] * 15
        waiting = asyncio.create_task(s.lease(types=types, wait=60))
        await eventually(lambda: s.service.services.desk.waiting == 1)
        busy = await s.lease("w2", types=types)
        assert (busy.status, busy.code) == (503, "busy") and busy.headers["retry-after"]
        assert (await s.lease("w2")).status == 200
        s.service.services.desk.close()
        assert (await asyncio.wait_for(waiting, SOON_SECONDS)).status == 200
        assert (await s.lease("w2", types=types)).status == 200

    on_a_server(sqlite_url, story)


def test_a_request_of_many_small_lists_is_read_without_a_collection() -> None:
    """Each would look at all that was read so far, and nobody is answered meanwhile."""
    begun: list[str] = []

    def counted(phase: str, info: dict[str, int]) -> None:
        begun.append(phase)

    body = b"[" + b"[]," * reading.LARGE_BYTES + b"[]]"
    gc.collect()  # so that no other one is due
    gc.callbacks.append(counted)
    try:
        read = reading.decoded(body, list[Any])
        collections = len(begun)  # before anything else is made, for which it is time then
        assert len(read) == reading.LARGE_BYTES + 1 and collections == 0
        with pytest.raises(Refused):
            reading.decoded(body[:-1], list[Any])
    finally:
        gc.callbacks.remove(counted)
    assert gc.isenabled()
