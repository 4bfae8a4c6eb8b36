"""The analysis by rules as a whole: its bounds, its order, and text from those who wish it ill."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterator

import msgspec
import pytest

from finding_scenario import (
    CONTRACT,
    GERMAN_LETTER,
    INVOICE,
    REPORT,
    chunks_of,
    found_in,
    no_beat,
    pages_of,
    table,
)
from holdfast.pipelines.documents.findings.finding import (
    KINDS,
    MOST,
    VALUE_BYTES_MAX,
    ChunkText,
    Finding,
    finding,
    storable,
)
from holdfast.pipelines.documents.findings.local import analyze
from holdfast.pipelines.documents.findings.tally import Tally

# Generous: a pattern that backtracks takes minutes for it, and another machine may be slow.
SECONDS_MAX = 20.0


def told(text: str, kind: str) -> list[str]:
    return [found.text for found in found_in(text, kind)]


def test_an_analyst_reads_who_what_when_and_how_much_of_a_contract() -> None:
    parties = {found.text: found.value for found in found_in(CONTRACT, "party")}
    assert parties["Northwind Analytics Ltd"]["role"] == "Supplier"
    assert parties["Bluebird Logistics GmbH"] == {
        **{"type": "organization", "role": "Customer"},
        "domain": "bluebird-logistics.de",
    }
    assert {found.value["date"] for found in found_in(CONTRACT, "date")} == {
        *("2024-03-14", "2025-01-01", "2024-04-01", "2027-03-31", "2025-09-30")
    }
    assert told(CONTRACT, "amount") == ["EUR 1.5 million", "EUR 240,000.00", "EUR 60,000", "8.5%", "3%"]


def test_of_an_invoice_the_total_stands_first() -> None:
    [first, *_] = found_in(INVOICE, "amount")
    assert (first.value["amount"], first.value["currency"], first.count) == ("3624", "GBP", 2)
    assert set(told(INVOICE, "party")) == {"Fenwick & Lowe LLP", "Harbour Print & Paper Ltd"}
    assert {found.value["date"] for found in found_in(INVOICE, "date")} == {"2024-04-05", "2024-04-25"}
    [items] = found_in(INVOICE, "table")
    assert [column["name"] for column in items.value["columns"]] == ["Quantity", "Unit price", "Amount"]


def test_a_report_has_its_figures_added_up() -> None:
    [figures] = found_in(REPORT, "table")
    assert [(column["name"], column["sum"], column["total"]) for column in figures.value["columns"]] == [
        ("2023", "412.6", "412.6"),
        ("2022", "349.7", "349.7"),
    ]


def test_a_german_letter_is_read_in_its_own_way() -> None:
    amounts = {
        (found.value["amount"], found.value.get("currency")) for found in found_in(GERMAN_LETTER, "amount")
    }
    assert {("1024.20", "EUR"), ("115.80", "EUR"), ("12500000", "EUR"), ("4.5", None)} <= amounts
    assert {found.value["date"] for found in found_in(GERMAN_LETTER, "date")} >= {"2024-05-03", "2024-07-01"}
    assert {"Frau Sabine Krüger", "Dr. Thomas Wendt", "Bundesnetzagentur"} <= set(
        told(GERMAN_LETTER, "party")
    )


def test_a_document_in_two_languages_is_read_in_both() -> None:
    german = "Die Kündigung ist mit einer Frist von drei Monaten für die Kundin und den Kunden möglich. " * 14
    english = "The notice period is three months for the customer and for the supplier of the goods. " * 14
    found = found_in(
        [
            *chunks_of(german),
            *(msgspec.structs.replace(chunk, number=9 + chunk.number) for chunk in chunks_of(english)),
        ]
    )
    phrases = {each.text.lower() for each in found if each.kind == "phrase"}
    assert "notice period" in phrases and "kündigung" in phrases
    assert "die" not in phrases


def test_findings_come_kind_by_kind() -> None:
    kinds = [found.kind for found in found_in(REPORT)]
    assert list(dict.fromkeys(kinds)) == [kind for kind in KINDS if kind in kinds]
    assert set(kinds) == set(KINDS)


def test_no_chunks_give_no_findings() -> None:
    assert analyze([], beat=no_beat) == []
    assert analyze([ChunkText(number=0, kind="text", text="")], beat=no_beat) == []


def test_the_same_document_gives_the_same_findings() -> None:
    text = CONTRACT + REPORT + GERMAN_LETTER + INVOICE
    assert found_in(text) == found_in(text)


def test_chunks_are_taken_one_by_one_with_a_beat_before_each() -> None:
    taken: list[str] = []

    def chunks() -> Iterator[ChunkText]:
        for chunk in chunks_of(CONTRACT):
            taken.append("chunk")
            yield chunk

    analyze(chunks(), beat=lambda _: taken.append("beat"))
    assert taken[: 2 * len(chunks_of(CONTRACT))] == ["chunk", "beat"] * len(chunks_of(CONTRACT))


def test_a_beat_may_end_it() -> None:
    def beat(_: float | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        analyze(chunks_of(CONTRACT), beat=beat)


def test_an_overlap_that_is_no_length_of_the_text_does_no_harm() -> None:
    for overlap in (-5, 10_000):
        analyze(
            [ChunkText(number=0, kind="text", text="Paid on 3 March 2024.", overlap=overlap)], beat=no_beat
        )


def test_a_header_is_no_date_of_each_page() -> None:
    pages = [
        f"Minutes of 3 March 2024\nPage {number}\nText number {number} of it is here.\nend"
        for number in range(9)
    ]
    [found] = found_in(pages_of(pages), "date")
    assert found.count == 2


# ── bounds ───────────────────────────────────────────────────────────────────────────────────────


def within_bounds(found: list[Finding]) -> None:
    assert len(found) <= 300
    for kind in KINDS:
        assert sum(each.kind == kind for each in found) <= MOST[kind]
    for each in found:
        assert 0 < len(each.text) <= 2_000
        assert len(msgspec.json.encode(each.value)) <= VALUE_BYTES_MAX
        assert 0.0 <= each.score <= 1.0
        assert each.chunks == sorted(set(each.chunks)) and 1 <= len(each.chunks) <= 50
        assert each.count >= 1
        written = msgspec.json.encode(each).decode()
        assert storable(written) == written and "\\u0000" not in written


def test_a_finding_is_cut_to_its_bounds() -> None:
    made = finding(
        "phrase", "x" * 5_000, value={"a": "y" * 20_000}, score=7.0, chunks=range(99, 0, -1), count=10**12
    )
    assert (len(made.text), made.value, made.score, made.count) == (2_000, None, 1.0, 2**31 - 1)
    assert made.chunks == list(range(1, 51))


def test_what_cannot_be_stored_is_in_no_finding() -> None:
    made = finding(
        "phrase",
        "a\x00b\ud800 \u202ec\n\td\ufeff",
        value={"k\x00": ["\udfff1", ("2",), 3, None]},
        score=0.0,
        chunks=[1],
    )
    assert (made.text, made.value) == ("ab c d", {"k": ["1", ["2"], 3, None]})


def test_counting_is_bounded_and_keeps_what_is_frequent() -> None:
    tally: Tally[int] = Tally(100)
    for number in range(10_000):
        tally.add(number, number, str(number))
        tally.add(-1, number, "often")
    assert len(tally.seen) <= 100
    assert tally.seen[-1].count == 10_000
    assert tally.seen[-1].chunks == list(range(50))


# ── hostile text ─────────────────────────────────────────────────────────────────────────────────

PIECES = [
    *(
        "a",
        "A",
        "1",
        ".",
        ". ",
        ",",
        "1,",
        "1.",
        "123 ",
        "@",
        "a@",
        "a@a.",
        "(",
        "()",
        '"',
        '(the "',
        "\n",
        "\n ",
        " ",
    ),
    *(
        "\t",
        " | ",
        "1 | ",
        "Acme ",
        "Acme Ltd ",
        "Mr A ",
        "Seller: ",
        "Seller:\n",
        "€",
        "€1 ",
        "EUR",
        "1% ",
        "2024 ",
    ),
    *(
        "March 2024 ",
        "3/",
        "3/4/2024 ",
        "a-",
        "a-\n",
        "a'",
        "A & ",
        "University of ",
        "between Acme Ltd and ",
    ),
    *(
        "\0",
        "\ud800",
        "\u202e",
        "e\u0301",
        "a\ufffe\n",
        "中文字",
        "😀",
        "Total 1 2\n",
        "a  1  2\n",
        "-1 ",
        "Bundes",
    ),
]


@pytest.mark.parametrize("piece", PIECES, ids=[f"{number}" for number in range(len(PIECES))])
def test_the_same_piece_without_end_takes_time_as_its_length(piece: str) -> None:
    text = piece * (60_000 // len(piece))
    started = time.process_time()
    for chunks in (
        [ChunkText(number=0, kind="text", text=text, page=1)],
        [table(text, sheet="S")],
        chunks_of(text),
    ):
        within_bounds(analyze(chunks, beat=no_beat))
    assert time.process_time() - started < SECONDS_MAX


def test_random_text_of_all_of_it_stays_within_bounds() -> None:
    draw = random.Random(11)
    pieces = [
        *PIECES,
        "3. März 2024",
        "$(4.2) million",
        "The wind turbine produces power for the harbour city. ",
    ]
    for _ in range(30):
        text = "".join(draw.choice(pieces) for _ in range(2_000))
        within_bounds(
            analyze([*chunks_of(text), table(text, number=10_000, sheet="\0S\ud800")], beat=no_beat)
        )


def test_a_million_characters_without_a_space_are_no_words() -> None:
    text = "".join(random.Random(2).choices("abcdefgh0123456789+/", k=1_000_000))
    started = time.process_time()
    assert analyze([ChunkText(number=0, kind="text", text=text)], beat=no_beat) == []
    assert time.process_time() - started < SECONDS_MAX


def test_many_numbers_are_added_up_and_held_nowhere() -> None:
    rows = "\n".join(
        f"{number}.5 | {number % 7} | {number % 11} | x | EUR {number}" for number in range(1_000)
    )
    head = "Size | Rest | Other | Word | Cost\n"

    def chunks() -> Iterator[ChunkText]:
        for number in range(12):
            yield table(f"{head}{rows}", number=number, sheet="S", overlap=len(head) if number else 0)

    tracemalloc.start()
    try:
        found = analyze(chunks(), beat=no_beat)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    within_bounds(found)
    [figures] = [each for each in found if each.kind == "table"]
    assert figures.value["rows"] == 12_000
    assert figures.value["columns"][0]["sum"] == str(12 * (499_500 + 500))
    assert most < 20 * 1024**2


def test_memory_does_not_grow_with_the_document() -> None:
    draw = random.Random(4)

    def chunks(count: int) -> Iterator[ChunkText]:
        for number in range(count):
            words = ("".join(draw.choices("bcdfgaeiou", k=7)) for _ in range(90))
            text = " ".join(
                f"{word} EUR {draw.randrange(10**6)}.00" if draw.random() < 0.2 else word for word in words
            )
            yield ChunkText(number=number, kind="text", text=f"The {text}.")

    tracemalloc.start()
    try:
        analyze(chunks(300), beat=no_beat)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 40 * 1024**2
