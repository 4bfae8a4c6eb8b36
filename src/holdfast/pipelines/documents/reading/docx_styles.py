"""What a Word document's paragraphs are, by their styles and their numbering: headings, and items of lists.

The numbers in front of headings and items are not in the text: they are counted here, as Word does.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from holdfast.pipelines.documents.reading.docx_names import Names

LEVELS_MAX = 9
STYLE_DEPTH_MAX = 30
INDENT = "  "
_HEADING_NAME = re.compile(r"(?:heading|titre|überschrift|título|titolo|kop|заголовок|标题)\s*([1-9])", re.I)
_PLACEHOLDER = re.compile(r"%([1-9])")
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"),
          (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip
NUMBER_MAX = 100_000


class Style(NamedTuple):
    outline: int | None
    """The level of a heading, from 0."""
    numbering: tuple[str, int] | None
    """The list that its paragraphs are items of, and their level."""
    is_title: bool = False


class _Level(NamedTuple):
    start: int
    format: str
    text: str


PLAIN = Style(None, None)


def styles_of(root: Any, names: Names) -> dict[str, Style]:
    raw: dict[str, tuple[int | None, tuple[str | None, int | None], bool, str | None]] = {}
    for element in root.iter(names.style):
        style_id = element.get(names.style_id)
        if style_id is None or element.get(names.type, "paragraph") != "paragraph":
            continue
        name = _value(element.find(names.style_name), names) or ""
        properties = element.find(names.properties)
        outline = _outline(properties, names)
        if outline is None and (found := _HEADING_NAME.fullmatch(name)):
            outline = int(found[1]) - 1
        numbering = _numbering(properties, names)
        based_on = _value(element.find(names.based_on), names)
        raw[style_id] = (outline, numbering, name.lower() == "title", based_on)
    return {style_id: _inherited(style_id, raw) for style_id in raw}


def _inherited(
    style_id: str, raw: dict[str, tuple[int | None, tuple[str | None, int | None], bool, str | None]]
) -> Style:
    outline: int | None = None
    number: str | None = None
    level: int | None = None
    at: str | None = style_id
    is_title = raw[style_id][2]
    for _ in range(STYLE_DEPTH_MAX):  # they may go in a circle
        if at is None or at not in raw:
            break
        own_outline, (own_number, own_level), _, at = raw[at]
        outline = own_outline if outline is None else outline
        number = own_number if number is None else number
        level = own_level if level is None else level
    return Style(outline, (number, level or 0) if number not in (None, "0") else None, is_title)


def _value(element: Any, names: Names) -> str | None:
    return None if element is None else element.get(names.value)


def _small_number(text: str | None, most: int) -> int | None:
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 6:
        return None
    return min(int(text), most)


def _outline(properties: Any, names: Names) -> int | None:
    if properties is None:
        return None
    level = _small_number(_value(properties.find(names.outline), names), LEVELS_MAX)
    return None if level == LEVELS_MAX else level  # 9 is body text


def _numbering(properties: Any, names: Names) -> tuple[str | None, int | None]:
    found = None if properties is None else properties.find(names.numbering)
    if found is None:
        return None, None
    level = _small_number(_value(found.find(names.level_of), names), LEVELS_MAX - 1)
    return _value(found.find(names.numbering_id), names), level


def style_of(properties: Any, styles: dict[str, Style], names: Names) -> Style:
    """Of one paragraph: what is said beside it counts before its style."""
    style = styles.get(_value(properties.find(names.style_of), names) or "", PLAIN)
    outline = _outline(properties, names)
    number, level = _numbering(properties, names)
    if outline is None and number is None:
        return style
    numbering = style.numbering
    if number is not None:
        numbering = None if number == "0" else (number, level or 0)
    return Style(style.outline if outline is None else outline, numbering, style.is_title)


class Numbering:
    """Counts through all lists of a document, in its order."""

    def __init__(self, root: Any, names: Names) -> None:
        abstract = {
            element.get(names.abstract_number_id): {
                _small_number(level.get(names.level_of), LEVELS_MAX - 1) or 0: _level(level, names)
                for level in element.iterchildren(names.level)
            }
            for element in (() if root is None else root.iterchildren(names.abstract_number))
        }
        self._levels: dict[str, dict[int, _Level]] = {}
        self._counted_as: dict[str, str] = {}
        for element in () if root is None else root.iterchildren(names.number):
            number = element.get(names.numbering_id)
            base = _value(element.find(names.abstract_number_id), names)
            levels = dict(abstract.get(base, {}))
            overrides = list(element.iterchildren(names.level_override))
            for override in overrides:
                at = _small_number(override.get(names.level_of), LEVELS_MAX - 1) or 0
                own = override.find(names.level)
                if own is not None:
                    levels[at] = _level(own, names)
                start = _small_number(_value(override.find(names.start_override), names), NUMBER_MAX)
                if start is not None and at in levels:
                    levels[at] = levels[at]._replace(start=start)
            self._levels[number] = levels
            # Lists made of one description are counted together, unless they say that they begin anew.
            self._counted_as[number] = number if overrides or base is None else f"/{base}"
        self._counters: dict[str, list[int | None]] = {}

    def marker(self, number: str, level: int) -> str:
        """What stands before the next item: "1.", "a)", "•"."""
        levels = self._levels.get(number)
        if levels is None or level not in levels:
            return "•"
        mine = levels[level]
        if mine.format == "bullet":
            return "•"
        if mine.format == "none":
            return ""
        counters = self._counters.setdefault(self._counted_as[number], [None] * LEVELS_MAX)
        before = counters[level]
        counters[level] = mine.start if before is None else min(before + 1, NUMBER_MAX)
        counters[level + 1 :] = [None] * (LEVELS_MAX - level - 1)

        def counted(found: re.Match[str]) -> str:
            at = int(found[1]) - 1
            shown = levels.get(at, mine)
            count = counters[at]
            return _written(shown.start if count is None else count, shown.format)

        return _PLACEHOLDER.sub(counted, mine.text)


def _level(element: Any, names: Names) -> _Level:
    start = _small_number(_value(element.find(names.level_start), names), NUMBER_MAX)
    return _Level(
        1 if start is None else start,
        _value(element.find(names.level_format), names) or "decimal",
        (_value(element.find(names.level_text), names) or "")[:100],
    )


def _written(number: int, form: str) -> str:
    if form in ("lowerLetter", "upperLetter") and number > 0:
        letter = chr(97 + (number - 1) % 26) * min(1 + (number - 1) // 26, 20)
        return letter.upper() if form == "upperLetter" else letter
    if form in ("lowerRoman", "upperRoman") and 0 < number < 5000:
        written = ""
        for value, letters in _ROMAN:
            count, number = divmod(number, value)
            written += letters * count
        return written.upper() if form == "upperRoman" else written
    if form == "decimalZero":
        return f"{number:02}"
    return str(number)
