"""A worker between two lanes and under limits, on both stores: who gets a slot, and what is leased for it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from holdfast import Context, Holdfast, JobStatus, Retry
from holdfast.core.model import Lane
from holdfast.worker import loop
from running import eventually, run

ENDS_SOON = 60.0
SHORT_SECONDS = 0.0002


class Held:
    """Handlers that run until they are let go, and count themselves."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()

    def _count(self, by: int) -> None:
        with self._lock:
            self.running += by
            self.most = max(self.most, self.running)

    async def task(self, ctx: Context) -> None:
        self._count(1)
        await eventually(self.let_go.is_set, ENDS_SOON)
        self._count(-1)

    def thread(self, ctx: Context) -> None:
        self._count(1)
        self.let_go.wait(ENDS_SOON)
        self._count(-1)

    async def are_running(self, count: int) -> None:
        await eventually(lambda: self.running == count, ENDS_SOON)


async def urgent(ctx: Context) -> str:
    return "done"


async def leased(hf: Holdfast) -> int:
    return len((await hf.queue(status=JobStatus.LEASED)).items)


async def requests_of(hf: Holdfast) -> list[Any]:
    """The claims that are made from now on."""
    engine = await hf.engine()
    claim, requests = engine.store.claim, []

    async def noted(request: Any, now: float) -> Any:
        requests.append(request)
        return await claim(request, now)

    engine.store.claim = noted  # type: ignore[method-assign]
    return requests


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_a_manual_job_never_waits_for_long_bulk_jobs(store_url: str, kind: str) -> None:
    """Nothing but the announcement can start it in time: the worker polls once a minute."""
    hf, held = Holdfast(store_url), Held()
    hf.pipeline("long", [getattr(held, kind)])
    hf.pipeline("urgent", [urgent])

    async def scenario() -> None:
        async with hf, hf.working(concurrency=3, poll_seconds=60):
            long = await hf.submit_many("long", range(6))
            await held.are_running(2)
            for _ in range(3):
                view = await (await hf.submit("urgent", lane="manual")).wait(ENDS_SOON)
                assert view.outputs == {"urgent": "done"}
            assert held.running == 2
            held.let_go.set()
            for execution in long:
                await execution.wait(ENDS_SOON)
            assert held.most == 2

    run(scenario(), 120)


def test_manual_jobs_may_use_all_slots_and_bulk_ones_of_a_worker_of_that_lane_too(store_url: str) -> None:
    hf = Holdfast(store_url)
    manual, bulk = Held(), Held()
    hf.pipeline("manual", [manual.task])
    hf.pipeline("bulk", [bulk.task])

    async def scenario() -> None:
        async with hf:
            await hf.submit_many("bulk", range(3))
            async with hf.working(concurrency=2, lanes=["bulk"], grace_seconds=0):
                await bulk.are_running(2)
            await hf.submit_many("manual", range(3), lane="manual")
            async with hf.working(concurrency=2, grace_seconds=0):
                await manual.are_running(2)

    run(scenario(), 120)


def test_one_slot_serves_both_lanes_and_manual_work_comes_first(store_url: str) -> None:
    hf, held = Holdfast(store_url), Held()
    order: list[str] = []

    async def note(ctx: Context) -> None:
        order.append(ctx.lane)

    hf.pipeline("first", [held.task])
    hf.pipeline("note", [note])

    async def scenario() -> None:
        async with hf, hf.working(concurrency=1):
            first = await hf.submit("first")
            await held.are_running(1)
            bulk = await hf.submit_many("note", range(5))
            manual = await hf.submit_many("note", range(5), lane="manual")
            held.let_go.set()
            for execution in [first, *bulk, *manual]:
                await execution.wait(ENDS_SOON)
            assert order == ["manual"] * 5 + ["bulk"] * 5

    run(scenario(), 120)


