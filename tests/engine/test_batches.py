"""Batches: items that meet at a barrier, skip what has become pointless, and retry in waves."""

from typing import Any

import pytest

from engine_scenario import Scenario, on_both_stores, stage
from holdfast.core.catalogue import Category
from holdfast.core.errors import BatchClosed, IdempotencyConflict, UnknownBatch, UnknownPipeline
from holdfast.core.model import Event, EventType, ExecutionStatus, JobStatus, Leased
from holdfast.engine import RetryRequest, Submission
from holdfast.engine.batch_book import gates_of, with_gates
from holdfast.playbook.definition import Barrier

DELAY = 900.0


async def define(s: Scenario, *, between: bool = False, **download: Any) -> None:
    """Request, then, a quarter of an hour after all requests have ended, download."""
    await s.define(
        stage("request", 2, operation="request"),
        *([stage("prepare", 1)] if between else []),
        stage(
            "download",
            3,
            operation="download",
            barrier=Barrier(after="request", delay_seconds=DELAY),
            **{"delays": [60.0, 180.0], **download},
        ),
    )


async def batch_of(s: Scenario, items: int, *, close: bool = True) -> tuple[int, list[int]]:
    batch_id, created = await s.engine.batches.create("p")
    assert created
    added = await s.engine.batches.add(batch_id, [Submission(path="p", workload=n) for n in range(items)])
    if close:
        await s.engine.batches.close(batch_id)
    return batch_id, [item.id for item in added]


async def job_of(s: Scenario, execution_id: int) -> Any:
    return (await s.engine.view(execution_id)).jobs[-1]


async def leased_step(s: Scenario, step: str) -> list[Leased]:
    jobs = await s.lease(100)
    assert [job.step for job in jobs] == [step] * len(jobs)
    return jobs


def of_type(events: list[Event], type_: EventType) -> list[Event]:
    return [event for event in events if event.type is type_]


# the barrier


@on_both_stores
async def test_nobody_passes_before_all_have_settled_and_then_all_do_after_the_delay(s: Scenario) -> None:
    await define(s)
    batch_id, ids = await batch_of(s, 3)
    first, second, third = await leased_step(s, "request")
    for job in (first, second):
        await s.complete(job)
        await s.engine.batches.attend_all()
        held = await job_of(s, job.execution_id)
        assert (held.step, held.status, held.held_by, held.scheduled_for) == (
            "download", JobStatus.QUEUED, "barrier", None,
        )  # fmt: skip
    s.tick(DELAY * 10)
    assert await s.lease() == []
    assert (await s.engine.batches.view(batch_id)).barrier.waits_for == 1
    await s.complete(third)
    opened_at = s.now
    s.tick(7)
    await s.engine.batches.attend_all()
    view = await s.engine.batches.view(batch_id)
    assert (view.barrier.opened_at, view.barrier.scheduled_for) == (s.now, s.now + DELAY)
    assert view.barrier.opened_at >= opened_at
    for id_ in ids:
        job = await job_of(s, id_)
        assert (job.held_by, job.available_at, job.scheduled_for) == (None, s.now + DELAY, s.now + DELAY)
        [told] = of_type(await s.events(id_), EventType.BARRIER_OPENED)
        assert told.data["scheduled_for"] == s.now + DELAY
    s.tick(DELAY - 1)
    assert await s.lease() == []
    s.tick(1)
    for job in await leased_step(s, "download"):
        await s.complete(job)
    view = await s.engine.batches.view(batch_id)
    assert (view.status, view.executions["completed"]) == ("finished", 3)


@on_both_stores
async def test_a_batch_that_is_not_closed_keeps_its_barrier_shut(s: Scenario) -> None:
    await define(s)
    batch_id, ids = await batch_of(s, 2, close=False)
    for job in await leased_step(s, "request"):
        await s.complete(job)
    await s.engine.batches.attend_all()
    assert {(await job_of(s, id_)).held_by for id_ in ids} == {"barrier"}
    assert await s.engine.batches.close(batch_id) is True
    assert {(await job_of(s, id_)).held_by for id_ in ids} == {None}
    assert await s.engine.batches.close(batch_id) is False


