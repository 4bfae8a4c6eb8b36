"""What tests of steps share: a server that answers as it is told, and no proxy between it and them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as started:
        yield started


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
