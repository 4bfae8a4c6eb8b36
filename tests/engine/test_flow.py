"""Executions of playbooks that branch, join and skip: what starts when, with what, and what the log says."""

import json

import pytest

from engine_scenario import Scenario, codes, completed, failed, on_both_stores, ref
from flow_scenario import begin, control, finish, job, lease_all, plan_of, states, status, to, told_of
from holdfast.engine import flow

DIAMOND = (
    job("a", to("left", x=1), to("right", y=2)),
    job("left", to("join", from_left="{{ left.n }}")),
    job("right", to("join", from_right="{{ right.n }}")),
    job("join", needs=("left", "right")),
)


@on_both_stores
async def test_a_diamond_runs_each_step_once_and_joins_what_both_branches_handed_on(s: Scenario) -> None:
    await s.define(*DIAMOND)
    execution_id = await s.submit()
    await finish(s, a=None)
    branches = await begin(s, "left", "right")
    view = await s.engine.view(execution_id)
    assert (view.summary, view.result) == ("Running left, and 1 more", None)
    assert (branches["left"].input, branches["right"].input) == ('{"x":1}', '{"y":2}')
    await s.complete(branches["right"], '{"n": 20}')
    assert await lease_all(s) == {}
    await s.complete(branches["left"], '{"n": 10}')
    [joined] = (await begin(s, "join")).values()
    assert json.loads(joined.input) == {"from_left": 10, "from_right": 20}
    assert {name: json.loads(text) for name, text in joined.outputs.items()} == {
        "left": {"n": 10},
        "right": {"n": 20},
    }
    await s.complete(joined, '"all"')
    view = await s.engine.view(execution_id)
    assert (view.execution.status, view.result, view.execution.error) == ("completed", "all", None)
    assert view.outputs == {"a": None, "left": {"n": 10}, "right": {"n": 20}, "join": "all"}
    assert await told_of(s, execution_id, "step_started", "step_completed", "execution_completed") == [
        "step_started a",
        "step_completed a",
        "step_started left",
        "step_started right",
        "step_completed right",
        "step_completed left",
        "step_started join",
        "step_completed join",
        "execution_completed",
    ]
    assert await plan_of(s, execution_id) is None


@on_both_stores
async def test_both_branches_in_one_report_lead_to_one_join(s: Scenario) -> None:
    await s.define(*DIAMOND)
    execution_id = await s.submit()
    await finish(s, a=None)
    await finish(s, left={"n": 1}, right={"n": 2})
    [joined] = (await begin(s, "join")).values()
    assert json.loads(joined.input) == {"from_left": 1, "from_right": 2}
    await s.complete(joined)
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_branches_are_settled_by_engines_that_did_not_give_out_their_leases(s: Scenario) -> None:
    await s.define(*DIAMOND)
    execution_id = await s.submit()
    await finish(s, a=None)
    branches = await begin(s, "left", "right")
    for name, number in (("left", 1), ("right", 2)):
        [ack] = await s.another_engine().report([completed(branches[name], json.dumps({"n": number}))])
        assert ack.accepted
    [joined] = (await begin(s, "join")).values()
    assert json.loads(joined.input) == {"from_left": 1, "from_right": 2}
    [ack] = await s.another_engine().report([completed(joined)])
    assert ack.accepted
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_the_same_report_again_and_a_stale_one_change_nothing(s: Scenario) -> None:
    await s.define(*DIAMOND)
    execution_id = await s.submit()
    await finish(s, a=None)
    branches = await begin(s, "left", "right")
    left, right = branches["left"], branches["right"]
    assert codes(await s.report(completed(left, '{"n":1}'), completed(left, '{"n":1}'))) == [
        "accepted",
        "repeated",
    ]
    assert codes(await s.report(completed(left, '{"n":2}'))) == ["stale_lease"]
    assert codes(await s.report(failed(left, "too late"))) == ["stale_lease"]
    assert codes(await s.engine.release([ref(left)])) == ["stale_lease"]
    assert await lease_all(s) == {}
    await s.complete(right, '{"n":2}')
    await finish(s, "join")
    assert await status(s, execution_id) == "completed"


