"""Leases that are taken over through a server: by its own workers, once, also where an answer is lost."""

from __future__ import annotations

import pytest

from holdfast.core.errors import ServerUnavailable
from holdfast.core.model import Completed, LeaseRef, Report
from serving import LEASING, Served, answers_lost, connected, on_a_server

TOKEN = "takers_token"


def test_a_lease_is_taken_over_once(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        id_ = await s.start({"number": 7})
        async with connected(s) as dispatcher, connected(s) as taker, connected(s) as other:
            (job,) = (await dispatcher.lease("d", ["p/a"], 1, **LEASING)).jobs
            lease = LeaseRef(job.queue_id, job.fence)
            (taken,) = await taker.take_over("t", [lease], token=TOKEN, lease_seconds=30.0)
            assert (taken.workload, taken.fence) == ('{"number":7}', f"2-{TOKEN}")
            assert await other.take_over("o", [lease], token="another_token", lease_seconds=30.0) == []
            (ack,) = await dispatcher.heartbeat([lease], lease_seconds=30.0, progress={})
            assert ack.code == "stale_lease"
            (ack,) = await taker.report([Report(taken.queue_id, taken.fence, Completed("1"))])
            assert ack.accepted
        assert await s.status(id_) == "completed"

    on_a_server(store_url, story)


def test_an_answer_that_was_lost_is_asked_for_again(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        job = await s.lease_one()
        lease = LeaseRef(job["queue_id"], job["fence"])
        async with connected(s) as taker:
            with answers_lost(taker), pytest.raises(ServerUnavailable):
                await taker.take_over("t", [lease], token=TOKEN, lease_seconds=30.0)
            (taken,) = await taker.take_over("t", [lease], token=TOKEN, lease_seconds=30.0)
            assert taken.fence == f"2-{TOKEN}"
        assert (await s.complete(job)).status == 409

    on_a_server(sqlite_url, story)


def test_a_request_that_makes_no_sense_is_refused_and_takes_nothing(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        job = await s.lease_one()
        lease = {"queue_id": job["queue_id"], "fence": job["fence"]}
        asked = {"worker_id": "t", "leases": [lease], "token": TOKEN}
        for wrong in ({"token": "short"}, {"leases": []}, {"worker_id": ""}, {"lease_seconds": 0}):
            assert (await s.post("/api/queue/takeover", asked | wrong)).status == 422
        strange = [{"queue_id": -1, "fence": "1-a"}, {"queue_id": job["queue_id"], "fence": "\x00"}]
        answer = await s.post("/api/queue/takeover", asked | {"leases": strange})
        assert answer.status == 200 and answer.json["jobs"] == []
        assert (await s.complete(job)).status == 200

    on_a_server(sqlite_url, story)
