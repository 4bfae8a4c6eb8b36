"""Everything at a glance: counts, who lives, who vanished, and work that nobody living can take."""

import pytest

from engine_scenario import START, Scenario, on_both_stores, stage
from holdfast.core.errors import InvalidInput
from holdfast.core.model import Lane, WorkerRecord


def worker(worker_id: str = "w1", *handlers: str, lanes: tuple[Lane, ...] = tuple(Lane)) -> WorkerRecord:
    return WorkerRecord(
        worker_id=worker_id,
        host="host",
        pid=1,
        version="0.1.0",
        concurrency=4,
        lanes=lanes,
        handlers=handlers,
        started_at=START,
        announce_seconds=10.0,
    )


@on_both_stores
async def test_an_empty_store_has_an_overview(s: Scenario) -> None:
    overview = await s.engine.overview()
    assert overview.executions == {"running": 0, "completed": 0, "failed": 0, "cancelled": 0}
    assert (overview.jobs, overview.ready, overview.oldest_ready_at) == ({}, 0, None)
    assert overview.alone == 0
    assert (overview.workers, overview.vanished, overview.unoffered) == ((), (), ())


@on_both_stores
async def test_open_jobs_are_counted_by_status_and_lane(s: Scenario) -> None:
    await s.define(stage("a", attempts=2))
    for lane in (Lane.MANUAL, Lane.BULK, Lane.BULK, Lane.BULK):
        await s.submit(lane=lane)
        s.tick(1)
    await s.submit(delay_seconds=500)
    [retried, leased] = await s.lease(2)
    await s.fail(retried)
    overview = await s.engine.overview()
    assert overview.executions == {"running": 5, "completed": 0, "failed": 0, "cancelled": 0}
    assert (retried.lane, leased.lane) == (Lane.MANUAL, Lane.BULK)
    assert overview.jobs == {
        "leased": {"manual": 0, "bulk": 1},
        "queued": {"manual": 0, "bulk": 3},
        "retry": {"manual": 1, "bulk": 0},
    }
    assert (overview.ready, overview.oldest_ready_at) == (2, START + 2)
    s.tick(1)
    assert (await s.engine.overview()).ready == 3  # the retry has become ready


@on_both_stores
async def test_a_worker_lives_until_it_has_missed_three_announcements(s: Scenario) -> None:
    await s.engine.announce(worker())

    async def seen() -> tuple[list[str], list[str]]:
        overview = await s.engine.overview()
        return [w.worker_id for w in overview.workers], [w.worker_id for w in overview.vanished]

    s.tick(30)
    assert await seen() == (["w1"], [])
    s.tick(1)
    assert await seen() == ([], ["w1"])
    await s.engine.announce(worker())
    assert await seen() == (["w1"], [])
    s.tick(86_000)
    await s.engine.announce(worker("w2"))
    assert await seen() == (["w2"], ["w1"])
    s.tick(431)
    await s.engine.announce(worker("w2"))
    assert await seen() == (["w2"], [])  # a day after its time it is forgotten
    await s.engine.retire("w2")
    assert await seen() == ([], [])
    with pytest.raises(InvalidInput, match="worker id"):
        await s.engine.announce(worker("a\0b"))


@on_both_stores
async def test_ready_work_that_no_living_worker_can_take_is_named(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"))
    await s.define(stage("only", path="q"), path="q")
    await s.submit()
    await s.submit(lane=Lane.MANUAL)
    s.tick(5)
    await s.submit(path="q")
    await s.submit(path="q", delay_seconds=3600)

    async def waiting() -> list[tuple[str, str, int, float]]:
        found = (await s.engine.overview()).unoffered
        return [(item.handler, item.lane.value, item.jobs, item.since) for item in found]

    everything = [
        ("p/a", "bulk", 1, START),
        ("p/a", "manual", 1, START),
        ("q/only", "bulk", 1, START + 5),
    ]
    assert await waiting() == everything
    await s.engine.announce(worker("w1", "p/a", lanes=(Lane.MANUAL,)))
    assert await waiting() == [everything[0], everything[2]]
    await s.engine.announce(worker("w2", "p/a", "q/only"))
    assert await waiting() == []
    s.tick(31)
    assert await waiting() == everything  # they have gone silent
    await s.lease()
    assert await waiting() == []  # somebody took it, whoever that was


@on_both_stores
async def test_jobs_that_wait_to_run_alone_are_counted_where_somebody_could_run_them(s: Scenario) -> None:
    await s.define(stage("a", attempts=3))
    for lane in (Lane.MANUAL, Lane.BULK, Lane.BULK):
        await s.submit(lane=lane)
    await s.lease()
    await s.lose()

    async def alone() -> tuple[int, int]:
        overview = await s.engine.overview()
        return overview.ready, overview.alone

    await s.submit()
    assert await alone() == (1, 0)  # the delay of their retries is not over
    s.tick(2)
    assert await alone() == (4, 0)
    assert sum(item.jobs for item in (await s.engine.overview()).unoffered) == 4
    await s.engine.announce(worker("w1", "p/a", lanes=(Lane.BULK,)))
    assert await alone() == (4, 2)
    await s.engine.announce(worker("w2", "p/a"))
    assert await alone() == (4, 3)
    assert len(await s.lease(alone=True)) == 1
    assert await alone() == (3, 2)
