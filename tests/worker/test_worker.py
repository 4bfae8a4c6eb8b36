"""A worker with real handlers, on both stores."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, PermanentError, Retry, TransientError
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import Ack, EventType, ExecutionStatus, JobStatus, LeaseRef, LeaseResult
from holdfast.engine import Engine
from holdfast.worker import loop
from running import eventually, run

ENDS_SOON = 60.0


def types_of(events: list[Any]) -> list[str]:
    return [event.type.value for event in events]


def test_async_and_sync_stages_run_in_order_and_see_earlier_outputs(store_url: str) -> None:
    hf = Holdfast(store_url)

    @hf.step
    async def parse(ctx: Context) -> dict[str, int]:
        return {"pages": ctx.workload["pages"]}

    @hf.step
    def embed(ctx: Context) -> int:
        return int(ctx.outputs["parse"]["pages"]) * 2

    @hf.step
    async def analyze(ctx: Context) -> list[Any]:
        return [ctx.step, ctx.pipeline, ctx.attempt, ctx.round, ctx.lane, dict(ctx.outputs)]

    hf.pipeline("documents", [parse, embed, analyze])

    async def scenario() -> None:
        async with hf, hf.working():
            execution = await hf.submit("documents", {"pages": 3}, lane="manual")
            view = await execution.wait(ENDS_SOON)
        assert view.summary == "Complete"
        earlier = {"parse": {"pages": 3}, "embed": 6}
        assert view.outputs == {
            **earlier,
            "analyze": ["analyze", "documents", 1, 1, "manual", earlier],
        }

    run(scenario())


def test_a_transient_error_heals_and_a_permanent_one_stops_at_once(store_url: str) -> None:
    hf = Holdfast(store_url)
    attempts: list[int] = []

    @hf.step(retry=Retry(delays=[0.01, 0.02]))
    async def flaky(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if not ctx.is_last_attempt:
            raise TransientError("the portal is closed")
        return "healed"

    @hf.step(retry=5)
    def broken(ctx: Context) -> None:
        raise PermanentError("no such page", guidance="Ask for a page that exists.")

    hf.pipeline("heals", [flaky])
    hf.pipeline("stops", [broken])

    async def scenario() -> None:
        async with hf, hf.working():
            healed = await (await hf.submit("heals")).wait(ENDS_SOON)
            stopped = await (await hf.submit("stops")).wait(ENDS_SOON)
        assert attempts == [1, 2, 3]
        assert healed.outputs == {"flaky": "healed"}
        assert healed.execution.error is None
        assert [note.attempt for note in healed.execution.retry_history] == [1, 2]
        assert stopped.jobs[0].dead_reason == "permanent"
        assert stopped.jobs[0].attempts == 1
        assert stopped.execution.error is not None
        assert stopped.execution.error.guidance == "Ask for a page that exists."

    run(scenario())


def test_an_async_handler_that_exceeds_its_timeout_is_cancelled(store_url: str) -> None:
    hf = Holdfast(store_url)
    cancelled = threading.Event()

    @hf.step(timeout=0.05)
    async def endless(ctx: Context) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    hf.pipeline("endless", [endless])

    async def scenario() -> None:
        async with hf, hf.working():
            view = await (await hf.submit("endless")).wait(ENDS_SOON)
        assert view.execution.error is not None
        assert view.execution.error.error_type == "timeout"
        assert "timeout of 0.05 s" in view.execution.error.message
        assert cancelled.is_set()

    run(scenario())


def test_a_thread_that_exceeds_its_timeout_is_told_at_once_and_keeps_its_slot(store_url: str) -> None:
    hf = Holdfast(store_url)
    let_go = threading.Event()
    second_started = threading.Event()

    @hf.step(timeout=0.05)
    def stuck(ctx: Context) -> None:
        let_go.wait(ENDS_SOON)

    @hf.step
    def second(ctx: Context) -> None:
        second_started.set()

    hf.pipeline("stuck", [stuck])
    hf.pipeline("second", [second])

    async def scenario() -> None:
        async with hf, hf.working(concurrency=1):
            view = await (await hf.submit("stuck")).wait(ENDS_SOON)
            assert view.execution.error is not None
            assert view.execution.error.error_type == "timeout"
            waiting = await hf.submit("second")
            await asyncio.sleep(0.2)  # long enough to start, were there a slot
            assert not second_started.is_set()
            let_go.set()
            assert (await waiting.wait(ENDS_SOON)).execution.status is ExecutionStatus.COMPLETED

    run(scenario())


@pytest.mark.parametrize("blocking", [True, False], ids=["blocks the event loop", "waits"])
def test_a_healthy_handler_outlives_its_lease(
    store_url: str, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs for longer than its first lease; from its first heartbeat on nobody finds that to be over."""
    hf = Holdfast(store_url)
    first_until: list[float] = []
    found: list[list[LeaseRef]] = []
    heartbeat = Engine.heartbeat

    async def noted(engine: Engine, leases: Any, **more: Any) -> list[Ack]:
        acks = await heartbeat(engine, leases, **more)
        assert all(ack.accepted for ack in acks)
        found.append(await engine.store.expired(first_until[0], 10))
        return acks

    monkeypatch.setattr(Engine, "heartbeat", noted)

    @hf.step
    async def long(ctx: Context) -> int:
        first_until.append(ctx._job.lease_until)
        deadline = time.monotonic() + ENDS_SOON
        while len(found) < 4 and time.monotonic() < deadline:  # a third of the lease lies before each of them
            if blocking:
                time.sleep(0.01)  # noqa: ASYNC251 - a handler that does so is the point
            else:
                await asyncio.sleep(0.01)
        return ctx.attempt

    hf.pipeline("long", [long])

    async def scenario() -> None:
        async with hf:
            worker = await hf.worker(lease_seconds=0.9)  # without a sweeper: a slow machine loses nothing
            working = asyncio.create_task(worker.run())
            execution = await hf.submit("long")
            view = await execution.wait(ENDS_SOON)
            assert view.outputs == {"long": 1}
            assert len(found) >= 4 and not any(found)
            worker.stop()
            await working

    run(scenario(), 120)


