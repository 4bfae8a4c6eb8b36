"""The ZIP that a DOCX or an XLSX is: checked as a whole before anything is unpacked, then read part by part.

What the directory says is believed only as an upper bound: unpacking a part ends at the size that it says,
and those sizes together are bounded. No library opens the file by itself.
"""

from __future__ import annotations

import io
import posixpath
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from lxml import etree  # type: ignore[import-untyped]

from holdfast.core.errors import PermanentError
from holdfast.core.sizes import shown_bytes
from holdfast.pipelines.documents.reading.chunk import ReadLimits
from holdfast.pipelines.documents.reading.clean_text import one_line
from holdfast.pipelines.documents.reading.refusals import encrypted, invalid, shown, unpacks_to_too_much

PACKED_FREE_BYTES = 64 * 1024**2
"""A file that unpacks to less than this may do so at any ratio."""
DIRECTORY_BYTES_PER_ENTRY = 512
SMALL_PART_BYTES_MAX = 64 * 1024**2
HEAD_BYTES = 4096
TITLE_CHARS_MAX = 500

_END = struct.Struct("<4s4H2LH")
_END_SEARCHED_BYTES = _END.size + 0xFFFF
_LOCAL_HEADER_BYTES = 30
_ENCRYPTED_FLAG = 0x0001
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_FAULTS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error, UnicodeDecodeError)
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_RELATIONSHIP = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"


