"""A worker that is asked to stop: nothing is lost, nothing is doubled, and it ends in time."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry, tasks
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import EventType, JobStatus, LeaseResult
from holdfast.engine import Engine
from holdfast.engine.sweeper import Sweeper
from holdfast.worker import loop
from holdfast.worker.loop import Worker
from running import eventually, run

ENDS_SOON = 30.0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without any grace a store that is slow for a moment gets the last words of a worker."""
    monkeypatch.setattr(loop, "LAST_WORDS_SECONDS", ENDS_SOON)


async def stopped(worker: Worker, running: asyncio.Task[None]) -> None:
    worker.stop()
    await asyncio.wait([running], timeout=ENDS_SOON)
    assert running.done(), "the worker did not end"
    running.result()


async def types_of(hf: Holdfast, execution_id: int) -> list[EventType]:
    return [event.type for event in await hf.events(execution_id)]


def test_what_finishes_within_the_grace_period_is_reported(store_url: str) -> None:
    hf = Holdfast(store_url)
    started, let_go = threading.Event(), threading.Event()

    def slow(ctx: Context) -> bool:
        started.set()
        let_go.wait(ENDS_SOON)
        return ctx.stopping

    hf.pipeline("p", [slow])

    async def scenario() -> None:
        async with hf:
            worker = await hf.worker(grace_seconds=ENDS_SOON)
            running = asyncio.create_task(worker.run())
            execution = await hf.submit("p")
            await eventually(started.is_set, ENDS_SOON)
            worker.stop()
            later = await hf.submit("p")
            let_go.set()
            await stopped(worker, running)
            assert (await execution.status()).outputs == {"slow": True}  # it was told that the worker stops
            assert (await later.status()).jobs[0].status is JobStatus.QUEUED
            assert not worker.leaves_threads

    run(scenario())


def test_what_does_not_finish_is_cut_off_and_given_back_with_its_attempt(store_url: str) -> None:
    hf = Holdfast(store_url)
    started = threading.Semaphore(0)
    let_go = threading.Event()
    ends: list[str] = []

    @hf.step(retry=Retry(max_attempts=2))
    async def patient(ctx: Context) -> None:
        started.release()
        try:
            await asyncio.sleep(3600)
        finally:
            ends.append(f"lease_lost {ctx.lease_lost}")

    @hf.step(retry=Retry(max_attempts=2))
    def stubborn(ctx: Context) -> None:
        started.release()
        let_go.wait(ENDS_SOON)

    hf.pipeline("patient", [patient])
    hf.pipeline("stubborn", [stubborn])

    async def scenario() -> None:
        async with hf:
            worker = await hf.worker(grace_seconds=0)
            running = asyncio.create_task(worker.run())
            executions = [await hf.submit("patient"), await hf.submit("stubborn")]
            for _ in executions:
                await eventually(lambda: started.acquire(blocking=False), ENDS_SOON)
            await stopped(worker, running)
            let_go.set()
            assert ends == ["lease_lost True"]
            assert worker.leaves_threads  # the one that nobody can end
            for execution in executions:
                job = (await execution.status()).jobs[0]
                assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)
                assert (await types_of(hf, execution.id))[-1] is EventType.LEASE_RELEASED

    run(scenario())


def test_what_was_leased_ahead_and_not_begun_is_given_back(store_url: str) -> None:
    hf = Holdfast(store_url)
    started, let_go = threading.Event(), threading.Event()

    @hf.step(retry=2)
    async def short(ctx: Context) -> None: ...

    @hf.step(retry=2)
    async def blocks(ctx: Context) -> None:
        started.set()
        await eventually(let_go.is_set, ENDS_SOON)

    hf.pipeline("short", [short])
    hf.pipeline("blocks", [blocks])

    async def scenario() -> None:
        async with hf:
            for execution in await hf.submit_many("short", range(20)):
                del execution
            worker = await hf.worker(concurrency=1, grace_seconds=ENDS_SOON)
            running = asyncio.create_task(worker.run())
            await eventually(lambda: _all_done(hf), ENDS_SOON)  # the worker has learned that jobs are short
            waiting = await hf.submit_many("blocks", range(5))
            await eventually(started.is_set, ENDS_SOON)
            worker.stop()
            await eventually(lambda: _count(hf, JobStatus.QUEUED, 4), ENDS_SOON)
            let_go.set()
            await stopped(worker, running)
            jobs = [(await execution.status()).jobs[0] for execution in waiting]
            assert sorted((job.status.value, job.attempts) for job in jobs) == [
                ("done", 1),
                *[("queued", 0)] * 4,
            ]

    run(scenario())


