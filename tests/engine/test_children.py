"""Child executions: started for a step that waits for them, ended with it, and repaired wherever a process
may die in between.

A crash is told by `crashed()`: the store's part of a verb has been done, and nothing that follows it.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from engine_scenario import Scenario, codes, completed, on_both_stores, ref, stage
from flow_scenario import begin, control, finish, job, lease_all, states, status, to, told_of
from holdfast.core.catalogue import Category
from holdfast.core.errors import InvalidInput, RetryRefused
from holdfast.core.model import Deferred, Leased, Report
from holdfast.engine import Engine, Submission
from holdfast.engine.children import DEPTH_MAX, Children


def calling(name: str, *edges: Any, playbook: str = "{{ workload.path }}", **fields: Any) -> Any:
    return job(name, *edges, type="playbook", handler="type/playbook", config={"path": playbook}, **fields)


async def define_family(s: Scenario, *, attempts: int = 3) -> None:
    """A parent whose step `call` waits for a child of path `child`."""
    await s.define(calling("call", to("after", got="{{ call.data }}"), attempts=attempts), job("after"))
    await s.define(stage("work", path="child"), path="child")


def wants(leased: Leased, path: str = "child", workload: Any = None, version: int | None = None) -> Report:
    asked = {"path": path, "version": version, "workload": workload or {}}
    return Report(leased.queue_id, leased.fence, Deferred(child=json.dumps(asked)))


async def call_child(s: Scenario, **asked: Any) -> Leased:
    """The parent's step asks for its child."""
    [call] = (await begin(s, "call")).values()
    assert codes(await s.report(wants(call, **asked))) == ["accepted"]
    return call


async def children_of(s: Scenario, path: str = "child") -> list[int]:
    """The oldest first."""
    return sorted(row.id for row in (await s.engine.executions(path=path)).items)


def told_child(leased: Leased) -> dict[str, Any]:
    parked: dict[str, Any] = json.loads(leased.parked or "{}")
    return parked


@contextmanager
def crashed(engine: Engine) -> Iterator[None]:
    """Nobody of this process goes on with children."""

    class Nobody(Children):
        async def attend(self, job_ids: Any) -> None:
            pass

    own = engine._children
    nobody = Nobody.__new__(Nobody)
    nobody.__dict__.update(own.__dict__)
    engine._children = engine._reporting._children = nobody
    try:
        yield
    finally:
        engine._children = engine._reporting._children = own


@on_both_stores
async def test_a_child_is_started_and_its_result_handed_to_the_step_that_waited(s: Scenario) -> None:
    await define_family(s)
    execution_id = await s.submit(lane="manual")
    call = await call_child(s, workload={"n": 7})
    assert await s.state(execution_id) == "queued 0/3"
    view = await s.engine.view(execution_id)
    [child_id] = await children_of(s)
    assert "child" in view.summary and str(child_id) in view.summary
    child = await s.execution(child_id)
    assert (child.workload, child.lane, child.status) == ({"n": 7}, "manual", "running")
    # The same report again starts no other.
    assert codes(await s.report(wants(call, workload={"n": 7}))) == ["repeated"]
    jobs = await begin(s, "work")
    await s.complete(jobs["work"], '{"sum": 12}')
    [call] = (await begin(s, "call")).values()
    assert call.attempt == 1
    assert told_child(call)["child"] == {
        "id": child_id,
        "status": "completed",
        "result": {"sum": 12},
        "error": None,
    }
    await s.complete(call, json.dumps({"execution_id": child_id, "data": {"sum": 12}}))
    [after] = (await begin(s, "after")).values()
    assert json.loads(after.input) == {"got": {"sum": 12}}
    await s.complete(after)
    assert await status(s, execution_id) == "completed"
    assert await children_of(s) == [child_id]


