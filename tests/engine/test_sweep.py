"""Ends that nobody reports: leases that ran out, jobs that kill their workers, deadlines."""

import asyncio

import asyncpg

from engine_scenario import START, Scenario, codes, completed, on_both_stores, ref, stage
from holdfast.core.failures import Failure
from holdfast.core.model import Completed, EventType, ExecutionStatus, Failed, Report
from holdfast.core.retry import RetryPolicy
from holdfast.engine import Engine, Submission
from holdfast.playbook.definition import Definition, Step
from holdfast.store import store_from_url
from running import run


@on_both_stores
async def test_only_leases_that_ran_out_are_swept_and_only_once(s: Scenario) -> None:
    await s.define(stage("a"))
    long, short = await s.submit(), await s.submit()
    await s.lease(1, lease_seconds=100)
    await s.lease(1, lease_seconds=50)
    assert await s.engine.sweep() == 0
    assert await s.lose(seconds=50) == 1
    assert await s.engine.sweep() == 0
    assert (await s.state(long), await s.state(short)) == ("leased 1/3", "retry 1/3")
    error = (await s.execution(short)).error
    assert error is not None
    assert (error.error_type, error.category, error.stage) == ("worker_lost", "transient", "a")
    assert error.rule == "the lease expired"


@on_both_stores
async def test_a_sweep_takes_a_bounded_number_and_the_rest_next_time(s: Scenario) -> None:
    await s.define(stage("a"))
    for _ in range(3):
        await s.submit()
    await s.lease()
    s.tick(61)
    assert [await s.engine.sweep(limit=2) for _ in range(3)] == [2, 1, 0]


