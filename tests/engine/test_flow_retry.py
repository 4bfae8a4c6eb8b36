"""A new round of a playbook that branches: what is done again, what is kept, and what templates see of it."""

import json
from typing import Any

import pytest

from engine_scenario import Scenario, codes, completed, failed, on_both_stores
from flow_scenario import (
    begin,
    control,
    each,
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
from holdfast.core.errors import InvalidInput, RetryRefused

TWO_BRANCHES = (
    control("start", to("a"), to("x")),
    job("a", to("b", n="{{ a.n }}")),
    job("b", to("join", b="{{ b.n }}"), attempts=1),
    job("x", to("join", x="{{ x.n }}")),
    job("join", needs=("a", "b", "x")),
)


async def skipped_in_last_round(s: Scenario, execution_id: int) -> list[str]:
    """The steps that the last round tells as kept."""
    skipped: list[str] = []
    for event in await s.events(execution_id):
        if event.type == "manual_retry":
            skipped = []
        elif event.type == "step_skipped" and event.data["reason"] == "already_completed":
            skipped.append(event.step or "")
    return skipped


async def failed_at_b(s: Scenario) -> int:
    """x has completed, b is dead."""
    await s.define(*TWO_BRANCHES)
    execution_id = await s.submit()
    await finish(s, "start")
    await finish(s, a={"n": 1}, x={"n": 10})
    jobs = await begin(s, "b")
    await s.fail(jobs["b"])
    assert await status(s, execution_id) == "failed"
    return execution_id


@on_both_stores
async def test_a_retry_runs_what_died_and_keeps_what_was_done(s: Scenario) -> None:
    execution_id = await failed_at_b(s)
    await s.retry(execution_id)
    assert await states(s, execution_id) == {"b": "queued"}
    assert await skipped_in_last_round(s, execution_id) == ["start", "a", "x"]
    jobs = await begin(s, "b")
    assert (jobs["b"].round, jobs["b"].input) == (2, '{"n":1}')
    await s.complete(jobs["b"], '{"n": 5}')
    [join] = (await begin(s, "join")).values()
    assert json.loads(join.input) == {"b": 5, "x": 10}
    await s.complete(join, '"end"')
    view = await s.engine.view(execution_id)
    assert (view.execution.status, view.result) == ("completed", "end")
    assert view.outputs == {
        "start": view.outputs["start"],
        "a": {"n": 1},
        "b": {"n": 5},
        "x": {"n": 10},
        "join": "end",
    }


@on_both_stores
async def test_what_was_under_way_when_it_failed_and_has_completed_since_goes_on(s: Scenario) -> None:
    await s.define(
        control("start", to("a"), to("x")),
        job("a", attempts=1),
        job("x", to("y", "x.n > 1", n="{{ x.n }}"), to("z", "x.n < 1")),
        job("y"),
        job("z"),
    )
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, "a", "x")
    await s.fail(jobs["a"])
    await s.complete(jobs["x"], '{"n": 5}')
    assert await status(s, execution_id) == "failed"
    s.engine = s.another_engine()
    await s.retry(execution_id)
    assert await skipped_in_last_round(s, execution_id) == ["start", "x"]
    jobs = await begin(s, "a", "y")
    assert jobs["y"].input == '{"n":5}'
    await s.report(*map(completed, jobs.values()))
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_retry_from_an_earlier_step_runs_it_and_what_is_behind_it(s: Scenario) -> None:
    execution_id = await failed_at_b(s)
    await s.retry(execution_id, from_stage="a")
    assert await states(s, execution_id) == {"a": "queued"}
    assert await skipped_in_last_round(s, execution_id) == ["start", "x"]
    assert (await s.engine.view(execution_id)).outputs.keys() == {"start", "x"}
    await finish(s, a={"n": 2})
    jobs = await begin(s, "b")
    assert jobs["b"].input == '{"n":2}'
    await s.complete(jobs["b"], '{"n": 5}')
    [join] = (await begin(s, "join")).values()
    assert json.loads(join.input) == {"b": 5, "x": 10}
    assert json.loads(join.outputs["a"]) == {"n": 2}
    await s.complete(join)
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_full_retry_runs_everything_and_asks_for_confirmation(s: Scenario) -> None:
    execution_id = await failed_at_b(s)
    with pytest.raises(RetryRefused) as refusal:
        await s.retry(execution_id, full=True)
    assert refusal.value.code == "confirmation_required"
    await s.retry(execution_id, full=True, confirm=True)
    assert await skipped_in_last_round(s, execution_id) == []
    assert await states(s, execution_id) == {"start": "queued"}
    assert (await s.engine.view(execution_id)).outputs == {}
    await finish(s, "start")
    await finish(s, a={"n": 3}, x={"n": 30})
    await finish(s, b={"n": 4})
    [join] = (await begin(s, "join")).values()
    assert json.loads(join.input) == {"b": 4, "x": 30}
    assert {name: json.loads(text)["n"] for name, text in join.outputs.items()} == {"a": 3, "b": 4, "x": 30}
    await s.complete(join)
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_step_that_was_not_reached_is_refused_with_those_that_were(s: Scenario) -> None:
    execution_id = await failed_at_b(s)
    with pytest.raises(InvalidInput, match="has not come to join") as refusal:
        await s.retry(execution_id, from_stage="join")
    assert refusal.value.guidance == "Retry from one of: start, a, x, b."
    assert await status(s, execution_id) == "failed"


