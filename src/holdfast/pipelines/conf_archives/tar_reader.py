"""Reads a tar from beginning to end: old v7, ustar, pax and GNU.

    header (512) ─ data, padded to 512 ─ header ─ data ─ … ─ two blocks of zeros

Some headers only say something about the next one (a longer name, a larger size); they are bounded, in size
and in number. Folders are checked and passed over, links handed on as what they are. Everything that is
neither they nor a plain file is refused: devices and FIFOs mean harm, and a reader that guesses what an
unknown type means reads another archive than the next reader does. GNU's labels of volumes are passed over,
and so is what its incremental backups say about a folder.

What follows the end of a tar is ignored. A single block of zeros is an end too, as some packers write it; a
tar that stops without any was cut off, be it between two entries.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.core.errors import PermanentError
from holdfast.pipelines.conf_archives.archive_entry import PIECE_BYTES, Entry, link_entry
from holdfast.pipelines.conf_archives.archive_limits import Budget
from holdfast.pipelines.conf_archives.archive_names import Names, decoded
from holdfast.pipelines.conf_archives.archive_refusals import (
    PACK_AGAIN,
    PACK_WHOLE,
    damaged,
    malformed,
    not_read_here,
    shown,
    too_much,
)
from holdfast.pipelines.conf_archives.unpacking import Stream

BLOCK_BYTES = 512
PAX_BYTES_MAX = 1024**2
LONG_NAME_BYTES_MAX = 64 * 1024
EXTENSIONS_MAX = 8  # of one entry

_ZEROS = bytes(BLOCK_BYTES)
_FILES = frozenset(b"\x0007")
_SYMBOLIC_LINK, _HARD_LINK, _FOLDER = ord("2"), ord("1"), ord("5")
_GNU_FOLDER, _GNU_LABEL, _GNU_SPARSE = b"DVS"
_PAX, _PAX_SOLARIS, _PAX_GLOBAL, _LONG_NAME, _LONG_TARGET = b"xXgLK"
_EXTENSIONS = frozenset(b"xXgLK")
_WITH_DATA = _FILES | _EXTENSIONS | {_GNU_FOLDER, _GNU_LABEL}  # a folder's size is a hint
_REFUSED = {
    ord("3"): "a character device",
    ord("4"): "a block device",
    ord("6"): "a FIFO",
    _GNU_SPARSE: "a sparse file",
}
_OCTAL = re.compile(rb"[ \0]*(?:([0-7]+)(?:[ \0].*)?)?", re.DOTALL)  # what is behind it is nobody's
_PAX_RECORD = re.compile(rb"([0-9]{1,8}) ([^=]+)=")
_PAX_SIZE = re.compile(r"[0-9]{1,19}")
_PAX_KEYS = frozenset({"path", "linkpath", "size"})


@dataclass(frozen=True)
class _Header:
    name: str
    type: int
    size: int
    target: str


def is_tar_header(block: bytes, *, is_magic_enough: bool) -> bool:
    """Whether a file that begins so is a tar. The oldest ones are known by their checksum alone; and what has
    the magic without it is either a damaged tar or a text that speaks of tars."""
    if is_magic_enough and block[257:262] == b"ustar":
        return True
    return len(block) >= BLOCK_BYTES and any(block[:100]) and _has_checksum(block[:BLOCK_BYTES])


def tar_entries(stream: Stream, names: Names, budget: Budget) -> Iterator[Entry]:
    """The files. An entry is to be read before the next one is asked for."""
    return _TarReader(stream, names, budget).entries()


class _TarReader:
    def __init__(self, stream: Stream, names: Names, budget: Budget) -> None:
        self._stream = stream
        self._names = names
        self._budget = budget
        self._pax_global: dict[str, str] = {}
        self._is_begun = False
        self._left = 0  # of the entry that is being read

    def entries(self) -> Iterator[Entry]:
        while (header := self._next_header()) is not None:
            self._stream.entry = header.name
            if header.type in (_SYMBOLIC_LINK, _HARD_LINK):
                yield self._link(header)
                continue
            path = self._path_of(header)
            self._begin_data(header.size, path or header.name)
            if path is not None:
                yield Entry(path, header.size, self._pieces)
            self._skip_data(self._left + -header.size % BLOCK_BYTES)
            self._left = 0
        self._stream.finish()

    def _link(self, header: _Header) -> Entry:
        is_hard = header.type == _HARD_LINK
        path = self._names.link(header.name, header.target, is_from_root=is_hard)
        if is_hard:
            return link_entry(path, self._names.hard_link(header.target))
        return link_entry(path, self._names.symbolic_link(header.name, header.target))

    def _path_of(self, header: _Header) -> str | None:
        """None where it is no file."""
        if header.type in _FILES and not header.name.endswith("/"):
            return self._names.file(header.name)
        if header.type in _FILES and header.size:
            raise malformed(f"Entry {self._names.shown(header.name)} is a folder with data of its own.")
        if header.type in _FILES or header.type in (_FOLDER, _GNU_FOLDER):
            self._names.folder(header.name)
        elif header.type == _GNU_LABEL:
            self._budget.take_entry(header.name)
        else:
            what = _REFUSED.get(header.type, f"of the unknown type {bytes([header.type])!r}")
            raise malformed(
                f"Entry {self._names.shown(header.name)} is {what}, which is not read.",
                guidance=PACK_WHOLE if header.type == _GNU_SPARSE else PACK_AGAIN,
            )
        return None

    # Data

    def _begin_data(self, size: int, path: str) -> None:
        self._stream.entry = path
        bytes_left = self._stream.bytes_left
        if bytes_left is not None and size > bytes_left:
            raise self._cut_off()
        self._budget.take_bytes(size, path)
        self._left = size

    def _pieces(self) -> Iterator[bytes]:
        while self._left:
            piece = self._stream.piece(min(self._left, PIECE_BYTES))
            if not piece:
                raise self._cut_off()
            self._left -= len(piece)
            yield piece

    def _skip_data(self, size: int) -> None:
        if self._stream.skip(size) < size:
            raise self._cut_off()

    def _cut_off(self) -> PermanentError:
        return damaged(f"{self._names.archive} ends {self._stream.place()}.")

    # Headers

    def _next_header(self) -> _Header | None:
        """The next one that is an entry, with what the ones before it said about it."""
        long_names: dict[str, str] = {}
        pax: dict[str, str] = {}
        is_extended = False
        for _ in range(EXTENSIONS_MAX + 1):
            header = self._next_plain_header()
            if header is None:
                if is_extended:
                    raise self._cut_off()
                return None
            if header.type not in _EXTENSIONS:
                return _extended(header, self._pax_global | long_names | pax, self._names)
            self._stream.entry = header.name
            is_extended = is_extended or header.type != _PAX_GLOBAL
            if header.type == _PAX_GLOBAL:
                self._pax_global |= self._pax_records(header)
            elif header.type in (_PAX, _PAX_SOLARIS):
                pax |= self._pax_records(header)
            else:
                key = "path" if header.type == _LONG_NAME else "linkpath"
                long_names[key] = self._long_name(header)
        raise too_much(
            f"{self._names.archive} has more than {EXTENSIONS_MAX} extended headers in a row,"
            f" {self._stream.place()}."
        )

    def _next_plain_header(self) -> _Header | None:
        block = self._stream.read(BLOCK_BYTES)
        if not (self._is_begun or block == _ZEROS or is_tar_header(block, is_magic_enough=True)):
            raise not_read_here(f"{self._names.archive} has no tar in it: it begins with something else.")
        if not block:
            raise damaged(f"{self._names.archive} ends without the zeros that end a tar, {self._after()}.")
        if block == _ZEROS:
            after = self._stream.read(BLOCK_BYTES)
            if len(after) < BLOCK_BYTES or after == _ZEROS:
                return None
            raise malformed(f"{self._names.archive} has an empty header, {self._after()}.")
        if len(block) < BLOCK_BYTES:
            raise damaged(f"{self._names.archive} ends in the middle of a header, {self._after()}.")
        if not _has_checksum(block):
            raise damaged(
                f"{self._names.archive} has something else in the place of a header, {self._after()}:"
                " its checksum is wrong."
            )
        self._is_begun = True
        return self._parsed(block)

    def _after(self) -> str:
        return f"after entry {shown(self._stream.entry)}" if self._stream.entry else "in the first place"

    def _parsed(self, block: bytes) -> _Header:
        name = _text(block[:100])
        if block[257:263] == b"ustar\0":
            # star keeps times behind a shorter prefix.
            prefix = _text(block[345:476] if block[508:512] == b"tar\0" else block[345:500])
            name = prefix + b"/" + name if prefix else name
        shown_name = decoded(name)
        size = _number(block[124:136])
        if size is None or size < 0:
            raise malformed(f"Entry {self._names.shown(shown_name)} has a size that is no number of bytes.")
        kind = block[156]
        return _Header(shown_name, kind, size if kind in _WITH_DATA else 0, decoded(_text(block[157:257])))

    def _extension(self, header: _Header, bytes_max: int) -> bytes:
        if header.size > bytes_max:
            raise too_much(
                f"{self._names.archive} has an extended header, {self._names.shown(header.name)}, of"
                f" {header.size:,} bytes; the limit is {bytes_max:,}."
            )
        self._budget.take_bytes(header.size, header.name)
        data = self._stream.read(header.size)
        if len(data) < header.size:
            raise self._cut_off()
        self._skip_data(-header.size % BLOCK_BYTES)
        return data

    def _long_name(self, header: _Header) -> str:
        return decoded(_text(self._extension(header, LONG_NAME_BYTES_MAX)))

    def _pax_records(self, header: _Header) -> dict[str, str]:
        """Records are `length key=value\\n`, the length being that of all of it."""
        data = self._extension(header, PAX_BYTES_MAX)
        records: dict[str, str] = {}
        at = 0
        while at < len(data) and data[at]:  # some packers pad with NULs
            match = _PAX_RECORD.match(data, at)
            end = at + int(match[1]) if match else 0
            if match is None or end <= match.end() or end > len(data) or data[end - 1] != ord("\n"):
                raise malformed(
                    f"{self._names.archive} has an extended header, {self._names.shown(header.name)}, that is"
                    " not made of records."
                )
            key = decoded(match[2])
            if key in _PAX_KEYS:
                records[key] = decoded(data[match.end() : end - 1])
            elif key.startswith("GNU.sparse."):
                raise malformed(
                    f"{self._names.archive} has a sparse file, which is not read: it is announced by"
                    f" {self._names.shown(header.name)}.",
                    guidance=PACK_WHOLE,
                )
            at = end
        return records


def _extended(header: _Header, said: dict[str, str], names: Names) -> _Header:
    """An empty value takes back what was said before."""
    header = replace(
        header, name=said.get("path") or header.name, target=said.get("linkpath") or header.target
    )
    if (size := said.get("size")) and header.type in _WITH_DATA:
        if not _PAX_SIZE.fullmatch(size):
            raise malformed(f"Entry {names.shown(header.name)} has a size that is no number of bytes.")
        header = replace(header, size=int(size))
    return header


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int | None:
    """Octal digits, or a number in base 256 where they would not be enough."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    match = _OCTAL.fullmatch(field)
    return None if match is None else int(match[1] or b"0", 8)


def _has_checksum(block: bytes) -> bool:
    told = _number(block[148:156])
    blanked = block[:148] + b" " * 8 + block[156:]
    # Some old packers added the bytes up as signed ones.
    return told == sum(blanked) or told == sum(struct.unpack("512b", blanked))
