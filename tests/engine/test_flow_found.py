"""What the simulation has found in how playbooks go on, each as the shortest way to it."""

import json

from engine_scenario import Scenario, codes, completed, failed, on_both_stores, stage
from flow_scenario import begin, control, finish, job, status, to
from holdfast.core.catalogue import Category
from holdfast.core.model import Deferred, Report
from holdfast.engine import Submission
from holdfast.engine.manual_retry import RetryRequest


@on_both_stores
async def test_of_two_results_of_one_job_the_one_that_is_stored_decides(s: Scenario) -> None:
    await s.define(
        job("a", to("even", "{{ result.n % 2 == 0 }}"), to("odd", "{{ result.n % 2 == 1 }}")),
        job("even", max_visits=1),
        job("odd", max_visits=1),
    )
    await s.submit()
    [a] = (await begin(s, "a")).values()
    acks = await s.engine.report([completed(a, '{"n": 1}'), completed(a, '{"n": 2}')])
    assert codes(acks) == ["accepted", "stale_lease"]
    assert set(await begin(s, "odd")) == {"odd"}


@on_both_stores
async def test_a_control_step_is_asked_again_when_the_step_before_it_died_of_its_answer(s: Scenario) -> None:
    await s.define(
        job("work", to("check"), max_visits=1, on_error="check"),
        control("check", to("work", "{{ 'error' not in input }}"), to("report", "{{ 'error' in input }}")),
        job("report"),
    )
    execution_id = await s.submit()
    await finish(s, work=None)
    [report] = (await begin(s, "report")).values()
    await s.complete(report)
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_handler_that_waits_for_a_branch_is_told_the_error_after_a_retry_too(s: Scenario) -> None:
    await s.define(
        job("a", to("dies"), to("slow"), to("other")),
        job("dies", to("end"), on_error="handler"),
        job("slow", to("handler", slow=1)),
        job("other", to("end")),
        job("handler", to("end")),
        job("end"),
    )
    execution_id = await s.submit()
    await finish(s, a=None)
    branches = await begin(s, "dies", "slow", "other")
    for name in ("dies", "slow", "other"):
        report = failed(branches[name], f"{name} is broken", category=Category.PERMANENT)
        assert codes(await s.engine.report([report])) == ["accepted"]
    assert await status(s, execution_id) == "failed"
    await s.engine.retry(execution_id, RetryRequest(from_stage="other", force=True))
    await finish(s, "slow", "other")
    [handler] = (await begin(s, "handler")).values()
    told = json.loads(handler.input)
    assert (told["slow"], told["error"]["message"]) == (1, "dies is broken")


@on_both_stores
async def test_two_errors_of_one_job_in_one_call_have_each_their_own_answer(s: Scenario) -> None:
    await s.define(job("a", to("left"), to("right")), job("left", max_visits=1), job("right", max_visits=1))
    await s.submit()
    await finish(s, a=None)
    left = (await begin(s, "left", "right"))["left"]
    reports = [failed(left, message, category=Category.PERMANENT) for message in ("first", "second")]
    assert codes(await s.engine.report(reports)) == ["accepted", "stale_lease"]


@on_both_stores
async def test_a_cancelled_batch_says_how_many_items_ran_not_how_many_jobs(s: Scenario) -> None:
    await s.define(job("a", to("left"), to("right")), job("left", max_visits=1), job("right", max_visits=1))
    batch_id, _ = await s.engine.batches.create("p")
    await s.engine.batches.add(batch_id, [Submission(path="p"), Submission(path="p")])
    for a in await s.lease():
        await s.complete(a)
    assert await s.engine.batches.cancel(batch_id) == 2


@on_both_stores
async def test_a_child_is_kept_until_the_job_that_waits_for_it_has_ended(s: Scenario) -> None:
    await s.define(job("call", type="playbook", handler="type/playbook", config={"path": "child"}))
    await s.define(stage("work", path="child"), path="child")
    await s.submit()
    [call] = await s.lease()
    asked = Deferred(child='{"path": "child", "workload": {}}')
    assert codes(await s.engine.report([Report(call.queue_id, call.fence, asked)])) == ["accepted"]
    [work] = await s.lease()
    await s.complete(work)
    s.tick(10)
    assert await s.engine.prune(5) == 0
    [again] = await s.lease()
    await s.complete(again)
    s.tick(10)
    assert await s.engine.prune(5) == 2
