"""A lease goes from a dispatcher to whoever shows its fence; the attempt stays the same one."""

import pytest

from engine_scenario import Scenario, codes, completed, failed, on_both_stores, ref, stage
from holdfast.core.errors import InvalidInput, StoreUnavailable
from holdfast.core.limits import FLEET_LIMIT
from holdfast.core.model import Leased, LeaseRef

TOKEN = "takers_token"


async def take(s: Scenario, *leases: LeaseRef, token: str = TOKEN, worker: str = "taker") -> list[Leased]:
    return await s.engine.take_over(worker, leases, token=token, lease_seconds=60.0)


@on_both_stores
async def test_the_taker_reports_and_the_dispatcher_no_longer_can(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"))
    id_ = await s.submit({"number": 7})
    leased = await s.lease_one()
    (taken,) = await take(s, ref(leased))
    assert (taken.workload, taken.attempt, taken.fence) == ('{"number":7}', 1, f"2-{TOKEN}")
    assert codes(await s.engine.heartbeat([ref(leased)])) == ["stale_lease"]
    assert codes(await s.engine.release([ref(leased)])) == ["stale_lease"]
    assert codes(await s.report(completed(leased), failed(leased))) == ["stale_lease"] * 2
    assert codes(await s.report(completed(taken, "1"))) == ["accepted"]
    assert codes(await s.report(completed(taken, "1"), completed(taken, "2"))) == ["repeated", "stale_lease"]
    (following,) = await take(s, ref(await s.lease_one()))
    assert following.step == "b" and following.outputs == {"a": "1"}
    assert await s.told(id_) == [
        "execution_started",
        "step_started a",
        "action_started a",
        "action_completed a",
        "step_completed a",
        "step_started b",
        "action_started b",
    ]
    started = [event for event in await s.events(id_) if event.type == "action_started"]
    assert [event.data["worker"] for event in started] == ["taker", "taker"]


@on_both_stores
async def test_a_taker_behind_another_engine_reports_in_the_same_way(s: Scenario) -> None:
    await s.define(stage("a"), stage("b", attempts=2))
    id_ = await s.submit()
    other = s.another_engine()
    (taken,) = await other.take_over("t", [ref(await s.lease_one())], token=TOKEN, lease_seconds=60.0)
    assert codes(await other.report([completed(taken)])) == ["accepted"]
    (taken,) = await other.take_over("t", [ref(await s.lease_one())], token=TOKEN, lease_seconds=60.0)
    assert codes(await s.report(failed(taken))) == ["accepted"]
    assert await s.state(id_) == "retry 1/2"


@on_both_stores
async def test_an_answer_that_was_lost_is_asked_for_again(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit()
    leased = await s.lease_one()
    (first,) = await take(s, ref(leased))
    (again,) = await take(s, ref(leased))
    assert again == first
    assert await take(s, ref(leased), token="another_one") == []
    assert (await s.complete(again)).accepted
    assert await take(s, ref(leased)) == []


@on_both_stores
async def test_a_taker_that_dies_is_a_worker_that_was_lost(s: Scenario) -> None:
    await s.define(stage("a", attempts=2))
    id_ = await s.submit()
    (taken,) = await take(s, ref(await s.lease_one()))
    await s.lose()
    assert await s.state(id_) == "retry 1/2"
    assert await take(s, ref(taken)) == []
    s.tick(100)
    again = await s.lease_one(alone=True)
    (taken,) = await take(s, ref(again))
    assert taken.alone and taken.attempt == 2 and taken.fence == f"4-{TOKEN}"


@on_both_stores
async def test_what_is_given_back_after_it_was_taken_costs_no_attempt(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    id_ = await s.submit()
    (taken,) = await take(s, ref(await s.lease_one()))
    assert codes(await s.engine.release([ref(taken)])) == ["accepted"]
    assert await s.state(id_) == "queued 0/1"
    assert (await s.lease_one()).fence.startswith("3-")


@on_both_stores
async def test_a_cancelled_attempt_is_taken_by_nobody(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    leased = await s.lease_one()
    await s.engine.cancel(id_)
    assert await take(s, ref(leased)) == []


@on_both_stores
async def test_a_limit_counts_what_was_taken_over_once(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.engine.controls.set_limit(FLEET_LIMIT, 1)
    first, second = await s.submit(), await s.submit()
    (taken,) = await take(s, ref(await s.lease_one()))
    assert not (await s.ask()).jobs
    assert (await s.complete(taken)).accepted
    assert (await s.lease_one()).execution_id == second != first


@on_both_stores
async def test_what_nobody_gave_out_takes_nothing(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit()
    leased = await s.lease_one()
    strange = ["", "1", "-", "1-", "x-1", "²-ab", f"{'9' * 30}-ab", "0-ab"]
    leases = [LeaseRef(leased.queue_id, fence) for fence in strange]
    leases += [LeaseRef(0, leased.fence), LeaseRef(-3, leased.fence), LeaseRef(2**70, leased.fence)]
    assert await take(s, *leases) == []
    assert await take(s) == []
    assert len(await take(s, *leases, ref(leased), ref(leased))) == 1


@on_both_stores
async def test_a_taker_without_a_name_a_token_or_a_time_is_refused(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit()
    leased = await s.lease_one()
    with pytest.raises(InvalidInput, match="worker id"):
        await take(s, ref(leased), worker="")
    with pytest.raises(InvalidInput, match="token"):
        await take(s, ref(leased), token="short")
    with pytest.raises(InvalidInput, match="lease_seconds"):
        await s.engine.take_over("t", [ref(leased)], token=TOKEN, lease_seconds=0.0)
    with pytest.raises(InvalidInput, match="at once"):
        await take(s, *[ref(leased)] * 1_001)
    assert codes(await s.engine.heartbeat([ref(leased)])) == ["accepted"]


@on_both_stores
async def test_what_cannot_be_handed_out_is_given_back(s: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    await s.define(stage("a"), stage("b"))
    id_ = await s.submit()
    await s.complete(await s.lease_one())
    leased = await s.lease_one()

    async def away(*_: object) -> list[object]:
        raise StoreUnavailable("the store went away between two calls")

    with monkeypatch.context() as patch:
        patch.setattr(s.store, "outputs", away)
        with pytest.raises(StoreUnavailable):
            await take(s, ref(leased))
    assert await s.state(id_) == "queued 0/3"


@on_both_stores
async def test_what_nobody_took_over_has_not_run_and_loses_no_attempt_with_its_dispatcher(
    s: Scenario,
) -> None:
    await s.define(stage("a", attempts=1, max_crashes=1))
    id_ = await s.submit()
    for _ in range(4):
        await s.lease_one(untaken=True)
        assert await s.state(id_) == "leased 1/1"
        assert await s.lose() == 1
        assert await s.state(id_) == "queued 0/1"
    assert "lease_lost" not in " ".join(await s.told(id_))
    (taken,) = await take(s, ref(await s.lease_one(untaken=True)))
    await s.lose()
    assert await s.state(id_) == "dead 1/1", "who took it over was lost"
    assert await take(s, ref(taken)) == []


@on_both_stores
async def test_so_does_what_must_run_alone(s: Scenario) -> None:
    await s.define(stage("a", attempts=5, max_crashes=1))
    id_ = await s.submit()
    await s.lease_one()
    await s.lose()
    for _ in range(3):
        s.tick(100)
        await s.lease_one(alone=True, untaken=True)
        await s.lose()
        assert await s.state(id_) == "retry 1/5"


@pytest.mark.parametrize("kind", ["step", "playbook", "lane", "limit"])
@on_both_stores
async def test_what_was_paused_while_it_waited_is_not_begun(s: Scenario, kind: str) -> None:
    await s.define(stage("a", limit="door"))
    id_ = await s.submit()
    leased = await s.lease_one(untaken=True)
    name = {"step": "p/a", "playbook": "p", "lane": "bulk", "limit": "door"}[kind]
    await s.engine.controls.pause(kind, name)
    assert await take(s, ref(leased)) == []
    assert await s.state(id_) == "queued 0/3"
    assert await s.lease() == []
    await s.engine.controls.resume(kind, name)
    assert len(await take(s, ref(await s.lease_one(untaken=True)))) == 1


@on_both_stores
async def test_a_pause_of_something_else_keeps_nobody(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit()
    await s.engine.controls.pause("lane", "manual")
    assert len(await take(s, ref(await s.lease_one(untaken=True)))) == 1


@on_both_stores
async def test_what_is_taken_over_together_began_when_each_was_leased(s: Scenario) -> None:
    await s.define(stage("a"))
    times, leases = {}, []
    for _ in range(2):
        id_ = await s.submit()
        leases.append(ref(await s.lease_one()))
        times[id_] = s.now
        s.tick(5)
    await s.report(*[completed(taken) for taken in await take(s, *leases)])
    for id_, at in times.items():
        [began] = [event for event in await s.events(id_) if event.type == "action_started"]
        assert began.at == at
