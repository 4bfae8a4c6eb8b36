"""A batch of 200 items whose requests and downloads fail, and whose workers are killed in every phase: all
requests, then a barrier and its delay, then each download once. Real processes, both stores."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

from acceptance.barrier_app import (
    DELAY_SECONDS,
    ITEMS,
    STUCK_DOWNLOAD,
    STUCK_REQUEST,
    Diary,
    app,
    download_fails_once,
    fails_for_ever,
)
from faults.processes import Fleet
from faults.tables import make_tables, select
from holdfast import Holdfast
from holdfast.batch import Batch
from holdfast.core.model import Event, EventType, ExecutionStatus, JobRow
from holdfast.engine.batch_view import BatchItem
from running import eventually, run

SCRIPT = Path(__file__).parent / "barrier_app.py"
WITHIN = 120.0
FAILED = [number for number in range(ITEMS) if fails_for_ever(number)]
SKIPPED = "Request failed; download skipped"


async def kill_in_the_middle(fleet: Fleet, diary: Diary, step: str, number: int) -> None:
    """Kill the worker that runs this step of this item, and start another."""

    def pid() -> int | None:
        return next((call.worker for call in diary.calls(step) if call.number == number), None)

    found = await eventually(pid, WITHIN)
    [worker] = [worker for worker in fleet.started if worker.pid == found]
    assert worker.kill() == -signal.SIGKILL
    fleet.start(SCRIPT)


async def let_one_die_while_opening(fleet: Fleet, batch: Batch) -> None:
    """Wait until one has killed itself with the barrier half open, and start another."""
    dead = await eventually(
        lambda: [worker for worker in fleet.started if worker.ended_with() == -signal.SIGKILL][1:], WITHIN
    )
    assert len(dead) == 1
    barrier = (await batch.status()).barrier
    assert barrier is not None and barrier.opened_at is not None
    fleet.start(SCRIPT)


async def effects(url: str) -> Counter[int]:
    """How often each execution was downloaded, as its transactions tell."""
    return Counter(execution for (execution,) in await select(url, "SELECT execution FROM effects"))


class Ended:
    """The items of the batch with all that is told of them, by their numbers."""

    def __init__(self, items: list[BatchItem], events: list[list[Event]], jobs: list[list[JobRow]]) -> None:
        self.items = {item.workload["number"]: item for item in items}
        self.events = dict(zip(self.items, events, strict=True))
        self.jobs = dict(zip(self.items, jobs, strict=True))

    def told(self, number: int, step: str, type_: EventType) -> list[Event]:
        return [event for event in self.events[number] if event.step == step and event.type is type_]

    def last_of(self, number: int, step: str) -> Event:
        return [event for event in self.events[number] if event.step == step][-1]

    def job(self, number: int, step: str) -> JobRow:
        return [job for job in self.jobs[number] if job.step == step][-1]


def place_of(event: Event) -> tuple[int, ...]:
    """Where it is in the log of all executions."""
    return tuple(map(int, event.id.split(".")))


async def ended(hf: Holdfast, batch: Batch) -> Ended:
    items = [item async for item in batch.items()]
    events = await asyncio.gather(*(hf.events(item.id) for item in items))
    views = await asyncio.gather(*(hf.status(item.id) for item in items))
    return Ended(items, events, [view.jobs for view in views])


def test_each_item_passes_the_barrier_and_is_downloaded_once_whoever_dies(
    store_url: str, tmp_path: Path
) -> None:
    hf, diary = app(store_url, tmp_path), Diary(tmp_path)

    async def scenario(fleet: Fleet) -> None:
        async with hf:
            await make_tables(store_url)
            diary.say("die while opening")
            batch = await hf.batch("reports", [{"number": number} for number in range(ITEMS)])
            for _ in range(2):
                fleet.start(SCRIPT)
            await kill_in_the_middle(fleet, diary, "request", STUCK_REQUEST)
            await let_one_die_while_opening(fleet, batch)
            await kill_in_the_middle(fleet, diary, "download", STUCK_DOWNLOAD)
            await batch.wait(WITHIN)
            found = await ended(hf, batch)
            await assert_barrier(batch, found)
            await assert_downloaded_once(store_url, diary, found)
            await assert_skipped(batch, found)
            assert_retried_in_waves(diary)
            await assert_retried_by_hand(hf, diary, found.items[FAILED[0]].id, store_url)

    with Fleet(tmp_path, store_url) as fleet:
        run(scenario(fleet), 500)


async def assert_barrier(batch: Batch, found: Ended) -> None:
    """It opened once, after the last request, and nobody passed it early."""
    barrier = (await batch.status()).barrier
    assert barrier is not None and barrier.opened_at is not None
    assert barrier.scheduled_for == barrier.opened_at + DELAY_SECONDS
    # By the log, not by the clocks: each process has its own view of PostgreSQL's.
    settled = max(place_of(found.last_of(number, "request")) for number in range(ITEMS))
    for number in range(ITEMS):
        if not fails_for_ever(number):
            assert found.job(number, "download").scheduled_for == barrier.scheduled_for
            [opened] = found.told(number, "download", EventType.BARRIER_OPENED)
            assert settled < place_of(opened)
            started = found.told(number, "download", EventType.ACTION_STARTED)
            assert started and all(event.at >= barrier.scheduled_for for event in started)
            assert found.events[number].index(opened) < found.events[number].index(started[0])


async def assert_downloaded_once(url: str, diary: Diary, found: Ended) -> None:
    """One row for each item; a handler that was called again had failed, or lost its worker, and the log
    says so."""
    done = await effects(url)
    assert done == {found.items[number].id: 1 for number in range(ITEMS) if not fails_for_ever(number)}
    calls = Counter(call.number for call in diary.calls("download"))
    lost = 0
    for number in done_numbers(found):
        losses = len(found.told(number, "download", EventType.LEASE_LOST))
        errors = len(found.told(number, "download", EventType.ACTION_ERROR))
        assert errors == losses + download_fails_once(number) - was_lost_at_first(found, number)
        assert errors + 1 - losses <= calls[number] <= errors + 1
        assert found.job(number, "download").attempts == errors + 1
        lost += losses
    assert calls[STUCK_DOWNLOAD] == 2 and lost
    assert found.told(STUCK_REQUEST, "request", EventType.LEASE_LOST)


def done_numbers(found: Ended) -> list[int]:
    return [number for number, item in found.items.items() if item.status is ExecutionStatus.COMPLETED]


def was_lost_at_first(found: Ended, number: int) -> bool:
    """Its first attempt, which would have failed, was lost with its worker instead."""
    first = found.told(number, "download", EventType.ACTION_ERROR)[:1]
    return download_fails_once(number) and first[0].data["error_type"] == "worker_lost"


async def assert_skipped(batch: Batch, found: Ended) -> None:
    view = await batch.status()
    assert view.executions == {
        "running": 0, "completed": ITEMS - len(FAILED), "failed": len(FAILED), "cancelled": 0,
    }  # fmt: skip
    assert (view.counts["request"]["failed"], view.counts["download"]["skipped"]) == (len(FAILED),) * 2
    failed = {item.execution_id for item in view.permanently_failed_jobs}
    assert failed == {found.items[number].id for number in FAILED}
    for number in FAILED:
        [skipped] = found.told(number, "download", EventType.STEP_SKIPPED)
        assert skipped.data["reason"] == SKIPPED
        tracking = found.items[number].tracking
        last = found.told(number, "request", EventType.ACTION_ERROR)[-1].data
        assert tracking["request"]["status"] == "failed"
        assert tracking["request"]["error"] == f"{last['error_type']}: {last['message']}"
        assert tracking["download"] == {
            "status": "skipped", "attempts": 0, "last_attempt_at": None, "scheduled_for": None,
            "error": SKIPPED,
        }  # fmt: skip


def assert_retried_in_waves(diary: Diary) -> None:
    """No download was tried again before all had been tried."""
    attempts = [call.attempt for call in diary.calls("download")]
    assert attempts == sorted(attempts) and attempts[-1] > 1


async def assert_retried_by_hand(hf: Holdfast, diary: Diary, execution_id: int, url: str) -> None:
    """After the opening: a time of its own, and its download."""
    diary.say("the portal is well")
    await hf.retry(execution_id)
    view = await hf.wait(execution_id, WITHIN)
    assert view.execution.status is ExecutionStatus.COMPLETED
    request, download = [job for job in view.jobs if job.round == 2]
    assert request.finished_at is not None and download.last_attempt_at is not None
    assert download.scheduled_for == request.finished_at + DELAY_SECONDS
    assert download.last_attempt_at >= download.scheduled_for
    assert (await effects(url))[execution_id] == 1
