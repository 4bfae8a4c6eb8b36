"""A death that nothing handles: what waits is cancelled, what runs is waited for, then it has failed."""

import pytest

from engine_scenario import Scenario, codes, completed, failed, on_both_stores
from flow_scenario import (
    ENDS,
    begin,
    control,
    each,
    end_somehow,
    finish,
    job,
    lease_all,
    states,
    status,
    to,
    told_of,
)
from holdfast.core.catalogue import Category

THREE = (
    control("start", to("a"), to("b"), to("c")),
    job("a", to("end"), attempts=2),
    job("b", to("end"), attempts=2),
    job("c", to("end"), attempts=2),
    job("end"),
)


@on_both_stores
async def test_queued_and_waiting_jobs_are_cancelled_and_leased_ones_finish_and_are_kept(s: Scenario) -> None:
    await s.define(
        control("start", to("dies"), to("leased"), to("retries"), to("fan"), to("sleeps")),
        job("dies"),
        job("leased", to("end")),
        job("retries", to("end")),
        each("fan", "{{ x }}", to("end"), concurrency=1),
        job("sleeps", to("end"), type="sleep", handler="type/sleep", config={"seconds": 3600}),
        job("end"),
    )
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, "dies", "leased", "retries", "fan")
    await s.complete(jobs["fan"], "[1,2,3]")
    await s.fail(jobs["retries"], "connection refused")
    assert await states(s, execution_id) == {
        "start": "done",
        "dies": "leased",
        "leased": "leased",
        "retries": "retry",
        "fan": "done",
        "fan[0]": "queued",
        "fan[1]": "queued",
        "fan[2]": "queued",
        "sleeps": "queued",
    }
    await s.fail(jobs["dies"], "no such file", category=Category.PERMANENT)
    assert await states(s, execution_id) == {
        "start": "done",
        "dies": "dead",
        "leased": "leased",
        "retries": "cancelled",
        "fan": "done",
        "fan[0]": "cancelled",
        "fan[1]": "cancelled",
        "fan[2]": "cancelled",
        "sleeps": "cancelled",
    }
    s.tick(7200)
    assert await lease_all(s) == {}
    view = await s.engine.view(execution_id)
    assert (view.execution.status, view.stage, view.summary) == ("running", "leased", "Running leased")
    await s.complete(jobs["leased"], '"kept"')
    view = await s.engine.view(execution_id)
    assert view.execution.status == "failed"
    assert view.execution.error is not None and view.execution.error.stage == "dies"
    assert (view.stage, view.result) == ("dies", None)
    assert view.summary.startswith("Failed at dies: ")
    assert view.outputs["leased"] == "kept"
    assert set(view.skipped) == {"retries", "fan", "sleeps"}
    assert (await s.told(execution_id))[-1] == "execution_failed"
    assert await told_of(s, execution_id, "execution_failed") == ["execution_failed"]


@pytest.mark.parametrize("how", ENDS)
@on_both_stores
async def test_however_the_last_attempt_under_way_ends_the_execution_fails_then(
    s: Scenario, how: str
) -> None:
    await s.define(*THREE)
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, "a", "b", "c")
    await s.fail(jobs["a"], "the cause", category=Category.PERMANENT)
    await s.complete(jobs["b"])
    assert await status(s, execution_id) == "running"
    await end_somehow(s, jobs["c"], how)
    execution = await s.execution(execution_id)
    assert execution.status == "failed"
    assert execution.error is not None and execution.error.message == "the cause"
    expected = {"completed": "done", "died": "dead"}.get(how, "cancelled")
    assert await states(s, execution_id) == {"start": "done", "a": "dead", "b": "done", "c": expected}
    assert (await s.told(execution_id))[-1] == "execution_failed"
    assert await told_of(s, execution_id, "execution_failed") == ["execution_failed"]
    assert execution.retry_count == 0


