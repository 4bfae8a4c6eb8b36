"""The text of a .conf file: which encoding its bytes are in, and its characters, block by block.

    bytes ──a mark at the beginning──▶ UTF-8 (where all of it is), UTF-16 or UTF-32; the mark is dropped
          ──every other byte is NUL──▶ UTF-16 of which the mark was lost
          ──all of it is valid UTF-8──▶ UTF-8
          ──else──▶ latin-1, as Windows writes it (cp1252): each byte is a character

A file is read twice, once to check it and once for its text, and never held as a whole. No file fails: what
is broken in an encoding that is certain becomes U+FFFD, so that a lone surrogate never comes out.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from typing import BinaryIO

BLOCK_BYTES = 64 * 1024

_SAMPLE_BYTES = 512
_SAMPLE_BYTES_MIN = 4

# The mark of UTF-32 begins with that of UTF-16: the longer ones stand first.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8-bom"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

# Windows leaves five bytes without a character; they keep the one that latin-1 gives them.
_CHARACTER_OF_BYTE = "".join(
    bytes([byte]).decode("cp1252", "ignore") or bytes([byte]).decode("latin-1") for byte in range(256)
)


def text_blocks(file: BinaryIO) -> tuple[str, Iterator[str]]:
    """The encoding's name (utf-8, utf-8-bom, utf-16-le, utf-16-be, utf-32-le, utf-32-be, latin-1) and the
    text in blocks of at most BLOCK_BYTES characters. `file` is seekable, at any position; it is read from
    its beginning, and must not be used by others until the last block was taken."""
    file.seek(0)
    sample = file.read(_SAMPLE_BYTES)
    for mark, encoding in _MARKS:
        if sample.startswith(mark):
            if encoding == "utf-8-bom" and not _is_utf_8(file):
                encoding = "latin-1"  # whoever added a line to it did not know
            return encoding, _decoded(file, encoding, len(mark))
    encoding = _utf_16_without_mark(sample) or ("utf-8" if _is_utf_8(file) else "latin-1")
    return encoding, _decoded(file, encoding, 0)


def line_of_no_utf_8(file: BinaryIO) -> int | None:
    """The line with the first byte that is no UTF-8, where characters of UTF-8 stand before it: somebody has
    edited the file in another encoding, and every one of them will be read as two or three. None where it is
    what it seems, a file of 8 bits a character. `file` is left where it was."""
    at = file.tell()
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    line, is_ascii = 1, True
    try:
        file.seek(0)
        while block := file.read(BLOCK_BYTES):
            pending, _ = decoder.getstate()
            try:
                is_ascii = decoder.decode(block).isascii() and is_ascii
                line += block.count(b"\n")
            except UnicodeDecodeError as error:
                good = (pending + block)[: error.start]
                is_ascii = good.isascii() and is_ascii
                return None if is_ascii else line + good.count(b"\n")
        return None if is_ascii else line
    finally:
        file.seek(at)


def _utf_16_without_mark(sample: bytes) -> str | None:
    """Most characters of a .conf file are ASCII, of which UTF-16 makes one byte and a NUL. One of the two
    halves is nearly all NUL and the other has none, which no text of 8 bits looks like."""
    if len(sample) < _SAMPLE_BYTES_MIN:
        return None
    even, odd = sample[0::2], sample[1::2]
    if 0 not in even and odd.count(0) * 4 >= len(odd) * 3:
        return "utf-16-le"
    if 0 not in odd and even.count(0) * 4 >= len(even) * 3:
        return "utf-16-be"
    return None


def _is_utf_8(file: BinaryIO) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    file.seek(0)
    try:
        while block := file.read(BLOCK_BYTES):
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _decoded(file: BinaryIO, encoding: str, begin: int) -> Iterator[str]:
    file.seek(begin, os.SEEK_SET)
    if encoding == "latin-1":
        while block := file.read(BLOCK_BYTES):
            yield codecs.charmap_decode(block, "strict", _CHARACTER_OF_BYTE)[0]
        return
    # The text was checked where that is needed; a file that has changed since then must not fail either.
    decoder = codecs.getincrementaldecoder(encoding.removesuffix("-bom"))("replace")
    while block := file.read(BLOCK_BYTES):
        if text := decoder.decode(block):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text