def test_what_a_lease_brings_after_the_stop_is_not_begun(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = Holdfast(store_url)
    begun: list[int] = []

    @hf.step(retry=2)
    async def step(ctx: Context) -> None:
        begun.append(ctx.execution_id)

    hf.pipeline("p", [step])
    asked, let_go = asyncio.Event(), asyncio.Event()
    lease = Engine.lease

    async def held_up(self: Engine, *args: Any, **options: Any) -> LeaseResult:
        asked.set()
        await let_go.wait()
        return await lease(self, *args, **options)

    monkeypatch.setattr(Engine, "lease", held_up)

    async def scenario() -> None:
        async with hf:
            worker = await hf.worker(grace_seconds=ENDS_SOON)
            running = asyncio.create_task(worker.run())
            await eventually(asked.is_set, ENDS_SOON)
            worker.stop()
            later = await hf.submit("p")
            let_go.set()
            await stopped(worker, running)
            job = (await later.status()).jobs[0]
            assert (begun, job.status, job.attempts) == ([], JobStatus.QUEUED, 0)
            assert EventType.LEASE_RELEASED in await types_of(hf, later.id)

    run(scenario())


async def _all_done(hf: Holdfast) -> bool:
    page = await hf.queue(limit=1000)
    return all(job.status is JobStatus.DONE for job in page.items)


async def _count(hf: Holdfast, status: JobStatus, wanted: int) -> bool:
    return len((await hf.queue(status=status, limit=1000)).items) == wanted


def test_a_handler_that_ignores_its_end_does_not_keep_the_worker(store_url: str) -> None:
    hf = Holdfast(store_url)
    started, let_go = threading.Event(), threading.Event()

    @hf.step(retry=2)
    async def ignores(ctx: Context) -> None:
        started.set()
        deadline = time.monotonic() + 2 * ENDS_SOON
        while not let_go.is_set() and time.monotonic() < deadline:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    hf.pipeline("p", [ignores])

    async def scenario() -> None:
        async with hf:
            worker = await hf.worker(grace_seconds=0)
            running = asyncio.create_task(worker.run())
            execution = await hf.submit("p")
            await eventually(started.is_set, ENDS_SOON)
            try:
                await stopped(worker, running)
            finally:
                let_go.set()
            job = (await execution.status()).jobs[0]
            assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)
            assert worker.leaves_threads

    run(scenario())


def test_with_the_store_away_a_stop_ends_all_the_same(store_url: str, monkeypatch: Any) -> None:
    hf = Holdfast(store_url)
    started, let_go = threading.Event(), threading.Event()

    @hf.step(retry=2)
    async def unlucky(ctx: Context) -> None:
        started.set()
        await eventually(let_go.is_set, ENDS_SOON)

    hf.pipeline("p", [unlucky])

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("The store is away.")

    async def scenario() -> None:
        async with hf:
            monkeypatch.setattr("holdfast.worker.loop.LAST_WORDS_SECONDS", 0.5)
            worker = await hf.worker(grace_seconds=0.5)
            running = asyncio.create_task(worker.run())
            execution = await hf.submit("p")
            await eventually(started.is_set, ENDS_SOON)
            for verb in ("report", "release", "lease"):
                monkeypatch.setattr(worker.connection, verb, away)
            let_go.set()
            await stopped(worker, running)
            assert (await execution.status()).jobs[0].status is JobStatus.LEASED  # runs out, then runs again

    run(scenario())


def test_a_stop_without_grace_waits_for_a_lease_that_is_under_way(store_url: str) -> None:
    hf = Holdfast(store_url)
    asked, answered = asyncio.Event(), asyncio.Event()

    @hf.step(retry=2)
    async def job(ctx: Context) -> None: ...

    hf.pipeline("p", [job])

    async def scenario() -> None:
        async with hf:
            worker = await hf.worker(grace_seconds=0)
            lease = worker.connection.lease

            async def slow(*arguments: Any, **options: Any) -> Any:
                result = await lease(*arguments, **options)
                if result.jobs:
                    asked.set()
                    await answered.wait()
                return result

            worker.connection.lease = slow  # type: ignore[method-assign]
            execution = await hf.submit("p")
            running = asyncio.create_task(worker.run())
            await asked.wait()  # leased in the store, and the worker does not know it yet
            worker.stop()
            await asyncio.sleep(0.1)
            answered.set()
            await stopped(worker, running)
            job = (await execution.status()).jobs[0]
            assert (job.status, job.attempts) in [(JobStatus.QUEUED, 0), (JobStatus.DONE, 1)]

    run(scenario())


def test_a_cancellation_that_is_lost_on_its_way_keeps_nobody_from_ending(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that is cut off may tell of a broken connection instead."""
    monkeypatch.setattr(tasks, "CANCEL_AGAIN_SECONDS", 0.1)
    hf = Holdfast(sqlite_url)
    waiting: set[str] = set()

    async def job(ctx: Context) -> None: ...

    hf.pipeline("p", [job])

    async def broken(who: str) -> Any:
        waiting.add(who)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("the connection is broken") from None

    monkeypatch.setattr(Sweeper, "sweep", lambda _: broken("sweeper"))

    async def scenario() -> None:
        async with hf, hf.working() as worker:
            worker.connection.wait_for_work = lambda *_: broken("leaser")  # type: ignore[method-assign]
            await eventually(lambda: waiting == {"sweeper", "leaser"}, ENDS_SOON)

    run(scenario(), ENDS_SOON)
