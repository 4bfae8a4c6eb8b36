"""The beginning of an attempt is told from the moment it is leased, and told once, wherever one reads on."""

from engine_scenario import Scenario, completed, on_both_stores, ref, stage


@on_both_stores
async def test_a_running_attempt_is_the_last_event_and_stays_where_it_was_when_it_has_ended(
    s: Scenario,
) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    s.tick(5)
    leased_at = s.now
    job = await s.lease_one(worker='w"1')
    begun = (await s.events(id_))[-1]
    told = {"attempt": 1, "is_retry": False, "worker": 'w"1'}
    assert (begun.type, begun.step, begun.at, begun.data) == ("action_started", "a", leased_at, told)
    s.tick(7)
    await s.complete(job)
    events = await s.events(id_)
    assert [event.type for event in events] == [
        "execution_started", "step_started", "action_started", "action_completed", "step_completed",
        "execution_completed",
    ]  # fmt: skip
    assert [event.at - leased_at for event in events] == [-5, -5, 0, 7, 7, 7]
    assert events[2].data == told


@on_both_stores
async def test_reading_on_tells_each_beginning_once(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"))
    id_ = await s.submit()
    seen: list[str] = []
    last: str | None = None

    async def read_on() -> None:
        nonlocal last
        for event in await s.engine.events(id_, after=last):
            seen.append(f"{event.type} {event.step or ''}".strip())
            last = event.id
        assert await s.engine.events(id_, after=last) == []

    await read_on()
    for step in (1, 2):
        s.tick(1)
        job = await s.lease_one()
        await read_on()
        if step == 1:
            await s.fail(job)
            await read_on()
            s.tick(600)
            job = await s.lease_one()
            await read_on()
        s.tick(1)
        await s.complete(job)
        await read_on()
    assert seen == await s.told(id_)
    assert seen.count("action_started a") == 2
    assert seen.count("action_started b") == 1


@on_both_stores
async def test_pages_of_one_event_tell_the_same_as_one_page(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"))
    id_ = await s.submit()
    await s.complete(await s.lease_one())
    s.tick(1)
    await s.lease_one()
    paged: list[str] = []
    last: str | None = None
    while page := await s.engine.events(id_, after=last, limit=1):
        last = page[-1].id
        paged += [event.type for event in page]
    assert paged == [event.type for event in await s.events(id_)]
    assert paged[-1] == "action_started"


@on_both_stores
async def test_whatever_ends_an_attempt_tells_that_it_began(s: Scenario) -> None:
    await s.define(stage("a", attempts=5))
    given_back, lost, cancelled, overdue = [
        await s.submit(deadline_seconds=30.0 if number == 3 else None) for number in range(4)
    ]
    s.tick(1)
    jobs = {job.execution_id: job for job in await s.lease()}
    begun_at = s.now
    s.tick(1)
    await s.engine.release([ref(jobs[given_back])])
    await s.engine.cancel(cancelled)
    await s.lose()
    for id_ in (given_back, lost, cancelled, overdue):
        begun = [event for event in await s.events(id_) if event.type == "action_started"]
        assert [(event.at, event.data["worker"]) for event in begun] == [(begun_at, "w1")]
    assert [event.type for event in await s.events(cancelled)][-2:] == [
        "action_started",
        "execution_cancelled",
    ]
    assert "execution_failed" in [event.type for event in await s.events(overdue)]


@on_both_stores
async def test_an_attempt_reported_elsewhere_tells_its_beginning_too(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    job = await s.lease_one()
    leased_at = s.now
    s.tick(3)
    await s.another_engine().report([completed(job)])
    [begun] = [event for event in await s.events(id_) if event.type == "action_started"]
    assert begun.at == leased_at
