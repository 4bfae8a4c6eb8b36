"""What the bytes of a text mean: whether they are text at all, and in which encoding.

A byte order mark is believed; then UTF-8 where all of the file is; then UTF-16 without its mark, which has a
zero in every second byte; then what the frequencies of the bytes look like; and what is left is cp1252, as
most of such files are.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import NamedTuple

SAMPLE_BYTES = 64 * 1024
BLOCK_BYTES = 1024**2
CONTROL_SHARE_MAX = 0.01
BROKEN_SHARE_MAX = 0.02
"""Of the characters beyond ASCII in what is UTF-8 but for a few bytes."""
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


class Encoding(NamedTuple):
    codec: str
    shown: str


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
    letters = len(sample) - len(sample.decode("ascii", "ignore"))
    may_be_western = not _UNDEFINED_IN_CP1252.search(sample)
    if letters < FEW_LETTERS and may_be_western:
        return Encoding("cp1252", "cp1252")
    from charset_normalizer import from_bytes

    best = from_bytes(sample, cp_exclusion=["utf_7", "cp037", "cp273", "cp500", "cp1026", "cp1140"]).best()
    if best is None or best.encoding == "ascii":
        return Encoding("cp1252", "cp1252")
    if may_be_western and sample.decode("cp1252") == sample.decode(best.encoding, "replace"):
        return Encoding("cp1252", "cp1252")  # one of several that say the same
    return Encoding(best.encoding, best.encoding.replace("_", "-"))


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
