"""How documents are told of: their names, which strangers chose, their sizes, their places, their errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.cli.output import BAD, GOOD, WAITING, clipped, counted, sentence

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.core.errors import HoldfastError
    from holdfast.pipelines.documents.documents import Document

NAME_CHARS = 60
WORKED_ON = ("parsing", "embedding", "analyzing")
STYLES = {"complete": GOOD, "failed": BAD, "retrying": WAITING}


class Place(Protocol):
    """Of a chunk, or of a hit."""

    @property
    def page(self) -> int | None: ...

    @property
    def sheet(self) -> str | None: ...

    @property
    def cells(self) -> str | None: ...


def named(document: Document) -> str:
    """On one line, and short on a terminal."""
    return clipped(document.filename, NAME_CHARS)


def badge(document: Document) -> str:
    """Where it stands, in a few words: `Retrying (attempt 2/3)`, `Parsing, 40%`."""
    if document.status == "failed":
        return "Failed"
    share = f", {document.progress:.0%}" if document.progress else ""
    return f"{document.summary}{share}"


def told_size(count: int) -> str:
    from holdfast.core.sizes import shown_bytes

    return "1 byte" if count == 1 else shown_bytes(count)


def told_place(place: Place) -> str:
    """`p. 3`, or `Sheet1!A1:F20`; nothing where a document has no places."""
    if place.page is not None:
        return f"p. {place.page}"
    if place.sheet is not None:
        return f"{place.sheet}!{place.cells}" if place.cells else place.sheet
    return ""


def error_of(document: Document) -> str:
    """What happened and what to do."""
    error = document.processing_error
    if error is None:
        return "Nobody knows why."
    return f"{sentence(error.user_message)} {error.guidance}".rstrip()


def counts_of(documents: Iterable[Document]) -> str:
    """`97/100 complete, 2 failed, 1 retrying`."""
    counts = Counter(document.status.value for document in documents)
    parts = [f"{counts['complete']:,}/{counts.total():,} complete"]
    parts += [f"{counts[status]:,} {status}" for status in ("failed", "retrying") if counts[status]]
    return ", ".join(parts)


def told_complete(document: Document) -> str:
    parts = [counted(document.chunks, "chunk"), counted(document.findings, "finding")]
    return f"Document {document.id} complete: {named(document)}, {', '.join(parts)}"


def summary_of(
    documents: Sequence[Document],
    uploads: Sequence[int],
    before: Sequence[int],
    refused: Sequence[tuple[Path, HoldfastError]],
) -> str:
    """Of files: two of the same content are one document."""
    statuses = {document.id: document.status.value for document in documents}
    counts = Counter(statuses[id_] if statuses[id_] in ("complete", "failed") else "open" for id_ in uploads)
    parts = [f"{counts['open']:,} to be processed"] if counts["open"] else []
    if counts["complete"] or not parts:
        parts.append(f"{counts['complete']:,} complete")
    if counts["failed"]:
        parts.append(f"{counts['failed']:,} failed")
    if refused:
        parts.append(f"{len(refused):,} not uploaded")
    if before:
        parts.append(f"{len(before):,} uploaded before")
    return f"{counted(len(uploads) + len(refused), 'file')}: {', '.join(parts)}."


def is_running(document: Document) -> bool:
    """And not only about to."""
    return document.status in WORKED_ON and not document.summary.startswith("Waiting")


def is_permanent(document: Document) -> bool:
    return document.processing_error is not None and document.processing_error.category.value == "permanent"
