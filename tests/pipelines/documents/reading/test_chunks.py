"""Where running text and tables are cut, and what chunks repeat."""

from __future__ import annotations

import random
import unicodedata

import pytest

from holdfast.core.errors import PermanentError
from holdfast.pipelines.documents.reading.chunk import Chunk, ReadLimits
from holdfast.pipelines.documents.reading.chunks import PART_CHUNKS_MAX, Chunker
from holdfast.pipelines.documents.reading.clean_text import clean, one_line
from holdfast.pipelines.documents.reading.columns import cell_range, column_letters, column_number
from holdfast.pipelines.documents.reading.warnings import WARNINGS_MAX, Warnings, numbers_shown

SENTENCES = "The first sentence is here. And a second one follows it! Is there a third? Yes, and a fourth. "


def chunked(*texts: str, chars_max: int = 120, overlap: int = 40) -> list[Chunk]:
    chunks: list[Chunk] = []
    chunker = Chunker(
        ReadLimits(chunk_chars_max=chars_max, overlap_chars=overlap),
        "a.txt",
        lambda part, _: chunks.extend(part),
    )
    for text in texts:
        chunker.flow(text)
    chunker.finish()
    return chunks


def joined(chunks: list[Chunk]) -> str:
    return "".join(chunk.text[chunk.overlap :] for chunk in chunks)


def test_a_short_text_is_one_chunk() -> None:
    assert chunked("  Hello, world.\n") == [Chunk("Hello, world.")]


def test_chunks_without_what_they_repeat_are_the_text() -> None:
    text = SENTENCES * 20
    chunks = chunked(text)
    assert len(chunks) > 10
    assert joined(chunks) == text.rstrip()


def test_a_chunk_begins_with_the_last_sentences_of_the_one_before() -> None:
    for before, chunk in zip(
        chunks := chunked(SENTENCES * 9, chars_max=240, overlap=60), chunks[1:], strict=False
    ):
        assert chunk.overlap
        assert before.text.endswith(chunk.text[: chunk.overlap])
        assert chunk.text[0].isupper()


def test_a_paragraph_is_the_best_place_to_cut() -> None:
    paragraph = "Some words that make a line. And more of them to make it long."
    chunks = chunked("\n\n".join([paragraph] * 4), overlap=0, chars_max=100)
    assert [chunk.text.strip() for chunk in chunks] == [paragraph] * 4


def test_a_long_word_is_cut_between_characters_that_are_seen_as_one() -> None:
    text = "e\u0301\u0323" * 300 + "👩🏽\u200d💻" * 100
    chunks = chunked(text, chars_max=50)
    assert joined(chunks) == text
    for chunk in chunks:
        first = chunk.text[chunk.overlap]
        assert not unicodedata.combining(first)
        assert first not in "\u200d🏽"
        assert not unicodedata.combining(chunk.text[0])


def test_more_marks_than_a_character_can_have_are_cut_all_the_same() -> None:
    text = "e" + "\u0301" * 500
    assert joined(chunked(text, chars_max=50)) == text


@pytest.mark.parametrize("seed", range(8))
def test_any_text_in_any_pieces_keeps_its_words(seed: int) -> None:
    draw = random.Random(seed)
    signs = ["a", "word", "\n", "\n\n", "  ", ". ", "。", "e\u0301", "| ", "x" * 90, "\t"]
    for _ in range(150):
        text = "".join(draw.choices(signs, k=draw.randrange(120)))
        cuts = sorted(draw.choices(range(len(text) + 1), k=5))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        chunks = chunked(*pieces, chars_max=80, overlap=20)
        assert joined(chunks).split() == text.split()
        assert all(chunk.text.strip() and len(chunk.text) <= 80 * 1.2 for chunk in chunks)


def test_a_table_is_cut_between_rows_and_its_header_is_repeated() -> None:
    chunks: list[Chunk] = []
    chunker = Chunker(ReadLimits(chunk_chars_max=60), "a.xlsx", lambda part, _: chunks.extend(part))
    chunker.place(sheet="Sums")
    chunker.row("Name | Sum", 1, 0, 1, is_header=True)
    for number in range(2, 12):
        chunker.row(f"region {number} | {number * 100}", number, 0, 1)
    chunker.finish()
    assert [chunk.cells for chunk in chunks] == ["A1:B4", "A5:B7", "A8:B10", "A11:B11"]
    assert all(chunk.kind == "table" and chunk.sheet == "Sums" for chunk in chunks)
    assert [chunk.text[: chunk.overlap] for chunk in chunks] == ["", *["Name | Sum\n"] * 3]
    assert joined(chunks).splitlines()[1:] == [f"region {number} | {number * 100}" for number in range(2, 12)]


