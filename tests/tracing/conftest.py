"""What the tests of tracing share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from traced_spans import Traced


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.provider.shutdown()
