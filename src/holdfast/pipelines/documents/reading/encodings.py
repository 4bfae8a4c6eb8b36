"""What the bytes of a text mean: whether they are text at all, and in which encoding.

A byte order mark is believed; then UTF-8 where all of the file is; then UTF-16 without its mark, which has a
zero in every second byte. The rest is guessed: by the letters that languages in Latin have
(`latin_letters.py`), or by how frequent its bytes are; and what is left is cp1252, as most of such files are.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import NamedTuple

from holdfast.pipelines.documents.reading.latin_letters import CODECS, explained

SAMPLE_BYTES = 64 * 1024
BLOCK_BYTES = 1024**2
CONTROL_SHARE_MAX = 0.01
BROKEN_SHARE_MAX = 0.02
"""Of the characters beyond ASCII in what is UTF-8 but for a few bytes."""
EXPLAINED_SHARE_MIN = 0.9
"""Of the letters beyond ASCII, for an encoding of Latin letters to be taken."""
FEW_LETTERS = 24
"""With fewer letters beyond ASCII than this, their frequencies say nothing."""

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Tab, line ends, vertical tab, form feed, backspace and escape occur in texts.
_CONTROLS = bytes(sorted({*range(0x20), 0x7F} - {8, 9, 10, 11, 12, 13, 27}))
_UNDEFINED_IN_CP1252 = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")


# Of those that charset-normalizer knows the ones that texts are in.
_OTHER_THAN_LATIN = [
    *(
        "cp1251",
        "koi8_r",
        "koi8_u",
        "iso8859_5",
        "cp866",
        "mac_cyrillic",
        "cp1253",
        "iso8859_7",
        "cp1255",
        "cp1256",
    ),
    *("cp1258", "iso8859_8", "iso8859_6", "cp874", "cp932", "euc_jp", "gb18030", "big5", "cp949", "johab"),
]
# Only seven bits, and so ASCII to whoever does not know it.
_JAPANESE_BY_ESCAPES = re.compile(rb"\x1b\$[@B]|\x1b\(J")


class Encoding(NamedTuple):
    codec: str
    shown: str
    is_guess: bool = False
    """And not one that is most likely anyway."""


def mark_of(head: bytes) -> str | None:
    return next((codec for mark, codec in _MARKS if head.startswith(mark)), None)


def is_text(head: bytes) -> bool:
    """Of the beginning of a file."""
    codec = mark_of(head) or _utf_16_without_mark(head)
    if codec is not None:
        text = head.decode(codec, "replace")[:-1]
        return _share(text.count("\ufffd") + sum(map(text.count, map(chr, _CONTROLS))), text) <= 0.05
    if b"\0" in head:
        # A few are a fault in a text, many are a number.
        return head.count(0) * 1000 < len(head) and _is_utf_8(head)
    return _share(len(head) - len(head.translate(None, _CONTROLS)), head) <= CONTROL_SHARE_MAX


def encoding_of(path: Path) -> Encoding:
    """Of all of the file, which is read once for it."""
    with path.open("rb") as file:
        head = file.read(SAMPLE_BYTES)
        if codec := mark_of(head):
            return Encoding(codec, codec.removesuffix("-sig"))
        if codec := _utf_16_without_mark(head):
            return Encoding(codec, "utf-16")
        file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8")()
        at = 0
        is_ascii = True
        try:
            while block := file.read(BLOCK_BYTES):
                if not (is_ascii and block.isascii()):
                    is_ascii = False
                    decoder.decode(block)
                at += len(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            file.seek(max(at - SAMPLE_BYTES // 2, 0))
            sample = head + file.read(SAMPLE_BYTES * 4) if at else file.read(SAMPLE_BYTES * 4)
            return _guessed(_with_strange_bytes(sample))
    if is_ascii and _JAPANESE_BY_ESCAPES.search(head):
        return Encoding("iso2022_jp", "iso-2022-jp")
    return Encoding("utf-8", "utf-8")


def _with_strange_bytes(sample: bytes) -> bytes:
    """The part of the sample around the first bytes that are not ASCII: in a long file they may be rare."""
    found = re.search(rb"[\x80-\xff]", sample)
    begin = max((found.start() if found else 0) - SAMPLE_BYTES // 4, 0)
    return sample[begin : begin + SAMPLE_BYTES]


def _guessed(sample: bytes) -> Encoding:
    text = sample.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    beyond = len(text) - len(text.encode("ascii", "ignore"))
    if broken <= 1 + beyond * BROKEN_SHARE_MAX and beyond > 4 * broken:
        return Encoding("utf-8", "utf-8")
    latin = explained(sample)
    if latin is not None and latin.share >= EXPLAINED_SHARE_MIN:
        return _guess(latin.codec)
    letters = len(sample) - len(sample.decode("ascii", "ignore"))
    if letters < FEW_LETTERS and not _UNDEFINED_IN_CP1252.search(sample):
        return _guess("cp1252")
    from charset_normalizer import from_bytes

    best = from_bytes(sample, cp_isolation=[*_OTHER_THAN_LATIN, *CODECS]).best()
    return _guess("cp1252" if best is None else best.encoding)


def _guess(codec: str) -> Encoding:
    return Encoding(codec, codec.replace("_", "-"), is_guess=codec != "cp1252")


def _utf_16_without_mark(head: bytes) -> str | None:
    """Where the languages of Europe are written in it, every second byte is nearly always zero."""
    if len(head) < 4 or b"\0" not in head:
        return None
    even, odd = head[0::2].count(0), head[1::2].count(0)
    pairs = len(head) // 2
    for zeros, others, codec in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
        if zeros > pairs * 0.4 and others * 50 < pairs:
            try:
                head[: pairs * 2].decode(codec)
            except UnicodeDecodeError as error:
                if error.start < pairs * 2 - 4:
                    return None
            return codec
    return None


def _is_utf_8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _share(count: int, of: bytes | str) -> float:
    return count / max(len(of), 1)
