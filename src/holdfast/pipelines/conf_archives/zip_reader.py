"""Reads a zip by its central directory, and believes it only where the entries themselves say the same.

    entry ─ entry ─ … ─ central directory ─ (zip64 end) ─ end
      ▲                   │
      └──── offset ───────┘

The directory is gone through twice, a record at a time. The first time everything is checked that can be
without unpacking: names, sizes, methods, that each entry lies where it is said to and none in another's
bytes. So an archive that is refused for its directory is refused before any of its files was handed on. The
second time the files are handed on, and those that are asked for are unpacked and compared with their size
and checksum.

The parts must follow one another without gaps from the beginning of the file to its end, but for the sizes
that a packer writes behind data which it did not know before: bytes that no part owns are how one file is
made to be two archives. A reader that goes by the entries would see one that the directory does not list.
"""

from __future__ import annotations

import bz2
import heapq
import os
import stat
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO, NamedTuple

from holdfast.core.errors import PermanentError
from holdfast.pipelines.conf_archives.archive_entry import PIECE_BYTES, Entry, link_entry
from holdfast.pipelines.conf_archives.archive_limits import Budget
from holdfast.pipelines.conf_archives.archive_names import Names, decoded
from holdfast.pipelines.conf_archives.archive_refusals import (
    damaged,
    encrypted,
    malformed,
    not_read_here,
    shown,
)
from holdfast.pipelines.conf_archives.unpacking import Decoder, Deflate, Undecodable, decode

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_END64_LOCATOR = struct.Struct("<4sLQL")
_RECORD = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_COMMENT_BYTES_MAX = 0xFFFF
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF  # the real number is in a zip64 record
_ZIP64_EXTRA = 1

_ENCRYPTED_FLAGS = 0x0001 | 0x0040 | 0x2000
_PATCH_FLAG = 0x0020
_SIZES_FOLLOW_FLAG = 0x0008
_STORED, _DEFLATE, _BZIP2, _AES = 0, 8, 12, 99
_FOLLOWING_SIZES_BYTES = frozenset({12, 16, 20, 24})  # without and with a signature; the same of zip64
_METHODS = {
    **{1: "shrink", 6: "implode", 9: "deflate64", 14: "LZMA", 20: "Zstandard", 93: "Zstandard"},
    **{95: "xz", 97: "WavPack", 98: "PPMd"},
}
_TARGET_BYTES_MAX = 64 * 1024

_WINDOW_BYTES = 64 * 1024
_LOCAL_WINDOW_BYTES = 1024
_SORTED_AT_ONCE = 4096


class _Directory(NamedTuple):
    offset: int
    size: int
    entries: int


class _Record(NamedTuple):
    raw_name: bytes
    name: str
    flags: int
    method: int
    crc: int
    packed_size: int
    size: int
    mode: int
    offset: int

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def is_folder(self) -> bool:
        return self.name.endswith(("/", "\\")) or stat.S_ISDIR(self.mode)


class _Local(NamedTuple):
    """What stands before an entry's data."""

    begin: int  # of the data
    has_following_sizes: bool


class _Window:
    """Reads at offsets, and keeps what was read last: records lie side by side."""

    def __init__(self, file: BinaryIO, window_bytes: int) -> None:
        self._fileno = file.fileno()
        self._window_bytes = window_bytes
        self._begin = 0
        self._data = b""

    def at(self, offset: int, size: int) -> bytes:
        """Fewer bytes than that only at the end of the file."""
        if not self._begin <= offset <= offset + size <= self._begin + len(self._data):
            self._data = os.pread(self._fileno, max(size, self._window_bytes), offset)
            self._begin = offset
        return self._data[offset - self._begin : offset - self._begin + size]


def zip_entries(
    file: BinaryIO, size: int, names: Names, budget: Budget, told: Callable[[int], None]
) -> Iterator[Entry]:
    """The files, in the order of the central directory."""
    return _ZipReader(file, size, names, budget, told).entries()