@on_both_stores
async def test_what_died_cancelled_or_ran_out_of_time_before_it_is_settled_and_its_download_skipped(
    s: Scenario,
) -> None:
    await define(s)
    batch_id, _created = await s.engine.batches.create("p")
    added = await s.engine.batches.add(
        batch_id,
        [
            Submission(path="p"),
            Submission(path="p"),
            Submission(path="p", deadline_seconds=5),
            Submission(path="p"),
        ],
    )
    dies, cancelled, overdue, lives = (item.id for item in added)
    await s.engine.batches.close(batch_id)
    jobs = {job.execution_id: job for job in await leased_step(s, "request")}
    await s.complete(jobs[lives])
    await s.fail(jobs[dies], category=Category.PERMANENT, error_type="validation_error")
    await s.engine.cancel(cancelled)
    s.tick(6)
    await s.engine.sweep()
    await s.engine.batches.attend_all()
    assert (await job_of(s, lives)).scheduled_for == s.now + DELAY
    for id_ in (dies, overdue):
        [skipped] = of_type(await s.events(id_), EventType.STEP_SKIPPED)
        assert (skipped.step, skipped.data["reason"]) == ("download", "Request failed; download skipped")
        assert (await s.events(id_))[-1].type is EventType.EXECUTION_FAILED
        assert (await s.engine.view(id_)).skipped == {"download": "Request failed; download skipped"}
    page = await s.engine.batches.items(batch_id)
    tracking = {item.id: item.tracking for item in page.items}
    assert tracking[dies]["download"] == {
        "status": "skipped",
        "attempts": 0,
        "last_attempt_at": None,
        "scheduled_for": None,
        "error": "Request failed; download skipped",
    }
    assert tracking[dies]["request"]["error"] == "validation_error: connection refused"
    assert (tracking[dies]["request"]["status"], tracking[dies]["request"]["attempts"]) == ("failed", 1)
    assert tracking[overdue]["request"]["status"] == "failed"
    assert tracking[cancelled]["request"]["status"] == "skipped"
    assert tracking[lives]["request"]["status"] == "completed"
    assert tracking[lives]["download"]["status"] == "pending"
    view = await s.engine.batches.view(batch_id)
    assert view.counts["request"] == {
        "pending": 0, "in_progress": 0, "completed": 1, "failed": 2, "skipped": 1,
    }  # fmt: skip
    assert view.counts["download"] == {
        "pending": 1, "in_progress": 0, "completed": 0, "failed": 0, "skipped": 3,
    }  # fmt: skip
    assert [item.execution_id for item in view.permanently_failed_jobs] == [dies, overdue]


@on_both_stores
async def test_a_request_that_is_retried_keeps_the_barrier_shut(s: Scenario) -> None:
    await define(s)
    _, ids = await batch_of(s, 2)
    first, second = await leased_step(s, "request")
    await s.fail(first)
    await s.complete(second)
    await s.engine.batches.attend_all()
    assert (await job_of(s, ids[1])).held_by == "barrier"
    s.tick(60)
    await s.complete(await s.lease_one())
    await s.engine.batches.attend_all()
    assert (await job_of(s, ids[1])).scheduled_for == s.now + DELAY


@on_both_stores
async def test_an_item_retried_by_hand_before_the_opening_is_waited_for_again(s: Scenario) -> None:
    await define(s)
    batch_id, ids = await batch_of(s, 2)
    first, second = await leased_step(s, "request")
    await s.fail(first, category=Category.PERMANENT)
    await s.engine.retry(ids[0], RetryRequest(force=True))
    await s.complete(second)
    await s.engine.batches.attend_all()
    assert (await s.engine.batches.view(batch_id)).barrier.waits_for == 1
    await s.complete(await s.lease_one())
    await s.engine.batches.attend_all()
    assert [(await job_of(s, id_)).scheduled_for for id_ in ids] == [s.now + DELAY] * 2


@pytest.mark.parametrize("between", [False, True])
@on_both_stores
async def test_an_item_retried_by_hand_after_the_opening_has_a_time_of_its_own(
    s: Scenario, between: bool
) -> None:
    await define(s, between=between)
    _batch_id, ids = await batch_of(s, 2)
    first, second = await leased_step(s, "request")
    await s.fail(first, category=Category.PERMANENT)
    await s.complete(second)
    await s.engine.batches.attend_all()
    opened_at = s.now
    s.tick(10 * DELAY)
    await s.engine.retry(ids[0], RetryRequest(force=True))
    jobs = {job.step: job for job in await s.lease()}
    completed_at = s.now
    await s.complete(jobs["request"])
    if between:  # the other one's, too: late at its barrier, it has the time that all others had
        await s.complete(jobs["prepare"])
        assert (await job_of(s, ids[1])).scheduled_for == opened_at + DELAY
        s.tick(5)
        [prepare] = [job for job in await s.lease() if job.step == "prepare"]
        await s.complete(prepare)
    job = await job_of(s, ids[0])
    assert (job.step, job.held_by) == ("download", None)
    assert (job.scheduled_for, job.available_at) == (completed_at + DELAY,) * 2
    assert len(of_type(await s.events(ids[0]), EventType.BARRIER_OPENED)) == 1
    s.tick(DELAY)
    assert ids[0] in [job.execution_id for job in await s.lease()]