@on_both_stores
async def test_a_lease_extended_while_the_sweep_looks_is_not_taken(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    job = await s.lease_one()
    s.tick(61)
    found = await s.store.expired(s.now, 10)
    assert found == [ref(job)]

    async def expired(now: float, limit: int) -> object:
        await s.engine.heartbeat([ref(job)])
        return found

    s.store.expired = expired  # type: ignore[assignment, method-assign]
    assert await s.engine.sweep() == 0
    assert await s.state(id_) == "leased 1/3"
    assert (await s.complete(job)).accepted


@on_both_stores
async def test_a_lease_whose_job_is_gone_meanwhile_is_left_out(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit()
    job = await s.lease_one()
    s.tick(61)
    found = await s.store.expired(s.now, 10)
    await s.complete(job)
    s.tick(1)
    assert await s.engine.prune(0) == 1

    async def expired(now: float, limit: int) -> object:
        return found

    s.store.expired = expired  # type: ignore[assignment, method-assign]
    assert await s.engine.sweep() == 0


@on_both_stores
async def test_a_job_that_kills_its_worker_while_alone_is_poisoned(s: Scenario) -> None:
    await s.define(stage("a", attempts=9, max_crashes=2))
    id_ = await s.submit()
    for alone in (False, True, True):
        assert await s.lease(alone=not alone) == []
        assert len(await s.lease(alone=alone)) == 1
        await s.lose()
        s.tick(60)
    row = await s.job(id_)
    assert (row.status, row.attempts, row.dead_reason) == ("dead", 3, "poisoned")
    assert (await s.told(id_))[-4:] == [
        *["lease_lost a", "action_error a", "step_failed_terminal a", "execution_failed"]
    ]


@on_both_stores
async def test_a_job_whose_own_process_dies_is_poisoned_though_no_lease_was_lost(s: Scenario) -> None:
    await s.define(stage("a", attempts=9, max_crashes=2))
    id_ = await s.submit()
    for alone in (False, True):
        [job] = await s.lease(alone=alone)
        report = Report(job.queue_id, job.fence, Failed(Failure(message="it fell"), crashed=True))
        assert [ack.accepted for ack in await s.engine.report([report])] == [True]
        s.tick(60)
    row = await s.job(id_)
    assert (row.status, row.attempts, row.dead_reason) == ("dead", 2, "poisoned")
    assert "lease_lost a" not in await s.told(id_)
    assert (await s.told(id_))[-3:] == ["action_error a", "step_failed_terminal a", "execution_failed"]


@on_both_stores
async def test_an_error_between_two_losses_is_no_crash(s: Scenario) -> None:
    await s.define(stage("a", attempts=9, max_crashes=2))
    id_ = await s.submit()
    await s.lease()
    await s.lose()
    s.tick(60)
    await s.lease(alone=True)
    await s.lose()
    s.tick(60)
    await s.fail(await s.lease_one(alone=True))
    assert await s.state(id_) == "retry 3/9"


@on_both_stores
async def test_lost_workers_use_up_the_attempts(s: Scenario) -> None:
    await s.define(stage("a", attempts=2))
    id_ = await s.submit()
    await s.lease()
    await s.lose()
    s.tick(60)
    await s.lease(alone=True)
    await s.lose()
    row = await s.job(id_)
    assert (row.status, row.attempts, row.dead_reason) == ("dead", 2, "exhausted")
    assert "step_retry_exhausted a" in await s.told(id_)
    error = (await s.execution(id_)).error
    assert error is not None
    assert "retry automatically" not in error.guidance.lower()


@on_both_stores
async def test_a_passed_deadline_fails_the_execution_and_its_worker_is_too_late(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"))
    id_ = await s.submit(deadline_seconds=100)
    assert (await s.execution(id_)).deadline_at == START + 100
    await s.complete(await s.lease_one())
    job = await s.lease_one(lease_seconds=500)
    s.tick(100)
    assert await s.engine.sweep() == 0
    s.tick(1)
    assert await s.engine.sweep() == 1
    assert await s.engine.sweep() == 0
    view = await s.engine.view(id_)
    assert view.execution.status is ExecutionStatus.FAILED
    assert view.summary.startswith("Failed at b: Processing did not finish in time.")
    assert view.execution.error is not None
    assert "deadline of 100 s" in view.execution.error.message
    assert await s.state(id_) == "cancelled 1/3"
    failed = await s.last_event(id_, EventType.EXECUTION_FAILED)
    assert (failed.data["reason"], failed.data["stage"]) == ("deadline", "b")
    assert codes(await s.report(completed(job))) == ["stale_lease"]
    assert codes(await s.engine.heartbeat([ref(job)])) == ["stale_lease"]


@on_both_stores
async def test_a_manual_retry_gives_an_execution_its_time_again(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit(deadline_seconds=100)
    s.tick(101)
    await s.engine.sweep()
    assert await s.state(id_) == "cancelled 0/3"
    await s.retry(id_)
    assert (await s.execution(id_)).deadline_at == s.now + 100
    s.tick(100)
    assert await s.engine.sweep() == 0
    await s.complete(await s.lease_one())
    s.tick(100)
    assert await s.engine.sweep() == 0
    assert (await s.execution(id_)).status is ExecutionStatus.COMPLETED


@on_both_stores
async def test_an_execution_that_ends_while_the_sweep_looks_keeps_its_end(s: Scenario) -> None:
    await s.define(stage("a"))
    ids = [await s.submit(deadline_seconds=100) for _ in range(2)]
    first, _ = await s.lease(lease_seconds=500)
    s.tick(101)
    await s.complete(first)

    async def overdue(now: float, limit: int) -> list[int]:
        return ids

    s.store.overdue = overdue  # type: ignore[method-assign]
    await s.engine.sweep()
    statuses = [(await s.execution(id_)).status for id_ in ids]
    assert statuses == [ExecutionStatus.COMPLETED, ExecutionStatus.FAILED]


@on_both_stores
async def test_a_deadline_reaches_a_job_in_every_live_state(s: Scenario) -> None:
    await s.define(stage("a"))
    ids = [await s.submit(deadline_seconds=50) for _ in range(3)]
    failing, _ = await s.lease(2)
    await s.fail(failing)
    assert [await s.state(id_) for id_ in ids] == ["retry 1/3", "leased 1/3", "queued 0/3"]
    s.tick(51)
    assert await s.engine.sweep() == 3
    assert [await s.state(id_) for id_ in ids] == ["cancelled 1/3", "cancelled 1/3", "cancelled 0/3"]


def test_a_row_that_somebody_holds_locked_keeps_neither_sweeps_nor_reports_waiting(postgres_url: str) -> None:
    async def main() -> None:
        clock = [1000.0]
        store = store_from_url(postgres_url, clock=lambda: clock[0])
        await store.open()
        engine = Engine(store)
        step = Step(name="only", handler="job/only", retry=RetryPolicy(max_attempts=3))
        await engine.register(Definition(path="job", steps=(step,)))
        await engine.submit([Submission(path="job"), Submission(path="job")])
        held, free = (await engine.lease("w", ["job/only"], 2, lease_seconds=10)).jobs
        clock[0] += 60  # a lease is longer by what it had to wait for its transaction
        connection = await asyncpg.connect(postgres_url)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT FROM holdfast.jobs WHERE id = $1 FOR UPDATE", held.queue_id)
        assert await asyncio.wait_for(engine.sweep(), 30) == 1
        acks = await asyncio.wait_for(engine.report([Report(free.queue_id, free.fence, Completed())]), 30)
        assert acks[0].code == "stale_lease"
        await transaction.rollback()
        await connection.close()
        assert await engine.sweep() == 1
        await store.close()

    run(main())
