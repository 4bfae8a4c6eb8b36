"""The storages that tests run on: a folder and a bucket, both empty."""

from pathlib import Path

import pytest

from holdfast.storage import Storage


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a storage; the test runs once on each kind."""
    address: str = request.getfixturevalue("s3_url") if request.param == "s3" else str(tmp_path / "files")
    return address


@pytest.fixture
def storage(url: str) -> Storage:
    return Storage.open(url)


@pytest.fixture
def where(url: str, tmp_path: Path) -> Path:
    """The folder that drafts of the storage lie in."""
    return tmp_path / ("spool" if url.startswith("s3:") else "files/.drafts")
