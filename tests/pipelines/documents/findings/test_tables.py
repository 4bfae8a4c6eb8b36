"""Tables of figures: what is told of their columns."""

from __future__ import annotations

from typing import Any

import pytest

from finding_scenario import chunks_of, found_in, table
from holdfast.pipelines.documents.findings.finding import ChunkText

SALES = "Region | Units | Revenue (EUR)\nNorth | 10 | 1,000.50\nSouth | 20 | 2,000.25\nEast | 5 | (300.75)\n"


def columns(rows: str) -> dict[str, dict[str, Any]]:
    [found] = found_in([table(rows)], "table")
    return {column.pop("name"): column for column in found.value["columns"]}


def test_columns_of_figures_are_told_with_their_sum_and_mean() -> None:
    assert columns(SALES) == {
        "Units": {"count": 3, "min": "5", "max": "20", "sum": "35", "mean": "11.6667"},
        "Revenue (EUR)": {
            **{"count": 3, "min": "-300.75", "max": "2000.25", "sum": "2700", "mean": "900"},
            "unit": "EUR",
        },
    }


def test_a_table_is_told_in_words() -> None:
    [found] = found_in([table(SALES, sheet="Sales", cells="A1:C4")], "table")
    assert (
        found.text == "Sales, 3 rows: Units 5 to 20, sum 35; Revenue (EUR) -300.75 to 2000.25 EUR, sum 2700"
    )
    assert (found.value["sheet"], found.value["cells"], found.value["rows"]) == ("Sales", "A1:C4", 3)


def test_a_total_is_told_and_not_added() -> None:
    units = columns(f"{SALES}Grand total | 35 | 2,700.00")["Units"]
    assert (units["count"], units["sum"], units["total"]) == (3, "35", "35")


@pytest.mark.parametrize("label", ["Total", "Sum", "Summe", "Gesamtsumme", "Subtotal", "Totale", "Somme"])
def test_a_total_is_known_in_many_words(label: str) -> None:
    assert columns(f"{SALES}{label} | 35 | 2,700.00")["Units"]["count"] == 3


def test_a_last_row_without_a_name_that_adds_up_is_a_total() -> None:
    assert columns(f"{SALES} | 35 | 2,700.00")["Units"]["total"] == "35"


def test_a_last_row_that_adds_nothing_up_is_one_of_figures() -> None:
    assert columns(f"{SALES} | 36 | 2,700.00")["Units"]["count"] == 4
    assert columns(f"{SALES}West | 35 | 2,700.00")["Units"]["count"] == 4


def test_a_single_column_may_add_up_to_its_own_last_value() -> None:
    assert columns("What | Cost\nRent | 10\nFood | 20\n | 30")["Cost"]["total"] == "30"
    assert columns("Cost\n10.5\n20\n30.5")["Cost"]["count"] == 3


def test_a_total_with_no_rows_above_it_is_left_out() -> None:
    assert found_in([table("Total | 5\nTotal | 7")], "table") == []


def test_a_sheet_goes_on_in_the_next_chunks() -> None:
    head = "Item | Price\n"
    chunks = [
        table(f"{head}a | 1.5\nb | 2.5", number=0, sheet="S", cells="A1:B3"),
        table(f"{head}c | 3.5\nd | 4.5", number=1, sheet="S", cells="A4:B5", overlap=len(head)),
        table(f"{head}e | 8", number=2, sheet="S", cells="A6:B6", overlap=len(head)),
    ]
    [found] = found_in(chunks, "table")
    assert found.chunks == [0, 1, 2]
    assert found.value == {
        "rows": 5,
        "sheet": "S",
        "cells": "A1:B6",
        "columns": [{"name": "Price", "count": 5, "min": "1.5", "max": "8", "mean": "4"}],
    }


def test_a_range_right_below_goes_on_without_a_repeated_header() -> None:
    chunks = [
        table("n | Cost\na | 1\nb | 2", number=0, sheet="S", cells="A1:B3"),
        table("c | 4\nd | 7", number=1, sheet="S", cells="A4:B5"),
    ]
    [found] = found_in(chunks, "table")
    assert found.value["columns"][0]["sum"] == "14"


def test_another_range_of_a_sheet_is_another_table() -> None:
    chunks = [
        table("n | Cost\na | 1\nb | 2", number=0, sheet="S", cells="A1:B3"),
        table("n | Cost\nc | 4\nd | 7", number=1, sheet="S", cells="F1:G3"),
        table("n | Cost\nc | 4\nd | 9", number=2, sheet="T"),
    ]
    assert [found.value["columns"][0]["sum"] for found in found_in(chunks, "table")] == ["3", "11", "13"]


def test_a_header_that_another_table_of_the_sheet_repeats_begins_anew() -> None:
    head = "Day | Hours\n"
    chunks = [
        table("n | Cost\na | 1\nb | 2", number=0, sheet="S"),
        table(f"{head}Mon | 4\nTue | 6", number=1, sheet="S", overlap=len(head)),
    ]
    assert [found.value["columns"][0]["name"] for found in found_in(chunks, "table")] == ["Cost", "Hours"]