def test_bulk_work_goes_on_as_soon_as_a_slot_is_free_and_is_not_asked_for_before(store_url: str) -> None:
    hf, held = Holdfast(store_url), Held()
    hf.pipeline("long", [held.task])

    async def scenario() -> None:
        async with hf:
            requests = await requests_of(hf)
            async with hf.working(concurrency=2, poll_seconds=60):
                executions = await hf.submit_many("long", range(4))
                await held.are_running(1)
                await eventually(lambda: requests[-1].lanes == (Lane.MANUAL,), ENDS_SOON)
                asked = len(requests)
                await asyncio.sleep(0.5)  # ten claims, if what is due were a reason to ask again
                assert len(requests) <= asked + 3
                assert all(request.lanes == (Lane.MANUAL,) for request in requests[asked:])
                held.let_go.set()
                for execution in executions:
                    await execution.wait(ENDS_SOON)
            assert held.most == 1

    run(scenario(), 120)


@pytest.mark.parametrize("lane", ["manual", "bulk"])
def test_work_under_a_limit_is_never_leased_ahead(
    store_url: str, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "PREFETCH_SECONDS", 1e6)  # however long the short jobs took here
    monkeypatch.setattr(loop, "LIMITED_ASKED_SECONDS", 1e6)
    hf, held = Holdfast(store_url), Held()
    slots = {"manual": 3, "bulk": 2}[lane]

    async def quick(ctx: Context) -> None: ...

    hf.pipeline("quick", [quick])
    hf.pipeline("limited", [hf.step(name="ask", limit="portal")(held.task)])

    async def scenario() -> None:
        async with hf:
            await hf.set_limit("portal", 100, 0)
            async with hf.working(concurrency=3):
                for execution in await hf.submit_many("quick", range(30)):
                    await execution.wait(ENDS_SOON)
                requests = await requests_of(hf)
                executions = await hf.submit_many("limited", range(20), lane=lane)
                await held.are_running(slots)
                assert max(request.limit for request in requests) > 20  # other work would be
                assert await leased(hf) == slots
                held.let_go.set()
                for execution in executions:
                    await execution.wait(ENDS_SOON)
            assert held.most == slots

    run(scenario(), 120)