@on_both_stores
async def test_a_redrive_runs_what_died_of_many(s: Scenario) -> None:
    first = await failed_at_b(s)
    second = await s.submit()
    await finish(s, "start")
    await finish(s, a={"n": 1}, x={"n": 10})
    jobs = await begin(s, "b")
    await s.fail(jobs["b"])
    answers = [answer async for batch in s.engine.redrive(step="b") for answer in batch]
    assert [(answer.execution_id, answer.code) for answer in answers] == [
        (first, "redriven"),
        (second, "redriven"),
    ]
    both = (await s.engine.lease("w1", ["p/b"], 10)).jobs
    await s.report(*(completed(each_, '{"n":1}') for each_ in both))
    joins = (await s.engine.lease("w1", ["p/join"], 10)).jobs
    await s.report(*map(completed, joins))
    assert {await status(s, first), await status(s, second)} == {"completed"}


@on_both_stores
async def test_retried_again_and_again_each_round_goes_on_from_the_last(s: Scenario) -> None:
    execution_id = await failed_at_b(s)
    await s.retry(execution_id)
    jobs = await begin(s, "b")
    await s.complete(jobs["b"], '{"n": 5}')
    jobs = await begin(s, "join")
    await s.fail(jobs["join"], "no", category=Category.PERMANENT)
    s.tick(61)
    await s.retry(execution_id, force=True)
    assert await skipped_in_last_round(s, execution_id) == ["start", "a", "x", "b"]
    [join] = (await begin(s, "join")).values()
    assert (join.round, json.loads(join.input)) == (3, {"b": 5, "x": 10})
    await s.fail(join, "no", category=Category.PERMANENT)
    s.tick(61)
    # From further back: what the second round did is done again, what the first did and nobody needs is kept.
    await s.retry(execution_id, from_stage="b", force=True)
    assert await skipped_in_last_round(s, execution_id) == ["start", "a", "x"]
    jobs = await begin(s, "b")
    assert (jobs["b"].round, jobs["b"].input) == (4, '{"n":1}')
    await s.complete(jobs["b"], '{"n": 6}')
    [join] = (await begin(s, "join")).values()
    assert json.loads(join.input) == {"b": 6, "x": 10}
    await s.complete(join)
    assert await status(s, execution_id) == "completed"


CHOOSING = (
    job("choose", to("left", "choose.way == 'left'"), to("right", "choose.way == 'right'")),
    job("left", to("end")),
    job("right", to("end")),
    job("end", to("last"), needs=("left", "right")),
    job("last", attempts=1, needs=("left", "right")),
)


