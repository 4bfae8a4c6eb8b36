"""Which machines an http step can be made to reach where private ones are forbidden: none of those."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.errors import InvalidInput, PermanentError
from holdfast.steps import http, http_target
from holdfast.steps.http_target import is_public
from holdfast.steps.interface import StepCall, StepSettings
from running import run
from scripted_server import ScriptedServer

PUBLIC_ONLY = StepSettings.from_environment({"HOLDFAST_HTTP_PRIVATE": "forbid"})


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as started:
        started.answer("/", json="reached")
        yield started


@pytest.fixture
def public_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A server at 127.0.0.2, and a world in which that is the open internet."""
    monkeypatch.setattr(http_target, "is_public", lambda address: str(address) == "127.0.0.2")
    with ScriptedServer("127.0.0.2") as started:
        yield started


def ask(url: str, settings: StepSettings = PUBLIC_ONLY) -> Any:
    async def scenario() -> Any:
        try:
            return await http.run(StepCall(config={"url": url}, settings=settings))
        finally:
            await http.close()

    return run(scenario())


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "168.63.129.16",
        "192.0.0.192",
        "192.88.99.1",
        "3fff::1",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2002:a00:1::",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "fe80::1",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "2001:db8::1",
        "100::1",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "93.184.216.34",
        "172.32.0.1",
        "2606:4700:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ],
)
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "127.1",
        "2130706433",
        "0177.0.0.1",
        "0x7f000001",
        "0x7f.0.0.1",
        "0.0.0.0",
        "0",
        "127.0.0.2",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "LOCALHOST",
        "⑫⑦.0.0.1",
        "127.0.0.1.",
    ],
)
def test_no_form_of_an_address_leads_to_this_machine(server: ScriptedServer, host: str) -> None:
    with pytest.raises((PermanentError, http.httpx.ConnectError)) as raised:
        ask(f"http://{host}:{server.port}/")
    if isinstance(raised.value, PermanentError):  # some forms are no address to some systems
        assert raised.value.error_type in ("target_forbidden", "validation_error")
    assert not server.requests


def test_it_is_the_check_that_forbids(server: ScriptedServer) -> None:
    assert ask(f"{server.url}/", StepSettings())["data"] == "reached"
    with pytest.raises(PermanentError) as raised:
        ask(f"{server.url}/")
    assert raised.value.error_type == "target_forbidden"
    assert "127.0.0.1" in str(raised.value)
    assert "HOLDFAST_HTTP_PRIVATE" in str(raised.value.guidance)


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest/meta-data/", "https://[fd00:ec2::254]/", "http://[fe80::1]/"]
)
def test_the_addresses_of_clouds_are_not_asked(url: str) -> None:
    with pytest.raises(PermanentError) as raised:
        ask(url)
    assert raised.value.error_type == "target_forbidden"


def test_a_redirect_does_not_lead_there_either(server: ScriptedServer, public_server: ScriptedServer) -> None:
    public_server.answer("/", 302, location=f"{server.url}/")
    with pytest.raises(PermanentError) as raised:
        ask(f"{public_server.url}/")
    assert raised.value.error_type == "target_forbidden"
    assert len(public_server.requests) == 1
    assert not server.requests


def named(monkeypatch: pytest.MonkeyPatch, answers: list[list[str]]) -> None:
    """The name `rebind.test` has these addresses, one list after the other."""
    real = socket.getaddrinfo

    def fake(host: Any, port: Any, *args: Any, **keywords: Any) -> Any:
        if host not in ("rebind.test", b"rebind.test"):
            return real(host, port, *args, **keywords)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in (answers.pop(0) if len(answers) > 1 else answers[0])
        ]

    monkeypatch.setattr(socket, "getaddrinfo", fake)


def test_a_name_that_changes_its_meaning_is_connected_to_where_it_was_checked(
    server: ScriptedServer, public_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(monkeypatch, [["127.0.0.2"], ["127.0.0.1"]])
    public_server.answer("/", json="public")
    assert ask(f"http://rebind.test:{public_server.port}/")["data"] == "public"
    assert public_server.requests[0].headers["host"] == f"rebind.test:{public_server.port}"


def test_one_private_address_of_several_is_enough(
    server: ScriptedServer, public_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(monkeypatch, [["127.0.0.2", "127.0.0.1"]])
    with pytest.raises(PermanentError) as raised:
        ask(f"http://rebind.test:{public_server.port}/")
    assert raised.value.error_type == "target_forbidden"
    assert not public_server.requests


def test_the_next_address_is_tried_where_one_does_not_answer(
    public_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_target, "is_public", lambda address: True)
    named(monkeypatch, [["127.0.0.3", "127.0.0.2"]])
    public_server.answer("/", json="public")
    assert ask(f"http://rebind.test:{public_server.port}/")["data"] == "public"


def test_a_slip_of_the_pen_does_not_allow() -> None:
    with pytest.raises(InvalidInput, match="HOLDFAST_HTTP_PRIVATE"):
        StepSettings.from_environment({"HOLDFAST_HTTP_PRIVATE": "forbiden"})
    assert StepSettings.from_environment({}).http_private
    assert not StepSettings.from_environment({"HOLDFAST_HTTP_PRIVATE": " Forbid "}).http_private
