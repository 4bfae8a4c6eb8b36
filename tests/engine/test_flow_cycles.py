"""Playbooks that go round: visits, their bound, and steps that sleep on the way."""

import json

from engine_scenario import Scenario, codes, on_both_stores, ref, stage
from flow_scenario import begin, control, each, finish, job, lease_all, plan_of, states, status, to, told_of
from holdfast.core.model import Deferred, Report

POLLING = (
    control("start", to("poll")),
    job("poll", to("nap", "not poll.done"), to("end", "poll.done"), max_visits=3),
    job("nap", to("poll"), type="sleep", handler="type/sleep", config={"seconds": 30}),
    control("end"),
)


@on_both_stores
async def test_a_polling_loop_goes_round_until_it_is_done(s: Scenario) -> None:
    await s.define(*POLLING)
    execution_id = await s.submit()
    await finish(s, poll={"done": False, "n": 1})
    assert await lease_all(s) == {}
    s.tick(31)
    await finish(s, "nap")
    await finish(s, poll={"done": True, "n": 2})
    view = await s.engine.view(execution_id)
    assert (view.execution.status, view.result) == ("completed", {"done": True, "n": 2})
    assert await states(s, execution_id) == {"poll": "done", "nap": "done", "poll#2": "done"}
    visits = [
        (event.type.value, event.step, event.data.get("visit", 1))
        for event in await s.events(execution_id)
        if event.type in ("step_started", "step_completed") and event.step == "poll"
    ]
    assert visits == [
        ("step_started", "poll", 1),
        ("step_completed", "poll", 1),
        ("step_started", "poll", 2),
        ("step_completed", "poll", 2),
    ]


@on_both_stores
async def test_more_visits_than_are_allowed_are_a_permanent_error_that_names_the_step(s: Scenario) -> None:
    await s.define(*POLLING)
    execution_id = await s.submit()
    for _ in range(3):
        await finish(s, poll={"done": False})
        s.tick(31)
        if await status(s, execution_id) == "running":
            jobs = await begin(s, "nap")
            assert codes([await s.complete(jobs["nap"])]) == ["accepted"]
    error = (await s.execution(execution_id)).error
    assert await status(s, execution_id) == "failed"
    assert error is not None
    assert (error.stage, error.error_type, error.category) == ("nap", "max_visits", "permanent")
    assert "poll" in error.message and "max_visits allows 3" in error.message


@on_both_stores
async def test_branches_inside_a_cycle_all_end_before_it_goes_round(s: Scenario) -> None:
    await s.define(
        job("poll", to("left", n="{{ poll.n }}"), to("right", "poll.n > 1"), max_visits=3),
        job("left", to("join", left="{{ left }}")),
        job("right", to("join", right="{{ right }}")),
        control("join", to("poll", "input.left < 3", was="{{ input }}"), to("end", "input.left >= 3")),
        job("end", needs=("left", "right")),
    )
    execution_id = await s.submit()
    await finish(s, poll={"n": 1})
    await finish(s, left=1)
    [poll] = (await begin(s, "poll")).values()
    assert json.loads(poll.input) == {"was": {"left": 1}}
    await s.complete(poll, '{"n": 2}')
    jobs = await begin(s, "left", "right")
    await s.complete(jobs["left"], "3")
    assert await lease_all(s) == {}
    await s.complete(jobs["right"], "9")
    [end] = (await begin(s, "end")).values()
    assert end.outputs == {"left": "3", "right": "9"}
    await s.complete(end)
    assert await status(s, execution_id) == "completed"
    assert await states(s, execution_id) == {
        "poll": "done",
        "left": "done",
        "poll#2": "done",
        "left#2": "done",
        "right": "done",
        "end": "done",
    }


