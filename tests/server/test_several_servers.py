"""Several servers on one database, without a leader: what one stores the others see, tell and hand out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from engine_scenario import stage
from holdfast.bench.postgres import TemporaryPostgres
from running import eventually, run
from serving import Served, serving


@contextlib.asynccontextmanager
async def two(url: str, **options: Any) -> AsyncIterator[tuple[Served, Served]]:
    async with serving(url, **options) as one, serving(url, **options) as other:
        yield one, other


def test_a_lease_that_waits_at_one_server_gets_what_is_submitted_to_the_other(store_url: str) -> None:
    async def story() -> None:
        async with two(store_url) as (one, other):
            await one.define()
            waiting = asyncio.create_task(other.lease(wait=60))
            await eventually(lambda: other.service.services.desk.waiting == 1)
            id_ = await one.start()
            [job] = (await asyncio.wait_for(waiting, 60)).json["jobs"]
            assert job["execution_id"] == id_
            # Reported to the one that did not give it out.
            assert (await one.complete(job, "done")).status == 200
            assert (await other.get(f"/api/executions/{id_}")).json["result"] == "done"
            again = await other.complete(job, "done")
            assert (again.status, again.json["items"][0]["repeated"]) == (200, True)

    run(story())


def test_a_pipeline_that_is_registered_at_one_server_is_what_the_other_starts(store_url: str) -> None:
    async def story() -> None:
        async with two(store_url) as (one, other):
            await one.define(stage("a"))
            await other.start()
            await other.define(stage("b"))
            id_ = await one.start()
            assert (await one.get(f"/api/executions/{id_}")).json["stage"] == "b"

    run(story())


def test_what_happens_at_one_server_is_heard_at_the_other(store_url: str) -> None:
    async def story() -> None:
        async with two(store_url) as (one, other):
            await one.define()
            heard: list[str] = []

            async def listen() -> None:
                async with other.http.stream("GET", "/api/events/stream") as response:
                    async for line in response.aiter_lines():
                        if line.startswith("event: "):
                            heard.append(line[7:])
                            if line == "event: execution_completed":
                                return

            listening = asyncio.create_task(listen())
            await eventually(lambda: other.service.services.live.listeners == 1)
            await one.start()
            await one.complete(await one.lease_one())
            await asyncio.wait_for(listening, 60)
            assert heard[0] == "execution_started" and "action_completed" in heard

    run(story())


def test_lost_workers_are_swept_once_whoever_sweeps(store_url: str) -> None:
    async def story() -> None:
        async with two(store_url) as (one, other):
            await one.define(stage("a", 3, initial_delay=0.0))
            ids = [await one.start() for _ in range(20)]
            for server, worker in ((one, "w1"), (other, "w2")):
                await server.lease(worker, limit=10, lease_seconds=0.01)
            await asyncio.sleep(0.02)
            swept = await asyncio.gather(*(server.engine.sweep() for server in (one, other) * 5))
            assert sum(swept) == 20
            for id_ in ids:
                events = (await other.get(f"/api/executions/{id_}/events")).json["items"]
                assert [event["type"] for event in events].count("lease_lost") == 1

    run(story())


def test_a_batch_that_is_closed_at_one_server_while_the_other_adds_is_whole_or_refused(
    store_url: str,
) -> None:
    async def story() -> None:
        async with two(store_url) as (one, other):
            await one.define()
            id_ = (await one.post("/api/batches", {"path": "p", "close": False})).json["id"]

            async def add() -> int:
                answer = await other.post(f"/api/batches/{id_}/items", {"items": [{"workload": 1}] * 5})
                return answer.status

            statuses = [
                *await asyncio.gather(*(add() for _ in range(5))),
                await one_close(one, id_),
                await add(),
            ]
            assert statuses[-2:] == [200, 409]
            shown = (await one.get(f"/api/batches/{id_}")).json
            assert shown["size"] == 5 * statuses[:5].count(201) == 25

    async def one_close(server: Served, id_: int) -> int:
        return (await server.post(f"/api/batches/{id_}/close")).status

    run(story())


def test_leases_heartbeats_and_reports_go_on_after_the_database_was_restarted() -> None:
    async def story(database: TemporaryPostgres) -> None:
        async with two(database.url(), sweep=True) as (one, other):
            await one.define()
            id_ = await one.start()
            job = await one.lease_one(lease_seconds=600)
            waiting = asyncio.create_task(other.lease(wait=60))
            await eventually(lambda: other.service.services.desk.waiting == 1)
            await asyncio.to_thread(database.restart)
            lease = {"leases": [{"queue_id": job["queue_id"], "fence": job["fence"]}]}

            async def beaten() -> bool:
                return (await other.post("/api/queue/heartbeat", lease)).status == 200

            await eventually(beaten)
            assert (await one.complete(job, "after")).status == 200
            assert (await other.get(f"/api/executions/{id_}")).json["result"] == "after"
            second = await one.start()
            [later] = (await asyncio.wait_for(waiting, 90)).json["jobs"]
            assert later["execution_id"] == second

    with TemporaryPostgres(durable=False) as database:
        run(story(database))
