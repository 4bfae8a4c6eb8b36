"""Rows that look alike are read many at a time: what comes of it is what comes of each by itself."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

import pytest

from document_files import S, xlsx
from holdfast.core.errors import PermanentError
from holdfast.pipelines.documents.reading import xlsx_parts, xlsx_rows
from holdfast.pipelines.documents.reading.columns import column_letters
from holdfast.pipelines.documents.reading.number_formats import shown_by
from holdfast.pipelines.documents.reading.xlsx_rows import SheetRows

TEXTS = {str(number): text for number, text in enumerate(["", "north", "a & b", "é", " ", "x" * 40, "5"])}
STYLES = [
    shown_by(code, False)
    for code in ("General", "0.00", "#,##0.0%", "yyyy-mm-dd", "[h]:mm", "0.0;(0.0);-", "00000", "d.m.yy h:mm")
]
NUMBERS = ("0", "1", "-1", "100", "1.50", "-0.001", "45000.5", "1E+20", "5.0000000000000001E-10", "-0", " 7")
NUMBERS += ("0.30000000000000004", "12345678901234567", "nan", "words", "1e3", "²", "60", "-3", "2958466.0")
VALUES = {
    ' t="s"': ("0", "1", "2", "3", "4", "5", "6", "01", " 2 "),
    ' t="str"': ("words", "a &amp; b", "_x0041_", " two  spaces ", "é\u00a0e", "line\nend", "&#32;", "a|b"),
    ' t="b"': ("1", "0", "true", " 1"),
    ' t="e"': ("#DIV/0!",),
    "": NUMBERS,
    ' t="n"': NUMBERS,
    **{f' s="{number}"': NUMBERS for number in (*range(len(STYLES)), 99)},
    ' s="0" t="s"': ("1", "2"),
}
STRANGE_CELLS = (
    '<c t="n" r="{at}"><v>3</v></c>',
    "<c><v>4</v></c>",
    "<c  r='{at}'><v>5</v></c>",
    '<c r="{at}"><v xml:space="preserve"> 6 </v></c>',
    '<c r="{at}"> <v>7</v> </c>',
    '<c r="{at}" t="inlineStr"><is><r><t>ri</t></r><r><t>ch</t></r></is></c>',
    '<c r="{at}" t="inlineStr"><is><t>東</t><rPh><t>x</t></rPh></is></c>',
    '<c r="{at}" t="inlineStr"><is><t></t></is></c>',
    '<c r="A{row}"><v>again</v></c>',
    '<c r="{at}"><v>8</v><extLst/></c>',
    '<c r="{at}"><f/><v>9</v></c>',
    '<c r="{at}" t="b"><v></v></c>',
    '<c r="{at}" t="s"><v><![CDATA[1]]></v></c>',
    '<c r="$b$7"><v>10</v></c>',
    '<c r="{at}" t="str"><v>&lt;v> <!-- <v>no</v> --></v></c>',
)
STRANGE_ROWS = (
    "<row>",
    "<row\n r='{row}'>",
    '<row spans="1:9" r="{row}">',
    "<row  >",
    '<row r="{row}"   ht="5">',
)
BAD = ('<c r="{at}" t="s"><v>77</v></c>', '<c r="ZZZ{row}"><v>1</v></c>', '<c r="{at}" t="s"><v>x</v></c>')


class _Column(NamedTuple):
    number: int
    cells: list[str]
    """What may stand in it; empty where a row may do without it."""


class _Package:
    shown = "'made'"

    def __init__(self, xml: str) -> None:
        self._data = xml.encode()

    def size_of(self, _: str) -> int:
        return len(self._data)

    @contextmanager
    def opened(self, _: str) -> Iterator[IO[bytes]]:
        yield io.BytesIO(self._data)


def made_sheet(chosen: random.Random) -> str:
    """Tables whose rows are more or less alike."""
    rows: list[str] = []
    number = 0
    for _ in range(chosen.choice((1, 1, 2))):
        columns = _columns(chosen)
        oddness = chosen.choice((0, 0, 0.02, 0.3))
        for _ in range(chosen.randrange(45)):
            number += 1 if chosen.random() > 0.04 else chosen.choice((0, -1, 2, 50))
            number = max(number, 1)
            rows.append(_row(chosen, number, columns, oddness))
            if chosen.random() < 0.04:
                rows.append(chosen.choice(("\n", f'<row r="{number}"/>', '<row r="9" ht="3"/>', "<row/>")))
    return f'<worksheet xmlns="{S}"><sheetData>{"".join(rows)}</sheetData><rowBreaks/></worksheet>'


def _columns(chosen: random.Random) -> list[_Column]:
    numbers = sorted(chosen.sample(range(chosen.choice((3, 6, 40))), chosen.randint(1, 3)))
    if chosen.random() < 0.3:
        numbers = list(range(len(numbers)))
    return [_Column(number, _cells(chosen)) for number in numbers]


def _cells(chosen: random.Random) -> list[str]:
    cells = []
    for _ in range(chosen.choice((1, 1, 1, 2, 3))):
        attributes = chosen.choice(list(VALUES))
        formula = chosen.choice(
            ("", "", "<f>A1&gt;2</f>", '<f t="shared" si="0"/>', '<f t="shared" ref="A1">B1</f>')
        )
        begin = f'<c r="{{at}}"{attributes}'
        form = chosen.random()
        if form < 0.75:
            cells += [f"{begin}>{formula}<v>{value}</v></c>" for value in VALUES[attributes]]
        elif form < 0.85:
            cells += [f"{begin}/>", f"{begin}></c>"]
        elif form < 0.92:
            cells += [f"{begin}><f>A1</f>{value}</c>" for value in ("", "<v></v>", "<v/>", "<v />")]
        else:
            begin = '<c r="{at}" t="inlineStr"><is>'
            cells += [f"{begin}<t>own {value}</t></is></c>" for value in ("text", "&lt;", " ")]
            cells.append(f'{begin}<t xml:space="preserve"> kept </t></is></c>')
    if chosen.random() < 0.25:
        cells += [""] * len(cells)
    return cells


def _row(chosen: random.Random, number: int, columns: list[_Column], oddness: float) -> str:
    begin, cells = '<row r="{row}" spans="1:3">', []
    for column in columns:
        cell = chosen.choice(column.cells)
        if chosen.random() < oddness:
            cell = chosen.choice(STRANGE_CELLS)
        if chosen.random() < 0.0003:
            cell = chosen.choice(BAD)
        cells.append(cell.replace("{at}", f"{column_letters(column.number)}{number}"))
    if chosen.random() < oddness / 2:
        chosen.shuffle(cells)
    if chosen.random() < oddness / 2:
        begin = chosen.choice(STRANGE_ROWS)
    return f"{begin}{''.join(cells)}</row>".replace("{row}", str(number))


class _Read(NamedTuple):
    rows: list[tuple[int, list[int], tuple[str, ...]]]
    are_texts: dict[int, bool]
    """Of rows with which others may have come, by their places."""
    without_value: int
    fault: str
    most_at_once: int


def read_rows(xml: str) -> _Read:
    sheet = SheetRows(_Package(xml), "sheet1.xml", TEXTS, STYLES)  # type: ignore[arg-type]
    rows: list[tuple[int, list[int], tuple[str, ...]]] = []
    are_texts: dict[int, bool] = {}
    fault, most = "", 0
    try:
        for number, columns, texts, _ in sheet.rows():
            are_texts[len(rows)] = sheet.is_all_text
            rows += [(number + at, columns, row) for at, row in enumerate(texts)]
            most = max(most, len(texts))
    except PermanentError as error:
        fault = str(error)
    return _Read(rows, are_texts, sheet.formulas_without_value, fault, most)


def by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlsx_rows, "LEARNINGS_MAX", 0)


@pytest.mark.parametrize("seed", range(4))
def test_rows_read_together_are_as_each_by_itself(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(seed)
    together = 0
    for number in range(500):
        xml = made_sheet(chosen)
        with monkeypatch.context() as patched:
            patched.setattr(xlsx_rows, "ALIKE_MIN", 0)
            patched.setattr(xlsx_parts, "PIECE_BYTES", chosen.choice((600, 4_000, 262_144)))
            quick = read_rows(xml)
            by_themselves(patched)
            slow = read_rows(xml)
        assert quick.fault == slow.fault, (seed, number)
        if not slow.fault:
            assert quick.rows == slow.rows, (seed, number)
            assert quick.without_value == slow.without_value, (seed, number)
            assert quick.are_texts.items() <= slow.are_texts.items(), (seed, number)
        assert slow.most_at_once <= 1
        together += quick.most_at_once > 3
    assert together > 150  # else this compares one way with itself


@pytest.mark.parametrize("chunk_chars", [60, 1200])
def test_a_document_is_the_same_either_way(chunk_chars: int, read, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(chunk_chars)
    for number in range(60):
        rows: list[list[object]] = []
        for _ in range(chosen.choice((1, 2))):
            rows.append(["Name", "Sum", "Day"][: chosen.randint(1, 3)])
            rows += [
                [
                    f"name {chosen.randrange(99)}" * chosen.choice((1, 1, 1, 9)),
                    chosen.choice((chosen.randrange(9**6), (0.5, "0.0%"), None)),
                    chosen.choice(((45000, "dd.mm.yyyy"), (45001.25, "dd.mm.yyyy"))),
                ]
                for _ in range(chosen.randrange(120))
            ]
            rows += [[]] * chosen.randrange(2)
        data = xlsx({"S": rows, "T": rows[::-1]})
        quick = read(data, chunk_chars_max=chunk_chars)
        with monkeypatch.context() as patched:
            by_themselves(patched)
            assert read(data, chunk_chars_max=chunk_chars) == quick, number


def test_a_row_of_more_columns_than_a_shape_may_have_is_read(read) -> None:
    rows = [[column * row for column in range(300)] for row in range(120)]
    lines = read(xlsx({"S": rows}), chunk_chars_max=100_000).text.split("\n")
    assert lines == [" | ".join(map(str, row)) for row in rows]
