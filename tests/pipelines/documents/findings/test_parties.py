"""Organisations and persons, with their roles."""

from __future__ import annotations

from typing import Any

import pytest

from finding_scenario import found_in, table


def parties(text: str) -> dict[str, dict[str, Any]]:
    return {found.text: found.value for found in found_in(text, "party")}


@pytest.mark.parametrize(
    "name",
    [
        "Acme Holdings Ltd",
        "Acme, Inc.",
        "Acme Trading Co. Ltd",
        "Müller & Söhne GmbH & Co. KG",
        "Deutsche Solar AG",
        "Boulangerie Dupont SARL",
        "Banco Azul S.A.",
        "Van Dijk Logistics B.V.",
        "eBay Inc.",
        "3M Deutschland GmbH",
        "Northern Rail plc",
        "Acme Pty Ltd",
        "University of Aarhus",
        "Stanford University",
        "Ministry of Food and Agriculture",
        "Federal Ministry of Health",
        "European Central Bank",
        "Bundesministerium der Finanzen",
        "Universidad de Granada",
        "Bundesnetzagentur",
    ],
)
def test_an_organisation_is_known_by_its_name(name: str) -> None:
    assert parties(f"Last year {name} has paid for it.") == {name: {"type": "organization"}}


@pytest.mark.parametrize(
    "name",
    [
        "Dr. Helen Marsh",
        "Mr Oliver J. Grant",
        "Frau Katrin von der Heide",
        "Prof. Dr. Anna Weiss",
        "Mme Claire Petit",
    ],
)
def test_a_person_is_known_by_a_title(name: str) -> None:
    assert parties(f"It was checked by {name}, who left.") == {name: {"type": "person"}}


@pytest.mark.parametrize(
    "text",
    [
        "The University is closed. Our Bank, the Commission and every Department agree.",
        "It is a company limited by shares. Limited use.",
        "Dr. and Mr went out. A Ministry of",
        "chairman Smith said so",
        "The agreement between the parties and others is between lines",
    ],
)
def test_what_names_nobody_is_no_party(text: str) -> None:
    assert parties(text) == {}


def test_the_parties_of_a_contract_have_the_roles_it_gives_them() -> None:
    text = (
        'This Agreement (the "Agreement") is made between Acme Widgets Inc, a company of Delaware and Ohio'
        ' (hereinafter the "Seller"), and Blue Harbour Foods (the "Buyer").'
    )
    assert parties(text) == {
        "Acme Widgets Inc": {"type": "organization", "role": "Seller"},
        "Blue Harbour Foods": {"type": "organization", "role": "Buyer"},
    }


def test_a_german_contract_gives_roles_too() -> None:
    text = (
        "Zwischen der Nordwind GmbH (im Folgenden „Auftraggeber“) und der Weber Bau AG "
        "(nachfolgend „Auftragnehmer“)."
    )
    assert {name: value["role"] for name, value in parties(text).items()} == {
        "Nordwind GmbH": "Auftraggeber",
        "Weber Bau AG": "Auftragnehmer",
    }


def test_a_spanish_contract_gives_roles_to_persons() -> None:
    text = "Entre Inmobiliaria del Sur S.L. (el «Arrendador») y D. Javier Molina Ruiz (el «Arrendatario»)."
    assert parties(text) == {
        "Inmobiliaria del Sur S.L.": {"type": "organization", "role": "Arrendador"},
        "D. Javier Molina Ruiz": {"type": "person", "role": "Arrendatario"},
    }


def test_a_role_may_stand_below_the_address() -> None:
    text = "Lindner GmbH & Co. KG, Goethestr. 5, Leipzig\n(nachfolgend „Vermieter“)\nund\n"
    assert parties(text)["Lindner GmbH & Co. KG"]["role"] == "Vermieter"


def test_a_name_for_both_parties_is_nobodys_role() -> None:
    text = 'between Acme Ltd and Beta Ltd (together the "Parties")'
    assert parties(text) == {"Acme Ltd": {"type": "organization"}, "Beta Ltd": {"type": "organization"}}


def test_a_titled_person_can_be_a_party() -> None:
    text = 'A lease between Mr. John Carver (the "Landlord") and Acme Ltd (the "Tenant").'
    assert parties(text)["Mr. John Carver"] == {"type": "person", "role": "Landlord"}


