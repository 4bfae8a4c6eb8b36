"""The sweeper never acts on a view of time that it cannot trust."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import apsw
import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import LeaseRef
from holdfast.core.retry import RetryPolicy
from holdfast.engine import Engine, Submission
from holdfast.engine.sweeper import Sweeper
from holdfast.playbook.definition import Definition, Step
from holdfast.store import store_from_url
from running import eventually, run

LEASE_SECONDS = 60.0
HEARTBEAT_SECONDS = 20.0
ENDS_SOON = 60.0


@dataclass
class Clocks:
    wall: float = 1_000_000.0
    monotonic: float = 50.0

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


class Scene:
    """A leased job whose worker will never come back, and a sweeper that has just started."""

    def __init__(self, url: str, **options: Any) -> None:
        self.clocks = Clocks()
        self.store = store_from_url(url, clock=lambda: self.clocks.wall)
        self.engine = Engine(self.store)
        self.sweeper = Sweeper(
            self.engine, lease_seconds=LEASE_SECONDS, monotonic=lambda: self.clocks.monotonic, **options
        )

    async def __aenter__(self) -> Scene:
        await self.store.open()
        step = Step(name="only", handler="job/only", retry=RetryPolicy(max_attempts=3))
        await self.engine.register(Definition(path="job", steps=(step,)))
        [submitted] = await self.engine.submit([Submission(path="job")])
        self.execution_id = submitted.id
        leased = await self.engine.lease("lost", ["job/only"], 1, lease_seconds=LEASE_SECONDS)
        [job] = leased.jobs
        self.lease = LeaseRef(job.queue_id, job.fence)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()

    async def sweep_after(self, seconds: float) -> int:
        self.clocks.pass_by(seconds)
        return await self.sweeper.sweep()


def test_after_its_start_it_waits_one_heartbeat_interval(store_url: str) -> None:
    async def scenario() -> None:
        async with Scene(store_url) as scene:
            assert await scene.sweep_after(LEASE_SECONDS + 1) == 0
            assert await scene.sweep_after(HEARTBEAT_SECONDS - 1) == 0
            assert await scene.sweep_after(2) == 1
            assert await scene.sweep_after(1) == 0

    run(scenario())


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_after_a_jump_of_the_clock_it_waits_again(sqlite_url: str, jump: float) -> None:
    async def scenario() -> None:
        async with Scene(sqlite_url) as scene:
            assert await scene.sweep_after(0) == 0
            assert await scene.sweep_after(HEARTBEAT_SECONDS + 1) == 0  # trusted, and nothing expired
            scene.clocks.wall += jump
            assert await scene.sweep_after(1) == 0
            assert await scene.sweep_after(HEARTBEAT_SECONDS) == (1 if jump > 0 else 0)

    run(scenario())


def test_after_an_outage_longer_than_the_lease_it_waits_for_the_workers_first(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with Scene(sqlite_url) as scene:
            assert await scene.sweep_after(0) == 0
            expired = scene.store.expired

            async def away(*_: Any) -> Any:
                raise StoreUnavailable("away")

            scene.store.expired = away  # type: ignore[method-assign]
            with pytest.raises(StoreUnavailable):
                await scene.sweep_after(2 * LEASE_SECONDS)
            scene.store.expired = expired  # type: ignore[method-assign]
            assert await scene.sweep_after(1) == 0
            assert await scene.sweep_after(HEARTBEAT_SECONDS) == 1

    run(scenario())


def test_it_prunes_what_ended_longer_ago_than_the_retention(store_url: str) -> None:
    async def scenario() -> None:
        async with Scene(store_url, retention_seconds=3600.0) as scene:
            assert await scene.engine.cancel(scene.execution_id)
            await scene.sweep_after(0)
            await scene.sweep_after(1800)
            assert (await scene.engine.executions()).items != []
            await scene.sweep_after(1801)
            assert (await scene.engine.executions()).items == []

    run(scenario())


def test_it_goes_on_after_an_outage_and_after_a_bug(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with Scene(sqlite_url) as scene:
            calls: list[int] = []

            def monotonic() -> float:
                scene.clocks.pass_by(1.0)  # both clocks, as otherwise a slow machine would look like a jump
                return scene.clocks.monotonic

            sweeper = Sweeper(scene.engine, lease_seconds=0.01, monotonic=monotonic)

            async def sweep(limit: int = 0, **_: float) -> int:
                calls.append(limit)
                if len(calls) == 1:
                    raise StoreUnavailable("away")
                if len(calls) == 2:
                    raise RuntimeError("a bug")
                return 0

            scene.engine.sweep = sweep  # type: ignore[method-assign]
            task = asyncio.create_task(sweeper.run())
            await eventually(lambda: len(calls) > 3, ENDS_SOON)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    run(scenario())


def test_one_sweep_is_bounded_however_much_there_is_to_do(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with Scene(sqlite_url) as scene:
            calls: list[int] = []

            async def endless(limit: int = 0, **_: float) -> int:
                calls.append(limit)
                return 500

            scene.engine.sweep = endless  # type: ignore[method-assign]
            await scene.sweep_after(0)
            assert await scene.sweep_after(HEARTBEAT_SECONDS) == 500 * len(calls)
            assert len(calls) == 20

    run(scenario())


def test_a_heartbeat_between_its_two_looks_saves_the_lease(store_url: str) -> None:
    """A database that somebody held has kept heartbeats waiting: they are let go first."""

    async def scenario() -> None:
        async with Scene(store_url) as scene:
            assert await scene.sweep_after(0) == 0
            assert await scene.sweep_after(HEARTBEAT_SECONDS + 1) == 0  # trusted, and nothing expired
            looked, beaten = asyncio.Event(), asyncio.Event()
            look = scene.store.expired

            async def expired(now: float, limit: int) -> list[LeaseRef]:
                if looked.is_set():
                    await beaten.wait()
                found = await look(now, limit)
                looked.set()
                return found

            scene.store.expired = expired  # type: ignore[method-assign]
            sweep = asyncio.create_task(scene.sweep_after(LEASE_SECONDS))
            await looked.wait()
            [ack] = await scene.engine.heartbeat([scene.lease], lease_seconds=LEASE_SECONDS)
            assert ack.accepted
            beaten.set()
            assert await sweep == 0

    run(scenario())


def test_a_held_sqlite_file_kills_no_lease(sqlite_url: str) -> None:
    """It can be read all the time: what has run out there says nothing about its worker."""

    async def scenario() -> None:
        async with Scene(sqlite_url) as scene:
            assert await scene.sweep_after(0) == 0
            assert await scene.sweep_after(HEARTBEAT_SECONDS + 1) == 0
            other = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
            other.execute("BEGIN IMMEDIATE")
            look, looks = scene.store.expired, 0

            async def expired(now: float, limit: int) -> list[LeaseRef]:
                nonlocal looks
                looks += 1
                if looks == 2:
                    await asyncio.wait([beat])
                return await look(now, limit)

            scene.store.expired = expired  # type: ignore[method-assign]
            sweep = asyncio.create_task(scene.sweep_after(LEASE_SECONDS))
            beat = asyncio.create_task(scene.engine.heartbeat([scene.lease], lease_seconds=LEASE_SECONDS))
            await asyncio.wait([sweep, beat], timeout=0.2)
            assert not sweep.done() and not beat.done()
            other.execute("ROLLBACK")
            other.close()
            assert (await beat)[0].accepted
            assert await sweep == 0

    run(scenario())
