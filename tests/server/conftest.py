"""What keeps tests of the server from failing on a machine that stops for some seconds."""

from collections.abc import Iterator

import pytest

from holdfast.client import connection
from holdfast.engine import tally_keeper
from holdfast.server import access, api_watching, counting, live


@pytest.fixture(scope="session", autouse=True)
def patient_servers() -> Iterator[None]:
    """A database or a feed is late only where a test says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api_watching, "READY_SECONDS_MAX", 60.0)
        patch.setattr(api_watching, "COUNT_SECONDS_MAX", 60.0)
        patch.setattr(live, "OPEN_SECONDS_MAX", 60.0)
        patch.setattr(access, "PATIENCE_SECONDS", 60.0)
        patch.setattr(counting, "WRITE_SECONDS_MAX", 60.0)
        patch.setattr(tally_keeper, "CLOSE_SECONDS_MAX", 60.0)
        yield


@pytest.fixture
def nothing_left_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was leased and nobody has asked for stays until a call, or the end of its connection."""
    monkeypatch.setattr(connection, "LEFT_SECONDS", 600.0)


@pytest.fixture(scope="module", autouse=True)
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is uploaded to these servers stays out of the current folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_STORAGE", str(tmp_path_factory.mktemp("files")))
        patch.setenv("HOLDFAST_SPOOL", str(tmp_path_factory.mktemp("spool")))
        yield
