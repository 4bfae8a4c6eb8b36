"""A summary in the document's own sentences."""

from __future__ import annotations

import random

import pytest

from finding_scenario import CONTRACT, GERMAN_LETTER, REPORT, chunks_of, found_in, table
from holdfast.pipelines.documents.findings import summary as summary_file
from holdfast.pipelines.documents.findings.finding import ChunkText
from holdfast.pipelines.documents.findings.prose import paragraphs, sentences


def split(text: str, language: str = "en") -> list[str]:
    return [sentence.text for paragraph in paragraphs(text) for sentence in sentences(paragraph, language)]


@pytest.mark.parametrize("text", [CONTRACT, REPORT, GERMAN_LETTER], ids=["contract", "report", "letter"])
def test_a_summary_is_of_three_to_five_whole_sentences_in_their_order(text: str) -> None:
    found = found_in(text, "summary")
    plain = " ".join(text.split())
    assert 3 <= len(found) <= 5
    places = [plain.index(each.text) for each in found]
    assert places == sorted(places)
    assert [each.value["position"] for each in found] == list(range(1, len(found) + 1))
    assert all(each.text[-1] in ".!?" and each.text[0].isupper() for each in found)


def test_each_sentence_points_to_its_chunk() -> None:
    chunks = chunks_of(REPORT)
    for found in found_in(chunks, "summary"):
        [number] = found.chunks
        assert found.text in " ".join(chunks[number].text.split())


def test_a_sentence_that_a_chunk_cuts_is_not_told_in_part() -> None:
    sentence = "The magnetic bearing of the large wind turbine is made of steel and copper in the north."
    chunks = [
        ChunkText(number=0, kind="text", text=f"{sentence[:50]}"),
        ChunkText(number=1, kind="text", text=f"{sentence[20:]} {sentence}", overlap=30),
    ]
    assert [each.text for each in found_in(chunks, "summary")] == [sentence]


def test_headings_tables_lists_and_boilerplate_are_no_sentences() -> None:
    text = (
        "THE BOARD OF THE COMPANY HAS DECIDED TO SELL ALL OF IT NOW.\n\n"
        "Copyright 2024 by the company and its partners, all rights reserved in each country.\n\n"
        "See https://example.org/very/long for all of the details that we have.\n\n"
        "Ada Lovelace, Grace Hopper, Alan Turing, Edsger Dijkstra, Barbara Liskov, Donald Knuth.\n\n"
        "12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33.\n\n"
        "and so it was that the company went on to sell more of it than before.\n\n"
        "A heading without a mark that is as long as any sentence of this text\n"
    )
    assert (
        found_in(
            [
                ChunkText(number=0, kind="text", text=text),
                table("It is a row of a table and it ends with a dot."),
            ],
            "summary",
        )
        == []
    )


def test_what_says_the_same_is_told_once() -> None:
    text = "The wind turbine produces power for the northern harbour city. " * 2 + (
        "For the northern harbour city the wind turbine produces power again. "
        "Solar panels on every roof of the school supply the kitchen with warm water. "
    )
    told = [each.text for each in found_in(text, "summary")]
    assert len(told) == 2


def test_a_sentence_that_leans_on_the_one_before_is_told_last() -> None:
    text = (
        "This makes the turbine blade and the steel tower of the wind farm cheaper to build. "
        "The turbine blade and the steel tower of the wind farm are built in the harbour of Esbjerg. "
        "Is the turbine blade of the wind farm with the steel tower really built in this town? "
    )
    best = max(found_in(text, "summary"), key=lambda each: each.score)
    assert best.text.startswith("The turbine blade")


def test_the_number_of_a_clause_is_no_part_of_its_sentence() -> None:
    assert split(
        "1.2 The Supplier shall pay.\n(a) Every party signs.\n§ 4 Der Mieter zahlt.\n• All is well."
    ) == [
        "The Supplier shall pay.",
        "Every party signs.",
        "Der Mieter zahlt.",
        "All is well.",
    ]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Mr. Smith met Dr. J. Doe of Acme Inc. in the U.S. on Jan. 5.", "en"),
        ("Am 3. März kam er, d.h. mit ca. 5 Mio. Euro, nach Berlin.", "de"),
        ("Er kam am 3. Tag.", "de"),
        ("M. Dupont est arrivé.", "fr"),
        ("It rose to 1.5 percent of e.g. Spain.", "en"),
        ('He said "Stop." and went on.', "en"),
    ],
)
def test_a_dot_of_an_abbreviation_or_a_number_ends_no_sentence(text: str, language: str) -> None:
    assert split(text, language) == [text]


def test_marks_end_sentences() -> None:
    assert split('He left in 2024. "Why?" she asked. Really?! Yes… Then (at last.) Done') == [
        "He left in 2024.",
        '"Why?" she asked.',
        "Really?!",
        "Yes…",
        "Then (at last.)",
        "Done",
    ]


def test_lines_of_a_page_are_put_together_and_headings_are_not() -> None:
    text = (
        "Abstract\nThis is a sample docu-\nment with two columns filled with\nthe text of it.\nA "
        "Long-\nTerm plan\n- one\n- two\n"
    )
    assert list(paragraphs(text)) == [
        "Abstract",
        "This is a sample document with two columns filled with the text of it.",
        "A Long- Term plan",
        "- one",
        "- two",
    ]


def test_a_long_document_holds_only_its_best_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_file, "_HELD", 20)
    monkeypatch.setattr(summary_file, "_HELD_MOST", 40)
    draw = random.Random(3)
    words = ("river", "mountain", "valley", "forest", "meadow", "castle", "harbour", "bridge", "garden")
    text = " ".join(
        f"The {draw.choice(words)} near the old {draw.choice(words)} was painted by the "
        f"{draw.choice(words)} keeper in year {year}."
        for year in range(400)
    )
    assert len(found_in(text, "summary")) >= 3


def test_the_same_sentence_twice_is_held_once() -> None:
    assert (
        len(found_in("The wind turbine produces power for the northern harbour city. " * 30, "summary")) == 1
    )
