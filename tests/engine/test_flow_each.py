"""Steps that run for each of many: fanned out, retried one by one, joined."""

import json

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
    plan_of,
    states,
    status,
    to,
    told_of,
)
from holdfast.core.catalogue import Category
from holdfast.engine.decisions import outputs_by_step
from holdfast.playbook.definition import Definition
from holdfast.store.interface import Output


def fan(count: int) -> list[str]:
    return [f"fan[{number}]" for number in range(count)]


@on_both_stores
async def test_the_elements_of_a_list_run_and_their_outputs_are_a_list_in_its_order(s: Scenario) -> None:
    await s.define(
        job("a", to("fan", seen="{{ a.n }}")),
        each("fan", "{{ a.items }}", to("end", all="{{ fan }}"), as_="name", needs=("a",)),
        job("end"),
    )
    execution_id = await s.submit()
    await finish(s, a={"n": 1})
    [root] = (await begin(s, "fan")).values()
    assert (root.type, root.handler, root.for_each) == ("each", "type/each", '"{{ a.items }}"')
    await s.complete(root, '["x", {"y": 1}, null]')
    jobs = await begin(s, *fan(3))
    assert [jobs[name].item for name in fan(3)] == ['"x"', '{"y":1}', "null"]
    assert {(jobs[name].type, jobs[name].item_name, jobs[name].input) for name in fan(3)} == {
        ("python", "name", '{"seen":1}')
    }
    await s.report(*(completed(jobs[f"fan[{number}]"], str(number * 10)) for number in (2, 0)))
    assert await status(s, execution_id) == "running"
    await s.complete(jobs["fan[1]"], '{"ten": 10}')
    [end] = (await begin(s, "end")).values()
    assert json.loads(end.input) == {"all": [0, {"ten": 10}, 20]}
    await s.complete(end)
    view = await s.engine.view(execution_id)
    assert view.outputs["fan"] == [0, {"ten": 10}, 20]
    # In the log there is one start and one completion of the step, and every element's attempt.
    assert await told_of(s, execution_id, "step_started", "step_completed") == [
        "step_started a",
        "step_completed a",
        "step_started fan",
        "step_completed fan",
        "step_started end",
        "step_completed end",
    ]
    assert len(await told_of(s, execution_id, "action_completed")) == 6


@on_both_stores
async def test_an_empty_list_is_done_at_once(s: Scenario) -> None:
    await s.define(each("fan", [], to("end", all="{{ fan }}")), job("end"))
    execution_id = await s.submit()
    await finish(s, fan=[])
    [end] = (await begin(s, "end")).values()
    assert end.input == '{"all":[]}'
    await s.complete(end, "1")
    view = await s.engine.view(execution_id)
    assert (view.execution.status, view.outputs) == ("completed", {"fan": [], "end": 1})


@on_both_stores
async def test_a_list_of_one_is_a_list(s: Scenario) -> None:
    await s.define(each("fan", ["x"]))
    execution_id = await s.submit()
    await finish(s, fan=["x"])
    await finish(s, **{"fan[0]": "X"})
    view = await s.engine.view(execution_id)
    assert (view.execution.status, view.result) == ("completed", ["X"])


@on_both_stores
async def test_the_conditions_of_its_edges_see_the_list_and_what_was_handed_on(s: Scenario) -> None:
    await s.define(
        job("a", to("fan", limit=2)),
        each(
            "fan", "{{ x }}", to("many", "fan | length > input.limit"), to("few", "result | length <= limit")
        ),
        job("many"),
        job("few"),
    )
    await s.submit()
    await finish(s, "a")
    await finish(s, fan=[1, 2, 3])
    await finish(s, *fan(3))
    await finish(s, "many")


@on_both_stores
async def test_no_more_elements_are_ready_than_may_be_under_way_at_once(s: Scenario) -> None:
    await s.define(each("fan", "{{ x }}", concurrency=2))
    execution_id = await s.submit()
    await finish(s, fan=[1, 2, 3, 4, 5])
    jobs = await begin(s, "fan[0]", "fan[1]")
    await s.complete(jobs["fan[1]"])
    jobs |= await begin(s, "fan[2]")
    # An element that waits for its retry keeps its place.
    await s.fail(jobs["fan[0]"])
    assert await lease_all(s) == {}
    await s.complete(jobs["fan[2]"])
    s.tick(60)
    jobs |= await begin(s, "fan[0]", "fan[3]")
    # Two that end in one report make two places, of which one is needed.
    await s.report(completed(jobs["fan[0]"]), completed(jobs["fan[3]"]))
    await finish(s, "fan[4]")
    assert await status(s, execution_id) == "completed"
    assert await plan_of(s, execution_id) is None


