"""What a file is, by its bytes. Its name never makes it anything; text that is called a PDF is refused.

%PDF-                      pdf
ZIP ─▶ what is in it       docx, xlsx; others are named, and not read
OLE ─▶ what is in it       a document with a password, or one of an old format
a known beginning          named, and not read
else                       txt where it is text
"""

from __future__ import annotations

import mmap
from pathlib import Path

from holdfast.core.errors import PermanentError
from holdfast.pipelines.documents.reading.chunk import DocumentKind, ReadLimits
from holdfast.pipelines.documents.reading.encodings import is_text
from holdfast.pipelines.documents.reading.refusals import (
    FORMATS,
    empty,
    encrypted,
    invalid,
    shown,
    unsupported,
)

HEAD_BYTES = 64 * 1024
PDF_SEARCHED_BYTES = 1024
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OLE_ENTRY_BYTES = 128
_ZIP = (b"PK\3\4", b"PK\5\6", b"PK\7\x08")

_OFFICE_ZIPS = {
    "word": "a Word document",
    "xl": "an Excel workbook",
    "ppt": "a PowerPoint presentation",
    "visio": "a Visio drawing",
}
_SUFFIXES = {
    **{".pdf": "pdf", ".docx": "docx", ".docm": "docx", ".dotx": "docx", ".dotm": "docx"},
    **{".xlsx": "xlsx", ".xlsm": "xlsx", ".xltx": "xlsx", ".xltm": "xlsx"},
}
_SAVE_AS = "Save it as {} in the program that it was made with, and upload it again. " + FORMATS
_MIMETYPES = {
    "application/vnd.oasis.opendocument.text": ("an OpenDocument text", "DOCX or PDF"),
    "application/vnd.oasis.opendocument.spreadsheet": ("an OpenDocument spreadsheet", "XLSX"),
    "application/vnd.oasis.opendocument.presentation": ("an OpenDocument presentation", "PDF"),
    "application/vnd.oasis.opendocument.graphics": ("an OpenDocument drawing", "PDF"),
    "application/epub+zip": ("an EPUB book", "PDF or DOCX"),
}
_OLE_STREAMS = {
    "WordDocument": ("an old Word document (.doc)", "DOCX"),
    "Workbook": ("an old Excel workbook (.xls)", "XLSX"),
    "Book": ("an old Excel workbook (.xls)", "XLSX"),
    "PowerPoint Document": ("an old PowerPoint presentation (.ppt)", "PDF"),
    "__properties_version1.0": ("an Outlook message (.msg)", "PDF or TXT"),
    "VisioDocument": ("an old Visio drawing (.vsd)", "PDF"),
}
# By their beginnings; what begins with fewer than three bytes of its own is known by being no text.
_BEGINNINGS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"{\\rtf", "an RTF document"),
    (0, b"%!PS", "a PostScript file"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF87a", "a GIF image"),
    (0, b"GIF89a", "a GIF image"),
    (0, b"II*\0", "a TIFF image"),
    (0, b"MM\0*", "a TIFF image"),
    (8, b"WEBP", "a WebP image"),
    (8, b"WAVE", "a sound file"),
    (8, b"AVI ", "a video"),
    (4, b"ftyp", "a video or an image"),
    (0, b"\x1aE\xdf\xa3", "a video"),
    (0, b"ID3", "a sound file"),
    (0, b"fLaC", "a sound file"),
    (0, b"OggS", "a sound file or a video"),
    (0, b"\x1f\x8b\x08", "a gzip archive"),
    (0, b"BZh", "a bzip2 archive"),
    (0, b"\xfd7zXZ\0", "an xz archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (0, b"Rar!\x1a\x07", "a RAR archive"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x7fELF", "a program"),
    (0, b"MZ", "a Windows program"),
    (0, b"\xcf\xfa\xed\xfe", "a program"),
    (0, b"\xca\xfe\xba\xbe", "a program"),
    (0, b"BM", "a bitmap image"),
    (0, b"SQLite format 3\0", "a SQLite database"),
    (0, b"PAR1", "a Parquet file"),
    (0, b"wOF", "a font"),
    (0, b"\0\1\0\0\0", "a font"),
    (0, b"OTTO\0", "a font"),
)
_TEXT_CAN_BEGIN_SO = frozenset({b"MZ", b"BM", b"ID3", b"BZh", b"PAR1", b"ftyp", b"WEBP", b"WAVE", b"wOF",
                                b"AVI ", b"OggS", b"fLaC"})  # fmt: skip
_CALLED = {"pdf": "a PDF", "docx": "a Word document", "xlsx": "an Excel workbook"}