@on_both_stores
async def test_a_child_of_steps_that_branch_gives_the_results_of_its_last_ones(s: Scenario) -> None:
    await s.define(calling("call"))
    await s.define(
        control("start", to("one"), to("two")),
        job("one", path="child"),
        job("two", path="child"),
        path="child",
    )
    await s.submit()
    await call_child(s)
    await finish(s, "start")
    await finish(s, one=1, two=2)
    [call] = (await begin(s, "call")).values()
    assert told_child(call)["child"]["result"] == {"one": 1, "two": 2}


@on_both_stores
async def test_a_child_of_a_version_that_is_named(s: Scenario) -> None:
    await s.define(calling("call"))
    await s.define(stage("old", path="child"), path="child")
    await s.define(stage("new", path="child"), path="child")
    await s.submit()
    await call_child(s, version=1)
    await finish(s, "old")
    [call] = (await begin(s, "call")).values()
    assert told_child(call)["child"]["status"] == "completed"


@on_both_stores
async def test_a_failed_child_is_told_with_its_error_and_the_next_attempt_gets_another_child(
    s: Scenario,
) -> None:
    await define_family(s)
    execution_id = await s.submit()
    await call_child(s)
    jobs = await begin(s, "work")
    await s.fail(jobs["work"], "no such file", category=Category.PERMANENT)
    [call] = (await begin(s, "call")).values()
    told = told_child(call)["child"]
    assert (told["status"], told["error"]["category"], told["error"]["stage"]) == (
        "failed",
        "permanent",
        "work",
    )
    assert told["error"]["message"] == "no such file"
    await s.fail(call, "the child failed", category=Category.TRANSIENT)
    s.tick(60)
    [call] = (await begin(s, "call")).values()
    assert (call.attempt, call.parked) == (2, None)
    await s.report(wants(call))
    assert len(await children_of(s)) == 2
    await finish(s, work="second")
    [call] = (await begin(s, "call")).values()
    assert told_child(call)["child"]["result"] == "second"
    await s.complete(call, '{"data": 1}')
    await finish(s, "after")
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_parent_retried_by_hand_gets_a_child_of_its_own(s: Scenario) -> None:
    await define_family(s, attempts=1)
    execution_id = await s.submit()
    await call_child(s)
    await finish(s, "work")
    [call] = (await begin(s, "call")).values()
    await s.fail(call)
    await s.retry(execution_id)
    await call_child(s)
    assert len(await children_of(s)) == 2
    await finish(s, "work")
    [call] = (await begin(s, "call")).values()
    assert (call.round, told_child(call)["child"]["status"]) == (2, "completed")


@on_both_stores
async def test_a_cancel_cascades_to_children_and_theirs(s: Scenario) -> None:
    await s.define(calling("call"))
    await s.define(calling("middle", path="child"), path="child")
    await s.define(stage("work", path="grandchild"), path="grandchild")
    execution_id = await s.submit()
    await call_child(s)
    [middle] = (await begin(s, "middle")).values()
    await s.report(wants(middle, path="grandchild"))
    jobs = await begin(s, "work")
    assert await s.engine.cancel(execution_id)
    [child], [grandchild] = await children_of(s), await children_of(s, "grandchild")
    assert {await status(s, id_) for id_ in (execution_id, child, grandchild)} == {"cancelled"}
    assert codes(await s.report(completed(jobs["work"]))) == ["stale_lease"]


@on_both_stores
async def test_a_child_that_is_cancelled_is_told_to_its_parent(s: Scenario) -> None:
    await define_family(s)
    execution_id = await s.submit()
    await call_child(s)
    [child] = await children_of(s)
    await s.engine.cancel(child)
    [call] = (await begin(s, "call")).values()
    assert told_child(call)["child"]["status"] == "cancelled"
    assert await status(s, execution_id) == "running"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"path": "nowhere"}, "There is no pipeline 'nowhere'"),
        ({"version": 9}, "child has no version 9"),
        ({"workload": ["no mapping"]}, "is a mapping, not"),
    ],
)
@on_both_stores
async def test_a_child_that_cannot_be_started_is_refused_to_the_step(
    s: Scenario, asked: dict[str, Any], why: str
) -> None:
    await s.define(calling("call"))
    await s.define(stage("work", path="child", type="python"), path="child", workload={"n": 1})
    await s.submit()
    await call_child(s, **asked)
    [call] = (await begin(s, "call")).values()
    assert why in told_child(call)["refused"]["message"]
    assert await children_of(s) == []