@on_both_stores
async def test_all_of_them_in_one_report(s: Scenario) -> None:
    await s.define(*THREE)
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, "a", "b", "c")
    acks = await s.report(
        completed(jobs["b"]),
        failed(jobs["a"], "no", category=Category.PERMANENT),
        failed(jobs["c"], "no either", category=Category.PERMANENT),
    )
    assert codes(acks) == ["accepted"] * 3
    assert await states(s, execution_id) == {"start": "done", "a": "dead", "b": "done", "c": "dead"}
    assert await status(s, execution_id) == "failed"
    assert await told_of(s, execution_id, "execution_failed") == ["execution_failed"]
    [failure] = (await s.engine.failures()).items
    assert failure.execution_id == execution_id


@on_both_stores
async def test_by_an_engine_that_leased_none_of_them(s: Scenario) -> None:
    await s.define(*THREE)
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, "a", "b", "c")
    other = s.another_engine()
    acks = await other.report([failed(jobs["a"], "no", category=Category.PERMANENT), completed(jobs["b"])])
    assert codes(acks) == ["accepted", "accepted"]
    assert codes(await other.report([completed(jobs["b"])])) == ["repeated"]
    assert await status(s, execution_id) == "running"
    assert codes(await s.another_engine().report([completed(jobs["c"])])) == ["accepted"]
    assert await status(s, execution_id) == "failed"


@on_both_stores
async def test_leases_of_all_branches_lost_at_once_end_the_execution_once(s: Scenario) -> None:
    await s.define(control("start", to("a"), to("b")), job("a", attempts=1), job("b", attempts=1))
    execution_id = await s.submit()
    await finish(s, "start")
    await begin(s, "a", "b")
    assert await s.lose() == 2
    assert await status(s, execution_id) == "failed"
    assert await states(s, execution_id) == {"start": "done", "a": "dead", "b": "dead"}
    assert await told_of(s, execution_id, "execution_failed") == ["execution_failed"]


@on_both_stores
async def test_a_deadline_ends_everything_that_is_live(s: Scenario) -> None:
    await s.define(*THREE)
    execution_id = await s.submit(deadline_seconds=30)
    await finish(s, "start")
    jobs = await begin(s, "a", "b", "c")
    await s.fail(jobs["b"])
    await s.complete(jobs["c"])
    s.tick(31)
    await s.engine.sweep()
    assert await states(s, execution_id) == {"start": "done", "a": "cancelled", "b": "cancelled", "c": "done"}
    execution = await s.execution(execution_id)
    assert execution.status == "failed"
    assert execution.error is not None and execution.error.error_type == "timeout"
    assert codes(await s.report(completed(jobs["a"]))) == ["stale_lease"]
    [failure] = (await s.engine.failures()).items
    assert failure.dead_reason == "deadline"
    # It is retried with its time again: what was not done is done, what was done is kept.
    await s.retry(execution_id)
    await finish(s, "a", "b")
    await finish(s, "end")
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_deadline_that_comes_while_the_last_attempt_is_waited_for(s: Scenario) -> None:
    await s.define(*THREE)
    execution_id = await s.submit(deadline_seconds=30)
    await finish(s, "start")
    jobs = await begin(s, "a", "b", "c")
    await s.fail(jobs["a"], "the cause", category=Category.PERMANENT)
    await s.complete(jobs["b"])
    s.tick(31)
    await s.engine.sweep()
    assert await status(s, execution_id) == "failed"
    assert await states(s, execution_id) == {"start": "done", "a": "dead", "b": "done", "c": "cancelled"}
    assert await told_of(s, execution_id, "execution_failed") == ["execution_failed"]
    s.tick(61)
    await s.retry(execution_id)
    await finish(s, "a", "c")
    await finish(s, "end")
    assert await status(s, execution_id) == "completed"


@pytest.mark.parametrize("failing", [False, True])
@on_both_stores
async def test_a_cancel_ends_everything_that_is_live(s: Scenario, failing: bool) -> None:
    await s.define(*THREE)
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, "a", "b", "c")
    if failing:
        await s.fail(jobs["a"], "no", category=Category.PERMANENT)
    assert await s.engine.cancel(execution_id)
    assert await status(s, execution_id) == "cancelled"
    assert await states(s, execution_id) == {
        "start": "done",
        "a": "dead" if failing else "cancelled",
        "b": "cancelled",
        "c": "cancelled",
    }
    for name in ("b", "c"):
        assert codes(await s.report(completed(jobs[name]))) == ["stale_lease"]
    assert await status(s, execution_id) == "cancelled"