class _ZipReader:
    def __init__(
        self, file: BinaryIO, size: int, names: Names, budget: Budget, told: Callable[[int], None]
    ) -> None:
        self._window = _Window(file, _WINDOW_BYTES)
        self._local_window = _Window(file, _LOCAL_WINDOW_BYTES)
        self._fileno = file.fileno()
        self._size = size
        self._names = names
        self._budget = budget
        self._told = told

    def entries(self) -> Iterator[Entry]:
        directory = self._directory()
        self._budget.take_entries_ahead(directory.entries)
        self._check(directory)
        consumed = 0
        for record in self._records(directory):
            if record.is_link:
                target = self._target_of(record, consumed)
                link = self._names.symbolic_link(record.name, target)
                yield link_entry(self._names.path_of(record.name), link)
            elif not record.is_folder:
                path = self._names.path_of(record.name)
                yield Entry(path, record.size, partial(self._pieces, record, consumed))
            consumed += record.packed_size
            self._told(consumed)

    # The end, which says where the directory is

    def _directory(self) -> _Directory:
        end_offset, end = self._end()
        _, disk, directory_disk, count_here, count, size, offset, _ = end
        locator = self._window.at(max(end_offset - _END64_LOCATOR.size, 0), _END64_LOCATOR.size)
        directory_end = end_offset
        if end_offset >= _END64_LOCATOR.size and locator[:4] == b"PK\6\7":
            directory_end, (disk, directory_disk, count_here, count, size, offset) = self._end64(
                locator, end_offset - _END64_LOCATOR.size
            )
        if disk or directory_disk or count_here != count:
            raise malformed(f"{self._names.archive} is one part of several, which cannot be read alone.")
        if offset + size != directory_end:
            raise damaged(
                f"{self._names.archive} has a directory that is said to be at {offset:,}, with {size:,}"
                f" bytes, and to end at {directory_end:,}: bytes are missing, or something was put in."
            )
        if count * _RECORD.size > size:
            raise damaged(f"{self._names.archive} announces {count:,} entries in {size:,} bytes.")
        return _Directory(offset, size, count)

    def _end(self) -> tuple[int, tuple[int, ...]]:
        tail_offset = max(self._size - _END.size - _COMMENT_BYTES_MAX, 0)
        tail = self._window.at(tail_offset, self._size - tail_offset)
        at = len(tail)
        while (at := tail.rfind(b"PK\5\6", 0, at)) >= 0:
            if len(tail) - at >= _END.size:
                end = _END.unpack_from(tail, at)
                if at + _END.size + end[-1] == len(tail):
                    return tail_offset + at, end
            at += 3  # the next one may begin in these four bytes' first three
        raise damaged(f"{self._names.archive} is not complete: the end of the zip is missing.")

    def _end64(self, locator: bytes, locator_offset: int) -> tuple[int, tuple[int, ...]]:
        _, disk, offset, disks = _END64_LOCATOR.unpack(locator)
        data = self._window.at(offset, _END64.size) if offset < self._size else b""
        if len(data) < _END64.size or data[:4] != b"PK\6\6" or disk or disks > 1:
            raise damaged(f"{self._names.archive} has no zip64 end where it is said to be, at {offset:,}.")
        end = _END64.unpack(data)
        if offset + 12 + end[1] != locator_offset:
            raise damaged(f"{self._names.archive} has a zip64 end of another size than it says.")
        return offset, end[4:]

    # The directory

    def _records(self, directory: _Directory) -> Iterator[_Record]:
        at, end = directory.offset, directory.offset + directory.size
        for number in range(directory.entries):
            data = self._window.at(at, _RECORD.size)
            if at + _RECORD.size > end or len(data) < _RECORD.size or data[:4] != b"PK\1\2":
                raise damaged(
                    f"{self._names.archive} has no record of entry {number + 1:,} where it belongs,"
                    f" at {at:,}."
                )
            fields = _RECORD.unpack(data)
            name_size, extra_size, comment_size = fields[10:13]
            size = _RECORD.size + name_size + extra_size + comment_size
            if at + size > end:
                raise damaged(f"{self._names.archive} has a directory that ends in entry {number + 1:,}.")
            data = self._window.at(at + _RECORD.size, name_size + extra_size)
            yield self._record(fields, data[:name_size], data[name_size:])
            at += size
        if at != end:
            raise damaged(
                f"{self._names.archive} has more in its directory than {directory.entries:,} entries."
            )

    def _record(self, fields: tuple[int, ...], raw_name: bytes, extra: bytes) -> _Record:
        _, _, _, flags, method, _, _, crc, packed_size, size, *_, disk, _, attributes, offset = fields
        name = _decoded(raw_name)
        full = [size == _FULL32, packed_size == _FULL32, offset == _FULL32]
        if any(full):
            larger = iter(self._zip64_numbers(name, extra, sum(full)))
            size, packed_size, offset = (
                next(larger) if is_full else number
                for is_full, number in zip(full, (size, packed_size, offset), strict=True)
            )
        if disk not in (0, _FULL16):
            raise malformed(f"Entry {self._names.shown(name)} is in another part of a zip of several.")
        return _Record(raw_name, name, flags, method, crc, packed_size, size, attributes >> 16, offset)

    def _zip64_numbers(self, name: str, extra: bytes, count: int) -> tuple[int, ...]:
        at = 0
        while at + 4 <= len(extra):
            kind, size = struct.unpack_from("<2H", extra, at)
            at += 4
            if kind == _ZIP64_EXTRA and count * 8 <= size <= len(extra) - at:
                return struct.unpack_from(f"<{count}Q", extra, at)
            at += size
        raise damaged(f"Entry {self._names.shown(name)} has no zip64 sizes, which it refers to.")

    # The first time through

    def _check(self, directory: _Directory) -> None:
        offsets: array[int] = array("Q")
        ends: array[int] = array("Q")
        has_following_sizes = bytearray()
        for record in self._records(directory):
            self._check_record(record)
            local = self._checked_local(record, directory.offset)
            self._claim(record)
            offsets.append(record.offset)
            ends.append(local.begin + record.packed_size)
            has_following_sizes.append(local.has_following_sizes)
        before, end, may_sizes_follow = -1, 0, False
        for number in _by_offset(offsets):
            if offsets[number] < end:
                raise self._overlapping(directory, number, before)
            self._check_gap(end, offsets[number], may_sizes_follow)
            before, end, may_sizes_follow = number, ends[number], bool(has_following_sizes[number])
        self._check_gap(end, directory.offset, may_sizes_follow)

    def _overlapping(self, directory: _Directory, one: int, other: int) -> PermanentError:
        names = [
            self._names.shown(record.name)
            for number, record in enumerate(self._records(directory))
            if number in (one, other)
        ]
        return malformed(
            f"Entries {names[0]} and {names[1]} overlap: they use the same bytes of the archive."
        )

    def _check_gap(self, begin: int, end: int, may_sizes_follow: bool) -> None:
        size = end - begin
        if size and not (may_sizes_follow and size in _FOLLOWING_SIZES_BYTES):
            raise malformed(f"{self._names.archive} has {size:,} bytes at {begin:,} that belong to no entry.")

    def _of(self, record: _Record) -> str:
        return f"Entry {self._names.shown(record.name)}"

    def _check_record(self, record: _Record) -> None:
        if record.flags & _ENCRYPTED_FLAGS or record.method == _AES:
            raise encrypted(f"{self._of(record)} is encrypted.")
        if record.method not in (_STORED, _DEFLATE, _BZIP2) or record.flags & _PATCH_FLAG:
            method = _METHODS.get(record.method, "of a kind that is not known")
            raise not_read_here(
                f"{self._of(record)} is packed with method {record.method} ({method}); stored, deflate and"
                " bzip2 are read.",
                guidance="Pack the files again with a usual zip or tar, and upload the new archive.",
            )
        if record.method == _STORED and record.size != record.packed_size:
            raise damaged(
                f"{self._of(record)} is stored as it is, and has two sizes: {record.size:,} and"
                f" {record.packed_size:,} bytes."
            )
        kind = stat.S_IFMT(record.mode)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            raise malformed(f"{self._of(record)} is a device, a FIFO or a socket (mode {record.mode:o}).")
        if record.is_folder and record.size:
            raise malformed(f"{self._of(record)} is a folder with data of its own.")

    def _checked_local(self, record: _Record, directory_offset: int) -> _Local:
        """It must say what the directory says."""
        is_inside = record.offset + _LOCAL.size <= directory_offset
        data = self._local_window.at(record.offset, _LOCAL.size) if is_inside else b""
        if data[:4] != b"PK\3\4":
            raise damaged(f"{self._of(record)} is not where the directory says, at {record.offset:,}.")
        _, _, flags, method, _, _, crc, packed_size, size, name_size, extra_size = _LOCAL.unpack(data)
        begin = record.offset + _LOCAL.size + name_size + extra_size
        if begin + record.packed_size > directory_offset:
            raise damaged(
                f"{self._of(record)} is said to have more bytes than there are before the directory."
            )
        local_name = self._local_window.at(record.offset + _LOCAL.size, name_size)
        if local_name != record.raw_name:
            raise malformed(
                f"{self._of(record)} calls itself {shown(_decoded(local_name))} where its data is."
            )
        if method != record.method or (flags ^ record.flags) & _ENCRYPTED_FLAGS:
            raise malformed(f"{self._of(record)} is packed in another way than the directory says.")
        has_following_sizes = bool(flags & _SIZES_FOLLOW_FLAG)
        is_told_here = not has_following_sizes and _FULL32 not in (packed_size, size)
        if is_told_here and (crc, packed_size, size) != (record.crc, record.packed_size, record.size):
            raise malformed(f"{self._of(record)} has another size or checksum than the directory says.")
        return _Local(begin, has_following_sizes)

    def _begin_of(self, record: _Record) -> int:
        """Where its data begins, once that was checked. To keep it would take a megabyte more."""
        data = self._local_window.at(record.offset, _LOCAL.size)
        name_size, extra_size = _LOCAL.unpack(data)[-2:]
        return record.offset + _LOCAL.size + int(name_size) + int(extra_size)

    def _claim(self, record: _Record) -> None:
        self._budget.take_bytes(record.size, record.name)
        if record.is_link:
            if record.size > _TARGET_BYTES_MAX:
                raise malformed(
                    f"{self._of(record)} is a link to a name of {record.size:,} bytes;"
                    f" the limit is {_TARGET_BYTES_MAX:,}."
                )
            self._names.link(record.name, self._target_of(record, 0), is_from_root=False)
        elif record.is_folder:
            self._names.folder(record.name)
        else:
            self._names.file(record.name)

    # Data

    def _target_of(self, record: _Record, consumed: int) -> str:
        return _decoded(b"".join(self._pieces(record, consumed)))

    def _pieces(self, record: _Record, consumed: int) -> Iterator[bytes]:
        unpacked = crc = 0
        for piece in self._unpacked(record, consumed):
            unpacked += len(piece)
            if unpacked > record.size:
                raise malformed(
                    f"{self._of(record)} unpacks to more than the {record.size:,} bytes it is said to have."
                )
            crc = zlib.crc32(piece, crc)
            yield piece
        if unpacked != record.size or crc != record.crc:
            raise damaged(f"{self._of(record)} is damaged: its size or its checksum is not as said.")

    def _unpacked(self, record: _Record, consumed: int) -> Iterator[bytes]:
        packed = self._packed(record, consumed)
        if record.method == _STORED:
            yield from packed
            return
        decoder: Decoder = Deflate(Deflate.RAW) if record.method == _DEFLATE else bz2.BZ2Decompressor()
        while not decoder.eof:
            is_hungry = decoder.needs_input
            data = next(packed, b"") if is_hungry else b""
            try:
                piece = decode(decoder, data)
            except Undecodable as error:
                raise damaged(f"{self._of(record)} is damaged: {error}.") from error
            if piece:
                yield piece
            elif is_hungry and not data and not decoder.eof:
                raise damaged(f"{self._of(record)} is damaged: its packed data is cut off.")
        if decoder.unused_data or next(packed, b""):
            raise malformed(f"{self._of(record)} has bytes behind its packed data.")

    def _packed(self, record: _Record, consumed: int) -> Iterator[bytes]:
        begin, at = self._begin_of(record), 0
        while at < record.packed_size:
            data = os.pread(self._fileno, min(PIECE_BYTES, record.packed_size - at), begin + at)
            if not data:
                raise damaged(f"{self._names.archive} ends in entry {self._names.shown(record.name)}.")
            at += len(data)
            self._told(consumed + at)
            yield data


def _by_offset(offsets: array[int]) -> Iterator[int]:
    """The numbers of the entries in the order in which they lie; sorted in parts, since a list of all of them
    would take more memory than all else that is kept."""
    parts = [
        array("I", sorted(range(begin, min(begin + _SORTED_AT_ONCE, len(offsets))), key=offsets.__getitem__))
        for begin in range(0, len(offsets), _SORTED_AT_ONCE)
    ]
    return heapq.merge(*parts, key=offsets.__getitem__)


def _decoded(name: bytes) -> str:
    """Packers that do not write UTF-8 write what MS-DOS did."""
    return decoded(name, "cp437")
