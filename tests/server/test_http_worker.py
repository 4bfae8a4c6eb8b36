"""A worker behind a server: the same promises as at the database."""

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from holdfast import Context, Holdfast, Retry, TransientError
from holdfast.client import Client
from holdfast.client import connection as http_connection
from holdfast.core.errors import (
    AccessRefused,
    IdempotencyConflict,
    RetryRefused,
    ServerUnavailable,
    StoreUrlInvalid,
    TransactionUnavailable,
    UnknownExecution,
    UnknownPipeline,
)
from holdfast.core.model import Completed, Lane, LeaseRef, LeaseResult, Report
from holdfast.engine import Engine, Submission
from holdfast.server.service import Service
from holdfast.wire import TOKEN_VARIABLE
from holdfast.worker import announcing
from running import eventually, run
from serving import LEASING, Served, answers_lost, connected, on_a_server, serving


def program(url: str) -> tuple[Holdfast, list[str]]:
    """Three stages, of which the second fails once."""
    hf, calls = Holdfast(url), []

    @hf.step
    async def fetch(ctx: Context) -> str:
        calls.append("fetch")
        return str(ctx.workload["city"])

    @hf.step(retry=Retry(delays=[0.05]))
    def count(ctx: Context) -> int:
        calls.append("count")
        if ctx.attempt == 1:
            raise TransientError("the counter is busy")
        return len(ctx.outputs["fetch"])

    @hf.step
    async def store(ctx: Context) -> dict[str, Any]:
        calls.append("store")
        await asyncio.sleep(0.01)
        return {"letters": ctx.outputs["count"]}

    hf.pipeline("reports", [fetch, count, store])
    return hf, calls


def test_a_program_works_through_a_server_as_it_does_at_the_database(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "RETIRE_SECONDS", 60.0)

    async def story(s: Served) -> None:
        hf, calls = program(s.url)
        async with hf, hf.working():
            execution = await hf.submit("reports", {"city": "Bergen"}, idempotency_key="b")
            assert (
                execution.created
                and not (await hf.submit("reports", {"city": "Bergen"}, idempotency_key="b")).created
            )
            view = await execution.wait(within=120)
            assert (view.status, view.result) == ("completed", {"letters": 6})
            assert calls == ["fetch", "count", "count", "store"]
            events = await execution.events()
            assert [event.type.value for event in events].count("action_error") == 1
            with pytest.raises(IdempotencyConflict):
                await hf.submit("reports", {"city": "Oslo"}, idempotency_key="b")
            with pytest.raises(UnknownPipeline):
                await hf.submit("nowhere")
            with pytest.raises(UnknownExecution):
                await hf.status(999)
            with pytest.raises(RetryRefused) as refusal:
                await hf.retry(execution.id)
            assert refusal.value.code == "not_failed"
        assert (await s.store.workers(10)) == []  # it has said goodbye

    on_a_server(store_url, story, sweep=True)


def test_batches_limits_pauses_and_the_catalog_work_through_a_server(store_url: str) -> None:
    async def story(s: Served) -> None:
        hf, _ = program(s.url)
        async with hf, hf.working():
            batch = await hf.batch("reports", [{"city": "a" * n} for n in range(1, 8)], key="june")
            view = await batch.wait(within=120)
            assert view.executions["completed"] == view.items == 7
            assert [item.status async for item in batch.items()] == ["completed"] * 7
            again = await hf.batch("reports", [{"city": "a" * n} for n in range(1, 8)], key="june")
            assert again.id == batch.id
            limit = await hf.set_limit("portal", 3, by="ada")
            assert (limit.max_concurrency, limit.set_by) == (3, "ada")
            assert [found.name for found in await hf.limits()] == ["portal"]
            assert await hf.remove_limit("portal") and not await hf.remove_limit("portal")
            pause = await hf.pause(playbook="reports", by="ada", reason="repairs")
            assert [found.reason for found in await hf.pauses()] == ["repairs"]
            assert await hf.resume(playbook="reports") == pause
            assert await hf.resume(playbook="reports") is None
            assert [entry.path for entry in await hf.playbooks()] == ["reports"]
            assert "fetch" in (await hf.playbook_text("reports")).text

    on_a_server(store_url, story)


