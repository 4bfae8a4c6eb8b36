"""`holdfast documents list|show|retry|search`, on a database and through a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command_scenario import holdfast, on_a_terminal
from holdfast.cli.documents import STAGES, STATUSES
from holdfast.cli.documents_search import pieces
from holdfast.core.errors import TransientError
from holdfast.pipelines.documents import embedding
from holdfast.pipelines.documents.documents import DocumentStatus
from holdfast.pipelines.documents.playbook import Stage
from served_stores import commands_go_through_a_server

DEED = (
    "The seller Acme Corp. shall pay EUR 1,250.00 to Globex Inc. by 3 March 2024. The crane stays in Bergen."
)


def places(folder: Path) -> dict[str, str]:
    return {"HOLDFAST_STORAGE": str(folder / "files"), "HOLDFAST_SPOOL": str(folder / "spool")}


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in places(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_DOCUMENTS_RETRY_DELAYS", "0.01")


def add(url: str, folder: Path, name: str = "deed.txt", text: str = DEED) -> None:
    """To its end; one that was uploaded before is waited for just so."""
    (folder / name).write_text(text)
    holdfast(url, "documents", "add", folder / name)


@contextmanager
def without_embedding() -> Iterator[None]:
    def failing(*_: object) -> None:
        raise TransientError("no answer", error_type="service_unavailable")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding, "embed_document", failing)
        yield


@pytest.fixture
def failed(sqlite_url: str, tmp_path: Path) -> str:
    """One document, parsed, whose embedding failed."""
    with without_embedding():
        add(sqlite_url, tmp_path)
    return sqlite_url


@pytest.fixture(params=["database", "server"])
def way(request: pytest.FixtureRequest) -> str:
    """On which the commands go, for `by_way`."""
    return str(request.param)


@contextmanager
def by_way(way: str, url: str) -> Iterator[str]:
    """Once what they are about was added, which the command does itself on a database only."""
    if way == "database":
        yield url
        return
    with commands_go_through_a_server(url):
        yield url


def test_the_options_have_all_statuses_and_stages() -> None:
    assert tuple(status.value for status in DocumentStatus) == STATUSES
    assert tuple(stage.value for stage in Stage) == STAGES


def test_an_empty_list_says_what_to_do_next(sqlite_url: str) -> None:
    holdfast(sqlite_url, "migrate")
    said = holdfast(sqlite_url, "documents", "list")
    assert said.out == "No documents.\n" and "holdfast documents add FILE_OR_FOLDER --db" in said.err
    assert holdfast(sqlite_url, "documents", "list", "--json").json == {"items": [], "next": None}


def test_documents_are_listed_newest_first_with_what_went_wrong(
    failed: str, tmp_path: Path, way: str
) -> None:
    add(failed, tmp_path, "other.txt", "Another text, of other things.")
    with by_way(way, failed) as url:
        head, first, second = holdfast(url, "documents", "list").out.splitlines()
        assert head.split() == ["id", "status", "kind", "size", "uploaded", "name", "error"]
        assert first.startswith("2   Complete  txt   30 bytes") and "other.txt" in first
        assert second.startswith("1   Failed") and "Processing service unavailable" in second
        only = holdfast(url, "documents", "list", "--status", "failed", "--json").json["items"]
        assert [item["id"] for item in only] == [1]
        assert holdfast(url, "documents", "list", "--status", "retrying").out == "No documents match.\n"
        page = holdfast(url, "documents", "list", "--limit", 1)
        assert "2   Complete" in page.out and "--cursor 2" in page.err
        assert "deed.txt" in holdfast(url, "documents", "list", "--limit", 1, "--cursor", 2).out


def test_a_complete_document_is_shown_with_what_was_found_in_it(
    sqlite_url: str, tmp_path: Path, way: str
) -> None:
    add(sqlite_url, tmp_path)
    with by_way(way, sqlite_url) as url:
        said = holdfast(url, "documents", "show", 1, "--chunks")
        assert said.code == 0 and said.out.startswith("Document 1: deed.txt\nComplete.\n"), said
        for words in (
            "TXT, encoding",
            "in 1 chunk",
            "Acme Corp.",
            "3 March 2024 (2024-03-03",
            "EUR 1,250.00",
        ):
            assert words in said.out, words
        assert said.out.rstrip().endswith(f"[0]\n{DEED}")
        told = holdfast(url, "documents", "show", 1, "--json").json
        assert told["status"] == "complete" and told["found"] and "text" not in told
        [chunk] = holdfast(url, "documents", "show", 1, "--json", "--chunks").json["text"]
        assert chunk["text"] == DEED


def test_a_failed_document_is_shown_with_the_stage_that_a_retry_resumes_at(failed: str, way: str) -> None:
    with by_way(way, failed) as url:
        said = holdfast(url, "documents", "show", 1)
        assert "Failed at embedding." in said.out and "category  transient" in said.out
        assert "possible, resumes at embedding; 5 retries by hand left" in said.out
        assert "Failed attempts" in said.out and "no answer" in said.out
        assert "Retry from embedding" in said.err and "holdfast documents retry 1 --" in said.err


def test_a_permanent_failure_is_shown_with_why_a_retry_cannot_help(sqlite_url: str, tmp_path: Path) -> None:
    add(sqlite_url, tmp_path, "fake.pdf", "no PDF")
    said = holdfast(sqlite_url, "documents", "show", 1)
    assert "category  permanent" in said.out and "not possible: it would fail in the same way" in said.out
    assert "holdfast documents retry" not in said.err


@pytest.mark.parametrize("command", [["show", "9"], ["retry", "9"], ["search", "x", "--document", "9"]])
def test_a_document_that_is_not_there_is_told_with_where_the_numbers_are(
    failed: str, command: list[str], way: str
) -> None:
    with by_way(way, failed) as url:
        said = holdfast(url, "documents", *command)
    assert said.code == 2 and "There is no document 9." in said.err and "holdfast documents list" in said.err


def test_a_retry_goes_on_from_the_failed_stage_and_waits_before_the_next(
    failed: str, tmp_path: Path, way: str
) -> None:
    with by_way(way, failed) as url:
        said = holdfast(url, "documents", "retry", 1)
        assert said.code == 0 and said.out == "Document 1 (deed.txt) is processed again, from embedding.\n"
        assert "No living worker" in said.err and "holdfast documents show 1" in said.err
        running = holdfast(url, "documents", "retry", 1)
        assert running.code == 2 and "Document 1 is embedding; only one that failed" in running.err
    with without_embedding():
        add(failed, tmp_path)
    with by_way(way, failed) as url:
        hasty = holdfast(url, "documents", "retry", 1)
        assert hasty.code == 2 and "Document 1 was retried by hand less than 60 seconds ago." in hasty.err
        assert "holdfast documents retry 1" in hasty.err
        assert "resumes at embedding; 4 retries by hand left" in holdfast(url, "documents", "show", 1).out


def test_a_retry_can_begin_with_an_earlier_stage_and_not_with_a_later_one(failed: str) -> None:
    later = holdfast(failed, "documents", "retry", 1, "--from", "analyzing")
    assert later.code == 2 and "Document 1 failed at embedding, before analyzing." in later.err
    said = holdfast(failed, "documents", "retry", 1, "--from", "parsing", "--json")
    assert (said.code, said.json["from_stage"], said.json["manual_retries"]) == (0, "parsing", 1)


def test_a_permanent_error_is_retried_by_force_only(sqlite_url: str, tmp_path: Path) -> None:
    add(sqlite_url, tmp_path, "fake.pdf", "no PDF")
    said = holdfast(sqlite_url, "documents", "retry", 1)
    assert said.code == 2 and "Retrying will not help: The file is not what its name says" in said.err
    assert "holdfast documents retry 1 --force --db" in said.err
    assert holdfast(sqlite_url, "documents", "retry", 1, "--force").code == 0


def test_a_full_retry_says_what_it_would_lose(failed: str, way: str) -> None:
    with by_way(way, failed) as url:
        said = holdfast(url, "documents", "retry", 1, "--full")
        assert said.code == 2
        assert "A full retry of document 1 discards what was done: 1 chunk." in said.err
        assert "holdfast documents retry 1 --full --yes" in said.err
        forced = holdfast(url, "documents", "retry", 1, "--full", "--force")
        assert "holdfast documents retry 1 --full --yes --force" in forced.err
        both = holdfast(url, "documents", "retry", 1, "--full", "--from", "parsing")
        assert both.code == 2 and "leave out --from" in both.err
        sure = holdfast(url, "documents", "retry", 1, "--full", "--yes")
        assert sure.code == 0 and "from parsing" in sure.out


def test_a_full_retry_asks_on_a_terminal(failed: str) -> None:
    code, shown = on_a_terminal(failed, "documents", "retry", 1, "--full", answer="n\n")
    assert code == 1 and "1 chunk" in shown and "Nothing was changed." in shown
    code, shown = on_a_terminal(failed, "documents", "retry", 1, "--full", answer="y\n")
    assert code == 0 and "is processed again, from parsing." in shown


def test_a_cancelled_document_cannot_be_retried(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "deed.txt").write_text(DEED)
    holdfast(sqlite_url, "documents", "add", tmp_path / "deed.txt", "--no-wait")
    holdfast(sqlite_url, "cancel", 1)
    said = holdfast(sqlite_url, "documents", "retry", 1)
    assert said.code == 2 and "Document 1 cannot be retried: it was cancelled." in said.err
    assert "documents add FILE --again" in said.err
    assert "it was given up" in holdfast(sqlite_url, "documents", "show", 1).out


def test_passages_are_found_with_their_places(sqlite_url: str, tmp_path: Path, way: str) -> None:
    add(sqlite_url, tmp_path)
    with by_way(way, sqlite_url) as url:
        said = holdfast(url, "documents", "search", "crane", "Bergen")
        assert said.code == 0 and said.out.startswith("deed.txt; document 1\n  "), said
        assert "crane stays in Bergen" in said.out and "Only words" not in said.err
        found = holdfast(url, "documents", "search", "crane", "--document", 1, "--json").json
        assert found["items"][0]["document_id"] == 1 and found["items"][0]["score"] > 0


@pytest.mark.parametrize("words", ["", "  "])
def test_a_search_for_nothing_says_so(sqlite_url: str, way: str, words: str) -> None:
    with by_way(way, sqlite_url) as url:
        said = holdfast(url, "documents", "search", words)
    assert said.code == 2 and "There is nothing to search for." in said.err


def test_a_terminal_marks_what_was_looked_for(sqlite_url: str, tmp_path: Path) -> None:
    add(sqlite_url, tmp_path)
    code, shown = on_a_terminal(sqlite_url, "documents", "search", "crane", **places(tmp_path))
    assert code == 0 and "\x1b[1;33mcrane\x1b[0m" in shown


def test_nothing_found_says_what_to_try_and_what_was_compared(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holdfast(sqlite_url, "migrate")
    empty = holdfast(sqlite_url, "documents", "search", "crane")
    assert empty.code == 0 and empty.out == "There are no documents yet.\n"
    with without_embedding():
        add(sqlite_url, tmp_path)
    monkeypatch.setenv("HOLDFAST_EMBEDDINGS_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HOLDFAST_EMBEDDINGS_MODEL", "some")
    said = holdfast(sqlite_url, "documents", "search", "zeppelin")
    assert said.code == 0 and said.out == "Nothing was found for 'zeppelin'.\n"
    assert "Try fewer words" in said.err and "Only words were compared, not what they mean." in said.err


@pytest.mark.parametrize(
    ("matches", "parts"),
    [
        ([], [("abcdef", False)]),
        ([(1, 3)], [("a", False), ("bc", True), ("def", False)]),
        ([(4, 6), (0, 1), (0, 3)], [("", False), ("a", True), ("bcd", False), ("ef", True), ("", False)]),
    ],
)
def test_a_snippet_is_cut_where_matches_begin_and_end(
    matches: list[tuple[int, int]], parts: list[tuple[str, bool]]
) -> None:
    assert list(pieces("abcdef", matches)) == parts
