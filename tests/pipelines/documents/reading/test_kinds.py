"""What a file is, by its bytes, and how each kind of broken file is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from document_files import (
    BROKEN,
    GOOD_DOCX,
    GOOD_PDF,
    GOOD_XLSX,
    WORDS,
    ole,
    png,
    relations,
    with_part,
    zipped,
)
from holdfast.core.errors import PermanentError
from holdfast.core.failures import classify, failure_from_exception
from holdfast.pipelines.documents.reading.chunk import ReadLimits
from holdfast.pipelines.documents.reading.kinds import kind_of


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_read_is_refused_for_what_it_is(name: str, read) -> None:
    filename, data, error_type, category = BROKEN[name]
    with pytest.raises(PermanentError) as raised:
        read(data, filename)
    told = classify(failure_from_exception(raised.value))
    assert (told.error_type, told.category) == (error_type, category)
    assert filename in str(raised.value)


@pytest.mark.parametrize(
    ("data", "kind"),
    [(GOOD_PDF, "pdf"), (GOOD_DOCX, "docx"), (GOOD_XLSX, "xlsx"), (b"word", "txt"), (b"<html>", "txt")],
    ids=["pdf", "docx", "xlsx", "txt", "html"],
)
@pytest.mark.parametrize("filename", ["letter.bin", "no_suffix", "photo.png"])
def test_the_bytes_tell_what_a_file_is(data: bytes, kind: str, filename: str, read) -> None:
    assert read(data, filename).facts.kind == kind


def test_rubbish_before_a_pdf_does_not_hide_it(read) -> None:
    assert read(b"\x00\x01rubbish\n" + GOOD_PDF).facts.kind == "pdf"


def test_a_text_about_pdfs_is_a_text(read) -> None:
    assert read(b"Such a file begins with %PDF-1.4 and a line end.").facts.kind == "txt"


@pytest.mark.parametrize(
    ("data", "what", "guidance"),
    [
        (ole("WordDocument"), "an old Word document (.doc)", "Save it as DOCX"),
        (ole("Workbook"), "an old Excel workbook (.xls)", "Save it as XLSX"),
        (ole("PowerPoint Document"), "an old PowerPoint", "Save it as PDF"),
        (ole("Something"), "an old Office document", "Save it as DOCX, XLSX or PDF"),
        (zipped({"mimetype": "application/epub+zip"}), "an EPUB book", "Save it as PDF or DOCX"),
        (zipped({"META-INF/MANIFEST.MF": ""}), "a Java archive", "Unpack it"),
        (zipped({"Index/Document.iwa": ""}), "an Apple iWork document", "Save it as PDF"),
        (zipped({"a.txt": "a"}), "a ZIP archive", "Unpack it"),
        (zipped({"[Content_Types].xml": "", "ppt/presentation.xml": ""}), "a PowerPoint", "Save it as PDF"),
        (
            zipped({"[Content_Types].xml": "", "other/a.xml": ""}),
            "a package of no known",
            "Supported formats",
        ),
        (
            zipped(
                {
                    "[Content_Types].xml": "",
                    "_rels/.rels": relations(("r1", "officeDocument", "xl/workbook.bin")),
                    "xl/workbook.bin": "",
                }
            ),
            "a binary Excel workbook",
            "Save it as XLSX",
        ),
        (png(), "a PNG image", "Supported formats: PDF, XLSX, DOCX, TXT"),
        (b"\x1f\x8b\x08" + bytes(range(200)), "a gzip archive", "Supported formats"),
        (b"MZ" + bytes(100), "a Windows program", "Supported formats"),
        (b"\0\1\2\3" * 100, "binary data", "Supported formats"),
    ],
    ids=[
        *(
            "doc",
            "xls",
            "ppt",
            "ole",
            "epub",
            "jar",
            "iwork",
            "zip",
            "pptx",
            "package",
            "xlsb",
            "png",
            "gzip",
        ),
        *("exe", "binary"),
    ],
)
def test_what_is_not_read_is_named_and_a_way_is_shown(data: bytes, what: str, guidance: str, read) -> None:
    with pytest.raises(PermanentError) as raised:
        read(data, "report.pdf")
    assert f"'report.pdf' is {what}" in str(raised.value)
    assert guidance in raised.value.guidance
    assert raised.value.error_type == "unsupported_format"


@pytest.mark.parametrize(
    "beginning", ["MZ is no program here", "BMW builds cars", "ID3 tags", "BZh is a sign"]
)
def test_a_text_may_begin_as_another_format_does(beginning: str, read) -> None:
    assert read(beginning.encode()).text == beginning


def test_a_name_of_a_stream_in_the_text_of_an_old_document_is_not_a_stream(read) -> None:
    data = ole("WordDocument") + b"?" + "EncryptedPackage\0".encode("utf-16-le")
    with pytest.raises(PermanentError, match=r"an old Word document"):
        read(data, "old.doc")


def test_a_document_with_macros_or_its_main_part_elsewhere_is_read(read) -> None:
    moved = with_part(GOOD_DOCX, "_rels/.rels", relations(("r1", "officeDocument", "word/document2.xml")))
    moved = with_part(moved, "word/document2.xml", _part(GOOD_DOCX, "word/document.xml"))
    moved = with_part(moved, "word/document.xml", None)
    assert WORDS.strip() in read(moved, "macros.docm").text


def test_a_workbook_without_its_main_part_is_invalid(read) -> None:
    with pytest.raises(PermanentError, match=r"an Excel workbook without its main part"):
        read(with_part(GOOD_XLSX, "xl/workbook.xml", None), "a.xlsx")


def test_an_empty_zip_that_is_called_a_document_is_invalid(read) -> None:
    with pytest.raises(PermanentError, match=r"nothing in it") as raised:
        read(zipped({}), "a.docx")
    assert raised.value.error_type == "invalid_file"


def test_text_behind_much_white_space_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b" \n" * 100_000 + b"text")
    assert kind_of(path, "a", ReadLimits()) == "txt"


def _part(archive: bytes, name: str) -> bytes:
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        return packed.read(name)
