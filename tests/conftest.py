"""The stores that tests run on: a SQLite file and a real PostgreSQL, both fresh for every test.

A test that asks for `store_url` runs once on each. PostgreSQL is never skipped: if it cannot start, the
tests that need it end with an error that says why. Each pytest-xdist worker has a server of its own,
started when the first test asks for it; the server ends with the worker, even a killed one.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

from backups import Backups
from holdfast.bench.postgres import TemporaryPostgres

pytest_plugins = ["watchdog", "s3_server"]

# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY_BYTES_MIN = 4 * 1024**3

# How long an example takes is the machine's affair, and no finding.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[TemporaryPostgres]:
    """One server for all tests of this process. Its tests must not halt it; one that must starts its own."""
    # Whatever is planned is planned with the statistics that the test made.
    with TemporaryPostgres(durable=False, settings={"autovacuum": "off"}, folder=_in_memory()) as server:
        yield server


def _in_memory() -> Path | None:
    """Where a database of hundreds of files is made three times as fast, if there is room for it."""
    memory = Path("/dev/shm")
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= MEMORY_BYTES_MIN
    return memory if has_room else None


@pytest.fixture
def postgres_url(postgres_server: TemporaryPostgres) -> Iterator[str]:
    """The address of an empty database, dropped after the test with whatever is still connected to it."""
    name = f"test_{uuid4().hex}"
    postgres_server.create_database(name)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The address of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'holdfast.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The address of an empty store; the test runs once on each kind."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture
def backups(store_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Backups]:
    """Of the test's store. What was restored is removed after the test."""
    is_sqlite = store_url.startswith("sqlite")
    made = Backups(store_url, tmp_path, None if is_sqlite else request.getfixturevalue("postgres_server"))
    yield made
    made.remove()
