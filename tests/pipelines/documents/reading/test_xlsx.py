"""Workbooks: what people see in the cells, by sheet and by range."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from document_files import GOOD_XLSX, S, with_part, xlsx
from holdfast.core.errors import PermanentError
from holdfast.pipelines.documents.reading.number_formats import general, shown_by


def sheet(rows: str) -> str:
    return f'<worksheet xmlns="{S}"><sheetData>{rows}</sheetData></worksheet>'


@pytest.mark.parametrize(
    ("code", "number", "shown"),
    [
        ("0%", "0.256", "26%"),
        ("0.0%", "0.25", "25.0%"),
        ("0.00", "2.675", "2.68"),
        ("0.00", "-0.001", "0.00"),
        ("#,##0", "1234567.8", "1,234,568"),
        ('#,##0.00 "€"', "1234.5", "1,234.50 €"),
        ("[$€-407] #,##0.00", "5", "€ 5.00"),
        ('"$"#,##0.00', "-5", "-$5.00"),
        ("$#,##0;($#,##0)", "-1234", "($1,234)"),
        ('0.0;-0.0;"-"', "0", "-"),
        ("0.##", "1.5", "1.5"),
        ("0.##", "2", "2"),
        ("00000", "123", "00123"),
        ("0.00E+00", "12345", "1.23E+04"),
        ("#,##0,", "1234567", "1,235"),
        ("[Red]0.0", "1.25", "1.3"),
        ("0_);(0)", "7", "7"),
        ("[>100]0.0;0", "7", None),
        ("# ?/?", "0.5", None),
        ("000-000", "123456", None),
        ("General", "5", None),
        ("@", "5", None),
        ("0" * 600, "5", None),
        ("yyyy-mm-dd", "45000", "2023-03-15"),
        ("d.m.yy", "45000.5", "2023-03-15"),
        ("mmm-yy", "45000", "2023-03-15"),
        ("m/d/yy h:mm", "45000.75", "2023-03-15 18:00"),
        ("h:mm:ss", "0.5", "12:00:00"),
        ("h:mm AM/PM", "0.25", "06:00"),
        ("mm:ss.0", "0.0000125", "00:00:01.08"),
        ("[h]:mm:ss", "1.5", "36:00:00"),
        ("[h]:mm", "-0.5", "-12:00"),
        ("[mm]:ss", "0.0425", "61:12"),
        ("[ss]", "0.001", "86"),
        ("yyyy-mm-dd", "59", "1900-02-28"),
        ("yyyy-mm-dd", "60", "1900-02-29"),
        ("yyyy-mm-dd", "1e20", "1E+20"),
        ("yyyy-mm-dd", "-3", "-3"),
        ("yyyy-mm-dd", "2958466", "2958466"),
        ("yyyy-mm-dd", "abc", "abc"),
        ("0.00", "abc", "abc"),
        ("0.00;-0.00", "abc", "abc"),
        ("0;-0", "nan", "nan"),
        ('"h"0.0', "5", "h5.0"),
    ],
    ids=str,
)
def test_a_number_is_shown_by_its_format(code: str, number: str, shown: str | None) -> None:
    formatted = shown_by(code, False)
    assert (None if formatted is None else formatted.one(number)) == shown


def test_dates_may_count_from_1904() -> None:
    formatted = shown_by("yyyy-mm-dd", True)
    assert formatted is not None
    assert formatted.one("0") == "1904-01-01"


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        *(("5", "5"), ("1.0", "1"), ("0.10", "0.1"), ("100", "100"), ("0.30000000000000004", "0.3")),
        *(("5.0000000000000001E-10", "5E-10"), ("1E+20", "1E+20"), ("12345678901234567", "1.2345678901E+16")),
        *(("4006381333931.0000", "4006381333931"), ("1E3", "1000"), ("words", "words"), ("Ewig", "Ewig")),
    ],
    ids=str,
)
def test_a_number_without_a_format_is_shown_without_noise(number: str, shown: str) -> None:
    assert general(number) == shown


def test_cells_are_read_as_they_are_shown(read) -> None:
    rows = [
        ["Name", "Share", "Day", "Open", "Sum"],
        ["North", (0.25, "0.0%"), (45000, "dd.mm.yyyy"), True, 12.5],
        ["A & B", (0.5, "0.0%"), None, False, '<c r="E3" t="e"><v>#DIV/0!</v></c>'],
    ]
    document = read(xlsx({"Sums": rows}))
    assert document.texts == [
        "Name | Share | Day | Open | Sum\n"
        "North | 25.0% | 2023-03-15 | TRUE | 12.5\n"
        "A & B | 50.0% |  | FALSE | #DIV/0!"
    ]
    assert (document.chunks[0].sheet, document.chunks[0].cells) == ("Sums", "A1:E3")


def test_each_chunk_of_a_long_table_begins_with_its_header(read) -> None:
    rows = [["Name", "Number"], *([f"name {number}", number] for number in range(500))]
    document = read(xlsx({"S": rows}))
    assert len(document.chunks) > 5
    assert all(chunk.text[: chunk.overlap] == "Name | Number\n" for chunk in document.chunks[1:])
    assert document.text.count("\n") == 500
    assert document.chunks[0].cells.startswith("A1:B")
    assert document.chunks[-1].cells.endswith("B501")


def test_a_title_over_a_table_is_not_its_header(read) -> None:
    rows = [["Report of 2024"], ["Name", "Number"], *([f"name {number}", number] for number in range(200))]
    document = read(xlsx({"S": rows}))
    assert document.chunks[1].text.startswith("Name | Number\n")


def test_numbers_alone_have_no_header(read) -> None:
    document = read(xlsx({"S": [[number, number] for number in range(1000)]}))
    assert all(chunk.overlap == 0 for chunk in document.chunks)


def test_a_second_table_has_its_own_header(read) -> None:
    rows: dict[int, list[object]] = {1: ["A", "B"]}
    rows |= {number: [f"name {number}", number] for number in range(2, 150)}
    rows[160] = ["X", "Y", "Z"]
    rows |= {number: ["word", number, number] for number in range(161, 300)}
    chunks = read(xlsx({"S": rows})).chunks
    assert {chunk.text[: chunk.overlap] for chunk in chunks} == {"", "A | B\n", "X | Y | Z\n"}


def test_sheets_charts_and_hidden_ones_are_told(read) -> None:
    document = read(
        xlsx(
            {"One": [["a"]], "Chart": sheet(""), "Two": [["b"]], "Blank": []},
            hidden=["Two", "Blank"],
            charts=["Chart"],
        )
    )
    assert document.facts.sheets == ["One", "Chart", "Two", "Blank"]
    assert [(chunk.sheet, chunk.text) for chunk in document.chunks] == [("One", "a"), ("Two", "b")]
    assert document.facts.warnings == [
        "Sheet 'Chart' is a chart and has no cells.",
        "Sheet 'Two' is hidden; it was read.",
    ]


def test_a_cell_in_the_last_corner_takes_no_room(read) -> None:
    rows = '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>2</v></c></row>'
    document = read(xlsx({"S": sheet(rows)}))
    assert document.chunks[0].cells == "A1:XFD1048576"
    assert document.facts.characters < 100


@pytest.mark.parametrize(
    "rows",
    [
        '<row r="1048577"><c r="A1048577"><v>1</v></c></row>',
        '<row r="x"><c r="A1"><v>1</v></c></row>',
        '<row r="1"><c r="ZZZ1"><v>1</v></c></row>',
        '<row r="1"><c r="A1" t="s"><v>7</v></c></row>',
        '<row r="1"><c r="A1" t="s"><v>x</v></c></row>',
        '<row r="1"><c r="A1" t="s"><v>999999999999</v></c></row>',
    ],
    ids=["row", "no_row", "column", "text", "no_text", "large_text"],
)
def test_what_cannot_be_is_invalid(rows: str, read) -> None:
    with pytest.raises(PermanentError) as raised:
        read(xlsx({"S": sheet(rows)}))
    assert raised.value.error_type == "invalid_file"


def test_texts_in_the_cells_themselves_are_read(read) -> None:
    rows = (
        '<row r="1"><c r="A1" t="inlineStr"><is><t>one &lt; two</t></is></c>'
        '<c r="B1" t="inlineStr"><is><r><t>ri</t></r><r><t>ch</t></r></is></c><c r="C1"><v>3</v></c></row>'
    )
    assert read(xlsx({"S": sheet(rows)})).text == "one < two | rich | 3"


def test_shared_texts_of_any_form_are_read(read) -> None:
    shared = (
        f'<sst xmlns="{S}"><si><t>plain</t></si>'
        '<si><r><t>ri</t></r><r><t xml:space="preserve">ch </t></r></si>'
        "<si/><si><t>東京</t><rPh><t>トウキョウ</t></rPh></si><si><t>two\nlines_x000D_</t></si>"
        "<si><t><![CDATA[a < b]]></t></si></sst>"
    )
    rows = "".join(f'<row r="{n + 1}"><c r="A{n + 1}" t="s"><v>{n}</v></c></row>' for n in range(6))
    document = read(xlsx({"S": sheet(rows)}, parts={"xl/sharedStrings.xml": shared}))
    assert document.text.split("\n") == ["plain", "rich", "東京", "two lines", "a < b"]


def test_rows_and_cells_without_their_places_follow_one_another(read) -> None:
    rows = (
        "<row><c><v>1</v></c><c><v>2</v></c></row>"
        '<row><c t="str"><v>x</v></c><c/><c r="D2"><v>3</v></c></row>'
    )
    document = read(xlsx({"S": sheet(rows)}))
    assert document.text == "1 | 2\nx |  |  | 3"
    assert document.chunks[0].cells == "A1:D2"


def test_attributes_come_in_any_order(read) -> None:
    rows = '<row spans="1:2" r="3"><c s="0" r="B3"><v>1</v></c><c r="C3" s="9"><v>2</v></c></row>'
    assert read(xlsx({"S": sheet(rows)})).chunks[0].cells == "B3:C3"


@pytest.mark.parametrize(
    "empty",
    [
        '<c r="B1"/>',
        '<c r="B1" s="1"></c>',
        '<c r="B1"><v/></c>',
        '<c r="B1"><v></v></c>',
        '<c r="B1"><is/></c>',
    ],
    ids=["cell", "cell_and_end", "value", "value_and_end", "text"],
)
def test_a_cell_without_anything_in_it_is_no_cell(empty: str, read) -> None:
    document = read(xlsx({"S": sheet(f'<row r="1"><c r="A1"><v>1</v></c>{empty}</row>')}))
    assert (document.text, document.chunks[0].cells) == ("1", "A1")


def test_a_prefix_before_each_name_is_read(read) -> None:
    xml = (
        f'<x:worksheet xmlns:x="{S}"><x:sheetData><x:row r="2"><x:c r="A2"><x:f>1+1</x:f><x:v>2</x:v></x:c>'
        "</x:row></x:sheetData></x:worksheet>"
    )
    assert read(xlsx({"S": xml})).chunks[0].cells == "A2"


def test_utf_16_and_comments_are_read(read) -> None:
    xml = '<?xml version="1.0" encoding="UTF-16"?>' + sheet(
        '<row r="1"><!-- <v> --><c r="A1"><v>5</v></c></row>'
    )
    document = read(with_part(GOOD_XLSX, "xl/worksheets/sheet1.xml", xml.encode("utf-16")))
    assert document.text == "5"


def test_an_encoding_that_there_is_not_is_invalid(read) -> None:
    xml = '<?xml version="1.0" encoding="klingon"?>' + sheet("")
    with pytest.raises(PermanentError, match="klingon"):
        read(with_part(GOOD_XLSX, "xl/worksheets/sheet1.xml", xml))


def test_formulas_are_shown_by_their_values(read) -> None:
    rows = (
        '<row r="1"><c r="A1"><f>1+1</f><v>2</v></c><c r="B1"><f t="shared" si="0"/><v>3</v></c>'
        '<c r="C1"><f>A1</f></c><c r="D1"><f>A1</f><v></v></c>'
        '<c r="E1" t="str"><f>"x"</f><v>words</v></c></row>'
    )
    document = read(xlsx({"S": sheet(rows)}))
    assert document.text == "2 | 3 |  |  | words"
    assert document.facts.warnings[0].startswith("2 cells have a formula and no value.")


def test_shared_formulas_alone_in_a_piece_are_read(read) -> None:
    rows = '<row r="1"><c r="A1"><f t="shared" si="0"/><v>3</v></c></row>'
    assert read(xlsx({"S": sheet(rows)})).text == "3"


def test_a_workbook_without_sheets_is_invalid(read) -> None:
    with pytest.raises(PermanentError, match="without any sheet"):
        read(xlsx({}))


def test_dates_of_1904_are_days_of_it(read) -> None:
    assert read(xlsx({"S": [[(0, "yyyy-mm-dd")]]}, is_1904=True)).text == "1904-01-01"


def test_pictures_alone_are_no_text(read) -> None:
    with pytest.raises(PermanentError) as raised:
        read(xlsx({"S": []}, parts={"xl/media/image1.png": b"\x89PNG"}))
    assert raised.value.error_type == "no_text"


def test_a_row_without_end_is_refused_before_it_fills_the_memory(read, monkeypatch) -> None:
    monkeypatch.setattr("holdfast.pipelines.documents.reading.xlsx_parts.PIECE_CHARS_MAX", 300_000)
    rows = '<row r="1">' + '<c r="A1"><v>1</v></c>' * 40_000 + "</row>"
    with pytest.raises(PermanentError) as raised:
        read(xlsx({"S": sheet(rows)}))
    assert raised.value.error_type == "file_too_large"


def test_a_workbook_of_many_pieces_has_all_its_cells(read, tmp_path: Path) -> None:
    import python_calamine

    rows = [["Name", "A", "B"], *([f"n {n}", n, n / 7] for n in range(12_000))]
    data = xlsx({"S": rows})
    lines = read(data).text.split("\n")
    values = python_calamine.load_workbook(io.BytesIO(data)).get_sheet_by_index(0).to_python()
    assert len(lines) == len(values)
    for line, row in zip(lines[1:], values[1:], strict=True):
        name, a, b = line.split(" | ")
        assert (name, float(a)) == (row[0], row[1])
        assert float(b) == pytest.approx(row[2], rel=1e-9)
