"""What a client makes of a server that answers nonsense, and of what it is given that cannot be sent."""

from base64 import b64encode
from io import BytesIO
from typing import Any

import pytest

from holdfast.cli.ingest import Uploaded
from holdfast.client import Client
from holdfast.client.transport import Transport
from holdfast.core.errors import InvalidInput, ServerUnavailable
from running import run
from scripted_server import ScriptedServer


def asked(url: str, path: str = "/api/info", body: Any = None, **query: Any) -> Any:
    async def story() -> Any:
        transport = Transport(url)
        try:
            return await (transport.post(path, body) if body is not None else transport.get(path, **query))
        finally:
            await transport.close()

    return run(story())


def test_an_answer_that_cannot_be_unpacked_is_a_server_that_cannot_be_understood() -> None:
    with ScriptedServer() as server:
        server.answer("/api/info", 200, b"no gzip at all", content_encoding="gzip")
        with pytest.raises(ServerUnavailable):
            asked(server.url)


@pytest.mark.parametrize(
    "answer",
    [b"<html>", b"", b"\xff", b"[]", b'{"run_id": 1, "created": true}', b'{"run_id": "1", "created": true}'],
)
def test_what_is_answered_to_an_upload_may_not_be_understood_either(answer: bytes) -> None:
    async def story(url: str) -> None:
        transport = Transport(url)
        try:
            await transport.upload("/v1/uploads", "a.conf", BytesIO(b"[a]"), Uploaded)
        finally:
            await transport.close()

    with ScriptedServer() as server:
        server.answer("/v1/uploads", 200, answer)
        with pytest.raises(ServerUnavailable, match="is not understood"):
            run(story(server.url))


def test_a_server_that_looks_at_one_token_a_second_is_one_to_wait_for() -> None:
    told = {
        "error": {"code": "too_many_failures", "message": "Wrong tokens keep coming.", "guidance": "Wait."}
    }
    with ScriptedServer() as server:
        server.answer("/api/info", 429, json=told)
        with pytest.raises(ServerUnavailable, match="Wrong tokens keep coming"):
            asked(server.url)


def test_a_password_in_the_address_is_sent_as_one() -> None:
    with ScriptedServer() as server:
        server.answer("/api/info", json={"fine": True})
        assert asked(server.url.replace("//", "//ada:hunter%2022@")) == {"fine": True}
        sent = b64encode(b"ada:hunter 22").decode()
        assert server.requests[0].headers["authorization"] == f"Basic {sent}"


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_requests_to_a_server_are_not_logged(caplog: pytest.LogCaptureFixture, level: str) -> None:
    with ScriptedServer() as server, caplog.at_level(level):
        server.answer("/api/info", json={"fine": True})
        asked(server.url.replace("//", "//ada:hunter%2022@"))
    assert "/api/info" not in caplog.text
    assert str(server.port) not in caplog.text


@pytest.mark.parametrize("token", ["secret-secret-secret\n", " secret-secret-secret", "sécret-secret-secret"])
def test_a_token_that_no_header_carries_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidInput, match="HOLDFAST_TOKEN") as refusal:
        Client("http://127.0.0.1:1", token=token)
    assert "cret-secret" not in f"{refusal.value} {refusal.value.guidance}"


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("http://☃.invalid", {}),
        ("http://127.0.0.1:1", {"cursor": "\ud800"}),
        ("http://127.0.0.1:1", {"body": {"name": "\ud800"}}),
        ("http://127.0.0.1:1", {"body": {"name": object()}}),
    ],
    ids=["an address that is none", "a parameter", "text", "an object"],
)
def test_what_cannot_be_sent_is_told_as_that(url: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        asked(url, **given)