@pytest.mark.usefixtures("quick_heartbeats")
def test_a_cancelled_execution_stops_its_handler(store_url: str) -> None:
    hf = Holdfast(store_url)
    started, stopped = threading.Event(), threading.Event()

    @hf.step
    async def endless(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    @hf.step
    def thread(ctx: Context) -> None:
        started.set()
        deadline = time.monotonic() + ENDS_SOON
        while not ctx.lease_lost and time.monotonic() < deadline:
            time.sleep(0.01)
        stopped.set()

    hf.pipeline("task", [endless])
    hf.pipeline("thread", [thread])

    async def scenario() -> None:
        async with hf, hf.working():
            for name in ("task", "thread"):
                started.clear()
                stopped.clear()
                execution = await hf.submit(name)
                await eventually(started.is_set, ENDS_SOON)
                assert await hf.cancel(execution.id, by="ann")
                await eventually(stopped.is_set, ENDS_SOON)
                view = await execution.status()
                assert view.summary == "Cancelled"
                assert view.jobs[0].status is JobStatus.CANCELLED

    run(scenario())


def test_a_worker_that_stops_finishes_what_runs_and_gives_back_what_was_not_begun(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the short jobs took here, others are leased ahead; only the stop gives them back.
    for seconds in ("PREFETCH_SECONDS", "LIMITED_ASKED_SECONDS", "PREFETCH_WAIT_SECONDS_MAX"):
        monkeypatch.setattr(loop, seconds, 1e6)
    hf = Holdfast(store_url)
    started, let_go = threading.Event(), threading.Event()

    @hf.step
    async def quick(ctx: Context) -> None:
        pass

    @hf.step
    async def slow(ctx: Context) -> str:
        started.set()
        await eventually(let_go.is_set, ENDS_SOON)
        return "finished"

    hf.pipeline("quick", [quick])
    hf.pipeline("slow", [slow])

    async def scenario() -> None:
        async with hf:
            async with hf.working(concurrency=1) as worker:
                # Short jobs teach the worker to lease ahead.
                for execution in await hf.submit_many("quick", range(20)):
                    await execution.wait(ENDS_SOON)
                executions = await hf.submit_many("slow", range(5))
                await eventually(started.is_set, ENDS_SOON)

                async def leased() -> int:
                    return len((await hf.queue(status=JobStatus.LEASED)).items)

                async def leased_ahead() -> bool:
                    return await leased() > 1

                async def gave_back() -> bool:
                    return await leased() == 1

                await eventually(leased_ahead, ENDS_SOON)
                worker.stop()
                await eventually(gave_back, ENDS_SOON)
                let_go.set()
            jobs = [(await execution.status()).jobs[0] for execution in executions]
            assert [job.status for job in jobs] == [JobStatus.DONE] + [JobStatus.QUEUED] * 4
            assert [job.attempts for job in jobs] == [1, 0, 0, 0, 0]
            assert "lease_released" in types_of(await executions[1].events())

    run(scenario())


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda: object(), "cannot be written as JSON"),
        (lambda: "x" * 2_000_000, "the limit is 1,048,576 bytes"),
        (lambda: {"name": "a\0b"}, "NUL character at $.name"),
        (lambda: [float("nan")], "nan at $[0]"),
    ],
    ids=["no JSON", "too large", "NUL", "NaN"],
)
def test_a_result_that_cannot_be_stored_is_a_clear_permanent_error(
    sqlite_url: str, result: Callable[[], Any], words: str
) -> None:
    hf = Holdfast(sqlite_url)

    @hf.step(retry=3)
    async def produce(ctx: Context) -> Any:
        return result()

    hf.pipeline("produce", [produce])

    async def scenario() -> None:
        async with hf, hf.working():
            view = await (await hf.submit("produce")).wait(ENDS_SOON)
        assert view.execution.error is not None
        assert words in view.execution.error.message
        assert view.execution.error.category == "permanent"
        assert view.jobs[0].attempts == 1

    run(scenario())


