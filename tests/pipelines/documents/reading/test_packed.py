"""The ZIP that a document is: what is refused before anything of it is unpacked."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from document_files import GOOD_DOCX, docx, with_part, zipped
from holdfast.core.errors import PermanentError
from holdfast.pipelines.documents.reading.chunk import ReadLimits
from holdfast.pipelines.documents.reading.packed import Package


def packaged(tmp_path: Path, data: bytes, **limits: float) -> Package:
    path = tmp_path / "a.docx"
    path.write_bytes(data)
    return Package(path, "a.docx", ReadLimits(**limits))


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"entries_max": 3}, "entries"),
        ({"unpacked_bytes_max": 1000}, "the limit is 1000 bytes"),
    ],
    ids=["entries", "bytes"],
)
def test_more_than_is_allowed_is_refused(limits: dict[str, float], told: str, tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=told) as raised:
        packaged(tmp_path, GOOD_DOCX, **limits)
    assert raised.value.error_type == "file_too_large"
    assert raised.value.user_message == "The file unpacks to far more than its own size"


def test_a_size_that_lies_bounds_what_is_unpacked(tmp_path: Path) -> None:
    data = bytearray(docx("x " * 100_000))
    at = data.find(b"word/document.xml", data.find(b"PK\1\2")) - 46
    struct.pack_into("<L", data, at + 24, 500)
    with packaged(tmp_path, bytes(data)) as package, pytest.raises(PermanentError, match="CRC") as raised:
        package.read("word/document.xml")
    assert raised.value.error_type == "invalid_file"


def test_damaged_data_is_told_as_a_damaged_file(tmp_path: Path) -> None:
    data = bytearray(docx("words and words " * 1000))
    at = data.find(b"word/document.xml") + 60
    data[at : at + 40] = bytes(40)
    with packaged(tmp_path, bytes(data)) as package, pytest.raises(PermanentError, match="damaged"):
        package.read("word/document.xml")


@pytest.mark.parametrize("cut", [10, 300, -30, -1], ids=str)
def test_a_zip_that_is_cut_off_is_invalid(cut: int, tmp_path: Path) -> None:
    with pytest.raises(PermanentError) as raised:
        packaged(tmp_path, GOOD_DOCX[:cut])
    assert raised.value.error_type == "invalid_file"


def test_a_directory_that_points_nowhere_is_invalid(tmp_path: Path) -> None:
    data = bytearray(GOOD_DOCX)
    struct.pack_into("<L", data, data.rfind(b"PK\5\6") + 16, 2**31)
    with pytest.raises(PermanentError) as raised:
        packaged(tmp_path, bytes(data))
    assert raised.value.error_type == "invalid_file"


def test_an_entry_that_is_longer_than_the_file_is_invalid(tmp_path: Path) -> None:
    data = bytearray(GOOD_DOCX)
    struct.pack_into("<L", data, data.rfind(b"PK\1\2") + 20, 10_000_000)
    with pytest.raises(PermanentError, match="more bytes than there are"):
        packaged(tmp_path, bytes(data))


def test_a_method_that_office_does_not_use_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="method 12"):
        packaged(tmp_path, zipped({"a": "words " * 100}, method=zipfile.ZIP_BZIP2))


def test_a_small_part_that_is_large_is_refused(tmp_path: Path) -> None:
    data = with_part(GOOD_DOCX, "word/styles.xml", b" " * (65 * 1024**2))
    with packaged(tmp_path, data, ratio_max=100_000) as package, pytest.raises(PermanentError) as raised:
        package.tree("word/styles.xml")
    assert raised.value.error_type == "file_too_large"


def test_a_relation_that_climbs_stays_in_the_package(tmp_path: Path) -> None:
    rels = (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
        '<Relationship Id="1" Type="x/a" Target="../../../etc/passwd"/>'
        '<Relationship Id="2" Type="x/b" Target="http://example.org/" TargetMode="External"/>'
        '<Relationship Id="3" Type="x/c" Target="/word/c.xml"/></Relationships>'
    )
    with packaged(tmp_path, with_part(GOOD_DOCX, "word/_rels/document.xml.rels", rels)) as package:
        assert package.relations("word/document.xml") == {
            "1": ("a", "etc/passwd"),
            "3": ("c", "word/c.xml"),
        }
