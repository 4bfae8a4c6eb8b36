"""Dates as people write them, and what they are."""

from __future__ import annotations

from typing import Any

import pytest

from finding_scenario import chunks_of, found_in

GERMAN = "Der Vertrag ist mit der Zahlung und der Lieferung für die Kundin fällig. "
FRENCH = "Le contrat est signé par les parties et la facture est payée pour une livraison. "
SPANISH = "El contrato es firmado por las partes y la factura se paga con el envío del material. "


def dates(text: str) -> list[dict[str, Any]]:
    return [
        {name: part for name, part in each.value.items() if name != "context"}
        for each in found_in(text, "date")
    ]


def days(text: str) -> list[str]:
    return [each["date"] for each in dates(text)]


@pytest.mark.parametrize(
    "written",
    [
        "2024-03-03",
        "2024/03/03",
        "2024-03-03T12:30:00Z",
        "3 March 2024",
        "3rd March, 2024",
        "3rd day of March 2024",
        "March 3, 2024",
        "Mar. 3rd, 2024",
        "March 3 2024",
        "03.03.2024",
        "3.3.2024",
        "3. März 2024",
        "3 mars 2024",
        "3 de marzo de 2024",
        "3 marzo 2024",
        "03.03.24",
        "03/03/2024",
        "3\u00a0March\u00a02024",
    ],
)
def test_a_day_is_normalised(written: str) -> None:
    assert dates(f"It is due on {written} in full.") == [{"date": "2024-03-03", "precision": "day"}]


@pytest.mark.parametrize(
    "written", ["March 2024", "Mar 2024", "März 2024", "mars 2024", "marzo de 2024", "march of 2024"]
)
def test_a_month_is_told_as_a_month(written: str) -> None:
    assert dates(f"Starts in {written}, they say.") == [{"date": "2024-03", "precision": "month"}]


@pytest.mark.parametrize(
    "written",
    [
        "Q3 2024",
        "Q3/2024",
        "2024-Q3",
        "2024 Q3",
        "3Q 2024",
        "T3 2024",
        "third quarter of 2024",
        "3. Quartal 2024",
        "3e trimestre 2024",
        "dritten Quartal 2024",
        "3rd quarter 2024",
    ],
)
def test_a_quarter_is_told_with_its_days(written: str) -> None:
    quarter = {"date": "2024-Q3", "precision": "quarter", "from": "2024-07-01", "to": "2024-09-30"}
    assert dates(f"Sales rose in {written} again.") == [quarter]


def test_the_first_and_the_last_quarter_end_on_the_31st() -> None:
    assert {each["to"] for each in dates("Q1 2023, then Q4 2023.")} == {"2023-03-31", "2023-12-31"}


@pytest.mark.parametrize(
    "text",
    [
        "30 February 2024",
        "February 30, 2024",
        "2023-02-29",
        "31.04.2024",
        "32/13/2024",
        "00/03/2024",
        "version 1.10.24 of it",
        "192.168.20.24",
        "call 030/12/2024/55",
        "between 2020 and 2024",
        "the Autumn 2024 edition",
        "In 1-2-24 he did",
        "2024.5 metres",
        "1234-56-78",
    ],
)
def test_what_is_no_date_is_dropped(text: str) -> None:
    assert days(text) == []


def test_a_date_that_can_be_read_in_two_ways_is_told_as_such() -> None:
    assert dates("It was signed on 03/04/2024.") == [
        {"date": "2024-03-04", "precision": "day", "ambiguous": True, "other": "2024-04-03"}
    ]


def test_a_day_above_12_elsewhere_tells_that_days_come_first() -> None:
    assert set(days("From 03/04/2024 to 25/04/2024.")) == {"2024-04-03", "2024-04-25"}


def test_a_day_above_12_elsewhere_tells_that_months_come_first() -> None:
    assert set(days("From 03/04/2024 to 04/25/2024.")) == {"2024-03-04", "2024-04-25"}


def test_a_document_that_writes_both_ways_leaves_it_open() -> None:
    [either] = [each for each in dates("03/04/2024, 25/04/2024, 04/25/2024") if "ambiguous" in each]
    assert either["other"] == "2024-04-03"


@pytest.mark.parametrize("words", [GERMAN, FRENCH, SPANISH])
def test_in_the_languages_of_europe_days_come_first(words: str) -> None:
    assert dates(f"{words}03/04/2024") == [{"date": "2024-04-03", "precision": "day"}]


def test_two_digits_of_a_year_are_of_this_century_or_the_last() -> None:
    assert set(days("01.02.68 and 01.02.69")) == {"2068-02-01", "1969-02-01"}


def test_a_date_written_in_two_ways_is_one() -> None:
    [found] = found_in("Due on 3 March 2024. Again: due on 2024-03-03, at noon.", "date")
    assert (found.text, found.count) == ("3 March 2024", 2)


def test_a_date_is_told_with_the_words_around_it() -> None:
    [found] = found_in(
        "Delivery is planned for the winter.\nThe lease ends on 31 March 2027 at noon.\nNot before.", "date"
    )
    assert found.value["context"] == "The lease ends on 31 March 2027 at noon."


def test_a_date_on_a_line_of_its_own_has_the_line_before_as_its_context() -> None:
    [found] = found_in("Due date:\n31 March 2027", "date")
    assert found.value["context"] == "Due date: 31 March 2027"


def test_a_date_in_a_chunk_and_in_the_overlap_of_the_next_is_counted_once() -> None:
    text = "word " * 230 + "on 5 May 2024 it ended. " + "more " * 200
    assert len(chunks_of(text)) == 2
    [found] = found_in(text, "date")
    assert (found.count, found.chunks) == (1, [0])


def test_a_date_that_begins_in_the_overlap_is_found() -> None:
    text = "word " * 238 + "on 5 September 2024 it ended. " + "more " * 200
    first, _ = chunks_of(text)
    assert first.text.endswith("5 ")
    [found] = found_in(text, "date")
    assert (found.value["date"], found.chunks) == ("2024-09-05", [1])


def test_there_are_no_more_dates_than_their_bound() -> None:
    text = " ".join(
        f"20{year:02}-{month:02}-{day:02}"
        for year in range(10)
        for month in range(1, 13)
        for day in range(1, 29)
    )
    found = found_in(text, "date")
    assert len(found) == 60
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
