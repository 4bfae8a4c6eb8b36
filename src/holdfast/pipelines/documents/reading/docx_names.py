"""The names of WordprocessingML's elements, in either of its two namespaces."""

from __future__ import annotations

from functools import lru_cache

TRANSITIONAL = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STRICT = "http://purl.oclc.org/ooxml/wordprocessingml/main"
_COMPATIBILITY = "http://schemas.openxmlformats.org/markup-compatibility/2006"

ALTERNATIVES = f"{{{_COMPATIBILITY}}}AlternateContent"
CHOICE = f"{{{_COMPATIBILITY}}}Choice"
FALLBACK = f"{{{_COMPATIBILITY}}}Fallback"
MATH_TEXTS = (
    "{http://schemas.openxmlformats.org/officeDocument/2006/math}t",
    "{http://purl.oclc.org/ooxml/officeDocument/math}t",
)


class Names:
    """Made for one namespace."""

    def __init__(self, namespace: str) -> None:
        def name(local: str) -> str:
            return f"{{{namespace}}}{local}"

        self.body = name("body")
        self.paragraph = name("p")
        self.table = name("tbl")
        self.row = name("tr")
        self.cell = name("tc")
        self.text = name("t")
        self.tab = name("tab")
        self.line_break = name("br")
        self.carriage_return = name("cr")
        self.no_break_hyphen = name("noBreakHyphen")
        self.symbol = name("sym")
        self.run = name("r")
        self.text_box = name("txbxContent")
        self.moved_away = name("moveFrom")
        self.properties = name("pPr")
        self.row_properties = name("trPr")
        self.deleted = name("del")
        self.header_row = name("tblHeader")
        self.style = name("style")
        self.style_of = name("pStyle")
        self.style_id = name("styleId")
        self.style_name = name("name")
        self.based_on = name("basedOn")
        self.outline = name("outlineLvl")
        self.numbering = name("numPr")
        self.numbering_id = name("numId")
        self.level_of = name("ilvl")
        self.value = name("val")
        self.type = name("type")
        self.id = name("id")
        self.char = name("char")
        self.number = name("num")
        self.abstract_number = name("abstractNum")
        self.abstract_number_id = name("abstractNumId")
        self.level = name("lvl")
        self.level_start = name("start")
        self.level_format = name("numFmt")
        self.level_text = name("lvlText")
        self.level_override = name("lvlOverride")
        self.start_override = name("startOverride")
        self.note_reference = name("footnoteReference")
        self.endnote_reference = name("endnoteReference")
        self.texts = (
            *(self.text, self.tab, self.line_break, self.carriage_return, self.no_break_hyphen),
            *(self.symbol, self.text_box, self.moved_away, ALTERNATIVES, *MATH_TEXTS),
        )
        """What a paragraph's text is made of, and what makes it less simple."""


@lru_cache(4)
def names_in(namespace: str) -> Names:
    return Names(namespace)