@pytest.mark.parametrize(("ready", "taken", "skipped"), [(True, "good", "bad"), (False, "bad", "good")])
@on_both_stores
async def test_a_condition_chooses_the_branch_and_the_join_does_not_wait_for_the_other(
    s: Scenario, ready: bool, taken: str, skipped: str
) -> None:
    await s.define(
        job("check", to("good", "result.ready"), to("bad", "{{ not check.ready }}")),
        job("good", to("end")),
        job("bad", to("more")),
        job("more", to("end")),
        job("end"),
    )
    execution_id = await s.submit()
    await finish(s, check={"ready": ready})
    await finish(s, taken)
    if taken == "bad":
        await finish(s, "more")
    await finish(s, "end")
    assert await status(s, execution_id) == "completed"
    told = await s.events(execution_id)
    skips = {event.step: event.data["reason"] for event in told if event.type == "step_skipped"}
    assert skips == dict.fromkeys([skipped] if skipped == "bad" else ["good"], "not taken") | (
        {"more": "not taken"} if skipped == "bad" else {}
    )
    assert (await s.engine.view(execution_id)).skipped == {}


@on_both_stores
async def test_where_no_condition_holds_the_execution_is_complete(s: Scenario) -> None:
    await s.define(job("a", to("b", "false")), job("b"))
    execution_id = await s.submit()
    await finish(s, a={"x": 1})
    view = await s.engine.view(execution_id)
    assert view.execution.status == "completed"
    assert await states(s, execution_id) == {"a": "done"}


@on_both_stores
async def test_control_steps_are_gone_through_without_a_job(s: Scenario) -> None:
    await s.define(
        control("start", to("a")),
        job("a", to("choose", n="{{ a.n }}")),
        control("choose", to("many", "input.n > 3", n="{{ n }}"), to("few", "n <= 3")),
        job("many", to("end")),
        job("few", to("end")),
        control("end"),
    )
    execution_id = await s.submit()
    await finish(s, a={"n": 5})
    [many] = (await begin(s, "many")).values()
    assert many.input == '{"n":5}'
    await s.complete(many, '"m"')
    view = await s.engine.view(execution_id)
    assert (view.execution.status, view.result) == ("completed", "m")
    assert list(await states(s, execution_id)) == ["a", "many"]
    assert await told_of(s, execution_id, "step_started", "step_completed", "step_skipped") == [
        "step_started start",
        "step_completed start",
        "step_started a",
        "step_completed a",
        "step_started choose",
        "step_completed choose",
        "step_started many",
        "step_skipped few",
        "step_completed many",
        "step_started end",
        "step_completed end",
    ]


@pytest.mark.parametrize("elsewhere", [False, True])
@on_both_stores
async def test_a_control_step_behind_a_join_decides_by_what_both_branches_returned(
    s: Scenario, elsewhere: bool
) -> None:
    """What it decides is not known before the transaction: that is run again with it."""
    await s.define(
        control("start", to("left"), to("right")),
        job("left", to("sum", l="{{ left.n }}")),
        job("right", to("sum", r="{{ right.n }}")),
        control("sum", to("big", "left.n + right.n > 10", all="{{ input.l + input.r }}"), to("small")),
        job("big"),
        job("small"),
    )
    execution_id = await s.submit()
    await finish(s, "start")
    branches = await begin(s, "left", "right")
    engine = s.another_engine() if elsewhere else s.engine
    acks = await engine.report(
        [completed(branches["left"], '{"n":4}'), completed(branches["right"], '{"n":7}')]
    )
    assert codes(acks) == ["accepted", "accepted"]
    jobs = await begin(s, "big", "small")
    assert jobs["big"].input == '{"all":11}'
    await s.report(*map(completed, jobs.values()))
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_several_steps_start_at_once_from_an_entry_that_decides_by_the_workload(s: Scenario) -> None:
    await s.define(
        control("start", to("one", "workload.n > 1"), to("two", "n > 2"), to("three", "n > 3")),
        job("one"),
        job("two"),
        job("three"),
        workload={"n": 3},
    )
    execution_id = await s.submit()
    assert await states(s, execution_id) == {"start": "queued"}
    await finish(s, "start")
    await finish(s, one=1, two=2)
    view = await s.engine.view(execution_id)
    assert (view.execution.status, view.result) == ("completed", {"one": 1, "two": 2})
    few = await s.submit({"n": 0})
    await finish(s, "start")
    view = await s.engine.view(few)
    assert (view.execution.status, view.result) == ("completed", None)


