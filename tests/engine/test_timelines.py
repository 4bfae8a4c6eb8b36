"""The life of a job, told exactly: its states, its delays, and its events in their order."""

from engine_scenario import START, Scenario, on_both_stores, ref, stage
from holdfast.core.model import EventType, ExecutionStatus

BEGUN = ["execution_started", "step_started a", "action_started a"]
DIED = ["step_failed_terminal a", "execution_failed"]


@on_both_stores
async def test_a_job_that_never_heals_is_tried_three_times_and_dies(s: Scenario) -> None:
    await s.define(stage("a", attempts=3))
    id_ = await s.submit()
    states = [await s.state(id_)]
    for delay in (1, 2, None):
        job = await s.lease_one()
        states.append(await s.state(id_))
        await s.fail(job)
        states.append(await s.state(id_))
        if delay is not None:
            assert (await s.job(id_)).available_at == s.now + delay
            s.tick(delay - 0.001)
            assert await s.lease() == []
            s.tick(0.002)
    assert ", ".join(states) == (
        "queued 0/3, leased 1/3, retry 1/3, leased 2/3, retry 2/3, leased 3/3, dead 3/3"
    )
    assert await s.told(id_) == [
        *BEGUN,
        *["action_error a", "step_retry a", "action_started a"] * 2,
        *["action_error a", "step_retry_exhausted a", *DIED],
    ]
    assert (await s.job(id_)).dead_reason == "exhausted"
    assert (await s.execution(id_)).status is ExecutionStatus.FAILED


@on_both_stores
async def test_the_events_of_a_retry_tell_its_number_delay_and_time(s: Scenario) -> None:
    await s.define(stage("a", attempts=3, initial_delay=5))
    id_ = await s.submit()
    await s.fail(await s.lease_one(worker="w7"))
    assert (await s.last_event(id_, EventType.STEP_RETRY)).data == {
        "attempt": 1,
        "delay": 5.0,
        "available_at": START + 5,
    }
    begun = await s.last_event(id_, EventType.ACTION_STARTED)
    assert begun.data == {"attempt": 1, "is_retry": False, "worker": "w7"}
    s.tick(5)
    await s.complete(await s.lease_one(worker='w"8'))
    begun = await s.last_event(id_, EventType.ACTION_STARTED)
    assert begun.data == {"attempt": 2, "is_retry": True, "worker": 'w"8'}
    assert [event.at for event in await s.events(id_)] == [START] * 5 + [START + 5] * 4
    assert (await s.execution(id_)).error is None


@on_both_stores
async def test_three_stages_complete_one_after_the_other(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"), stage("c"))
    id_ = await s.submit({"n": 1})
    for name in "abc":
        job = await s.lease_one()
        assert (job.step, job.attempt) == (name, 1)
        assert await s.lease() == []
        await s.complete(job, f'"{name}!"')
    assert await s.told(id_) == [
        "execution_started",
        *["step_started a", "action_started a", "action_completed a", "step_completed a"],
        *["step_started b", "action_started b", "action_completed b", "step_completed b"],
        *["step_started c", "action_started c", "action_completed c", "step_completed c"],
        "execution_completed",
    ]
    view = await s.engine.view(id_)
    assert view.execution.status is ExecutionStatus.COMPLETED
    assert view.execution.last_completed_stage == "c"
    assert view.outputs == {"a": "a!", "b": "b!", "c": "c!"}
    assert [f"{job.status} {job.attempts}" for job in view.jobs] == ["done 1"] * 3


@on_both_stores
async def test_a_permanent_error_kills_at_once(s: Scenario) -> None:
    await s.define(stage("a", attempts=3))
    id_ = await s.submit()
    await s.fail(await s.lease_one(), "the file is corrupted", error_type="invalid_file")
    assert await s.state(id_) == "dead 1/3"
    assert (await s.job(id_)).dead_reason == "permanent"
    assert await s.told(id_) == [*BEGUN, "action_error a", *DIED]
    assert (await s.last_event(id_, EventType.STEP_FAILED_TERMINAL)).data == {"dead_reason": "permanent"}


@on_both_stores
async def test_a_lost_worker_is_told_before_the_error_it_makes(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    await s.lease_one(worker="gone")
    assert await s.lose() == 1
    assert await s.state(id_) == "retry 1/3"
    assert await s.told(id_) == [*BEGUN, "lease_lost a", "action_error a", "step_retry a"]
    assert (await s.last_event(id_, EventType.LEASE_LOST)).data == {"attempt": 1, "worker": "gone"}
    error = (await s.last_event(id_, EventType.ACTION_ERROR)).data
    assert (error["error_type"], error["category"]) == ("worker_lost", "transient")


@on_both_stores
async def test_a_released_attempt_is_given_back_at_once(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    first = await s.lease_one()
    [ack] = await s.engine.release([ref(first)])
    assert ack.accepted
    assert await s.state(id_) == "queued 0/3"
    second = await s.lease_one()
    await s.fail(second)
    s.tick(1)
    third = await s.lease_one()
    await s.engine.release([ref(third)])
    assert await s.state(id_) == "retry 1/3"
    assert (await s.job(id_)).available_at == s.now
    fourth = await s.lease_one()
    assert [job.attempt for job in (first, second, third, fourth)] == [1, 1, 2, 2]
    assert len({job.fence for job in (first, second, third, fourth)}) == 4
    assert await s.told(id_) == [
        *BEGUN,
        *["lease_released a", "action_started a", "action_error a", "step_retry a"],
        *["action_started a", "lease_released a", "action_started a"],
    ]


@on_both_stores
async def test_a_manual_retry_skips_what_is_complete(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"), stage("c", attempts=1))
    id_ = await s.submit()
    await s.complete(await s.lease_one())
    await s.complete(await s.lease_one())
    await s.fail(await s.lease_one())
    before = len(await s.told(id_))
    await s.retry(id_, by="ann")
    assert await s.state(id_) == "queued 0/1"
    await s.complete(await s.lease_one())
    assert (await s.told(id_))[before:] == [
        *["manual_retry", "step_skipped a", "step_skipped b", "step_started c"],
        *["action_started c", "action_completed c", "step_completed c", "execution_completed"],
    ]
    asked = await s.last_event(id_, EventType.MANUAL_RETRY)
    assert (asked.data["from_stage"], asked.data["by"]) == ("c", "ann")
    assert (await s.last_event(id_, EventType.STEP_SKIPPED)).data == {"reason": "already_completed"}


@on_both_stores
async def test_jitter_multiplies_the_delay_by_the_draw(s: Scenario) -> None:
    s.engine = s.another_engine(draw=lambda: 1.5)
    await s.define(stage("a", initial_delay=2, jitter=True))
    id_ = await s.submit()
    await s.fail(await s.lease_one())
    assert (await s.job(id_)).available_at == s.now + 3