class Panic(BaseException):
    """What native code raises when it gives up."""


@pytest.mark.parametrize(
    "kind",
    [SystemExit, asyncio.CancelledError, ExceptionGroup, GeneratorExit, StopIteration, Panic],
    ids=lambda k: k.__name__,
)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_whatever_a_handler_raises_costs_an_attempt_and_not_the_worker(
    sqlite_url: str, kind: type[BaseException], is_async: bool
) -> None:
    hf = Holdfast(sqlite_url)

    def misbehave() -> None:
        raise kind("oops", [ValueError("inner")]) if kind is ExceptionGroup else kind("oops")

    async def misbehave_async(ctx: Context) -> None:
        misbehave()

    def misbehave_sync(ctx: Context) -> None:
        misbehave()

    @hf.step
    async def behave(ctx: Context) -> str:
        return "fine"

    hf.pipeline("bad", [hf.step(name="bad")(misbehave_async if is_async else misbehave_sync)])
    hf.pipeline("good", [behave])

    async def scenario() -> None:
        async with hf, hf.working(concurrency=1):
            bad = await (await hf.submit("bad")).wait(ENDS_SOON)
            good = await (await hf.submit("good")).wait(ENDS_SOON)
        assert bad.execution.status is ExecutionStatus.FAILED
        assert good.outputs == {"behave": "fine"}

    run(scenario())


def test_progress_is_shown_with_the_job(store_url: str) -> None:
    hf = Holdfast(store_url)
    let_go = threading.Event()

    @hf.step
    def long(ctx: Context) -> None:
        with pytest.raises(ValueError, match="from 0 to 1"):
            ctx.progress(40)
        ctx.progress(0.4)
        let_go.wait(ENDS_SOON)

    hf.pipeline("long", [long])

    async def scenario() -> None:
        async with hf, hf.working():
            execution = await hf.submit("long")

            async def told() -> bool:
                return (await execution.status()).jobs[0].progress == 0.4

            await eventually(told, ENDS_SOON)
            let_go.set()
            await execution.wait(ENDS_SOON)

    run(scenario())


