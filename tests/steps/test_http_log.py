"""What the log tells of an http step's requests, whatever its level: no address, no headers."""

from __future__ import annotations

import httpx
import pytest

from http_asking import ask
from scripted_server import ScriptedServer


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_nothing_of_a_steps_requests_is_logged(caplog: pytest.LogCaptureFixture, level: str) -> None:
    with ScriptedServer() as server, caplog.at_level(level):
        server.answer("/old", 302, location="/new?token=s3cret-there", set_cookie="session=s3cret-given")
        server.answer("/new", json="here")
        assert ask(f"{server.url}/old?apikey=s3cret-here")["data"] == "here"
    assert "s3cret" not in caplog.text
    assert str(server.port) not in caplog.text


def test_other_requests_of_the_program_are_logged_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer() as server, caplog.at_level("INFO"):
        server.answer("/step")
        server.answer("/own")
        ask(f"{server.url}/step")
        httpx.get(f"{server.url}/own")
    assert "/own" in caplog.text
    assert "/step" not in caplog.text