@on_both_stores
async def test_each_element_has_its_own_attempts(s: Scenario) -> None:
    await s.define(each("fan", "{{ x }}", attempts=3))
    execution_id = await s.submit()
    await finish(s, fan=["a", "b"])
    jobs = await begin(s, *fan(2))
    await s.report(failed(jobs["fan[0]"]), completed(jobs["fan[1]"], '"B"'))
    s.tick(60)
    [retried] = (await begin(s, "fan[0]")).values()
    assert (retried.attempt, retried.item) == (2, '"a"')
    await s.complete(retried, '"A"')
    view = await s.engine.view(execution_id)
    assert (view.execution.status, view.result, view.execution.error) == ("completed", ["A", "B"], None)


@on_both_stores
async def test_the_step_dies_when_all_elements_have_ended_and_some_are_dead(s: Scenario) -> None:
    await s.define(each("fan", "{{ x }}", attempts=1), job("never"))
    execution_id = await s.submit()
    await finish(s, fan=[0, 1, 2, 3])
    jobs = await begin(s, *fan(4))
    await s.fail(jobs["fan[1]"], "the first to die")
    assert await status(s, execution_id) == "running"
    await s.report(completed(jobs["fan[0]"]), failed(jobs["fan[3]"], "the second"))
    assert await status(s, execution_id) == "running"
    await s.complete(jobs["fan[2]"])
    execution = await s.execution(execution_id)
    assert execution.status == "failed"
    assert execution.error is not None
    assert (execution.error.stage, execution.error.message) == ("fan", "Element 1: the first to die")
    assert await told_of(s, execution_id, "step_failed_terminal", "execution_failed") == [
        "step_failed_terminal fan",
        "step_failed_terminal fan",
        "execution_failed",
    ]
    assert (await s.told(execution_id))[-1] == "execution_failed"
    # For people it is one failure.
    [failure] = (await s.engine.failures()).items
    assert (failure.execution_id, failure.step, failure.dead_reason) == (execution_id, "fan", "exhausted")
    [group] = await s.engine.failure_groups()
    assert group.executions == 1


@on_both_stores
async def test_a_dead_element_is_handled_once_all_have_ended(s: Scenario) -> None:
    await s.define(
        each("fan", "{{ x }}", to("next"), attempts=1, on_error="repair"), job("next"), job("repair")
    )
    execution_id = await s.submit()
    await finish(s, fan=[0, 1, 2])
    jobs = await begin(s, *fan(3))
    await s.report(failed(jobs["fan[2]"], "no"), completed(jobs["fan[0]"]))
    assert await lease_all(s) == {}
    await s.complete(jobs["fan[1]"])
    [repair] = (await begin(s, "repair")).values()
    assert json.loads(repair.input)["error"]["message"] == "Element 2: no"
    # What some of them returned is no list of what all of them did.
    assert "fan" not in (await s.engine.view(execution_id)).outputs
    await s.complete(repair)
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_fail_fast_ends_the_step_with_the_first_death(s: Scenario) -> None:
    await s.define(each("fan", "{{ x }}", attempts=1, fail_fast=True, concurrency=3))
    execution_id = await s.submit()
    await finish(s, fan=[0, 1, 2, 3, 4])
    jobs = await begin(s, *fan(3))
    await s.fail(jobs["fan[0]"], "first")
    assert await status(s, execution_id) == "running"
    assert await states(s, execution_id) == {
        "fan": "done",
        "fan[0]": "dead",
        "fan[1]": "leased",
        "fan[2]": "leased",
        "fan[3]": "cancelled",
        "fan[4]": "cancelled",
    }
    await s.complete(jobs["fan[1]"])
    await s.fail(jobs["fan[2]"], "second")
    execution = await s.execution(execution_id)
    assert execution.status == "failed"
    assert execution.error is not None and execution.error.message == "Element 0: first"
    assert (await told_of(s, execution_id, "execution_failed")) == ["execution_failed"]


@pytest.mark.parametrize("end", ENDS)
@on_both_stores
async def test_with_a_handler_the_execution_ends_when_the_last_element_under_way_has(
    s: Scenario, end: str
) -> None:
    """fail_fast with on_error: the handler begins at once; what is under way is not waited for by it, but the
    execution is not over before it."""
    await s.define(each("fan", "{{ x }}", attempts=2, fail_fast=True, on_error="repair"), job("repair"))
    execution_id = await s.submit()
    await finish(s, fan=[0, 1, 2])
    jobs = await begin(s, *fan(3))
    await s.fail(jobs["fan[0]"], "no such file", category=Category.PERMANENT)
    await s.complete(jobs["fan[2]"])
    await finish(s, "repair")
    assert await status(s, execution_id) == "running"
    await end_somehow(s, jobs["fan[1]"], end)
    assert await status(s, execution_id) == "completed"
    expected = {"completed": "done", "died": "dead"}.get(end, "cancelled")
    assert (await states(s, execution_id))["fan[1]"] == expected
    assert (await told_of(s, execution_id, "execution_completed")) == ["execution_completed"]


