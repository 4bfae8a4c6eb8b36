"""Leases that nobody will run: the answer is lost or late, the caller gone, the worker full. They go back,
and nobody's attempt is counted."""

import asyncio
import time
from typing import Any

import pytest

from engine_scenario import stage
from holdfast.client import connection as http_connection
from holdfast.client.connection import HttpConnection
from holdfast.core.errors import ServerUnavailable, StoreUnavailable
from holdfast.core.failures import Failure
from holdfast.core.model import Completed, Failed, LeaseRef, Report
from running import eventually
from serving import LEASING, Served, answers_lost, connected, on_a_server

TOKEN = "0123456789ab"


async def bring_one(s: Served, connection: HttpConnection) -> None:
    """A job that a wait has leased and no lease has asked for."""
    assert (await connection.lease("w", ["p/a"], 10, **LEASING)).jobs == []
    await s.start()
    await asyncio.wait_for(connection.wait_for_work(0, 1.0), 60)
    assert connection._brought is not None


async def nothing_is_leased_to(s: Served, worker_id: str) -> None:
    async def nothing() -> bool:
        return not await s.store.leases_of(worker_id, 10)

    await eventually(nothing)


class SlowClaim:
    """The next claim of a store comes when it is let go."""

    def __init__(self, s: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._let_go = asyncio.Event(), asyncio.Event()
        self._claim = s.store.claim
        monkeypatch.setattr(s.store, "claim", self._slowly)

    async def _slowly(self, *args: Any) -> Any:
        if not self.reached.is_set():
            self.reached.set()
            await self._let_go.wait()
        return await self._claim(*args)

    def let_go(self) -> None:
        self._let_go.set()


def test_what_a_wait_has_brought_and_nobody_asks_for_is_given_back(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "LEFT_SECONDS", 0.02)

    async def story(s: Served) -> None:
        await s.define()
        async with connected(s) as connection:
            await bring_one(s, connection)
            await nothing_is_leased_to(s, "w")  # the worker has no room for it, or is being stopped
            assert (await s.lease_one())["attempt"] == 1

    on_a_server(store_url, story)


@pytest.mark.usefixtures("nothing_left_goes_back")
def test_jobs_whose_lease_is_half_over_are_given_back_and_not_begun(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        async with connected(s) as connection:
            await bring_one(s, connection)
            clock = connection._shared.clock
            assert clock._lead is not None
            clock._lead += 35  # seconds on its way
            assert (await connection.lease("w", ["p/a"], 10, **LEASING)).jobs == []
            clock._lead -= 35
            [job] = (await connection.lease("w", ["p/a"], 10, **LEASING)).jobs
            assert job.attempt == 1

    on_a_server(store_url, story)


@pytest.mark.usefixtures("nothing_left_goes_back")
def test_a_first_lease_whose_answer_is_lost_is_given_back_when_the_worker_ends(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        async with connected(s) as connection:
            with answers_lost(connection), pytest.raises(ServerUnavailable):
                await connection.lease("w", ["p/a"], 10, **LEASING)
            assert len(await s.store.leases_of("w", 10)) == 1
        assert await s.store.leases_of("w", 10) == []

    on_a_server(store_url, story)


def test_a_claim_that_is_under_way_when_its_call_is_called_back_leaves_no_lease(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        claim = SlowClaim(s, monkeypatch)
        given_up = asyncio.create_task(s.lease(token=TOKEN))
        await asyncio.wait_for(claim.reached.wait(), 60)
        await s.post("/api/queue/release", {"worker_id": "w1", "recall": [TOKEN]})
        claim.let_go()
        assert (await asyncio.wait_for(given_up, 60)).json["jobs"] == []
        assert (await s.lease_one())["attempt"] == 1

    on_a_server(store_url, story)


def test_a_claim_whose_caller_has_hung_up_meanwhile_is_given_back_and_it_counts_as_no_worker(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        claim = SlowClaim(s, monkeypatch)
        hung_up = asyncio.create_task(s.lease(wait=60, types=["p/a"]))
        await asyncio.wait_for(claim.reached.wait(), 60)
        hung_up.cancel()
        await asyncio.wait([hung_up])
        await s.lives()  # the end of that connection has been read before this request
        claim.let_go()
        job = await s.lease_one(worker_id="w2", wait=30, types=["p/a"])
        assert (job["attempt"], await s.store.leases_of("w1", 10)) == (1, [])

        async def are_known() -> list[str]:
            return [row["worker_id"] for row in (await s.get("/api/workers")).json["items"]]

        assert await eventually(are_known) == ["w2"]

    on_a_server(store_url, story)


def test_a_call_that_waits_is_ended_when_it_is_called_back(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        waiting = asyncio.create_task(s.lease(wait=60, token=TOKEN))
        await eventually(lambda: s.service.services.desk.waiting == 1)
        await s.post("/api/queue/release", {"worker_id": "w1", "recall": [TOKEN]})
        assert (await asyncio.wait_for(waiting, 30)).json["jobs"] == []

    on_a_server(store_url, story)


def test_a_call_that_arrives_after_it_was_called_back_leases_nothing(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        await s.post("/api/queue/release", {"worker_id": "w", "recall": [TOKEN]})
        late = {"worker_id": "w", "handlers": ["p/a"], "token": TOKEN, "wait": 60}
        assert (await s.post("/api/queue/lease/stored", late)).json["jobs"] == []
        another = {**late, "token": "another_token"}
        assert len((await s.post("/api/queue/lease/stored", another)).json["jobs"]) == 1

    on_a_server(store_url, story)


def test_what_was_leased_for_an_answer_that_fails_is_given_back(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()

        async def away() -> float:
            raise StoreUnavailable("The database is away.", guidance="Wait.")

        with monkeypatch.context() as patched:
            patched.setattr(s.engine, "now", away)
            assert (await s.lease()).status == 503
        assert await s.store.leases_of("w1", 10) == []
        assert (await s.lease_one())["attempt"] == 1

    on_a_server(store_url, story)


def test_a_worker_that_runs_a_job_alone_keeps_nobody_behind_it_waiting(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a", 5))
        await s.start()
        await s.lease_one(lease_seconds=0.001, worker_id="lost")
        await eventually(lambda: s.engine.sweep())

        async def alone() -> list[dict[str, Any]]:
            return list((await s.lease("w1", types=["p/a"])).json["jobs"])

        [job] = await eventually(alone)
        assert job["alone"]
        desk = s.service.services.desk
        first = asyncio.create_task(s.lease("w1", types=["p/a"], wait=60))
        await eventually(lambda: desk.waiting == 1)
        second = asyncio.create_task(s.lease("w2", types=["p/a"], wait=60))
        await eventually(lambda: desk.waiting == 2)
        await s.start()
        assert len((await asyncio.wait_for(second, 30)).json["jobs"]) == 1
        first.cancel()
        await asyncio.wait([first])

    on_a_server(store_url, story)


def test_an_outcome_that_no_server_takes_keeps_no_other_from_being_told(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a", 1))
        executions = [await s.start() for _ in range(4)]
        async with connected(s) as connection:
            jobs = (await connection.lease("w", ["p/a"], 10, **LEASING)).jobs
            outcomes = [
                Completed("1"),
                Failed(Failure(message="refused", retry_after=1e12)),
                Failed(Failure(message="cannot be written", data=object())),
                Completed("4"),
            ]
            by_execution = sorted(jobs, key=lambda job: job.execution_id)
            acks = await connection.report(
                [
                    Report(job.queue_id, job.fence, outcome)
                    for job, outcome in zip(by_execution, outcomes, strict=True)
                ]
            )
            assert [ack.accepted for ack in acks] == [True] * 4
        views = [(await s.get(f"/api/executions/{id_}")).json for id_ in executions]
        assert [view["status"] for view in views] == ["completed", "failed", "failed", "completed"]
        assert "refused" in views[1]["error"]["message"]
        assert "cannot be told to the server" in views[2]["error"]["message"]

    on_a_server(store_url, story)


def test_a_result_that_is_larger_than_a_request_ends_its_attempt(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.transport.BODY_BYTES_MAX", 2_000)

    async def story(s: Served) -> None:
        await s.define()
        execution = await s.start()
        async with connected(s) as connection:
            [job] = (await connection.lease("w", ["p/a"], 10, **LEASING)).jobs
            large = Completed('"' + "x" * 3_000 + '"')
            assert (await connection.report([Report(job.queue_id, job.fence, large)]))[0].accepted
        view = (await s.get(f"/api/executions/{execution}")).json
        assert view["status"] == "failed" and "bytes" in view["error"]["message"]

    on_a_server(store_url, story)


def test_a_worker_with_thousands_of_slots_asks_for_no_more_than_a_lease_takes(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        many = {**LEASING, "bulk": 2_000, "limited": 2_000}
        async with connected(s) as connection:
            [job] = (await connection.lease("w", ["p/a"], 2_000, **many)).jobs
            held = [LeaseRef(job.queue_id, job.fence)] + [LeaseRef(1, "none")] * 6_000
            acks = await connection.heartbeat(held, lease_seconds=60, progress={})
            assert [ack.accepted for ack in acks] == [True] + [False] * 6_000
            acks = await connection.release(held)
            assert [ack.accepted for ack in acks] == [True] + [False] * 6_000

    on_a_server(store_url, story)


def test_leases_and_ageing_may_be_as_long_as_at_the_database(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        async with connected(s) as connection:
            days = {**LEASING, "lease_seconds": 3 * 86_400.0, "ageing_seconds": 400 * 86_400.0}
            assert len((await connection.lease("w", ["p/a"], 1, **days)).jobs) == 1

    on_a_server(sqlite_url, story)


def test_a_worker_that_offers_nothing_does_not_ask_without_a_pause(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        async with connected(s) as connection:
            assert (await connection.lease("w", [], 1, **LEASING)).jobs == []
            began = time.monotonic()
            await connection.wait_for_work(0, 0.05)
            assert time.monotonic() - began >= 0.05

    on_a_server(sqlite_url, story)