@on_both_stores
async def test_no_template_sees_what_a_branch_returned_that_a_later_round_did_not_take(s: Scenario) -> None:
    await s.define(*CHOOSING)
    execution_id = await s.submit()
    await finish(s, choose={"way": "left"})
    await finish(s, left="old")
    await finish(s, "end")
    jobs = await begin(s, "last")
    assert jobs["last"].outputs == {"left": '"old"'}
    await s.fail(jobs["last"])
    await s.retry(execution_id, from_stage="choose")
    await finish(s, choose={"way": "right"})
    await finish(s, right="new")
    [end] = (await begin(s, "end")).values()
    assert end.outputs == {"right": '"new"'}
    await s.complete(end)
    jobs = await begin(s, "last")
    assert jobs["last"].outputs == {"right": '"new"'}
    await s.fail(jobs["last"])
    s.tick(61)
    await s.retry(execution_id)
    assert await skipped_in_last_round(s, execution_id) == ["choose", "right", "end"]
    await finish(s, "last")
    view = await s.engine.view(execution_id)
    assert (view.execution.status, sorted(view.outputs)) == ("completed", ["choose", "end", "last", "right"])


@on_both_stores
async def test_a_branch_taken_again_after_two_rounds_is_run_again(s: Scenario) -> None:
    """What it returned in the first round counts no longer: it is not kept by a retry of the third."""
    await s.define(*CHOOSING)
    execution_id = await s.submit()
    await finish(s, choose={"way": "left"})
    await finish(s, left="first")
    await finish(s, "end")
    await s.fail((await begin(s, "last"))["last"])
    await s.retry(execution_id, from_stage="choose")
    await finish(s, choose={"way": "right"})
    await finish(s, "right")
    await finish(s, "end")
    await s.fail((await begin(s, "last"))["last"])
    s.tick(61)
    await s.retry(execution_id, from_stage="choose")
    await finish(s, choose={"way": "left"})
    await finish(s, left="third")
    [end] = (await begin(s, "end")).values()
    assert end.outputs == {"left": '"third"'}
    await s.complete(end)
    await finish(s, "last")
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_death_that_was_handled_stays_handled(s: Scenario) -> None:
    await s.define(
        job("a", to("end"), attempts=1, on_error="repair"),
        job("repair", to("end", why="{{ input.error.message }}")),
        job("end", attempts=1),
    )
    execution_id = await s.submit()
    await s.fail((await begin(s, "a"))["a"], "the cause")
    await finish(s, "repair")
    [end] = (await begin(s, "end")).values()
    assert end.input == '{"why":"the cause"}'
    await s.fail(end)
    await s.retry(execution_id)
    [end] = (await begin(s, "end")).values()
    assert (end.round, end.input) == (2, '{"why":"the cause"}')
    await s.fail(end)
    s.tick(61)
    # From the handler: it is told of the error again.
    await s.retry(execution_id, from_stage="repair")
    [repair] = (await begin(s, "repair")).values()
    assert json.loads(repair.input)["error"]["message"] == "the cause"
    await s.complete(repair)
    [end] = (await begin(s, "end")).values()
    await s.fail(end)
    s.tick(61)
    # From the step that died: it gets another chance, and its handler is not needed.
    await s.retry(execution_id, from_stage="a")
    await finish(s, "a")
    [end] = (await begin(s, "end")).values()
    assert end.input == "{}"
    await s.complete(end)
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_of_many_elements_only_those_that_are_not_done_run_again(s: Scenario) -> None:
    await s.define(
        job("a", to("fan")), each("fan", "{{ x }}", to("end", all="{{ fan }}"), attempts=1), job("end")
    )
    execution_id = await s.submit()
    await finish(s, "a")
    await finish(s, fan=list("abcd"))
    jobs = await begin(s, "fan[0]", "fan[1]", "fan[2]", "fan[3]")
    await s.report(
        failed(jobs["fan[1]"]),
        completed(jobs["fan[0]"], '"A"'),
        failed(jobs["fan[3]"]),
        completed(jobs["fan[2]"], '"C"'),
    )
    assert await status(s, execution_id) == "failed"
    await s.retry(execution_id)
    assert await skipped_in_last_round(s, execution_id) == ["a"]
    started = [event for event in await s.events(execution_id) if event.type == "step_started"][-1]
    assert started.data["elements"] == [1, 3]
    jobs = await begin(s, "fan[1]", "fan[3]")
    assert (jobs["fan[3]"].item, jobs["fan[3]"].round) == ('"d"', 2)
    await s.report(completed(jobs["fan[3]"], '"D"'), failed(jobs["fan[1]"], "again"))
    assert await status(s, execution_id) == "failed"
    s.tick(61)
    await s.retry(execution_id)
    await finish(s, **{"fan[1]": "B"})
    [end] = (await begin(s, "end")).values()
    assert json.loads(end.input) == {"all": ["A", "B", "C", "D"]}
    await s.complete(end)
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_elements_that_run_again_are_as_many_at_once_as_they_may(s: Scenario) -> None:
    await s.define(each("fan", "{{ x }}", attempts=1, fail_fast=True, concurrency=2))
    execution_id = await s.submit()
    await finish(s, fan=[0, 1, 2, 3, 4])
    jobs = await begin(s, "fan[0]", "fan[1]")
    await s.report(failed(jobs["fan[0]"]), completed(jobs["fan[1]"], "1"))
    assert await status(s, execution_id) == "failed"
    await s.retry(execution_id)
    await finish(s, **{"fan[0]": 0, "fan[2]": 2})
    await finish(s, **{"fan[3]": 3, "fan[4]": 4})
    view = await s.engine.view(execution_id)
    assert (view.execution.status, view.result) == ("completed", [0, 1, 2, 3, 4])


