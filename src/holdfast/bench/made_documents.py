"""Documents made on the spot for the benchmark: text of several topics, and files of it in each format.

    Prose(seed)      sentences about a topic of its own: common words, and some that few others have
    write_document   a PDF, a Word document, a workbook or plain text of so many pages, from a Prose

The bytes are the same each time. The files are written as the usual programs write them: the text of a PDF
in pieces between which letters are moved, the paragraphs of Word in runs with their fonts, the cells of Excel
with styles, dates, formulas and shared texts.
"""

from __future__ import annotations

import random
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from xml.sax.saxutils import escape

Kind: TypeAlias = Literal["pdf", "docx", "xlsx", "txt"]

PAGE_LINES = 44
LINE_CHARS = 84
PAGE_WORDS = 520
PAGE_ROWS = 50
EPOCH = (2024, 1, 1, 0, 0, 0)

_COMMON_WORDS = (
    "the of and to in a is that for it as was with be by on not he this are or his from at which but have an"
    " had they you were their one all we can her has there been if more when will would who so no out up into"
    " them than only other time new some could these two may then do first any my now such like our over"
)
_SUBJECT_WORDS = (
    "account agreement airport annual auction bakery balance bearing bridge budget canal capital cargo"
    " cathedral charter claim clause climate clinic coal committee compass concert contract copper court"
    " craft crop currency customs dairy delivery deposit diesel drainage election engine estate exhibit"
    " factory ferry festival fishery flood forecast forest foundry freight fuel garden glacier grain granite"
    " harbour harvest heating herring hospital hotel housing import income insurance inventory invoice iron"
    " island journal jury kitchen laboratory land laundry lease ledger library licence lighthouse loan lumber"
    " machine manual marble market medicine merger mill mineral mortgage museum newspaper notice nursery oil"
    " orchard orchestra ordinance oven painting paper parish patent patient payment pension permit pharmacy"
    " pipeline plaster plumbing poetry policy pottery poultry premium printing prison probate pump quarry"
    " railway rainfall receipt refund rent reservoir river roof sailor salary salmon satellite school sewer"
    " sheep shipment silver snow soil stadium statute steel stone storage strike subsidy sugar survey tariff"
    " tax telescope tenant textile theatre timber tobacco traffic treaty tunnel turbine union vaccine valley"
    " vehicle verdict vessel village vineyard voyage wages warehouse warranty water weaver welfare wheat"
    " window winter wool workshop yield"
)
_NAME_BEGINS = (
    "Ash Bar Birk Brad Brook Carl Clay Cold Dal Den East Elm Fair Farn Glen Hal Hart Holm Kel Lang Lin Mar"
    " Mill Nor Oak Pen Raven Red Rock Rose Sand Shel Stan Stone Thorn Wal West Whit Wil Wood"
)
_NAME_ENDS = (
    "borough bridge burn bury by cliff combe cross dale den field ford gate ham haven hill holm hurst ington"
    " land leigh ley low minster mouth ness port shaw stead stoke ton well wick worth"
)
_COMMON, _SUBJECTS = _COMMON_WORDS.split(), _SUBJECT_WORDS.split()
_BEGINS, _ENDS = _NAME_BEGINS.split(), _NAME_ENDS.split()
_SIGNS = ("–", "§", "€", "é", "ü")


class Prose:
    """`words` are those that its topic has beside the common ones; `names` are of places."""

    def __init__(self, seed: int) -> None:
        self._chosen = random.Random(seed)
        self.words = self._chosen.sample(_SUBJECTS, 24)
        self.names = [self._chosen.choice(_BEGINS) + self._chosen.choice(_ENDS) for _ in range(6)]
        self._vocabulary = [*_COMMON, *self.words * 3, *self.names]

    def sentence(self) -> str:
        chosen = self._chosen
        words = chosen.choices(self._vocabulary, k=chosen.randint(8, 24))
        if chosen.random() < 0.25:
            words.insert(4, f"{chosen.randrange(1, 100_000):,}")
        if chosen.random() < 0.1:
            words.insert(5, f"{chosen.choice(_SIGNS)}{chosen.randrange(1, 400)}")
        if len(words) > 14:
            words[7] += ","
        words[0] = words[0].capitalize()
        return " ".join(words) + "."

    def paragraph(self, sentences: int | None = None) -> str:
        count = sentences or self._chosen.randint(3, 7)
        return " ".join([self.sentence() for _ in range(count)])

    def title(self) -> str:
        return f"{self._chosen.choice(self.names)} {' '.join(self._chosen.choices(self.words, k=2))}"

    def number(self, below: int) -> int:
        return self._chosen.randrange(below)

    def word(self) -> str:
        return self._chosen.choice(self.words)

    def name(self) -> str:
        return self._chosen.choice(self.names)


