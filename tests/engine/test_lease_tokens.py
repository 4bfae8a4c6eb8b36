"""Leases whose answer was lost: taken under a token of the caller's own, and recalled by it."""

import pytest

from engine_scenario import Scenario, codes, on_both_stores, ref, stage
from holdfast.core.errors import InvalidInput

TOKEN = "Lost-answer_01"
OTHER = "answer_that_came"


@on_both_stores
async def test_a_lease_has_the_token_that_its_caller_gives(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit()
    job = await s.lease_one(token=TOKEN)
    assert job.fence == f"1-{TOKEN}"
    assert (await s.complete(job)).accepted


@on_both_stores
async def test_a_token_that_could_be_guessed_or_no_text_is_refused(s: Scenario) -> None:
    await s.define(stage("a"))
    for wrong in ("", "1234567", "x" * 65, "with space", "ünïcödé_", "12345678\n", 12345678):
        with pytest.raises(InvalidInput, match="is no token of a lease"):
            await s.ask(token=wrong)
        with pytest.raises(InvalidInput, match="is no token of a lease"):
            await s.engine.recall("w1", [TOKEN, wrong])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="worker id"):
        await s.engine.recall("", [TOKEN])


@on_both_stores
async def test_a_recalled_lease_costs_no_attempt_and_can_be_leased_again_at_once(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    ids = [await s.submit() for _ in range(3)]
    lost = await s.lease(2, token=TOKEN)
    assert await s.engine.recall("w1", [TOKEN]) == 2
    assert await s.state(ids[0]) == await s.state(ids[1]) == "queued 0/1"
    again = await s.lease(2, token=TOKEN)
    assert [job.queue_id for job in again] == [job.queue_id for job in lost]
    assert [job.fence for job in again] == [f"2-{TOKEN}"] * 2
    assert (await s.complete(lost[0])).code == "stale_lease"
    assert (await s.complete(again[0])).accepted


@on_both_stores
async def test_only_what_this_worker_holds_under_these_tokens_is_recalled(s: Scenario) -> None:
    await s.define(stage("a"))
    for _ in range(4):
        await s.submit()
    lost = await s.lease_one(token=TOKEN)
    kept = await s.lease_one(token=OTHER)
    elsewhere = await s.lease_one(token=TOKEN, worker="w2")
    # Its fence ends like the lost ones, and its token is another.
    similar = await s.lease_one(token=f"a-{TOKEN}")
    assert await s.engine.recall("w1", []) == 0
    assert await s.engine.recall("w3", [TOKEN]) == 0
    assert await s.engine.recall("w1", [TOKEN, "never_used"]) == 1
    standing = [ref(job) for job in (lost, kept, elsewhere, similar)]
    assert codes(await s.engine.heartbeat(standing)) == ["stale_lease", *["accepted"] * 3]
    assert await s.engine.recall("w1", [TOKEN]) == 0


@on_both_stores
async def test_what_was_reported_before_the_recall_stays_as_it_is(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    await s.complete(await s.lease_one(token=TOKEN))
    assert await s.engine.recall("w1", [TOKEN]) == 0
    assert await s.state(id_) == "done 1/3"


@on_both_stores
async def test_leases_are_recalled_by_any_engine_on_the_store(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    await s.lease_one(token=TOKEN)
    assert await s.another_engine().recall("w1", [TOKEN]) == 1
    assert await s.state(id_) == "queued 0/3"


@on_both_stores
async def test_a_heartbeat_without_a_length_extends_each_lease_by_its_own(s: Scenario) -> None:
    await s.define(stage("a"))
    for _ in range(2):
        await s.submit()
    short, long = await s.lease_one(lease_seconds=30), await s.lease_one(lease_seconds=300)
    for _ in range(2):
        s.tick(20)
        acks = await s.engine.heartbeat([ref(short), ref(long)], lease_seconds=None)
        assert codes(acks) == ["accepted"] * 2
        until = [(await s.job(job.execution_id)).lease_until for job in (short, long)]
        assert until == [s.now + 30, s.now + 300]
    await s.engine.heartbeat([ref(short)], lease_seconds=90)
    s.tick(10)
    await s.engine.heartbeat([ref(short)], lease_seconds=None)
    assert (await s.job(short.execution_id)).lease_until == s.now + 90


@on_both_stores
async def test_without_handlers_a_lease_takes_all_but_what_needs_holdfasts_own_workers(s: Scenario) -> None:
    await s.define(stage("a"), path="one")
    for key in ("type/each", "type/sleep", "type/playbook", "type/http", "python/m:f"):
        await s.define(stage("a", handler=key), path=key.replace(":", "-"))
        await s.submit(path=key.replace(":", "-"))
    await s.submit(path="one")
    jobs = (await s.engine.lease("w1", None, 10)).jobs
    assert sorted(job.handler for job in jobs) == ["p/a", "python/m:f", "type/http"]
    assert (await s.engine.lease("w1", None, 10)).jobs == []


@on_both_stores
async def test_without_handlers_nothing_is_leased_where_nothing_was_ever_submitted(s: Scenario) -> None:
    assert (await s.engine.lease("w1", None, 10)).jobs == []