def test_a_long_row_is_cut_where_cells_end() -> None:
    chunks: list[Chunk] = []
    chunker = Chunker(ReadLimits(chunk_chars_max=60), "a.xlsx", lambda part, _: chunks.extend(part))
    line = " | ".join(f"cell number {number}" for number in range(20))
    chunker.row("a | b", 1, 0, 1, is_header=True)
    chunker.row(line, 2, 0, 19)
    chunker.row("c | d", 3, 0, 1)
    chunker.finish()
    assert joined(chunks[1:-1]) == line
    assert all(len(chunk.text) <= 60 for chunk in chunks)
    assert {chunk.cells for chunk in chunks[1:-1]} == {"A2:T2"}
    assert chunks[-1] == Chunk("a | b\nc | d", "table", cells="A3:B3", overlap=6)


def test_a_header_that_fills_a_chunk_is_not_repeated() -> None:
    chunks: list[Chunk] = []
    chunker = Chunker(ReadLimits(chunk_chars_max=60), "a.xlsx", lambda part, _: chunks.extend(part))
    chunker.row("a header " * 5, 1, 0, 1, is_header=True)
    chunker.row("b | " * 12, 2, 0, 1)
    chunker.finish()
    assert [chunk.overlap for chunk in chunks] == [0, 0]


def test_no_chunk_reaches_over_two_places() -> None:
    chunks: list[Chunk] = []
    chunker = Chunker(ReadLimits(), "a.pdf", lambda part, _: chunks.extend(part))
    chunker.flow("before any")
    chunker.place(page=1)
    chunker.flow("one")
    chunker.row("a | b")
    chunker.flow("two")
    chunker.place(page=2, kind="form")
    chunker.flow("three")
    chunker.finish()
    assert [(chunk.text, chunk.page, chunk.kind) for chunk in chunks] == [
        ("before any", None, "text"),
        ("one", 1, "text"),
        ("a | b", 1, "table"),
        ("two", 1, "text"),
        ("three", 2, "form"),
    ]


def test_chunks_are_handed_on_in_parts_with_how_much_is_read() -> None:
    parts: list[tuple[int, float]] = []
    chunker = Chunker(
        ReadLimits(chunk_chars_max=40), "a", lambda part, share: parts.append((len(part), share))
    )
    chunker.share = 0.5
    chunker.flow("word " * 2000)
    chunker.share = 1.0
    chunker.finish()
    assert max(count for count, _ in parts) == PART_CHUNKS_MAX
    assert parts[0][1] == 0.5
    assert parts[-1][1] == 1.0


def test_more_text_than_is_allowed_is_refused() -> None:
    chunker = Chunker(ReadLimits(text_chars_max=1000), "big.txt", lambda *_: None)
    with pytest.raises(PermanentError, match=r"'big.txt' has more than 1,000 characters") as raised:
        chunker.flow("word " * 1000)
    assert raised.value.error_type == "file_too_large"


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("plain\ttext\nof two lines", "plain\ttext\nof two lines"),
        ("ﬁne oﬃce", "fine office"),
        ("a\0b\x07c", "abc"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("extra\u00ad\nordinary co\u00adoperate", "extraordinary cooperate"),
        ("lone \ud800 half", "lone  half"),
        ("a pair \ud83d\ude00", "a pair 😀"),
        ("\uf0b7 item, \ue001 kept", "• item, \ue001 kept"),
        ("\ufeffmark\u200b and\u202e direction", "mark and direction"),
        ("lines\u2028and\x0cpages", "lines\nand\n\npages"),
        ("Grüße, 漢字, emoji 👩\u200d💻", "Grüße, 漢字, emoji 👩\u200d💻"),
    ],
    ids=[
        *("plain", "ligatures", "controls", "line_ends", "soft_hyphens", "lone_surrogate"),
        *("surrogate_pair", "private_use", "invisible", "separators", "other_languages"),
    ],
)
def test_text_is_made_fit_to_be_stored(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


def test_a_name_is_on_one_line() -> None:
    assert one_line(" a \n\t name\0 ") == "a name"


def test_columns_and_ranges_are_written_as_spreadsheets_do() -> None:
    assert [column_letters(number) for number in (0, 25, 26, 701, 702, 16_383)] == [
        *("A", "Z", "AA", "ZZ", "AAA", "XFD")
    ]
    assert all(column_number(column_letters(number)) == number for number in range(0, 16_384, 37))
    assert (cell_range(1, 0, 20, 5), cell_range(3, 1, 3, 1)) == ("A1:F20", "B3")


def test_many_warnings_are_told_as_a_few() -> None:
    warnings = Warnings()
    for number in range(WARNINGS_MAX + 5):
        warnings.add(f"Number {number}.")
        warnings.add("Number 0.")
    assert len(warnings.told()) == WARNINGS_MAX + 1
    assert warnings.told()[-1] == "There are 5 more warnings like these."


def test_many_pages_are_told_as_spans() -> None:
    assert numbers_shown([1, 2, 3, 7, 9, 10]) == "1-3, 7 and 9-10"
    assert numbers_shown([4]) == "4"
    assert numbers_shown(list(range(1, 99, 2))).endswith("17, 19 and others")
