"""The files of an upload, one after the other: bytes ─▶ text ─▶ stanzas and faults ─▶ the writer.

What is in the archive under a name and cannot be read is told as a fault of that name, so that nobody misses
a file and does not know why. Hard links are the exception: they are other names of files that are there, and
are read with those, in a second pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from holdfast.core.errors import PermanentError
from holdfast.pipelines.conf_archives.archive import HEAD_BYTES, Kind, Member, kind_of, members
from holdfast.pipelines.conf_archives.archive_limits import ArchiveLimits, Budget
from holdfast.pipelines.conf_archives.archive_refusals import shown
from holdfast.pipelines.conf_archives.conf_parser import Fault, parse
from holdfast.pipelines.conf_archives.conf_text import line_of_no_utf_8, text_blocks
from holdfast.pipelines.conf_archives.placing import is_conf, is_wanted, place_of
from holdfast.pipelines.conf_archives.run_writer import FileRead, RunWriter
from holdfast.pipelines.upload import Upload

LINKED_MAX = 1_000  # hard links that are read: their paths are remembered

Told = Callable[[int | None], None]
"""Called often, with how many bytes of the upload have been read where that is known; ends the reading by
what it raises."""


class Reading:
    """Of one upload, which lies in the file `archive`; `folder` is a private one for temporary files."""

    def __init__(
        self,
        upload: Upload,
        archive: Path,
        folder: Path,
        limits: ArchiveLimits,
        writer: RunWriter,
        told: Told,
    ) -> None:
        self._upload = upload
        self._archive = archive
        self._folder = folder
        self._limits = limits
        self._writer = writer
        self._told = told

    def read_all(self) -> None:
        upload = self._upload
        with self._archive.open("rb") as file:
            kind = kind_of(upload.filename, file.read(HEAD_BYTES))
            if kind is Kind.CONF:
                self._read(upload.filename, file, upload.size, lambda: self._told(file.tell()))
                return
        if not self._read_archive(kind):
            raise PermanentError(
                f"There is no .conf file in {upload.filename!r}.", error_type="no_conf_files"
            )

    def _read_archive(self, kind: Kind) -> bool:
        """Whether there is a .conf in it."""
        has_conf = False
        linked: dict[str, list[str]] = {}
        links = 0
        with closing(self._members(kind, is_wanted, self._told)) as found:
            for member in found:
                if member.linked_to is not None and links < LINKED_MAX:
                    linked.setdefault(member.linked_to, []).append(member.path)
                    links += 1
                elif member.linked_to is not None:
                    self._tell(member.path, f"a hard link, and there are more than {LINKED_MAX:,} of them")
                elif member.fault is not None:
                    self._tell(member.path, member.fault)
                else:
                    self._read_member(member.path, member)
                    has_conf = has_conf or is_conf(member.path)
        return (bool(linked) and self._read_linked(kind, linked)) or has_conf

    def _members(
        self, kind: Kind, wanted: Callable[[str], bool], told: Told
    ) -> Generator[Member, None, None]:
        return members(self._archive, kind, self._limits, wanted, self._folder, progress=told)

    def _read_linked(self, kind: Kind, linked: dict[str, list[str]]) -> bool:
        """What has many names is read as often, and counts as often. Whether one of them is a .conf."""
        has_conf = False
        budget = Budget(self._limits, self._upload.size)
        with closing(self._members(kind, linked.__contains__, lambda _: self._told(None))) as found:
            for member in found:
                if member.linked_to is None and member.fault is None:
                    for path in linked.pop(member.path):
                        budget.take_bytes(member.size, path)
                        self._read_member(path, member)
                        has_conf = has_conf or is_conf(path)
        for target, paths in linked.items():
            for path in paths:
                self._tell(path, f"a hard link to {shown(target)}, which is no file that is read")
        return has_conf

    def _read_member(self, path: str, member: Member) -> None:
        self._read(path, member.file, member.size, lambda: self._told(None))

    def _read(self, path: str, file: BinaryIO, size: int, beat: Callable[[], None]) -> None:
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        encoding, blocks = text_blocks(file)
        read = FileRead(path, place_of(path), encoding, size, digest)
        if encoding.startswith(("utf-16", "utf-32")):
            blocks = _with_losses_told(blocks, read)
        elif encoding == "latin-1" and (line := line_of_no_utf_8(file)) is not None:
            words = "this line is no UTF-8, as those before it are; all of the file is read as latin-1"
            read.add_fault(Fault(line, words))
        for found in parse(_watched(blocks, beat)):
            if isinstance(found, Fault):
                read.add_fault(found)
            else:
                self._writer.add_stanza(read, found)
        self._writer.end_file(read)

    def _tell(self, path: str, fault: str) -> None:
        """Of what is there, and is not read."""
        read = FileRead(path, place_of(path), "utf-8", 0, hashlib.sha256(fault.encode()).hexdigest())
        read.add_fault(Fault(1, fault))
        self._writer.end_file(read)


def _watched(blocks: Iterator[str], beat: Callable[[], None]) -> Iterator[str]:
    """By blocks: a file may have a million lines and no stanza."""
    for block in blocks:
        beat()
        yield block


def _with_losses_told(blocks: Iterator[str], read: FileRead) -> Iterator[str]:
    """Bytes that are no character of an encoding have become U+FFFD: the first line of them is told."""
    line, end = 1, ""
    is_told = False
    for block in blocks:
        if not is_told:
            at = block.find("\ufffd")
            is_told = at >= 0
            lines = (end + (block[:at] if is_told else block)).replace("\r\n", "\n").replace("\r", "\n")
            line += lines.count("\n") - (1 if end else 0)
            end = "\r" if block.endswith("\r") else ""
            if is_told:
                read.add_fault(Fault(line, f"from here on some characters are no {read.encoding}, and lost"))
        yield block
