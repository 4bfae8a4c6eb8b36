"""Cuts what the readers give into chunks of about one size, as it comes, and hands them on in parts.

    flow(text) ─▶ a buffer of running text ─▶ cut at a paragraph, else a sentence, a line, a word
    row(line)  ─▶ lines of a table         ─▶ cut between rows, the header row repeated
    place(...)    where what follows stands: no chunk reaches over from one page, heading or sheet to the next

A chunk of running text begins with the end of the one before (`overlap`), so that what stands on the border
is found as well. A chunk may end with the white space that parts it from the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.pipelines.documents.reading.borders import (
    CELL_END,
    border_of,
    end_to_repeat,
    seam,
    sentence_ends_of,
    word_after,
)
from holdfast.pipelines.documents.reading.chunk import Chunk, ChunkKind, ReadLimits
from holdfast.pipelines.documents.reading.columns import cell_range
from holdfast.pipelines.documents.reading.refusals import too_much_text

PART_CHUNKS_MAX = 64
PART_CHARS_MAX = 128 * 1024
LAST_SHARE_MAX = 1.15
"""The last chunk of a place may be this much longer: better than a last one of a few words."""
HEADER_SHARE_MAX = 0.4
"""A longer header row is not repeated: too little would be left for the rows."""
CHUNK_CHARS_MIN = 40

HandOn = Callable[[list[Chunk], float], None]


class Chunker:
    """`share`, of what is read so far, is set by the reader and told with each part."""

    def __init__(self, limits: ReadLimits, filename: str, hand_on: HandOn) -> None:
        self._text_chars_max = limits.text_chars_max
        self._filename = filename
        self._hand_on = hand_on
        self._chars_max = max(limits.chunk_chars_max, CHUNK_CHARS_MIN)
        self._overlap_max = min(limits.overlap_chars, self._chars_max // 3)
        self.share = 0.0
        self.characters = 0
        self._part: list[Chunk] = []
        self._part_chars = 0
        self._page: int | None = None
        self._sheet: str | None = None
        self._heading: str | None = None
        self._kind: ChunkKind = "text"
        # running text
        self._pieces: list[str] = []
        self._pieces_chars = 0
        self._overlap = ""
        self._is_list = True
        # a table
        self._rows: list[str] = []
        self._rows_chars = 0
        self._first_row = self._last_row = 0
        self._first_column = self._last_column = 0
        self._header = ""
        self._repeated = ""

    def place(
        self,
        *,
        page: int | None = None,
        sheet: str | None = None,
        heading: str | None = None,
        kind: ChunkKind = "text",
    ) -> None:
        """What follows stands there; what came before is complete."""
        self._end_flow()
        self.end_table()
        self._page, self._sheet, self._heading, self._kind = page, sheet, heading, kind

    @property
    def heading(self) -> str | None:
        return self._heading

    def deeper(self, heading: str) -> None:
        """The place goes on under a heading of its own: what came of it so far was only the one above."""
        self._heading = heading

    def finish(self) -> None:
        self.place()
        self._send()

    # Running text

    def flow(self, text: str, *, is_list: bool = False) -> None:
        """Clean text of any length, with its own white space."""
        if self._rows:
            self.end_table()
        self._pieces.append(text)
        self._pieces_chars += len(text)
        self._is_list = self._is_list and is_list
        if self._pieces_chars > 2 * self._chars_max:
            self._cut(is_last=False)

    def _end_flow(self) -> None:
        if self._pieces:
            self._cut(is_last=True)
        self._overlap, self._is_list = "", True

    def _cut(self, *, is_last: bool) -> None:
        text = self._pieces[0] if len(self._pieces) == 1 else "".join(self._pieces)
        sentence_ends = sentence_ends_of(text)
        end = len(text)
        at = word_after(text, 0)
        while at < end:
            size = self._chars_max - len(self._overlap)
            if end - at <= size * (LAST_SHARE_MAX if is_last else 2):
                break
            border = border_of(text, at, at + size, sentence_ends)
            following = word_after(text, border)
            fresh = text[at:border].rstrip()
            self._add_flow(fresh + seam(text, at + len(fresh), following))
            at = following
        rest = text[at:]
        if is_last:
            self._pieces, self._pieces_chars = [], 0
            if rest := rest.rstrip():
                self._add_flow(rest)
        else:
            self._pieces, self._pieces_chars = [rest], len(rest)

    def _add_flow(self, fresh: str) -> None:
        kind: ChunkKind = "list" if self._is_list and self._kind == "text" else self._kind
        self._add(self._overlap + fresh, len(self._overlap), kind, None)
        self._overlap = end_to_repeat(fresh, self._overlap_max)

    # Tables

    def row(
        self,
        line: str,
        number: int = 0,
        first: int = 0,
        last: int = 0,
        *,
        is_header: bool = False,
    ) -> None:
        """`line` is clean and has no line end. `number` (from 1), `first` and `last` (columns, from 0) are
        its place in a sheet. A header is repeated in each further chunk of the table."""
        self.rows([line], number, first, last)
        if is_header:
            size = len(line) + 1
            self._header = f"{line}\n" if size <= self._chars_max * HEADER_SHARE_MAX else ""

    def rows(self, lines: Sequence[str], number: int = 0, first: int = 0, last: int = 0) -> None:
        """Rows that follow one another, of which `number` is the first's, and that have the same columns."""
        if self._pieces:
            self._end_flow()
        rows, chars, chars_max = self._rows, self._rows_chars, self._chars_max
        if rows and lines and chars + len(lines[0]) < chars_max:
            self._first_column = min(first, self._first_column)
            self._last_column = max(last, self._last_column)
        for line_number, line in enumerate(lines, number):
            size = len(line) + 1
            if not rows or chars + size > chars_max:
                if rows:
                    self._end_rows("\n")
                    rows = self._rows
                self._repeated, chars = self._header, len(self._header)
                self._first_row = self._last_row = line_number
                self._first_column, self._last_column = first, last
                if size > chars_max - chars:  # no row waits
                    self._add_long_row(line)
                    continue
            rows.append(line)
            chars += size
            self._last_row = line_number
        self._rows_chars = chars

    def end_table(self) -> None:
        """No row that follows belongs to it."""
        if self._rows:
            self._end_rows("")
        self._header = ""

    def _end_rows(self, seam: str) -> None:
        text = self._repeated + "\n".join(self._rows) + seam
        self._rows = []
        self._add(text, len(self._repeated), "table", self._cells())

    def _add_long_row(self, line: str) -> None:
        """Cut where its cells end, or as running text is."""
        repeated, cells = self._repeated, self._cells()
        size = self._chars_max - len(repeated)
        at, end = 0, len(line)
        while at < end:
            border = end if end - at <= size else border_of(line, at, at + size, CELL_END)
            following = word_after(line, border)
            fresh = line[at:border].rstrip()
            fresh += seam(line, at + len(fresh), following)
            self._add(repeated + fresh, len(repeated), "table", cells)
            at = following

    def _cells(self) -> str | None:
        if not self._first_row:
            return None
        return cell_range(self._first_row, self._first_column, self._last_row, self._last_column)

    # Parts

    def _add(self, text: str, overlap: int, kind: ChunkKind, cells: str | None) -> None:
        self.characters += len(text) - overlap
        if self.characters > self._text_chars_max:
            raise too_much_text(self._filename, self._text_chars_max)
        self._part.append(Chunk(text, kind, self._page, self._sheet, cells, self._heading, overlap))
        self._part_chars += len(text)
        if len(self._part) >= PART_CHUNKS_MAX or self._part_chars >= PART_CHARS_MAX:
            self._send()

    def _send(self) -> None:
        if self._part:
            part, self._part, self._part_chars = self._part, [], 0
            self._hand_on(part, self.share)
