"""What reading a document gives: its chunks in order, and in the end the facts about the whole of it.

All of it is plain data, which crosses from the child process that reads to the one that asked.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

ChunkKind: TypeAlias = Literal["text", "list", "table", "header", "footer", "note", "form"]
"""`note`: footnotes, endnotes and comments; `form`: the fields of a form with what was filled in."""

DocumentKind: TypeAlias = Literal["pdf", "docx", "xlsx", "txt"]

HEADING_SEPARATOR = " › "


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A piece of the text, and where it stands.

    The chunks of one place (page, sheet, heading) without what they repeat, one after the other, are its
    text. A chunk may end with the white space that parts it from the next one.
    """

    text: str
    kind: ChunkKind = "text"
    page: int | None = None
    """From 1, in a PDF."""
    sheet: str | None = None
    cells: str | None = None
    """Of a sheet: "A1:F20"."""
    heading: str | None = None
    """The path of headings: "1 Intro › 1.2 Scope"."""
    overlap: int = 0
    """How many characters at the beginning of `text` repeat what a chunk before had: the end of the one
    before, or a table's header row."""


class Facts(msgspec.Struct):
    kind: DocumentKind
    title: str | None = None
    pages: int | None = None
    sheets: list[str] = []
    encoding: str | None = None
    characters: int = 0
    """Of all chunks, without what they repeat."""
    warnings: list[str] = []
    """What a person should know: "Page 3 has no text." At most a few."""


class ReadLimits(msgspec.Struct, frozen=True):
    seconds_max: float = 300.0
    """From when a process begins to read; to wait for one does not count."""
    memory_bytes_max: int | None = 1024**3
    """Of the reading process; kept on Linux only."""
    chunk_chars_max: int = 1200
    overlap_chars: int = 150
    text_chars_max: int = 50_000_000
    unpacked_bytes_max: int = 2 * 1024**3
    """Of all files in a DOCX or XLSX together."""
    ratio_max: float = 200.0
    """How often a packed file's own size it may unpack to, once it is large."""
    entries_max: int = 20_000