def test_the_header_is_the_last_row_of_words_before_the_figures() -> None:
    assert list(columns("Sales 2023 |  | \n\nName | Pieces | Weight\na | 1 | 2.5\nb | 2 | 3.5")) == [
        "Pieces",
        "Weight",
    ]


def test_years_name_columns() -> None:
    assert list(columns("in EUR | 2022 | 2023\nRent | 10 | 12\nFood | 3 | 4")) == ["2022", "2023"]


def test_figures_without_a_header_have_numbers_for_names() -> None:
    assert list(columns("a | 1.5\nb | 2.5")) == ["column 2"]


@pytest.mark.parametrize("name", ["Customer ID", "Year", "ZIP", "Invoice No", "userId", "Artikelnummer"])
def test_numbers_that_are_names_are_not_added(name: str) -> None:
    [column] = columns(f"n | {name}\na | 1200\nb | 1900\nc | 1500").values()
    assert "sum" not in column and "mean" not in column


def test_years_and_a_running_number_are_not_added() -> None:
    told = columns("# | Since | Size\n1 | 1990 | 5\n2 | 2010 | 7\n3 | 2001 | 9")
    assert ["sum" in column for column in told.values()] == [False, False, True]


def test_prices_and_shares_have_a_mean_and_no_sum() -> None:
    told = columns("n | Unit price | Growth\na | 1.5 | 10 %\nb | 2.5 | 20 %")
    assert ["sum" in column for column in told.values()] == [False, False]
    assert told["Growth"] == {"count": 2, "min": "10", "max": "20", "mean": "15", "unit": "%"}


def test_amounts_of_different_currencies_are_not_added() -> None:
    cost = columns("n | Cost\na | € 5\nb | $ 6\nc | £ 7")["Cost"]
    assert "sum" not in cost and "unit" not in cost


@pytest.mark.parametrize(
    ("cells", "unit"),
    [(("€ 5", "€ 7"), "EUR"), (("5 kg", "7 kg"), "kg"), (("US$5", "US$7"), "US$"), (("5 €", "7 €"), "EUR")],
)
def test_a_unit_that_all_cells_have_is_told(cells: tuple[str, str], unit: str) -> None:
    assert columns(f"n | Amount\na | {cells[0]}\nb | {cells[1]}")["Amount"]["unit"] == unit


@pytest.mark.parametrize(
    "cell",
    [
        "2024-01-03",
        "12:30",
        "Q3",
        "n/a",
        "a 5",
        "5 (6)",
        "(5",
        "1.2.3",
        "5 apples pie",
        "1E+99",
        "x" * 60 + "1",
        "$ 5 €",
    ],
)
def test_a_cell_that_is_no_number_is_text(cell: str) -> None:
    assert found_in([table(f"n | x\na | {cell}\nb | {cell}\nc | {cell}")], "table") == []


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1,234.5", "1234.5"),
        ("-3", "-3"),
        ("\u22123", "-3"),
        ("(3.5)", "-3.5"),
        ("$(3.5)", "-3.5"),
        ("1e3", "1000"),
        ("12 345", "12345"),
    ],
)
def test_a_cell_that_is_a_number_is_read(cell: str, value: str) -> None:
    assert columns(f"n | x\na | {cell}\nb | {cell}\nc | {cell}")["x"]["max"] == value


def test_decimal_commas_are_told_from_the_other_cells() -> None:
    told = columns("n | a | b\nx | 1,5 | 1.234\ny | 2,5 | 2.000\nz | 3,25 | 1.000")
    assert (told["a"]["sum"], told["b"]["sum"]) == ("7.25", "4234")


def test_the_noise_of_binary_fractions_is_not_told() -> None:
    assert columns("n | x\na | 0.1\nb | 504.99999999999954")["x"]["max"] == "505"


def test_a_table_of_words_is_told_nowhere() -> None:
    assert found_in([table("Name | City\nAda | London\nBo | Oslo")], "table") == []


def test_blank_cells_and_rows_count_for_nothing() -> None:
    told = columns("n | x\na | 1\n | \n | -\nb | n/a\nc | 3")
    assert told["x"]["count"] == 2


def test_a_first_cell_that_was_blank_may_have_lost_its_space() -> None:
    assert list(columns("| x | y\n| 1.5 | 2.5\n| 2.5 | 3.5\n| 1 |")) == ["x", "y"]


def test_wide_tables_are_told_in_part() -> None:
    wide = " | ".join(f"c{number}" for number in range(300))
    figures = " | ".join("1.5" for _ in range(300))
    [found] = found_in([table(f"{wide}\n{figures}\n{figures}\n{figures}")], "table")
    assert len(found.value["columns"]) == 30
    assert found.value["columns_left_out"] == 170
    assert found.text.endswith("and 194 more columns of figures")