@pytest.mark.parametrize(
    ("line", "name", "type_", "role"),
    [
        ("Seller: Harbour Print", "Harbour Print", "organization", "seller"),
        ("Bill to:\nFenwick & Lowe LLP\n4 Temple Row", "Fenwick & Lowe LLP", "organization", "client"),
        ("Käufer: Weber Bau", "Weber Bau", "organization", "buyer"),
        ("The Tenant: Maria Lopez", "Maria Lopez", "person", "tenant"),
        ("Prepared by: Jane Doe, London", "Jane Doe", "person", "author"),
        ("Contact person: Dr. Ann Hill (sales)", "Dr. Ann Hill", "person", "contact"),
        ("Supplier name: Acme, Inc.", "Acme, Inc.", "organization", "supplier"),
        ("Client: Acme Pty Ltd 12 High Street", "Acme Pty Ltd", "organization", "client"),
    ],
)
def test_a_label_tells_a_role(line: str, name: str, type_: str, role: str) -> None:
    assert parties(f"Some words.\n{line}\n") == {name: {"type": type_, "role": role}}


@pytest.mark.parametrize(
    "line", ["Seller: see above", "Buyer: +49 30 123456", "Buyer: 12", "Seller: Buyer", "Colour: Red"]
)
def test_a_label_before_no_name_tells_nothing(line: str) -> None:
    assert parties(line) == {}


def test_a_label_may_stand_in_a_table() -> None:
    [found] = found_in([table("Vendor | Harbour Print\nTerms | 30 days")], "party")
    assert (found.text, found.value["role"]) == ("Harbour Print", "supplier")


def test_an_office_before_two_names_tells_a_person() -> None:
    assert parties("Chief executive Maria Lindqvist said so.") == {
        "Maria Lindqvist": {"type": "person", "role": "executive"}
    }


def test_spellings_of_one_organisation_are_one() -> None:
    text = "ACME HOLDINGS LIMITED pays. Later Acme Holdings Ltd pays. Acme Holdings, Inc. pays."
    [found] = found_in(text, "party")
    assert (found.count, found.text) == (3, "Acme Holdings Ltd")


def test_a_person_without_a_first_name_is_the_only_one_with_that_name() -> None:
    [found] = found_in("We met Dr. Helen Marsh. Then Ms Marsh left.", "party")
    assert (found.text, found.count) == ("Dr. Helen Marsh", 2)


def test_a_last_name_that_two_have_is_told_apart() -> None:
    assert set(parties("Dr. Helen Marsh met Mr. Tom Marsh. Then Ms Marsh left.")) == {
        "Dr. Helen Marsh",
        "Mr. Tom Marsh",
        "Ms Marsh",
    }


@pytest.mark.parametrize("host", ["northwind-analytics.co.uk", "mail.northwind.com"])
def test_a_mail_domain_goes_to_the_organisation_that_it_is_like(host: str) -> None:
    text = f"Write to legal@{host} of Northwind Analytics Ltd."
    expected = {"Northwind Analytics Ltd": {"type": "organization", "domain": host}}
    assert parties(text) == expected


def test_initials_make_a_domain() -> None:
    text = "Write to a@ecb.europa.eu, European Central Bank."
    assert parties(text) == {"European Central Bank": {"type": "organization", "domain": "ecb.europa.eu"}}


def test_a_domain_of_nobody_stands_for_one() -> None:
    assert parties("Write to sales@fjordtech.no.") == {
        "fjordtech.no": {"type": "organization", "domain": "fjordtech.no"}
    }


@pytest.mark.parametrize(
    "mail", ["jane@gmail.com", "jane@web.de", "a@b", "@acme.com", "x@1.2", "jane@ acme.com"]
)
def test_an_address_that_anybody_may_have_tells_nothing(mail: str) -> None:
    assert parties(f"Write to {mail} today.") == {}


def test_a_name_ends_where_its_line_ends() -> None:
    assert set(
        parties("Stadtwerke Lindenau GmbH\nAm Wasserturm 7\n\nFrau\nSabine Krüger\nBirkenweg 12\n")
    ) == {
        "Stadtwerke Lindenau GmbH",
        "Frau Sabine Krüger",
    }


def test_a_name_goes_on_where_only_the_page_broke_its_line() -> None:
    text = "The whole of the work was then given by the city to the large Acme\nHoldings Ltd of Leeds.\n"
    assert set(parties(text)) == {"Acme Holdings Ltd"}
