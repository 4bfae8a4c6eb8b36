"""Word documents: headings, lists, tables, and what stands beside the text."""

from __future__ import annotations

import pytest

from document_files import (
    GOOD_DOCX,
    WORDS,
    W,
    docx,
    heading,
    item,
    paragraph,
    relations,
    story,
    table,
    with_part,
)
from holdfast.core.errors import PermanentError

ALTERNATE = "http://schemas.openxmlformats.org/markup-compatibility/2006"


def run(xml: str) -> str:
    return f"<w:p><w:r>{xml}</w:r></w:p>"


def test_a_chunk_knows_the_path_of_its_headings(read) -> None:
    document = read(
        docx(
            "Before.",
            heading("Intro"),
            "One.",
            heading("Scope", 2),
            "Two.",
            heading("End"),
            "Three.",
            title="T",
        )
    )
    assert [(chunk.heading, chunk.text) for chunk in document.chunks] == [
        (None, "Before."),
        ("Intro", "Intro\n\nOne."),
        ("Intro › Scope", "Scope\n\nTwo."),
        ("End", "End\n\nThree."),
    ]
    assert document.facts.title == "T"


def test_properties_that_cannot_be_read_hinder_nobody_to_read_the_text(read) -> None:
    document = read(with_part(docx(WORDS, title="T"), "docProps/core.xml", "<broken"))
    assert (document.facts.title, document.text) == (None, WORDS.strip())


def test_a_heading_alone_is_no_chunk(read) -> None:
    document = read(docx(heading("Intro"), heading("Scope", 2), "Words."))
    assert [(chunk.heading, chunk.text) for chunk in document.chunks] == [
        ("Intro › Scope", "Intro\n\nScope\n\nWords.")
    ]


def test_a_style_is_a_heading_by_the_style_that_it_is_based_on(read) -> None:
    document = read(docx(paragraph("Mine", style="Mine"), "Words.", paragraph("Round", style="Round")))
    assert [chunk.heading for chunk in document.chunks] == ["Mine"]


def test_a_paragraph_says_itself_that_it_is_a_heading(read) -> None:
    own = '<w:p><w:pPr><w:outlineLvl w:val="0"/></w:pPr><w:r><w:t>Own</w:t></w:r></w:p>'
    body = '<w:p><w:pPr><w:outlineLvl w:val="9"/></w:pPr><w:r><w:t>Body</w:t></w:r></w:p>'
    assert [chunk.heading for chunk in read(docx(own, body)).chunks] == ["Own"]


def test_items_are_numbered_as_word_does(read) -> None:
    document = read(
        docx(
            *(
                item("one"),
                item("two"),
                item("two a", 1),
                item("two b", 1),
                item("three"),
                item("three a", 1),
            ),
            *(item("deep", 2), item("other", number=3), item("bullet", number=2), item("no such", number=9)),
        )
    )
    assert document.text.splitlines() == [
        *("1. one", "2. two", "  2a) two a", "  2b) two b", "3. three", "  3a) three a", "    IV deep"),
        *("7. other", "• bullet", "• no such"),
    ]
    assert document.chunks[0].kind == "list"


def test_a_numbered_heading_has_its_number(read) -> None:
    numbered = paragraph("Scope", style="Heading1", number=(1, 0))
    assert read(docx(numbered, "Words.")).chunks[0].heading == "1. Scope"


def test_rows_of_tables_are_lines(read) -> None:
    document = read(docx("Before", table([["Name", "Sum"], ["North", "12"]]), "After"))
    assert [(chunk.kind, chunk.text) for chunk in document.chunks] == [
        ("text", "Before"),
        ("table", "Name | Sum\nNorth | 12"),
        ("text", "After"),
    ]


def test_a_long_table_repeats_its_first_row(read) -> None:
    rows = [["Name", "Words"], *([f"row {number}", WORDS] for number in range(40))]
    chunks = read(docx(table(rows))).chunks
    assert len(chunks) > 2
    assert all(chunk.text[: chunk.overlap] == "Name | Words\n" for chunk in chunks[1:])


def test_two_tables_have_headers_of_their_own(read) -> None:
    rows = [[f"row {number}", WORDS] for number in range(20)]
    chunks = read(docx(table([["A", "B"], *rows]), table([["C", "D"], *rows]))).chunks
    assert {chunk.text.split("\n")[0] for chunk in chunks} == {"A | B", "C | D"}


def test_tables_in_tables_and_merged_cells_are_there_once(read) -> None:
    merged = f'<w:tcPr xmlns:w="{W}"><w:vMerge/></w:tcPr><w:p/>'
    nested = table([["in", "side"], ["of", "it"]]) + "<w:p/>"
    document = read(docx(table([["one", nested], [merged, "below"]])))
    assert document.text == "one | in, side; of, it\n | below"


def test_a_table_in_a_content_control_is_read(read) -> None:
    control = f"<w:sdt><w:sdtContent>{table([['a', 'b']])}{paragraph('words')}</w:sdtContent></w:sdt>"
    assert read(docx(control)).texts == ["a | b", "words"]


