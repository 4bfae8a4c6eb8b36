"""Documents made on the spot: good ones of each format, and BROKEN, which has one of each way to be refused.

    pdf(["First page", "Second page"])          docx("Words", heading("Scope"), table([["a", "b"]]))
    xlsx({"Sheet1": [["Name", "Share"], ["North", (0.25, "0.0%")]]})

All of it is written byte by byte or by a small writer: no sample file lies in the tree.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

EPOCH = (2024, 1, 1, 0, 0, 0)

# ── ZIP ──────────────────────────────────────────────────────────────────────────────────────────


def zipped(parts: Mapping[str, str | bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), data, method)
    return target.getvalue()


def with_entries_encrypted(archive: bytes) -> bytes:
    """Each entry is said to be."""
    data = bytearray(archive)
    for signature, flags_at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = data.find(signature)
        while at >= 0:
            data[at + flags_at] |= 1
            at = data.find(signature, at + 4)
    return bytes(data)


def with_entries_overlapping(archive: bytes) -> bytes:
    """The last entry is said to lie where the first one does."""
    data = bytearray(archive)
    at = data.rfind(b"PK\1\2")
    struct.pack_into("<L", data, at + 42, 0)
    return bytes(data)


# ── PDF ──────────────────────────────────────────────────────────────────────────────────────────

IMAGE = "image"
SCAN = "scan: "  # and what is stamped on it
BLANK = ""
_PADDING = bytes.fromhex("28bf4e5e4e758a4164004e56fffa01082e2e00b6d0683e802f0ca9fe6453697a")


def pdf(
    pages: Sequence[str],
    *,
    title: str = "",
    user_password: str | None = None,
    owner_password: str = "owner",
    fields: Mapping[str, str] | None = None,
) -> bytes:
    """Each page's lines, in Helvetica. IMAGE is a page with a picture only, BLANK one with nothing; what
    begins with SCAN is a picture of a whole page, with the rest of the text upon it.
    With `user_password` it is encrypted; with an empty one it opens without being asked for any."""
    objects: dict[int, bytes] = {}
    page_numbers = [10 + 2 * index for index in range(len(pages))]
    kids = " ".join(f"{number} 0 R" for number in page_numbers)
    form = ""
    annotations = ""
    if fields:
        first = 1000
        names = [f"{first + index} 0 R" for index in range(len(fields))]
        form = f" /AcroForm << /Fields [{' '.join(names)}] >>"
        annotations = f" /Annots [{' '.join(names)}]"
        for index, (name, value) in enumerate(fields.items()):
            objects[first + index] = (
                f"<< /Type /Annot /Subtype /Widget /FT /Tx /T ({name}) /V ({value})"
                f" /Rect [50 {100 + 20 * index} 200 {115 + 20 * index}] >>"
            ).encode()
    objects[1] = f"<< /Type /Catalog /Pages 2 0 R{form} >>".encode()
    objects[2] = f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode()
    objects[3] = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
    objects[4] = _stream(
        b"/Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8",
        b"\x80",
    )
    if title:
        objects[5] = f"<< /Title ({title}) >>".encode()
    for number, text in zip(page_numbers, pages, strict=True):
        objects[number] = (
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources <<"
            f" /Font << /F1 3 0 R >> /XObject << /Im1 4 0 R >> >> /Contents {number + 1} 0 R{annotations} >>"
        ).encode()
        annotations = ""
        objects[number + 1] = _stream(b"", _content(text))
    return _pdf_of(objects, user_password, owner_password, has_info=bool(title))


def _content(text: str) -> bytes:
    if text == IMAGE:
        return b"q 100 0 0 100 50 600 cm /Im1 Do Q"
    if text == BLANK:
        return b""
    if text.startswith(SCAN):
        return b"q 595 0 0 842 0 0 cm /Im1 Do Q\n" + _content(text.removeprefix(SCAN))
    shown = []
    for line in text.split("\n"):
        escaped = line.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
        shown.append(b"(" + escaped.encode("cp1252") + b") Tj T*")
    return b"BT /F1 11 Tf 50 800 Td 13 TL\n" + b"\n".join(shown) + b"\nET"


def _stream(entries: bytes, data: bytes) -> bytes:
    return b"<< " + entries + b" /Length %d >>\nstream\n" % len(data) + data + b"\nendstream"


def _pdf_of(
    objects: Mapping[int, bytes], user_password: str | None, owner_password: str, *, has_info: bool
) -> bytes:
    file_id = hashlib.md5(b"document_files").digest()
    trailer = f"/Size {max(objects) + 2} /Root 1 0 R"
    if has_info:
        trailer += " /Info 5 0 R"
    key = b""
    written = dict(objects)
    if user_password is not None:
        key, encryption = _encryption(user_password, owner_password, file_id)
        number = max(objects) + 1
        trailer += f" /Encrypt {number} 0 R"
        written = {each: _encrypted_object(each, data, key) for each, data in objects.items()}
        written[number] = encryption
    result = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    offsets = {}
    for number, data in sorted(written.items()):
        offsets[number] = len(result)
        result += b"%d 0 obj\n" % number + data + b"\nendobj\n"
    table_at = len(result)
    result += b"xref\n0 1\n0000000000 65535 f \n"
    for number, offset in offsets.items():
        result += b"%d 1\n%010d 00000 n \n" % (number, offset)
    shown_id = file_id.hex().encode()
    result += b"trailer\n<< " + trailer.encode() + b" /ID [<" + shown_id + b"> <" + shown_id + b">] >>\n"
    return bytes(result) + b"startxref\n%d\n%%%%EOF\n" % table_at


def _rc4(key: bytes, data: bytes) -> bytes:
    state = list(range(256))
    j = 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    result = bytearray()
    i = j = 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        result.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(result)


def _encryption(user_password: str, owner_password: str, file_id: bytes) -> tuple[bytes, bytes]:
    """Of 40 bits, as PDF 1.1 has it: the key, and the dictionary that tells how it is made."""
    user, owner = ((each.encode() + _PADDING)[:32] for each in (user_password, owner_password))
    owner_entry = _rc4(hashlib.md5(owner).digest()[:5], user)
    permissions = struct.pack("<i", -4)
    key = hashlib.md5(user + owner_entry + permissions + file_id).digest()[:5]
    user_entry = _rc4(key, _PADDING)
    dictionary = f"<< /Filter /Standard /V 1 /R 2 /P -4 /O <{owner_entry.hex()}> /U <{user_entry.hex()}> >>"
    return key, dictionary.encode()


def _encrypted_object(number: int, data: bytes, key: bytes) -> bytes:
    before, begin, rest = data.partition(b"\nstream\n")
    if not begin:
        return data
    own_key = hashlib.md5(key + struct.pack("<I", number)[:3] + b"\0\0").digest()[: len(key) + 5]
    content = rest.removesuffix(b"\nendstream")
    return before + begin + _rc4(own_key, content) + b"\nendstream"


# ── DOCX ─────────────────────────────────────────────────────────────────────────────────────────

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_DOCX_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="xml" ContentType="application/xml"/>'
    '<Override PartName="/word/document.xml" ContentType='
    '"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
)
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_STYLES = (
    f'<w:styles xmlns:w="{W}">'
    '<w:style w:type="paragraph" w:styleId="Normal"><w:name w:val="Normal"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/>'
    '<w:pPr><w:outlineLvl w:val="0"/></w:pPr></w:style>'
    '<w:style w:type="paragraph" w:styleId="Heading2"><w:name w:val="heading 2"/>'
    '<w:basedOn w:val="Heading1"/><w:pPr><w:outlineLvl w:val="1"/></w:pPr></w:style>'
    '<w:style w:styleId="Mine"><w:name w:val="Mine"/><w:basedOn w:val="Heading2"/></w:style>'
    '<w:style w:styleId="Round"><w:name w:val="Round"/><w:basedOn w:val="Round"/></w:style>'
    "</w:styles>"
)
_NUMBERING = (
    f'<w:numbering xmlns:w="{W}"><w:abstractNum w:abstractNumId="0">'
    '<w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl>'
    '<w:lvl w:ilvl="1"><w:start w:val="1"/><w:numFmt w:val="lowerLetter"/><w:lvlText w:val="%1%2)"/></w:lvl>'
    '<w:lvl w:ilvl="2"><w:start w:val="4"/><w:numFmt w:val="upperRoman"/><w:lvlText w:val="%3"/></w:lvl>'
    "</w:abstractNum>"
    '<w:abstractNum w:abstractNumId="1"><w:lvl w:ilvl="0"><w:numFmt w:val="bullet"/>'
    '<w:lvlText w:val="·"/></w:lvl></w:abstractNum>'
    '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
    '<w:num w:numId="2"><w:abstractNumId w:val="1"/></w:num>'
    '<w:num w:numId="3"><w:abstractNumId w:val="0"/>'
    '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="7"/></w:lvlOverride></w:num></w:numbering>'
)


def relations(*others: tuple[str, str, str]) -> str:
    rows = "".join(
        f'<Relationship Id="{each}" Type="{_OFFICE}/{kind}" Target="{target}"/>'
        for each, kind, target in others
    )
    return f'<Relationships xmlns="{_RELATIONS}">{rows}</Relationships>'


def paragraph(text: str, *, style: str = "", number: tuple[int, int] | None = None) -> str:
    properties = f'<w:pStyle w:val="{style}"/>' if style else ""
    if number is not None:
        properties += f'<w:numPr><w:ilvl w:val="{number[1]}"/><w:numId w:val="{number[0]}"/></w:numPr>'
    return f'<w:p><w:pPr>{properties}</w:pPr><w:r><w:t xml:space="preserve">{escape(text)}</w:t></w:r></w:p>'


def heading(text: str, level: int = 1) -> str:
    return paragraph(text, style=f"Heading{level}")


def item(text: str, level: int = 0, number: int = 1) -> str:
    return paragraph(text, number=(number, level))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Cells are text, or XML where they begin with `<`."""
    return (
        "<w:tbl>"
        + "".join(
            "<w:tr>"
            + "".join(f"<w:tc>{cell if cell[:1] == '<' else paragraph(cell)}</w:tc>" for cell in row)
            + "</w:tr>"
            for row in rows
        )
        + "</w:tbl>"
    )


