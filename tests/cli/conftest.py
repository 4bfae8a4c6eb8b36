"""The commands are tested on both stores, and a second time on SQLite through a server in front of it."""

import sys
from collections.abc import Iterator

import pytest

from served_stores import commands_go_through_a_server


@pytest.fixture(autouse=True)
def own_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """`holdfast run` looks for functions beside its file, and so puts that folder on the path."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(params=["sqlite", "postgresql", "server"])
def store_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty database; where it is served, the commands of `command_scenario` go through the
    server, and all else goes to the database itself."""
    url: str = request.getfixturevalue("postgres_url" if request.param == "postgresql" else "sqlite_url")
    if request.param != "server":
        yield url
        return
    with commands_go_through_a_server(url):
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def unserved_url(request: pytest.FixtureRequest) -> str:
    """The address of an empty database, for what comes before a server: that makes the tables when it starts,
    so nobody can meet an old schema, or none, through it."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url
