"""Who holds the fence may speak of the attempt, and nobody else: stale, repeated and different reports."""

import asyncio

from engine_scenario import Scenario, codes, completed, failed, on_both_stores, ref, stage


@on_both_stores
async def test_a_stale_fence_can_do_nothing(s: Scenario) -> None:
    await s.define(stage("a", attempts=5))
    id_ = await s.submit()
    zombie = await s.lease_one()
    await s.lose()
    s.tick(1)
    current = await s.lease_one(alone=True)
    before = (await s.jobs(id_), await s.events(id_))
    assert codes(await s.report(completed(zombie), failed(zombie))) == ["stale_lease"] * 2
    assert codes(await s.engine.heartbeat([ref(zombie)])) == ["stale_lease"]
    assert codes(await s.engine.release([ref(zombie)])) == ["stale_lease"]
    assert (await s.jobs(id_), await s.events(id_)) == before
    assert (await s.complete(current)).accepted


@on_both_stores
async def test_the_report_of_a_lost_worker_that_was_not_leased_again_is_stale(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    zombie = await s.lease_one()
    await s.lose()
    assert codes([await s.complete(zombie), await s.fail(zombie)]) == ["stale_lease"] * 2
    assert await s.state(id_) == "retry 1/3"


@on_both_stores
async def test_the_same_report_again_is_accepted_and_changes_nothing(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"))
    done, broken = await s.submit(), await s.submit()
    first, second = await s.lease()
    reports = [completed(first, '{"x":1}'), failed(second, "connection reset", stack_trace="t")]
    assert codes(await s.report(*reports)) == ["accepted"] * 2
    before = [await s.events(done), await s.events(broken), await s.jobs(done), await s.jobs(broken)]
    s.tick(5)
    assert codes(await s.report(*reports)) == ["repeated"] * 2
    assert before == [await s.events(done), await s.events(broken), await s.jobs(done), await s.jobs(broken)]


@on_both_stores
async def test_the_same_report_twice_in_one_list_changes_state_once(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"))
    done, broken = await s.submit(), await s.submit()
    first, second = await s.lease()
    acks = await s.report(completed(first), failed(second), failed(second), completed(first))
    assert codes(acks) == ["accepted", "accepted", "repeated", "repeated"]
    assert (await s.told(done)).count("step_started b") == 1
    assert await s.state(broken) == "retry 1/3"


@on_both_stores
async def test_the_same_report_from_two_callers_at_once_changes_state_once(s: Scenario) -> None:
    await s.define(stage("a"))
    done, broken = await s.submit(), await s.submit()
    first, second = await s.lease()
    reports = [completed(first), failed(second), completed(first), failed(second)]
    answers = await asyncio.gather(*(s.report(report) for report in reports))
    assert sorted(code for acks in answers for code in codes(acks)) == ["accepted"] * 2 + ["repeated"] * 2
    assert (await s.told(done)).count("action_completed a") == 1
    assert (await s.told(broken)).count("action_error a") == 1


@on_both_stores
async def test_a_different_outcome_of_a_settled_attempt_is_stale(s: Scenario) -> None:
    await s.define(stage("a"))
    done, broken = await s.submit(), await s.submit()
    first, second = await s.lease()
    await s.report(completed(first, "1"), failed(second, "connection reset"))
    acks = await s.report(
        completed(first, "2"),
        failed(first),
        failed(second, "connection refused"),
        failed(second, "connection reset", status_code=503),
        completed(second),
    )
    assert codes(acks) == ["stale_lease"] * 5
    assert await s.state(done) == "done 1/3"
    assert await s.state(broken) == "retry 1/3"
    assert "abandon the attempt" in acks[0].message


@on_both_stores
async def test_of_two_outcomes_in_one_list_the_first_counts(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    job = await s.lease_one()
    assert codes(await s.report(completed(job), failed(job))) == ["accepted", "stale_lease"]
    assert await s.state(id_) == "done 1/3"


@on_both_stores
async def test_a_report_older_than_the_last_settled_one_is_stale(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit()
    first = await s.lease_one()
    await s.fail(first)
    s.tick(1)
    await s.complete(await s.lease_one())
    assert codes([await s.fail(first)]) == ["stale_lease"]


@on_both_stores
async def test_a_released_fence_is_stale_even_though_its_number_is_used_again(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    released = await s.lease_one()
    assert codes(await s.engine.release([ref(released), ref(released)])) == ["accepted", "stale_lease"]
    assert codes(await s.report(completed(released))) == ["stale_lease"]
    again = await s.lease_one()
    assert (again.attempt, again.queue_id) == (released.attempt, released.queue_id)
    assert codes(await s.report(completed(released), failed(released))) == ["stale_lease"] * 2
    assert codes(await s.engine.heartbeat([ref(released), ref(again)])) == ["stale_lease", "accepted"]
    assert await s.state(id_) == "leased 1/3"


@on_both_stores
async def test_a_fence_is_never_given_out_twice(s: Scenario) -> None:
    await s.define(stage("a", attempts=3))
    id_ = await s.submit()
    fences = []
    for _ in range(3):
        job = await s.lease_one()
        fences.append(job.fence)
        await s.engine.release([ref(job)])
    for _ in range(3):
        s.tick(60)
        job = await s.lease_one()
        fences.append(job.fence)
        await s.fail(job)
    await s.retry(id_)
    fences.append((await s.lease_one()).fence)
    assert len(set(fences)) == len(fences) == 7


@on_both_stores
async def test_a_heartbeat_extends_the_lease_and_is_seen(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    job = await s.lease_one(lease_seconds=60)
    s.tick(50)
    assert codes(await s.engine.heartbeat([ref(job)], lease_seconds=90)) == ["accepted"]
    row = await s.job(id_)
    assert (row.last_heartbeat, row.lease_until) == (s.now, s.now + 90)
    s.tick(80)
    assert await s.engine.sweep() == 0
    assert (await s.complete(job)).accepted


@on_both_stores
async def test_an_expired_lease_that_nobody_swept_still_reports(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    job = await s.lease_one()
    s.tick(1_000)
    assert (await s.complete(job)).accepted
    assert await s.engine.sweep() == 0
    assert await s.state(id_) == "done 1/3"


@on_both_stores
async def test_nothing_said_is_answered_by_nothing(s: Scenario) -> None:
    assert await s.engine.report([]) == []
    assert await s.engine.heartbeat([]) == []
    assert await s.engine.release([]) == []
