"""PDFs: page by page, with what cannot be read of them."""

from __future__ import annotations

import pytest

from document_files import BLANK, GOOD_PDF, IMAGE, SCAN, WORDS, pdf
from holdfast.core.errors import PermanentError
from holdfast.pipelines.documents.reading.pdf import _not_opened
from holdfast.pipelines.documents.reading.pdf_text import page_text


def test_each_page_is_a_place_of_its_own(read) -> None:
    document = read(pdf(["The first page.", "The second page."], title="Minutes"))
    assert [(chunk.text, chunk.page) for chunk in document.chunks] == [
        ("The first page.", 1),
        ("The second page.", 2),
    ]
    assert (document.facts.pages, document.facts.title) == (2, "Minutes")


def test_pages_without_text_are_told(read) -> None:
    document = read(pdf(["Words.", IMAGE, IMAGE, BLANK, "More words.", IMAGE]))
    assert document.facts.warnings == ["Pages 2-3 and 6 have no text."]
    assert {chunk.page for chunk in document.chunks} == {1, 5}


def test_pages_that_are_pictures_with_a_stamp_are_told(read) -> None:
    document = read(pdf([f"{SCAN}Page 1 of 3", WORDS, f"{SCAN}{WORDS * 3}", f"{SCAN}Page 3 of 3"]))
    assert document.facts.warnings == [
        "Pages 1 and 4 are pictures with hardly any text."
        " If they are scans, run text recognition (OCR) over them."
    ]
    assert document.texts[0] == "Page 1 of 3"


def test_one_page_that_is_a_picture_with_a_stamp_is_told(read) -> None:
    document = read(pdf([f"{SCAN}Page 1", WORDS]))
    assert document.facts.warnings == [
        "Page 1 is a picture with hardly any text. If it is a scan, run text recognition (OCR) over it."
    ]


def test_a_picture_on_a_part_of_a_page_with_few_words_is_nothing_to_tell(read) -> None:
    on_wide_page = pdf([f"{SCAN}A title"]).replace(b"[0 0 595 842] /Res", b"[0 0 9999 842]/Res")
    document = read(on_wide_page)
    assert (document.texts, document.facts.warnings) == (["A title"], [])


def test_a_page_that_cannot_be_read_is_told_and_the_others_are_read(read) -> None:
    data = pdf(["One.", "Two.", "Three."]).replace(b"12 0 obj\n<< /Type /Page", b"12 0 obj\n<< /Type /Xxxx")
    document = read(data)
    assert document.facts.warnings == ["Page 2 could not be read."]
    assert document.texts == ["One.", "Three."]


def test_a_pdf_of_which_no_page_can_be_read_is_invalid(read) -> None:
    data = pdf(["One.", "Two."]).replace(b"obj\n<< /Type /Page ", b"obj\n<< /Type /Xxxx ")
    with pytest.raises(PermanentError, match="no page can be read") as raised:
        read(data)
    assert raised.value.error_type == "invalid_file"


def test_a_pdf_without_pages_is_invalid(read) -> None:
    with pytest.raises(PermanentError) as raised:  # PDFium remembers its error
        read(pdf([WORDS], user_password="secret"))
    assert raised.value.error_type == "encrypted_file"
    with pytest.raises(PermanentError, match="without any page") as raised:
        read(pdf([]))
    assert raised.value.error_type == "invalid_file"


def test_a_password_of_the_owner_only_hinders_nobody_to_read(read) -> None:
    assert read(pdf([WORDS], user_password="")).text == WORDS.strip()


def test_what_is_filled_in_a_form_is_read(read) -> None:
    document = read(pdf(["Application"], fields={"Name": "Ada Lovelace", "City": "London", "Empty": ""}))
    assert document.texts == ["Application", "Name: Ada Lovelace\nCity: London"]
    assert document.chunks[1].kind == "form"


def test_a_form_on_a_page_without_text_is_text_enough(read) -> None:
    assert read(pdf([IMAGE], fields={"Name": "Ada"})).text == "Name: Ada"


def test_scanned_pages_are_refused_with_what_to_do(read) -> None:
    with pytest.raises(PermanentError) as raised:
        read(pdf([IMAGE]), "scan.pdf")
    assert raised.value.user_message == "The document has pictures and no text"
    assert "OCR" in (raised.value.guidance or "")


def test_rubbish_behind_the_end_of_a_pdf_does_no_harm(read) -> None:
    assert read(GOOD_PDF + b"\n<html>sent twice</html>").facts.pages == 2


@pytest.mark.parametrize(
    ("code", "error_type"), [(4, "encrypted_file"), (5, "encrypted_file"), (3, "invalid_file")]
)
def test_why_a_pdf_does_not_open_is_told(code: int, error_type: str) -> None:
    assert _not_opened(code, "a.pdf").error_type == error_type


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("one line", "one line"),
        ("a word that is taki\ufffemata here", "a word that is takimata here"),
        ("a line that goes on in\r\nthe next one", "a line that goes on in the next one"),
        ("a line that ends with a comma,\r\nNext", "a line that ends with a comma, Next"),
        ("Heading\r\nthen a line that is much longer", "Heading\nthen a line that is much longer"),
        ("Austria 8.9 Vienna\r\nBelgium 11.5 Brussels", "Austria 8.9 Vienna\nBelgium 11.5 Brussels"),
        ("eﬀect\r\n\r\nnew", "effect\n\nnew"),
    ],
    ids=["line", "parted_word", "goes_on", "comma", "heading", "table", "ligature"],
)
def test_lines_of_a_page_are_joined_where_they_go_on(raw: str, text: str) -> None:
    assert page_text(raw) == text
