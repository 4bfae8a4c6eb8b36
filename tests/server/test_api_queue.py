"""The queue over HTTP: what people see, and what workers in any language say."""

import asyncio
import json
from typing import Any

from engine_scenario import stage
from holdfast.core.model import LeaseRef
from holdfast.core.retry import RetryPolicy
from holdfast.playbook.definition import Step
from running import eventually
from serving import Served, on_a_server


def test_the_queue_shows_jobs_oldest_first_with_the_action_of_their_step(store_url: str) -> None:
    async def story(s: Served) -> None:
        retry = RetryPolicy(delays=(60.0, 180.0))
        await s.define(Step(name="a", handler="p/a", retry=retry, timeout_seconds=30.0))
        ids = [await s.start(lane=lane) for lane in ("bulk", "manual", "bulk")]
        items = (await s.get("/api/queue")).json["items"]
        assert [item["execution_id"] for item in items] == ids
        assert (items[0]["status"], items[0]["attempts"], items[0]["max_attempts"]) == ("queued", 0, 3)
        action = json.loads(items[0]["action"])
        assert action["retry"]["delays"] == [60, 180] and action["timeout"] == 30
        manual = (await s.get("/api/queue", lane="manual", due="true")).json["items"]
        assert [item["execution_id"] for item in manual] == [ids[1]]
        await s.fail(await s.lease_one(), "timed out")
        retrying = (await s.get("/api/queue", status="retry")).json["items"]
        assert [item["attempts"] for item in retrying] == [1]
        assert (await s.get("/api/queue", status="retry", due="true")).json["items"] == []
        page = (await s.get("/api/queue", limit=2)).json
        rest = (await s.get("/api/queue", limit=2, cursor=page["next"])).json
        assert [len(page["items"]), len(rest["items"])] == [2, 1]

    on_a_server(store_url, story)


