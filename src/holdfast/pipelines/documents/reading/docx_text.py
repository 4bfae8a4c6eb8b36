"""The text of one paragraph and of one table row, from their XML."""

from __future__ import annotations

from typing import Any

from holdfast.pipelines.documents.reading.docx_names import (
    ALTERNATIVES,
    CHOICE,
    FALLBACK,
    MATH_TEXTS,
    Names,
)

_NESTED_CELL_END = ", "
_NESTED_ROW_END = "; "


def paragraph_texts(paragraph: Any, names: Names) -> list[str]:
    """Its own text, then that of each text box in it."""
    parts: list[str] = []
    for element in paragraph.iter(names.texts):
        tag = element.tag
        if tag == names.text:
            parts.append(element.text or "")
        elif tag == names.text_box or tag == names.moved_away or tag == ALTERNATIVES:
            return _not_simple(paragraph, names)
        else:
            parts.append(_sign(element, names))
    return ["".join(parts)]


def _sign(element: Any, names: Names) -> str:
    tag = element.tag
    if tag == names.tab:
        # The same name stands for a tab stop, in the paragraph's properties.
        return "\t" if element.getparent().tag == names.run else ""
    if tag == names.line_break or tag == names.carriage_return:
        return "\n"
    if tag == names.no_break_hyphen:
        return "-"
    if tag in MATH_TEXTS:
        return element.text or ""
    return _symbol(element.get(names.char, ""))


def _symbol(code: str) -> str:
    try:
        character = int(code, 16)
    except ValueError:
        return ""
    return chr(character) if 0 < character < 0xD800 or 0xE000 <= character < 0xFFFE else ""


def _not_simple(paragraph: Any, names: Names) -> list[str]:
    texts: list[list[str]] = [[]]
    _collect(paragraph, names, texts, 0)
    return ["".join(parts) for parts in texts]


def _collect(element: Any, names: Names, texts: list[list[str]], into: int) -> None:
    """Depth is bounded: libxml2 takes no XML of more than 256 levels."""
    for child in element:
        tag = child.tag
        if tag == names.text:
            texts[into].append(child.text or "")
        elif tag == names.text_box:
            texts.append([])
            _collect(child, names, texts, len(texts) - 1)
        elif tag == names.moved_away:
            continue
        elif tag == ALTERNATIVES:
            # The same content in several ways: the first that is there is enough.
            chosen = child.find(CHOICE)
            if chosen is None:
                chosen = child.find(FALLBACK)
            if chosen is not None:
                _collect(chosen, names, texts, into)
        elif tag in names.texts:
            texts[into].append(_sign(child, names))
        else:
            _collect(child, names, texts, into)
            if tag == names.paragraph:
                texts[into].append("\n")


def cells_of(row: Any, names: Names) -> tuple[list[str], bool]:
    """The cells' texts, and whether the row is said to be a header. A cell that is merged with the one above
    is empty, one that spans several columns is there once."""
    properties = row.find(names.row_properties)
    is_header = False
    if properties is not None:
        if properties.find(names.deleted) is not None:
            return [], False
        is_header = properties.find(names.header_row) is not None
    # A cell may lie in a content control.
    return [_cell_text(cell, names) for cell in _nearest(row, names.cell, names.row)], is_header


def _cell_text(cell: Any, names: Names) -> str:
    parts: list[str] = []
    for element in _nearest(cell, (names.paragraph, names.table), names.cell):
        if element.tag == names.paragraph:
            parts.extend(paragraph_texts(element, names))
        else:
            rows = [cells_of(row, names)[0] for row in _nearest(element, names.row, names.table)]
            lines = [_NESTED_CELL_END.join(filter(None, cells)) for cells in rows]
            parts.append(_NESTED_ROW_END.join(filter(None, lines)))
    return " ".join(filter(None, map(str.strip, parts)))


def _nearest(element: Any, wanted: str | tuple[str, ...], within: str) -> list[Any]:
    """Those that lie in no other of them and in no other `within`; content controls and the like are looked
    into."""
    tags = (wanted,) if isinstance(wanted, str) else wanted
    found: list[Any] = []
    for child in element:
        if child.tag in tags:
            found.append(child)
        elif child.tag != within and len(child):
            found.extend(_nearest(child, wanted, within))
    return found
