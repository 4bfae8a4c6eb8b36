"""What could make a worker stop working, or keep work from others: each ends well."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import time
from typing import Any

import pytest

from holdfast import Context, ExecutionStatus, Holdfast, JobStatus, Retry
from holdfast.worker import loop
from running import eventually, run

ENDS_SOON = 60.0


def test_an_unexpected_error_of_the_store_is_told_and_work_goes_on(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    hf = Holdfast(store_url)

    async def handle(ctx: Context) -> str:
        return "done"

    hf.pipeline("job", [handle])

    async def scenario() -> None:
        async with hf:
            engine = await hf.engine()
            claim, report, broken = engine.store.claim, engine.report, [2, 2]

            async def claim_later(*args: Any) -> Any:
                if broken[0]:
                    broken[0] -= 1
                    raise RuntimeError("a bug in the claim")
                return await claim(*args)

            async def report_later(reports: Any) -> Any:
                if broken[1]:
                    broken[1] -= 1
                    raise RuntimeError("a bug in the report")
                return await report(reports)

            engine.store.claim = claim_later  # type: ignore[method-assign]
            engine.report = report_later  # type: ignore[method-assign]
            async with hf.working():
                view = await (await hf.submit("job")).wait(ENDS_SOON)
            assert view.outputs == {"handle": "done"}

    run(scenario())
    assert "a bug in the claim" in caplog.text and "a bug in the report" in caplog.text


def test_a_worker_that_fails_says_so_at_once_and_raises_at_the_end(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    hf = Holdfast(sqlite_url)

    async def handle(ctx: Context) -> None: ...

    hf.pipeline("job", [handle])

    async def scenario() -> None:
        async with hf:
            with pytest.raises(RuntimeError, match="a bug in the slot"):
                async with hf.working() as worker:

                    def broken() -> None:
                        raise RuntimeError("a bug in the slot")

                    worker._next_job = broken  # type: ignore[method-assign, assignment]
                    await hf.submit("job")
                    await asyncio.wait_for(worker.ended.wait(), ENDS_SOON)
                    await eventually(lambda: "works no more" in caplog.text, ENDS_SOON)
        assert not [task for task in asyncio.all_tasks() if "Sweeper" in repr(task)]

    run(scenario())


def test_a_worker_whose_heartbeats_cannot_begin_says_so_and_ends(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = Holdfast(sqlite_url)
    new_event_loop = asyncio.new_event_loop

    def none_for_heartbeats() -> asyncio.AbstractEventLoop:
        if threading.current_thread().name == "holdfast-heartbeats":
            raise OSError(errno.EMFILE, "Too many open files")
        return new_event_loop()

    async def handle(ctx: Context) -> None: ...

    hf.pipeline("job", [handle])
    monkeypatch.setattr(asyncio.events, "new_event_loop", none_for_heartbeats)

    async def scenario() -> None:
        async with hf:
            with pytest.raises(OSError, match="Too many open files"):
                async with hf.working() as worker:
                    await asyncio.wait_for(worker.ended.wait(), ENDS_SOON)

    run(scenario())


def test_long_jobs_leased_ahead_after_short_ones_are_given_back_to_free_workers(store_url: str) -> None:
    hf = Holdfast(store_url)
    let_go = threading.Event()
    ran_by: set[str] = set()

    async def quick(ctx: Context) -> None: ...

    async def slow(ctx: Context) -> None:
        await eventually(let_go.is_set, ENDS_SOON)

    hf.pipeline("quick", [quick])
    hf.pipeline("slow", [slow])

    async def scenario() -> None:
        async with hf, hf.working(worker_id="first", concurrency=1):
            for execution in await hf.submit_many("quick", range(30)):
                await execution.wait(ENDS_SOON)
            executions = await hf.submit_many("slow", range(6))
            async with hf.working(worker_id="second", concurrency=1):

                async def both_work() -> bool:
                    for execution in executions:
                        started = [e for e in await execution.events() if e.type == "action_started"]
                        given_back = [e for e in await execution.events() if e.type == "lease_released"]
                        if len(started) > len(given_back):
                            ran_by.add(started[-1].data["worker"])
                    return ran_by == {"first", "second"}

                await eventually(both_work, ENDS_SOON, every=0.1)
                let_go.set()
                for execution in executions:
                    view = await execution.wait(ENDS_SOON)
                    assert view.jobs[0].attempts == 1

    run(scenario(), 90)


def test_a_slot_held_by_a_timed_out_thread_takes_no_job_from_others(store_url: str) -> None:
    hf, other = Holdfast(store_url), Holdfast(store_url)
    let_go = threading.Event()

    @hf.step(timeout=0.05)
    def stuck(ctx: Context) -> None:
        let_go.wait(ENDS_SOON)

    async def second(ctx: Context) -> str:
        return "done"

    hf.pipeline("stuck", [stuck])
    hf.pipeline("second", [second])
    other.pipeline("second", [second])

    async def scenario() -> None:
        async with hf, other, hf.working(concurrency=1):
            await (await hf.submit("stuck")).wait(ENDS_SOON)
            execution = await hf.submit("second")
            async with other.working(concurrency=1):
                assert (await execution.wait(ENDS_SOON)).outputs == {"second": "done"}
            let_go.set()

    run(scenario())


def test_a_job_that_must_run_alone_does_not_stop_a_busy_worker(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "ALONE_WAIT_SECONDS_MIN", 0.3)
    hf = Holdfast(store_url)
    started, let_go = threading.Event(), threading.Event()

    async def busy(ctx: Context) -> None:
        started.set()
        await eventually(let_go.is_set, ENDS_SOON)

    @hf.step(retry=Retry(delays=[0]))
    async def suspect(ctx: Context) -> str:
        return "innocent"

    async def urgent(ctx: Context) -> None: ...

    for name, step in (("busy", busy), ("suspect", suspect), ("urgent", urgent)):
        hf.pipeline(name, [step])

    async def scenario() -> None:
        async with hf:
            alone = await hf.submit("suspect")
            engine = await hf.engine()
            await engine.lease("dies", ["suspect/suspect"], 1, lease_seconds=0.001)
            assert await eventually(engine.sweep, ENDS_SOON) == 1
            long = await hf.submit("busy")
            async with hf.working(concurrency=4):
                await eventually(started.is_set, ENDS_SOON)
                await (await hf.submit("urgent", lane="manual")).wait(ENDS_SOON)
                assert (await long.status()).jobs[0].status is JobStatus.LEASED
                let_go.set()
                view = await alone.wait(ENDS_SOON)
            assert view.outputs == {"suspect": "innocent"}
            assert view.jobs[0].attempts == 2

    run(scenario())


@pytest.mark.usefixtures("quick_heartbeats")
def test_an_abandoned_handler_that_swallows_its_cancellation_does_not_harm_the_next(store_url: str) -> None:
    hf = Holdfast(store_url)
    started = threading.Event()

    async def stubborn(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise RuntimeError("I will not be cancelled") from None

    async def cancelled_inside(ctx: Context) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    hf.pipeline("stubborn", [stubborn])
    hf.pipeline("inside", [cancelled_inside])

    async def scenario() -> None:
        async with hf, hf.working(concurrency=1):
            execution = await hf.submit("stubborn")
            await eventually(started.is_set, ENDS_SOON)
            await hf.cancel(execution.id)
            view = await (await hf.submit("inside")).wait(ENDS_SOON)
            assert view.status is ExecutionStatus.FAILED

    run(scenario())


def test_handlers_that_block_the_loop_let_reports_through_between_them(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.Worker, "_jobs_ahead", lambda self, slots: 20)
    hf = Holdfast(sqlite_url)
    seen: list[int] = []

    async def blocks(ctx: Context) -> None:
        time.sleep(0.02)  # noqa: ASYNC251 - a handler that does so is the point
        seen.append(ctx.workload)

    hf.pipeline("blocks", [blocks])

    async def scenario() -> None:
        async with hf:
            executions = await hf.submit_many("blocks", range(20))
            reported_after: list[int] = []
            engine = await hf.engine()
            report = engine.report

            async def counted(reports: Any) -> Any:
                reported_after.append(len(seen))
                return await report(reports)

            engine.report = counted  # type: ignore[method-assign]
            async with hf.working(concurrency=1):
                for execution in executions:
                    await execution.wait(ENDS_SOON)
            assert reported_after[0] < 20

    run(scenario())


def test_a_handler_that_cancels_its_own_task_fails_and_the_worker_goes_on(store_url: str) -> None:
    hf = Holdfast(store_url)

    async def cancels_itself(ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def swallows_its_own(ctx: Context) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await cancels_itself(ctx)
        return "swallowed"

    async def awaits_what_is_cancelled(ctx: Context) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    for step in (cancels_itself, swallows_its_own, awaits_what_is_cancelled):
        hf.pipeline(step.__name__, [step])

    async def scenario() -> None:
        async with hf, hf.working(concurrency=1):
            ends = []
            for step in (cancels_itself, swallows_its_own, awaits_what_is_cancelled, swallows_its_own):
                ends.append((await (await hf.submit(step.__name__)).wait(ENDS_SOON)).execution.status.value)
            assert ends == ["failed", "completed", "failed", "completed"]

    run(scenario())
