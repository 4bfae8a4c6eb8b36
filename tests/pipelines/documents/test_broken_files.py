"""A corpus of broken files through the whole pipeline: each fails at once, as what it is, with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from document_files import BROKEN, docx, heading, pdf, xlsx
from document_scenario import Docs, rehearsed, text
from holdfast.core.catalogue import CATALOGUE
from holdfast.pipelines.documents import parsing
from holdfast.pipelines.documents.reading.refusals import needs_memory

# What people are to do, in a word that no other guidance has.
TOLD = {
    "encrypted_file": "remove the password",
    "empty_file": "check the file",
    "no_text": "ocr",
    "unsupported_format": "supported formats: pdf, xlsx, docx, txt",
    "invalid_file": "upload",
    "file_too_large": "split",
}


def test_each_broken_file_fails_at_once_as_what_it_is(docs: Docs) -> None:
    taken = {
        name: docs.upload(filename, content, again=True) for name, (filename, content, *_) in BROKEN.items()
    }
    docs.drain()
    wrong = {}
    for name, (filename, _, error_type, category) in BROKEN.items():
        document = docs.shown(taken[name].id)
        error = document.processing_error
        assert error is not None, name
        found = (document.status.value, error.error_type, error.category.value, error.stage)
        if found != ("failed", error_type, category, "parsing"):
            wrong[name] = (found, error.message)
            continue
        assert TOLD[error_type] in error.guidance.lower(), (name, error.guidance)
        assert error.user_message and error.final and "retry" not in error.guidance.lower(), name
        assert filename in error.message, (name, error.message)
        assert (document.retry_count, docs.delays(document.id)) == (0, []), name
        assert not document.retry.allowed and document.retry.reason, name
        assert docs.chunk_rows(document.id) == [], name
    assert wrong == {}


def test_the_words_are_those_of_the_catalogue_where_it_has_them(docs: Docs) -> None:
    seen = set()
    for name in ("truncated_pdf", "password_pdf", "no_bytes", "image"):
        filename, content, error_type, _ = BROKEN[name]
        error = docs.run(filename, content).processing_error
        assert error is not None
        entry = CATALOGUE[error_type]
        assert error.user_message == entry.user_message, name
        assert entry.guidance.rstrip(".") in error.guidance, name
        seen.add(error_type)
    assert seen == {"invalid_file", "encrypted_file", "empty_file", "unsupported_format"}


def test_good_files_between_broken_ones_come_to_their_end(docs: Docs) -> None:
    good = {
        "report.pdf": pdf(["The turbine was inspected on 3 March 2024.", "Its bearings were worn."]),
        "minutes.docx": docx(heading("Decisions"), "Acme Ltd pays 1,250.00 EUR to Northwind GmbH."),
        "sales.xlsx": xlsx(
            {"Q1": [["Region", "Share"], ["North", (0.25, "0.0%")], ["South", (0.75, "0.0%")]]}
        ),
        "notes.txt": text(3),
    }
    broken = [BROKEN[name][:2] for name in ("truncated_pdf", "zip_bomb", "password_office")]
    failed = [docs.upload(*one).id for one in broken]
    ids = {name: docs.upload(name, content).id for name, content in good.items()}
    docs.drain()
    assert {docs.shown(id_).status.value for id_ in failed} == {"failed"}
    shown = {name: docs.shown(id_) for name, id_ in ids.items()}
    assert {name: (one.status.value, one.kind) for name, one in shown.items()} == {
        name: ("complete", name.rpartition(".")[2]) for name in good
    }
    pages = [chunk.page for chunk in docs.chunks(ids["report.pdf"])]
    assert pages == [1, 2]
    [minutes] = docs.chunks(ids["minutes.docx"])
    assert minutes.heading == "Decisions" and "1,250.00 EUR" in minutes.text
    [sheet] = docs.chunks(ids["sales.xlsx"])
    assert (sheet.sheet, sheet.cells) == ("Q1", "A1:B3") and "25.0%" in sheet.text


@pytest.mark.parametrize(
    "content",
    [
        "\ufffe\u202e right to left \U0010ffff".encode() * 20,
        "of \ud800 halves ".encode(errors="surrogatepass") * 20,
    ],
    ids=["no characters", "halves of pairs"],
)
def test_odd_characters_are_stored_as_what_either_store_takes(docs: Docs, content: bytes) -> None:
    document = docs.run("odd \u202e name.txt", content)
    assert document.status == "complete", document.processing_error
    assert docs.chunks(document.id)
    for chunk in docs.chunks(document.id):
        chunk.text.encode()


def test_a_file_that_takes_too_long_is_given_up_and_told_so(tmp_path: Path) -> None:
    many = xlsx({"S": [[f"cell {row} {column}" for column in range(40)] for row in range(10_000)]})
    with rehearsed(tmp_path, HOLDFAST_DOCUMENTS_PARSE_TIMEOUT="0.02") as docs:
        document = docs.run("large.xlsx", many)
        error = document.processing_error
        assert error is not None
        assert (document.status, error.error_type, error.category) == ("failed", "timeout", "transient")
        assert docs.delays(document.id) == [5.0, 10.0, 20.0]
        assert docs.chunk_rows(document.id) == []


def test_a_file_that_takes_too_much_memory_is_tried_once_more(
    docs: Docs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> NoReturn:
        raise needs_memory("large.xlsx", 128 * 1024**2)

    monkeypatch.setattr(parsing, "_read", read)
    document = docs.run("large.xlsx", xlsx({"S": [["a"]]}))
    error = document.processing_error
    assert error is not None
    assert (document.status, error.error_type, error.category) == ("failed", "memory_limit", "unknown")
    assert docs.delays(document.id) == [5.0]
    assert "memory" in error.user_message and "Split it" in error.guidance
