"""Downloads over HTTP: submitted, one or many; looked at; worked on by a worker behind the same database."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.errors import InvalidInput
from holdfast.pipelines.registry import all_functions
from portal_scenario import Portal, content_of
from running import eventually
from serving import Served, on_a_server

ROUTE = "/api/downloads"
QUICK = {"HOLDFAST_DOWNLOAD_DELAY": "0", "HOLDFAST_DOWNLOAD_RETRY_DELAYS": "0.01"}
SKIPPED = "Request failed; download skipped"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path / "files"))
    return tmp_path / "files"


@pytest.fixture
def portal() -> Iterator[Portal]:
    with Portal(obeys=True, size=5_000) as portal:
        yield portal


def item(portal: Portal, report: str, *, troubles: Any = None, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"report": report}
    if troubles is not None:
        body["troubles"] = troubles
    return {"request": {"url": f"{portal.url}/reports", "json": body}, **more}


@asynccontextmanager
async def working(url: str) -> AsyncIterator[None]:
    hf = Holdfast(url)
    hf.add_functions(all_functions())
    async with hf, hf.working(concurrency=4):
        yield


async def ended(s: Served, id_: int, **query: Any) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        shown: dict[str, Any] = (await s.get(f"{ROUTE}/{id_}", **query)).json
        return shown if shown["status"] == "finished" else None

    found = await eventually(look)
    assert found is not None
    return found


def test_many_items_are_one_batch_and_each_tells_how_far_it_is(
    store_url: str, portal: Portal, files: Path
) -> None:
    async def story(s: Served) -> None:
        items = [
            item(portal, "good", file="june/good.csv"),
            item(portal, "heals", troubles={"request": ["503"], "download": ["break"]}),
            item(portal, "dead", troubles={"request": ["403!"]}),
        ]
        made = await s.post(ROUTE, {"items": items, "mode": "auto"})
        assert made.status == 201
        assert made.json == {"id": 1, "created": True, "items": 3, "added": 3, "execution_id": None}
        assert made.headers["location"] == "/api/downloads/1"
        async with working(store_url):
            shown = await ended(s, 1)
        assert (shown["path"], shown["mode"], shown["size"]) == ("downloads", "auto", 3)
        assert shown["executions"] == {"running": 0, "completed": 2, "failed": 1, "cancelled": 0}
        assert shown["counts"]["request"]["failed"] == shown["counts"]["download"]["skipped"] == 1
        good, heals, dead = shown["items"]
        assert good["tracking"].keys() == {"request", "download"}
        assert good["tracking"]["request"].keys() == {"status", "attempts", "last_attempt_at", "error"}
        assert good["tracking"]["download"].keys() == {
            *("status", "attempts", "last_attempt_at", "scheduled_for", "error")
        }
        assert good["tracking"]["download"]["scheduled_for"] == shown["barrier"]["scheduled_for"]
        content = content_of("good", 5_000)
        assert (files / "june/good.csv").read_bytes() == content
        assert (good["file"], good["size"]) == ("june/good.csv", 5_000)
        assert good["sha256"] == hashlib.sha256(content).hexdigest()
        assert (heals["tracking"]["request"]["attempts"], heals["tracking"]["request"]["error"]) == (2, None)
        assert heals["file"] == f"downloads/{heals['id']}/heals.csv"
        assert dead["tracking"]["request"]["status"] == "failed"
        assert dead["tracking"]["request"]["error"].startswith("auth_error: POST http://127.0.0.1")
        assert dead["tracking"]["download"] == {
            "status": "skipped", "attempts": 0, "last_attempt_at": None, "scheduled_for": None,
            "error": SKIPPED,
        }  # fmt: skip
        assert (dead["file"], dead["size"], dead["sha256"]) == (None, None, None)
        [failed] = shown["permanently_failed_jobs"]
        assert (failed["execution_id"], failed["step"]) == (dead["id"], "request")
        assert shown["tracking"] is None
        told = (await s.get("/api/metrics")).json
        assert (told["completed"], told["permanently_failed"], told["held"]) == (2, 1, 0)
        assert [job["execution_id"] for job in told["permanently_failed_jobs"]] == [dead["id"]]
        assert told["lifecycle"] == {
            "enqueued": 3, "in_progress": 0, "retried": 1, "failed": 2, "completed": 2,
            "permanently_failed": 1,
        }  # fmt: skip

    on_a_server(store_url, story)


def test_a_single_item_is_a_batch_of_one(store_url: str, portal: Portal) -> None:
    async def story(s: Served) -> None:
        made = await s.post(ROUTE, {**item(portal, "north"), "lane": "manual"})
        assert (made.status, made.json["items"]) == (201, 1)
        async with working(store_url):
            shown = await ended(s, made.json["id"])
        assert (shown["lane"], shown["mode"], shown["size"]) == ("manual", "manual", 1)
        assert shown["items"][0]["id"] == made.json["execution_id"]
        assert shown["tracking"] == shown["items"][0]["tracking"]
        assert shown["tracking"]["download"]["status"] == "completed"

    on_a_server(store_url, story)


def test_downloads_are_listed_newest_first_and_other_batches_are_not_among_them(
    store_url: str, portal: Portal
) -> None:
    async def story(s: Served) -> None:
        await s.define()
        for n in range(3):
            await s.post(ROUTE, {"items": [item(portal, f"r{n}")], "idempotency_key": f"k{n}"})
            other = (await s.post("/api/batches", {"path": "p", "items": [{}]})).json["id"]
        page = (await s.get(ROUTE, limit=2)).json
        assert [line["idempotency_key"] for line in page["items"]] == ["k2", "k1"]
        assert page["items"][0] | {"id": 0, "created_at": 0} == {
            "id": 0, "status": "running", "lane": "bulk", "mode": "bulk", "items": 1,
            "idempotency_key": "k2", "created_at": 0, "scheduled_for": None,
        }  # fmt: skip
        rest = (await s.get(ROUTE, limit=2, cursor=page["next"])).json
        assert [line["idempotency_key"] for line in rest["items"]] == ["k0"]
        for unknown in (other, 999, 10**30):
            assert (await s.get(f"{ROUTE}/{unknown}")).code == "unknown_batch"
        shown = (await s.get(f"{ROUTE}/{page['items'][0]['id']}", limit=0)).json
        assert (shown["items"], shown["next"], shown["tracking"]) == ([], None, None)

    on_a_server(store_url, story)


def test_the_same_key_gives_the_same_downloads_and_the_portal_sees_the_same_keys(
    store_url: str, portal: Portal
) -> None:
    async def story(s: Served) -> None:
        body = {"items": [item(portal, "a"), item(portal, "b", key="mine")], "idempotency_key": "june"}
        first, again = await s.post(ROUTE, body), await s.post(ROUTE, body)
        assert (first.status, again.status, again.json["added"]) == (201, 200, 0)
        assert first.json["id"] == again.json["id"]
        other = await s.post(ROUTE, {**body, "items": body["items"][::-1]})
        assert (other.status, other.code) == (409, "idempotency_conflict")
        header = await s.post(ROUTE, {"items": body["items"]}, headers={"idempotency-key": "june"})
        assert header.json["id"] == first.json["id"]
        async with working(store_url):
            await ended(s, first.json["id"])
        keys = [entry.key for entry in portal.log if entry.phase == "request"]
        assert len(set(keys)) == 2 and "mine" in keys
        unkeyed = [await s.post(ROUTE, item(portal, "c")) for _ in range(2)]
        assert unkeyed[0].json["id"] != unkeyed[1].json["id"]

    on_a_server(store_url, story)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "nothing to request"),
        ({"items": []}, "length >= 1"),
        ({"file": "a.csv"}, "nothing to request"),
        ({"items": [{"request": "http://a"}], "file": "a"}, "beside them file"),
        ({"items": [{"request": "http://a"}, {"request": 7}]}, "items[1].request"),
        ({"items": [{"request": "http://a"}, {"request": "ftp://a"}]}, "Item 2: request.url"),
        ({"request": "http://a", "file": "../a"}, "file: "),
        ({"request": {"url": "http://a", "headers": {"Authorization": "x"}}}, "is a secret"),
        ({"items": [{"request": "http://a", "file": "a"}] * 2}, "Item 2: An item before it"),
        ({"request": "http://a", "sha256": "short"}, "sha256"),
        ({"request": "http://a", "colour": 1}, "colour"),
        ({"request": "http://a", "lane": "fast"}, "lane"),
    ],
)
def test_what_cannot_be_downloaded_is_refused_and_nothing_is_stored(
    sqlite_url: str, body: dict[str, Any], told: str
) -> None:
    async def story(s: Served) -> None:
        refused = await s.post(ROUTE, body)
        assert refused.status == 422 and told in refused.json["error"]["message"], refused.json
        assert refused.json["error"]["guidance"]
        assert (await s.get(ROUTE)).json["items"] == []
        assert (await s.get("/api/catalog")).json["items"] == []

    on_a_server(sqlite_url, story)


def test_a_server_has_the_pipeline_by_its_own_settings_whatever_was_registered_before(
    store_url: str, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def submitted(s: Served) -> None:
        made = (await s.post("/api/batches", {"path": "downloads", "items": [item(portal, "a")]})).json
        delays.append((await s.get(f"{ROUTE}/{made['id']}")).json["barrier"]["delay_seconds"])
        text = (await s.get("/api/catalog/downloads")).json
        assert text["kind"] == "yaml" and "call: holdfast.pipelines.downloads:request" in text["text"]

    delays: list[float] = []
    for delay in ("15m", "2s", "15m"):
        monkeypatch.setenv("HOLDFAST_DOWNLOAD_DELAY", delay)
        on_a_server(store_url, submitted)
    assert delays == [900, 2, 900]


def test_a_server_with_wrong_settings_does_not_start(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(s: Served) -> None:
        raise AssertionError("it started")

    monkeypatch.setenv("HOLDFAST_DOWNLOAD_DELAY", "soon")
    with pytest.raises(InvalidInput, match="HOLDFAST_DOWNLOAD_DELAY"):
        on_a_server(sqlite_url, story)
