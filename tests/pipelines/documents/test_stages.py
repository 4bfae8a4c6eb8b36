"""Stages and their retries: what is kept, what is cleared, and what people are told meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from document_files import pdf
from document_scenario import Docs, text
from holdfast import Holdfast
from holdfast.core.errors import PermanentError, RetryRefused, StaleLease, TransientError
from holdfast.engine import RetryRequest
from holdfast.pipelines.documents import analyzing, embedding, parsing
from holdfast.pipelines.documents.documents import Documents, DocumentStatus
from holdfast.pipelines.documents.embedders import Embedder, open_embedder
from holdfast.pipelines.documents.settings import DocumentSettings
from holdfast.worker.context import Context

COOLDOWN_SECONDS = 61.0


def failing(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


class Counting:
    """The local embedder, in small batches; fails where the schedule says so."""

    def __init__(self, inner: Embedder, texts: list[str], fails: Iterator[Exception | None]) -> None:
        self.model = inner.model
        self.batch_max = 10
        self.similarity_min = inner.similarity_min
        self._inner = inner
        self._texts = texts
        self._fails = fails

    def embed(self, texts: Sequence[str], *, beat: Callable[[], None]) -> Any:
        error = next(self._fails, None)
        if error is not None:
            raise error
        self._texts.extend(texts)
        return self._inner.embed(texts, beat=beat)


@contextmanager
def counted(*fails: Exception | None) -> Iterator[list[str]]:
    """What was embedded, while each call of the embedder fails as it is said here."""
    texts: list[str] = []
    schedule = iter(fails)

    def opened(settings: DocumentSettings) -> Counting:
        return Counting(open_embedder(settings), texts, schedule)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding, "open_embedder", opened)
        yield texts


@contextmanager
def broken(module: Any, name: str, error: Exception) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, failing(error))
        yield


def failed_at_embedding(docs: Docs, document_id: int) -> None:
    with counted(*[TransientError("the model is away")] * 4):
        docs.drain()
    assert docs.shown(document_id).status == "failed"


# What heals


def test_a_document_goes_through_its_stages_and_says_where_it_is(docs: Docs) -> None:
    taken = docs.upload("notes.txt", text(30))
    pending = docs.shown(taken.id)
    assert (pending.status, pending.last_completed_stage, pending.stage) == ("pending", None, None)
    assert pending.summary == "Waiting to be parsed"
    seen = []
    for stage, module, name, seconds in (
        ("parsing", parsing, "fetch", 1),
        ("embedding", embedding, "open_embedder", 5),  # the retry of the stage before, and no more
        ("analyzing", analyzing, "_found", 5),
    ):
        with broken(module, name, TransientError(f"{stage} is not possible now")):
            docs.drain(within=seconds)
        waiting = docs.shown(taken.id)
        assert (waiting.status, waiting.stage) == ("retrying", stage)
        assert waiting.summary == "Retrying (attempt 1/3)"
        assert waiting.processing_error is not None
        assert waiting.processing_error.stage == stage
        assert waiting.retry_at is not None
        seen.append(waiting.last_completed_stage)
    assert seen == [None, "parsed", "embedded"]
    docs.drain()
    complete = docs.shown(taken.id)
    assert (complete.status, complete.last_completed_stage, complete.retry_count) == (
        *("complete", "complete"),
        3,
    )
    assert complete.processing_error is None and complete.stage is None
    assert [note.stage for note in complete.retry_history] == ["parsing", "embedding", "analyzing"]
    assert complete.chunks == complete.embedded_chunks == 30
    assert complete.findings == len(docs.findings(taken.id)) > 0


def test_the_delays_are_5_10_and_20_seconds_and_then_it_has_failed(docs: Docs) -> None:
    taken = docs.upload("notes.txt", text(3))
    failed_at_embedding(docs, taken.id)
    assert docs.delays(taken.id) == [5.0, 10.0, 20.0]
    failed = docs.shown(taken.id)
    assert failed.processing_error is not None and failed.processing_error.final
    assert failed.processing_error.category == "transient"
    assert "automatically" not in failed.processing_error.guidance
    assert failed.summary.startswith("Failed at embedding: ")
    assert failed.retry.allowed and failed.retry.resumes_at == "embedding"
    assert failed.retry_count == 3


def test_an_embedding_goes_on_where_it_has_stopped(docs: Docs) -> None:
    taken = docs.upload("notes.txt", text(50))
    with counted(None, None, None, TransientError("reset", error_type="connection_error")) as texts:
        docs.drain(within=1)
        before = docs.vector_rows(taken.id)
        waiting = docs.shown(taken.id)
        assert (waiting.status, waiting.embedded_chunks, len(before)) == ("retrying", 30, 30)
        chunks = docs.chunk_rows(taken.id)
        docs.drain()
    complete = docs.shown(taken.id)
    assert (complete.status, complete.embedded_chunks) == ("complete", 50)
    assert docs.vector_rows(taken.id)[:30] == before
    assert docs.chunk_rows(taken.id) == chunks
    assert texts == [row[2] for row in chunks]  # each of them once


def test_what_is_not_known_is_tried_once_more(docs: Docs) -> None:
    taken = docs.upload("notes.txt", text(3))
    with counted(*[RuntimeError("something odd")] * 10):
        docs.drain()
    failed = docs.shown(taken.id)
    assert (failed.status, docs.delays(taken.id)) == ("failed", [5.0])
    assert failed.processing_error is not None and failed.processing_error.category == "unknown"


def test_what_will_never_heal_is_tried_once(docs: Docs) -> None:
    taken = docs.upload("notes.txt", text(3))
    with counted(PermanentError("no such model", error_type="not_found", user_message="There is no model")):
        docs.drain()
    failed = docs.shown(taken.id)
    assert (failed.status, failed.last_completed_stage, docs.delays(taken.id)) == ("failed", "parsed", [])
    assert not failed.retry.allowed
    assert failed.retry.reason is not None and "There is no model" in failed.retry.reason
    with pytest.raises(RetryRefused) as refused:
        docs.retry(taken.id)
    assert refused.value.code == "permanent_error"
    docs.retry(taken.id, force=True)
    docs.drain()
    assert docs.shown(taken.id).status == "complete"


def test_findings_that_are_stored_are_not_looked_for_again(
    docs: Docs, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = docs.upload("notes.txt", text(20))
    complete = Context.transaction

    def cut_off(ctx: Context) -> Any:
        if ctx.step == "analyzing":
            raise TransientError("cut off at the very end")
        return complete(ctx)

    with monkeypatch.context() as patch:
        patch.setattr(Context, "transaction", cut_off)
        docs.drain(within=1)
    analyzed = docs.shown(taken.id)
    assert (analyzed.status, analyzed.last_completed_stage) == ("retrying", "analyzed")
    found = docs.finding_rows(taken.id)
    assert found
    with broken(analyzing, "_found", AssertionError("it has been analyzed")):
        docs.drain()
    assert docs.shown(taken.id).status == "complete"
    assert docs.finding_rows(taken.id) == found


# What a person retries


def test_a_retry_begins_at_the_failed_stage_and_keeps_what_is_there(docs: Docs) -> None:
    taken = docs.upload("notes.txt", text(30))
    with counted(None, *[TransientError("away")] * 4) as texts:
        docs.drain()
        chunks, vectors = docs.chunk_rows(taken.id), docs.vector_rows(taken.id)
        assert len(vectors) == 10
        docs.retry(taken.id)
        docs.drain()
        assert len(texts) == 30
    complete = docs.shown(taken.id)
    assert (complete.status, complete.manual_retries) == ("complete", 1)
    assert docs.chunk_rows(taken.id) == chunks
    assert docs.vector_rows(taken.id)[:10] == vectors
    assert docs.events_of(taken.id).count("step_skipped") == 1


def test_a_retry_from_an_earlier_stage_does_that_and_the_later_ones_again(docs: Docs) -> None:
    taken = docs.upload("notes.txt", text(20))
    with broken(analyzing, "_found", TransientError("away")):
        docs.drain()
    chunks, vectors = docs.chunk_rows(taken.id), docs.vector_rows(taken.id)
    docs.retry(taken.id, from_stage="embedding")
    queued = docs.shown(taken.id)
    assert (queued.status, queued.summary) == ("embedding", "Waiting for embedding")
    docs.drain()
    assert docs.shown(taken.id).status == "complete"
    assert docs.chunk_rows(taken.id) == chunks
    again = docs.vector_rows(taken.id)
    assert len(again) == 20 and not {row[1] for row in again} & {row[1] for row in vectors}


def test_a_retry_of_all_of_it_is_confirmed_and_reads_the_file_again(docs: Docs) -> None:
    taken = docs.upload("notes.txt", text(20))
    with broken(analyzing, "_found", TransientError("away")):
        docs.drain()
    chunks = docs.chunk_rows(taken.id)
    with pytest.raises(RetryRefused) as refused:
        docs.retry(taken.id, full=True)
    assert refused.value.code == "confirmation_required"
    assert docs.chunk_rows(taken.id) == chunks
    docs.retry(taken.id, full=True, confirm=True)
    docs.drain()
    again = docs.chunk_rows(taken.id)
    assert docs.shown(taken.id).status == "complete"
    assert [row[1:3] for row in again] == [row[1:3] for row in chunks]
    assert not {row[0] for row in again} & {row[0] for row in chunks} or again[0][3] > chunks[0][3]
    assert len(docs.vector_rows(taken.id)) == 20


def test_what_a_full_retry_would_lose_is_told_also_where_the_execution_knows_of_none(docs: Docs) -> None:
    taken = docs.upload("notes.txt", text(20))
    with broken(analyzing, "_found", TransientError("away")):
        docs.drain()
    documents = Documents(docs.engine)
    docs.do(documents.retry(taken.id, RetryRequest(full=True, confirm=True)))
    with broken(parsing, "stage_attempt", TransientError("away before it begins")):
        docs.drain()
    docs.rehearsal.clock.advance(COOLDOWN_SECONDS)
    with pytest.raises(RetryRefused) as refused:
        docs.do(documents.retry(taken.id, RetryRequest(full=True)))
    assert refused.value.code == "confirmation_required"
    assert "20 chunks and 20 vectors" in str(refused.value)
    with pytest.raises(RetryRefused) as refused:  # what else stands in the way is told first
        docs.do(documents.retry(docs.run("other.txt", text(2)).id, RetryRequest(full=True)))
    assert refused.value.code == "not_failed" and str(refused.value).startswith("Document ")


def test_a_forced_retry_of_all_of_it_waits_for_its_cooldown_before_it_asks_what_may_be_lost(
    docs: Docs,
) -> None:
    taken = docs.upload("notes.txt", text(3))
    documents = Documents(docs.engine)
    wrong_key = PermanentError("the key is wrong", error_type="auth_error")
    with counted(wrong_key, wrong_key):
        docs.drain()
        docs.do(documents.retry(taken.id, RetryRequest(force=True)))
        docs.drain()
    all_of_it = RetryRequest(full=True, force=True)
    with pytest.raises(RetryRefused) as refused:
        docs.do(documents.retry(taken.id, all_of_it))
    assert refused.value.code == "cooldown"
    docs.rehearsal.clock.advance(COOLDOWN_SECONDS)
    with pytest.raises(RetryRefused) as refused:
        docs.do(documents.retry(taken.id, all_of_it))
    assert refused.value.code == "confirmation_required"


def test_a_stage_that_was_not_reached_cannot_be_retried(docs: Docs) -> None:
    taken = docs.upload("notes.txt", text(3))
    with broken(parsing, "fetch", TransientError("away")):
        docs.drain()
    with pytest.raises(Exception, match="before"):
        docs.retry(taken.id, from_stage="analyzing")


def test_a_retry_waits_for_its_cooldown_and_there_are_five(docs: Docs) -> None:
    taken = docs.upload("notes.txt", text(3))
    failed_at_embedding(docs, taken.id)
    for number in range(1, 6):
        docs.retry(taken.id)
        with pytest.raises(RetryRefused) as refused:
            docs.retry(taken.id)
        assert refused.value.code == "not_failed"
        failed_at_embedding(docs, taken.id)
        shown = docs.shown(taken.id)
        assert shown.manual_retries == number and shown.retry.retries_left == 5 - number
        if number == 1:
            # The retries have taken 35 seconds of its 60.
            assert shown.retry.cooldown_until is not None and not shown.retry.allowed
            with pytest.raises(RetryRefused) as refused:
                docs.retry(taken.id)
            assert refused.value.code == "cooldown"
        docs.rehearsal.clock.advance(COOLDOWN_SECONDS)
    shown = docs.shown(taken.id)
    assert not shown.retry.allowed and shown.retry.reason is not None and "5 times" in shown.retry.reason
    with pytest.raises(RetryRefused) as refused:
        docs.retry(taken.id)
    assert refused.value.code == "retry_cap"
    assert len(shown.retry_history) == 10  # of 24 attempts that failed
    assert shown.retry_count == 18


# What is cleared


def test_nothing_is_left_of_a_file_that_cannot_be_read_to_its_end(
    docs: Docs, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = docs.upload("notes.txt", text(30))
    flush = parsing.StageAttempt.complete

    def cut_off(*arguments: Any) -> None:
        raise TransientError("cut off at the very end")

    monkeypatch.setattr(parsing.StageAttempt, "complete", cut_off)
    docs.drain(within=1)
    half = docs.chunk_rows(taken.id)
    assert len(half) == 30 and docs.chunks(taken.id) == []  # stored, and shown to nobody
    monkeypatch.setattr(parsing, "_read", failing(PermanentError("broken", error_type="invalid_file")))
    docs.drain()
    assert docs.shown(taken.id).status == "failed"
    assert docs.chunk_rows(taken.id) == []
    monkeypatch.undo()
    assert parsing.StageAttempt.complete is flush


def test_a_cancelled_document_says_so_and_keeps_nothing_half(
    docs: Docs, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = docs.upload("notes.txt", text(30))
    written: list[int] = []

    read = parsing._read

    async def cancel() -> None:
        async with Holdfast(docs.rehearsal.url) as hf:
            await hf.cancel(taken.id)

    def read_and_cancelled(attempt: parsing.StageAttempt) -> Any:
        read(attempt)
        attempt.writer.flush()
        written.append(len(list(attempt.writer.chunk_texts())))
        asyncio.run(cancel())
        raise StaleLease("told that it was cancelled")

    monkeypatch.setattr(parsing, "_read", read_and_cancelled)
    docs.drain(within=1)
    assert written[0] == 30
    assert docs.chunk_rows(taken.id) == []
    cancelled = docs.shown(taken.id)
    assert cancelled.status == "failed" and cancelled.processing_error is not None
    error = cancelled.processing_error
    assert (error.error_type, error.stage) == ("cancelled", "parsing")
    assert (cancelled.summary, cancelled.retry.resumes_at) == ("It was cancelled", None)
    with pytest.raises(RetryRefused) as refused:
        docs.do(Documents(docs.engine).retry(taken.id, RetryRequest()))
    assert refused.value.code == "not_failed" and "again=true" in refused.value.guidance


@pytest.mark.parametrize("end", ["cancelled", "failed at the very end"])
def test_what_is_left_of_a_document_that_nobody_goes_on_with_is_removed_by_others(
    docs: Docs, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = docs.upload("left.txt", text(30, of="that one"))
    with monkeypatch.context() as patch:
        patch.setattr(parsing.StageAttempt, "complete", failing(TransientError("cut off at the very end")))
        if end == "cancelled":
            docs.drain(within=1)
            assert len(docs.chunk_rows(left.id)) == 30
            docs.do(docs.engine.cancel(left.id, by="somebody"))
        else:
            docs.drain()
            assert docs.chunk_rows(left.id) == []  # by its last attempt itself
    assert docs.shown(left.id).status == "failed"
    other = docs.run("other.txt", text(3))
    assert docs.chunk_rows(left.id) == [] and len(docs.chunk_rows(other.id)) == 3
    [(task,)] = docs.rows_of("SELECT task_id FROM holdfast_documents WHERE id = $1", left.id)
    assert task is None
    if end != "cancelled":
        docs.retry(left.id)
        docs.drain()
        assert docs.shown(left.id).status == "complete"


def test_vectors_of_another_model_are_made_anew(docs: Docs) -> None:
    taken = docs.upload("notes.txt", text(30))
    with counted(None, None, TransientError("away")):
        docs.drain(within=1)
    docs.do(docs.engine.store.write_rows("UPDATE holdfast_document_embeddings SET model = 'an older one'"))
    with counted() as texts:
        docs.drain()
    assert len(texts) == 30
    assert {row[2] for row in docs.vector_rows(taken.id)} == {docs.shown(taken.id).embedding_model}


# What is listed


def test_documents_are_listed_by_their_status(docs: Docs) -> None:
    complete = docs.run("a.txt", text(2, of="a"))
    failed = docs.upload("b.txt", text(2, of="b"))
    failed_at_embedding(docs, failed.id)
    retrying = docs.upload("c.txt", text(2, of="c"))
    with counted(TransientError("away")):
        docs.drain(within=1)
    pending = docs.upload("d.txt", text(2, of="d"))

    async def page(**more: Any) -> list[int]:
        return [one.id for one in await Documents(docs.engine).page(**more)]

    for status, id_ in (
        *(("complete", complete.id), ("failed", failed.id)),
        *(("retrying", retrying.id), ("pending", pending.id)),
    ):
        assert docs.do(page(status=DocumentStatus(status))) == [id_], status
    assert docs.do(page(status=DocumentStatus.EMBEDDING)) == []
    assert docs.do(page()) == [pending.id, retrying.id, failed.id, complete.id]
    assert docs.do(page(limit=1, before=failed.id)) == [complete.id]


def test_the_same_content_is_the_same_document_under_any_name(docs: Docs) -> None:
    first = docs.upload("notes.txt", text(2))
    assert docs.upload("copy of notes.txt", text(2))[:2] == (first.id, False)
    assert docs.upload("notes.txt", text(2), again=True).id != first.id
    assert docs.upload("empty.txt", b"").id != docs.upload("another empty.txt", b"").id


def test_text_that_was_called_something_else_is_read_when_it_is_called_text(docs: Docs) -> None:
    failed = docs.run("notes.docx", text(2))
    assert failed.processing_error is not None and ".txt" in failed.processing_error.guidance
    assert docs.upload("notes.docx", text(2))[:2] == (failed.id, False)
    assert docs.run("notes.txt", text(2)).status == "complete"
    good = docs.run("report.pdf", pdf(["The turbine was inspected."]))
    assert docs.upload("copy.pdf", pdf(["The turbine was inspected."]))[:2] == (good.id, False)


def test_the_same_content_is_known_when_its_history_is_not(docs: Docs) -> None:
    complete = docs.run("notes.txt", text(5))
    docs.rehearsal.clock.advance(100)
    docs.do(docs.engine.prune(10))
    assert docs.upload("another name.txt", text(5))[:2] == (complete.id, False)
    assert docs.upload("another name.txt", text(5), again=True).created


def test_a_document_outlives_its_history(docs: Docs) -> None:
    complete = docs.run("notes.txt", text(5))
    failed = docs.run("nothing.txt", b"")
    docs.rehearsal.clock.advance(100)
    docs.do(docs.engine.prune(10))
    assert docs.shown(complete.id).status == "complete" and len(docs.chunks(complete.id)) == 5
    forgotten = docs.shown(failed.id)
    assert forgotten.status == "failed" and forgotten.processing_error is not None
    assert "history" in forgotten.processing_error.message


def test_an_execution_with_another_workload_says_what_it_is_not(docs: Docs) -> None:
    async def started() -> int:
        run = await docs.rehearsal.submit("documents", {"filename": "x"})
        return run.id

    execution_id = docs.do(started())
    docs.drain()
    error = docs.do(docs.engine.view(execution_id)).error
    assert error is not None and error.error_type == "validation_error"
    assert "documents add" in error.guidance


def test_people_are_told_in_the_words_of_documents(docs: Docs) -> None:
    """Which are those of the catalogue; other playbooks are about no document."""
    document = docs.run("nothing.pdf", b"")
    error = document.processing_error
    assert error is not None
    assert (error.user_message, error.guidance) == (
        *("File is empty", "Please check the file and upload it again."),
    )
    taken = docs.upload("notes.txt", text(3))
    with counted(TimeoutError("took too long")):
        docs.drain(within=1)
    waiting = docs.shown(taken.id).processing_error
    assert waiting is not None
    assert waiting.guidance == "Will retry automatically. Large documents may take longer."