@on_both_stores
async def test_no_retry_changes_what_a_download_is_scheduled_for(s: Scenario) -> None:
    await define(s)
    _, [id_] = await batch_of(s, 1)
    await s.complete(await s.lease_one())
    await s.engine.batches.attend_all()
    scheduled_for = s.now + DELAY
    s.tick(DELAY)
    await s.fail(await s.lease_one())
    waiting = await job_of(s, id_)
    assert (waiting.status, waiting.scheduled_for) == (JobStatus.RETRY, scheduled_for)
    s.tick(60)
    await s.fail(await s.lease_one(), category=Category.PERMANENT)
    await s.engine.retry(id_, RetryRequest(force=True))
    again = await job_of(s, id_)
    assert (again.round, again.scheduled_for, again.available_at) == (2, scheduled_for, s.now)
    await s.complete(await s.lease_one())


@on_both_stores
async def test_an_execution_alone_is_a_batch_of_one(s: Scenario) -> None:
    await define(s)
    id_ = await s.submit()
    await s.complete(await s.lease_one())
    job = await job_of(s, id_)
    assert (job.step, job.held_by, job.scheduled_for) == ("download", None, s.now + DELAY)
    assert len(of_type(await s.events(id_), EventType.BARRIER_OPENED)) == 1
    s.tick(DELAY)
    await s.complete(await s.lease_one())
    assert (await s.engine.view(id_)).status is ExecutionStatus.COMPLETED


@on_both_stores
async def test_what_was_leased_before_its_time_is_put_back_and_the_attempt_given_back(s: Scenario) -> None:
    await define(s)
    _, [id_] = await batch_of(s, 1)
    await s.complete(await s.lease_one())
    await s.engine.batches.attend_all()
    scheduled_for = s.now + DELAY
    claim = s.store.claim

    async def claim_by_a_clock_that_is_ahead(request: Any, now: float) -> Any:
        return await claim(request, now + DELAY)

    s.store.claim = claim_by_a_clock_that_is_ahead  # type: ignore[method-assign]
    assert await s.lease() == []
    s.store.claim = claim  # type: ignore[method-assign]
    job = await job_of(s, id_)
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)
    assert (job.available_at, job.scheduled_for) == (scheduled_for, scheduled_for)
    assert (await s.events(id_))[-1].type is EventType.LEASE_RELEASED
    s.tick(DELAY)
    await s.complete(await s.lease_one())


