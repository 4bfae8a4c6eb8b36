"""A rehearsal of the pipeline and a portal that meets the troubles its requests bring, for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from downloads_scenario import Downloads, rehearsed
from portal_scenario import Portal


@pytest.fixture
def portal() -> Iterator[Portal]:
    with Portal(obeys=True) as portal:
        yield portal


@pytest.fixture
def silent_portal() -> Iterator[Portal]:
    """One that tells no checksums."""
    with Portal(obeys=True, tells_checksum=False) as portal:
        yield portal


@pytest.fixture
def downloads(tmp_path: Path) -> Iterator[Downloads]:
    with rehearsed(tmp_path) as downloads:
        yield downloads
