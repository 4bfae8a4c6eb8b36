"""Executions over HTTP: started, looked at, retried, cancelled."""

import asyncio
from typing import Any

import pytest

from engine_scenario import stage
from running import eventually
from serving import Served, on_a_server

PLAYBOOK = """
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: hi, path: hi}
workload: {name: world}
workflow:
  - step: greet
    type: function
    call: greetings:greet
    with: {text: "Hello, {{ workload.name }}"}
"""


def test_an_execution_goes_from_its_start_to_its_end_by_three_calls_of_a_worker(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a"), stage("b"))
        started = await s.post("/api/executions", {"path": "p", "workload": {"n": 7}, "lane": "manual"})
        assert started.status == 201
        assert started.headers["location"] == f"/api/executions/{started.json['id']}"
        job = await s.lease_one(types=["p/a"])
        assert (job["step"], job["attempt"], job["workload"]) == ("a", 1, {"n": 7})
        beaten = await s.post(
            "/api/queue/heartbeat", {"leases": [{"queue_id": job["queue_id"], "fence": job["fence"]}]}
        )
        assert (beaten.status, beaten.json["items"][0]["code"]) == (200, "accepted")
        assert (await s.complete(job, {"made": [1, "ü"]})).json["items"][0]["accepted"]
        job = await s.lease_one(types=["p/b"])
        assert job["outputs"] == {"a": {"made": [1, "ü"]}}
        await s.complete(job, 5)
        shown = (await s.get(f"/api/executions/{started.json['id']}")).json
        assert (shown["status"], shown["result"], shown["summary"]) == ("completed", 5, "Complete")
        assert [job["status"] for job in shown["jobs"]] == ["done", "done"]
        events = (await s.get(f"/api/executions/{started.json['id']}/events")).json["items"]
        assert events[0]["type"] == "execution_started" and events[-1]["type"] == "execution_completed"

    on_a_server(store_url, story)


def test_the_same_key_gives_the_same_execution_and_another_workload_is_refused(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        body = {"path": "p", "workload": {"n": 1}, "idempotency_key": "k"}
        first = await s.post("/api/executions", body)
        again = await s.post("/api/executions", body)
        by_header = await s.post(
            "/api/executions", {"path": "p", "workload": {"n": 1}}, headers={"idempotency-key": "k"}
        )
        assert (first.status, again.status, by_header.status) == (201, 200, 200)
        assert first.json["id"] == again.json["id"] == by_header.json["id"]
        other = await s.post("/api/executions", {**body, "workload": {"n": 2}})
        assert (other.status, other.code) == (409, "idempotency_conflict")
        for header in ("other", ""):
            told = await s.post("/api/executions", body, headers={"idempotency-key": header})
            assert (told.status, told.code) == (422, "invalid_input")
        twice = await s.post(
            "/api/executions", body, headers=[("idempotency-key", "k"), ("idempotency-key", "l")]
        )
        assert (twice.status, twice.code) == (422, "invalid_input")
        accented = await s.post("/api/executions", {"path": "p", "idempotency_key": "clé"})
        same = await s.post("/api/executions", {"path": "p"}, headers={"idempotency-key": "clé".encode()})
        assert (same.status, same.json["id"]) == (200, accented.json["id"])
        broken = await s.post("/api/executions", {"path": "p"}, headers={"idempotency-key": b"\xff"})
        assert (broken.status, broken.code) == (422, "invalid_input")
        unset = await s.post("/api/executions", {"path": "p"}, headers={"idempotency-key": ""})
        assert (unset.status, unset.code) == (422, "invalid_input")

    on_a_server(store_url, story)


def test_a_playbook_can_be_started_by_its_text(store_url: str) -> None:
    async def story(s: Served) -> None:
        started = await s.post("/api/executions", {"playbook": PLAYBOOK, "workload": {"name": "Oslo"}})
        assert (started.status, started.json["path"]) == (201, "hi")
        by_path = await s.post("/api/executions", {"playbook": "hi"})
        assert by_path.json["path"] == "hi"
        job = await s.lease_one(types=["greetings:greet"])
        assert job["input"] == {"text": "Hello, Oslo"}

    on_a_server(store_url, story)


def test_an_execution_can_have_an_older_version(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a"))
        await s.define(stage("b"))
        id_ = await s.start(version=1)
        assert (await s.get(f"/api/executions/{id_}")).json["stage"] == "a"
        unknown = await s.post("/api/executions", {"path": "p", "version": 9})
        assert (unknown.status, unknown.code) == (404, "unknown_version")

    on_a_server(store_url, story)


def test_many_are_started_together_or_not_at_all(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        many = await s.post(
            "/api/executions/many", {"executions": [{"path": "p", "workload": n} for n in range(3)]}
        )
        assert (many.status, len(many.json["items"])) == (201, 3)
        refused = await s.post("/api/executions/many", {"executions": [{"path": "p"}, {"path": "nowhere"}]})
        assert (refused.status, refused.code) == (404, "unknown_pipeline")
        keyed = await s.post(
            "/api/executions/many", {"executions": [{"path": "p"}]}, headers={"idempotency-key": "k"}
        )
        assert (keyed.status, keyed.code) == (422, "invalid_input")
        assert len((await s.get("/api/executions")).json["items"]) == 3

    on_a_server(store_url, story)


def test_lists_go_by_pages_newest_first(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        ids = [await s.start() for _ in range(5)]
        first = (await s.get("/api/executions", limit=3)).json
        second = (await s.get("/api/executions", limit=3, cursor=first["next"])).json
        assert [item["id"] for item in first["items"] + second["items"]] == ids[::-1]
        assert second["next"] is None
        assert (await s.get("/api/executions", status="failed")).json == {"items": [], "next": None}

    on_a_server(store_url, story)


def test_events_go_by_pages(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        id_ = await s.start()
        await s.complete(await s.lease_one())
        all_ = (await s.get(f"/api/executions/{id_}/events")).json["items"]
        seen: list[dict[str, Any]] = []
        after: dict[str, str] = {}
        while True:
            page = (await s.get(f"/api/executions/{id_}/events", limit=2, **after)).json
            seen += page["items"]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert seen == all_

    on_a_server(store_url, story)


def test_a_retry_is_refused_with_its_status_and_a_sentence_or_starts_a_new_round(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a", 1))
        id_ = await s.start()
        running = await s.post(f"/api/executions/{id_}/retry")
        assert (running.status, running.code) == (409, "not_failed")
        await s.fail(await s.lease_one(), "the file is corrupted", category="permanent")
        permanent = await s.post(f"/api/executions/{id_}/retry", {})
        assert (permanent.status, permanent.code) == (409, "permanent_error")
        assert permanent.json["error"]["guidance"]
        retried = await s.post(f"/api/executions/{id_}/retry", {"force": True, "by": "ada"})
        assert (retried.status, retried.json) == (202, {"id": id_, "round": 2, "status": "running"})
        await s.fail(await s.lease_one())
        soon = await s.post(f"/api/executions/{id_}/retry", {"force": True})
        assert (soon.status, soon.code) == (429, "cooldown")
        assert 0 < int(soon.headers["retry-after"]) <= 61

    on_a_server(store_url, story)


def test_a_cancelled_execution_is_told_so_and_its_worker_learns_it(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        id_ = await s.start()
        job = await s.lease_one()
        assert (await s.post(f"/api/executions/{id_}/cancel", {"by": "ada"})).json["cancelled"] is True
        again = await s.post(f"/api/executions/{id_}/cancel")
        assert again.json == {"id": id_, "cancelled": False, "status": "cancelled"}
        late = await s.complete(job)
        assert (late.status, late.json["items"][0]["code"]) == (409, "stale_lease")
        assert late.code == "stale_lease"

    on_a_server(store_url, story)


def test_whoever_asks_with_wait_is_answered_when_the_execution_ends(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        id_ = await s.start()
        waiting = asyncio.create_task(s.get(f"/api/executions/{id_}", wait=60))
        job = await s.lease_one()
        assert not waiting.done()
        await s.complete(job, "done")
        answer = await asyncio.wait_for(waiting, 30)
        assert (answer.json["status"], answer.json["result"]) == ("completed", "done")

    on_a_server(store_url, story)


@pytest.mark.parametrize("path", ["/api/executions/99", "/api/executions/99/events"])
def test_what_is_not_there_is_told_as_that(sqlite_url: str, path: str) -> None:
    async def story(s: Served) -> None:
        answer = await s.get(path)
        assert (answer.status, answer.code) == (404, "unknown_execution")
        assert answer.json["error"]["guidance"]

    on_a_server(sqlite_url, story)


def test_the_stream_tells_what_happens_and_goes_on_behind_the_last_event(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        heard: list[str] = []
        token = ""

        async def listen(headers: dict[str, str], until: str) -> None:
            nonlocal token
            async with s.http.stream("GET", "/api/events/stream?path=p", headers=headers) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                listening.set()
                async for line in response.aiter_lines():
                    if line.startswith("id: "):
                        token = line[4:]
                    if line.startswith("event: "):
                        heard.append(line[7:])
                        if line[7:] == until:
                            return

        listening = asyncio.Event()
        task = asyncio.create_task(listen({}, "step_started"))
        await listening.wait()
        await eventually(lambda: s.service.services.live.listeners == 1)
        await s.start()
        await asyncio.wait_for(task, 60)
        await eventually(lambda: s.service.services.live.listeners == 0)
        await s.complete(await s.lease_one())
        await asyncio.wait_for(listen({"last-event-id": token}, "execution_completed"), 60)
        assert heard[0] == "execution_started" and heard.count("action_completed") == 1
        wrong = await s.get("/api/events/stream", after="nonsense")
        assert wrong.status == 422

    on_a_server(store_url, story)
