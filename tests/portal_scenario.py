"""The portal of examples/ as tests use it, and how they talk to it in bytes where a client hides things.

with Portal(obeys=True) as portal:
    ticket = ask(portal, "north", troubles={"download": ["break"]})["ticket"]
    heard = say(portal, f"GET /reports/{ticket}/file HTTP/1.1")
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

# The folder of the checkout is on pytest's path, so that this is one module in every test.
from examples.portal import (
    HUGE_ANNOUNCED,
    TROUBLES,
    Answer,
    Entry,
    Portal,
    break_at,
    chance_plan,
    check_troubles,
    content_of,
)

__all__ = [
    "HUGE_ANNOUNCED",
    "TROUBLES",
    "Answer",
    "Entry",
    "Heard",
    "Portal",
    "ask",
    "break_at",
    "chance_plan",
    "check_troubles",
    "client_of",
    "connected",
    "content_of",
    "say",
]

SECONDS_MAX = 30


@dataclass(frozen=True)
class Heard:
    """All that came until the portal hung up."""

    came: bytes
    was_reset: bool

    @property
    def head(self) -> str:
        return self.came.partition(b"\r\n\r\n")[0].decode("latin-1")

    @property
    def body(self) -> bytes:
        return self.came.partition(b"\r\n\r\n")[2]


def client_of(portal: Portal) -> httpx.Client:
    # Certificates are of no use here, and take longer to read than most tests take.
    return httpx.Client(base_url=portal.url, timeout=SECONDS_MAX, trust_env=False, verify=False)


def ask(portal: Portal, report: str = "north", **more: Any) -> dict[str, Any]:
    """Requests a report, and gives what the portal told."""
    with client_of(portal) as client:
        answer = client.post("/reports", json={"report": report, **more})
    assert answer.is_success, answer.text
    return answer.json()  # type: ignore[no-any-return]


@contextmanager
def connected(portal: Portal) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", portal.port), timeout=SECONDS_MAX) as connection:
        yield connection


def say(portal: Portal, *lines: str, bytes_max: int | None = None) -> Heard:
    """Sends a request as these lines, and hears what comes until the portal hangs up, or so many bytes."""
    heard = b""
    with connected(portal) as connection:
        connection.sendall("\r\n".join([*lines, "Host: portal", "", ""]).encode())
        try:
            while (bytes_max is None or len(heard) < bytes_max) and (piece := connection.recv(65536)):
                heard += piece
        except ConnectionResetError:
            return Heard(heard, was_reset=True)
    return Heard(heard, was_reset=False)
