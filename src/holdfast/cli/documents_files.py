"""Which files `holdfast documents add` takes: those that are named, whatever they are, and of a folder those
that could be documents. Of others in it only how many there are is told, and of what kind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.cli.output import counted, shown
from holdfast.cli.uploading import unreadable
from holdfast.core.errors import InvalidInput, PermanentError

SUFFIXES = frozenset({".pdf", ".docx", ".docm", ".dotx", ".dotm", ".xlsx", ".xlsm", ".xltx", ".xltm", ".txt"})
HEAD_BYTES = 8 * 1024
SUFFIX_CHARS_MAX = 12
KINDS_TOLD_MAX = 5

# Who has a document open: Office keeps such a file beside it.
OFFICE_LOCK = "~$"

_ZIP, _OFFICE_ZIP = b"PK\3\4", b"[Content_Types].xml"


@dataclass(slots=True)
class Found:
    files: list[Path] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """By what people would call them: `.png`, `unreadable`."""

    @property
    def told_skipped(self) -> str:
        """`3 files skipped: 2 .png, 1 .zip`; nothing where there are none."""
        if not (count := self.skipped.total()):
            return ""
        kinds = self.skipped.most_common()
        named = [f"{number:,} {kind}" for kind, number in kinds[:KINDS_TOLD_MAX]]
        if rest := sum(number for _, number in kinds[KINDS_TOLD_MAX:]):
            named.append(f"{counted(rest, 'other')}")
        return f"{counted(count, 'file')} skipped: {', '.join(named)}"


def found_in(paths: Sequence[Path]) -> Found:
    """All of them, before anything is sent; each once, however often it is named."""
    found, seen = Found(), set[str]()

    def add(file: Path) -> None:
        if (place := os.path.realpath(file)) not in seen:
            seen.add(place)
            found.files.append(file)

    for path in paths:
        if path.is_dir():
            for file in _files_of(path, found):
                add(file)
        elif path.is_file():
            add(path)
        else:
            what = "is no file and no folder" if os.path.lexists(path) else "is not there"
            raise InvalidInput(
                f"{str(path)!r} {what}.",
                guidance="Give documents (PDF, XLSX, DOCX, TXT), or folders with documents in them.",
            )
    if not found.files:
        skipped = f" {found.told_skipped}." if found.told_skipped else ""
        raise InvalidInput(
            f"There is no document in {', '.join(repr(str(path)) for path in paths)}.{skipped}",
            guidance="Documents are PDF, XLSX, DOCX and TXT. A file that is named itself is always taken.",
        )
    return found


def _files_of(folder: Path, found: Found) -> Iterator[Path]:
    """In the order of their names, folder by folder. What is hidden is passed over, and so are links to
    folders and the locks of Office."""
    inside = os.path.realpath(folder)

    def failed(error: OSError) -> None:
        if error.filename == os.fspath(folder):
            raise unreadable(folder, error)
        found.skipped["in unreadable folders"] += 1

    for place, folders, names in os.walk(folder, onerror=failed):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(place, name)
            if name.startswith((".", OFFICE_LOCK)):
                continue
            if (why := _why_skipped(file, inside)) is None:
                yield file
            else:
                found.skipped[why] += 1


def _why_skipped(file: Path, inside: str) -> str | None:
    if file.is_symlink():
        target = os.path.realpath(file)
        if os.path.commonpath([inside, target]) != inside:
            return "linked from elsewhere"
    if not file.is_file():
        return "special"
    if file.suffix.lower() in SUFFIXES:
        return None  # what is wrong with it, its processing says
    try:
        is_document = _could_be_document(file)
    except OSError:
        return "unreadable"
    return None if is_document else _kind_by_name(file)


def _could_be_document(file: Path) -> bool:
    from holdfast.pipelines.documents.reading.chunk import ReadLimits
    from holdfast.pipelines.documents.reading.kinds import kind_of

    with file.open("rb") as opened:
        head = opened.read(HEAD_BYTES)
    if head.startswith(_ZIP):
        return _OFFICE_ZIP in head
    try:
        kind_of(file, file.name, ReadLimits())
    except PermanentError:
        return False
    return True


def _kind_by_name(file: Path) -> str:
    suffix = file.suffix.lower()
    return shown(suffix) if 1 < len(suffix) <= SUFFIX_CHARS_MAX else "of other kinds"


def size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise unreadable(file, error) from error