@pytest.mark.parametrize("elsewhere", [False, True])
@on_both_stores
async def test_an_undefined_name_in_a_condition_is_recorded_as_a_permanent_error_of_the_step(
    s: Scenario, elsewhere: bool
) -> None:
    await s.define(job("a", to("b", "result.missing > 1"), to("c")), job("b"), job("c"))
    execution_id = await s.submit()
    jobs = await begin(s, "a")
    engine = s.another_engine() if elsewhere else s.engine
    assert codes(await engine.report([completed(jobs["a"], '{"n":1}')])) == ["accepted"]
    execution = await s.execution(execution_id)
    assert execution.status == "failed"
    assert execution.error is not None
    assert (execution.error.error_type, execution.error.category) == ("playbook_error", "permanent")
    assert "`when` of the way from a to b" in execution.error.message
    assert "missing" in execution.error.message
    assert await states(s, execution_id) == {"a": "dead"}
    assert await told_of(s, execution_id) == [
        "execution_started",
        "step_started a",
        "action_started a",
        "action_error a",
        "step_failed_terminal a",
        "execution_failed",
    ]
    # The same report again finds what was recorded.
    assert codes(await s.report(completed(jobs["a"], '{"n":1}'))) == ["repeated"]


@on_both_stores
async def test_an_undefined_name_behind_a_control_step_is_an_error_of_the_step_that_led_there(
    s: Scenario,
) -> None:
    await s.define(job("a", to("choose")), control("choose", to("b", "nowhere.x")), job("b"))
    execution_id = await s.submit()
    await finish(s, a=1)
    error = (await s.execution(execution_id)).error
    assert error is not None
    assert (error.stage, error.error_type) == ("a", "playbook_error")
    assert "from choose to b" in error.message


@on_both_stores
async def test_what_is_handed_on_must_not_be_larger_than_a_payload_may_be(s: Scenario) -> None:
    s.engine = s.another_engine(payload_bytes_max=1_000)
    await s.define(job("a", to("b", all=["{{ a.text }}"] * 3)), job("b"))
    execution_id = await s.submit()
    await finish(s, a={"text": "x" * 600})
    error = (await s.execution(execution_id)).error
    assert error is not None
    assert (error.stage, error.error_type, error.category) == ("a", "playbook_error", "permanent")
    assert "`with` of the way from a to b" in error.message


@on_both_stores
async def test_what_comes_together_must_not_be_larger_than_a_payload_may_be(s: Scenario) -> None:
    s.engine = s.another_engine(payload_bytes_max=1_000)
    names = ["x", "y", "z"]
    ways = [control(name, to("join", **{name: "{{ a.text }}"})) for name in names]
    await s.define(job("a", *map(to, names)), *ways, job("join"))
    execution_id = await s.submit()
    await finish(s, a={"text": "x" * 600})
    error = (await s.execution(execution_id)).error
    assert error is not None
    assert (error.stage, error.error_type) == ("a", "playbook_error")
    assert "handed on to join is together more than 1,000 bytes" in error.message
    assert await states(s, execution_id) == {"a": "dead"}


@on_both_stores
async def test_what_is_handed_on_at_once_has_a_bound(s: Scenario) -> None:
    s.engine = s.another_engine(payload_bytes_max=1_000)
    names = [f"b{number}" for number in range(30)]
    await s.define(job("a", *(to(name, all="{{ a.text }}") for name in names)), *map(job, names))
    execution_id = await s.submit()
    await finish(s, a={"text": "x" * 900})
    error = (await s.execution(execution_id)).error
    assert error is not None
    assert "at once is more than 16,000 bytes" in error.message
    assert await states(s, execution_id) == {"a": "dead"}


@on_both_stores
async def test_the_conditions_of_a_step_share_one_budget(s: Scenario) -> None:
    names = [f"b{number}" for number in range(40)]
    dear = "workload.n | map('string') | list | length > 0"
    await s.define(job("a", *(to(name, dear) for name in names)), *map(job, names))
    execution_id = await s.submit({"n": list(range(10_000))})
    await finish(s, a=1)
    error = (await s.execution(execution_id)).error
    assert error is not None
    assert "reads or makes too much data" in error.message
    # A few of them are no trouble.
    await s.define(job("a", *(to(name, dear) for name in names[:3])), *map(job, names[:3]))
    await s.submit({"n": list(range(10_000))})
    await finish(s, a=1)
    await begin(s, *names[:3])


