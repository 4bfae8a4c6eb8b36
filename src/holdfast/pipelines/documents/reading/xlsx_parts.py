"""The parts of an XLSX beside its sheets: which sheets there are, how numbers are shown, the shared texts.

The shared texts and the sheets are large and simple: they are taken apart by patterns, a piece at a time,
which is several times as fast as a parser. What a pattern does not fit, a parser reads.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

from holdfast.core.sizes import shown_bytes
from holdfast.pipelines.documents.reading.clean_text import clean, one_line
from holdfast.pipelines.documents.reading.number_formats import BUILT_IN, Shown, shown_by
from holdfast.pipelines.documents.reading.packed import HEAD_BYTES, Package, refuse_type_definition
from holdfast.pipelines.documents.reading.refusals import invalid, shown, unpacks_to_too_much

PIECE_BYTES = 256 * 1024
PIECE_CHARS_MAX = 64 * 1024**2
TEXTS_BYTES_OF_EACH = 50
FORMATS_MAX = 100_000

_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_DECLARED = re.compile(rb"<\?xml[^>]*encoding\s*=\s*[\"']([A-Za-z0-9._-]+)")
_PHONETIC = re.compile(r"<(?:\w+:)?rPh\b.*?</(?:\w+:)?rPh>", re.DOTALL)
_TEXT = re.compile(r"<(?:\w+:)?t(?:\s[^>]*)?>([^<]*)</(?:\w+:)?t>")
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_SHARED = re.compile(
    r"<(?:\w+:)?si\s*(?:/>|>\s*(?:<(?:\w+:)?t(?:\s[^>]*[^/])?>([^<]*)</(?:\w+:)?t>\s*</(?:\w+:)?si>"
    r"|(.*?)</(?:\w+:)?si>))",
    re.DOTALL,
)
# What hardly any of them is not: then there is nothing between the first one and the last one but these.
_PLAIN_SHARED = re.compile(r"<si><t>([^<]*)</t></si>")
_PLAIN_SHARED_CHARS = len("<si><t></t></si>")
_SPACE_BEYOND_ASCII = re.compile(r"[^\S\x00-\x7f]")
_ASCII = bytes(range(128))


class Sheet(NamedTuple):
    name: str
    part: str
    kind: str
    """worksheet, chartsheet, dialogsheet, xlMacrosheet."""
    is_hidden: bool


def local_name(element: Any) -> str:
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def sheets_of(package: Package, workbook: Any, part: str) -> list[Sheet]:
    relations = package.relations(part)
    sheets = []
    for element in workbook.iter("{*}sheet"):
        relation = next((value for name, value in element.items() if name.endswith("}id")), "")
        kind, target = relations.get(relation, ("", ""))
        name = one_line(element.get("name", ""))[:255]
        sheets.append(Sheet(name, target, kind, element.get("state", "visible") != "visible"))
    return sheets


def is_1904(workbook: Any) -> bool:
    found = next(workbook.iter("{*}workbookPr"), None)
    return found is not None and found.get("date1904", "0") in ("1", "true", "on")


def number_styles(root: Any, is_1904: bool) -> list[Shown | None]:
    """By the number that cells have in `s`; None where a number is shown as it is."""
    codes: dict[int, str] = dict(BUILT_IN)
    for element in root.iter("{*}numFmt"):
        number = _number(element.get("numFmtId"))
        if number is not None:
            codes[number] = element.get("formatCode", "")
    by_code: dict[str, Shown | None] = {}
    styles: list[Shown | None] = []
    for group in root.iter("{*}cellXfs"):
        for element in group.iterchildren("{*}xf"):
            code = codes.get(_number(element.get("numFmtId")) or 0, "")
            if code not in by_code:
                by_code[code] = shown_by(code, is_1904)
            styles.append(by_code[code])
            if len(styles) >= FORMATS_MAX:
                return styles
    return styles


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 9 else None


# Texts


def shared_texts(package: Package, part: str) -> dict[str, str]:
    """By their numbers as cells have them, which are text there."""
    texts: list[str] = []
    with package.opened(part) as file:
        for piece, _ in pieces(file, "si>", part, package.shown):
            texts += _texts_in(piece)
    return dict(zip(map(str, range(len(texts))), texts, strict=True))


def _texts_in(piece: str) -> Sequence[str]:
    plain: list[str] = _PLAIN_SHARED.findall(piece)
    begin, end = piece.find("<si>"), piece.rfind("</si>") + len("</si>")
    if (
        end - begin == sum(map(len, plain)) + len(plain) * _PLAIN_SHARED_CHARS
        and _SHARED.search(piece, 0, begin) is None
        and _SHARED.search(piece, end) is None
    ):
        return TEXT.many(plain)
    return [rich_text(rich) if rich else text_of(plain) for plain, rich in _SHARED.findall(piece)]


def rich_text(xml: str) -> str:
    """Without how it is pronounced, which is beside it in Japanese workbooks."""
    if "rPh" in xml:
        xml = _PHONETIC.sub("", xml)
    return text_of("".join(_TEXT.findall(xml)))


def text_of(raw: str) -> str:
    """On one line: it is to stand in a row."""
    text = raw
    if "&" in text:
        text = clean(html.unescape(text))
    if "_x" in text:
        text = clean(_ESCAPED.sub(lambda found: chr(int(found[1], 16)), text))
    return (
        " ".join(text.split()) if not text.isascii() or " " in text or "\n" in text or "\t" in text else text
    )


def _texts_of(raws: Sequence[str]) -> Sequence[str]:
    """Most texts are as they are to be shown. Asked of all at once it takes no time."""
    joined = "".join(raws)
    beyond = "" if joined.isascii() else joined.encode().translate(None, _ASCII).decode()
    if "\n" in joined or "\t" in joined or "  " in joined or _SPACE_BEYOND_ASCII.search(beyond):
        return list(map(text_of, raws))
    stripped = list(map(str.strip, raws))
    if "&" in joined or ("_" in joined and "_x" in joined):
        return [text_of(raw) if "&" in raw or "_x" in raw else raw for raw in stripped]
    return stripped


TEXT = Shown(text_of, _texts_of)


# Pieces of XML


def pieces(file: IO[bytes], name: str, part: str, filename_shown: str) -> Iterator[tuple[str, int]]:
    """The XML, cut behind ends of an element (`name` ends with its bracket), and how many bytes of it were
    read by then."""
    head = file.read(PIECE_BYTES)
    refuse_type_definition(head[:HEAD_BYTES], part, filename_shown)
    decoder = _decoder(head, part, filename_shown)
    end_of_element = re.compile(f"</(?:\\w+:)?{name}")
    rest, data, at = "", head, len(head)
    while True:
        text = rest + decoder.decode(data, final=not data)
        last = _last_end(text, end_of_element, name)
        if not data:
            yield _simple(text), at
            return
        if last:
            yield _simple(text[:last]), at
        rest = text[last:]
        if len(rest) > PIECE_CHARS_MAX:
            raise unpacks_to_too_much(
                f"Part {shown(part)} of {filename_shown} has {shown_bytes(len(rest))} in one row or text."
            )
        data = file.read(PIECE_BYTES)
        at += len(data)


def _last_end(text: str, end_of_element: re.Pattern[str], name: str) -> int:
    """Behind the last end of the element, 0 where there is none."""
    at = len(text)
    while (at := text.rfind(name, 0, at)) >= 0:
        begin = text.rfind("</", max(at - 40, 0), at)
        found = end_of_element.match(text, begin) if begin >= 0 else None
        if found is not None and found.end() == at + len(name):
            return found.end()
    return 0


def _decoder(head: bytes, part: str, filename_shown: str) -> codecs.IncrementalDecoder:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    else:
        found = _DECLARED.search(head[:200])
        encoding = found[1].decode("ascii").lower() if found else "utf-8"
        encoding = "utf-8-sig" if encoding in ("utf-8", "utf8", "us-ascii") else encoding
    try:
        return codecs.getincrementaldecoder(encoding)("replace")
    except LookupError as error:
        raise invalid(f"Part {shown(part)} of {filename_shown} is in the encoding {encoding!r}.") from error


def _simple(xml: str) -> str:
    """Without control characters, comments and CDATA."""
    xml = clean(xml)
    if "!" in xml and "<!" in xml:  # two characters are looked for much longer than one
        xml = _CDATA.sub(lambda found: html.escape(found[1], quote=False), _COMMENT.sub("", xml))
    return xml
