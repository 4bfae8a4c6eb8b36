"""A narrow portal, hundreds of bulk jobs and a colleague in a hurry: three real processes, both stores.

Nothing has to be quick: handlers go on when the test lets them, so that what begins while others are held
began without waiting for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from acceptance.lanes_app import LIMIT, Line, Portal, app
from faults.processes import Fleet
from holdfast import Holdfast
from holdfast.core.limits import FLEET_LIMIT
from holdfast.core.model import ExecutionStatus, Lane
from running import eventually, run

SCRIPT = Path(__file__).parent / "lanes_app.py"
PLACES = 5
BULK_PLACES = 4
BULK_JOBS = 500
WITHIN = 120.0
# Processes know the database's clock to half of what its answer takes: after this time what was submitted is
# due to all of them.
CLOCKS_APART_SECONDS = 1.0


def begun(portal: Portal, lane: str) -> list[str]:
    """Items, in the order in which their handlers began."""
    return [line.item for line in portal.lines() if line.what == "begin" and line.lane == lane]


def at_work(lines: list[Line]) -> Iterator[list[Line]]:
    """After each line, what has begun and not ended."""
    now: list[Line] = []
    for line in lines:
        if line.what == "begin":
            now = [*now, line]
        elif line.what == "end":
            now.remove(line._replace(what="begin"))
        else:
            now = [other for other in now if other.worker != line.worker]
        yield now


async def submit_bulk(hf: Holdfast) -> None:
    """The downloads before the requests, which go first all the same."""
    for operation in ("download", "request"):
        await hf.submit_many(f"{operation}s", [f"{operation}-{n}" for n in range(BULK_JOBS // 2)])


async def begins(hf: Holdfast, portal: Portal, operation: str, item: str) -> int:
    """Submit a manual job and see it begin; the id of its execution."""
    execution = await hf.submit(f"{operation}s", item, lane=Lane.MANUAL)
    await eventually(lambda: item in begun(portal, "manual"), WITHIN)
    return execution.id


async def all_ended(hf: Holdfast) -> bool:
    return not (await hf.executions(status=ExecutionStatus.RUNNING, limit=1)).items


@pytest.mark.parametrize("limit", [LIMIT, FLEET_LIMIT])
def test_a_manual_job_finds_a_place_and_no_more_run_than_there_are_places(
    store_url: str, tmp_path: Path, limit: str
) -> None:
    hf, portal = app(store_url, tmp_path), Portal(tmp_path)

    async def scenario(fleet: Fleet) -> None:
        async with hf:
            await hf.set_limit(limit, PLACES, 1)
            await submit_bulk(hf)
            for _ in range(3):
                fleet.start(SCRIPT)
            await eventually(lambda: len(begun(portal, "bulk")) == BULK_PLACES, WITHIN)

            # No bulk job ends before this one has begun.
            await begins(hf, portal, "download", "urgent")
            assert len(begun(portal, "bulk")) == BULK_PLACES

            # Every place is taken. The next free one is a manual job's: the request's, though it came last.
            for operation in ("download", "request"):
                await hf.submit(f"{operation}s", f"second-{operation}", lane=Lane.MANUAL)
            await asyncio.sleep(CLOCKS_APART_SECONDS)
            first_bulk = begun(portal, "bulk")[0]
            portal.let_end(first_bulk)
            await eventually(lambda: len(begun(portal, "manual")) == 2, WITHIN)
            assert begun(portal, "manual") == ["urgent", "second-request"]
            portal.let_end("urgent")
            await eventually(lambda: len(begun(portal, "manual")) == 3, WITHIN)
            assert begun(portal, "manual")[-1] == "second-download"
            assert len(begun(portal, "bulk")) == BULK_PLACES  # its place went to manual work

            # One dies with what it runs. Its places are free when its leases have expired, not before.
            *_, now = at_work(portal.lines())
            [victim] = [worker for worker in fleet.started if str(worker.pid) == now[0].worker]
            lost = [line.item for line in now if line.worker == now[0].worker]
            victim.kill()
            portal.note(Line("killed", now[0].worker))
            fleet.start(SCRIPT)
            portal.let_end("manual")
            portal.let_end("bulk")
            await eventually(lambda: all_ended(hf), WITHIN, every=0.2)
            for item in lost:
                assert (begun(portal, "bulk") + begun(portal, "manual")).count(item) == 2

    with Fleet(tmp_path, store_url) as fleet:
        run(scenario(fleet), 500)
        assert [worker.stop() for worker in fleet.started if worker.ended_with() is None] == [0, 0, 0]
    assert_never_too_many(portal.lines())
    assert_in_order(portal)
    run(assert_all_completed(hf))


def assert_never_too_many(lines: list[Line]) -> None:
    counted = [[line.lane for line in now] for now in at_work(lines)]
    assert max(map(len, counted)) == PLACES
    assert max(lanes.count("bulk") for lanes in counted) == BULK_PLACES
    assert counted[-1] == []


def assert_in_order(portal: Portal) -> None:
    """Requests before downloads, each in the order of their submission, as far as the portal tells: what is
    leased at one time may begin in any order, and a few much later, where the system stops their process."""
    expected = [f"{operation}-{n}" for operation in ("request", "download") for n in range(BULK_JOBS // 2)]
    place = {item: n for n, item in enumerate(dict.fromkeys(begun(portal, "bulk")))}
    assert len(place) == BULK_JOBS
    misplaced = [item for n, item in enumerate(expected) if abs(place[item] - n) > PLACES]
    assert len(misplaced) < BULK_JOBS / 20


async def assert_all_completed(hf: Holdfast) -> None:
    async with hf:
        for status in (ExecutionStatus.FAILED, ExecutionStatus.CANCELLED, ExecutionStatus.RUNNING):
            assert (await hf.executions(status=status, limit=1)).items == []