@pytest.mark.parametrize("bulk", [2, 600], ids=["none leased ahead", "many leased ahead"])
def test_manual_work_under_a_limit_gets_the_kept_slot_and_is_not_leased_ahead(
    sqlite_url: str, bulk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside bulk work that could be leased ahead without end."""
    monkeypatch.setattr(loop, "PREFETCH_SECONDS", 1e6)
    monkeypatch.setattr(loop, "PREFETCH_WAIT_SECONDS_MAX", 1e6)
    monkeypatch.setattr(loop, "LIMITED_ASKED_SECONDS", 1e6)
    hf, long, limited = Holdfast(sqlite_url), Held(), Held()
    hf.pipeline("quick", [urgent])
    hf.pipeline("long", [long.task])
    hf.pipeline("limited", [hf.step(name="ask", limit="portal")(limited.task)])

    async def scenario() -> None:
        async with hf:
            await hf.set_limit("portal", 100, 0)
            async with hf.working(concurrency=3, poll_seconds=60, grace_seconds=0):
                await (await hf.submit("quick")).wait(ENDS_SOON)
                await hf.submit_many("long", range(bulk))
                await long.are_running(2)
                await hf.submit_many("limited", range(20), lane="manual")
                await limited.are_running(1)
                assert len((await hf.queue(status=JobStatus.LEASED, lane="manual")).items) == 1

    run(scenario(), 120)


def test_a_slot_that_is_free_again_is_used_before_its_outcome_is_reported(store_url: str) -> None:
    """No announcement and no poll can be what starts the next one."""
    hf = Holdfast(store_url)
    started: list[int] = []

    async def note(ctx: Context) -> None:
        started.append(ctx.workload)
        await asyncio.sleep(0.2)  # others are asked for meanwhile

    hf.pipeline("note", [note])

    async def scenario() -> None:
        async with hf:
            engine, may_report = await hf.engine(), asyncio.Event()
            report = engine.report

            async def reported_late(reports: Any) -> Any:
                await may_report.wait()
                return await report(reports)

            engine.report = reported_late  # type: ignore[method-assign]
            executions = await hf.submit_many("note", range(4))
            async with hf.working(concurrency=2, poll_seconds=60):
                await eventually(lambda: len(started) == 4, ENDS_SOON)
                may_report.set()
                for execution in executions:
                    await execution.wait(ENDS_SOON)

    run(scenario(), 120)


def test_work_under_a_limit_gets_its_turn_among_short_jobs_that_are_leased_ahead(store_url: str) -> None:
    """The next of the short ones takes a slot in the moment in which it is free."""
    hf = Holdfast(store_url)
    ran = [0]

    async def short(ctx: Context) -> None:
        await asyncio.sleep(0.003)
        ran[0] += 1

    hf.pipeline("short", [short])
    hf.pipeline("limited", [hf.step(name="ask", limit="portal", priority=0)(urgent)])

    async def scenario() -> None:
        async with hf:
            await hf.set_limit("portal", 1)
            await hf.submit_many("short", range(5_000))
            async with hf.working(concurrency=2, grace_seconds=0):
                await eventually(lambda: ran[0] > 100, ENDS_SOON)
                before = ran[0]
                await (await hf.submit("limited")).wait(ENDS_SOON)
                assert ran[0] - before < 2_000

    run(scenario(), 120)


def test_with_ageing_bulk_work_gets_its_turn_among_manual_work(store_url: str) -> None:
    hf = Holdfast(store_url)
    ran = [0]

    def short(ctx: Context) -> None:
        time.sleep(SHORT_SECONDS)
        ran[0] += 1

    hf.pipeline("short", [short])
    hf.pipeline("bulk", [urgent])

    async def scenario() -> None:
        async with hf:
            waiting = await hf.submit("bulk")
            await hf.submit_many("short", range(20_000), lane="manual")
            async with hf.working(concurrency=2, ageing="50ms", grace_seconds=0):
                await waiting.wait(ENDS_SOON)
                assert ran[0] < 20_000

    run(scenario(), 120)


def test_a_worker_asks_with_its_ageing_and_without_one_by_default(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    hf.pipeline("urgent", [urgent])

    async def scenario() -> None:
        async with hf:
            requests = await requests_of(hf)
            for options, expected in (({"ageing": "10m"}, 600.0), ({}, None)):
                requests.clear()
                async with hf.working(**options):
                    await (await hf.submit("urgent")).wait(ENDS_SOON)
                assert {request.ageing_seconds for request in requests} == {expected}

    run(scenario())


@pytest.mark.parametrize("lane", ["manual", "bulk"])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_job_that_must_run_alone_does_so_in_either_lane(
    store_url: str, lane: str, concurrency: int
) -> None:
    hf = Holdfast(store_url)
    running: set[str] = set()
    beside: list[set[str]] = []

    @hf.step(retry=Retry(delays=[0]), limit="portal")
    async def suspect(ctx: Context) -> None:
        await asyncio.sleep(0.02)
        beside.append(set(running))

    async def other(ctx: Context) -> None:
        running.add(str(ctx.workload))
        await asyncio.sleep(0.01)
        running.discard(str(ctx.workload))

    hf.pipeline("suspect", [suspect])
    hf.pipeline("other", [other])

    async def scenario() -> None:
        async with hf:
            await hf.set_limit("portal", 2)
            alone = await hf.submit("suspect", lane=lane)
            engine = await hf.engine()
            await engine.lease("dies", ["suspect/suspect"], 1, lease_seconds=0.001)
            assert await eventually(engine.sweep, ENDS_SOON) == 1
            others = await hf.submit_many("other", range(60))
            async with hf.working(concurrency=concurrency):
                view = await alone.wait(ENDS_SOON)
                for execution in others:
                    await execution.wait(ENDS_SOON)
            assert (view.jobs[0].attempts, beside) == (2, [set()])

    run(scenario(), 120)


def test_more_slots_than_one_lease_has_jobs_are_no_trouble(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    hf.pipeline("urgent", [urgent])

    async def scenario() -> None:
        async with hf, hf.working(concurrency=1_500):
            for execution in await hf.submit_many("urgent", range(1_200)):
                await execution.wait(ENDS_SOON)

    run(scenario(), 120)
