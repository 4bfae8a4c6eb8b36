"""Attempts that are handed to real Celery workers over a real broker: what runs, once, and what if not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from celery_fleet import Fleet, fleet
from fleet.steps import Line, lines, program
from holdfast import Holdfast
from holdfast.app import Execution
from holdfast.core.model import EventType, ExecutionStatus, JobStatus, Lane, LeaseRef
from holdfast.fleet import dispatcher as dispatcher_module
from holdfast.fleet.broker import Broker
from holdfast.fleet.dispatcher import Dispatcher
from holdfast.fleet.message import Message
from running import eventually, run
from scripted_server import ScriptedServer
from serving import serving
from traced_spans import spans_in

APP = "fleet.steps:hf"
PREFIX = "holdfast"
WITHIN = 120.0
# Longer than any machine keeps a heartbeat waiting. Where a lease is to be noticed as lost, it is short.
LEASE_SECONDS = 30.0
SHORT_SECONDS = 5.0
SHORT = {"HOLDFAST_LEASE": f"{SHORT_SECONDS}s"}


class Story:
    """A fleet and a program that submits to it; the dispatcher runs here, where a test can look at it."""

    def __init__(self, f: Fleet, hf: Holdfast, folder: Path) -> None:
        self.fleet, self.hf, self.folder = f, hf, folder
        self._numbers = 0

    async def submit(self, pipeline: str, **options: Any) -> Execution:
        self._numbers += 1
        return await self.hf.submit(pipeline, {"number": self._numbers}, **options)

    def lines(self, word: str | None = None) -> list[Line]:
        return [line for line in lines(self.folder) if word in (None, line.word)]

    def let_end(self, number: int) -> None:
        (self.folder / f"may-end-{number}").touch()

    @contextlib.asynccontextmanager
    async def dispatching(self, **options: Any) -> AsyncIterator[Dispatcher]:
        options = {"lease_seconds": LEASE_SECONDS, "poll_seconds": 0.2, "resend": 1.0, **options}
        async with self.hf.dispatching(Broker(self.fleet.broker.url, PREFIX), **options) as dispatcher:
            yield dispatcher

    async def completed(self, *executions: Execution) -> None:
        for execution in executions:
            view = await execution.wait(WITHIN)
            assert view.status is ExecutionStatus.COMPLETED, (view, self.fleet.started[0].told())

    async def leased_until(self, execution: Execution) -> float:
        (job,) = (await execution.status()).jobs
        assert job.lease_until is not None
        return job.lease_until

    async def count(self, execution: Execution, kind: EventType) -> int:
        return sum(event.type is kind for event in await execution.events())


@contextlib.asynccontextmanager
async def a_story(url: str, folder: Path, *, start_broker: bool = True) -> AsyncIterator[Story]:
    with fleet(folder, url, app=APP, start_broker=start_broker) as f:
        async with program(url, folder) as hf:
            yield Story(f, hf, folder)


def test_every_stage_runs_once_in_a_process_of_the_fleet(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with a_story(store_url, tmp_path) as s:
            worker = s.fleet.start_worker()
            async with s.dispatching():
                executions = [await s.submit("chain") for _ in range(20)]
                await s.completed(*executions)
                children = set(worker.children())
                ran = Counter((line.step, line.number) for line in s.lines())
                assert len(ran) == 60 and set(ran.values()) == {1}
                assert {int(line.pid) for line in s.lines()} <= children
                view = await executions[-1].status()
                assert view.result == 22
                (isolated,) = [await s.submit("isolated")]
                await s.completed(isolated)
                assert (await isolated.status()).result not in {*children, worker.pid, os.getpid()}
            assert worker.stop() == 0

    run(main())


def test_the_fleet_works_through_a_server(sqlite_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(sqlite_url, sweep=True) as server, a_story(server.url, tmp_path) as s:
            s.fleet.start_worker()
            async with s.dispatching():
                executions = [await s.submit("chain") for _ in range(5)]
                await s.completed(*executions)
            ran = Counter((line.step, line.number) for line in s.lines())
            assert len(ran) == 15 and set(ran.values()) == {1}

    run(main())


def test_a_message_that_comes_many_times_is_run_once(sqlite_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with a_story(sqlite_url, tmp_path) as s:
            execution = await s.submit("hold")
            engine = await s.hf.own_engine()
            (job,) = (await engine.lease("d", ["hold/hold"], 1, lease_seconds=WITHIN)).jobs
            copies = Broker(s.fleet.broker.url, PREFIX)
            message = Message(LeaseRef(job.queue_id, job.fence), job.lane, 60.0)
            await copies.send([message] * 8)
            worker = s.fleet.start_worker(concurrency=3)
            await eventually(lambda: s.lines("began"), WITHIN)
            await copies.send([message] * 8)
            await eventually(lambda: worker.text().count("is in other hands") == 15, WITHIN)
            s.let_end(1)
            await s.completed(execution)
            await copies.send([message] * 2)
            await eventually(lambda: worker.text().count("is in other hands") == 17, WITHIN)
            await copies.close()
            assert [line.word for line in s.lines()] == ["began", "ended"]
            assert await s.count(execution, EventType.ACTION_STARTED) == 1

    run(main())


def test_a_message_that_is_lost_is_sent_again_and_costs_no_attempt(sqlite_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with a_story(sqlite_url, tmp_path) as s:
            execution = await s.submit("chain")
            async with s.dispatching(resend=0.5):
                await eventually(lambda: s.fleet.broker.waiting("holdfast.bulk") >= 1)
                s.fleet.broker.forget()
                await eventually(lambda: s.fleet.broker.waiting("holdfast.bulk") >= 1)
                s.fleet.broker.kill()
                s.fleet.broker.start()
                s.fleet.start_worker()
                await s.completed(execution)
            assert [line.attempt for line in s.lines()] == ["1", "1", "1"]
            assert not await s.count(execution, EventType.LEASE_LOST)
            assert not await s.count(execution, EventType.LEASE_RELEASED)

    run(main())


def test_a_broker_that_is_away_is_waited_for(sqlite_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with a_story(sqlite_url, tmp_path, start_broker=False) as s:
            execution = await s.submit("chain")
            async with s.dispatching(lease_seconds=SHORT_SECONDS) as dispatcher:
                await eventually(lambda: dispatcher.untaken == 1)
                leased_until = await s.leased_until(execution)

                async def is_extended() -> bool:
                    return await s.leased_until(execution) >= leased_until + SHORT_SECONDS

                await eventually(is_extended)
                s.fleet.broker.start()
                s.fleet.start_worker()
                await s.completed(execution)
            assert [line.attempt for line in s.lines()] == ["1", "1", "1"]

    run(main())


def test_a_process_of_the_fleet_that_is_killed_loses_its_attempt_and_nothing_else(
    store_url: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with a_story(store_url, tmp_path) as s:
            s.fleet.start_worker(**SHORT)
            async with s.dispatching(lease_seconds=SHORT_SECONDS):
                execution = await s.submit("hold")
                (line,) = await eventually(lambda: s.lines("began"), WITHIN)
                os.kill(int(line.pid), signal.SIGKILL)
                await eventually(lambda: len(s.lines("began")) == 2, WITHIN)
                s.let_end(1)
                await s.completed(execution)
            assert [(line.word, line.attempt) for line in s.lines()] == [
                ("began", "1"),
                ("began", "2"),
                ("ended", "2"),
            ]
            assert await s.count(execution, EventType.LEASE_LOST) == 1

    run(main())


def test_manual_work_passes_by_bulk_work_that_waits(sqlite_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with a_story(sqlite_url, tmp_path) as s:
            first = await s.submit("hold")
            s.fleet.start_worker(concurrency=1)
            async with s.dispatching(concurrency=3) as dispatcher:
                await eventually(lambda: s.lines("began"), WITHIN)
                bulk = [await s.submit("chain") for _ in range(6)]
                # The window of bulk work is full, and what is in it cannot begin.
                await eventually(lambda: dispatcher.untaken == 3)
                manual = await s.submit("chain", lane=Lane.MANUAL)
                await eventually(lambda: dispatcher.untaken == 4)
                await eventually(lambda: all(waiting.due_at for waiting in dispatcher._untaken.values()))
                s.let_end(1)
                await s.completed(first, manual, *bulk)
            parsed = [line.number for line in s.lines("ran") if line.step == "parse"]
            # Celery's main process fetches one message ahead, which was of bulk work.
            assert "8" in parsed[:2], s.lines()

    run(main())


def test_a_limit_holds_for_the_whole_fleet(postgres_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with a_story(postgres_url, tmp_path) as s:
            await s.hf.set_limit("door", 2)
            s.fleet.start_worker(concurrency=3)
            s.fleet.start_worker(concurrency=3)
            async with s.dispatching():
                await s.completed(*[await s.submit("door") for _ in range(30)])
            inside, most = 0, 0
            for line in sorted(s.lines(), key=lambda line: float(line.at)):
                inside += 1 if line.word == "began" else -1
                most = max(most, inside)
            assert len(s.lines("began")) == 30 and most <= 2

    run(main())


def test_a_handler_that_overruns_its_timeout_is_told_at_once(sqlite_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with a_story(sqlite_url, tmp_path) as s:
            s.fleet.start_worker(concurrency=1)
            async with s.dispatching():
                execution = await s.submit("overrun")
                view = await execution.wait(WITHIN)
                assert view.status is ExecutionStatus.FAILED
                assert view.error is not None and view.error.error_type == "timeout"
                assert [line.word for line in s.lines()] == ["began"]
                # Its process is busy until the thread has ended; then it goes on.
                other = await s.submit("chain")
                s.let_end(1)
                await s.completed(other)
            assert [line.word for line in s.lines()] == ["began", "ended", "ran", "ran", "ran"]

    run(main())


def test_a_thread_that_never_ends_is_ended_with_its_process(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "TIME_LIMIT_MARGIN_SECONDS", 20.0)

    async def main() -> None:
        async with a_story(sqlite_url, tmp_path) as s:
            worker = s.fleet.start_worker(concurrency=1)
            async with s.dispatching():
                view = await (await s.submit("overrun")).wait(WITHIN)
                assert view.error is not None and view.error.error_type == "timeout"
                await s.completed(await s.submit("chain"))
            assert [line.word for line in s.lines()] == ["began", "ran", "ran", "ran"]
            assert len({line.pid for line in s.lines()}) == 2
            assert "Hard time limit" in worker.text()

    run(main())


def test_what_is_cancelled_is_not_begun_and_what_runs_is_ended(sqlite_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with a_story(sqlite_url, tmp_path) as s:
            worker = s.fleet.start_worker(concurrency=1, **SHORT)
            async with s.dispatching(lease_seconds=SHORT_SECONDS) as dispatcher:
                running = await s.submit("hold")
                await eventually(lambda: s.lines("began") and not dispatcher.untaken, WITHIN)
                waiting = await s.submit("chain")
                await eventually(lambda: dispatcher.untaken == 1)
                await s.hf.cancel(waiting.id)
                await eventually(lambda: dispatcher.untaken == 0)
                await s.hf.cancel(running.id)
                await eventually(lambda: "its attempt is abandoned" in worker.text(), WITHIN)
                await s.completed(after := await s.submit("chain"))
            assert [(line.word, line.step) for line in s.lines()] == [
                ("began", "hold"),
                ("ran", "parse"),
                ("ran", "embed"),
                ("ran", "deliver"),
            ]
            assert (await after.status()).status is ExecutionStatus.COMPLETED

    run(main())


def test_a_step_that_the_fleet_does_not_know_is_given_back(sqlite_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with a_story(sqlite_url, tmp_path) as s:

            @s.hf.step
            async def newer(ctx: Any) -> None: ...

            s.hf.pipeline("newer", [newer])
            worker = s.fleet.start_worker(concurrency=1)
            async with s.dispatching():
                execution = await s.submit("newer")
                await eventually(
                    lambda: "needs newer/newer, which this Celery worker does not have" in worker.text(),
                    WITHIN,
                )
                await s.completed(await s.submit("chain"))
            (job,) = (await execution.status()).jobs
            assert job.attempts <= 1
            assert not await s.count(execution, EventType.LEASE_LOST)

    run(main())


def test_a_dispatcher_that_is_stopped_gives_back_what_nobody_has_taken(
    sqlite_url: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with a_story(sqlite_url, tmp_path) as s:
            executions = [await s.submit("chain") for _ in range(5)]
            dispatcher = s.fleet.start_dispatcher("--app", APP, "--concurrency", "3", "--lease", "60s")
            await eventually(lambda: s.fleet.broker.waiting("holdfast.bulk") == 3, WITHIN)
            assert await asyncio.to_thread(dispatcher.stop) == 0
            assert "Given back: 3 attempts" in dispatcher.text()
            for execution in executions:
                (job,) = (await execution.status()).jobs
                assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)
            # Their messages are still there, and do nothing.
            worker = s.fleet.start_worker()
            await eventually(lambda: worker.text().count("is in other hands") == 3, WITHIN)
            assert not s.lines()
            s.fleet.start_dispatcher("--app", APP, "--queue", "holdfast", "--lease", "5s")
            await s.completed(*executions)
            assert {line.attempt for line in s.lines()} == {"1"}

    run(main())


def test_a_message_of_nobody_is_dropped(sqlite_url: str, tmp_path: Path) -> None:
    strange: list[dict[str, Any]] = [
        {}, {"version": 2}, {"version": 1, "queue_id": "1", "fence": 7},
        {"version": 1, "queue_id": 1, "fence": "1-\0"}, {"version": 1, "queue_id": 1, "fence": "1-\ud800"},
    ]  # fmt: skip

    async def main() -> None:
        async with a_story(sqlite_url, tmp_path) as s:
            worker = s.fleet.start_worker(concurrency=1)
            forged = Broker(s.fleet.broker.url, PREFIX)
            for words in strange:
                await asyncio.to_thread(
                    forged._app.send_task, "holdfast.attempt", args=[1], kwargs=words, queue="holdfast.bulk"
                )
            await forged.send([Message(LeaseRef(1, "1-guessed"), Lane.BULK, 60.0)])
            await eventually(lambda: worker.text().count("A message was dropped.") == len(strange), WITHIN)
            await eventually(lambda: "Job 1 is in other hands" in worker.text(), WITHIN)
            await forged.close()
            async with s.dispatching():
                await s.completed(await s.submit("chain"))

    run(main())


async def completed_attempts(s: Story) -> int:
    """As far as they are counted for those who watch."""
    tallies = await (await s.hf.own_engine()).store.tallies()
    return sum(
        tally.value
        for tally in tallies
        if tally.name == "attempt_seconds_bucket" and '"completed"' in tally.labels
    )


def test_what_the_fleet_does_is_counted_while_it_lives(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with a_story(store_url, tmp_path) as s:
            s.fleet.start_worker()
            async with s.dispatching():
                await s.completed(*[await s.submit("chain") for _ in range(4)])

                async def are_counted() -> bool:
                    return await completed_attempts(s) == 12

                await eventually(are_counted)

    run(main())


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_what_was_counted_and_traced_is_told_at_the_end(sqlite_url: str, tmp_path: Path, pool: str) -> None:
    async def is_told(s: Story) -> bool:
        before, sent = await completed_attempts(s), len(spans_in(collector))
        worker = s.fleet.start_worker(f"--pool={pool}", concurrency=1, **environment)
        async with s.dispatching():
            await s.completed(await s.submit("chain"))
        assert await asyncio.to_thread(worker.stop) == 0
        spans = [span.name for _, span in spans_in(collector)[sent:]]
        are_sent = spans == ["chain/parse", "chain/embed", "chain/deliver"]
        return are_sent and await completed_attempts(s) == before + 3

    async def main() -> None:
        async with a_story(sqlite_url, tmp_path) as s:
            # Nobody waits for it longer than a few seconds, for which a machine may stand still.
            assert await is_told(s) or await is_told(s) or await is_told(s)

    environment = {
        "HOLDFAST_OTEL": "1",
        "OTEL_BSP_SCHEDULE_DELAY": "3600000",  # what is not sent at the end is not sent
        "NO_PROXY": "127.0.0.1",
    }

    with ScriptedServer() as collector:
        collector.answer("/v1/traces", 200)
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        run(main())


def test_a_fleet_that_takes_nothing_is_told_by_the_dispatcher(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with a_story(sqlite_url, tmp_path) as s, s.dispatching(resend=0.05):
            await s.submit("chain")
            await eventually(lambda: "No Celery worker has taken anything yet" in caplog.text)
            assert "holdfast.manual and holdfast.bulk" in caplog.text

    run(main())