@on_both_stores
async def test_a_list_that_is_made_again_has_its_own_elements_only(s: Scenario) -> None:
    await s.define(
        job("a", to("fan")),
        each("fan", "{{ x }}", to("end", all="{{ fan }}"), attempts=1),
        job("end", attempts=1),
    )
    execution_id = await s.submit()
    await finish(s, "a")
    await finish(s, fan=[1, 2, 3])
    await finish(s, **{f"fan[{number}]": number for number in range(3)})
    jobs = await begin(s, "end")
    await s.fail(jobs["end"])
    await s.retry(execution_id, from_stage="fan")
    await finish(s, fan=[7])
    await finish(s, **{"fan[0]": 70})
    jobs = await begin(s, "end")
    assert json.loads(jobs["end"].input) == {"all": [70]}
    await s.fail(jobs["end"])
    s.tick(61)
    await s.retry(execution_id)
    assert await skipped_in_last_round(s, execution_id) == ["a", "fan"]
    await finish(s, "end")
    assert (await s.engine.view(execution_id)).outputs["fan"] == [70]


@on_both_stores
async def test_what_was_under_way_in_many_elements_is_kept(s: Scenario) -> None:
    """A list that was being made, and elements that were done, while another branch failed."""
    await s.define(
        control("start", to("dies"), to("fan"), to("list")),
        job("dies", attempts=1),
        each("fan", "{{ x }}", to("end", fan="{{ fan }}")),
        each("list", "{{ x }}", to("end", list="{{ list }}")),
        job("end"),
    )
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, "dies", "fan", "list")
    await s.complete(jobs["fan"], "[1,2]")
    jobs |= await begin(s, "fan[0]", "fan[1]")
    await s.fail(jobs["dies"])
    await s.report(completed(jobs["fan[0]"], "10"), completed(jobs["fan[1]"], "20"))
    await s.complete(jobs["list"], "[3]")
    assert await status(s, execution_id) == "failed"
    await s.retry(execution_id)
    jobs = await begin(s, "dies", "list")
    await s.report(completed(jobs["dies"]), completed(jobs["list"], "[4]"))
    await finish(s, **{"list[0]": 40})
    [end] = (await begin(s, "end")).values()
    assert json.loads(end.input) == {"fan": [10, 20], "list": [40]}
    await s.complete(end)
    assert await status(s, execution_id) == "completed"


