"""Ending an execution by hand, and forgetting those that ended long ago."""

import pytest

from engine_scenario import Scenario, codes, completed, failed, on_both_stores, ref, stage
from holdfast.core.errors import InvalidInput, UnknownExecution
from holdfast.core.model import EventType, ExecutionStatus


@on_both_stores
async def test_a_running_execution_is_cancelled_and_its_worker_is_told(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"))
    id_ = await s.submit()
    await s.complete(await s.lease_one())
    job = await s.lease_one()
    assert await s.engine.cancel(id_, by="ann") is True
    assert await s.told(id_) == [
        *["execution_started", "step_started a", "action_started a", "action_completed a"],
        *["step_completed a", "step_started b", "action_started b", "execution_cancelled"],
    ]
    assert (await s.last_event(id_, EventType.EXECUTION_CANCELLED)).data == {"by": "ann"}
    assert [job.status for job in await s.jobs(id_)] == ["done", "cancelled"]
    view = await s.engine.view(id_)
    assert (view.summary, view.outputs) == ("Cancelled", {"a": None})
    assert codes(await s.engine.heartbeat([ref(job)])) == ["stale_lease"]
    assert codes(await s.report(completed(job), failed(job))) == ["stale_lease"] * 2
    assert codes(await s.engine.release([ref(job)])) == ["stale_lease"]
    assert await s.lease() == []


@on_both_stores
async def test_queued_and_waiting_jobs_are_cancelled_too(s: Scenario) -> None:
    await s.define(stage("a"))
    waiting, queued = await s.submit(), await s.submit()
    await s.fail(await s.lease_one())
    for id_ in (waiting, queued):
        assert await s.engine.cancel(id_)
    assert (await s.state(waiting), await s.state(queued)) == ("cancelled 1/3", "cancelled 0/3")
    s.tick(60)
    assert await s.lease() == []


@on_both_stores
async def test_what_has_ended_stays_as_it_ended(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    cancelled, complete, dead = [await s.submit() for _ in range(3)]
    await s.engine.cancel(cancelled)
    first, second = await s.lease()
    await s.report(completed(first), failed(second))
    for id_, status in (
        (cancelled, ExecutionStatus.CANCELLED),
        (complete, ExecutionStatus.COMPLETED),
        (dead, ExecutionStatus.FAILED),
    ):
        before = await s.told(id_)
        assert await s.engine.cancel(id_) is False
        assert (await s.execution(id_)).status is status
        assert await s.told(id_) == before


@on_both_stores
async def test_what_cannot_be_cancelled_is_refused(s: Scenario) -> None:
    for id_ in (4711, 0, 2**70):
        with pytest.raises(UnknownExecution, match=f"no execution {id_}"):
            await s.engine.cancel(id_)
    await s.define(stage("a"))
    id_ = await s.submit()
    with pytest.raises(InvalidInput, match="name of who asks"):
        await s.engine.cancel(id_, by="\ud800")
    assert (await s.execution(id_)).status is ExecutionStatus.RUNNING


@on_both_stores
async def test_pruning_forgets_what_ended_long_ago_and_frees_its_key(s: Scenario) -> None:
    await s.define(stage("a"))
    old = await s.submit("first", idempotency_key="k")
    await s.complete(await s.lease_one())
    s.tick(100)
    recent, running = await s.submit(), await s.submit(delay_seconds=1)
    await s.complete(await s.lease_one())
    s.tick(1)
    assert await s.engine.prune(100) == 1
    assert await s.engine.prune(100) == 0
    assert [item.id for item in (await s.engine.executions()).items] == [running, recent]
    assert await s.events(old) == []
    assert await s.jobs(old) == []
    with pytest.raises(UnknownExecution):
        await s.engine.view(old)
    again = await s.submit("another workload", idempotency_key="k")
    assert again not in (old, recent, running)


@on_both_stores
async def test_pruning_takes_a_bounded_number(s: Scenario) -> None:
    await s.define(stage("a"))
    for _ in range(3):
        await s.engine.cancel(await s.submit())
    s.tick(10)
    assert [await s.engine.prune(5, limit=2) for _ in range(3)] == [2, 1, 0]


@on_both_stores
async def test_an_execution_pruned_while_it_is_looked_at_is_unknown(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    await s.engine.cancel(id_)
    row = await s.store.execution(id_)
    s.tick(10)
    await s.engine.prune(5)

    async def execution(execution_id: int) -> object:
        return row

    s.store.execution = execution  # type: ignore[assignment, method-assign]
    with pytest.raises(UnknownExecution):
        await s.engine.view(id_)