@dataclass(frozen=True, slots=True)
class MadeDocument:
    """`pieces` is what a reader should find: words; of a workbook, cells."""

    path: Path
    kind: Kind
    pages: int
    pieces: int


def write_document(path: Path, kind: Kind, pages: int, seed: int) -> MadeDocument:
    """A page is what is printed on one: about 3,000 characters of text, or 50 rows."""
    writers = {"pdf": _write_pdf, "docx": _write_docx, "xlsx": _write_xlsx, "txt": _write_txt}
    return MadeDocument(path, kind, pages, writers[kind](path, pages, Prose(seed)))


def _count(text: str) -> int:
    return len(text.split())


# PDF


def _write_pdf(path: Path, pages: int, prose: Prose) -> int:
    objects: dict[int, bytes] = {}
    kids, words = [], 0
    for number in range(1, pages + 1):
        lines = _page_lines(prose, number)
        words += sum(map(_count, lines))
        page = 8 + 2 * number
        kids.append(f"{page} 0 R")
        objects[page] = (
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >>"
            f" /Contents {page + 1} 0 R >>"
        ).encode()
        content = zlib.compress(_content(lines))
        objects[page + 1] = b"<< /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream" % (
            len(content),
            content,
        )
    objects[1] = b"<< /Type /Catalog /Pages 2 0 R >>"
    objects[2] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {pages} >>".encode()
    objects[3] = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
    path.write_bytes(_pdf_of(objects))
    return words


def _page_lines(prose: Prose, number: int) -> list[str]:
    """A running head, paragraphs broken into lines, and the page's number."""
    lines = [f"{prose.names[0]} {prose.words[0]} report", ""]
    while len(lines) < PAGE_LINES:
        line = ""
        for word in prose.paragraph().split():
            if len(line) + len(word) >= LINE_CHARS:
                lines.append(line)
                line = ""
            line += f" {word}" if line else word
        lines += [line, ""]
    return [*lines[:PAGE_LINES], "", f"Page {number}"]


def _content(lines: list[str]) -> bytes:
    """Each line in pieces, between which letters are moved by a little."""
    shown = [b"BT /F1 10 Tf 50 790 Td 15.5 TL"]
    for line in lines:
        if line:
            escaped = line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)").encode("cp1252")
            pieces = [escaped[at : at + 11] for at in range(0, len(escaped), 11)]
            shown.append(b"[(" + b")-8(".join(pieces) + b")] TJ")
        shown.append(b"T*")
    return b"\n".join([*shown, b"ET"])