def docx(
    *blocks: str,
    parts: Mapping[str, tuple[str, str]] | None = None,
    title: str = "",
    extra: Mapping[str, bytes] = {},
) -> bytes:
    """Blocks are text, or XML where they begin with `<`. `parts` are others, by their names: the kind of
    relation, and the XML of what is in them."""
    body = "".join(block if block[:1] == "<" else paragraph(block) for block in blocks)
    others = {
        "styles.xml": ("styles", _STYLES),
        "numbering.xml": ("numbering", _NUMBERING),
        **(parts or {}),
    }
    titled = [("rId2", "core-properties", "docProps/core.xml")] if title else []
    package: dict[str, str | bytes] = {
        "[Content_Types].xml": _DOCX_TYPES,
        "_rels/.rels": relations(("rId1", "officeDocument", "word/document.xml"), *titled),
        "word/document.xml": f'<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>',
        "word/_rels/document.xml.rels": relations(
            *((f"r{index}", kind, name) for index, (name, (kind, _)) in enumerate(others.items()))
        ),
        **{f"word/{name}": xml for name, (_, xml) in others.items()},
        **extra,
    }
    if title:
        package["docProps/core.xml"] = (
            '<cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/core-properties"'
            f' xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{escape(title)}</dc:title></cp:coreProperties>'
        )
    return zipped(package)


