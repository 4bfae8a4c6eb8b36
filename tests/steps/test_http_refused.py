"""What an http step refuses before anything is sent, and what it takes from its worker's environment."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from holdfast.core.errors import PermanentError
from holdfast.core.payload import encode_payload
from holdfast.steps.interface import StepCall, StepSettings
from http_asking import ask, closing, failed
from running import run
from scripted_server import ScriptedServer


@pytest.mark.parametrize(
    "config",
    [
        {"url": None},
        {"url": 7},
        {"url": ""},
        {"url": "example.com/x"},
        {"url": "file:///etc/passwd"},
        {"url": "http://"},
        {"url": "http://host:99999/"},
        {"url": "http://[::1/"},
        {"url": "http://ho st/"},
        {"url": "http://host/\r\nX: y"},
        {"url": "http://host/\x00"},
        {"url": "http://" + "a" * 70_000},
        {"url": "http://\ud800/"},
        {"method": "GET\r\n"},
        {"method": "CONNECT"},
        {"headers": {"X": "a\r\nY: b"}},
        {"headers": {"X": "a\nb"}},
        {"headers": {"X": "a\x00"}},
        {"headers": {"X\r\n": "a"}},
        {"headers": {"X:": "a"}},
        {"headers": {"": "a"}},
        {"headers": {"X": {"a": 1}}},
        {"headers": {"X": "1", "x": "2"}},
        {"headers": {"X": "\ud800"}},
        {"headers": ["X"]},
        {"headers": {"Content-Length": "5"}},
        {"headers": {"Transfer-Encoding": "chunked"}},
        {"headers": {"Authorization": "a"}, "auth": {"type": "bearer", "token": "t"}},
        {"auth": {"type": "bearer", "token": "t\r\nX: y"}},
        {"auth": {"type": "bearer", "token": ""}},
        {"auth": {"type": "digest"}},
        {"auth": {"type": "basic", "username": "a:b", "password": "c"}},
        {"auth": "token"},
        {"json": {}, "body": "x"},
        {"body": {"a": 1}},
        {"body": "\ud800"},
        {"json": float("nan")},
        {"form": "a=b"},
        {"params": {"a": {"b": 1}}},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": "soon"},
        {"response_bytes_max": 0},
        {"response_bytes_max": "many"},
        {"follow_redirects": "yes"},
        {"save_to": "../x"},
        {"save_to": "/etc/x"},
        {"save_to": ""},
        {"save_to": 5},
    ],
    ids=lambda config: ascii(config)[:50],
)
def test_a_config_that_cannot_be_meant_is_refused(server: ScriptedServer, config: dict[str, Any]) -> None:
    server.answer("/")
    with pytest.raises(PermanentError) as raised:
        run(closing(StepCall(config={"url": f"{server.url}/", **config})))
    assert raised.value.error_type == "validation_error"
    assert raised.value.guidance
    assert not server.requests


def test_header_values_may_have_any_letters(server: ScriptedServer) -> None:
    server.answer("/")
    ask(f"{server.url}/", headers={"X-Name": "Zoë", "X-Number": 5, "X-Flag": True})
    headers = server.requests[0].headers
    assert headers["x-name"].encode("latin-1").decode() == "Zoë"
    assert (headers["x-number"], headers["x-flag"]) == ("5", "true")


def test_proxies_of_the_environment_are_used_unless_addresses_are_checked(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url)
    server.answer("/x", json="by proxy")
    assert ask("http://service.invalid/x")["data"] == "by proxy"
    call = StepCall(config={"url": "http://service.invalid/x"}, settings=StepSettings(http_private=False))
    with pytest.raises(httpx.ConnectError):
        run(closing(call))
    monkeypatch.setenv("HTTP_PROXY", "nonsense://x")
    assert "proxy" in failed("http://service.invalid/x").message


def test_the_output_is_plain_json(server: ScriptedServer) -> None:
    server.answer("/items", json=[1])
    assert json.loads(encode_payload(ask(f"{server.url}/items"), what="output"))["data"] == [1]
