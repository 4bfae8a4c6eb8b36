"""The door to archives that strangers send: what they are, and the files in them, one after the other.

    kind_of(name, head) ──▶ members(path, kind, …)
                              │ tar: stream ─▶ tar_reader ┐
                              │ zip: file   ─▶ zip_reader ┴▶ Entry ─┬ wanted: spooled ─▶ Member
                              │                                     ├ an archive: spooled, opened in its turn
                              │                                     └ else: passed over
                              └ Budget: one for all levels

Nothing is ever written under a name that the archive chose; what is unpacked lies in files without a name,
in the folder `spool`. Whatever is wrong with an archive is a PermanentError that names the entry and the
rule. An OSError is the disk's, and passes through.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from holdfast.core.errors import PermanentError
from holdfast.pipelines.conf_archives.archive_entry import PIECE_BYTES, Entry
from holdfast.pipelines.conf_archives.archive_limits import ArchiveLimits, Budget
from holdfast.pipelines.conf_archives.archive_names import Names
from holdfast.pipelines.conf_archives.archive_refusals import PACK_AGAIN, malformed, shown, too_much
from holdfast.pipelines.conf_archives.tar_reader import BLOCK_BYTES, is_tar_header, tar_entries
from holdfast.pipelines.conf_archives.unpacking import (
    PackedStream,
    PlainStream,
    Stream,
    bzip2_decoder,
    gzip_decoder,
    xz_decoder,
    xz_memory_bytes,
)
from holdfast.pipelines.conf_archives.zip_reader import zip_entries

__all__ = ["HEAD_BYTES", "ArchiveLimits", "Kind", "Member", "kind_of", "members"]

HEAD_BYTES = BLOCK_BYTES  # what kind_of wants to see
SPOOL_MEMORY_BYTES = 1024**2


class Kind(StrEnum):
    TAR = "tar"
    TAR_GZ = "tar.gz"
    TAR_BZ2 = "tar.bz2"
    TAR_XZ = "tar.xz"
    ZIP = "zip"
    CONF = "conf"


_ARCHIVE_SUFFIXES = (
    *(".tar", ".tar.gz", ".tgz", ".spl", ".tar.bz2", ".tbz2", ".tar.xz", ".txz"),
    ".zip",
)
_CONF_SUFFIXES = (".conf", ".meta")
_FORMATS = ", ".join((*_ARCHIVE_SUFFIXES, *_CONF_SUFFIXES))

_OTHER_FORMATS = {
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"\x28\xb5\x2f\xfd": "packed with Zstandard",
    b"\x04\x22\x4d\x18": "packed with LZ4",
    b"\x1f\x9d": "packed with compress",
    b"MSCF\0\0\0\0": "a Windows cabinet",
}


def kind_of(filename: str, head: bytes) -> Kind:
    """What a file is, by its bytes first, then by its name; `head` is its first HEAD_BYTES."""
    if not head:
        raise PermanentError(
            f"The file {shown(filename)} is empty.",
            error_type="empty_file",
            user_message="The file is empty",
            guidance="Look at the file itself, and upload one that has something in it.",
        )
    name = filename.lower()
    if not name.endswith((*_ARCHIVE_SUFFIXES, *_CONF_SUFFIXES)):
        raise _unsupported(f"The file {shown(filename)} has a name that none of the accepted formats has.")
    if (kind := _archive_kind_of(name, head)) is not None:
        return kind
    for magic, what in _OTHER_FORMATS.items():
        if head.startswith(magic):
            raise _unsupported(f"The file {shown(filename)} is {what}.")
    if name.endswith(_CONF_SUFFIXES):
        return Kind.CONF
    raise malformed(
        f"The file {shown(filename)} is called an archive, and its bytes are none: it does not begin like a"
        " tar, gzip, bzip2, xz or zip.",
        user_message="The file is not the archive its name says",
    )


def _unsupported(message: str) -> PermanentError:
    return PermanentError(
        message,
        error_type="unsupported_format",
        user_message="Files of this format are not accepted",
        guidance=f"{PACK_AGAIN} Accepted are {_FORMATS}.",
    )


def _archive_kind_of(name: str, head: bytes) -> Kind | None:
    if head.startswith((b"PK\3\4", b"PK\5\6")):
        return Kind.ZIP
    if head.startswith(b"\x1f\x8b"):
        return Kind.TAR_GZ
    # Text may begin with BZh; with the digits of pi behind it, or of its root where nothing is packed, no.
    if head.startswith(b"BZh") and head[4:10] in (b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90"):
        return Kind.TAR_BZ2
    if head.startswith(b"\xfd7zXZ\0"):
        return Kind.TAR_XZ
    is_empty_tar = name.endswith(_ARCHIVE_SUFFIXES) and head[:BLOCK_BYTES] == bytes(BLOCK_BYTES)
    return Kind.TAR if is_empty_tar or is_tar_header(head) else None


@dataclass(frozen=True)
class Member:
    """A file of an archive. `file` is at its beginning, seekable, and closed when the next one is asked
    for. One that is only a link has nothing in it: it is not followed."""

    path: str
    size: int
    file: BinaryIO
    link_to: str | None = None


def members(
    path: Path,
    kind: Kind,
    limits: ArchiveLimits,
    wanted: Callable[[str], bool],
    spool: Path,
    *,
    progress: Callable[[int], None] | None = None,
) -> Generator[Member, None, None]:
    """The files whose path is wanted, in the archive's order.

    An archive in the archive is opened too, its path being a folder: `apps/x.tgz/x/default/app.conf`. `spool`
    is an existing private folder for temporary files, of which none is left behind. `progress` is told how
    many bytes of the packed file have been consumed, and the same number again while an archive in it is
    read; what it raises ends the reading.
    """
    if kind is Kind.CONF:
        raise ValueError("A conf file is no archive: read it as it is.")
    return _members(path, kind, limits, wanted, spool, progress or (lambda _: None))


def _members(
    path: Path,
    kind: Kind,
    limits: ArchiveLimits,
    wanted: Callable[[str], bool],
    spool: Path,
    progress: Callable[[int], None],
) -> Generator[Member, None, None]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        reading = _Reading(Budget(limits, size), wanted, spool, progress)
        with closing(reading.level(_Level(file, size, kind, "", 1))) as found:
            yield from found
    progress(size)


@dataclass(frozen=True)
class _Level:
    """An archive that is open. `inside` is its path, "" for the outermost, whose depth is 1."""

    file: BinaryIO
    size: int
    kind: Kind
    inside: str
    depth: int


class _Reading:
    def __init__(
        self, budget: Budget, wanted: Callable[[str], bool], spool: Path, progress: Callable[[int], None]
    ) -> None:
        self._budget = budget
        self._wanted = wanted
        self._spool = spool
        self._progress = progress
        self._consumed = 0  # of the outermost archive

    def level(self, level: _Level) -> Generator[Member, None, None]:
        with ExitStack() as until_read:
            for entry in self._entries(level, until_read):
                if entry.link_to is not None:
                    if self._wanted(entry.path):
                        yield Member(entry.path, 0, io.BytesIO(), entry.link_to)
                elif entry.path.lower().endswith(_ARCHIVE_SUFFIXES):
                    with closing(self._opened(entry, level.depth + 1)) as found:
                        yield from found
                elif self._wanted(entry.path):
                    with self._spooled(entry) as file:
                        yield Member(entry.path, entry.size, file)

    def _opened(self, entry: Entry, depth: int) -> Generator[Member, None, None]:
        """What lies in an entry that is called an archive; itself, where it is none."""
        with self._spooled(entry) as file:
            kind = _archive_kind_of(entry.path.lower(), file.read(HEAD_BYTES))
            file.seek(0)
            if kind is None:
                if self._wanted(entry.path):
                    yield Member(entry.path, entry.size, file)
                return
            if depth > self._budget.limits.depth_max:
                raise too_much(
                    f"Entry {shown(entry.path)} is an archive in archives deeper than the"
                    f" {self._budget.limits.depth_max} levels that are read."
                )
            with closing(self.level(_Level(file, entry.size, kind, entry.path, depth))) as found:
                yield from found

    @contextmanager
    def _spooled(self, entry: Entry) -> Iterator[BinaryIO]:
        with tempfile.SpooledTemporaryFile(max_size=SPOOL_MEMORY_BYTES, dir=str(self._spool)) as spooled:
            for piece in entry.pieces():
                spooled.write(piece)
            spooled.seek(0)
            yield cast(BinaryIO, spooled)

    def _entries(self, level: _Level, until_read: ExitStack) -> Iterator[Entry]:
        names = Names(level.inside, self._budget, is_backslash_slash=level.kind is Kind.ZIP)
        told = self._told if level.depth == 1 else self._told_again
        if level.kind is Kind.ZIP:
            return zip_entries(level.file, level.size, names, self._budget, told)
        return tar_entries(self._stream(level, names.archive, told, until_read), names, self._budget)

    def _stream(
        self, level: _Level, archive: str, told: Callable[[int], None], until_read: ExitStack
    ) -> Stream:
        if level.kind is Kind.TAR:
            return PlainStream(level.file, level.size, archive, told)
        if level.kind is Kind.TAR_GZ:
            return PackedStream(level.file, gzip_decoder, archive, told)
        if level.kind is Kind.TAR_BZ2:
            return PackedStream(level.file, bzip2_decoder, archive, told)
        head = level.file.read(PIECE_BYTES)
        level.file.seek(0)
        memory_bytes = xz_memory_bytes(head, archive, self._budget)
        until_read.enter_context(self._budget.xz_bytes_lent(memory_bytes))
        return PackedStream(level.file, partial(xz_decoder, memory_bytes), archive, told)

    def _told(self, consumed: int) -> None:
        self._consumed = max(self._consumed, consumed)
        self._progress(self._consumed)

    def _told_again(self, _: int) -> None:
        self._progress(self._consumed)