class Package:
    """Its parts, by their names in the ZIP."""

    def __init__(self, path: Path, filename: str, limits: ReadLimits) -> None:
        self.shown = shown(filename)
        self._file = path.open("rb")
        try:
            size = path.stat().st_size
            self._check_directory_size(size, limits)
            try:
                self._zip = zipfile.ZipFile(self._file)
            except (*_FAULTS, ValueError, OverflowError) as error:
                raise self._damaged(error) from error
            self._check(size, limits)
        except BaseException:
            self._file.close()
            raise
        # Names are compared without case; where two are the same, the last one counts, as ZIP readers do.
        self._infos = {info.filename.lstrip("/").lower(): info for info in self._zip.infolist()}

    def close(self) -> None:
        self._zip.close()
        self._file.close()

    def __enter__(self) -> Package:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def names(self) -> list[str]:
        return list(self._infos)

    def has(self, name: str) -> bool:
        return name.lower() in self._infos

    def size_of(self, name: str) -> int:
        return self._info(name).file_size

    def _info(self, name: str) -> zipfile.ZipInfo:
        info = self._infos.get(name.lower())
        if info is None:
            raise invalid(f"{self.shown} has no part {shown(name)}, which it refers to.")
        return info

    @contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        """The unpacked bytes of a part. What is wrong with them is told as what it is: a damaged file."""
        info = self._info(name)
        try:
            with self._zip.open(info) as file:
                yield file
        except _FAULTS as error:
            raise self._damaged(error) from error

    def read(self, name: str) -> bytes:
        if self.size_of(name) > SMALL_PART_BYTES_MAX:
            raise unpacks_to_too_much(
                f"Part {shown(name)} of {self.shown} has {shown_bytes(self.size_of(name))}."
            )
        with self.opened(name) as file:
            return file.read()

    def tree(self, name: str) -> Any:
        """A small part, parsed."""
        data = self.read(name)
        with self.faults_told(name):
            refuse_type_definition(data[:HEAD_BYTES], name, self.shown)
            return etree.fromstring(data, safe_parser())

    @contextmanager
    def faults_told(self, name: str) -> Iterator[None]:
        """Around the parsing of a part."""
        try:
            yield
        except etree.XMLSyntaxError as error:
            if "memory" in str(error).lower():
                raise MemoryError(str(error)) from error
            raise invalid(f"Part {shown(name)} of {self.shown} is no proper XML: {error}.") from error

    def relations(self, name: str) -> dict[str, tuple[str, str]]:
        """What a part refers to: the id, then the last word of the type and the name of the other part."""
        folder, base = posixpath.split(name)
        relations_name = posixpath.join(folder, "_rels", f"{base}.rels")
        found: dict[str, tuple[str, str]] = {}
        if not self.has(relations_name):
            return found
        for relation in self.tree(relations_name).iter(_RELATIONSHIP):
            target = relation.get("Target", "")
            if relation.get("TargetMode") == "External" or not target:
                continue
            full = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
            kind = relation.get("Type", "").rpartition("/")[2]
            found[relation.get("Id", "")] = (kind, full)
        return found

    def main_part(self) -> str | None:
        return next((name for kind, name in self.relations("").values() if kind == "officeDocument"), None)

    def title(self) -> str | None:
        """As it is in the document's properties; a document is no worse where these cannot be read."""
        with suppress(PermanentError):
            for kind, name in self.relations("").values():
                if kind == "core-properties" and self.has(name):
                    return one_line(self.tree(name).findtext(_TITLE) or "")[:TITLE_CHARS_MAX] or None
        return None

    # The directory

    def _check_directory_size(self, size: int, limits: ReadLimits) -> None:
        """Before it is read: each of its entries takes memory."""
        begin = max(size - _END_SEARCHED_BYTES, 0)
        self._file.seek(begin)
        tail = self._file.read()
        self._file.seek(0)
        at = tail.rfind(b"PK\5\6")
        if at < 0 or len(tail) - at < _END.size:
            raise self._damaged("the end of the ZIP is missing")
        _, _, _, _, entries, directory_bytes, _, _ = _END.unpack_from(tail, at)
        if entries > limits.entries_max or directory_bytes > limits.entries_max * DIRECTORY_BYTES_PER_ENTRY:
            raise unpacks_to_too_much(
                f"{self.shown} has a directory of {entries:,} entries in {shown_bytes(directory_bytes)};"
                f" the limit is {limits.entries_max:,} entries."
            )

    def _check(self, size: int, limits: ReadLimits) -> None:
        infos = self._zip.infolist()
        if len(infos) > limits.entries_max:
            raise unpacks_to_too_much(
                f"{self.shown} has {len(infos):,} entries; the limit is {limits.entries_max:,}."
            )
        total = sum(info.file_size for info in infos)
        if total > limits.unpacked_bytes_max:
            raise unpacks_to_too_much(
                f"{self.shown} unpacks to {shown_bytes(total)};"
                f" the limit is {shown_bytes(limits.unpacked_bytes_max)}."
            )
        if total > max(PACKED_FREE_BYTES, size * limits.ratio_max):
            raise unpacks_to_too_much(
                f"{self.shown} unpacks to {shown_bytes(total)}, which is {total / max(size, 1):,.0f} times"
                f" its size; the limit is {limits.ratio_max:g} times."
            )
        end = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            if info.flag_bits & _ENCRYPTED_FLAG:
                raise encrypted(f"Part {shown(info.filename)} of {self.shown} is encrypted.")
            if info.compress_type not in _METHODS:
                raise invalid(
                    f"Part {shown(info.filename)} of {self.shown} is packed with method"
                    f" {info.compress_type}, which office documents do not use."
                )
            if info.header_offset < end:
                raise invalid(
                    f"Part {shown(info.filename)} of {self.shown} lies within another part.",
                    user_message="The file is not put together as a document is",
                )
            end = info.header_offset + _LOCAL_HEADER_BYTES + info.compress_size
        if end > size:
            raise self._damaged("a part is said to have more bytes than there are")

    def _damaged(self, error: object) -> Exception:
        if isinstance(error, zlib.error) and "memory" in str(error):
            return MemoryError(str(error))
        return invalid(f"{self.shown} is a damaged or incomplete ZIP: {error}.")


def safe_parser() -> Any:
    """Nothing is fetched, no entity is expanded, no depth or size beyond what libxml2 thinks sane."""
    return etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, remove_comments=True,
        remove_pis=True,
    )  # fmt: skip


def refuse_type_definition(head: bytes, name: str, filename_shown: str) -> None:
    """Office documents have none; what is written in one is there to expand to a thousand times its size."""
    if b"<!DOCTYPE" in head or b"<!ENTITY" in head or "<!DOCTYPE".encode("utf-16-le") in head:
        raise invalid(
            f"Part {shown(name)} of {filename_shown} defines its own document type, which none may.",
            user_message="The file is not put together as a document is",
        )


def guarded(file: IO[bytes], name: str, filename_shown: str) -> IO[bytes]:
    """A part for a parser that reads it piece by piece, once its beginning is found to be harmless."""
    reader = io.BufferedReader(file, 256 * 1024)  # type: ignore[type-var]
    refuse_type_definition(reader.peek(HEAD_BYTES)[:HEAD_BYTES], name, filename_shown)
    return reader
