"""Archives that mean harm, made byte by byte where no packer would make them.

HOSTILE has them by the name of the file, with its suffix; each is refused with the limits as they are by
default. The builders are there for tests that need a variation.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass

TAR_END = bytes(1024)
CONF = b"[default]\nhost = north\n"


def tar_header(
    name: bytes | str,
    size: int = 0,
    type: bytes = b"0",
    target: bytes = b"",
    magic: bytes = b"ustar\x0000",
    size_field: bytes | None = None,
) -> bytes:
    """One block of 512 bytes with a right checksum, whatever it says."""
    raw = name if isinstance(name, bytes) else name.encode()
    field = size_field if size_field is not None else b"%011o\0" % size
    before = raw[:100].ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + field + b"00000000000\0"
    after = (type + target[:100].ljust(100, b"\0") + magic).ljust(512 - 156, b"\0")
    checksum = sum(before) + 8 * 32 + sum(after)
    return before + b"%06o\0 " % checksum + after


def tar_entry(name: bytes | str, data: bytes = CONF, type: bytes = b"0", target: bytes = b"") -> bytes:
    return tar_header(name, len(data), type, target) + data + bytes(-len(data) % 512)


def pax(records: dict[str, bytes], type: bytes = b"x") -> bytes:
    data = b""
    for key, value in records.items():
        record = b" " + key.encode() + b"=" + value + b"\n"
        length = len(record)
        while length != len(record) + len(str(length)):
            length = len(record) + len(str(length))
        data += str(length).encode() + record
    return tar_entry("PaxHeader/x", data, type)


def tar(*entries: bytes) -> bytes:
    return b"".join(entries) + TAR_END


def xz(data: bytes, dict_mebibytes: int) -> bytes:
    """-9 has a dictionary of 64 MiB, -8 of 32, -6 of 8."""
    lzma2 = {"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": dict_mebibytes * 1024**2}
    return lzma.compress(data, filters=[lzma2])


def tgz(*entries: bytes) -> bytes:
    return gzip.compress(tar(*entries), 6, mtime=0)


@dataclass(frozen=True)
class Zipped:
    """An entry of a zip, and what it lies about; `None` is the truth."""

    name: bytes
    data: bytes = CONF
    method: int = 0
    mode: int = stat.S_IFREG | 0o644
    flags: int = 0
    size: int | None = None
    crc: int | None = None
    local_name: bytes | None = None
    local_method: int | None = None
    local_size: int | None = None
    offset: int | None = None
    packed: bytes | None = None
    before: bytes = b""
    behind: bytes = b""
    extra: bytes = b""
    disk: int = 0

    @property
    def packed_data(self) -> bytes:
        if self.packed is not None:
            return self.packed
        if self.method == 8:
            packer = zlib.compressobj(9, zlib.DEFLATED, -15)
            return packer.compress(self.data) + packer.flush()
        return bz2.compress(self.data) if self.method == 12 else self.data


def zip_of(*entries: Zipped, comment: bytes = b"", **end: int) -> bytes:
    """`end` are lies of the record at the end: count, size, offset, disk."""
    body, directory = bytearray(), bytearray()
    for entry in entries:
        packed, true_crc = entry.packed_data, zlib.crc32(entry.data)
        crc = true_crc if entry.crc is None else entry.crc
        size = len(entry.data) if entry.size is None else entry.size
        local_size = size if entry.local_size is None else entry.local_size
        local_name = entry.name if entry.local_name is None else entry.local_name
        local_method = entry.method if entry.local_method is None else entry.local_method
        body += entry.before
        offset = len(body) if entry.offset is None else entry.offset
        sizes = (crc, len(packed), local_size, len(local_name), 0)
        body += struct.pack("<4s5H3L2H", b"PK\3\4", 20, entry.flags, local_method, 0, 0, *sizes)
        body += local_name + packed + entry.behind
        directory += struct.pack(
            "<4s6H3L5H2L",
            *(b"PK\1\2", 20 | 3 << 8, 20, entry.flags, entry.method, 0, 0, crc, len(packed), size),
            *(len(entry.name), len(entry.extra), 0, entry.disk, 0, entry.mode << 16, offset),
        )
        directory += entry.name + entry.extra
    count, disk = end.get("count", len(entries)), end.get("disk", 0)
    size, offset = end.get("size", len(directory)), end.get("offset", len(body))
    return bytes(
        body
        + directory
        + struct.pack("<4s4H2LH", b"PK\5\6", disk, disk, count, count, size, offset, len(comment))
        + comment
    )


def zip64_of(entry: Zipped, *, locator_offset: int | None = None, extra_size: int = 0) -> bytes:
    """A zip with all that zip64 adds to it."""
    plain = zip_of(entry)
    *_, size, offset, _ = struct.unpack("<4s4H2LH", plain[-22:])
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44 + extra_size, 45, 45, 0, 0, 1, 1, size, offset)
    at = len(plain) - 22 if locator_offset is None else locator_offset
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, at, 1)
    full = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return plain[:-22] + end64 + locator + full


def zeros_packed(size: int, suffix: str = "gz") -> bytes:
    """One file of so many zeros, packed without ever being there in full."""
    packers: dict[str, Callable[[], bz2.BZ2Compressor | lzma.LZMACompressor]] = {
        "bz2": bz2.BZ2Compressor,
        "xz": lzma.LZMACompressor,
    }
    packer = zlib.compressobj(9, zlib.DEFLATED, 31) if suffix == "gz" else packers[suffix]()
    packed = [packer.compress(tar_header("zeros.conf", size))]
    piece = bytes(1024**2)
    packed += [packer.compress(piece) for _ in range(size // len(piece))]
    return b"".join([*packed, packer.compress(TAR_END), packer.flush()])


def zeros_zip(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece, crc, packed = bytes(1024**2), 0, b""
    for _ in range(size // len(piece)):
        crc = zlib.crc32(piece, crc)
        packed += packer.compress(piece)
    return zip_of(Zipped(b"zeros.conf", b"", 8, size=size, crc=crc, packed=packed + packer.flush()))


def many_tgz(count: int) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    packed = [packer.compress(tar_header(f"{number}.conf")) for number in range(count)]
    return b"".join([*packed, packer.compress(TAR_END), packer.flush()])


def many_zip(count: int, name_of: Callable[[int], bytes] = lambda number: b"%d.conf" % number) -> bytes:
    """More than 65,535 need a zip64 end."""
    body, directory = bytearray(), bytearray()
    for number in range(count):
        name = name_of(number)
        sizes = (0, 0, 0, len(name), 0)
        directory += struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, *sizes, 0, 0, 0, 0, len(body))
        directory += name
        body += struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, *sizes) + name
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), len(body))
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(body) + len(directory), 1)
    full = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return bytes(body + directory) + end64 + locator + full


def nested(levels: int, suffix: str = "tgz") -> bytes:
    """An archive in an archive, so many in all."""
    name, data = "app.conf", CONF
    for _ in range(levels):
        data = tgz(tar_entry(name, data)) if suffix == "tgz" else zip_of(Zipped(name.encode(), data))
        name = f"inner.{suffix}"
    return data


def good_tar(
    mode: str = "w", format: int = tarfile.PAX_FORMAT, files: dict[str, bytes] | None = None
) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode, format=format) as archive:  # type: ignore[call-overload]
        for name, data in (files or {"app/default/app.conf": CONF}).items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def good_zip(method: int = zipfile.ZIP_DEFLATED, files: dict[str, bytes] | None = None) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, data in (files or {"app/default/app.conf": CONF}).items():
            archive.writestr(name, data)
    return made.getvalue()


def _link(name: str, target: bytes, type: bytes = b"2") -> bytes:
    return tar_entry(name, b"", type, target)


_BIG = tar_entry("a.conf", CONF * 400)
_CORRUPT_GZ = bytearray(tgz(tar_entry("a.conf", bytes(range(256)) * 8)))
_CORRUPT_GZ[-6] ^= 0xFF  # in the checksum
_OTHER_MODE = tar_entry("b.conf").replace(b"0000644", b"0000777", 1)  # than its checksum was made of
_HIDDEN = zip_of(Zipped(b"hidden.conf"))[: 30 + len(b"hidden.conf") + len(CONF)]  # no directory lists it

HOSTILE: dict[str, Callable[[], bytes]] = {
    # Names
    "absolute.tar": lambda: tar(tar_entry("/etc/app.conf")),
    "absolute-backslash.tar": lambda: tar(tar_entry("\\etc\\app.conf")),
    "drive.tar": lambda: tar(tar_entry("C:\\app.conf")),
    "host.tar": lambda: tar(tar_entry("//host/app.conf")),
    "dots.tar": lambda: tar(tar_entry("a/../../app.conf")),
    "dots-backslash.tar": lambda: tar(tar_entry("a\\..\\..\\app.conf")),
    "dots-pax.tar": lambda: tar(pax({"path": b"../app.conf"}), tar_entry("a.conf")),
    "dots-long-name.tar": lambda: tar(
        tar_entry("././@LongLink", b"../" + b"d/" * 80 + b"app.conf\0", b"L"), tar_entry("a.conf")
    ),
    "nul-pax.tar": lambda: tar(pax({"path": b"a\0b.conf"}), tar_entry("a.conf")),
    "icon-folder.tar": lambda: tar(tar_entry("Icon\r/a.conf")),
    "another-icon.tar": lambda: tar(tar_entry("a/BigIcon\r")),
    "control-icon.tar": lambda: tar(tar_entry("a\r/Icon\r")),
    "control.tar": lambda: tar(tar_entry("a\x1b[2J.conf")),
    "empty-name.tar": lambda: tar(tar_entry("")),
    "root-file.tar": lambda: tar(tar_entry(".")),
    "long-name.tar": lambda: tar(pax({"path": b"n" * 1001}), tar_entry("a.conf")),
    "deep-name.tar": lambda: tar(pax({"path": b"d/" * 50 + b"a.conf"}), tar_entry("a.conf")),
    "twice.tar": lambda: tar(tar_entry("./a/b.conf"), tar_entry("a//b.conf")),
    "file-and-folder.tar": lambda: tar(tar_entry("a"), tar_entry("a/", b"", b"5")),
    "below-file.tar": lambda: tar(tar_entry("a"), tar_entry("a/b.conf")),
    "file-on-folder.tar": lambda: tar(tar_entry("a/b.conf"), tar_entry("a")),
    # Links and what is no file
    "link-absolute.tar": lambda: tar(_link("a", b"/etc/passwd")),
    "link-above.tar": lambda: tar(_link("d/a", b"../../passwd")),
    "hard-link-above.tar": lambda: tar(_link("d/a", b"../passwd", b"1")),
    "link-root.tar": lambda: tar(_link("./", b"elsewhere")),
    "below-link.tar": lambda: tar(_link("a", b"b"), tar_entry("a/x.conf")),
    "character-device.tar": lambda: tar(tar_entry("null", b"", b"3")),
    "block-device.tar": lambda: tar(tar_entry("disk", b"", b"4")),
    "fifo.tar": lambda: tar(tar_entry("pipe", b"", b"6")),
    "unknown-type.tar": lambda: tar(tar_entry("a.conf", type=b"Z")),
    "sparse.tar": lambda: tar(tar_entry("a.conf", type=b"S")),
    "sparse-pax.tar": lambda: tar(pax({"GNU.sparse.major": b"1"}), tar_entry("a.conf")),
    # Headers
    "garbage.tar": lambda: b"\xaa" * 2048,
    "checksum.tar": lambda: tar(tar_entry("a.conf"), _OTHER_MODE),
    "cut-data.tar": lambda: _BIG[:1500],
    "cut-header.tar": lambda: tar_entry("a.conf") + tar_header("b.conf")[:100],
    "cut-after-pax.tar": lambda: tar_entry("a.conf") + pax({"path": b"b.conf"}),
    "lone-zeros.tar": lambda: tar_entry("a.conf") + bytes(512) + tar_entry("b.conf") + TAR_END,
    "negative-size.tar": lambda: tar(tar_header("a.conf", size_field=b"\xff" * 12)),
    "size-words.tar": lambda: tar(tar_header("a.conf", size_field=b"lots\0\0\0\0\0\0\0\0")),
    "pax-size-words.tar": lambda: tar(pax({"size": b"-5"}), tar_entry("a.conf")),
    "huge-size.tgz": lambda: tgz(tar_header("a.conf", size_field=b"\x80" + b"\0" * 3 + b"\x7f" * 8)),
    "huge-pax.tar": lambda: tar(tar_header("PaxHeader/x", 1024**3, b"x")),
    "huge-long-name.tar": lambda: tar(tar_header("././@LongLink", 64 * 1024 + 1, b"L")),
    "pax-words.tar": lambda: tar(tar_entry("PaxHeader/x", b"no records\n", b"x"), tar_entry("a.conf")),
    "many-pax.tar": lambda: tar(*[pax({"path": b"b.conf"})] * 9, tar_entry("a.conf")),
    "folder-data.tar": lambda: tar(tar_entry("a/")),
    # Packing
    "cut.tgz": lambda: tgz(_BIG)[:-30],
    "cut.tar.bz2": lambda: bz2.compress(tar(_BIG))[:-30],
    "cut.tar.xz": lambda: lzma.compress(tar(_BIG))[:-30],
    "checksum.tgz": lambda: bytes(_CORRUPT_GZ),
    "no-tar.tgz": lambda: gzip.compress(CONF * 100),
    "nothing.tgz": lambda: gzip.compress(b""),
    "memory.tar.xz": lambda: xz(tar(_BIG), dict_mebibytes=65),
    # Bombs
    "zeros.tgz": lambda: zeros_packed(64 * 1024**2),
    "zeros.tar.bz2": lambda: zeros_packed(64 * 1024**2, "bz2"),
    "zeros.tar.xz": lambda: zeros_packed(64 * 1024**2, "xz"),
    "zeros.zip": lambda: zeros_zip(64 * 1024**2),
    "many.tgz": lambda: many_tgz(100_001),
    "many.zip": lambda: many_zip(100_001),
    "deep.tgz": lambda: nested(4),
    "deep.zip": lambda: nested(4, "zip"),
    "nested-dots.zip": lambda: zip_of(Zipped(b"in.tgz", tgz(tar_entry("../app.conf")))),
    "nested-link.zip": lambda: zip_of(Zipped(b"in.tgz", tgz(_link("a", b"../b")))),
    "nested-twice.zip": lambda: zip_of(Zipped(b"in.tgz", tgz(tar_entry("a.conf"), tar_entry("a.conf")))),
    "nested-zeros.tar": lambda: tar(tar_entry("in.tgz", zeros_packed(64 * 1024**2))),
    "nested-cut.tar": lambda: tar(tar_entry("in.tgz", tgz(_BIG)[:-30])),
    "nested-checksum.tar": lambda: tar(tar_entry("in.tgz", bytes(_CORRUPT_GZ))),
    "nested-header.tar": lambda: tar(tar_entry("in.tar", _OTHER_MODE)),
    # Zips
    "absolute.zip": lambda: zip_of(Zipped(b"/etc/app.conf")),
    "drive.zip": lambda: zip_of(Zipped(b"C:\\app.conf")),
    "dots.zip": lambda: zip_of(Zipped(b"a\\..\\..\\app.conf")),
    "nul.zip": lambda: zip_of(Zipped(b"a.conf\0.txt")),
    "empty-name.zip": lambda: zip_of(Zipped(b"")),
    "twice.zip": lambda: zip_of(Zipped(b"a/b.conf"), Zipped(b"a\\b.conf")),
    "below-link.zip": lambda: zip_of(Zipped(b"a", b"b", mode=stat.S_IFLNK), Zipped(b"a/x.conf")),
    "link-above.zip": lambda: zip_of(Zipped(b"a", b"../b", mode=stat.S_IFLNK)),
    "link-long.zip": lambda: zip_of(Zipped(b"a", b"b" * 65_537, mode=stat.S_IFLNK)),
    "fifo.zip": lambda: zip_of(Zipped(b"pipe", b"", mode=stat.S_IFIFO)),
    "folder-data.zip": lambda: zip_of(Zipped(b"a/")),
    "encrypted.zip": lambda: zip_of(Zipped(b"a.conf", flags=1)),
    "method.zip": lambda: zip_of(Zipped(b"a.conf", method=98)),
    "local-name.zip": lambda: zip_of(Zipped(b"a.conf", local_name=b"b.conf")),
    "local-method.zip": lambda: zip_of(Zipped(b"a.conf", local_method=8)),
    "local-size.zip": lambda: zip_of(Zipped(b"a.conf", method=8, local_size=5)),
    "overlap.zip": lambda: zip_of(
        Zipped(b"a.conf", zip_of(Zipped(b"b.conf"))), Zipped(b"b.conf", offset=36, packed=CONF)
    ),
    "same-offset.zip": lambda: zip_of(Zipped(b"a/", b""), Zipped(b"a/", b"", offset=0)),
    "offset.zip": lambda: zip_of(Zipped(b"a.conf", offset=10_000)),
    "offset-inside.zip": lambda: zip_of(Zipped(b"a.conf", offset=7)),
    "more-than-said.zip": lambda: zip_of(Zipped(b"a.conf", CONF * 9, 8, size=10)),
    "less-than-said.zip": lambda: zip_of(Zipped(b"a.conf", CONF, 8, size=1000)),
    "stored-sizes.zip": lambda: zip_of(Zipped(b"a.conf", size=10)),
    "checksum.zip": lambda: zip_of(Zipped(b"a.conf", crc=1)),
    "broken-deflate.zip": lambda: zip_of(Zipped(b"a.conf", CONF, 8, packed=b"\xff" * 9)),
    "cut-deflate.zip": lambda: zip_of(
        Zipped(b"a.conf", CONF, 8, packed=Zipped(b"", CONF, 8).packed_data[:-4])
    ),
    "behind-deflate.zip": lambda: zip_of(
        Zipped(b"a.conf", CONF, 8, packed=Zipped(b"", CONF, 8).packed_data + b"more")
    ),
    "data-into-directory.zip": lambda: zip_of(Zipped(b"a.conf", CONF)).replace(
        struct.pack("<L", len(CONF)), struct.pack("<L", len(CONF) + 30)
    ),
    "cut.zip": lambda: zip_of(Zipped(b"a.conf"))[:-10],
    "before-first.zip": lambda: zip_of(Zipped(b"a.conf", before=_HIDDEN)),
    "between.zip": lambda: zip_of(Zipped(b"a.conf"), Zipped(b"b.conf", before=_HIDDEN)),
    "before-directory.zip": lambda: zip_of(Zipped(b"a.conf", behind=_HIDDEN)),
    "hidden-behind-sizes.zip": lambda: zip_of(Zipped(b"a.conf", flags=8, behind=bytes(16) + _HIDDEN)),
    "sizes-nobody-announced.zip": lambda: zip_of(Zipped(b"a.conf", behind=bytes(16))),
    "sizes-too-long.zip": lambda: zip_of(Zipped(b"a.conf", flags=8, behind=bytes(17))),
    "prepended.zip": lambda: b"PK\3\4" + zip_of(Zipped(b"a.conf")),
    "appended.zip": lambda: zip_of(Zipped(b"a.conf")) + b"more",
    "huge-directory.zip": lambda: zip_of(Zipped(b"a.conf"), size=2 * 1024**3),
    "many-said.zip": lambda: zip_of(Zipped(b"a.conf"), count=60_000),
    "fewer-said.zip": lambda: zip_of(Zipped(b"a.conf"), Zipped(b"b.conf"), count=1),
    "one-more-said.zip": lambda: zip_of(Zipped(b"a.conf"), Zipped(b"b" * 99), count=3),
    "directory-words.zip": lambda: zip_of(Zipped(b"a.conf")).replace(b"PK\1\2", b"PK\1\3"),
    "several-parts.zip": lambda: zip_of(Zipped(b"a.conf"), disk=1),
    "other-part.zip": lambda: zip_of(Zipped(b"a.conf", disk=4)),
    "zip64-missing.zip": lambda: zip_of(Zipped(b"a.conf", size=0xFFFFFFFF)),
    "zip64-nowhere.zip": lambda: zip64_of(Zipped(b"a.conf"), locator_offset=2**40),
    "zip64-size.zip": lambda: zip64_of(Zipped(b"a.conf"), extra_size=8),
}