@on_both_stores
async def test_a_playbook_that_calls_itself_is_refused_at_last(s: Scenario) -> None:
    await s.define(calling("call"))
    await s.submit()
    for _ in range(DEPTH_MAX):
        await call_child(s, path="p")
    await call_child(s, path="p")
    assert len(await children_of(s, "p")) == DEPTH_MAX + 1
    [call] = (await begin(s, "call")).values()
    assert f"{DEPTH_MAX} are allowed" in told_child(call)["refused"]["message"]


@on_both_stores
async def test_the_keys_of_children_are_nobody_elses(s: Scenario) -> None:
    await define_family(s)
    with pytest.raises(InvalidInput, match="idempotency key"):
        await s.engine.submit([Submission(path="child", idempotency_key="job 1 attempt 1")])


# wherever a process may die


@on_both_stores
async def test_a_crash_before_the_child_is_started(s: Scenario) -> None:
    await define_family(s)
    execution_id = await s.submit()
    with crashed(s.engine):
        await call_child(s)
    assert await children_of(s) == []
    assert "child" in (await s.engine.view(execution_id)).summary
    assert await s.another_engine().sweep() == 1
    [child] = await children_of(s)
    # A second sweep, or another process at the same time, starts no other.
    assert await s.another_engine().sweep() == 0
    await finish(s, "work")
    [call] = (await begin(s, "call")).values()
    assert told_child(call)["child"]["id"] == child


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
@on_both_stores
async def test_a_crash_before_the_parent_is_let_through(s: Scenario, end: str) -> None:
    await define_family(s)
    await s.submit()
    await call_child(s)
    [child] = await children_of(s)
    jobs = await begin(s, "work")
    with crashed(s.engine):
        if end == "completed":
            await s.complete(jobs["work"])
        elif end == "failed":
            await s.fail(jobs["work"], "no", category=Category.PERMANENT)
        else:
            await s.engine.cancel(child)
    assert await lease_all(s) == {}
    assert await s.another_engine().sweep() == 1
    assert await s.another_engine().sweep() == 0
    [call] = (await begin(s, "call")).values()
    assert told_child(call)["child"]["status"] == end


@pytest.mark.parametrize("end", ["cancelled", "deadline", "failing", "pruned"])
@on_both_stores
async def test_children_of_jobs_that_have_ended_without_them_are_cancelled_by_a_sweep(
    s: Scenario, end: str
) -> None:
    await s.define(control("start", to("call"), to("other")), calling("call"), job("other", attempts=1))
    await s.define(stage("work", path="child"), path="child")
    execution_id = await s.submit(deadline_seconds=100 if end == "deadline" else None)
    await finish(s, "start")
    jobs = await begin(s, "call", "other")
    await s.report(wants(jobs["call"]))
    [child] = await children_of(s)
    engine = s.engine
    if end == "failing":
        await s.fail(jobs["other"])
        assert await status(s, execution_id) == "failed"
    elif end == "deadline":
        s.tick(101)
    else:

        async def no_children(*_: Any) -> list[int]:
            return []

        kept, engine.store.children = engine.store.children, no_children  # type: ignore[method-assign]
        await engine.cancel(execution_id)
        engine.store.children = kept  # type: ignore[method-assign]
    assert await status(s, child) == "running"
    if end == "pruned":
        s.tick(1_000)
        assert await engine.prune(10) == 1
    await s.another_engine().sweep()
    assert await status(s, child) == "cancelled"
    assert await s.another_engine().sweep() == 0


@on_both_stores
async def test_a_worker_lost_after_its_child_has_ended_is_a_new_attempt_with_a_new_child(s: Scenario) -> None:
    await define_family(s)
    await s.submit()
    await call_child(s)
    await finish(s, "work")
    await begin(s, "call")
    await s.lose()
    s.tick(60)
    [call] = (await s.engine.lease("w1", ["type/playbook"], 1, alone=True)).jobs
    assert (call.attempt, call.parked) == (2, None)
    await s.report(wants(call))
    assert len(await children_of(s)) == 2


