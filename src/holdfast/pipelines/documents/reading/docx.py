"""Reads a Word document from its XML, piece by piece: a long one is never in memory as a whole.

    document.xml ─▶ paragraphs: headings, list items, text      rows of tables
    then once each: headers, footers, footnotes, endnotes, comments

Deleted text and what was moved away from its place are left out; text boxes come after the paragraph that
they are anchored in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lxml import etree  # type: ignore[import-untyped]

from holdfast.pipelines.documents.reading.chunk import HEADING_SEPARATOR, ChunkKind, Facts, ReadLimits
from holdfast.pipelines.documents.reading.chunks import Chunker
from holdfast.pipelines.documents.reading.clean_text import clean, one_line
from holdfast.pipelines.documents.reading.docx_names import STRICT, TRANSITIONAL, names_in
from holdfast.pipelines.documents.reading.docx_styles import (
    INDENT,
    LEVELS_MAX,
    PLAIN,
    Numbering,
    Style,
    style_of,
    styles_of,
)
from holdfast.pipelines.documents.reading.docx_text import cells_of, paragraph_texts
from holdfast.pipelines.documents.reading.packed import Package, guarded
from holdfast.pipelines.documents.reading.refusals import empty, shown, without_text
from holdfast.pipelines.documents.reading.warnings import Warnings

HEADING_CHARS_MAX = 200
_STORIES: tuple[tuple[str, ChunkKind], ...] = (
    ("header", "header"),
    ("footer", "footer"),
    ("footnotes", "note"),
    ("endnotes", "note"),
    ("comments", "note"),
)
_SEPARATORS = frozenset({"separator", "continuationSeparator", "continuationNotice"})


def read_docx(
    path: Path, filename: str, limits: ReadLimits, chunker: Chunker, facts: Facts, warnings: Warnings
) -> None:
    with Package(path, filename, limits) as package:
        main = package.main_part() or "word/document.xml"
        facts.title = package.title()
        story = _Document(package, main, chunker)
        story.read()
        if not chunker.characters:
            if any("/media/" in name for name in package.names):
                raise without_text(f"{shown(filename)} is a Word document with pictures, and no text.")
            raise empty(f"{shown(filename)} is a Word document without any text.")
        if story.has_chunks_of_others:
            warnings.add("Other documents that are put into this one are not read.")


class _Document:
    def __init__(self, package: Package, main: str, chunker: Chunker) -> None:
        self._package = package
        self._main = main
        self._chunker = chunker
        self._relations = package.relations(main)
        self._names = names_in(self._namespace())
        styles = self._part_of("styles")
        self._styles = {} if styles is None else styles_of(styles, self._names)
        self._numbering = Numbering(self._part_of("numbering"), self._names)
        self._headings: list[tuple[int, str]] = []
        self._has_body = False
        """Whether anything but headings came since the last place."""
        self._is_in_list = False
        self._told: set[str] = set()
        self.has_chunks_of_others = any(kind == "aFChunk" for kind, _ in self._relations.values())

    def read(self) -> None:
        self._read_story(self._main, "text")
        self._chunker.place()
        for wanted, kind in _STORIES:
            for relation, name in sorted(self._relations.values()):
                if relation == wanted and self._package.has(name):
                    self._headings = []
                    self._chunker.place(kind=kind)
                    self._read_story(name, kind)
        self._chunker.place()

    def _namespace(self) -> str:
        with self._package.opened(self._main) as file:
            head = file.read(16 * 1024)
        return STRICT if STRICT.encode() in head and TRANSITIONAL.encode() not in head else TRANSITIONAL

    def _part_of(self, wanted: str) -> Any:
        for kind, name in self._relations.values():
            if kind == wanted and self._package.has(name):
                return self._package.tree(name)
        return None

    # One part: the body, a header, the footnotes

    def _read_story(self, part: str, kind: ChunkKind) -> None:
        size = max(self._package.size_of(part), 1)
        is_main = kind == "text"
        for element, at in self._pieces(part):
            if is_main:
                self._chunker.share = min(at / size, 1.0) * 0.99
            if element.tag == self._names.row:
                self._row(element)
            elif element.tag == self._names.paragraph:
                self._paragraph(element, kind)
            else:
                self._chunker.end_table()

    def _pieces(self, part: str) -> Iterator[tuple[Any, int]]:
        """Paragraphs and rows that are in no other, as soon as they are complete, and ends of tables; with
        how far the part is read. Each is gone after its turn."""
        names = self._names
        wanted = (names.paragraph, names.row, names.table)
        with self._package.opened(part) as packed, self._package.faults_told(part):
            file = guarded(packed, part, self._package.shown)
            # Only the parser's end tells that it was all well-formed.
            parser = etree.iterparse(
                file, events=("start", "end"), tag=wanted, resolve_entities=False, no_network=True,
                load_dtd=False, huge_tree=False, remove_comments=True, remove_pis=True,
            )  # fmt: skip
            open_elements: list[Any] = []
            for event, element in parser:
                if event == "start":
                    open_elements.append(element)
                    continue
                open_elements.pop()
                is_inside = any(outer.tag != names.table for outer in open_elements)
                if is_inside or (element.tag == names.table and open_elements):
                    continue
                if element.tag == names.row and len(open_elements) > 1:
                    continue
                yield element, file.tell()
                _forget(element)

    def _paragraph(self, paragraph: Any, kind: ChunkKind) -> None:
        properties = paragraph.find(self._names.properties)
        style = PLAIN if properties is None else style_of(properties, self._styles, self._names)
        is_separator = kind == "note" and paragraph.getparent().get(self._names.type) in _SEPARATORS
        if is_separator:
            return
        texts = paragraph_texts(paragraph, self._names)
        text = clean(texts[0]).strip()
        if text:
            marked = self._marked(text, style)
            if style.outline is not None and kind == "text":
                self._heading(marked, style.outline)
            elif kind in ("header", "footer") and marked in self._told:
                pass
            else:
                self._told_once(marked, kind)
                self._text(marked, is_item=style.numbering is not None)
        for boxed in texts[1:]:
            if boxed := clean(boxed).strip():
                self._text(boxed)

    def _told_once(self, text: str, kind: ChunkKind) -> None:
        if kind in ("header", "footer"):
            self._told.add(text)

    def _marked(self, text: str, style: Style) -> str:
        if style.numbering is None:
            return text
        number, level = style.numbering
        marker = self._numbering.marker(number, level)
        if style.outline is not None:
            return f"{marker} {text}" if marker not in ("", "•") else text
        return f"{INDENT * level}{marker} {text}" if marker else INDENT * level + text

    def _text(self, text: str, *, is_item: bool = False) -> None:
        # The items of a list stand together.
        before = "\n" if is_item and self._is_in_list else "\n\n"
        self._chunker.flow(before + text, is_list=is_item)
        self._is_in_list = is_item
        self._has_body = True

    def _heading(self, text: str, level: int) -> None:
        while self._headings and self._headings[-1][0] >= level:
            self._headings.pop()
        self._headings.append((min(level, LEVELS_MAX), one_line(text)[:HEADING_CHARS_MAX]))
        path = HEADING_SEPARATOR.join(heading for _, heading in self._headings)
        if self._has_body or self._chunker.heading is None:
            self._chunker.place(heading=path)
        else:
            self._chunker.deeper(path)  # a heading alone is no chunk
        self._chunker.flow(f"\n\n{text}")
        self._has_body = self._is_in_list = False

    def _row(self, row: Any) -> None:
        cells, is_header = cells_of(row, self._names)
        line = " | ".join(one_line(cell) for cell in cells).rstrip(" |")
        if not line:
            return
        is_first = next(row.itersiblings(row.tag, preceding=True), None) is None
        self._chunker.row(line, is_header=is_header or (is_first and len(cells) > 1))
        self._has_body, self._is_in_list = True, False


def _forget(element: Any) -> None:
    element.clear()
    before = element.getprevious()
    while before is not None:
        element.getparent().remove(before)
        before = element.getprevious()
