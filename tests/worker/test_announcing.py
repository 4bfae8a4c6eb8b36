"""A worker in the registry: there while it runs, gone when it ends, and never at the cost of its work."""

import asyncio
import os
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.core.model import WorkerRow
from holdfast.engine.overview import WORKERS_MAX
from holdfast.worker import announcing, heartbeats
from running import eventually, run

ENDS_SOON = 30.0


def app(url: str) -> Holdfast:
    hf = Holdfast(url)

    async def handle(ctx: Context) -> str:
        return "done"

    hf.pipeline("job", [handle])
    return hf


async def workers(hf: Holdfast) -> list[WorkerRow]:
    return await (await hf.engine()).store.workers(WORKERS_MAX)


def test_a_worker_is_announced_again_and_again_and_retires_at_its_end(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A store that is slow for a moment is waited for.
    monkeypatch.setattr(announcing, "RETIRE_SECONDS", ENDS_SOON)
    monkeypatch.setattr(heartbeats, "STOP_SECONDS_MAX", ENDS_SOON)
    hf = app(store_url)

    async def main() -> None:
        async with hf:
            async with hf.working(worker_id="w1", concurrency=3, lanes=["bulk"], lease_seconds=0.9):
                [first] = await eventually(lambda: workers(hf), ENDS_SOON)
                assert (first.worker_id, first.concurrency, first.lanes) == ("w1", 3, ("bulk",))
                types = ("type/each", "type/http", "type/playbook", "type/sleep", "type/sql")
                assert (first.handlers, first.pid) == (("job/handle", *types), os.getpid())
                assert first.seen_until - first.seen_at == pytest.approx(0.9, abs=1e-3)  # three times 0.3 s

                async def seen_again() -> bool:
                    [now] = await workers(hf)
                    return now.seen_at > first.seen_at and now.started_at == first.started_at

                await eventually(seen_again, ENDS_SOON)
            assert await workers(hf) == []

    run(main())


def test_a_registry_that_fails_or_hangs_costs_no_work_and_no_end(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first worker cannot announce itself; of the second nobody ever answers."""
    monkeypatch.setattr(announcing, "RETIRE_SECONDS", 0.05)
    monkeypatch.setattr(announcing, "ANNOUNCE_SECONDS", 0.05)
    hf = app(sqlite_url)
    asked: list[str] = []

    async def refuse(*_: Any) -> None:
        asked.append("refused")
        raise RuntimeError("no registry today")

    async def hang(*_: Any) -> None:
        asked.append("hung")
        await asyncio.Event().wait()

    async def main() -> None:
        async with hf:
            for answer in (refuse, hang):
                monkeypatch.setattr("holdfast.engine.Engine.announce", answer)
                monkeypatch.setattr("holdfast.engine.Engine.retire", answer)
                asked.clear()
                async with hf.working(lease_seconds=1.0):
                    await eventually(lambda: asked, ENDS_SOON)
                    view = await (await hf.submit("job")).wait(ENDS_SOON)
                    assert view.outputs == {"handle": "done"}

    run(main())
    assert caplog.text.count("no registry today") == 1  # told once, not every time


def test_heartbeats_go_on_while_an_announcement_hangs(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = Holdfast(store_url)
    beats: set[float] = set()
    enough = asyncio.Event()

    async def handle(ctx: Context) -> str:
        await enough.wait()
        return "done"

    hf.pipeline("job", [handle])

    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        monkeypatch.setattr(announcing, "RETIRE_SECONDS", 0.05)
        monkeypatch.setattr("holdfast.engine.Engine.announce", hang)
        async with hf:
            worker = await hf.worker(lease_seconds=0.3)  # without a sweeper: a slow machine loses nothing
            working = asyncio.create_task(worker.run())
            execution = await hf.submit("job")

            async def is_beaten() -> bool:
                [job] = (await hf.queue(execution_id=execution.id)).items
                if job.last_heartbeat:
                    beats.add(job.last_heartbeat)
                return len(beats) >= 4  # the lease itself, and three more

            await eventually(is_beaten, ENDS_SOON)
            enough.set()
            await execution.wait(ENDS_SOON)
            worker.stop()
            await working

    run(main())