@on_both_stores
async def test_a_worker_that_stops_after_its_child_has_ended_gives_back_what_it_knows(s: Scenario) -> None:
    await define_family(s)
    await s.submit()
    await call_child(s)
    await finish(s, "work")
    [call] = (await begin(s, "call")).values()
    await s.engine.release([ref(call)])
    [again] = (await begin(s, "call")).values()
    assert (again.attempt, again.parked) == (1, call.parked)
    assert len(await children_of(s)) == 1


@on_both_stores
async def test_a_child_is_kept_until_the_job_that_reads_it_has_ended(s: Scenario) -> None:
    await define_family(s)
    execution_id = await s.submit()
    await call_child(s)
    await finish(s, "work")
    s.tick(1_000)
    assert await s.engine.prune(10) == 0
    [call] = (await begin(s, "call")).values()
    assert told_child(call)["child"]["status"] == "completed"
    await s.complete(call, '{"data": 1}')
    assert await s.engine.prune(10) == 1
    assert await children_of(s) == []
    await finish(s, "after")
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_child_in_a_playbook_that_has_failed_meanwhile_is_not_begun(s: Scenario) -> None:
    await s.define(control("start", to("call"), to("other")), calling("call"), job("other", attempts=1))
    await s.define(stage("work", path="child"), path="child")
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, "call", "other")
    await s.fail(jobs["other"])
    assert await status(s, execution_id) == "running"
    assert codes(await s.report(wants(jobs["call"]))) == ["accepted"]
    assert await status(s, execution_id) == "failed"
    assert await states(s, execution_id) == {"start": "done", "call": "cancelled", "other": "dead"}
    assert await children_of(s) == []
    assert await s.engine.sweep() == 0
    assert await told_of(s, execution_id, "execution_failed") == ["execution_failed"]


@on_both_stores
async def test_a_worker_of_one_family_is_given_nothing_else(s: Scenario) -> None:
    await define_family(s)
    other = await s.submit(lane="manual")
    execution_id = await s.submit()
    handlers = [*s._handlers, "type/playbook"]

    async def lease(family: int) -> list[Leased]:
        return (await s.engine.lease("w1", handlers, 100, family=family)).jobs

    [call] = await lease(execution_id)
    assert (call.execution_id, call.step) == (execution_id, "call")
    assert codes(await s.report(wants(call))) == ["accepted"]
    [child_id] = await children_of(s)
    [work] = await lease(execution_id)
    assert work.execution_id == child_id
    await s.fail(work)
    asked = await s.engine.lease("w1", handlers, 100, family=execution_id)
    assert not asked.jobs and asked.next_due == s.now + 1
    s.tick(1)
    [work] = await lease(execution_id)
    await s.complete(work)
    [call] = await lease(execution_id)
    await s.complete(call, '{"data": 1}')
    assert [job.step for job in await lease(execution_id)] == ["after"]
    assert [job.execution_id for job in await lease(other)] == [other]


@on_both_stores
async def test_a_worker_of_one_family_keeps_to_limits(s: Scenario) -> None:
    await s.define(stage("work", limit="portal"))
    await s.engine.controls.set_limit("portal", 1, manual_reserve=0)
    mine, other = await s.submit(), await s.submit()
    [job_] = (await s.engine.lease("w1", s._handlers, 5, family=mine)).jobs
    assert job_.execution_id == mine and job_.limited
    assert (await s.engine.lease("w2", s._handlers, 5, family=other)).jobs == []
    await s.complete(job_)
    assert len((await s.engine.lease("w2", s._handlers, 5, family=other)).jobs) == 1


