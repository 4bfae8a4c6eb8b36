"""Reads what a test has made, in the test's own process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.pipelines.documents.reading.chunk import Chunk, Facts, ReadLimits
from holdfast.pipelines.documents.reading.document import read_document


class Document(NamedTuple):
    facts: Facts
    chunks: list[Chunk]

    @property
    def text(self) -> str:
        """Of all chunks, without what they repeat."""
        return "".join(chunk.text[chunk.overlap :] for chunk in self.chunks)

    @property
    def texts(self) -> list[str]:
        return [chunk.text for chunk in self.chunks]


Read = Callable[..., Document]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(data: bytes, filename: str = "document", **limits: float) -> Document:
        path = tmp_path / "stored"
        path.write_bytes(data)
        chunks: list[Chunk] = []
        facts = read_document(path, filename, ReadLimits(**limits), lambda part, _: chunks.extend(part))
        for chunk in chunks:
            assert chunk.text.strip()
            assert 0 <= chunk.overlap < len(chunk.text)
            assert "\0" not in chunk.text
            chunk.text.encode()  # there is no lone surrogate in it
        return Document(facts, chunks)

    return read