def test_a_cell_in_a_content_control_and_a_deleted_row(read) -> None:
    cell = f"<w:sdt><w:sdtContent><w:tc>{paragraph('held')}</w:tc></w:sdtContent></w:sdt>"
    deleted = f"<w:tr><w:trPr><w:del/></w:trPr><w:tc>{paragraph('gone')}</w:tc></w:tr>"
    header = f"<w:tr><w:trPr><w:tblHeader/></w:trPr>{cell}</w:tr>"
    assert read(docx(f"<w:tbl>{header}{deleted}<w:tr/></w:tbl>")).text == "held"


def test_headers_footers_and_notes_are_read_once_each(read) -> None:
    notes = (
        f'<w:footnotes xmlns:w="{W}"><w:footnote w:type="separator" w:id="-1">{paragraph("---")}</w:footnote>'
        f'<w:footnote w:id="1">{paragraph("A note.")}</w:footnote></w:footnotes>'
    )
    document = read(
        docx(
            "Words.",
            parts={
                "header1.xml": ("header", story("hdr", "Secret", "Page")),
                "header2.xml": ("header", story("hdr", "Secret")),
                "footer1.xml": ("footer", story("ftr", "Made in May")),
                "footnotes.xml": ("footnotes", notes),
            },
        )
    )
    assert [(chunk.kind, chunk.text) for chunk in document.chunks] == [
        ("text", "Words."),
        ("header", "Secret\n\nPage"),
        ("footer", "Made in May"),
        ("note", "A note."),
    ]


def test_links_signs_and_breaks_are_text(read) -> None:
    link = "<w:p><w:hyperlink><w:r><w:t>a link</w:t></w:r></w:hyperlink></w:p>"
    signs = run(
        '<w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t><w:noBreakHyphen/><w:sym w:char="2713"/>'
        '<w:sym w:char="no"/><w:sym w:char="D800"/>'
    )
    tab_stop = '<w:p><w:pPr><w:tabs><w:tab w:val="left"/></w:tabs></w:pPr><w:r><w:t>stop</w:t></w:r></w:p>'
    math = (
        '<w:p><m:oMath xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math">'
        "<m:r><m:t>x+1</m:t></m:r></m:oMath></w:p>"
    )
    assert read(docx(link, signs, tab_stop, math)).text == "a link\n\na\tb\nc-✓\n\nstop\n\nx+1"


def test_what_was_deleted_or_moved_away_is_left_out(read) -> None:
    changed = (
        "<w:p><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>"
        "<w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom>"
        "<w:ins><w:r><w:t>kept</w:t></w:r></w:ins></w:p>"
    )
    assert read(docx(changed)).text == "kept"


@pytest.mark.parametrize("wanted", ["Choice", "Fallback"])
def test_a_text_box_is_read_once_behind_its_paragraph(wanted: str, read) -> None:
    box = f"<w:txbxContent>{paragraph('boxed')}{paragraph('twice')}</w:txbxContent>"
    ways = f"<mc:{wanted}>{box}</mc:{wanted}>"
    if wanted == "Choice":
        ways += f"<mc:Fallback>{box}</mc:Fallback>"
    both = f'<mc:AlternateContent xmlns:mc="{ALTERNATE}">{ways}</mc:AlternateContent>'
    document = read(docx(run(f"<w:t>around</w:t><w:tab/>{both}<w:t> it</w:t>")))
    assert document.text == "around\t it\n\nboxed\ntwice"


def test_a_box_without_any_way_to_show_it_is_nothing(read) -> None:
    nothing = f'<mc:AlternateContent xmlns:mc="{ALTERNATE}"/>'
    assert read(docx(run(f"<w:t>words</w:t>{nothing}"))).text == "words"


def test_the_strict_namespace_is_read(read) -> None:
    strict = "http://purl.oclc.org/ooxml/wordprocessingml/main"
    xml = f'<w:document xmlns:w="{strict}"><w:body>{paragraph("Words.")}</w:body></w:document>'
    assert read(with_part(GOOD_DOCX, "word/document.xml", xml)).text == "Words."


def test_other_documents_in_it_are_told(read) -> None:
    rels = relations(("r1", "aFChunk", "chunk.html"))
    document = read(with_part(GOOD_DOCX, "word/_rels/document.xml.rels", rels))
    assert document.facts.warnings == ["Other documents that are put into this one are not read."]


@pytest.mark.parametrize("levels", [20, 400])
def test_depth_does_no_harm(levels: int, read) -> None:
    xml = paragraph("deep")
    for _ in range(levels):
        xml = f"<w:tbl><w:tr><w:tc>{xml}<w:p/></w:tc></w:tr></w:tbl>"
    if levels > 50:  # libxml2 takes no more than 256
        with pytest.raises(PermanentError) as raised:
            read(docx(xml))
        assert raised.value.error_type == "invalid_file"
    else:
        assert read(docx(xml)).text == "deep"


def test_documents_of_python_docx_are_read(read) -> None:
    import io

    from docx import Document

    made = Document()
    made.add_heading("Title", 0)
    made.add_heading("Scope", 1)
    made.add_paragraph("A paragraph.")
    made.add_paragraph("An item", style="List Bullet")
    for row, texts in zip(made.add_table(2, 2).rows, ["ab", "cd"], strict=True):
        for cell, text in zip(row.cells, texts, strict=True):
            cell.text = text
    target = io.BytesIO()
    made.save(target)
    document = read(target.getvalue(), "made.docx")
    assert document.texts == ["Title", "Scope\n\nA paragraph.\n\n• An item", "a | b\nc | d"]
    assert document.chunks[-1].heading == "Scope"