def story(root: str, *blocks: str) -> str:
    """A header or a footer: `hdr`, `ftr`."""
    return f'<w:{root} xmlns:w="{W}">{"".join(map(paragraph, blocks))}</w:{root}>'


# ── XLSX ─────────────────────────────────────────────────────────────────────────────────────────

S = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
Cell = Any
"""Text, a number, a bool, None for no cell, (number, format), or XML where it begins with `<c`."""
_XLSX_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="xml" ContentType="application/xml"/>'
    '<Override PartName="/xl/workbook.xml" ContentType='
    '"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/></Types>'
)


def column(number: int) -> str:
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


class _Workbook:
    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.formats: dict[str, int] = {}

    def sheet(self, rows: Mapping[int, Sequence[Cell]] | Sequence[Sequence[Cell]]) -> str:
        numbered = rows.items() if isinstance(rows, Mapping) else enumerate(rows, 1)
        written = "".join(
            f'<row r="{number}">{"".join(self._cell(number, at, cell) for at, cell in enumerate(row))}</row>'
            for number, row in numbered
        )
        return f'<worksheet xmlns="{S}"><sheetData>{written}</sheetData></worksheet>'

    def _cell(self, number: int, at: int, cell: Cell) -> str:
        place = f'r="{column(at)}{number}"'
        if cell is None:
            return ""
        if isinstance(cell, tuple):
            style = self.formats.setdefault(cell[1], len(self.formats) + 1)
            return f'<c {place} s="{style}"><v>{cell[0]}</v></c>'
        if isinstance(cell, bool):
            return f'<c {place} t="b"><v>{int(cell)}</v></c>'
        if isinstance(cell, str) and cell.startswith("<c"):
            return cell
        if isinstance(cell, str):
            return f'<c {place} t="s"><v>{self.texts.setdefault(cell, len(self.texts))}</v></c>'
        return f"<c {place}><v>{cell}</v></c>"

    def styles(self) -> str:
        formats = "".join(
            f'<numFmt numFmtId="{163 + number}" formatCode={quoteattr(code)}/>'
            for code, number in self.formats.items()
        )
        cells = "".join(f'<xf numFmtId="{163 + number}"/>' for number in self.formats.values())
        return (
            f'<styleSheet xmlns="{S}"><numFmts>{formats}</numFmts>'
            f'<cellXfs><xf numFmtId="0"/>{cells}</cellXfs></styleSheet>'
        )

    def shared(self) -> str:
        texts = "".join(f'<si><t xml:space="preserve">{escape(text)}</t></si>' for text in self.texts)
        return f'<sst xmlns="{S}">{texts}</sst>'


