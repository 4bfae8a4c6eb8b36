"""Completed attempts of leases that this engine gave out: settled against their fences, all or none, and with
the same rows as the way under lock leaves."""

from typing import Any

import pytest

from engine_scenario import Scenario, codes, completed, failed, on_both_stores, ref, stage
from holdfast.engine import held as remembered
from holdfast.playbook.definition import Barrier


class Locking:
    """The store, counting the transactions that load and lock the rows of reports first."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.locked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def amend_jobs(self, *args: Any, **options: Any) -> None:
        self.locked += 1
        await self._store.amend_jobs(*args, **options)


async def watched(s: Scenario) -> Locking:
    store = Locking(s.store)
    s.engine = await s.engine_on(store)
    return store


@on_both_stores
async def test_a_held_attempt_is_completed_without_its_rows_being_loaded(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"))
    store = await watched(s)
    ids = [await s.submit() for _ in range(5)]
    assert (
        codes(await s.report(*[completed(job, '{"x":"é"}') for job in await s.lease()])) == ["accepted"] * 5
    )
    assert codes(await s.report(*[completed(job) for job in await s.lease()])) == ["accepted"] * 5
    assert store.locked == 0
    for id_ in ids:
        view = await s.engine.view(id_)
        assert (view.status, view.outputs) == ("completed", {"a": {"x": "é"}, "b": None})


@on_both_stores
async def test_both_ways_leave_the_same_rows_and_events(s: Scenario) -> None:
    await s.define(stage("a", limit="portal"), stage("b", operation="fetch", priority=3))
    left = []
    for way in ("held", "locked"):
        id_ = await s.submit({"n": 1})
        for _ in range(2):
            job = await s.lease_one()
            reporter = s.engine if way == "held" else s.another_engine()
            assert codes(await reporter.report([completed(job, '{"done":true}')])) == ["accepted"]
        view = await s.engine.view(id_)
        jobs = await s.jobs(id_)
        left.append(
            (
                [(event.type, event.step, event.at, event.data) for event in await s.events(id_)],
                [
                    (row.step, row.status, row.attempts, row.output, row.rank, row.limit, row.finished_at)
                    for row in jobs
                ],
                (view.status, view.execution.last_completed_stage, view.execution.finished_at),
            )
        )
    assert left[0] == left[1]


@on_both_stores
async def test_where_one_lease_is_gone_each_report_still_gets_its_own_answer(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"))
    cancelled, done, broken = [await s.submit() for _ in range(3)]
    jobs = await s.lease()
    await s.engine.cancel(cancelled)
    reports = [completed(jobs[0]), completed(jobs[1]), failed(jobs[2])]
    assert codes(await s.report(*reports)) == ["stale_lease", "accepted", "accepted"]
    assert (await s.execution(cancelled)).status == "cancelled"
    assert (await s.job(done)).step == "b"
    assert await s.state(broken) == "retry 1/3"
    assert codes(await s.report(*reports)) == ["stale_lease", "repeated", "repeated"]


@on_both_stores
async def test_an_attempt_that_was_given_back_or_lost_is_not_completed_by_its_old_lease(s: Scenario) -> None:
    await s.define(stage("a", attempts=5))
    id_ = await s.submit()
    given_back = await s.lease_one()
    await s.engine.release([ref(given_back)])
    lost = await s.lease_one()
    await s.lose()
    s.tick(10)
    current = await s.lease_one(alone=True)
    acks = await s.report(completed(given_back), completed(lost), completed(current))
    assert codes(acks) == ["stale_lease", "stale_lease", "accepted"]
    assert (await s.execution(id_)).status == "completed"


@on_both_stores
async def test_steps_whose_batch_counts_gates_are_settled_under_lock(s: Scenario) -> None:
    await s.define(stage("a"), stage("b", barrier=Barrier(after="a", delay_seconds=5.0)))
    store = await watched(s)
    id_ = await s.submit()
    await s.complete(await s.lease_one())
    assert store.locked == 1
    assert (await s.job(id_)).scheduled_for == s.now + 5.0


@on_both_stores
async def test_a_step_with_a_lane_of_its_own_hands_over_in_the_lane_of_the_execution(s: Scenario) -> None:
    await s.define(stage("a", lane="manual"), stage("b"))
    id_ = await s.submit()
    await s.complete(await s.lease_one())
    assert [job.lane for job in await s.jobs(id_)] == ["manual", "bulk"]


@on_both_stores
async def test_the_oldest_leases_are_forgotten_and_settled_all_the_same(
    s: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "LEASES_MAX", 2)
    await s.define(stage("a"))
    store = await watched(s)
    for _ in range(4):
        await s.submit()
    jobs = await s.lease()
    assert codes(await s.report(*[completed(job) for job in jobs])) == ["accepted"] * 4
    assert store.locked == 1


@on_both_stores
async def test_what_the_store_refuses_is_answered_by_itself(s: Scenario) -> None:
    """However it comes about: the others of the same transaction are kept."""
    await s.define(stage("a"))
    fine, broken = await s.submit(), await s.submit()
    jobs = await s.lease()

    class Refusing(Locking):
        async def complete_held(self, stages: Any, now: float) -> bool:
            raise ValueError("a value that is none")

    store = Refusing(s.store)
    engine = s.engine
    engine._reporting._store = store  # type: ignore[assignment]
    assert codes(await s.report(*[completed(job) for job in jobs])) == ["accepted"] * 2
    assert {(await s.execution(id_)).status for id_ in (fine, broken)} == {"completed"}


@on_both_stores
async def test_a_lease_completed_in_a_handlers_transaction_is_not_remembered(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit("x" * 1_000)
    job = await s.lease_one()
    transaction = s.engine.transaction()
    await transaction.execute("SELECT 1", ())
    assert (await transaction.complete(completed(job), job.definition_id)).accepted
    assert s.engine._reporting.held._leases == {}
    assert s.engine._reporting.held._workload_chars == 0


@on_both_stores
async def test_what_is_remembered_of_leases_is_bounded_by_its_size_too(
    s: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "WORKLOAD_CHARS_MAX", 2_500)
    await s.define(stage("a"))
    for _ in range(5):
        await s.submit("x" * 998)
    jobs = await s.lease()
    assert len(s.engine._reporting.held._leases) == 2
    assert codes(await s.report(*[completed(job) for job in jobs])) == ["accepted"] * 5
    assert s.engine._reporting.held._workload_chars == 0
