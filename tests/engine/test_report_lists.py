"""A list of reports: each is answered on its own, and what is wrong with one harms no other."""

from typing import Any

import pytest

from engine_scenario import Scenario, codes, completed, failed, on_both_stores, ref, stage
from holdfast.core.errors import StoreUnavailable
from holdfast.core.failures import Failure
from holdfast.core.model import Completed, EventType, Failed, LeaseRef, Report
from holdfast.store.changes import Changes

HUGE = 2**70


class Refusing:
    """A store that raises `error` for every transaction that would write something of job `poison`."""

    def __init__(self, store: Any, poison: int, error: Exception) -> None:
        self._store, self._poison, self._error = store, poison, error
        self.transactions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def amend_jobs(self, ids: Any, plan: Any, now: float, **options: Any) -> None:
        self.transactions += 1

        def refusing(locked: Any) -> Changes:
            changes: Changes = plan(locked)
            written = {item.job_id for item in changes.completed} | {item.job.id for item in changes.jobs}
            if self._poison in written:
                raise self._error
            return changes

        await self._store.amend_jobs(ids, refusing, now, **options)


@on_both_stores
async def test_one_bad_item_never_fails_the_others(s: Scenario) -> None:
    s.engine = s.another_engine(payload_bytes_max=1_000)
    await s.define(stage("a"))
    ids = [await s.submit() for _ in range(8)]
    good, large, nul, junk, surrogate, stale, odd, last = await s.lease()
    reports = [
        completed(good),
        completed(large, '"' + "x" * 1_000 + '"'),
        completed(nul, '{"a":"\\u0000"}'),
        completed(junk, "{not json \\u0000"),
        completed(surrogate, '"\ud800"'),
        Report(stale.queue_id, "9-forged", Completed()),
        Report(987_654, "1-x", Completed()),
        Report(987_654, "1-x", Failed(Failure(message="?"))),
        Report(HUGE, "1-x", Failed(Failure(message="?"))),
        Report(HUGE, "1-x", Completed()),
        failed(odd, "\0 \ud800 connection refused"),
        completed(last),
    ]
    answers = codes(await s.report(*reports))
    assert answers[:8] == ["accepted"] * 5 + ["stale_lease"] * 3
    assert set(answers[8:10]) <= {"stale_lease", "invalid"}
    assert answers[10:] == ["accepted"] * 2
    states = [await s.state(id_) for id_ in ids]
    assert states == ["done 1/3", *["dead 1/3"] * 4, "leased 1/3", "retry 1/3", "done 1/3"]


@on_both_stores
async def test_an_output_that_cannot_be_kept_is_how_its_attempt_ended(s: Scenario) -> None:
    s.engine = s.another_engine(payload_bytes_max=100)
    await s.define(stage("a"))
    id_ = await s.submit()
    job = await s.lease_one()
    report = completed(job, '"' + "x" * 100 + '"')
    assert codes(await s.report(report)) == ["accepted"]
    assert codes(await s.report(report)) == ["repeated"]
    execution = await s.execution(id_)
    assert execution.error is not None
    assert execution.error.user_message == "The step's result cannot be stored"
    assert "the limit is 100 bytes" in execution.error.message
    assert "payload_bytes_max" in execution.error.guidance
    assert (await s.job(id_)).dead_reason == "permanent"


@on_both_stores
async def test_an_item_that_the_store_refuses_is_invalid_and_the_rest_is_stored(s: Scenario) -> None:
    await s.define(stage("a"))
    ids = [await s.submit() for _ in range(3)]
    first, bad, third = await s.lease()
    s.engine = await s.engine_on(Refusing(s.store, bad.queue_id, ValueError("value out of range")))
    acks = await s.report(completed(first), completed(bad), failed(third))
    assert codes(acks) == ["accepted", "invalid", "accepted"]
    assert acks[1].message == "the report cannot be stored: value out of range"
    assert not acks[1].accepted
    assert [await s.state(id_) for id_ in ids] == ["done 1/3", "leased 1/3", "retry 1/3"]


@on_both_stores
async def test_a_lost_attempt_that_the_store_refuses_does_not_keep_others_from_being_swept(
    s: Scenario,
) -> None:
    await s.define(stage("a"))
    ids = [await s.submit() for _ in range(3)]
    bad = (await s.lease())[1]
    s.engine = await s.engine_on(Refusing(s.store, bad.queue_id, ValueError("value out of range")))
    s.tick(61)
    assert await s.engine.sweep() == 2
    assert [await s.state(id_) for id_ in ids] == ["retry 1/3", "leased 1/3", "retry 1/3"]


@on_both_stores
async def test_a_store_that_fails_is_told_and_nothing_is_tried_behind_the_callers_back(s: Scenario) -> None:
    await s.define(stage("a"))
    ids = [await s.submit() for _ in range(2)]
    first, second = await s.lease()
    failing = Refusing(s.store, second.queue_id, StoreUnavailable("the disk is full"))
    s.engine = await s.engine_on(failing)
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await s.report(completed(first), completed(second))
    assert failing.transactions == 1
    assert [await s.state(id_) for id_ in ids] == ["leased 1/3"] * 2
    s.engine = await s.engine_on(s.store)
    assert codes(await s.report(completed(first), completed(second))) == ["accepted"] * 2


@on_both_stores
async def test_a_message_is_stored_clean_and_its_secrets_masked(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    id_ = await s.submit()
    await s.fail(
        await s.lease_one(),
        "GET https://ann:hunter22@db.example/x refused\0\ud800",
        exception="Odd\0Error",
        user_message="Sorry\0",
        guidance="Ask https://ann:hunter22@db.example/",
        stack_trace="Authorization: Bearer abcdef123456\n\0\ud800 at line 3",
    )
    told = repr([event.to_dict() for event in await s.events(id_)]) + repr(await s.engine.view(id_))
    assert "hunter22" not in told
    assert "abcdef123456" not in told
    assert "\\x00" not in told
    assert "\\ud800" not in told
    error = (await s.last_event(id_, EventType.ACTION_ERROR)).data
    assert error["message"].startswith("GET https://ann:***@db.example/x refused")
    assert error["stack_trace"].endswith("at line 3")


@on_both_stores
async def test_a_heartbeat_or_release_of_an_impossible_job_is_only_stale(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit()
    job = await s.lease_one()
    refs = [LeaseRef(HUGE, "1-x"), LeaseRef(-1, "1-x"), LeaseRef(987_654, "1-x"), ref(job)]
    assert codes(await s.engine.heartbeat(refs)) == ["stale_lease"] * 3 + ["accepted"]
    assert codes(await s.engine.release(refs)) == ["stale_lease"] * 3 + ["accepted"]