def test_a_lease_with_wait_is_answered_within_moments_of_a_submit(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        waiting = asyncio.create_task(s.lease(wait=60))
        await eventually(lambda: s.service.services.desk.waiting == 1)
        id_ = await s.start()
        answer = await asyncio.wait_for(waiting, 30)
        assert [job["execution_id"] for job in answer.json["jobs"]] == [id_]
        assert s.service.services.desk.waiting == 0

    on_a_server(store_url, story)


def test_a_lease_with_wait_is_answered_when_a_retry_is_due(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a", initial_delay=0.3))
        await s.start()
        await s.fail(await s.lease_one())
        answer = await s.lease(wait=60)
        assert [job["attempt"] for job in answer.json["jobs"]] == [2]

    on_a_server(store_url, story)


def test_a_lease_without_work_ends_after_its_wait_and_tells_when_the_next_is_due(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start(delay=500)
        answer = (await s.lease(wait=0.2)).json
        assert answer["jobs"] == []
        assert 300 < answer["next_due"] - answer["now"] <= 500

    on_a_server(store_url, story)


def test_workers_that_offer_the_same_wait_in_one_line_and_each_job_goes_to_one(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        asking = [asyncio.create_task(s.lease(f"w{n}", wait=60, types=["p/a"])) for n in range(20)]
        await eventually(lambda: s.service.services.desk.waiting == 20)
        assert len(s.service.services.desk._lines) == 1
        ids = {await s.start() for _ in range(20)}
        answers = await asyncio.wait_for(asyncio.gather(*asking), 60)
        jobs = [job for answer in answers for job in answer.json["jobs"]]
        assert {job["execution_id"] for job in jobs} == ids and len(jobs) == 20

    on_a_server(store_url, story)


def test_what_was_leased_for_one_who_has_hung_up_is_given_back_uncounted(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        _, writer = await s.open_socket()
        body = b'{"worker_id":"gone","wait":60}'
        head = f"POST /api/queue/lease HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        await writer.drain()
        await eventually(lambda: s.service.services.desk.waiting == 1)
        writer.close()
        await eventually(lambda: s.service.services.desk.waiting == 0)
        await s.start()
        job = await s.lease_one()
        assert job["attempt"] == 1

    on_a_server(store_url, story)


def test_the_leases_of_a_call_that_was_never_answered_are_called_back_by_its_token(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a", 1))
        await s.start()
        lost = await s.lease(token="0123456789ab")  # as if nobody had read this
        assert lost.json["jobs"][0]["fence"].endswith("-0123456789ab")
        again = (await s.lease(recall=["0123456789ab"])).json["jobs"]
        assert [job["attempt"] for job in again] == [1]
        assert (await s.complete(lost.json["jobs"][0])).code == "stale_lease"
        assert (await s.complete(again[0])).status == 200

    on_a_server(store_url, story)


def test_heartbeats_answer_for_each_lease_and_409_where_none_is_held(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        job = await s.lease_one(lease_seconds=100)
        mine = {"queue_id": job["queue_id"], "fence": job["fence"]}
        foreign = {"queue_id": job["queue_id"], "fence": "1-ffffffffffff"}
        mixed = await s.post("/api/queue/heartbeat", {"leases": [{**mine, "progress": 0.5}, foreign]})
        assert mixed.status == 200
        assert [item["code"] for item in mixed.json["items"]] == ["accepted", "stale_lease"]
        shown = (await s.get("/api/queue", status="leased")).json["items"][0]
        assert shown["progress"] == 0.5
        assert 90 < shown["lease_until"] - shown["last_heartbeat"] <= 101  # as long as it was
        stale = await s.post("/api/queue/heartbeat", {"leases": [foreign]})
        assert (stale.status, stale.code) == (409, "stale_lease")
        assert (await s.post("/api/queue/heartbeat", {"leases": []})).json == {"items": []}

    on_a_server(store_url, story)


def test_outcomes_are_answered_one_by_one_and_the_same_again_is_accepted_again(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        for _ in range(2):
            await s.start()
        one, two = await s.lease_one(), await s.lease_one()
        done = {"queue_id": one["queue_id"], "fence": one["fence"], "type": "action_completed", "result": 1}
        foreign = {**done, "queue_id": two["queue_id"]}
        unknown = {**done, "queue_id": 10**15}
        answer = await s.report(done, foreign, unknown, {**done, "fence": "\u0000"})
        assert answer.status == 200
        assert [item["accepted"] for item in answer.json["items"]] == [True, False, False, False]
        again = await s.report(done)
        assert (again.status, again.json["items"][0]["repeated"]) == (200, True)
        other = await s.report({**done, "result": 2})
        assert (other.status, other.code) == (409, "stale_lease")

    on_a_server(store_url, story)


def test_the_server_classifies_what_the_worker_leaves_out(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a", 5, initial_delay=0.0))
        id_ = await s.start()
        await s.fail(await s.lease_one(), "503 service unavailable")
        error = (await s.get(f"/api/executions/{id_}")).json["error"]
        assert (error["error_type"], error["category"]) == ("service_unavailable", "transient")
        await s.fail(await s.lease_one(), "no", status_code=429, retry_after=0.0)
        assert (await s.get(f"/api/executions/{id_}")).json["error"]["error_type"] == "rate_limit"
        await s.fail(await s.lease_one(), "broken", error_type="bad_scan", category="permanent")
        shown = (await s.get(f"/api/executions/{id_}")).json
        assert (shown["status"], shown["error"]["error_type"]) == ("failed", "bad_scan")

    on_a_server(store_url, story)


def test_a_released_attempt_is_not_counted(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        job = await s.lease_one()
        given = {"leases": [{"queue_id": job["queue_id"], "fence": job["fence"]}]}
        assert (await s.post("/api/queue/release", given)).status == 200
        assert (await s.post("/api/queue/release", given)).code == "stale_lease"
        assert (await s.lease_one())["attempt"] == 1

    on_a_server(store_url, story)


def test_whoever_leases_is_known_as_a_worker_that_offers_this(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start(lane="manual")
        assert (await s.get("/api/overview")).json["unoffered"] != []
        await s.lease("node-1", types=["p/a", "images:thumbnail"], limit=3)

        async def known() -> list[Any]:
            return [
                (worker["worker_id"], worker["handlers"], worker["concurrency"])
                for worker in (await s.get("/api/workers")).json["items"]
            ]

        await eventually(known)
        assert await known() == [("node-1", ["p/a", "python/images:thumbnail"], 3)]
        await s.start(lane="manual")
        assert (await s.get("/api/overview")).json["unoffered"] == []
        await s.send("DELETE", "/api/workers/node-1")
        assert await known() == []

    on_a_server(store_url, story)


def test_a_job_whose_worker_was_lost_is_given_alone_to_one_that_holds_nothing_else(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a", 5, initial_delay=0.0))
        await s.start()
        await s.start()
        lost = await s.lease_one(lease_seconds=0.001)
        await eventually(lambda: s.engine.sweep())
        other = await s.lease_one()
        assert other["queue_id"] != lost["queue_id"]
        assert (await s.lease()).json["jobs"] == []  # it holds another
        await s.complete(other)
        alone = await s.lease_one()
        assert (alone["queue_id"], alone["alone"], alone["attempt"]) == (lost["queue_id"], True, 2)
        await s.start()
        assert (await s.lease()).json["jobs"] == []  # nothing beside it
        assert len((await s.lease("w2")).json["jobs"]) == 1
        await s.complete(alone)

    on_a_server(store_url, story)


def test_one_answer_carries_no_more_than_it_should_and_the_rest_is_given_back(
    store_url: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr("holdfast.server.api_queue.LEASE_BYTES_MAX", 2_500)

    async def story(s: Served) -> None:
        await s.define()
        for _ in range(4):
            await s.start("x" * 1_000)
        first = (await s.lease(limit=4)).json["jobs"]
        rest = (await s.lease(limit=4)).json["jobs"]
        assert [len(first), len(rest)] == [2, 2]
        assert {job["attempt"] for job in first + rest} == {1}
        held = await s.store.leases_of("w1", 10)
        assert {lease for lease, _ in held} == {
            LeaseRef(job["queue_id"], job["fence"]) for job in first + rest
        }

    on_a_server(store_url, story)


def test_a_server_that_stops_answers_all_who_wait(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        waiting = asyncio.create_task(s.lease(wait=60))
        await eventually(lambda: s.service.services.desk.waiting == 1)
        s.service.begin_stop()
        answer = await asyncio.wait_for(waiting, 30)
        assert answer.json["jobs"] == []

    on_a_server(store_url, story)


def test_the_signal_moves_when_something_happens(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        ticket = (await s.get("/api/queue/signal")).json["ticket"]
        waiting = asyncio.create_task(s.get("/api/queue/signal", ticket=ticket, wait=60))
        await s.start()
        assert (await asyncio.wait_for(waiting, 30)).json["ticket"] != ticket

    on_a_server(store_url, story)
