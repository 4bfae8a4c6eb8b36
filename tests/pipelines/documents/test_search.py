"""The search of documents, on both stores: by words, by meaning, with whatever a person may type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.errors import InvalidInput, PermanentError, TransientError
from holdfast.pipelines.documents import word_search
from holdfast.pipelines.documents.embedders import Embedder
from holdfast.pipelines.documents.local_embedder import local_embedder
from holdfast.pipelines.documents.nearest import NearestVectors
from holdfast.pipelines.documents.query_vectors import KEPT_MAX, QueryVectors
from holdfast.pipelines.documents.query_words import PARTS_MAX, Part, cleaned, parts_of
from holdfast.pipelines.documents.search import Found, Hit, Search
from holdfast.pipelines.documents.settings import DocumentSettings
from holdfast.pipelines.documents.snippets import SNIPPET_CHARS, pattern_of, snippet_of
from model_server import HANG, UNAVAILABLE, ModelServer
from running import run
from store_scenario import opened
from vector_scenario import add_chunks, add_document, embed, prepare, remove_document

LOCAL = DocumentSettings.from_environment({})

PUMPS = [
    "The pump must be lubricated every 500 hours of operation. Use only the grease of annex B.",
    "Spare parts are ordered from the service centre in Graz. Delivery takes about two weeks.",
    "The warranty covers defects of material for 24 months from delivery; worn seals are not covered.",
]
LEASE = [
    "The tenant pays the rent on the first day of each month to the landlord's bank account.",
    "Either party may terminate the lease with a notice of three months, in writing.",
    "Pets are allowed only with the consent of the landlord.",
]


def find(url: str, query: str, settings: DocumentSettings = LOCAL, **more: Any) -> Found:
    async def look() -> Found:
        async with opened(url) as store:
            return await Search(store, settings).find(query, **more)

    return run(look())


def words_only(url: str, query: str, **more: Any) -> list[Hit]:
    """By a search that has no vectors."""

    def unavailable(_: DocumentSettings) -> Embedder:
        raise TransientError("away", user_message="away")

    async def look() -> Found:
        async with opened(url) as store:
            vectors = QueryVectors(LOCAL, open_with=unavailable)
            return await Search(store, LOCAL, vectors=vectors).find(query, **more)

    return run(look()).items


def marked(hit: Hit) -> list[str]:
    return [hit.snippet[start:end] for start, end in hit.matches]


@pytest.fixture
def url(store_url: str) -> str:
    prepare(store_url)
    return store_url


@pytest.fixture
def library(url: str) -> str:
    add_document(url, 1, PUMPS, filename="pump.pdf", kind="pdf")
    add_document(url, 2, LEASE, filename="lease.docx", kind="docx")
    return url


# Finding


def test_a_hit_says_where_it_stands(library: str) -> None:
    hit = find(library, "notice of three months").items[0]
    assert (hit.document_id, hit.filename, hit.chunk.number) == (2, "lease.docx", 1)
    assert (hit.page, hit.sheet, hit.cells, hit.heading) == (2, None, None, "1 Intro")
    assert "three months" in hit.snippet
    assert marked(hit) == ["notice", "of", "three", "months"]
    assert hit.found_by == ["words", "vectors"]


def test_what_means_the_same_is_found_without_its_words(library: str) -> None:
    found = find(library, "ordering replacement components")
    assert found.vectors
    assert [hit.chunk.number for hit in found.items[:1]] == [1]
    assert found.items[0].found_by == ["vectors"]
    assert found.items[0].matches == []


def test_nonsense_finds_nothing(library: str) -> None:
    for query in ("asdkjh qwoieu zxmcnb", "football world cup winners", "quantum chromodynamics"):
        assert find(library, query) == Found(items=[], vectors=True)


def test_what_has_all_words_comes_before_what_has_some(url: str) -> None:
    add_document(url, 1, ["alpha beta gamma"], filename="all")
    add_document(url, 2, ["alpha alpha alpha alpha"], filename="one")
    add_document(url, 3, ["delta epsilon"], filename="none")
    assert [hit.filename for hit in words_only(url, "alpha beta gamma ")] == ["all", "one"]


def test_a_phrase_in_quotes_stands_together(url: str) -> None:
    add_document(url, 1, ["the spare parts of a pump", "parts that are spare"])
    for query in ('"spare parts"', "\u201cspare parts\u201d", '"spare parts'):
        assert [hit.chunk.number for hit in words_only(url, query)] == [0]
    assert marked(words_only(url, '"spare parts"')[0]) == ["spare parts"]


def test_the_last_word_may_go_on(url: str) -> None:
    add_document(url, 1, ["lubricated pump"])
    assert len(words_only(url, "pump lubri")) == 1
    assert marked(words_only(url, "pump lubri")[0]) == ["lubricated", "pump"]
    assert words_only(url, "lubri ") == []
    assert words_only(url, '"lubri"') == []


def test_the_word_itself_comes_before_what_begins_with_it(url: str) -> None:
    add_document(url, 1, ["category theory of categories"], filename="begins")
    add_document(url, 2, ["my cat"], filename="is")
    assert words_only(url, "cat")[0].filename == "is"


def test_a_rare_word_counts_for_more_than_a_common_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add_document(url, 1, [f"common words in line {n}" for n in range(30)], filename="common")
    add_document(url, 2, ["something peculiar"], filename="rare")
    assert words_only(url, "common peculiar ")[0].filename == "rare"
    # Where the common one is too common, it is not looked for at all.
    monkeypatch.setitem(word_search.SOME_ROWS_MAX, "sqlite", 10)
    monkeypatch.setitem(word_search.SOME_ROWS_MAX, "postgresql", 10)
    assert [hit.filename for hit in words_only(url, "common peculiar ")] == ["rare"]


def test_words_that_nobody_has_are_left_out_of_the_rest(url: str) -> None:
    add_document(url, 1, ["known words"])
    assert len(words_only(url, "unheardof known ")) == 1
    assert words_only(url, "unheardof neverseen ") == []


def test_names_with_marks_in_them_are_found(url: str) -> None:
    add_document(url, 1, ["write to ann@example.com about part AB-1234/7 for 1.5 bar, see www.example.org/a"])
    for query in ("ann@example.com", "AB-1234/7", "1.5", "ab-1234"):
        assert len(words_only(url, query)) == 1, query


def test_a_search_may_keep_to_one_document_or_kind(library: str) -> None:
    assert {hit.document_id for hit in find(library, "the landlord delivery", document_id=1).items} == {1}
    assert {hit.document_id for hit in find(library, "the landlord delivery", kind="docx").items} == {2}
    assert find(library, "landlord", kind="xlsx").items == []


def test_a_document_is_found_once_it_is_parsed(url: str) -> None:
    add_chunks(url, 1, ["a text with zebras"], stage=None)
    embed(url, 1)
    assert find(url, "zebras").items == []
    add_chunks(url, 2, ["another text with zebras"], stage="parsed")
    assert [hit.document_id for hit in find(url, "zebras").items] == [2]


def test_a_document_that_is_removed_is_found_no_more(library: str) -> None:
    async def story() -> None:
        async with opened(library) as store:
            search = Search(store, LOCAL)
            assert (await search.find("landlord")).items
            await asyncio.to_thread(remove_document, library, 2)
            assert not (await search.find("landlord")).items

    run(story())


def test_one_document_does_not_take_all_the_places(url: str) -> None:
    add_document(url, 1, [f"pump pump pump number {n}" for n in range(12)], filename="long")
    add_document(url, 2, ["a page with one pump, and much besides that has nothing to do with it"])
    found = words_only(url, "pump ", limit=5)
    numbers = [hit.chunk.number for hit in found if hit.document_id == 1]
    assert 2 in [hit.document_id for hit in found]
    first = numbers[:3]
    assert all(abs(one - other) > 1 for one in first for other in first if one != other)
    assert len(words_only(url, "pump ", limit=12)) == 12
    assert len(words_only(url, "pump ", limit=12, document_id=1)) == 12


def test_before_any_document_nothing_is_found(store_url: str) -> None:
    assert find(store_url, "anything") == Found(items=[], vectors=True)


@pytest.mark.parametrize("limit", [0, 101])
def test_a_limit_has_its_bounds(url: str, limit: int) -> None:
    with pytest.raises(InvalidInput):
        find(url, "x", limit=limit)


# Whatever a person types

ODD = [
    '"',
    '""',
    "'",
    "a'b",
    "\\",
    "a\\' OR 1=1 --",
    "NOT",
    "AND OR NEAR",
    "NEAR(a b, 3)",
    "text:pump",
    "{text}: pump",
    "-pump",
    "+pump ^pump",
    "pump*",
    "* *",
    "(((",
    "pump & !lease | <-> x:*",
    "pump:*",
    "a:b:c",
    "\x00",
    "pump\x00lease",
    "pu\u202emp",
    "\u200f\u200e",
    "\ud800",
    "pump \udfff",
    "🙂",
    "🙂🙂 👩\u200d👩\u200d👧",
    "...",
    "، ؟",
    "%_%",
    "$1 ?1 :x @y",
    "<b>pump</b>",
    "\n\t pump \r\n",
    "pump " * 2_000,
    "x" * 10_000,
    '"' * 10_000,
    "日本語のテキスト",
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "e\u0301te\u0301",
    "\U0001e900\U0001e901",
    "ﬁ ½ ²",
    "''':*",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z 1 2 3 4 5 6 7 8 9",
]


def test_no_query_is_an_error(library: str) -> None:
    async def story() -> None:
        async with opened(library) as store:
            search = Search(store, LOCAL)
            for query in ODD:
                found = await search.find(query)
                assert len(found.items) <= 6, query
                for hit in found.items:
                    assert all(0 <= start < end <= len(hit.snippet) for start, end in hit.matches)

    run(story())


def test_marks_around_words_are_no_part_of_them(library: str) -> None:
    expected = [hit.chunk for hit in words_only(library, "pump")]
    assert len(expected) == 1
    for query in ("-pump", "+pump", "pump\x00", "\u202epump", "(pump", "<b> pump </b>", "NOT pump"):
        assert [hit.chunk for hit in words_only(library, query)][:1] == expected, query


def test_a_query_without_a_word_says_so(url: str) -> None:
    assert find(url, "... 🙂") == Found(items=[], vectors=False, reason="There is no word to search for.")


def test_a_query_is_cut_into_words_and_phrases() -> None:
    assert parts_of('pump "spare  parts" war') == [
        Part("pump"),
        Part("spare parts"),
        Part("war", is_prefix=True),
    ]
    assert parts_of("Pump pump PUMP ") == [Part("Pump")]
    assert parts_of("a") == [Part("a")]
    assert len(parts_of(" ".join(f"word{n}" for n in range(100)))) == PARTS_MAX
    assert cleaned("a\u202eb\x00c\u200cd") == "a b c\u200cd"


# Snippets


def snippet(text: str, query: str, **more: Any) -> tuple[str, list[str]]:
    found = snippet_of(text, pattern_of(parts_of(query)), **more)
    return found.text, [found.text[start:end] for start, end in found.matches]


def test_a_short_text_is_shown_whole() -> None:
    assert snippet("A  pump\nthat runs.", "pump ") == ("A pump that runs.", ["pump"])


def test_a_long_text_is_cut_at_words_around_what_was_found() -> None:
    text = "lorem " * 100 + "the needle is here " + "ipsum " * 100
    shown, found = snippet(text, "needle ")
    assert found == ["needle"]
    assert shown.startswith("…lorem ") and shown.endswith("ipsum…")
    assert SNIPPET_CHARS - 20 < len(shown) <= SNIPPET_CHARS + 2


def test_the_place_with_the_most_matches_is_shown() -> None:
    text = "pump " + "filler " * 100 + "pump and seal and grease " + "filler " * 100
    assert snippet(text, "pump seal grease ")[1] == ["pump", "seal", "grease"]


def test_without_a_match_the_beginning_is_shown_but_not_what_was_there_before() -> None:
    text = "end of the one before. " + "New words " * 100
    assert snippet(text, "nothing ")[0].startswith("end of")
    assert snippet(text, "nothing ", overlap=23)[0].startswith("…New words")
    assert snippet("short", "nothing ", overlap=50) == ("short", [])


def test_letters_with_marks_are_found_by_those_without() -> None:
    assert snippet("Les élèves à l'école; STRASSE, Straße, İstanbul", "eleves ")[1] == ["élèves"]
    assert snippet("Straße", "straße ")[1] == ["Straße"]


def test_a_part_of_a_word_is_no_match() -> None:
    assert snippet("catalogue and cat", "cat ")[1] == ["cat"]
    assert snippet("catalogue and cat", "cat")[1] == ["catalogue", "cat"]


def test_words_without_spaces_are_cut_somewhere() -> None:
    shown, found = snippet("x" * 1_000, "y ")
    assert len(shown) <= SNIPPET_CHARS + 2 and found == []
    shown, found = snippet("y" + "x" * 1_000, "yx")
    assert len(shown) <= SNIPPET_CHARS + 2
    assert snippet("a" * 500 + " needle " + "b" * 500, "needle ")[1] == ["needle"]


# Where there are no vectors


def remote(url: str) -> DocumentSettings:
    return DocumentSettings.from_environment(
        {"HOLDFAST_EMBEDDINGS_URL": url, "HOLDFAST_EMBEDDINGS_MODEL": "m"}
    )


def test_when_the_service_is_away_words_are_searched_and_the_answer_says_so(library: str) -> None:
    with ModelServer() as server:
        server.fails = lambda _: UNAVAILABLE
        found = find(library, "landlord", remote(server.url))
    assert [hit.document_id for hit in found.items] == [2, 2]
    assert (found.vectors, found.reason) == (False, "The embedding service is unavailable")


def vectors_of(
    settings: DocumentSettings, at: list[float], opens: Callable[[DocumentSettings], Embedder] | None = None
) -> QueryVectors:
    return QueryVectors(settings, open_with=opens, clock=lambda: at[0])


def test_that_the_service_is_away_is_remembered_for_a_while() -> None:
    at = [0.0]

    async def story(server: ModelServer) -> None:
        vectors = vectors_of(remote(server.url), at)
        for _ in range(3):
            assert await vectors.of("query") == "The embedding service is unavailable"
        assert len(server.requests) == 1
        at[0] = 31.0
        server.fails = lambda _: None
        assert not isinstance(await vectors.of("query"), str)

    with ModelServer() as server:
        server.fails = lambda _: UNAVAILABLE
        run(story(server))


def test_a_service_that_hangs_is_waited_for_only_briefly() -> None:
    async def story(server: ModelServer) -> None:
        settings = remote(server.url)
        assert settings.embeddings is not None
        short = replace(settings, embeddings=replace(settings.embeddings, timeout_seconds=0.2))
        vectors = vectors_of(short, [0.0])
        assert await vectors.of("query") == "The embedding service does not answer in time"
        assert len(server.requests) == 1

    with ModelServer() as server:
        server.fails = lambda _: HANG
        run(story(server))


def test_a_vector_that_takes_too_long_is_given_up() -> None:
    at = [0.0]

    class Slow:
        model, batch_max, similarity_min = "m", 1, 0.0

        def embed(self, texts: Sequence[str], *, beat: Callable[[], None]) -> Any:
            at[0] += 10
            beat()

    for settings, told in (
        (LOCAL, "The model for the search takes too long"),
        (remote("http://127.0.0.1:1/v1"), "The embedding service does not answer in time"),
    ):
        assert run(vectors_of(settings, at, lambda _: Slow()).of("x")) == told


def test_a_missing_package_is_told_and_words_are_searched(library: str) -> None:
    def missing(_: DocumentSettings) -> Embedder:
        raise PermanentError("no wordllama", user_message="The model for the search is not installed")

    async def look() -> Found:
        async with opened(library) as store:
            return await Search(store, LOCAL, vectors=QueryVectors(LOCAL, open_with=missing)).find("landlord")

    found = run(look())
    assert (len(found.items), found.vectors) == (2, False)
    assert found.reason == "The model for the search is not installed"


def test_the_vector_of_a_query_is_kept() -> None:
    opened_times: list[int] = []

    def counting(_: DocumentSettings) -> Embedder:
        opened_times.append(1)
        return local_embedder()

    async def story() -> None:
        vectors = QueryVectors(LOCAL, open_with=counting)
        for _ in range(3):
            await vectors.of("one")
        assert len(opened_times) == 1
        for number in range(KEPT_MAX):
            await vectors.of(f"query {number}")
        await vectors.of("one")
        assert len(opened_times) == KEPT_MAX + 2

    run(story())


def test_documents_of_another_model_are_told(library: str) -> None:
    with ModelServer() as server:
        found = find(library, "landlord", remote(server.url))
    assert len(found.items) == 2
    assert not found.vectors
    assert "another model" in (found.reason or "")


def test_what_is_removed_while_it_is_searched_is_left_out(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = NearestVectors.find

    async def story() -> None:
        async with opened(library) as store:
            search = Search(store, LOCAL)

            async def find_and_remove(self: NearestVectors, *given: Any, **more: Any) -> Any:
                near = await whole(self, *given, **more)
                await asyncio.to_thread(remove_document, library, 2)
                return near

            monkeypatch.setattr(NearestVectors, "find", find_and_remove)
            assert [hit.document_id for hit in (await search.find("landlord pump")).items] == [1]

    run(story())