POLLING = (
    job("before", to("poll")),
    job("poll", to("check", state="{{ poll.state }}"), max_visits=5),
    control("check", to("poll", "input.state != 'ready'"), to("store", "input.state == 'ready'", n=1)),
    job("store", to("tell")),
    job("tell", attempts=1, needs=("poll",)),
)


@on_both_stores
async def test_a_retry_from_behind_a_cycle_does_not_go_round_again(s: Scenario) -> None:
    """It was left by a control step, of which there is no row."""
    await s.define(*POLLING)
    execution_id = await s.submit()
    await finish(s, "before")
    await finish(s, poll={"state": "no"})
    await finish(s, poll={"state": "no"})
    await finish(s, poll={"state": "ready"})
    await finish(s, "store")
    jobs = await begin(s, "tell")
    await s.fail(jobs["tell"])
    await s.retry(execution_id, from_stage="store")
    assert await skipped_in_last_round(s, execution_id) == ["before", "poll"]
    jobs = await begin(s, "store")
    assert jobs["store"].input == '{"n":1}'
    await s.complete(jobs["store"])
    jobs = await begin(s, "tell")
    assert json.loads(jobs["tell"].outputs["poll"]) == {"state": "ready"}
    await s.fail(jobs["tell"])
    s.tick(61)
    # From within the cycle it is gone round anew, with as many visits as at first.
    await s.retry(execution_id, from_stage="poll")
    assert await skipped_in_last_round(s, execution_id) == ["before"]
    for _ in range(4):
        await finish(s, poll={"state": "no"})
    await finish(s, poll={"state": "ready"})
    await finish(s, "store")
    await s.fail((await begin(s, "tell"))["tell"])
    s.tick(61)
    await s.retry(execution_id)
    assert await skipped_in_last_round(s, execution_id) == ["before", "poll", "store"]
    await finish(s, "tell")
    assert await status(s, execution_id) == "completed"
    assert await plan_of(s, execution_id) is None


@on_both_stores
async def test_a_retry_within_a_cycle_goes_on_with_its_visit(s: Scenario) -> None:
    await s.define(
        job("poll", to("work", "not result.done"), max_visits=3),
        each("work", "{{ x }}", to("poll"), attempts=1),
    )
    execution_id = await s.submit()
    await finish(s, poll={"done": False})
    await finish(s, work=[1])
    await finish(s, "work[0]")
    await finish(s, poll={"done": False})
    await finish(s, work=[1, 2])
    jobs = await begin(s, "work[0]", "work[1]")
    await s.report(completed(jobs["work[0]"]), failed(jobs["work[1]"]))
    assert await status(s, execution_id) == "failed"
    await s.retry(execution_id)
    assert await states(s, execution_id) == {"work[1]#2": "queued"}
    await finish(s, "work[1]")
    await finish(s, poll={"done": True})
    assert await status(s, execution_id) == "completed"


@pytest.mark.parametrize("request_", [{}, {"from_stage": "fan"}, {"full": True, "confirm": True}])
@on_both_stores
async def test_a_retry_by_an_engine_that_knows_nothing_of_it(s: Scenario, request_: dict[str, Any]) -> None:
    await s.define(
        control("start", to("one", "workload.n > 1", n="{{ n }}"), to("fan")),
        job("one", to("end")),
        each("fan", "{{ x }}", to("end", "fan | length > 0"), attempts=1),
        job("end"),
    )
    execution_id = await s.submit({"n": 2})
    await finish(s, "start")
    await finish(s, one=1, fan=[1, 2])
    jobs = await begin(s, "fan[0]", "fan[1]")
    await s.report(failed(jobs["fan[0]"]), completed(jobs["fan[1]"]))
    s.engine = s.another_engine()
    await s.retry(execution_id, **request_)
    while ready := await lease_all(s):
        await s.report(*(completed(job_, "[5,6]" if name == "fan" else "0") for name, job_ in ready.items()))
    assert await status(s, execution_id) == "completed"
    assert len(await told_of(s, execution_id, "manual_retry")) == 1


