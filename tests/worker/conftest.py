"""What keeps tests with a worker from failing on a machine that stops for some seconds."""

import pytest

from holdfast.store.sqlite import SqliteStore
from holdfast.worker import heartbeats


@pytest.fixture
def quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three a second for a lease of a minute: what they find out is found out soon, and no lease runs out."""
    monkeypatch.setattr(heartbeats, "HEARTBEATS_PER_LEASE", 200)


@pytest.fixture(autouse=True)
def patient_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction is open for too long only where a test says so."""
    monkeypatch.setattr(SqliteStore, "transaction_seconds_max", 30.0)