def _pdf_of(objects: Mapping[int, bytes]) -> bytes:
    data = bytearray(b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n")
    table = b"xref\n0 1\n0000000000 65535 f \n"
    for number, body in sorted(objects.items()):
        table += b"%d 1\n%010d 00000 n \n" % (number, len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    end = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (max(objects) + 1, len(data))
    return bytes(data) + table + end


# Word

_W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_FONT = '<w:rFonts w:ascii="Calibri" w:hAnsi="Calibri" w:cs="Calibri"/><w:sz w:val="22"/><w:szCs w:val="22"/>'
_STYLES = (
    f'<w:styles xmlns:w="{_W}"><w:style w:type="paragraph" w:default="1" w:styleId="Normal">'
    '<w:name w:val="Normal"/></w:style>'
    + "".join(
        f'<w:style w:type="paragraph" w:styleId="Heading{level}"><w:name w:val="heading {level}"/>'
        f'<w:basedOn w:val="Normal"/><w:pPr><w:outlineLvl w:val="{level - 1}"/></w:pPr></w:style>'
        for level in (1, 2)
    )
    + "</w:styles>"
)
_NUMBERING = (
    f'<w:numbering xmlns:w="{_W}"><w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0">'
    '<w:numFmt w:val="bullet"/><w:lvlText w:val="·"/></w:lvl></w:abstractNum>'
    '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num></w:numbering>'
)


def _write_docx(path: Path, pages: int, prose: Prose) -> int:
    body: list[str] = []
    words = 0
    section = 0
    while words < pages * PAGE_WORDS:
        section += 1
        blocks = [(prose.title(), _properties(f"Heading{1 if section % 4 == 1 else 2}"))]
        blocks += [(prose.paragraph(), _properties()) for _ in range(3)]
        blocks += [(prose.sentence(), _properties(is_item=True)) for _ in range(3)]
        for text, properties in blocks:
            body.append(_paragraph(text, properties))
            words += _count(text)
        if section % 4 == 0:
            rows = [[prose.title(), prose.name(), prose.word(), f"{prose.number(9_999)}"] for _ in range(6)]
            cells = "".join(f"<w:tr>{''.join(map(_cell, row))}</w:tr>" for row in rows)
            body.append(f"<w:tbl><w:tblPr/><w:tblGrid>{'<w:gridCol/>' * 4}</w:tblGrid>{cells}</w:tbl>")
            words += sum(_count(cell) for row in rows for cell in row)
    document = f'<w:document xmlns:w="{_W}"><w:body>{"".join(body)}<w:sectPr/></w:body></w:document>'
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml"
    parts = {"document": "document.main", "styles": "styles", "numbering": "numbering"}
    _write_package(
        path,
        "word/document.xml",
        {"styles": "styles.xml", "numbering": "numbering.xml"},
        {f"word/{name}.xml": f"{kind}.{type_}+xml" for name, type_ in parts.items()},
        {"word/document.xml": document, "word/styles.xml": _STYLES, "word/numbering.xml": _NUMBERING},
    )
    return words


def _properties(style: str = "", *, is_item: bool = False) -> str:
    told = f'<w:pStyle w:val="{style}"/>' if style else ""
    told += '<w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr>' if is_item else ""
    return f'<w:pPr>{told}<w:spacing w:after="120"/><w:jc w:val="both"/><w:rPr>{_FONT}</w:rPr></w:pPr>'


def _paragraph(text: str, properties: str) -> str:
    """In runs, as it becomes while somebody edits it."""
    at = text.find(" ", len(text) // 2) if len(text) > 60 else -1
    pieces = [text] if at < 0 else [text[:at], text[at:]]
    runs = "".join(
        f'<w:r w:rsidRPr="00A4{number:04X}"><w:rPr>{_FONT}<w:lang w:val="en-GB"/></w:rPr>'
        f'<w:t xml:space="preserve">{escape(piece)}</w:t></w:r>'
        for number, piece in enumerate(pieces)
    )
    return f'<w:p w:rsidR="00A41B2C" w:rsidRDefault="00A41B2C" w:rsidP="00C31D0E">{properties}{runs}</w:p>'


def _cell(text: str) -> str:
    return f'<w:tc><w:tcPr><w:tcW w:w="2254" w:type="dxa"/></w:tcPr>{_paragraph(text, _properties())}</w:tc>'


# Excel

_S = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_HEADER = ("Number", "Date", "Place", "Item", "Quantity", "Price", "Amount", "Remark")
_SHEET_STYLES = (
    f'<styleSheet xmlns="{_S}"><numFmts count="1"><numFmt numFmtId="164" formatCode="#,##0.00"/></numFmts>'
    '<fonts count="1"><font/></fonts><fills count="1"><fill/></fills><borders count="1"><border/></borders>'
    '<cellXfs count="3"><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="164"/></cellXfs></styleSheet>'
)


def _write_xlsx(path: Path, pages: int, prose: Prose) -> int:
    texts: dict[str, int] = {}
    first = max(pages * PAGE_ROWS * 4 // 5, 1)
    sheets = [_sheet(prose, count, texts) for count in (first, max(pages * PAGE_ROWS - first, 1))]
    shared = "".join(f"<si><t>{escape(text)}</t></si>" for text in texts)
    listed = "".join(f'<sheet name="Sheet{n}" sheetId="{n}" r:id="r{n}"/>' for n in (1, 2))
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    names = {
        "xl/workbook.xml": "sheet.main",
        "xl/styles.xml": "styles",
        "xl/sharedStrings.xml": "sharedStrings",
    }
    names |= {f"xl/worksheets/sheet{n}.xml": "worksheet" for n in (1, 2)}
    _write_package(
        path,
        "xl/workbook.xml",
        {
            "r1 worksheet": "worksheets/sheet1.xml",
            "r2 worksheet": "worksheets/sheet2.xml",
            "styles": "styles.xml",
            "sharedStrings": "sharedStrings.xml",
        },
        {name: f"{kind}.{type_}+xml" for name, type_ in names.items()},
        {
            "xl/workbook.xml": (
                f'<workbook xmlns="{_S}" xmlns:r="{_OFFICE}"><sheets>{listed}</sheets></workbook>'
            ),
            **{f"xl/worksheets/sheet{n}.xml": sheet for n, (sheet, _) in enumerate(sheets, 1)},
            "xl/styles.xml": _SHEET_STYLES,
            "xl/sharedStrings.xml": f'<sst xmlns="{_S}">{shared}</sst>',
        },
    )
    return sum(cells for _, cells in sheets)


def _sheet(prose: Prose, rows: int, texts: dict[str, int]) -> tuple[str, int]:
    def shared(text: str) -> str:
        return str(texts.setdefault(text, len(texts)))

    written = [_row(1, [("s", shared(text), "") for text in _HEADER])]
    for number in range(2, rows + 2):
        quantity, price = prose.number(400) + 1, (prose.number(90_000) + 1) / 100
        cells = [
            ("", str(number), ""),
            ("1", str(44_000 + prose.number(2_000)), ""),
            ("s", shared(prose.name()), ""),
            ("s", shared(f"{prose.word()} {prose.word()}"), ""),
            ("", str(quantity), ""),
            ("2", repr(price), ""),
            ("2", repr(quantity * price), f"E{number}*F{number}"),
            ("s", shared(prose.sentence()), ""),
        ]
        written.append(_row(number, cells))
    sheet = (
        f'<worksheet xmlns="{_S}"><dimension ref="A1:H{rows + 1}"/>'
        f'<sheetData>{"".join(written)}</sheetData><pageMargins left="0.7" right="0.7"/></worksheet>'
    )
    return sheet, (rows + 1) * len(_HEADER)


def _row(number: int, cells: list[tuple[str, str, str]]) -> str:
    """Of each cell its style, or `s` for a shared text; its value; its formula."""
    told = "".join(
        f'<c r="{column}{number}"{_style(style)}>{formula and f"<f>{formula}</f>"}<v>{value}</v></c>'
        for column, (style, value, formula) in zip("ABCDEFGH", cells, strict=True)
    )
    return f'<row r="{number}" spans="1:8">{told}</row>'


def _style(style: str) -> str:
    if style == "s":
        return ' t="s"'
    return f' s="{style}"' if style else ""


# Both


def _write_package(
    path: Path, main: str, relations: Mapping[str, str], types: Mapping[str, str], parts: Mapping[str, str]
) -> None:
    """`relations` are of the main part, by their kinds, before which an id may stand."""
    folder, _, name = main.rpartition("/")
    overrides = "".join(
        f'<Override PartName="/{part}" ContentType="{type_}"/>' for part, type_ in types.items()
    )
    related = [(*reversed(kind.split()), target) for kind, target in relations.items()]
    listed = "".join(
        f'<Relationship Id="{more[0] if len(more) > 1 else f"rel{number}"}" Type="{_OFFICE}/{kind}"'
        f' Target="{more[-1]}"/>'
        for number, (kind, *more) in enumerate(related)
    )
    package = {
        "[Content_Types].xml": (
            f'<Types xmlns="{_TYPES}"><Default Extension="rels" ContentType='
            '"application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Default Extension="xml" ContentType="application/xml"/>{overrides}</Types>'
        ),
        "_rels/.rels": (
            f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="rId1" Type="{_OFFICE}/officeDocument"'
            f' Target="{main}"/></Relationships>'
        ),
        f"{folder}/_rels/{name}.rels": f'<Relationships xmlns="{_RELATIONS}">{listed}</Relationships>',
        **parts,
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, xml in package.items():
            declared = f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n{xml}'
            archive.writestr(zipfile.ZipInfo(part, EPOCH), declared, zipfile.ZIP_DEFLATED)


# Text


def _write_txt(path: Path, pages: int, prose: Prose) -> int:
    paragraphs: list[str] = []
    words = 0
    while words < pages * PAGE_WORDS:
        paragraphs.append(prose.paragraph())
        words += _count(paragraphs[-1])
    path.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
    return words