def xlsx(
    sheets: Mapping[str, Any],
    *,
    is_1904: bool = False,
    hidden: Sequence[str] = (),
    charts: Sequence[str] = (),
    parts: Mapping[str, str | bytes] = {},
) -> bytes:
    """A sheet is its rows, by their numbers or from 1 on, or its XML. `parts` take the place of others."""
    workbook = _Workbook()
    package: dict[str, str | bytes] = {"[Content_Types].xml": _XLSX_TYPES}
    listed, related = "", []
    for number, (name, rows) in enumerate(sheets.items(), 1):
        kind = "chartsheet" if name in charts else "worksheet"
        part = f"{kind}s/sheet{number}.xml"
        package[f"xl/{part}"] = rows if isinstance(rows, str) else workbook.sheet(rows)
        state = ' state="hidden"' if name in hidden else ""
        listed += f'<sheet name={quoteattr(name)} sheetId="{number}"{state} r:id="rId{number}"/>'
        related.append((f"rId{number}", kind, part))
    date_1904 = '<workbookPr date1904="1"/>' if is_1904 else ""
    related += [("rIdS", "styles", "styles.xml"), ("rIdT", "sharedStrings", "sharedStrings.xml")]
    package |= {
        "_rels/.rels": relations(("rId1", "officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": (
            f'<workbook xmlns="{S}" xmlns:r="{_OFFICE}">{date_1904}<sheets>{listed}</sheets></workbook>'
        ),
        "xl/_rels/workbook.xml.rels": relations(*related),
        "xl/styles.xml": workbook.styles(),
        "xl/sharedStrings.xml": workbook.shared(),
    }
    return zipped({**package, **parts})


# ── OLE ──────────────────────────────────────────────────────────────────────────────────────────


def ole(*streams: str) -> bytes:
    """A compound file whose directory names these streams; there is nothing in them."""
    header = bytearray(512)
    header[:8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
    struct.pack_into("<HHHHH", header, 24, 0x3E, 3, 0xFFFE, 9, 6)
    struct.pack_into("<I", header, 44, 1)
    struct.pack_into("<I", header, 48, 1)
    struct.pack_into("<I", header, 56, 4096)
    struct.pack_into("<III", header, 60, 0xFFFFFFFE, 0, 0xFFFFFFFE)
    struct.pack_into("<109I", header, 76, 0, *[0xFFFFFFFF] * 108)
    table = struct.pack("<128I", 0xFFFFFFFD, 0xFFFFFFFE, *[0xFFFFFFFF] * 126)
    directory = b"".join(
        _ole_entry(name, 5 if name == "Root Entry" else 2) for name in ("Root Entry", *streams)
    )
    return bytes(header) + table + directory.ljust(512, b"\0")


def _ole_entry(name: str, kind: int) -> bytes:
    entry = bytearray(128)
    written = (name + "\0").encode("utf-16-le")
    entry[: len(written)] = written
    struct.pack_into("<HBB", entry, 64, len(written), kind, 1)
    return bytes(entry)


# ── Broken ones ──────────────────────────────────────────────────────────────────────────────────

WORDS = "The committee met on Monday and agreed on the budget for the coming year. "
GOOD_PDF = pdf([WORDS, WORDS])
GOOD_DOCX = docx(heading("Minutes"), WORDS * 20)
GOOD_XLSX = xlsx({"Sums": [["Name", "Sum"], ["North", 12], ["South", 30]]})

ENTITY_BOMB = (
    '<?xml version="1.0"?><!DOCTYPE w:document [<!ENTITY a "aaaaaaaaaa">'
    + "".join(
        f'<!ENTITY {name} "{f"&{before};" * 10}">'
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + f']><w:document xmlns:w="{W}"><w:body><w:p><w:r><w:t>&i;</w:t></w:r></w:p></w:body></w:document>'
)


def zip_bomb() -> bytes:
    """70 MB of nothing, in a document of 70 kB."""
    return docx(WORDS, extra={"word/media/image1.bin": bytes(70 * 1024**2)})


def with_part(archive: bytes, name: str, data: str | bytes | None) -> bytes:
    """With another part in its place, or without it."""
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        parts: dict[str, str | bytes] = {
            each: packed.read(each) for each in packed.namelist() if each != name
        }
    return zipped(parts if data is None else {**parts, name: data})


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0\x80")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


BROKEN: dict[str, tuple[str, bytes, str, str]] = {
    "no_bytes": ("nothing.txt", b"", "empty_file", "permanent"),
    "white_space": ("space.txt", b" \r\n\t\n" * 50_000, "empty_file", "permanent"),
    "blank_pdf": ("blank.pdf", pdf([BLANK]), "empty_file", "permanent"),
    "blank_docx": ("blank.docx", docx(), "empty_file", "permanent"),
    "blank_xlsx": ("blank.xlsx", xlsx({"Sheet1": []}), "empty_file", "permanent"),
    "scanned_pdf": ("scan.pdf", pdf([IMAGE, IMAGE]), "no_text", "permanent"),
    "pictures_docx": (
        "pictures.docx",
        docx(extra={"word/media/image1.png": png()}),
        "no_text",
        "permanent",
    ),
    "password_pdf": ("secret.pdf", pdf([WORDS], user_password="secret"), "encrypted_file", "permanent"),
    "password_office": (
        "secret.docx",
        ole("EncryptionInfo", "EncryptedPackage"),
        "encrypted_file",
        "permanent",
    ),
    "password_zip": ("secret.xlsx", with_entries_encrypted(GOOD_XLSX), "encrypted_file", "permanent"),
    "truncated_pdf": ("half.pdf", GOOD_PDF[: len(GOOD_PDF) // 2], "invalid_file", "permanent"),
    "garbage_pdf": (
        "garbage.pdf",
        b"%PDF-1.7\n" + bytes(range(256)) * 8 + b"\n%%EOF",
        "invalid_file",
        "permanent",
    ),
    "truncated_docx": ("half.docx", GOOD_DOCX[: len(GOOD_DOCX) // 2], "invalid_file", "permanent"),
    "truncated_xlsx": ("half.xlsx", GOOD_XLSX[: len(GOOD_XLSX) // 2], "invalid_file", "permanent"),
    "corrupt_docx_xml": (
        "corrupt.docx",
        with_part(GOOD_DOCX, "word/document.xml", f'<w:document xmlns:w="{W}"><w:body><w:p>'),
        "invalid_file",
        "permanent",
    ),
    "corrupt_xlsx_xml": (
        "corrupt.xlsx",
        with_part(
            GOOD_XLSX, "xl/worksheets/sheet1.xml", f'<worksheet xmlns="{S}"><sheetData><row r="1"><c r="A1"'
        ),
        "invalid_file",
        "permanent",
    ),
    "missing_docx_part": (
        "partless.docx",
        with_part(GOOD_DOCX, "word/document.xml", None),
        "invalid_file",
        "permanent",
    ),
    "missing_xlsx_part": (
        "partless.xlsx",
        with_part(GOOD_XLSX, "xl/worksheets/sheet1.xml", None),
        "invalid_file",
        "permanent",
    ),
    "overlapping_zip": ("overlap.docx", with_entries_overlapping(GOOD_DOCX), "invalid_file", "permanent"),
    "entity_bomb": (
        "entities.docx",
        with_part(GOOD_DOCX, "word/document.xml", ENTITY_BOMB),
        "invalid_file",
        "permanent",
    ),
    "zip_bomb": ("bomb.docx", zip_bomb(), "file_too_large", "permanent"),
    "text_named_pdf": ("report.pdf", WORDS.encode(), "invalid_file", "permanent"),
    "zip": ("archive.zip", zipped({"readme.txt": WORDS}), "unsupported_format", "permanent"),
    "zip_named_pdf": ("report.pdf", zipped({"readme.txt": WORDS}), "unsupported_format", "permanent"),
    "open_document": (
        "text.odt",
        zipped({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": "<x/>"}),
        "unsupported_format",
        "permanent",
    ),
    "old_word": ("old.doc", ole("WordDocument"), "unsupported_format", "permanent"),
    "old_excel": ("old.xls", ole("Workbook"), "unsupported_format", "permanent"),
    "rtf": ("letter.rtf", b"{\\rtf1\\ansi Hello}", "unsupported_format", "permanent"),
    "image": ("photo.png", png(), "unsupported_format", "permanent"),
    "binary": ("data.txt", bytes(range(256)) * 16, "unsupported_format", "permanent"),
}
"""By a name for the test: the file's name, its bytes, and the error type and category it is refused with."""