def test_only_the_largest_of_many_tables_are_told_in_their_order() -> None:
    chunks = [
        table(
            "n | x\n" + "\n".join(f"r | {row}.5" for row in range(2 + (number % 7))),
            number=number,
            sheet=f"S{number}",
        )
        for number in range(400)
    ]
    found = found_in(chunks, "table")
    assert len(found) == 40
    assert {each.value["rows"] for each in found} == {8}
    assert [each.chunks for each in found] == sorted(each.chunks for each in found)


def test_columns_of_text_are_a_table() -> None:
    text = (
        "Some words before it.\n\nUSD million    2023    2022\nStorage    259.9    208.4\nSolar "
        "cells    121.5    117.0\nTotal    381.4    325.4\n\nAnd after."
    )
    [found] = found_in(text + "\nmore 1\n", "table")
    assert [column["name"] for column in found.value["columns"]] == ["2023", "2022"]
    assert (found.value["rows"], found.value["columns"][0]["total"]) == (2, "381.4")


def test_lines_of_a_pdf_with_figures_are_a_table() -> None:
    text = (
        "Country Population Area Capital\nAustria 8.9 83,879 Vienna\nBelgium 11.5 30,689 "
        "Brussels\nDenmark 5.8 42,951 Copenhagen\n"
    )
    [found] = found_in([ChunkText(number=0, kind="text", text=text, page=3)], "table")
    assert found.text.startswith("Page 3, 3 rows: column 2 5.8 to 11.5")
    assert found.value["columns"][1]["max"] == "83879"


def test_gaps_tell_the_names_of_columns() -> None:
    text = (
        "Item    Pieces    Weight\nLetterhead, 100 gsm    5000    12.5\nBrochure    1200    "
        "8.5\nEnvelopes DL    4000    3.0\n"
    )
    [found] = found_in(text, "table")
    assert [column["name"] for column in found.value["columns"]] == ["Pieces", "Weight"]


@pytest.mark.parametrize(
    "text",
    [
        "In 2023 and 2024 we won.\nIn 2021 and 2022 we lost.\nIn 2019 and 2020 too.",
        "1 2 3\n4 5 6\n7 8 9",
        "a 1 2\nb 1 2\nc 1 2 3",
        "a 1\nb 2\nc 3",
        "one two three four five six seven eight nine ten eleven 1 2\n" * 4,
        "word 1 2 " * 60 + "\n" + "word 1 2\n" * 2,
    ],
)
def test_text_with_numbers_is_no_table(text: str) -> None:
    assert found_in(chunks_of(text), "table") == []


def test_a_heading_names_a_table_without_a_sheet() -> None:
    [found] = found_in(
        [ChunkText(number=4, kind="table", text="n | x\na | 1.5\nb | 2.5", heading="1 Costs › 1.2 Rent")],
        "table",
    )
    assert found.text.startswith("1.2 Rent, 2 rows")


def test_a_range_that_is_none_is_shown_as_it_is() -> None:
    [found] = found_in([table("n | x\na | 1.5\nb | 2.5", cells="all of it", sheet="S")], "table")
    assert found.value["cells"] == "all of it"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("Item | Amount\nChairs | 2000\nDesks | 3000\nLamps | 4000", {"Amount": ("2000", "4000")}),
        ("Date | Betrag\n2024-01-01 | 2020\n2024-01-02 | 35", {"Betrag": ("35", "2020")}),
        ("Name | Salary\nAnn | 1950\nBob | 2050", {"Salary": ("1950", "2050")}),
        ("Year | City\n2019 | Oslo\n2020 | Bergen", {"Year": ("2019", "2020")}),
    ],
)
def test_a_row_of_a_thing_is_no_header_where_its_figures_look_like_years(
    rows: str, told: dict[str, tuple[str, str]]
) -> None:
    assert {name: (one["min"], one["max"]) for name, one in columns(rows).items()} == told


@pytest.mark.parametrize(
    "above", ["", "Balance sheet |  | \n", "Region | Sales | Sales\n"], ids=["nothing", "title", "names"]
)
def test_years_name_columns_below_other_words(above: str) -> None:
    first = "Region" if not above else ""
    told = columns(f"{above}{first} | 2022 | 2023\nNorth | 5 | 6\nSouth | 7 | 8")
    assert {name: one["sum"] for name, one in told.items()} == {"2022": "12", "2023": "14"}


@pytest.mark.parametrize(
    ("rows", "most"),
    [
        ("Posten | Betrag EUR\nMiete | 1.000\nKaution | 3.000", "3000"),
        ("Item | Price\nChair | 1.500 €\nDesk | 2.500 €", "2500"),
        ("Item | Price ($)\nScrew | 1.125\nNail | 2.250", "2.25"),
        ("Item | Weight kg\nScrew | 1.125\nNail | 2.250", "2.25"),
    ],
)
def test_money_in_a_table_has_no_three_decimals(rows: str, most: str) -> None:
    [column] = columns(rows).values()
    assert column["max"] == most
