"""Names that portals give their files, hostile ones among them, and what becomes of them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.pipelines.downloads.naming import NAME_BYTES_MAX, harmless, name_told
from holdfast.storage import check_file_name

URL = "https://portal.example/reports/T1/north.csv?x=a/b.csv#c/d"


def told(disposition: str, url: str = URL) -> str:
    return name_told({"content-disposition": disposition}, url)


# What the portal says


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('attachment; filename="north.csv"', "north.csv"),
        ("attachment; filename=north.csv", "north.csv"),
        ("attachment;FileName = north.csv ; size=5", "north.csv"),
        ('attachment; filename="a;b \\"c\\" d\\\\e.csv"', 'a;b "c" d\\e.csv'),
        ("attachment; filename*=UTF-8''n%C3%B6rd.csv", "nörd.csv"),
        ("attachment; filename*=iso-8859-1'de'n%F6rd.csv", "nörd.csv"),
        ("attachment; filename*=utf-8''%e2%82%ac%20rates", "€ rates"),
        ("attachment; filename=\"plain.csv\"; filename*=UTF-8''better.csv", "better.csv"),
        ("filename*=UTF-8''better.csv; filename=plain.csv", "better.csv"),
    ],
)
def test_the_portal_names_the_file(disposition: str, name: str) -> None:
    assert told(disposition) == name


@pytest.mark.parametrize(
    "charset",
    [
        "undefined",
        "idna",
        "punycode",
        "nonsense",
        "rot13",
        "hex",
        "zlib",
        "base64",
        "utf-16",
        "UTF-8",
        "mbcs",
    ],
)
def test_a_charset_that_does_not_fit_leaves_the_other_name(charset: str) -> None:
    extended = f"filename*={charset}''%ff%fe%fd.csv"
    assert told(f'attachment; filename="plain.csv"; {extended}') == "plain.csv"
    assert told(f"attachment; {extended}") == "north.csv"


@pytest.mark.parametrize("disposition", ["", "attachment", "inline; name=x", "filename=", "filename*=x"])
def test_without_a_name_it_is_the_last_part_of_the_address(disposition: str) -> None:
    assert told(disposition) == "north.csv"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://portal.example", ""),
        ("https://portal.example/", ""),
        ("https://portal.example/reports/june/", "june"),
        ("https://portal.example/n%C3%B6rd.csv", "nörd.csv"),
        ("https://portal.example/..%2F..%2Fetc%2Fpasswd", "../../etc/passwd"),
        ("https://portal.example/%ff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_an_address_is_decoded(url: str, name: str) -> None:
    assert told("", url) == name


def test_of_a_header_without_end_only_the_beginning_is_read() -> None:
    assert told("x" * 10_000 + "; filename=late.csv") == "north.csv"
    assert len(told(f'filename="{"x" * 1_000}"')) == 1_000


@given(st.text(), st.text())
def test_whatever_a_portal_says_a_name_is_found(disposition: str, path: str) -> None:
    assert isinstance(told(disposition, f"https://portal.example/{path}"), str)


# What it is called here


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("north.csv", "north.csv"),
        ("June report (final).xlsx", "June report (final).xlsx"),
        ("nörd.csv", "nörd.csv"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\windows\\system.ini", "system.ini"),
        ("C:\\north.csv", "north.csv"),
        ("C:north.csv", "C_north.csv"),
        ("/etc/", "file"),
        ("", "file"),
        (".", "file"),
        ("..", "file"),
        (" . .. ", "file"),
        (".hidden", "hidden"),
        (".partial-1", "partial-1"),
        ("north.csv. . ", "north.csv"),
        ("a\0b.csv", "ab.csv"),
        ("a\r\nb\t\x1b[31m\x7f.csv", "ab[31m.csv"),
        ("\u202egpj.exe", "gpj.exe"),
        ("a\u200b\u200e\u2066\ufeffb", "ab"),
        ("a\ud800b", "a_b"),
        ('a<b>c:d"e|f?g*h', "a_b_c_d_e_f_g_h"),
        ("CON", "file-CON"),
        ("nul.tar.gz", "file-nul.tar.gz"),
        ("com1.txt", "file-com1.txt"),
        ("LPT¹", "file-LPT¹"),
        ("CONIN$", "file-CONIN$"),
        ("console.txt", "console.txt"),
        ("com10.txt", "com10.txt"),
    ],
)
def test_a_name_leads_nowhere_and_hides_nothing(name: str, here: str) -> None:
    assert harmless(name) == here


def test_a_long_name_keeps_its_beginning_and_its_ending() -> None:
    assert harmless("x" * 5_000 + ".csv") == "x" * (NAME_BYTES_MAX - 4) + ".csv"
    assert harmless("x" * 5_000) == "x" * NAME_BYTES_MAX
    assert harmless("a." + "x" * 5_000) == "a." + "x" * (NAME_BYTES_MAX - 2)


def test_a_long_name_is_not_cut_within_a_letter() -> None:
    assert harmless("€" * 5_000 + ".csv") == "€" * 48 + ".csv"
    assert harmless("x" + "😀" * 5_000) == "x" + "😀" * 37


def test_a_long_name_does_not_end_in_a_space_or_become_a_device() -> None:
    assert harmless("a" + " ." * 100 + "b.csv") == "a.csv"
    assert harmless("nul" + " " * 200 + "x.txt") == "file-nul.txt"
    assert len(harmless("con." + "x" * 146)) == NAME_BYTES_MAX


ODD = st.text(st.sampled_from("./\\ :\0\n\u200b\u202e\u0301\u0338>eE€😀¹1con.nul\ud800")) | st.text()


@given(ODD | st.text(min_size=100) | ODD.map(lambda text: text * 50))
@example("e\u200b\u0301")
@example("\u0338" * 200)
def test_whatever_a_file_is_called_its_name_is_one_part_that_a_storage_takes(name: str) -> None:
    here = harmless(name)
    assert check_file_name(here) == here
    assert "/" not in here
    assert 0 < len(here.encode()) <= NAME_BYTES_MAX
    assert here == here.strip(" .")
    assert unicodedata.is_normalized("NFC", here)
    assert harmless(here) == here
