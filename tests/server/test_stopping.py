"""A server that is asked to stop answers all who wait, whatever they wait for, and cuts nobody off."""

import asyncio

import pytest

from holdfast.server import service
from running import eventually
from serving import Served, on_a_server

# Far less than these servers give to requests that are under way before they cut them off.
SOON_SECONDS = 60


@pytest.fixture(autouse=True)
def long_endings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ENDING_SECONDS_MAX", 170)


def test_a_stream_ends_as_soon_as_the_server_begins_to_stop(store_url: str) -> None:
    async def story(s: Served) -> None:
        listening = asyncio.create_task(s.get("/api/events/stream"))
        await eventually(lambda: s.service.services.live.listeners == 1)
        s.service.begin_stop()
        # To its end: a connection that broke would raise.
        assert (await asyncio.wait_for(listening, SOON_SECONDS)).status == 200

    on_a_server(store_url, story)


async def is_answered_at_the_stop(s: Served, address: str, **query: int) -> None:
    waiting = asyncio.create_task(s.get(address, wait=60, **query))
    tasks = s.service._server.server_state.tasks
    await eventually(lambda: tasks or waiting.done())  # it is under way
    s.service.begin_stop()
    assert (await asyncio.wait_for(waiting, SOON_SECONDS)).status == 200


def test_whoever_waits_for_work_is_answered_when_the_server_begins_to_stop(store_url: str) -> None:
    async def story(s: Served) -> None:
        ticket = (await s.get("/api/queue/signal")).json["ticket"]
        await is_answered_at_the_stop(s, "/api/queue/signal", ticket=ticket)

    on_a_server(store_url, story)


def test_whoever_waits_for_an_execution_is_answered_when_the_server_begins_to_stop(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await is_answered_at_the_stop(s, f"/api/executions/{await s.start()}")

    on_a_server(store_url, story)


def test_a_connection_that_came_at_the_last_moment_ends_with_its_answer(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        reader, writer = await s.open_socket()
        s.service.services.is_stopping = True  # and the listening socket was closed behind it
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), SOON_SECONDS)  # to the end of the connection
        assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"connection: close") == 1
        writer.close()

    on_a_server(sqlite_url, story)


def test_whoever_is_still_sending_when_the_time_is_over_is_told_so(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "ENDING_SECONDS_MAX", 1)

    async def story(s: Served) -> None:
        reader, writer = await s.open_socket()
        writer.write(
            b"POST /api/events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: 100\r\n\r\n{"
        )
        await eventually(lambda: s.service._server.server_state.tasks)
        s.service.begin_stop()
        answer = await asyncio.wait_for(reader.read(), 60)
        assert answer.startswith(b"HTTP/1.1 503 ") and b'"stopping"' in answer
        writer.close()

    on_a_server(sqlite_url, story)
    told = [record for record in caplog.records if record.name.startswith(("holdfast", "uvicorn"))]
    assert not [record for record in told if record.exc_info]
