"""A retry asked for by a person: where it resumes, what it keeps, and what it clears."""

import pytest

from engine_scenario import Scenario, completed, on_both_stores, stage
from holdfast.core.errors import InvalidInput, UnknownExecution, UnknownStep
from holdfast.core.model import EventType, ExecutionStatus

STAGES = (stage("a", attempts=1), stage("b", attempts=1), stage("c", attempts=1), stage("d", attempts=1))


async def failed_at_c(s: Scenario) -> int:
    """Of four stages two are complete, and the third is dead."""
    await s.define(*STAGES)
    id_ = await s.submit({"n": 1})
    await s.complete(await s.lease_one(), '"a1"')
    await s.complete(await s.lease_one(), '"b1"')
    await s.fail(await s.lease_one())
    return id_


@on_both_stores
async def test_a_retry_resumes_at_the_failed_stage_with_earlier_work_kept(s: Scenario) -> None:
    id_ = await failed_at_c(s)
    await s.retry(id_)
    view = await s.engine.view(id_)
    assert (view.execution.status, view.stage, view.execution.round) == (ExecutionStatus.RUNNING, "c", 2)
    assert (view.execution.error, view.execution.last_completed_stage) == (None, "b")
    assert view.outputs == {"a": "a1", "b": "b1"}
    job = await s.lease_one()
    assert (job.step, job.round, job.attempt, job.clear) == ("c", 2, 1, ("c",))
    assert job.outputs == {"a": '"a1"', "b": '"b1"'}
    await s.complete(job, '"c2"')
    last = await s.lease_one()
    assert (last.step, last.round, last.clear) == ("d", 2, ())
    await s.complete(last)
    execution = await s.execution(id_)
    assert (execution.status, execution.error) == (ExecutionStatus.COMPLETED, None)
    assert [note.stage for note in execution.retry_history] == ["c"]
    assert execution.manual_retries == 1


@on_both_stores
async def test_a_retry_from_an_earlier_stage_clears_what_follows_it(s: Scenario) -> None:
    id_ = await failed_at_c(s)
    await s.retry(id_, from_stage="b")
    view = await s.engine.view(id_)
    assert view.execution.last_completed_stage == "a"
    assert view.outputs == {"a": "a1"}
    assert (await s.told(id_))[-3:] == ["manual_retry", "step_skipped a", "step_started b"]
    job = await s.lease_one()
    assert (job.step, job.clear, job.outputs) == ("b", ("c", "b"), {"a": '"a1"'})
    await s.complete(job, '"b2"')
    job = await s.lease_one()
    assert (job.step, job.clear, job.outputs) == ("c", (), {"a": '"a1"', "b": '"b2"'})
    assert (await s.engine.view(id_)).outputs == {"a": "a1", "b": "b2"}


@on_both_stores
async def test_a_full_retry_starts_at_the_first_stage_once_it_is_confirmed(s: Scenario) -> None:
    id_ = await failed_at_c(s)
    await s.retry(id_, full=True, confirm=True)
    view = await s.engine.view(id_)
    assert (view.execution.last_completed_stage, view.outputs) == (None, {})
    job = await s.lease_one()
    assert (job.step, job.clear, job.outputs) == ("a", ("c", "b", "a"), {})
    assert (await s.last_event(id_, EventType.MANUAL_RETRY)).data["from_stage"] == "a"
    assert "step_skipped a" not in await s.told(id_)


@on_both_stores
async def test_a_full_retry_that_loses_nothing_needs_no_confirmation(s: Scenario) -> None:
    await s.define(*STAGES)
    id_ = await s.submit()
    await s.fail(await s.lease_one())
    await s.retry(id_, full=True)
    assert (await s.lease_one()).clear == ("a",)


@on_both_stores
async def test_a_clear_that_no_attempt_came_to_is_asked_for_until_one_does(s: Scenario) -> None:
    id_ = await failed_at_c(s)
    await s.retry(id_, full=True, confirm=True)
    assert (await s.lease_one()).clear == ("c", "b", "a")
    await s.lose()
    assert (await s.job(id_)).status == "dead"
    await s.retry(id_, force=True)
    job = await s.lease_one()
    assert (job.step, job.clear) == ("a", ("c", "b", "a"))
    await s.fail(job, cleared=True)
    s.tick(61)
    await s.retry(id_)
    assert (await s.lease_one()).clear == ("a",)


@on_both_stores
async def test_within_a_round_a_clear_runs_again_only_where_it_had_not_run(s: Scenario) -> None:
    await s.define(stage("a", attempts=3))
    id_ = await s.submit()
    await s.run_to_failure()
    await s.retry(id_)
    await s.fail(await s.lease_one(), cleared=False)
    s.tick(1)
    second = await s.lease_one()
    await s.fail(second, cleared=True)
    s.tick(2)
    assert (second.clear, (await s.lease_one()).clear) == (("a",), ())


@on_both_stores
async def test_wrong_stages_are_refused_and_nothing_changes(s: Scenario) -> None:
    id_ = await failed_at_c(s)
    with pytest.raises(UnknownStep, match="no step 'x'") as unknown:
        await s.retry(id_, from_stage="x")
    assert unknown.value.guidance == "Its steps are: a, b, c, d."
    with pytest.raises(InvalidInput, match="failed at c, before d") as later:
        await s.retry(id_, from_stage="d")
    assert later.value.guidance == "Retry from c or an earlier stage."
    with pytest.raises(InvalidInput, match="exclude each other"):
        await s.retry(id_, from_stage="a", full=True)
    with pytest.raises(InvalidInput, match="name of who asks"):
        await s.retry(id_, by="ann\0")
    assert (await s.execution(id_)).manual_retries == 0
    await s.retry(id_, from_stage="c")


@on_both_stores
async def test_an_unknown_execution_cannot_be_retried(s: Scenario) -> None:
    for id_ in (4711, 0, -1, 2**70):
        with pytest.raises(UnknownExecution, match=f"no execution {id_}"):
            await s.retry(id_)


@on_both_stores
async def test_dead_rows_stay_as_history_and_leave_the_list_of_dead_jobs(s: Scenario) -> None:
    id_ = await failed_at_c(s)
    other = await s.submit()
    await s.fail(await s.lease_one())
    dead = (await s.engine.queue(status="dead")).items
    assert [job.execution_id for job in dead] == [id_, other]
    await s.retry(id_)
    dead = (await s.engine.queue(status="dead")).items
    assert [job.execution_id for job in dead] == [other]
    rows = [(job.step, job.round, job.status) for job in await s.jobs(id_)]
    assert rows == [("a", 1, "done"), ("b", 1, "done"), ("c", 1, "dead"), ("c", 2, "queued")]
    zombie = (await s.jobs(id_))[2]
    assert zombie.dead_reason == "exhausted"
    await s.fail(await s.lease_one())
    dead = (await s.engine.queue(status="dead")).items
    assert [(job.execution_id, job.round) for job in dead] == [(other, 1), (id_, 2)]


@on_both_stores
async def test_a_report_of_the_old_round_cannot_touch_the_new_one(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    id_ = await s.submit()
    old = await s.run_to_failure()
    await s.retry(id_)
    [ack] = await s.report(completed(old))
    assert not ack.accepted
    assert await s.state(id_) == "queued 0/1"