@on_both_stores
async def test_a_for_each_inside_a_cycle_has_a_list_of_its_own_at_each_visit(
    s: Scenario,
) -> None:
    await s.define(
        job("poll", to("fan", "not poll.done"), to("end", "poll.done"), max_visits=4),
        each("fan", "{{ x }}", to("poll", got="{{ fan }}"), concurrency=1),
        job("end", needs=("fan",)),
    )
    execution_id = await s.submit()
    await finish(s, poll={"done": False})
    await finish(s, fan=[1, 2])
    await finish(s, **{"fan[0]": 10})
    await finish(s, **{"fan[1]": 20})
    [poll] = (await begin(s, "poll")).values()
    assert json.loads(poll.input) == {"got": [10, 20]}
    await s.complete(poll, '{"done": false}')
    await finish(s, fan=[3])
    await finish(s, **{"fan[0]": 30})
    [poll] = (await begin(s, "poll")).values()
    assert json.loads(poll.input) == {"got": [30]}
    await s.complete(poll, '{"done": true}')
    [end] = (await begin(s, "end")).values()
    assert json.loads(end.outputs["fan"]) == [30]
    await s.complete(end)
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_on_error_may_lead_back_to_the_step_itself(s: Scenario) -> None:
    await s.define(
        job("a", to("end"), attempts=1, max_visits=2, on_error="repair"),
        job("repair", to("a", again=True)),
        job("end", attempts=1),
    )
    execution_id = await s.submit()
    await s.fail((await begin(s, "a"))["a"])
    await finish(s, "repair")
    jobs = await begin(s, "a")
    assert jobs["a"].input == '{"again":true}'
    await s.complete(jobs["a"])
    await s.fail((await begin(s, "end"))["end"])
    # What died at the first visit and was done at the second is done.
    await s.retry(execution_id, from_stage="end")
    await finish(s, "end")
    assert await status(s, execution_id) == "completed"

    other = await s.submit()
    for _ in range(2):
        await s.fail((await begin(s, "a"))["a"])
        await finish(s, "repair")
    error = (await s.execution(other)).error
    assert await status(s, other) == "failed"
    assert error is not None and "max_visits allows 2" in error.message


@on_both_stores
async def test_the_plan_does_not_grow_with_the_visits(s: Scenario) -> None:
    await s.define(job("poll", to("poll", n="{{ poll }}"), max_visits=50))
    execution_id = await s.submit()
    sizes = []
    for number in range(49):
        await finish(s, poll=number)
        sizes.append(len(await plan_of(s, execution_id) or ""))
    assert max(sizes) - min(sizes) <= 5, "but for the digits of the visit"


# sleeping


@on_both_stores
async def test_a_constant_sleep_is_a_job_that_becomes_ready_later(s: Scenario) -> None:
    await s.define(
        job("nap", to("a"), type="sleep", handler="type/sleep", config={"seconds": 90}),
        job("a", to("more")),
        job("more", type="sleep", handler="type/sleep", config={"seconds": 60}),
    )
    execution_id = await s.submit()
    assert (await s.job(execution_id)).available_at == s.now + 90
    assert await lease_all(s) == {}
    s.tick(90)
    [nap] = (await begin(s, "nap")).values()
    assert (nap.attempt, json.loads(nap.parked or "")) == (1, {"slept": 90})
    await s.complete(nap)
    await finish(s, "a")
    assert await lease_all(s) == {}
    s.tick(60)
    await finish(s, "more")
    assert await status(s, execution_id) == "completed"
    assert await told_of(s, execution_id, "lease_released") == []


@on_both_stores
async def test_an_attempt_that_sleeps_is_put_aside_and_is_the_same_attempt_again(s: Scenario) -> None:
    await s.define(
        job("nap", to("a"), type="sleep", handler="type/sleep", config={"seconds": "{{ n }}"}), job("a")
    )
    execution_id = await s.submit({"n": 5})
    [nap] = (await begin(s, "nap")).values()
    report = Report(nap.queue_id, nap.fence, Deferred(until_seconds=5))
    assert codes(await s.report(report)) == ["accepted"]
    assert codes(await s.report(report)) == ["repeated"]
    assert await s.state(execution_id) == "queued 0/3"
    s.tick(4)
    assert await lease_all(s) == {}
    s.tick(1)
    [nap] = (await begin(s, "nap")).values()
    assert (nap.attempt, nap.parked) == (1, '{"slept":5.0}')
    # A worker that stops gives it back: it need not sleep again.
    await s.engine.release([ref(nap)])
    [nap] = (await begin(s, "nap")).values()
    assert (nap.attempt, nap.parked) == (1, '{"slept":5.0}')
    await s.complete(nap)
    await finish(s, "a")
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_steps_that_simply_follow_each_other_sleep_too(s: Scenario) -> None:
    """A chain has no plan, and needs none for it."""
    await s.define(
        stage("a"),
        stage("nap", type="sleep", handler="type/sleep", config={"seconds": 60}),
        stage("wait", type="sleep", handler="type/sleep", config={"seconds": "{{ workload }}"}),
        stage("b"),
    )
    execution_id = await s.submit()
    assert await plan_of(s, execution_id) is None
    await finish(s, "a")
    assert await lease_all(s) == {}
    s.tick(60)
    await finish(s, "nap")
    [wait] = (await begin(s, "wait")).values()
    await s.report(Report(wait.queue_id, wait.fence, Deferred(until_seconds=5)))
    assert await lease_all(s) == {}
    s.tick(5)
    await finish(s, "wait")
    await finish(s, "b")
    assert await status(s, execution_id) == "completed"