def test_the_clear_hooks_run_once_before_a_stage_is_run_again_by_hand(store_url: str) -> None:
    hf = Holdfast(store_url)
    happened: list[str] = []
    failing = [True]

    async def drop_chunks(ctx: Context) -> None:
        happened.append("clear parse")

    def drop_vectors(ctx: Context) -> None:
        happened.append("clear embed")

    @hf.step(clear=drop_chunks)
    async def parse(ctx: Context) -> None:
        happened.append("parse")

    @hf.step(clear=drop_vectors, retry=Retry(delays=[0.01]))
    async def embed(ctx: Context) -> None:
        happened.append("embed")
        if failing[0] or (ctx.round == 2 and ctx.attempt == 1):
            raise TransientError("no vectors")

    hf.pipeline("documents", [parse, embed])

    async def scenario() -> None:
        async with hf, hf.working():
            execution = await hf.submit("documents")
            assert (await execution.wait(ENDS_SOON)).execution.status is ExecutionStatus.FAILED
            assert happened == ["parse", "embed", "embed"]
            happened.clear()
            failing[0] = False
            await hf.retry(execution.id, from_stage="parse", by="ann")
            view = await execution.wait(ENDS_SOON)
            assert view.execution.status is ExecutionStatus.COMPLETED
            # The later stage is cleared first; the automatic retry of embed clears nothing.
            assert happened == ["clear embed", "clear parse", "parse", "embed", "embed"]

    run(scenario())


def test_a_clear_hook_that_fails_is_the_attempts_error_and_is_run_again(store_url: str) -> None:
    hf = Holdfast(store_url)
    clears: list[int] = []
    failing = [True]

    def clear(ctx: Context) -> None:
        clears.append(ctx.attempt)
        if len(clears) == 1:
            raise TransientError("cannot clear yet")

    @hf.step(clear=clear, retry=Retry(delays=[0.01]))
    async def embed(ctx: Context) -> None:
        if failing[0]:
            raise TransientError("no vectors")

    hf.pipeline("documents", [embed])

    async def scenario() -> None:
        async with hf, hf.working():
            execution = await hf.submit("documents")
            await execution.wait(ENDS_SOON)
            failing[0] = False
            await hf.retry(execution.id)
            view = await execution.wait(ENDS_SOON)
            assert view.execution.status is ExecutionStatus.COMPLETED
            assert clears == [1, 2]

    run(scenario())


def test_outcomes_are_kept_while_the_store_is_away_and_delivered_afterwards(store_url: str) -> None:
    hf = Holdfast(store_url)
    ran: list[int] = []

    @hf.step
    async def once(ctx: Context) -> None:
        ran.append(ctx.attempt)

    hf.pipeline("once", [once])

    async def scenario() -> None:
        async with hf:
            engine = await hf.engine()
            amend, claim, failures = engine.store.amend_jobs, engine.store.claim, [3, 3]

            async def amend_after_outage(*args: Any, **options: Any) -> None:
                if failures[0]:
                    failures[0] -= 1
                    raise StoreUnavailable("away", guidance="It will be back.")
                await amend(*args, **options)

            async def claim_after_outage(*args: Any) -> Any:
                if failures[1]:
                    failures[1] -= 1
                    raise StoreUnavailable("away", guidance="It will be back.")
                return await claim(*args)

            engine.store.amend_jobs = amend_after_outage  # type: ignore[method-assign]
            engine.store.claim = claim_after_outage  # type: ignore[method-assign]
            async with hf.working():
                view = await (await hf.submit("once")).wait(ENDS_SOON)
            assert view.execution.status is ExecutionStatus.COMPLETED
            assert ran == [1]

    run(scenario())