@on_both_stores
async def test_a_worker_of_one_family_runs_its_lost_jobs_alone(s: Scenario) -> None:
    await s.define(stage("work"))
    mine, other = await s.submit(), await s.submit()
    assert len(await s.lease()) == 2
    await s.lose()
    s.tick(1)
    asked = await s.engine.lease("w1", s._handlers, 5, family=mine)
    assert not asked.jobs and asked.alone_ready
    [job_] = (await s.engine.lease("w1", s._handlers, 5, alone=True, family=mine)).jobs
    assert job_.execution_id == mine
    assert not (await s.engine.lease("w1", s._handlers, 5, family=mine)).alone_ready
    assert (await s.engine.lease("w1", s._handlers, 5, family=other)).alone_ready


@on_both_stores
async def test_a_child_that_failed_waits_for_nobody_its_parent_does(s: Scenario) -> None:
    await define_family(s, attempts=1)
    execution_id = await s.submit()
    await call_child(s)
    [child_id] = await children_of(s)
    await s.run_to_failure()
    assert (await s.execution(child_id)).parent_id == execution_id
    overview = await s.engine.overview()
    assert (overview.executions["failed"], overview.executions["running"]) == (0, 1)
    assert (await s.engine.failures()).items == [] and await s.engine.failure_groups() == []
    [call] = (await begin(s, "call")).values()
    await s.fail(call, "the child has failed")
    assert [row.execution_id for row in (await s.engine.failures()).items] == [execution_id]
    with pytest.raises(RetryRefused, match=f"for a step of execution {execution_id}") as refused:
        await s.retry(child_id)
    assert refused.value.code == "child_execution"
    assert refused.value.guidance == f"Retry execution {execution_id}: it starts this work again."
    assert [[answer.execution_id for answer in batch] async for batch in s.engine.redrive()] == [
        [execution_id]
    ]


@pytest.mark.parametrize(
    ("child", "told"),
    [
        ('{"path": "bank", "workload": {"amount": 1000000}}', "an execution of bank, which step"),
        ('{"path": "child"}', "cannot be read"),
        ("{}", "cannot be read"),
        ("[]", "cannot be read"),
        ("no JSON", "cannot be read"),
        ('{"path": "child", "workload": {}, "version": "1"}', "cannot be read"),
    ],
)
@pytest.mark.parametrize("kind", ["playbook", "function"])
@on_both_stores
async def test_a_worker_starts_nothing_that_its_step_does_not_name(
    s: Scenario, child: str, told: str, kind: str
) -> None:
    await s.define(calling("call", playbook="child") if kind == "playbook" else stage("call"))
    for path in ("child", "bank"):
        await s.define(stage("work", path=path), path=path)
    await s.submit()
    [call] = (await begin(s, "call")).values()
    report = Report(call.queue_id, call.fence, Deferred(child=child))
    assert codes(await s.report(report)) == ["accepted"]
    [row] = (await s.engine.executions(path="p")).items
    assert row.error is not None and told in row.error.message
    assert row.error.category is Category.PERMANENT and row.error.stage == "call"
    assert not await children_of(s, "bank") and not await children_of(s)
    assert await s.engine.sweep() == 0


@on_both_stores
async def test_a_function_that_asks_for_the_playbook_of_another_step_starts_nothing(s: Scenario) -> None:
    await s.define(stage("call"))
    await s.define(stage("work", path="child"), path="child")
    await s.submit()
    [call] = (await begin(s, "call")).values()
    assert codes(await s.report(wants(call))) == ["accepted"]
    assert not await children_of(s)
    [row] = (await s.engine.executions(path="p")).items
    assert (
        row.error is not None and "an execution of child, which step call does not name" in row.error.message
    )


@on_both_stores
async def test_a_time_that_is_none_fails_its_attempt_alone(s: Scenario) -> None:
    await s.define(job("nap", type="sleep", handler="type/sleep"), job("work"))
    await s.submit()
    [nap] = (await begin(s, "nap")).values()
    report = Report(nap.queue_id, nap.fence, Deferred(until_seconds=-5))
    assert codes(await s.report(report)) == ["accepted"]
    [row] = (await s.engine.executions(path="p")).items
    assert row.error is not None and "until_seconds" in row.error.message
