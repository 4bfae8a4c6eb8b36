"""Documents over HTTP: uploaded, looked at, searched, retried."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from document_scenario import TOPICS, text
from holdfast import Holdfast
from holdfast.core.errors import TransientError
from holdfast.pipelines.documents import analyzing, embedding
from holdfast.pipelines.registry import all_functions
from running import eventually
from serving import Answered, Served, on_a_server

RETRIES = 3


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path / "files"))
    monkeypatch.setenv("HOLDFAST_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("HOLDFAST_DOCUMENTS_RETRY_DELAYS", ",".join(["0.01"] * RETRIES))
    monkeypatch.setenv("HOLDFAST_DOCUMENTS_CHUNK_CHARS", "200")


async def upload(s: Served, *named: tuple[str, bytes], **query: Any) -> Answered:
    parts = [("file", (name, content, "application/octet-stream")) for name, content in named]
    return await s.send("POST", "/api/documents", files=parts, params=query)


@asynccontextmanager
async def working(url: str) -> AsyncIterator[None]:
    hf = Holdfast(url)
    hf.add_functions(all_functions())
    async with hf, hf.working(concurrency=2):
        yield


async def ended(s: Served, document_id: int) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        found: dict[str, Any] = (await s.get(f"/api/documents/{document_id}")).json
        return found if found["status"] in ("complete", "failed") else None

    shown = await eventually(look)
    assert shown is not None
    return shown


async def processed(s: Served, url: str, *named: tuple[str, bytes], **query: Any) -> list[dict[str, Any]]:
    """The documents of these files, at their ends."""
    answer = await upload(s, *named, **query)
    assert answer.status in (200, 202), answer
    async with working(url):
        return [await ended(s, document["id"]) for document in answer.json["items"]]


async def failed_at(s: Served, url: str, stage: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    def fail(*_: object) -> Any:
        raise TransientError(f"{stage} is away", error_type="service_unavailable")

    module, name = {"embedding": (embedding, "open_embedder"), "analyzing": (analyzing, "_found")}[stage]
    with monkeypatch.context() as patch:
        patch.setattr(module, name, fail)
        [document] = await processed(s, url, ("notes.txt", text(10)))
    assert (document["status"], document["processing_error"]["stage"]) == ("failed", stage)
    return document


def test_several_files_are_uploaded_at_once_and_the_same_content_is_known(store_url: str) -> None:
    async def scenario(s: Served) -> None:
        answer = await upload(s, ("a.txt", text(3, of="a")), ("b.txt", text(3, of="b")))
        assert answer.status == 202
        first, second = answer.json["items"]
        assert (first["created"], second["created"]) == (True, True)
        assert answer.json["id"] == first["id"] != second["id"]
        assert answer.headers["location"] == f"/api/documents/{first['id']}"
        assert first["status"] == "pending" and first["size"] == len(text(3, of="a"))
        again = await upload(s, ("another name.txt", text(3, of="b")))
        assert again.status == 200
        assert again.json["items"][0] | {"created": True} == second
        anew = await upload(s, ("b.txt", text(3, of="b")), again=True)
        assert anew.status == 202 and anew.json["id"] > second["id"]
        listed = await s.get("/api/documents", limit=2)
        assert [one["id"] for one in listed.json["items"]] == [anew.json["id"], second["id"]]
        rest = await s.get("/api/documents", cursor=listed.json["next"])
        assert [one["id"] for one in rest.json["items"]] == [first["id"]] and rest.json["next"] is None

    on_a_server(store_url, scenario)


def test_a_complete_document_shows_its_chunks_its_findings_and_is_found(store_url: str) -> None:
    async def scenario(s: Served) -> None:
        [document] = await processed(s, store_url, ("notes.txt", text(20)))
        assert (document["status"], document["last_completed_stage"]) == ("complete", "complete")
        assert document["kind"] == "txt" and document["facts"]["encoding"] == "utf-8"
        assert document["chunks"] == document["embedded_chunks"] == 20
        path = f"/api/documents/{document['id']}"
        chunks = (await s.get(f"{path}/chunks", limit=15)).json
        assert [chunk["number"] for chunk in chunks["items"]] == list(range(15)) and chunks["next"] == "14"
        rest = (await s.get(f"{path}/chunks", limit=15, cursor="14")).json
        assert [chunk["number"] for chunk in rest["items"]] == list(range(15, 20)) and rest["next"] is None
        some = (await s.get(f"{path}/chunks", number="3,7,3,99999999")).json["items"]
        assert [chunk["number"] for chunk in some] == [3, 7]
        findings = (await s.get(f"{path}/findings")).json["items"]
        assert len(findings) == document["findings"]
        dates = (await s.get(f"{path}/findings", kind="date")).json["items"]
        assert dates[0]["value"]["date"] == "2024-03-03"
        assert TOPICS[0].encode() in text(20)
        pointed = (await s.get(f"{path}/chunks", number=str(dates[0]["chunks"][0]))).json["items"]
        assert "3 March 2024" in pointed[0]["text"]
        found = (await s.get("/api/documents/search", q="worn bearings of a turbine")).json
        assert found["vectors"] and found["items"][0]["document_id"] == document["id"]
        hit = found["items"][0]
        assert "turbine" in hit["snippet"]
        start, end = hit["matches"][0]
        assert hit["snippet"][start:end].lower() in ("turbine", "bearings", "worn", "of")

    on_a_server(store_url, scenario)


def test_a_failed_document_says_why_and_shows_its_history(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(s: Served) -> None:
        document = await failed_at(s, store_url, "embedding", monkeypatch)
        error = document["processing_error"]
        assert error["error_type"] == "service_unavailable" and error["retry_count"] == RETRIES
        assert error["user_message"] == "Processing service unavailable"
        assert set(error) >= {"category", "message", "timestamp", "guidance", "rule", "stack_trace"}
        assert document["last_completed_stage"] == "parsed"
        history = (await s.get(f"/api/documents/{document['id']}/retry-history")).json
        assert [note["attempt"] for note in history["items"]] == [1, 2, 3, 4]
        assert set(history["items"][0]) == {"attempt", "stage", "error_type", "message", "timestamp"}
        assert history["retry_count"] == RETRIES and history["retry"]["resumes_at"] == "embedding"
        assert history["id"] == document["id"] and history["next"] is None
        failed = (await s.get("/api/documents", status="failed")).json["items"]
        assert [one["id"] for one in failed] == [document["id"]]

    on_a_server(store_url, scenario)


def test_a_retry_resumes_at_the_failed_stage_and_is_refused_with_a_sentence(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(s: Served) -> None:
        document = await failed_at(s, store_url, "analyzing", monkeypatch)
        path = f"/api/documents/{document['id']}/retry"
        refused = await s.post(path, {"full": True})
        assert (refused.status, refused.code) == (409, "confirmation_required")
        answer = await s.post(path)
        assert answer.status == 202
        assert answer.json["from_stage"] == "analyzing" and answer.json["manual_retries"] == 1
        running = await s.post(path)
        assert (running.status, running.code) == (409, "not_failed")
        async with working(store_url):
            assert (await ended(s, document["id"]))["status"] == "complete"
        complete = await s.post(path)
        assert (complete.status, complete.code) == (409, "not_failed")

    on_a_server(store_url, scenario)


@pytest.mark.parametrize(("route", "stage"), [("embedding", "embedding"), ("analysis", "analyzing")])
def test_a_stage_is_retried_by_a_route_of_its_own(
    store_url: str, monkeypatch: pytest.MonkeyPatch, route: str, stage: str
) -> None:
    async def scenario(s: Served) -> None:
        document = await failed_at(s, store_url, "analyzing", monkeypatch)
        answer = await s.post(f"/api/processing/retry/{route}", {"document_id": document["id"]})
        assert answer.status == 202, answer
        assert answer.json["from_stage"] == stage and answer.json["id"] == document["id"]
        async with working(store_url):
            assert (await ended(s, document["id"]))["status"] == "complete"

    on_a_server(store_url, scenario)


def test_a_permanent_error_is_not_retried_unless_it_is_forced(store_url: str) -> None:
    async def scenario(s: Served) -> None:
        [document] = await processed(s, store_url, ("nothing.pdf", b""))
        assert (document["status"], document["processing_error"]["error_type"]) == ("failed", "empty_file")
        assert document["retry_count"] == 0 and not document["retry"]["allowed"]
        path = f"/api/documents/{document['id']}/retry"
        refused = await s.post(path)
        assert (refused.status, refused.code) == (409, "permanent_error")
        assert refused.json["error"]["guidance"] == document["processing_error"]["guidance"]
        assert (await s.post(path, {"force": True})).status == 202
        cooldown_or_running = await s.post(path)
        assert cooldown_or_running.code == "not_failed"
        async with working(store_url):
            assert (await ended(s, document["id"]))["status"] == "failed"
        soon = await s.post(path, {"force": True})
        assert (soon.status, soon.code) == (429, "cooldown") and int(soon.headers["retry-after"]) > 0

    on_a_server(store_url, scenario)


def test_what_cannot_be_taken_in_is_refused_and_what_came_before_it_is_told(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DOCUMENTS_UPLOAD_BYTES_MAX", "1000")

    async def scenario(s: Served) -> None:
        answer = await upload(s, ("small.txt", b"small"), ("large.txt", b"x" * 1001))
        assert answer.status == 413
        assert "document 1 (small.txt)" in answer.json["error"]["message"]
        assert (await s.get("/api/documents/1")).status == 200
        same = [(f"{number}.txt", b"the same") for number in range(3)]
        others = [(f"{number}.txt", str(number).encode()) for number in range(10, 35)]
        many = (await upload(s, *same, *others, ("large.txt", b"x" * 1001))).json["error"]["message"]
        assert many.count("(0.txt)") == 1 and many.endswith("(28.txt) and 6 others."), many
        checksum = await upload(s, ("small.txt", b"other"), sha256="0" * 64)
        assert (checksum.status, checksum.code) == (422, "checksum_mismatch")
        field = await s.send(
            "POST", "/api/documents", files=[("file", ("a.txt", b"a"))], data={"again": "true"}
        )
        assert field.status == 422 and "/api/documents?again=true" in field.json["error"]["guidance"]

    on_a_server(store_url, scenario)


def test_questions_that_mean_nothing_are_answered_so(store_url: str) -> None:
    async def scenario(s: Served) -> None:
        assert (await s.get("/api/documents")).json["items"] == []
        assert (await s.get("/api/documents", status="failed")).json["items"] == []
        assert (await s.get("/api/documents/search", q="x")).json["items"] == []
        for path in ("", "/chunks", "/findings", "/retry-history"):
            missing = await s.get(f"/api/documents/9{path}")
            assert missing.status == 404 and "document 9" in missing.json["error"]["message"]
        assert (await s.get(f"/api/documents/{2**70}")).status == 404
        assert (await s.post("/api/documents/9/retry")).status == 404
        assert (await s.post("/api/processing/retry/embedding", {"document_id": 9})).status == 404
        assert (await s.post("/api/processing/retry/embedding", {})).status == 422
        assert (await s.post("/api/documents/9/retry", {"from_stage": "cooking"})).status == 422
        assert (await s.get("/api/documents", status="unheard")).status == 422
        assert (await s.get("/api/documents/search")).status == 422
        for q in ('"', "* OR NEAR(", "a" * 10_000, "\u202e!!", "🙂", "x'; --", "%00"):
            assert (await s.get("/api/documents/search", q=q)).status == 200, q

    on_a_server(store_url, scenario)