def test_a_job_whose_worker_was_lost_runs_alone(store_url: str) -> None:
    hf = Holdfast(store_url)
    running: set[str] = set()
    beside: dict[str, set[str]] = {}

    async def note(name: str) -> None:
        running.add(name)
        await asyncio.sleep(0.02)
        beside.setdefault(name, set()).update(running - {name})
        running.discard(name)

    @hf.step(retry=Retry(delays=[0, 0]))
    async def suspect(ctx: Context) -> None:
        await note("suspect")

    @hf.step
    async def innocent(ctx: Context) -> None:
        await note(f"innocent {ctx.workload}")

    hf.pipeline("suspect", [suspect])
    hf.pipeline("innocent", [innocent])

    async def scenario() -> None:
        async with hf:
            execution = await hf.submit("suspect")
            engine = await hf.engine()
            lost = await engine.lease("dies", ["suspect/suspect"], 1, lease_seconds=0.001)
            assert len(lost.jobs) == 1
            assert await eventually(engine.sweep, ENDS_SOON) == 1
            others = await hf.submit_many("innocent", range(40))
            async with hf.working(concurrency=4):
                view = await execution.wait(ENDS_SOON)
                for other in others:
                    await other.wait(ENDS_SOON)
            assert view.execution.status is ExecutionStatus.COMPLETED
            assert view.jobs[0].attempts == 2
            assert beside["suspect"] == set()

    run(scenario())


def test_work_submitted_elsewhere_is_picked_up_without_waiting_for_the_poll(store_url: str) -> None:
    """The worker polls once a minute here: only a wake-up can start the job in time."""
    worker_app, submitter = Holdfast(store_url), Holdfast(store_url)

    async def handle(ctx: Context) -> str:
        return "done"

    for hf in (worker_app, submitter):
        hf.pipeline("job", [handle])

    async def scenario() -> None:
        async with worker_app, submitter, worker_app.working(poll_seconds=60):
            first = await worker_app.submit("job")
            await first.wait(ENDS_SOON)
            second = await submitter.submit("job")
            view = await second.wait(ENDS_SOON)
            assert view.outputs == {"handle": "done"}

    run(scenario())


def test_the_only_job_there_is_begins_before_the_worker_asks_for_another(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    lease = Engine.lease

    async def leasing(engine: Engine, *asked: Any, **more: Any) -> LeaseResult:
        told.append("asks")
        result = await lease(engine, *asked, **more)
        if result.jobs:
            told.append("has")
        return result

    monkeypatch.setattr(Engine, "lease", leasing)
    hf = Holdfast(store_url)

    async def handle(ctx: Context) -> None:
        told.append("begins")

    hf.pipeline("job", [handle])

    async def scenario() -> None:
        async with hf, hf.working():
            for _ in range(3):
                await (await hf.submit("job")).wait(ENDS_SOON)

    run(scenario())
    assert [told[place + 1] for place, what in enumerate(told) if what == "has"] == ["begins"] * 3


def test_events_name_the_worker_that_ran_the_attempt(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)

    async def handle(ctx: Context) -> None: ...

    hf.pipeline("job", [handle])

    async def scenario() -> None:
        async with hf, hf.working(worker_id='machine "7"'):
            execution = await hf.submit("job")
            await execution.wait(ENDS_SOON)
            [started] = [e for e in await execution.events() if e.type is EventType.ACTION_STARTED]
            assert started.data == {"attempt": 1, "is_retry": False, "worker": 'machine "7"'}

    run(scenario())


def test_a_trace_begins_at_the_handler_and_not_in_the_engine(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)

    @hf.step
    async def breaks(ctx: Context) -> None:
        raise RuntimeError("oops")

    hf.pipeline("breaks", [breaks])

    async def scenario() -> None:
        async with hf, hf.working():
            execution = await hf.submit("breaks")
            await execution.wait(ENDS_SOON)
            [error] = [e for e in await execution.events() if e.type is EventType.ACTION_ERROR]
        trace = error.data["stack_trace"]
        assert "attempt.py" not in trace
        assert "in breaks" in trace and 'raise RuntimeError("oops")' in trace

    run(scenario())