@on_both_stores
async def test_a_retry_of_what_runs_or_is_complete_is_refused(s: Scenario) -> None:
    await s.define(*TWO_BRANCHES)
    execution_id = await s.submit()
    with pytest.raises(RetryRefused) as refusal:
        await s.retry(execution_id)
    assert refusal.value.code == "not_failed"
    await finish(s, "start")
    jobs = await begin(s, "a", "x")
    await s.fail(jobs["a"], "no", category=Category.PERMANENT)
    # It is as good as failed, but an attempt is under way.
    with pytest.raises(RetryRefused) as refusal:
        await s.retry(execution_id, force=True)
    assert refusal.value.code == "not_failed"
    assert codes(await s.report(completed(jobs["x"], '{"n":1}'))) == ["accepted"]
    await s.retry(execution_id, force=True)
    await begin(s, "a")


@on_both_stores
async def test_a_way_out_of_a_cycle_that_depended_on_what_was_handed_on_is_gone_again(s: Scenario) -> None:
    """By what was handed to the step at its last visit, and not at another."""
    await s.define(
        job("before", to("poll", n=0)),
        job(
            "poll",
            to("poll", "input.n < 2", n="{{ input.n + 1 }}"),
            to("end", "n == 2", n="{{ n }}"),
            max_visits=5,
        ),
        job("end", to("last")),
        job("last", attempts=1),
    )
    execution_id = await s.submit()
    await finish(s, "before")
    for _ in range(3):
        await finish(s, "poll")
    await finish(s, "end")
    await s.fail((await begin(s, "last"))["last"])
    await s.retry(execution_id, from_stage="end")
    [end] = (await begin(s, "end")).values()
    assert end.input == '{"n":2}'


BESIDE = (
    control("start", to("p"), to("c")),
    job("p", to("q")),
    job("q", attempts=1),
    job("c", to("d", "{{ c.n == 1 }}")),
    job("d"),
)


async def failed_at_q_while_c_was_under_way(s: Scenario) -> int:
    await s.define(*BESIDE)
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, "p", "c")
    await s.complete(jobs["p"])
    await s.fail((await begin(s, "q"))["q"])
    await s.complete(jobs["c"], '{"n": 1}')
    assert await status(s, execution_id) == "failed"
    return execution_id


@on_both_stores
async def test_from_an_earlier_step_another_branch_that_completed_while_it_failed_is_kept(
    s: Scenario,
) -> None:
    execution_id = await failed_at_q_while_c_was_under_way(s)
    await s.retry(execution_id, from_stage="p")
    assert await states(s, execution_id) == {"p": "queued", "d": "queued"}
    assert await skipped_in_last_round(s, execution_id) == ["start", "c"]
    await finish(s, "p", "d")
    await finish(s, "q")
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_from_an_earlier_step_only_what_is_not_done_of_other_elements_runs_again(s: Scenario) -> None:
    await s.define(
        control("start", to("p"), to("fan")),
        job("p", to("q")),
        job("q", attempts=1),
        each("fan", "{{ workload }}", to("sum", parts="{{ fan }}"), attempts=1),
        job("sum"),
    )
    execution_id = await s.submit()
    await finish(s, "start")
    await finish(s, p=1, fan=[1, 2, 3])
    jobs = await begin(s, "q", "fan[0]", "fan[1]", "fan[2]")
    await s.complete(jobs["fan[0]"], "10")
    await s.complete(jobs["fan[1]"], "20")
    await s.fail(jobs["q"])
    await s.fail(jobs["fan[2]"])
    await s.retry(execution_id, from_stage="p")
    assert await states(s, execution_id) == {"p": "queued", "fan[2]": "queued"}
    jobs = await begin(s, "p", "fan[2]")
    await s.complete(jobs["p"])
    await s.complete(jobs["fan[2]"], "30")
    both = await begin(s, "q", "sum")
    assert json.loads(both["sum"].input) == {"parts": [10, 20, 30]}


