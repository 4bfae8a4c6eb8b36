"""Reads text of any encoding, a block at a time."""

from __future__ import annotations

from io import TextIOWrapper
from pathlib import Path

from holdfast.pipelines.documents.reading.chunk import Facts
from holdfast.pipelines.documents.reading.chunks import Chunker
from holdfast.pipelines.documents.reading.clean_text import clean
from holdfast.pipelines.documents.reading.encodings import encoding_of
from holdfast.pipelines.documents.reading.refusals import empty, shown
from holdfast.pipelines.documents.reading.warnings import Warnings

BLOCK_CHARS = 512 * 1024


def read_txt(path: Path, filename: str, chunker: Chunker, facts: Facts, warnings: Warnings) -> None:
    encoding = encoding_of(path)
    facts.encoding = encoding.shown
    size = max(path.stat().st_size, 1)
    lost = 0
    # Line ends of all kinds become \n.
    with path.open("rb") as raw, TextIOWrapper(raw, encoding.codec, errors="replace") as file:
        while text := file.read(BLOCK_CHARS):
            lost += text.count("\ufffd")
            chunker.share = min(raw.tell() / size, 1.0)
            chunker.flow(clean(text))
    chunker.place()
    if not chunker.characters:
        raise empty(f"{shown(filename)} has only white space.")
    if encoding.is_guess:
        warnings.add(
            f"Its encoding was guessed: {encoding.shown}. Where letters are wrong, save the file as UTF-8 and"
            " upload it again."
        )
    if lost:
        warnings.add(f"{lost:,} characters could not be read as {encoding.shown}, and are lost.")
