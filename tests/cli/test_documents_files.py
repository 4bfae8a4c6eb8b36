"""Which files `holdfast documents add` takes, of those that are named and of folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.cli.documents_files import Found, found_in
from holdfast.core.errors import InvalidInput


def names(found: Found, folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in found.files]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.pdf", b"damaged"),
        ("A.DOCX", b""),
        ("report", b"%PDF-1.7\n"),
        ("LIESMICH.md", "Grüße".encode()),
        ("data.csv", b"a,b\n1,2\n"),
        ("old", b"Gr\xfc\xdfe aus K\xf6ln, in Latin-1."),
        ("sheet.bin", b"PK\3\4" + b"\0" * 22 + b"\x13\0\0\0[Content_Types].xml"),
    ],
)
def test_what_could_be_a_document_by_its_name_or_its_first_bytes_is_taken(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    assert names(found_in([tmp_path]), tmp_path) == [name]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n", ".png"),
        ("b.zip", b"PK\3\4" + b"\0" * 22 + b"\x01\0\0\0x", ".zip"),
        ("c", b"\x7fELF\2\1\1\0\0\0", "of other kinds"),
        ("d.rtf", rb"{\rtf1 text}", ".rtf"),
        ("e", b"", "of other kinds"),
        ("f.a-suffix-that-is-long", b"\0\1\2\3" * 100, "of other kinds"),
        ("g.\x1b[31m", b"\0\1\2\3" * 100, ".\\x1b[31m"),
    ],
)
def test_what_could_not_is_counted_by_its_kind(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / "taken.txt").write_text("text")
    (tmp_path / name).write_bytes(content)
    found = found_in([tmp_path])
    assert names(found, tmp_path) == ["taken.txt"]
    assert found.told_skipped == f"1 file skipped: 1 {told}"
    assert found_in([tmp_path / name]).files == [tmp_path / name]  # it was named itself


def test_a_folder_is_taken_in_order_without_what_is_hidden_or_leads_out_of_it(tmp_path: Path) -> None:
    folder, outside = tmp_path / "papers", tmp_path / "outside.txt"
    for name in ("b.txt", "a.txt", "z/c.txt", "m/d.txt", ".hidden.txt", ".git/e.txt", "~$a.docx"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    outside.write_text("secret")
    (folder / "link.txt").symlink_to(outside)
    (folder / "gone.txt").symlink_to(folder / "nowhere")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    found = found_in([folder])
    assert names(found, folder) == ["a.txt", "b.txt", "m/d.txt", "z/c.txt"]
    assert found.told_skipped == "3 files skipped: 2 special, 1 linked from elsewhere"


def test_a_file_is_taken_once_however_often_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "same.txt").symlink_to(tmp_path / "a.txt")
    found = found_in([tmp_path / "a.txt", tmp_path, tmp_path / "." / "a.txt"])
    assert names(found, tmp_path) == ["a.txt"]


def test_of_many_kinds_only_the_most_frequent_are_named() -> None:
    found = Found()
    for place in range(8):
        found.skipped[f".k{place}"] = 10 - place
    assert found.told_skipped == "52 files skipped: 10 .k0, 9 .k1, 8 .k2, 7 .k3, 6 .k4, 12 others"


def test_a_folder_without_documents_says_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(InvalidInput, match=r"There is no document in .*1 file skipped: 1 \.png\."):
        found_in([tmp_path])
