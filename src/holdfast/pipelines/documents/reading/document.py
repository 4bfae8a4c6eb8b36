"""One document, from its bytes to the facts: what it is, which reader reads it, and that something came out.

Runs in the reading process; it is a plain function, which needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.pipelines.documents.reading.chunk import Chunk, DocumentKind, Facts, ReadLimits
from holdfast.pipelines.documents.reading.chunks import Chunker
from holdfast.pipelines.documents.reading.kinds import kind_of
from holdfast.pipelines.documents.reading.warnings import Warnings

HandOn = Callable[[list[Chunk], float], None]


def read_document(path: Path, filename: str, limits: ReadLimits, hand_on: HandOn) -> Facts:
    """`filename` is what it was uploaded as, for messages; `hand_on` gets the chunks in parts."""
    kind = kind_of(path, filename, limits)
    facts = Facts(kind)
    warnings = Warnings()
    chunker = Chunker(limits, filename, hand_on)
    _read(kind, path, filename, limits, chunker, facts, warnings)
    chunker.share = 1.0
    chunker.finish()
    facts.characters = chunker.characters
    facts.warnings = warnings.told()
    return facts


def _read(
    kind: DocumentKind,
    path: Path,
    filename: str,
    limits: ReadLimits,
    chunker: Chunker,
    facts: Facts,
    warnings: Warnings,
) -> None:
    # Each reader's libraries are loaded when the first file of its kind comes.
    if kind == "pdf":
        from holdfast.pipelines.documents.reading.pdf import read_pdf

        read_pdf(path, filename, chunker, facts, warnings)
    elif kind == "docx":
        from holdfast.pipelines.documents.reading.docx import read_docx

        read_docx(path, filename, limits, chunker, facts, warnings)
    elif kind == "xlsx":
        from holdfast.pipelines.documents.reading.xlsx import read_xlsx

        read_xlsx(path, filename, limits, chunker, facts, warnings)
    else:
        from holdfast.pipelines.documents.reading.txt import read_txt

        read_txt(path, filename, chunker, facts, warnings)
