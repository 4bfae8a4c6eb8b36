"""A rehearsal of the pipeline on each store, for each test that asks for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from document_scenario import Docs, rehearsed


@pytest.fixture
def docs(tmp_path: Path, store_url: str) -> Iterator[Docs]:
    # A rehearsal makes a SQLite file of its own.
    url = None if store_url.startswith("sqlite") else store_url
    with rehearsed(tmp_path, url=url) as docs:
        yield docs