@on_both_stores
async def test_a_retry_after_a_deadline_does_not_wait_for_elements_that_ended_with_it(s: Scenario) -> None:
    await s.define(
        each("fan", "{{ workload }}", fail_fast=True, on_error="fix", attempts=1), job("fix", attempts=1)
    )
    execution_id = await s.submit(deadline_seconds=30.0)
    await finish(s, fan=[1, 2])
    jobs = await begin(s, "fan[0]", "fan[1]")
    await s.fail(jobs["fan[0]"], "no", category=Category.PERMANENT)
    await begin(s, "fix")
    s.tick(31)
    await s.engine.sweep()
    assert await status(s, execution_id) == "failed"
    await s.retry(execution_id)
    await finish(s, "fix")
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_a_full_retry_asks_before_it_throws_away_elements_that_are_done(s: Scenario) -> None:
    await s.define(each("fan", "{{ workload }}", attempts=1))
    execution_id = await s.submit()
    await finish(s, fan=[1, 2])
    jobs = await begin(s, "fan[0]", "fan[1]")
    await s.complete(jobs["fan[0]"])
    await s.fail(jobs["fan[1]"])
    with pytest.raises(RetryRefused, match="discards the results of fan") as refused:
        await s.retry(execution_id, full=True)
    assert refused.value.code == "confirmation_required"
    await s.retry(execution_id, full=True, confirm=True)
    assert await states(s, execution_id) == {"fan": "queued"}


@on_both_stores
async def test_a_full_retry_of_which_nothing_is_done_needs_no_confirmation(s: Scenario) -> None:
    await s.define(each("fan", "{{ workload }}", attempts=1))
    execution_id = await s.submit()
    await finish(s, fan=[1])
    await s.fail((await begin(s, "fan[0]"))["fan[0]"])
    await s.retry(execution_id, full=True)
    assert await states(s, execution_id) == {"fan": "queued"}


@on_both_stores
async def test_a_refusal_for_the_sake_of_another_branch_says_where_to_retry_from(s: Scenario) -> None:
    await s.define(
        control("start", to("a"), to("x")),
        job("a", attempts=1),
        job("x", to("y", "x.nope > 1")),
        job("y"),
    )
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, "a", "x")
    await s.fail(jobs["a"])
    await s.complete(jobs["x"], '{"n": 1}')
    with pytest.raises(InvalidInput, match="cannot be gone again") as refused:
        await s.retry(execution_id)
    assert refused.value.guidance == "Retry it from x, or in full."
    await s.retry(execution_id, from_stage="x")


@on_both_stores
async def test_a_redrive_of_many_asks_for_all_decisions_at_once(s: Scenario) -> None:
    await s.define(*BESIDE)
    for _ in range(5):
        await s.submit()
    handlers = [*s._handlers, "type/sleep"]

    async def lease() -> list[Any]:
        return (await s.engine.lease("w", handlers, 100)).jobs

    await s.report(*map(completed, await lease()))
    jobs = await lease()
    await s.report(*(completed(job) for job in jobs if job.step == "p"))
    await s.report(*(failed(job) for job in await lease()))
    await s.report(*(completed(job, '{"n": 1}') for job in jobs if job.step == "c"))
    transactions, amend = 0, s.store.amend_executions

    async def counted(*arguments: Any, **named: Any) -> None:
        nonlocal transactions
        transactions += 1
        await amend(*arguments, **named)

    s.store.amend_executions = counted  # type: ignore[method-assign]
    answers = [answer async for batch in s.engine.redrive() for answer in batch]
    assert [answer.code for answer in answers] == ["redriven"] * 5
    assert transactions == 2


@on_both_stores
async def test_a_list_that_was_made_while_it_failed_is_made_again(s: Scenario) -> None:
    await s.define(
        control("start", to("p"), to("fan")),
        job("p", to("q")),
        job("q", attempts=1),
        each("fan", "{{ workload }}"),
    )
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, "p", "fan")
    await s.complete(jobs["p"])
    await s.fail((await begin(s, "q"))["q"])
    await s.complete(jobs["fan"], "[1, 2]")
    await s.retry(execution_id, from_stage="p")
    await finish(s, p=1, fan=[1, 2])
    await finish(s, "q", "fan[0]", "fan[1]")
    assert await status(s, execution_id) == "completed"
