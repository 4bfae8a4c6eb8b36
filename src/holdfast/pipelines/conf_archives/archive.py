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
from holdfast.pipelines.conf_archives.archive_entry import PIECE_BYTES, Entry, HardLink, SymbolicLink
from holdfast.pipelines.conf_archives.archive_limits import BZIP2_MEMORY_BYTES, ArchiveLimits, Budget
from holdfast.pipelines.conf_archives.archive_names import Names, is_folder_icon
from holdfast.pipelines.conf_archives.archive_refusals import (
    PACK_AGAIN,
    NotReadHere,
    malformed,
    shown,
    too_much,
)
from holdfast.pipelines.conf_archives.placing import DEFAULT, LOCAL, METADATA
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
SPOOL_MEMORY_BYTES = 256 * 1024

_HOW_TO_FOLLOW = "pack what it leads to: tar -h"
_HOW_TO_PART = "pack it as a file of its own: tar --hard-dereference"


class Kind(StrEnum):
    TAR = "tar"
    TAR_GZ = "tar.gz"
    TAR_BZ2 = "tar.bz2"
    TAR_XZ = "tar.xz"
    ZIP = "zip"
    CONF = "conf"


_ARCHIVE_SUFFIXES = (
    *(".tar", ".tar.gz", ".tgz", ".spl", ".tar.bz2", ".tbz2", ".tbz", ".tb2", ".tar.xz", ".txz"),
    ".zip",
)
_CONF_SUFFIXES = (".conf", ".meta")
_FORMATS = ", ".join((*_ARCHIVE_SUFFIXES, *_CONF_SUFFIXES))

_CONF_FOLDERS = frozenset({DEFAULT, LOCAL, METADATA})

_OTHER_FORMATS = {
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"\x28\xb5\x2f\xfd": "packed with Zstandard",
    b"\x04\x22\x4d\x18": "packed with LZ4",
    b"\x1f\x9d": "packed with compress",
    b"MSCF\0\0\0\0": "a Windows cabinet",
}
_APPLE_DOUBLE = b"\0\5\x16\7"  # of `._x.tgz`, which macOS packs beside x.tgz


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
    if (other := _other_format_of(head)) is not None:
        raise _unsupported(f"The file {shown(filename)} is {other}.")
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


def _other_format_of(head: bytes) -> str | None:
    return next((what for magic, what in _OTHER_FORMATS.items() if head.startswith(magic)), None)


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
    is_called_archive = name.endswith(_ARCHIVE_SUFFIXES)
    is_empty_tar = is_called_archive and head[:BLOCK_BYTES] == bytes(BLOCK_BYTES)
    return Kind.TAR if is_empty_tar or is_tar_header(head, is_magic_enough=is_called_archive) else None


@dataclass(frozen=True)
class Member:
    """A file of an archive. `file` is at its beginning, seekable, and closed when the next one is asked
    for. Nothing is in a member that has a fault or is a hard link."""

    path: str
    size: int
    file: BinaryIO
    fault: str | None = None
    """Why it is not read, for an administrator: a part of a sentence."""
    linked_to: str | None = None
    """It is a hard link: the path of the file of the same archive that it is another name of. That file may
    be wanted itself, or not; it is found in a second pass."""


def _empty_member(path: str, fault: str | None = None, linked_to: str | None = None) -> Member:
    return Member(path, 0, io.BytesIO(), fault, linked_to)


def _unread_archive(path: str, reason: str) -> Member:
    return _empty_member(path, f"an archive that is not read: {reason}")


def _no_archive(head: bytes) -> str:
    if not head:
        return "it is empty"
    other = _other_format_of(head)
    return f"it is {other}" if other else "its bytes are those of no archive"


def _hard_link_member(path: str, link: HardLink) -> Member:
    if link.path is None:
        what = f"a hard link to {shown(link.target)}, which is not the path of any file"
        return _empty_member(path, f"{what}; {_HOW_TO_PART}")
    return _empty_member(path, linked_to=link.path)


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
                if is_folder_icon(entry.path):
                    continue
                if entry.link is not None:
                    if (member := self._link_member(entry.path, entry.link)) is not None:
                        yield member
                elif entry.path.lower().endswith(_ARCHIVE_SUFFIXES):
                    with closing(self._opened(entry, level.depth + 1)) as found:
                        yield from found
                elif self._wanted(entry.path):
                    with self._spooled(entry) as file:
                        yield Member(entry.path, entry.size, file)

    def _link_member(self, path: str, link: SymbolicLink | HardLink) -> Member | None:
        """None where nobody misses anything: of libx.so, a link to libx.so.1, nothing would be read."""
        is_archive = path.lower().endswith(_ARCHIVE_SUFFIXES)
        if isinstance(link, HardLink):
            if self._wanted(path):
                return _hard_link_member(path, link)
            what = f"a hard link to {shown(link.target)}, an archive"
            return _empty_member(path, f"{what}; {_HOW_TO_PART}") if is_archive else None
        is_folder = link.is_to_folder or path.rpartition("/")[2] in _CONF_FOLDERS
        if not (is_archive or is_folder or self._wanted(path)):
            return None
        return _empty_member(path, f"a link to {shown(link.target)}, which is not followed; {_HOW_TO_FOLLOW}")

    def _opened(self, entry: Entry, depth: int) -> Generator[Member, None, None]:
        """What lies in an entry that is called an archive; itself, where it is none and wanted so."""
        with self._spooled(entry) as file:
            head = file.read(HEAD_BYTES)
            file.seek(0)
            kind = _archive_kind_of(entry.path.lower(), head)
            if kind is None and self._wanted(entry.path):
                yield Member(entry.path, entry.size, file)
            elif kind is None:
                if not head.startswith(_APPLE_DOUBLE):
                    yield _unread_archive(entry.path, _no_archive(head))
            elif depth > self._budget.limits.depth_max:
                raise too_much(
                    f"Entry {shown(entry.path)} is an archive in archives deeper than the"
                    f" {self._budget.limits.depth_max} levels that are read."
                )
            else:
                yield from self._nested(_Level(file, entry.size, kind, entry.path, depth))

    def _nested(self, level: _Level) -> Generator[Member, None, None]:
        """One that cannot be read, without meaning harm, is told; the one around it is read all the same.
        Once a part of it was handed on it is too late for that."""
        is_begun = False
        try:
            with closing(self.level(level)) as found:
                for member in found:
                    is_begun = True
                    yield member
            return
        except NotReadHere as refusal:
            if is_begun:
                raise
            reason = refusal.reason
        yield _unread_archive(level.inside, reason)

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
            until_read.enter_context(self._budget.memory_lent(BZIP2_MEMORY_BYTES, archive))
            return PackedStream(level.file, bzip2_decoder, archive, told)
        head = level.file.read(PIECE_BYTES)
        level.file.seek(0)
        memory_bytes = xz_memory_bytes(head, archive, self._budget)
        until_read.enter_context(self._budget.memory_lent(memory_bytes, archive))
        return PackedStream(level.file, partial(xz_decoder, memory_bytes), archive, told)

    def _told(self, consumed: int) -> None:
        self._consumed = max(self._consumed, consumed)
        self._progress(self._consumed)

    def _told_again(self, _: int) -> None:
        self._progress(self._consumed)