@on_both_stores
async def test_a_long_way_of_decisions_has_a_bound(s: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "DECISIONS_MAX", 5)
    ways = [control(f"c{number}", to(f"c{number + 1}", "workload.go")) for number in range(9)]
    await s.define(job("a", to("c0")), *ways, job("c9"))
    execution_id = await s.submit({"go": True})
    await finish(s, a=1)
    error = (await s.execution(execution_id)).error
    assert error is not None
    assert "More than 5 steps decide at once what comes after a" in error.message


@on_both_stores
async def test_a_failing_branch_is_retried_while_the_other_goes_on(s: Scenario) -> None:
    await s.define(*DIAMOND)
    execution_id = await s.submit()
    await finish(s, a=None)
    branches = await begin(s, "left", "right")
    acks = await s.report(failed(branches["left"]), completed(branches["right"], '{"n":2}'))
    assert codes(acks) == ["accepted", "accepted"]
    view = await s.engine.view(execution_id)
    assert (view.stage, view.execution.status) == ("left", "running")
    s.tick(10)
    await finish(s, left={"n": 1})
    assert (await s.execution(execution_id)).error is None
    await finish(s, "join")
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_on_error_hands_the_error_to_its_step_and_the_execution_completes(s: Scenario) -> None:
    await s.define(
        job("a", to("b"), attempts=1, on_error="repair"),
        job("b", to("end")),
        job("repair", to("end", was="{{ input.error.type }}")),
        job("end"),
    )
    execution_id = await s.submit()
    jobs = await begin(s, "a")
    await s.fail(jobs["a"], "connection refused")
    jobs = await begin(s, "repair")
    error = json.loads(jobs["repair"].input)["error"]
    assert (error["step"], error["message"]) == ("a", "connection refused")
    await s.complete(jobs["repair"], '"repaired"')
    [end] = (await begin(s, "end")).values()
    assert json.loads(end.input) == {"was": error["type"]}
    await s.complete(end, '"done"')
    view = await s.engine.view(execution_id)
    assert (view.execution.status, view.execution.error, view.result) == ("completed", None, "done")
    assert (await s.engine.failures()).items == []
    told = await told_of(
        s, execution_id, "step_failed_terminal", "step_started", "step_skipped", "execution_failed"
    )
    assert told == [
        "step_started a",
        "step_failed_terminal a",
        "step_skipped b",
        "step_started repair",
        "step_started end",
    ]


@on_both_stores
async def test_a_handler_that_cannot_be_reached_leaves_the_error_unhandled(s: Scenario) -> None:
    await s.define(job("a", attempts=1, on_error="choose"), control("choose", to("b", "nowhere.x")), job("b"))
    execution_id = await s.submit()
    jobs = await begin(s, "a")
    await s.fail(jobs["a"], "connection refused")
    execution = await s.execution(execution_id)
    assert execution.status == "failed"
    assert execution.error is not None
    assert execution.error.message == "connection refused"


@on_both_stores
async def test_a_workload_is_laid_over_the_defaults_of_the_playbook(s: Scenario) -> None:
    await s.define(
        job("a", to("b", "name == 'x' and deep.one == 1 and deep.two == 5")),
        job("b"),
        workload={
            "name": "x",
            "deep": {"one": 1, "two": 2},
        },
    )
    await s.submit({"deep": {"two": 5}})
    jobs = await begin(s, "a")
    assert json.loads(jobs["a"].workload) == {"name": "x", "deep": {"one": 1, "two": 5}}
    await s.complete(jobs["a"])
    await finish(s, "b")


@on_both_stores
async def test_a_definition_read_back_from_the_store_runs_the_same(s: Scenario) -> None:
    await s.define(*DIAMOND)
    execution_id = await s.submit()
    s.engine = s.another_engine()
    await finish(s, a=None)
    s.engine = s.another_engine()
    await finish(s, left={"n": 1}, right={"n": 2})
    s.engine = s.another_engine()
    await finish(s, "join")
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_job_is_told_which_secrets_its_playbook_reads(s: Scenario) -> None:
    await s.define(
        job("a", to("b"), type="http", config={"url": "{{ secret('HOOK') }}"}),
        job("b", to("c"), inputs={"key": "Bearer {{ secret('KEY') }}"}),
        job("c", config={"code": "'{{ secret(1) }}'"}),
    )
    await s.submit()
    for name in "abc":
        jobs = await finish(s, name)
        assert jobs[name].secrets == ("HOOK", "KEY")
