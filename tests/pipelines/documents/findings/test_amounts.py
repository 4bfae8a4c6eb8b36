"""Amounts of money and shares, in the ways that people write them."""

from __future__ import annotations

import pytest

from finding_scenario import found_in, table

GERMAN = "Der Vertrag ist mit der Zahlung und der Lieferung für die Kundin fällig. "


def amounts(text: str) -> list[tuple[str, str]]:
    return [
        (found.value["amount"], found.value.get("currency") or found.value["unit"])
        for found in found_in(text, "amount")
    ]


@pytest.mark.parametrize(
    ("written", "amount", "unit"),
    [
        ("EUR 1,234.56", "1234.56", "EUR"),
        ("1.234,56 EUR", "1234.56", "EUR"),
        ("1 234,56 €", "1234.56", "EUR"),
        ("1\u202f234,56\u00a0€", "1234.56", "EUR"),
        ("CHF 1'234.50", "1234.50", "CHF"),
        ("€1,234", "1234", "EUR"),
        ("$5", "5", "USD"),
        ("US$ 5.5", "5.50", "USD"),
        ("CA$12", "12", "CAD"),
        ("R$ 99,90", "99.90", "BRL"),
        ("£0.05", "0.05", "GBP"),
        ("¥120,000", "120000", "JPY"),
        ("Rs. 12,34,567.00", "1234567", "INR"),
        ("$1.5 million", "1500000", "USD"),
        ("€1.234 million", "1234000", "EUR"),
        ("EUR 2,5 Mio.", "2500000", "EUR"),
        ("12,5 Mio. €", "12500000", "EUR"),
        ("3 Mrd. Euro", "3000000000", "EUR"),
        ("£5m", "5000000", "GBP"),
        ("£5 bn", "5000000000", "GBP"),
        ("$3 thousand", "3000", "USD"),
        ("12 M€", "12000000", "EUR"),
        ("7 k€", "7000", "EUR"),
        ("TEUR 450", "450000", "EUR"),
        ("3 millions d'euros", "3000000", "EUR"),
        ("2 millones de euros", "2000000", "EUR"),
        ("20 dollars", "20", "USD"),
        ("40 Swiss francs", "40", "CHF"),
        ("-€5", "-5", "EUR"),
        ("€-5", "-5", "EUR"),
        ("\u2212 5", "", ""),
        ("-5.20 USD", "-5.20", "USD"),
        ("$(4.2) million", "-4200000", "USD"),
        ("12.5%", "12.5", "percent"),
        ("12,5 %", "12.5", "percent"),
        ("12 per cent", "12", "percent"),
        ("3 Prozent", "3", "percent"),
        ("5 pour cent", "5", "percent"),
        ("2 percentage points", "2", "percentage_points"),
        ("25 basis points", "25", "basis_points"),
        ("-3%", "-3", "percent"),
        ("0.5 ‰", "0.5", "permille"),
    ],
)
def test_an_amount_is_read(written: str, amount: str, unit: str) -> None:
    assert amounts(f"It came to {written} last year.") == ([(amount, unit)] if amount else [])


@pytest.mark.parametrize(
    "text",
    [
        "5 try again, 10 all in, 3 cop out",
        "version 1.2.3% of it",
        "room 12 and 13",
        "the euro of 2024 is old",
        "12345678901234567890123456789012 EUR",
        "EUR 999999999999999999999",
        "5 m of cable for a euro",
        "1,23,4.5,6 EUR",
    ],
)
def test_what_is_no_amount_is_left_alone(text: str) -> None:
    assert amounts(text) == []


def test_a_range_has_no_negative_end() -> None:
    assert set(amounts("between 10-20% and €5-€7 each")) == {("20", "percent"), ("5", "EUR"), ("7", "EUR")}


@pytest.mark.parametrize(
    ("written", "first", "second"),
    [
        ("5 to 10 million dollars", ("5000000", "USD"), ("10000000", "USD")),
        ("$5-10 million", ("5000000", "USD"), ("10000000", "USD")),
        ("€5–7 million", ("5000000", "EUR"), ("7000000", "EUR")),
        ("5 bis 10 Mio. Euro", ("5000000", "EUR"), ("10000000", "EUR")),
        ("1.5 to 2 billion USD", ("1500000000", "USD"), ("2000000000", "USD")),
        ("$30 to $40 million", ("30000000", "USD"), ("40000000", "USD")),
        ("$500 to $2 million", ("500", "USD"), ("2000000", "USD")),
        ("$5 and $20 million", ("5", "USD"), ("20000000", "USD")),
    ],
)
def test_the_ends_of_a_range_share_what_only_one_of_them_says(
    written: str, first: tuple[str, str], second: tuple[str, str]
) -> None:
    assert set(amounts(f"It came to {written} last year.")) == {first, second}


def test_a_number_of_something_else_has_no_part_in_a_range() -> None:
    assert amounts("We paid EUR 5 and 20 million people came.") == [("5", "EUR")]


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("In 2024 EUR 5 million came.", "5000000"),
        ("2023 and 2024 EUR 500", "500"),
        ("see note 12 EUR 500", "500"),
        ("We paid 10.50 EUR 3 times a day.", "10.50"),
        (f"{GERMAN} Das sind 12,- EUR.", "12"),
        ("It is EUR 5.-- for each.", "5"),
        (f"{GERMAN} Nach § 4.12 sind 1.500 EUR fällig.", "1500"),
        (f"{GERMAN} Es waren 322.284 Mio. EUR.", "322284000000"),
    ],
)
def test_a_currency_belongs_to_one_number(text: str, amount: str) -> None:
    assert amounts(text) == [(amount, "EUR")]