@on_both_stores
async def test_two_engines_open_a_barrier_once_and_one_that_died_in_the_middle_is_followed(
    s: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    await define(s)
    batch_id, ids = await batch_of(s, 4)
    for job in await leased_step(s, "request"):
        await s.complete(job)
    monkeypatch.setattr("holdfast.engine.batches.CHUNK_ITEMS", 1)
    amend, calls = s.store.amend_jobs, []

    async def die_after_two(*arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        await amend(*arguments, **options)

    s.store.amend_jobs = die_after_two  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        await s.engine.batches.attend_all()
    s.store.amend_jobs = amend  # type: ignore[method-assign]
    opened_at = s.now
    s.tick(30)
    assert [(await job_of(s, id_)).held_by for id_ in ids] == [None, None, "barrier", "barrier"]
    other = s.another_engine()
    assert await other.batches.attend_all() == 1
    assert await other.batches.attend_all() == 0
    view = await s.engine.batches.view(batch_id)
    assert view.barrier.opened_at == opened_at
    for id_ in ids:
        assert (await job_of(s, id_)).scheduled_for == opened_at + DELAY
        assert len(of_type(await s.events(id_), EventType.BARRIER_OPENED)) == 1


@on_both_stores
async def test_a_count_that_is_wrong_opens_nothing(s: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    """The counts only say when to look; the jobs decide."""
    await define(s)
    batch_id, ids = await batch_of(s, 2)
    first, second = await leased_step(s, "request")
    await s.complete(first)

    def miscount(batch: Any, _: Any) -> Any:
        gates = gates_of(batch)
        gates.barriers[0].unsettled = 0
        return with_gates(batch, gates)

    await s.store.amend_batch(batch_id, miscount, s.now)
    await s.engine.batches.attend_all()
    assert (await s.engine.batches.view(batch_id)).barrier.waits_for == 1
    assert "wrong" in caplog.text
    await s.complete(second)
    await s.engine.batches.attend_all()
    assert (await job_of(s, ids[0])).held_by is None


@on_both_stores
async def test_closing_a_batch_again_heals_a_count_that_is_too_high(
    s: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    await define(s)
    batch_id, ids = await batch_of(s, 1)

    def miscount(batch: Any, _: Any) -> Any:
        gates = gates_of(batch)
        gates.barriers[0].unsettled = 5
        return with_gates(batch, gates)

    await s.store.amend_batch(batch_id, miscount, s.now)
    await s.complete(await s.lease_one())
    assert await s.engine.batches.attend_all() == 0
    assert await s.engine.batches.close(batch_id) is False
    assert "put right" in caplog.text
    assert (await job_of(s, ids[0])).held_by is None


@on_both_stores
async def test_all_batches_that_wait_are_attended_to_at_once(
    s: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.batches.BATCHES_PER_PAGE", 2)
    await define(s)
    for _ in range(5):
        await batch_of(s, 1)
    for job in await leased_step(s, "request"):
        await s.complete(job)
    assert await s.engine.batches.attend_all() == 5
    assert await s.engine.batches.attend_all() == 0


@on_both_stores
async def test_one_batch_that_cannot_be_attended_to_does_not_stop_the_others(
    s: Scenario, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await define(s)
    batches = [await batch_of(s, 1) for _ in range(2)]
    for job in await leased_step(s, "request"):
        await s.complete(job)
    amend = s.store.amend_batch

    async def odd(batch_id: int, *arguments: Any, **options: Any) -> Any:
        if batch_id == batches[0][0]:
            raise ValueError("odd")
        return await amend(batch_id, *arguments, **options)

    s.store.amend_batch = odd  # type: ignore[method-assign]
    await s.engine.batches.attend_all()
    s.store.amend_batch = amend  # type: ignore[method-assign]
    assert "could not be looked after" in caplog.text
    held = [(await job_of(s, id_)).held_by for _, [id_] in batches]
    assert held == ["barrier", None]


# waves


@on_both_stores
async def test_failed_jobs_wait_for_the_others_and_go_again_together(s: Scenario) -> None:
    await define(s, wave=True)
    batch_id, ids = await batch_of(s, 4)
    for job in await leased_step(s, "request"):
        await s.complete(job)
    await s.engine.batches.attend_all()
    s.tick(DELAY)
    first, second, third, fourth = await leased_step(s, "download")
    await s.fail(first)
    s.tick(5)
    await s.fail(second, retry_after=300)
    await s.complete(third)
    await s.engine.batches.attend_all()
    s.tick(1_000)
    assert await s.lease() == []
    waiting = await job_of(s, ids[0])
    assert (waiting.status, waiting.held_by) == (JobStatus.RETRY, "wave 1")
    await s.fail(fourth, category=Category.PERMANENT)
    await s.engine.batches.attend_all()
    for id_ in ids[:2]:
        job = await job_of(s, id_)
        assert (job.held_by, job.available_at) == (None, s.now + 300)
        [started] = of_type(await s.events(id_), EventType.WAVE_STARTED)
        assert started.data == {"wave": 1, "available_at": s.now + 300}
    s.tick(299)
    assert await s.lease() == []
    s.tick(1)
    again = await leased_step(s, "download")
    assert [job.execution_id for job in again] == ids[:2]
    await s.fail(again[0])
    await s.engine.batches.attend_all()
    assert (await job_of(s, ids[0])).held_by == "wave 2"
    await s.complete(again[1])
    await s.engine.batches.attend_all()
    assert (await job_of(s, ids[0])).available_at == s.now + 180
    s.tick(180)
    await s.complete(await s.lease_one())
    assert (await s.engine.batches.view(batch_id)).executions == {
        "running": 0, "completed": 3, "failed": 1, "cancelled": 0,
    }  # fmt: skip


@on_both_stores
async def test_the_last_one_at_work_may_be_cancelled_or_lost(s: Scenario) -> None:
    await s.define(stage("a", 3, wave=True, initial_delay=10.0))
    _batch_id, ids = await batch_of(s, 3)
    first, second, _third = await s.lease()
    await s.fail(first)
    await s.engine.cancel(second.execution_id)
    s.tick(61)
    await s.engine.sweep()  # the third's worker is lost
    await s.engine.batches.attend_all()
    assert (await job_of(s, ids[0])).available_at == s.now + 10
    assert (await job_of(s, ids[2])).available_at == s.now + 10


@on_both_stores
async def test_alone_a_wave_is_a_plain_retry(s: Scenario) -> None:
    await s.define(stage("a", 3, wave=True, initial_delay=10.0))
    id_ = await s.submit()
    await s.fail(await s.lease_one())
    job = await job_of(s, id_)
    assert (job.held_by, job.available_at) == (None, s.now + 10)


# submitting


@on_both_stores
async def test_a_closed_batch_takes_nothing_more_and_loses_nothing(s: Scenario) -> None:
    await define(s)
    batch_id, _ids = await batch_of(s, 2)
    with pytest.raises(BatchClosed, match=f"Batch {batch_id} is closed"):
        await s.engine.batches.add(batch_id, [Submission(path="p")])
    view = await s.engine.batches.view(batch_id)
    assert (view.items, view.executions["running"]) == (2, 2)


@on_both_stores
async def test_keys_make_adding_safe_to_repeat(s: Scenario) -> None:
    await define(s)
    batch_id, created = await s.engine.batches.create("p", idempotency_key="june")
    again, made_again = await s.engine.batches.create("p", idempotency_key="june")
    assert (again, created, made_again) == (batch_id, True, False)
    items = [Submission(path="p", workload=n, idempotency_key=f"{n}") for n in range(3)]
    first = await s.engine.batches.add(batch_id, items[:2])
    second = await s.engine.batches.add(batch_id, items)
    assert [item.created for item in second] == [False, False, True]
    assert [item.id for item in second[:2]] == [item.id for item in first]
    await s.engine.batches.close(batch_id)
    assert [item.created for item in await s.engine.batches.add(batch_id, items)] == [False] * 3
    assert (await s.engine.batches.view(batch_id)).items == 3
    with pytest.raises(IdempotencyConflict):
        await s.engine.batches.add(batch_id, [Submission(path="p", workload=9, idempotency_key="0")])
    other, _ = await s.engine.batches.create("p")
    assert [item.created for item in await s.engine.batches.add(other, items)] == [True] * 3
    assert (await s.engine.batches.view(other)).barrier.waits_for == 3


@on_both_stores
async def test_an_empty_batch_is_over_when_it_is_closed(s: Scenario) -> None:
    await define(s)
    batch_id, _ = await batch_of(s, 0)
    view = await s.engine.batches.view(batch_id)
    assert (view.status, view.items, view.ends_at) == ("finished", 0, None)


@on_both_stores
async def test_all_items_have_the_version_that_the_batch_was_made_with(s: Scenario) -> None:
    await define(s)
    batch_id, _ = await batch_of(s, 1, close=False)
    await s.define(stage("other"))
    await s.engine.batches.add(batch_id, [Submission(path="p")])
    assert {job.step for job in await s.lease()} == {"request"}


@on_both_stores
async def test_what_is_not_there_is_told(s: Scenario) -> None:
    with pytest.raises(UnknownPipeline):
        await s.engine.batches.create("nothing")
    for act in (
        s.engine.batches.close(7),
        s.engine.batches.cancel(7),
        s.engine.batches.view(7),
        s.engine.batches.items(7),
        s.engine.batches.add(7, [Submission(path="p")]),
        s.engine.batches.view(2**70),
    ):
        with pytest.raises(UnknownBatch, match="There is no batch"):
            await act


# cancelling


@on_both_stores
async def test_a_cancelled_batch_ends_all_its_items_and_opens_nothing(s: Scenario) -> None:
    await define(s)
    batch_id, ids = await batch_of(s, 5, close=False)
    jobs = await leased_step(s, "request")
    await s.complete(jobs[0])
    await s.fail(jobs[1])
    assert await s.engine.batches.cancel(batch_id, by="ann") == 5
    assert await s.engine.batches.cancel(batch_id, by="bob") == 0
    view = await s.engine.batches.view(batch_id)
    assert (view.status, view.cancelled_by, view.executions["cancelled"]) == ("cancelled", "ann", 5)
    with pytest.raises(BatchClosed, match="is cancelled"):
        await s.engine.batches.add(batch_id, [Submission(path="p")])
    s.tick(10 * DELAY)
    assert await s.lease() == []
    assert await s.engine.batches.attend_all() == 0
    [ending] = of_type(await s.events(ids[0]), EventType.EXECUTION_CANCELLED)
    assert ending.data == {"by": "ann"}


@on_both_stores
async def test_a_batch_that_is_over_cannot_be_cancelled(s: Scenario) -> None:
    await s.define(stage("a"))
    batch_id, _ = await batch_of(s, 1)
    await s.complete(await s.lease_one())
    assert await s.engine.batches.cancel(batch_id) == 0
    view = await s.engine.batches.view(batch_id)
    assert (view.status, view.cancelled_at) == ("finished", None)


@on_both_stores
async def test_a_cancelled_item_has_not_failed(s: Scenario) -> None:
    await define(s)
    batch_id, ids = await batch_of(s, 1)
    await s.fail(await s.lease_one())
    await s.engine.cancel(ids[0])
    [item] = (await s.engine.batches.items(batch_id)).items
    assert (item.tracking["download"]["status"], item.tracking["download"]["error"]) == ("skipped", None)


# looking


@on_both_stores
async def test_items_come_by_pages_in_the_order_of_their_submission(s: Scenario) -> None:
    await define(s)
    batch_id, ids = await batch_of(s, 5)
    first = await s.lease_one()
    await s.fail(first)
    page = await s.engine.batches.items(batch_id, limit=3)
    rest = await s.engine.batches.items(batch_id, limit=3, cursor=page.next)
    assert [item.id for item in page.items + rest.items] == ids
    assert rest.next is None
    [failed] = [item for item in page.items if item.id == first.execution_id]
    assert failed.tracking["request"] == {
        "status": "pending",
        "attempts": 1,
        "last_attempt_at": s.now,
        "error": "connection_error: connection refused",
    }
    assert (await s.engine.batches.items(batch_id, status=ExecutionStatus.FAILED)).items == []


@on_both_stores
async def test_the_end_is_estimated_from_the_pace_and_the_delay(s: Scenario) -> None:
    await define(s)
    await s.staff()
    batch_id, _ = await batch_of(s, 4)
    assert (await s.engine.batches.view(batch_id)).ends_at is None
    for _ in range(2):
        await s.complete(await s.lease_one())
        s.tick(10)
    # Two requests in twenty seconds: twenty for the other two, the delay, forty for four downloads.
    assert (await s.engine.batches.view(batch_id)).ends_at == pytest.approx(s.now + 20 + DELAY + 40)


@on_both_stores
async def test_failures_of_a_batch_are_redriven_together(s: Scenario) -> None:
    await define(s)
    batch_id, ids = await batch_of(s, 3)
    alone = await s.submit()
    for job in await leased_step(s, "request"):
        await s.fail(job, category=Category.TRANSIENT, message="timed out")
    s.tick(60)
    for job in await leased_step(s, "request"):
        await s.fail(job, category=Category.TRANSIENT, message="timed out")
    redriven = [item async for part in s.engine.redrive(batch_id=batch_id) for item in part]
    assert [item.execution_id for item in redriven if item.is_redriven] == ids
    assert (await s.engine.view(alone)).status is ExecutionStatus.FAILED
    assert (await s.engine.batches.view(batch_id)).executions["running"] == 3


@on_both_stores
async def test_pruning_leaves_a_batch_whole_until_all_of_it_has_ended(s: Scenario) -> None:
    await define(s)
    batch_id, _ids = await batch_of(s, 2)
    first, second = await leased_step(s, "request")
    await s.fail(first, category=Category.PERMANENT)
    s.tick(1_000)
    assert await s.engine.prune(500) == 0
    await s.engine.cancel(second.execution_id)
    await s.engine.batches.attend_all()
    s.tick(1_000)
    assert await s.engine.prune(500) == 2
    with pytest.raises(UnknownBatch):
        await s.engine.batches.view(batch_id)
