"""Key phrases: what a document speaks of."""

from __future__ import annotations

import random

import pytest

from finding_scenario import CONTRACT, GERMAN_LETTER, REPORT, chunks_of, found_in, pages_of, table
from holdfast.pipelines.documents.findings import phrases as phrases_file
from holdfast.pipelines.documents.findings.finding import ChunkText


def phrases(text: str) -> list[str]:
    return [found.text for found in found_in(text, "phrase")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            CONTRACT,
            {"data integration services", "personal data", "data protection officer", "annual service fee"},
        ),
        (REPORT, {"battery storage", "lithium cells", "operating profit", "hydrogen division"}),
        (GERMAN_LETTER, {"Stromverbrauch", "Abschlagszahlungen"}),
    ],
    ids=["contract", "report", "letter"],
)
def test_the_subjects_of_a_document_are_found(text: str, expected: set[str]) -> None:
    assert expected <= set(phrases(text)[:10])


def test_french_phrases_hold_their_connecting_words() -> None:
    text = (
        "Le taux de change est fixé. La variation du taux de change est prise en compte. Le taux "
        "de change est publié."
    )
    assert phrases(text)[0] == "taux de change"


def test_spanish_phrases_are_found() -> None:
    text = (
        "El plazo de entrega es corto. Para el plazo de entrega de las obras se paga una multa. "
        "El plazo de entrega es de la empresa."
    )
    assert phrases(text)[0] == "plazo de entrega"


def test_a_french_article_with_an_apostrophe_is_no_part_of_a_word() -> None:
    text = (
        "L'indemnisation est due. Le montant de l'indemnisation est fixé par le juge et les "
        "parties. L’indemnisation est payée."
    )
    assert phrases(text)[0] == "indemnisation"


def test_forms_of_a_word_are_counted_together_and_shown_plainly() -> None:
    text = (
        "Service Agreements matter. A service agreement is signed. SERVICE AGREEMENT! The service"
        " agreement's end."
    )
    [found] = [each for each in found_in(text, "phrase") if "agreement" in each.text.lower()]
    assert (found.text, found.count) == ("service agreement", 4)


def test_a_phrase_inside_a_longer_one_is_not_told_again() -> None:
    text = (
        "The data protection officer came. A data protection officer went. Our data protection officer sat."
    )
    assert phrases(text)[0] == "data protection officer"
    assert not {"protection officer", "data protection", "officer"} & set(phrases(text))


def test_numbers_are_no_part_of_a_phrase() -> None:
    text = "Invoice 12345 paid. Total 1,234.56 for item 99. " * 5
    assert not [each for each in phrases(text) if any(map(str.isdigit, each))]


def test_codes_of_currencies_and_months_are_no_phrases() -> None:
    text = "In March 2024 EUR 5 was paid. In March 2025 EUR 7 was paid. In March 2026 EUR 9 was paid."
    assert phrases(text) == []


def test_names_of_parties_are_told_as_parties() -> None:
    text = (
        "Acme Holdings Ltd won. Then Acme Holdings lost. Dr. Helen Marsh of Acme Holdings left. "
        "Marsh is gone. Marsh!"
    )
    assert phrases(text) == []


def test_what_stands_on_each_page_is_no_subject() -> None:
    body = "The turbine blade was tested in the wind tunnel. The wind tunnel was cold on day {0}."
    pages = [
        f"Confidential Project Nightjar\n{body.format(number)}\nThe turbine blade held.\nInternal "
        f"use only - page {number} of 12"
        for number in range(1, 13)
    ]
    found = [each.text.lower() for each in found_in(pages_of(pages), "phrase")]
    assert {"turbine blade", "wind tunnel"} <= set(found)
    assert not [each for each in found if "nightjar" in each or "internal" in each]


def test_a_sentence_in_the_middle_of_each_page_is_text() -> None:
    pages = [f"a\nb\nc\nd\nThe magnetic bearing is fine.\ne\nf\ng\nh {number}" for number in range(6)]
    assert "magnetic bearing" in [each.text for each in found_in(pages_of(pages), "phrase")]


def test_phrases_of_headings_weigh_more_and_are_counted_once_a_heading() -> None:
    text = "Some solar panel is here. A wind turbine is there. One solar panel, one wind turbine."
    plain = [ChunkText(number=0, kind="text", text=text)]
    headed = [
        ChunkText(number=number, kind="text", text=text, heading="1 Energy › 1.1 Wind turbine")
        for number in (0, 1)
    ]
    assert found_in(plain, "phrase")[0].text == "solar panel"
    [first, second, *_] = found_in(headed, "phrase")
    assert (first.text, first.count, second.count) == ("wind turbine", 5, 4)


def test_cells_part_phrases() -> None:
    found = found_in([table("red apple | green pear\n" * 3)], "phrase")
    assert {each.text for each in found} == {"red apple", "green pear"}


def test_gaps_part_phrases() -> None:
    assert "price amount" not in [each.lower() for each in phrases("unit price    amount paid\n" * 3)]


def test_a_phrase_points_to_its_chunks() -> None:
    text = ("filler of the text. " * 60 + "A magnetic bearing is here. ") * 3
    [found] = [each for each in found_in(text, "phrase") if each.text == "magnetic bearing"]
    chunks = chunks_of(text)
    assert found.chunks == [chunk.number for chunk in chunks if "magnetic" in chunk.text[chunk.overlap :]]


def test_short_documents_tell_what_occurs_once() -> None:
    assert "magnetic bearing" in phrases("They tested a magnetic bearing.")


def test_long_documents_do_not() -> None:
    text = "They tested a magnetic bearing. " + "The wind turbine has a steel tower. " * 200
    assert "magnetic bearing" not in phrases(text)


def test_scripts_without_spaces_have_no_phrases() -> None:
    assert phrases("中文字很多。" * 50) == []


def test_true_and_false_are_no_subjects() -> None:
    assert found_in([table("TRUE | FALSE\n" * 9)], "phrase") == []


def test_no_more_is_held_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrases_file, "_PHRASES_MAX", 500)
    monkeypatch.setattr(phrases_file, "_FORMS_MAX", 300)
    draw = random.Random(5)
    words = [
        "".join(draw.choice("bcdfgklmnprst") + draw.choice("aeiou") for _ in range(4)) for _ in range(3_000)
    ]
    text = ". ".join(f"{word}. The wind turbine is here" for word in words)
    counted = phrases_file.Phrases()
    from holdfast.pipelines.documents.findings.passage import prepared

    for chunk in chunks_of(text):
        counted.add(prepared(chunk))
        assert len(counted._seen) <= 500
    [first, *_] = counted.findings()
    assert first.text == "wind turbine"
    assert 2_800 < first.count <= 3_000