@pytest.mark.parametrize(
    ("written", "unit"), [("USD $500", "USD"), ("$500 USD", "USD"), ("AUD $500", "AUD"), ("$500 CAD", "CAD")]
)
def test_a_sign_beside_a_code_is_one_currency(written: str, unit: str) -> None:
    assert amounts(f"It costs {written}.") == [("500", unit)]


def test_no_money_is_no_amount() -> None:
    assert amounts("EUR 0 and $0.00 were paid, and 0% of it") == [("0", "percent")]


def test_brackets_behind_words_repeat_them() -> None:
    assert amounts("a fee of five thousand euros (EUR 5,000) is due") == [("5000", "EUR")]


@pytest.mark.parametrize("text", ["a net loss of (EUR 5,000)", "Result: (EUR 5,000)", "Loss (5,000) EUR"])
def test_brackets_behind_a_loss_are_a_minus(text: str) -> None:
    assert amounts(text) == [("-5000", "EUR")]


def test_brackets_in_a_table_are_a_minus() -> None:
    [found] = found_in([table("Cash flow | ($1,200)")], "amount")
    assert (found.value["amount"], found.text) == ("-1200", "($1,200)")


def test_the_language_decides_what_a_single_mark_before_three_digits_is() -> None:
    assert amounts("It costs EUR 1,500 in all.") == [("1500", "EUR")]
    assert amounts(f"{GERMAN}Es kostet 1.500 EUR.") == [("1500", "EUR")]


def test_other_numbers_decide_before_the_language() -> None:
    text = "We paid 12,50 EUR and 7,25 EUR and 3,10 EUR, in all 1.500 EUR."
    assert ("1500", "EUR") in amounts(text)
    assert ("1500", "EUR") in amounts(f"{GERMAN} 12.50 EUR, 7.25 EUR, 3.10 EUR, in all 1,500 EUR.")


def test_an_amount_written_in_two_ways_is_counted_once() -> None:
    [found] = found_in("The fee is EUR 1,500.00. That is 1500 €, or 1,5 k€; all of it.", "amount")
    assert (found.count, found.text) == (3, "EUR 1,500.00")


def test_an_amount_is_told_with_the_words_around_it() -> None:
    [found] = found_in("Total amount due in May: EUR 3,624.00", "amount")
    assert found.value["context"] == "Total amount due in May: EUR 3,624.00"


def test_money_stands_before_shares_and_what_says_total_before_others() -> None:
    found = found_in("A small thing came at EUR 12 there.\n\nTotal due: EUR 30\n\nVAT rate: 20%", "amount")
    assert [each.text for each in found] == ["EUR 30", "EUR 12", "20%"]


def test_many_shares_leave_room_for_money() -> None:
    text = (
        " ".join(f"{number}%" for number in range(1, 90))
        + " "
        + " ".join(f"EUR {number}" for number in range(1, 120))
    )
    found = found_in(text, "amount")
    assert len(found) == 80
    assert sum("currency" in each.value for each in found) == 50


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("Die Kaution beträgt 3.000 EUR.", "3000"),
        ("The deposit is EUR 1.500 in all.", "1500"),
        ("We pay €1,234 in March.", "1234"),
        ("Preis 12,50 EUR; 1.500 EUR", "1500"),
    ],
)
def test_money_has_no_three_decimals(text: str, amount: str) -> None:
    assert amount in [found for found, _ in amounts(text)]


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("Shares were sold at $1.125 each.", "1.125"),
        ("It costs 12.50 EUR, and 1.125 EUR by the piece.", "1.125"),
    ],
)
def test_three_decimals_are_read_where_the_document_writes_them(text: str, amount: str) -> None:
    assert amount in [found for found, _ in amounts(text)]


@pytest.mark.parametrize(
    "text",
    [
        "The rent\n\nEUR\n\n500 people came.\n",
        "Prices in EUR\n\n2024 was a good year for 100 people.",
        "Currency;Amount\nGBP;1500\nEUR;2500\n",
        "GBP;1500\nEUR;2500\nUSD;3500\n",
        "GBP,1500\nEUR,2500\nUSD,3500\n",
        "Currency\tAmount\nGBP\t1500\nEUR\t2500\n",
    ],
)
def test_a_currency_on_another_line_is_of_what_stands_there(text: str) -> None:
    assert amounts(text) == []


def test_a_currency_in_another_row_is_of_what_stands_there() -> None:
    rows = "Currency | Amount\nGBP | 1,500\nEUR | 2,500\nUSD | EUR\n1 | 2"
    assert found_in([table(rows)], "amount") == []


def test_an_amount_goes_over_the_end_of_a_line_within_a_paragraph() -> None:
    text = (
        "The tenant pays each month in advance the sum of EUR\n1,250.00 to the landlord, and for stairs 9\n"
        "EUR more, as agreed."
    )
    assert amounts(text) == [("1250", "EUR"), ("9", "EUR")]