def kind_of(path: Path, filename: str, limits: ReadLimits) -> DocumentKind:
    """Or the reason why it is not read."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        if not head.strip(b" \t\r\n\x0b\x0c"):
            head = _head_behind_space(path, head, filename)
    if _is_pdf(head):
        return "pdf"
    if head.startswith(_ZIP):
        return _kind_of_zip(path, filename, limits)
    if head.startswith(_OLE):
        raise _of_ole(path, filename)
    for at, beginning, what in _BEGINNINGS:
        if head.startswith(beginning, at) and not (beginning in _TEXT_CAN_BEGIN_SO and is_text(head)):
            raise _not_read(what, filename)
    if not is_text(head):
        raise _not_read("binary data of no known format", filename)
    if expected := _kind_by_name(filename):
        # It reads well, and yet it is the rest of something else, or an error message in its place.
        raise invalid(
            f"{shown(filename)} is text, and not {_CALLED[expected]}, as its name says.",
            user_message="The file is not what its name says",
            guidance="Check that it is the right file. Upload text with a name that ends in .txt.",
        )
    return "txt"


def is_text_by_another_name(head: bytes, filename: str) -> bool:
    """Text that is called something else, as far as the beginning of a file tells."""
    is_something = _is_pdf(head) or head.startswith((*_ZIP, _OLE))
    return not is_something and _kind_by_name(filename) is not None and is_text(head)


def _is_pdf(head: bytes) -> bool:
    at = head.find(b"%PDF-", 0, PDF_SEARCHED_BYTES + 5)
    # What stands before it in a PDF is rubbish of a transfer; in a text it is a sentence.
    return at == 0 or (at > 0 and (not is_text(head) or not head[:at].strip() or b" obj" in head[at:]))


def _head_behind_space(path: Path, head: bytes, filename: str) -> bytes:
    """A file may begin with more white space than is looked at."""
    if not head:
        raise empty(f"{shown(filename)} has no bytes.")
    with path.open("rb") as file:
        while block := file.read(1024**2):
            if rest := block.lstrip(b" \t\r\n\x0b\x0c"):
                return head[:64] + rest[:HEAD_BYTES]
    raise empty(f"{shown(filename)} has only white space.")


def _kind_by_name(filename: str) -> str | None:
    return _SUFFIXES.get(Path(filename).suffix.lower())


def _not_read(what: str, filename: str, guidance: str | None = None) -> PermanentError:
    return unsupported(f"{shown(filename)} is {what}.", guidance=guidance)


# ZIP


def _kind_of_zip(path: Path, filename: str, limits: ReadLimits) -> DocumentKind:
    from holdfast.pipelines.documents.reading.packed import Package

    with Package(path, filename, limits) as package:
        if package.has("mimetype") and package.size_of("mimetype") < 200:
            mimetype = package.read("mimetype").decode("ascii", "replace").strip().removesuffix("-template")
            if mimetype in _MIMETYPES:
                what, better = _MIMETYPES[mimetype]
                raise _not_read(what, filename, _SAVE_AS.format(better))
        names = package.names
        if not package.has("[content_types].xml"):
            if _kind_by_name(filename) in ("docx", "xlsx") and not names:
                raise invalid(f"{shown(filename)} is a ZIP archive with nothing in it.")
            raise _not_read(_other_zip(names), filename, _unpack_first(names))
        main = package.main_part()
        if main is not None and package.has(main):
            folder = main.partition("/")[0]
            if folder == "word" or package.has("word/document.xml"):
                return "docx"
            if folder == "xl" and main.endswith(".bin"):
                raise _not_read("a binary Excel workbook (.xlsb)", filename, _SAVE_AS.format("XLSX"))
            if folder == "xl" or package.has("xl/workbook.xml"):
                return "xlsx"
        folders = {name.partition("/")[0] for name in names}
        for folder, what in _OFFICE_ZIPS.items():
            if folder in folders and folder not in ("word", "xl"):
                raise _not_read(what, filename, _SAVE_AS.format("PDF"))
            if folder in folders:
                raise invalid(f"{shown(filename)} is {what} without its main part.")
        raise _not_read("a package of no known kind", filename)


def _other_zip(names: list[str]) -> str:
    if "meta-inf/manifest.mf" in names:
        return "a Java archive"
    if "index/document.iwa" in names:
        return "an Apple iWork document"
    return "a ZIP archive"


def _unpack_first(names: list[str]) -> str:
    if "index/document.iwa" in names:
        return _SAVE_AS.format("PDF, DOCX or XLSX")
    return f"Unpack it, and upload the documents in it. {FORMATS}"


# OLE


def _of_ole(path: Path, filename: str) -> PermanentError:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if _has_stream(data, "EncryptedPackage"):
            return encrypted(f"{shown(filename)} is an Office document that is encrypted with a password.")
        for stream, (what, better) in _OLE_STREAMS.items():
            if _has_stream(data, stream):
                return _not_read(what, filename, _SAVE_AS.format(better))
    return _not_read("an old Office document", filename, _SAVE_AS.format("DOCX, XLSX or PDF"))


def _has_stream(data: mmap.mmap, name: str) -> bool:
    """Entries of the directory lie at multiples of their size, and say how long their name is."""
    wanted = (name + "\0").encode("utf-16-le")
    at = data.find(wanted)
    while at >= 0:
        length = data[at + 64 : at + 66]
        if at % _OLE_ENTRY_BYTES == 0 and length == len(wanted).to_bytes(2, "little"):
            return True
        at = data.find(wanted, at + 2)
    return False