def test_an_idle_worker_costs_one_request_in_half_a_minute(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "WAIT_SECONDS", 0.2)

    async def story(s: Served) -> None:
        hf, _ = program(s.url)
        async with hf, hf.working():
            await eventually(lambda: s.service.services.desk.waiting == 1)
            desk, requests = s.service.services.desk, s.service.services.requests
            lease, waits = desk.lease, 0

            async def counted(*args: Any) -> LeaseResult:
                nonlocal waits
                waits += 1
                return await lease(*args)

            monkeypatch.setattr(desk, "lease", counted)
            before = requests.total()
            await eventually(lambda: waits >= 10)
            assert requests.total() - before <= waits + 1  # and none beside them

    on_a_server(sqlite_url, story)


@pytest.mark.usefixtures("nothing_left_goes_back")
def test_a_lease_whose_answer_is_lost_is_given_back_with_the_next_call(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        async with connected(s) as connection:
            with answers_lost(connection), pytest.raises(ServerUnavailable):
                await connection.lease("w", ["p/a"], 10, **LEASING)
            assert len(await s.store.leases_of("w", 10)) == 1
            [job] = (await connection.lease("w", ["p/a"], 10, **LEASING)).jobs
            assert (job.attempt, connection._lost) == (1, [])

    on_a_server(store_url, story)


def test_a_wait_that_is_called_off_leaves_no_lease_behind(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        async with connected(s) as connection:
            assert (await connection.lease("w", ["p/a"], 10, **LEASING)).jobs == []
            waiting = asyncio.create_task(connection.wait_for_work(0, 1.0))
            await eventually(lambda: s.service.services.desk.waiting == 1)
            waiting.cancel()
            await asyncio.wait([waiting])
            await s.start()
        # Closed, it has called back whatever that call may have leased.
        await eventually(lambda: s.service.services.desk.waiting == 0)

        async def nothing_is_leased() -> bool:
            return not await s.store.leases_of("w", 10)

        await eventually(nothing_is_leased)
        assert (await s.lease_one())["attempt"] == 1

    on_a_server(store_url, story)


@pytest.mark.usefixtures("nothing_left_goes_back")
def test_what_a_wait_has_brought_is_handed_out_by_the_next_lease_or_given_back(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        async with connected(s) as connection:
            await connection.lease("w", ["p/a"], 10, **LEASING)
            waiting = asyncio.create_task(connection.wait_for_work(0, 1.0))
            await eventually(lambda: s.service.services.desk.waiting == 1)
            await s.start()
            await asyncio.wait_for(waiting, 60)
            [job] = (await connection.lease("w", ["p/a"], 10, **LEASING)).jobs
            acks = await connection.report([Report(job.queue_id, job.fence, Completed('{"ok":1}'))])
            assert [ack.accepted for ack in acks] == [True]
            await s.start()
            await connection.wait_for_work(0, 1.0)
            assert len(await s.store.leases_of("w", 10)) == 1
        assert await s.store.leases_of("w", 10) == []

    on_a_server(store_url, story)


def test_outcomes_are_sent_in_parts_that_fit_into_a_request(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "REPORT_BYTES_MAX", 2_000)

    async def story(s: Served) -> None:
        await s.define()
        for _ in range(6):
            await s.start()
        async with connected(s) as connection:
            jobs = (await connection.lease("w", ["p/a"], 10, **LEASING)).jobs
            before = s.service.services.requests.total()
            text = '"' + "x" * 900 + '"'
            acks = await connection.report([Report(job.queue_id, job.fence, Completed(text)) for job in jobs])
            assert [ack.accepted for ack in acks] == [True] * 6
            assert s.service.services.requests.total() - before >= 3
            stale = await connection.heartbeat(
                [LeaseRef(job.queue_id, job.fence) for job in jobs], lease_seconds=60, progress={}
            )
            assert {ack.code.value for ack in stale} == {"stale_lease"}

    on_a_server(store_url, story)


def test_outcomes_are_kept_while_the_server_is_away_and_delivered_when_it_is_back(store_url: str) -> None:
    async def story() -> None:
        async with serving(store_url) as s:
            hf, finished, go_on = Holdfast(s.url), asyncio.Event(), asyncio.Event()

            @hf.step
            async def work(ctx: Context) -> str:
                finished.set()
                await go_on.wait()
                return "kept"

            hf.pipeline("p", [work])
            async with hf, hf.working():
                execution = await hf.submit("p")
                await asyncio.wait_for(finished.wait(), 60)
                port = int(s.url.rpartition(":")[2])
                await s.service.stop()
                go_on.set()
                await asyncio.sleep(0)
                row = await s.store.execution(execution.id)
                assert row is not None and row.status == "running"
                async with Service(Engine(s.store), port=port):

                    async def is_complete() -> bool:
                        row = await s.store.execution(execution.id)
                        return row is not None and row.status == "completed"

                    await eventually(is_complete, 120)
                    view = await hf.wait(execution.id, within=60)
                    assert (view.result, view.jobs[0].attempts) == ("kept", 1)

    run(story())


def test_a_stopped_worker_finishes_what_runs_and_gives_back_the_rest(store_url: str) -> None:
    async def story(s: Served) -> None:
        hf, begun, go_on = Holdfast(s.url), asyncio.Event(), asyncio.Event()

        @hf.step
        async def work(ctx: Context) -> int:
            begun.set()
            await go_on.wait()
            return 1

        hf.pipeline("p", [work])
        async with hf:
            executions = await hf.submit_many("p", [None] * 3)
            async with hf.working(concurrency=2) as worker:
                await asyncio.wait_for(begun.wait(), 60)
                worker.stop()
                go_on.set()
                await asyncio.wait_for(worker.ended.wait(), 60)
            views = [await execution.status() for execution in executions]
            assert [view.status for view in views].count("completed") >= 1
            assert all(job.status in ("queued", "done") for view in views for job in view.jobs)

    on_a_server(store_url, story)


def test_a_handlers_transaction_is_refused_with_the_reason(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        hf = Holdfast(s.url)

        @hf.step
        async def work(ctx: Context) -> None:
            async with ctx.transaction() as tx:
                await tx.execute("SELECT 1")

        hf.pipeline("p", [work])
        async with hf, hf.working():
            view = await (await hf.submit("p")).wait(within=60)
            assert view.status == "failed" and view.error is not None
            assert "has only a server" in view.error.message and "--db" in view.error.guidance

    on_a_server(sqlite_url, story)


def test_a_job_whose_worker_was_lost_is_run_alone_behind_a_server_too(store_url: str) -> None:
    async def story(s: Served) -> None:
        hf = Holdfast(s.url)

        @hf.step(retry=Retry(max_attempts=5, initial_delay=0.01))
        async def work(ctx: Context) -> bool:
            return ctx.job.alone

        hf.pipeline("p", [work])
        async with hf:
            execution = await hf.submit("p")
            await s.lease_one(lease_seconds=0.001, types=["p/work"], worker_id="lost")
            await eventually(lambda: s.engine.sweep())
            async with hf.working():
                assert (await execution.wait(within=120)).result is True

    on_a_server(store_url, story)


def test_a_worker_waits_for_a_server_that_is_not_there_yet(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.working.AWAY_SECONDS_MIN", 0.01)

    async def story() -> None:
        async with serving(sqlite_url) as s:
            port = int(s.url.rpartition(":")[2])
            await s.service.stop()
            hf, _ = program(s.url)
            connecting = asyncio.create_task(hf._connect())
            with pytest.raises(ServerUnavailable):
                await Client(s.url).open()
            assert not connecting.done()
            async with Service(Engine(s.store), port=port):
                await asyncio.wait_for(connecting, 60)
                await hf.close()

    run(story())


def test_a_client_is_told_who_it_is_not(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        with pytest.raises(AccessRefused):
            await Client(s.url, token="not-the-one-it-wants").open()
        async with Client(s.url, token="the-one-that-it-wants") as client:
            assert (await client.info()).database == "sqlite"

    on_a_server(sqlite_url, story, token="the-one-that-it-wants")


def test_what_is_no_holdfast_server_is_told_as_that() -> None:
    async def story() -> None:
        async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
            await writer.drain()
            writer.close()

        other = await asyncio.start_server(hello, "127.0.0.1", 0)
        async with other:
            port = other.sockets[0].getsockname()[1]
            client = Client(f"http://127.0.0.1:{port}")
            with pytest.raises(ServerUnavailable, match="not understood"):
                await client.open()
            await client.close()

    run(story())


@pytest.mark.parametrize("url", ["http://", "http://:80", "https://host:99999", "http://h?x=1", "http://h#x"])
def test_an_address_that_is_none_is_refused_where_it_is_given(url: str) -> None:
    with pytest.raises(StoreUrlInvalid, match="address of a server"):
        Holdfast(url)


def test_a_submit_cannot_join_a_transaction_through_a_server(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        async with Client(s.url) as client:
            from holdfast.core.errors import InvalidInput

            with pytest.raises(InvalidInput, match="cannot join"):
                await client.submit_on(object(), [Submission(path="p")])
            with pytest.raises(TransactionUnavailable):
                client.connection().transaction()

    on_a_server(sqlite_url, story)


def test_the_server_takes_fields_of_a_newer_worker_and_passes_over_them(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        body = {"worker_id": "w", "from_the_future": {"x": 1}}
        async with httpx.AsyncClient(base_url=s.url) as http:
            answer = await http.post(
                "/api/queue/lease",
                content=msgspec.json.encode(body),
                headers={"content-type": "application/json"},
            )
        assert len(answer.json()["jobs"]) == 1

    on_a_server(sqlite_url, story)


def test_a_worker_that_asks_for_one_lane_only_still_offers_both(store_url: str) -> None:
    async def story(s: Served) -> None:
        hf, begun, go_on = Holdfast(s.url), asyncio.Event(), asyncio.Event()

        @hf.step
        async def work(ctx: Context) -> None:
            begun.set()
            await go_on.wait()

        hf.pipeline("p", [work])
        async with hf, hf.working(concurrency=2):
            await hf.submit("p")  # its only slot for bulk work is taken
            await asyncio.wait_for(begun.wait(), 60)
            await eventually(lambda: s.service.services.desk.waiting == 1)
            [(_, known)] = s.service.services.workers._known.values()
            assert known.lanes == (Lane.MANUAL, Lane.BULK)
            go_on.set()

    on_a_server(store_url, story)


def test_a_workers_token_is_all_that_a_worker_needs_and_lets_it_read_nothing_else(store_url: str) -> None:
    async def story(s: Served) -> None:
        texts = {role: (await s.engine.tokens.create(role, role)).text for role in ("worker", "operator")}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(TOKEN_VARIABLE, texts["worker"])
            async with Holdfast(s.url) as hf:

                @hf.step
                async def greet(ctx: Context) -> str:
                    return f"Hello, {ctx.workload['name']}"

                hf.pipeline("greetings", [greet])
                async with hf.working(), Client(s.url, token=texts["operator"]) as operator:

                    async def is_offered() -> bool:
                        return any(
                            "greetings/greet" in worker.handlers for worker in await operator.living_workers()
                        )

                    await eventually(is_offered)
                    [started] = await operator.submit(
                        [Submission(path="greetings", workload={"name": "Oslo"})]
                    )

                    async def has_ended() -> bool:
                        return (await operator.view(started.id)).result == "Hello, Oslo"

                    await eventually(has_ended)
                for refused in (
                    hf.submit("greetings", {"name": "Bergen"}),
                    hf.cancel(started.id),
                    hf.executions(),
                ):
                    with pytest.raises(AccessRefused, match="worker"):
                        await refused

    on_a_server(store_url, story, require_token=True)
