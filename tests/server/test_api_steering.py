"""Batches, limits, pauses and failures over HTTP."""

from collections.abc import Sequence

import pytest

from engine_scenario import stage
from holdfast.engine import Engine, Submission
from serving import Served, on_a_server


def test_a_batch_is_submitted_whole_and_the_same_request_again_adds_nothing(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a"))
        body = {"path": "p", "items": [{"n": n} for n in range(1_200)], "idempotency_key": "june"}
        made = await s.post("/api/batches", body)
        assert (made.status, made.json["items"], made.json["added"]) == (201, 1_200, 1_200)
        again = await s.post("/api/batches", body)
        assert (again.status, again.json["id"], again.json["added"]) == (200, made.json["id"], 0)
        for others in ([], body["items"][:-1], [*body["items"][:-1], {"n": 0}]):
            refused = await s.post("/api/batches", {**body, "items": others})
            assert (refused.status, refused.code) == (409, "idempotency_conflict")
        more = await s.post("/api/batches", {**body, "items": [*body["items"], {"n": 0}]})
        assert (more.status, more.code) == (409, "batch_closed")
        id_ = made.json["id"]
        shown = (await s.get(f"/api/batches/{id_}", limit=2)).json
        assert (shown["size"], shown["status"], shown["executions"]["running"]) == (1_200, "running", 1_200)
        assert shown["counts"]["a"]["pending"] == 1_200
        assert [item["tracking"]["a"]["status"] for item in shown["items"]] == ["pending"] * 2
        rest = (await s.get(f"/api/batches/{id_}/items", limit=2, cursor=shown["next"])).json
        assert rest["items"][0]["workload"] == {"n": 2}
        assert [row["id"] for row in (await s.get("/api/batches")).json["items"]] == [id_]
        cancelled = await s.post(f"/api/batches/{id_}/cancel", {"by": "ada"})
        assert cancelled.json == {"id": id_, "items": 1_200}

    on_a_server(store_url, story)


def test_a_batch_is_filled_closed_and_refuses_more(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a"))
        id_ = (await s.post("/api/batches", {"path": "p", "close": False})).json["id"]
        added = await s.post(f"/api/batches/{id_}/items", {"items": [{"workload": 1}, {"workload": 2}]})
        assert (added.status, len(added.json["items"])) == (201, 2)
        assert (await s.get(f"/api/batches/{id_}/state")).json == {
            "id": id_,
            "is_open": True,
            "is_over": False,
        }
        assert (await s.post(f"/api/batches/{id_}/close")).json == {"id": id_, "closed": True}
        assert (await s.post(f"/api/batches/{id_}/close")).json == {"id": id_, "closed": False}
        refused = await s.post(f"/api/batches/{id_}/items", {"items": [{"workload": 3}]})
        assert (refused.status, refused.code) == (409, "batch_closed")

    on_a_server(store_url, story)


def test_a_limit_holds_for_those_who_lease(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a", limit="portal"))
        for _ in range(4):
            await s.start()
        asked = {"max_concurrency": 2, "manual_reserve": 0, "by": "ada"}
        put = await s.send("PUT", "/api/limits/portal", asked)
        assert (put.status, put.json["max_concurrency"], put.json["set_by"]) == (200, 2, "ada")
        assert len((await s.lease(limit=4)).json["jobs"]) == 2
        [limit] = (await s.get("/api/limits")).json["items"]
        assert limit["in_use"]["bulk"] == 2 and limit["steps"] == ["p/a"]
        assert (await s.send("DELETE", "/api/limits/portal")).json["removed"] is True
        assert len((await s.lease(limit=4)).json["jobs"]) == 2

    on_a_server(store_url, story)


def test_a_pause_holds_and_is_ended(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a"))
        await s.start()
        paused = await s.post("/api/pauses", {"kind": "playbook", "name": "p", "reason": "repairs"})
        assert (paused.status, paused.json["reason"]) == (200, "repairs")
        assert (await s.lease()).json["jobs"] == []
        assert len((await s.get("/api/pauses")).json["items"]) == 1
        resumed = await s.post("/api/pauses/resume", {"kind": "playbook", "name": "p"})
        assert resumed.json["ended"]["reason"] == "repairs"
        assert (await s.post("/api/pauses/resume", {"kind": "playbook", "name": "p"})).json["ended"] is None
        assert len((await s.lease()).json["jobs"]) == 1

    on_a_server(store_url, story)


def test_failures_are_shown_in_groups_and_started_again_by_pages(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a", 1))
        ids = [await s.start({"n": n}) for n in range(5)]
        for number in range(5):
            category = "permanent" if number == 2 else "transient"
            await s.fail(await s.lease_one(), "no luck", error_type="bad_luck", category=category)
        groups = (await s.get("/api/dead")).json["items"]
        assert sorted(group["executions"] for group in groups) == [1, 4]
        listed = (await s.get("/api/dead/list", limit=2)).json
        assert [item["execution_id"] for item in listed["items"]] == ids[:2]
        for nothing in ({}, {"force": True}, {"ids": ids, "path": "q"}, {"ids": ids, "all": True}):
            unsaid = await s.post("/api/dead/redrive", nothing)
            assert (unsaid.status, unsaid.code) == (422, "invalid_input")
        for chosen in ({"path": "p"}, {"all": True}):
            dry = (await s.post("/api/dead/redrive", {**chosen, "dry_run": True})).json
            assert dry["redriven"] == 4
        redriven, cursor, codes = 0, None, []
        while True:
            answer = (await s.post("/api/dead/redrive", {"path": "p", "limit": 2, "cursor": cursor})).json
            redriven += answer["redriven"]
            codes += [item["code"] for item in answer["items"]]
            cursor = answer["next"]
            if cursor is None:
                break
        assert redriven == 4 and codes.count("permanent_error") == 1
        named = (await s.post("/api/dead/redrive", {"ids": [ids[2], 999], "force": True})).json["items"]
        assert [item["code"] for item in named] == ["redriven", "unknown_execution"]

    on_a_server(store_url, story)


def test_a_batch_with_a_wrong_item_is_refused_before_anything_is_stored(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a"))
        items = [{"n": n} for n in range(900)] + ["\u0000"]
        answer = await s.post("/api/batches", {"path": "p", "items": items})
        assert (answer.status, answer.code) == (422, "payload_invalid")
        assert "Item 901" in answer.json["error"]["message"]
        assert (await s.get("/api/batches")).json["items"] == []
        body = {"path": "p", "items": [1], "idempotency_key": "k"}
        both = await s.post("/api/batches", body, headers={"idempotency-key": "other"})
        assert (both.status, both.code) == (422, "invalid_input")

    on_a_server(store_url, story)


def test_a_large_batch_is_checked_by_parts_between_which_others_are_answered(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    check = Engine.check

    async def counted(self: Engine, submissions: Sequence[Submission]) -> None:
        sizes.append(len(submissions))
        await check(self, submissions)

    async def story(s: Served) -> None:
        await s.define(stage("a"))
        monkeypatch.setattr(Engine, "check", counted)
        answer = await s.post("/api/batches", {"path": "p", "items": [1] * 1_201})
        assert answer.status == 201 and answer.json["added"] == 1_201
        assert sizes == [500, 500, 201]

    on_a_server(sqlite_url, story)