@on_both_stores
async def test_elements_left_behind_are_waited_for_when_the_handler_fails_too(s: Scenario) -> None:
    await s.define(
        each("fan", "{{ x }}", attempts=1, fail_fast=True, on_error="repair"), job("repair", attempts=1)
    )
    execution_id = await s.submit()
    await finish(s, fan=[0, 1])
    jobs = await begin(s, *fan(2))
    await s.fail(jobs["fan[0]"])
    jobs |= await begin(s, "repair")
    await s.fail(jobs["repair"], "no repair")
    assert await status(s, execution_id) == "running"
    await s.complete(jobs["fan[1]"])
    execution = await s.execution(execution_id)
    assert execution.status == "failed"
    assert execution.error is not None and execution.error.message == "no repair"


@on_both_stores
async def test_what_makes_the_list_fails_like_any_attempt(s: Scenario) -> None:
    await s.define(each("fan", "{{ x }}", attempts=2), job("end"))
    execution_id = await s.submit()
    jobs = await begin(s, "fan")
    await s.fail(jobs["fan"], "connection refused")
    s.tick(60)
    jobs = await begin(s, "fan")
    assert jobs["fan"].attempt == 2
    await s.fail(jobs["fan"], "items is no list", category=Category.PERMANENT)
    assert await states(s, execution_id) == {"fan": "dead"}
    assert await status(s, execution_id) == "failed"


@pytest.mark.parametrize("elsewhere", [False, True])
@on_both_stores
async def test_elements_are_settled_by_an_engine_that_did_not_lease_them(
    s: Scenario, elsewhere: bool
) -> None:
    await s.define(
        control("start", to("fan", "true", limit=1)),
        each("fan", "{{ x }}", to("end", "fan | length > input.limit"), concurrency=1),
        job("end"),
    )
    execution_id = await s.submit()
    await finish(s, "start")
    engine = s.another_engine() if elsewhere else s.engine
    for name in ("fan", *fan(3)):
        jobs = await begin(s, name)
        result = "[1,2,3]" if name == "fan" else "0"
        assert codes(await engine.report([completed(jobs[name], result)])) == ["accepted"]
        assert codes(await engine.report([completed(jobs[name], result)])) == ["repeated"]
    await finish(s, "end")
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_lost_element_goes_on_alone_and_is_an_element_still(s: Scenario) -> None:
    await s.define(each("fan", "{{ x }}", attempts=3, concurrency=1))
    execution_id = await s.submit()
    await finish(s, fan=["a", "b"])
    await begin(s, "fan[0]")
    await s.lose()
    s.tick(60)
    assert await lease_all(s) == {}
    [again] = await s.lease(alone=True)
    assert (again.element, again.item, again.attempt) == (0, '"a"', 2)
    await s.complete(again)
    await finish(s, "fan[1]")
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_lost_list_goes_on_alone_and_is_made_again(s: Scenario) -> None:
    await s.define(each("fan", "{{ x }}", attempts=3))
    execution_id = await s.submit()
    await begin(s, "fan")
    await s.lose()
    s.tick(60)
    [again] = (await s.engine.lease("w1", ["type/each"], 1, alone=True)).jobs
    assert (again.handler, again.type) == ("type/each", "each")
    await s.complete(again, "[1]")
    await finish(s, "fan[0]")
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_result_that_is_no_list_is_an_error_and_not_a_crash(s: Scenario) -> None:
    """A worker of another version may report anything."""
    await s.define(each("fan", "{{ x }}", attempts=1))
    for result in ('{"a":1}', "5", '"text"', "null"):
        execution_id = await s.submit()
        jobs = await begin(s, "fan")
        assert codes(await s.report(completed(jobs["fan"], result))) == ["accepted"]
        assert await status(s, execution_id) == "failed", result


@on_both_stores
async def test_elements_are_given_what_they_read_and_not_the_list_they_are_of(s: Scenario) -> None:
    """It would be read as often as it is long."""
    await s.define(
        job("list", to("other")),
        job("other", to("fan")),
        each(
            "fan",
            "{{ list.names }}",
            as_="list_",
            type="http",
            handler="type/http",
            config={"url": "{{ other.url }}/{{ list_ }}"},
            inputs={"index": "{{ index }}"},
            needs=("list", "other"),
        ),
    )
    await s.submit()
    await finish(s, list={"names": ["a"]})
    await finish(s, other={"url": "x"})
    [root] = (await begin(s, "fan")).values()
    assert sorted(root.outputs) == ["list", "other"]
    await s.complete(root, '["a"]')
    [element] = (await begin(s, "fan[0]")).values()
    assert element.outputs == {"other": '{"url": "x"}'}


@pytest.mark.parametrize(("output", "counts"), [('{"no": "list"}', {}), ("7", {}), ("[]", {"fan": "[]"})])
def test_what_is_no_list_has_no_output_and_keeps_nobody_from_reading_others(
    output: str, counts: dict[str, str]
) -> None:
    """A worker may have returned anything: the execution fails, and can be retried from elsewhere."""
    definition = Definition(path="p", steps=(each("fan", [1]), job("other")))
    rows = [Output(1, "other", 1, "5"), Output(1, "fan", 1, output)]
    assert outputs_by_step(rows, definition) == {"other": "5", **counts}
