"""What the engine counts for those who watch, and how that comes into the store.

That the counts are those of the logs is checked at the end of every story of these tests (engine_scenario).
"""

import asyncio
import logging
import random
from collections import Counter
from typing import Any

import pytest

from engine_scenario import Scenario, completed, on_both_stores, ref, stage
from holdfast.core.catalogue import CATALOGUE, Category
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import Lane
from holdfast.engine import Submission, tallies, tally_keeper
from holdfast.engine.sweeper import Sweeper
from holdfast.engine.tallies import (
    ATTEMPT,
    BOUNDS,
    BUCKET,
    COUNT,
    ENDLESS,
    LEASE_LATENCY,
    OTHER,
    RETRIES,
    STEP_ATTEMPT,
    SUM,
    TICKS_PER_SECOND,
    TRANSACTION,
    Histogram,
    Key,
    Tallies,
    labels_of,
)
from holdfast.store import Store
from running import eventually
from tally_scenario import counted, sums, told_sums

KEPT_SECONDS = 3_600.0 + 1


@pytest.fixture(autouse=True)
def patient_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last counts are written, also where the machine stops for some seconds meanwhile."""
    monkeypatch.setattr(tally_keeper, "CLOSE_SECONDS_MAX", 60.0)


async def stored(store: Store) -> Counter[Key]:
    return Counter({(name, labels_of(labels)): value for name, labels, value in await store.tallies()})


async def told_in(store: Store) -> dict[str, int]:
    return dict(told_sums(await stored(store)))


async def do_some(s: Scenario, times: int = 3) -> None:
    for _ in range(times):
        await s.submit()
    jobs = await s.lease(times)
    await s.report(*map(completed, jobs))


@on_both_stores
async def test_every_end_of_an_attempt_is_counted_once(s: Scenario) -> None:
    await s.define(stage("a", 2), stage("b", 1))
    done, failing, lost, given_back, cancelled = [await s.submit() for _ in range(5)]
    jobs = {job.execution_id: job for job in await s.lease()}
    await s.complete(jobs[done])
    assert (await s.complete(jobs[done])).repeated, "told again, it is not counted again"
    await s.fail(jobs[failing], "refused", error_type="rate_limit")
    await s.engine.release([ref(jobs[given_back])])
    assert await s.engine.cancel(cancelled)
    assert not (await s.complete(jobs[cancelled])).accepted
    await s.lose()
    assert not (await s.complete(jobs[lost])).accepted
    assert counted(s) == {
        "executions_started": 5,
        "executions_ended cancelled": 1,
        "attempts completed": 1,
        "attempts failed": 1,
        "attempts lost": 1,
        "attempts released": 1,
        "attempts cancelled": 1,
        "attempts of a": 2,
        "retries rate_limit": 1,
        "retries worker_lost": 1,
    }


@on_both_stores
async def test_the_dead_are_counted_by_their_reasons_and_deadlines_among_them(s: Scenario) -> None:
    await s.define(stage("a", 1))
    await s.submit(deadline_seconds=10.0)
    s.tick(11)
    await s.engine.sweep()
    for known in ({}, {"category": Category.PERMANENT}):
        await s.submit()
        await s.fail(await s.lease_one(), "no", **known)
    told = counted(s)
    assert {name: told[name] for name in told if name.startswith("dead")} == {
        "dead deadline": 1,
        "dead exhausted": 1,
        "dead permanent": 1,
    }
    assert told["executions_ended failed"] == 3


@on_both_stores
async def test_a_submit_that_finds_what_is_there_starts_nothing(s: Scenario) -> None:
    await s.define(stage("a"))
    for _ in range(3):
        await s.submit(idempotency_key="k")
    assert counted(s)["executions_started"] == 1


@on_both_stores
async def test_how_long_jobs_wait_and_attempts_take_is_told_by_lane_and_outcome(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit(lane=Lane.MANUAL)
    s.tick(12)
    job = await s.lease_one()
    s.tick(100)
    await s.complete(job)
    found = sums(s)
    assert found[LEASE_LATENCY + BUCKET, ("manual", "30.0")] == 1
    assert found[LEASE_LATENCY + SUM, ("manual",)] >= 12 * TICKS_PER_SECOND
    assert found[ATTEMPT + BUCKET, ("completed", "300.0")] == 1
    assert found[ATTEMPT + SUM, ("completed",)] == 100 * TICKS_PER_SECOND
    assert found[STEP_ATTEMPT + SUM, ("p", "a")] == 100 * TICKS_PER_SECOND
    verbs = {labels[0] for name, labels in found if name == TRANSACTION + SUM}
    assert verbs == {"submit", "claim", "report"}


@on_both_stores
async def test_a_look_that_finds_no_work_is_not_counted(s: Scenario) -> None:
    await s.define(stage("a"))
    assert await s.lease() == []
    assert s.engine.tallies.values() == {}


@on_both_stores
async def test_what_is_not_committed_is_not_counted(s: Scenario) -> None:
    await s.define(stage("a"))

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return getattr(s.store, name)

        async def complete_held(self, *_: Any) -> bool:
            raise StoreUnavailable("away")

        async def insert(self, *_: Any) -> Any:
            raise StoreUnavailable("away")

    await s.submit()
    s.engine = await s.engine_on(Broken())
    job = await s.lease_one()
    with pytest.raises(StoreUnavailable):
        await s.submit()
    with pytest.raises(StoreUnavailable):
        await s.complete(job)
    told = counted(s)
    assert (told["executions_started"], told["attempts completed"]) == (1, 0)


def test_a_clock_that_goes_back_takes_no_time() -> None:
    histogram = Histogram()
    histogram.add(-5.0)
    assert (histogram.buckets[0], histogram.seconds) == (1, 0.0)


def test_times_that_are_added_together_are_as_those_added_one_by_one() -> None:
    r = random.Random(1)
    for _ in range(200):
        times = [r.choice([*BOUNDS, -1.0, 0.0, 5_000.0, r.uniform(0, 20)]) for _ in range(r.randint(1, 30))]
        together, apart = Histogram(), Histogram()
        total = together.add_many(times)
        for one in times:
            apart.add(one)
        assert together.buckets == apart.buckets
        assert together.seconds == total == pytest.approx(apart.seconds)


def test_a_time_belongs_to_the_bucket_that_ends_with_it() -> None:
    counts = Tallies()
    for seconds in (*BOUNDS, BOUNDS[-1] + 1):
        counts.took(tallies.Verb.CLAIM, seconds)
    found = counts.values()
    bounds = (*map(str, BOUNDS), ENDLESS)
    assert [found[TRANSACTION + BUCKET, ("claim", bound)] for bound in bounds] == [1] * len(bounds)


def test_labels_are_bounded_whatever_users_name_their_errors_and_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tallies, "STEPS_MAX", 5)
    monkeypatch.setattr(tallies, "ERROR_TYPES_MAX", 5)
    counts = Tallies()
    for number in range(20):
        counts._attempt(tallies.AttemptOutcome.FAILED, 1.0, f"path{number}", "step")
        counts._plus(RETRIES, counts._bounded(f"type{number}"))
    for known in CATALOGUE:
        counts._plus(RETRIES, counts._bounded(known))
    found = counts.values()
    steps = {labels: value for (name, labels), value in found.items() if name == STEP_ATTEMPT + COUNT}
    assert len(steps) == 6 and steps[OTHER, OTHER] == 15
    types = {labels[0]: value for (name, labels), value in found.items() if name == RETRIES}
    assert types.keys() - CATALOGUE.keys() == {"type0", "type1", "type2", "type3", "type4", OTHER}
    assert types[OTHER] == 15


# keeping


@on_both_stores
async def test_counts_are_written_once_and_only_what_has_changed(s: Scenario) -> None:
    await s.define(stage("a"))
    await do_some(s)
    for _ in range(2):
        await s.engine.keeper.write()
        assert await stored(s.store) == sums(s)
    await do_some(s)
    await s.engine.keeper.write()
    assert await stored(s.store) == sums(s)


@on_both_stores
async def test_where_nothing_was_counted_nothing_is_written(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.engine.keeper.write()
    await s.engine.keeper.close()
    assert await s.store.fold_tallies(seen_before=s.now + 1) == 0


@on_both_stores
async def test_processes_that_end_and_others_that_begin_count_on(s: Scenario) -> None:
    await s.define(stage("a"))
    for _ in range(3):
        await do_some(s)
        await s.engine.keeper.close()
        s.engine = await s.engine_on(s.store)
    assert await stored(s.store) == sums(s)
    assert await s.store.fold_tallies(seen_before=s.now + 1) == 0, "each has added its own to the sum"


@on_both_stores
async def test_one_that_died_is_missed_by_what_it_had_not_written(s: Scenario) -> None:
    await s.define(stage("a"))
    await do_some(s)
    await s.engine.keeper.write()
    written = await stored(s.store)
    await do_some(s)
    s.engine = await s.engine_on(s.store)
    s.tick(KEPT_SECONDS)
    await s.engine.keeper._fold()
    assert await stored(s.store) == written
    assert await s.store.fold_tallies(seen_before=s.now + 1) == 0


@on_both_stores
async def test_one_that_slept_until_it_was_folded_counts_on_and_nothing_twice(s: Scenario) -> None:
    await s.define(stage("a"))
    await do_some(s)
    other = await s.engine_on(s.store)
    for _ in range(3):
        await s.engine.keeper.write()
        await do_some(s)
        s.tick(KEPT_SECONDS)
        await other.keeper._fold()
    await s.engine.keeper.write()
    assert await stored(s.store) == sums(s)


@on_both_stores
async def test_an_engine_that_is_used_after_its_end_counts_on(s: Scenario) -> None:
    await s.define(stage("a"))
    for _ in range(2):
        await do_some(s)
        await s.engine.keeper.close()
    assert await stored(s.store) == sums(s)


class Failing:
    """A store that refuses to keep counts as long as it is away; one that `lies` keeps them all the same."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_away = True
        self.lies = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def write_tallies(self, *args: Any, **kwargs: Any) -> bool:
        if self.lies or not self.is_away:
            found = await self.store.write_tallies(*args, **kwargs)
            if not self.is_away:
                return found
        raise StoreUnavailable("the database is away")


@pytest.mark.parametrize("lies", [False, True])
def test_a_failure_is_told_once_harms_no_work_and_loses_nothing(
    store_url: str, lies: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @on_both_stores
    async def story(s: Scenario) -> None:
        await s.define(stage("a"))
        failing = Failing(s.store)
        failing.lies = lies
        s.engine = await s.engine_on(failing)
        with caplog.at_level(logging.WARNING, "holdfast.engine"):
            for _ in range(3):
                await do_some(s)
                await s.engine.keeper.write()
        assert [record.getMessage() for record in caplog.records] == [
            "What was counted for /metrics is written later: the database is away"
        ]
        failing.is_away = False
        await s.engine.keeper.write()
        assert await stored(s.store) == sums(s)

    story(store_url)


@on_both_stores
async def test_whoever_sweeps_keeps_the_counts_and_writes_the_last_ones_at_its_end(s: Scenario) -> None:
    await s.define(stage("a"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally_keeper, "WRITE_SECONDS", 0.01)
        sweeping = asyncio.create_task(Sweeper(s.engine).run())
        await do_some(s)

        async def is_written() -> bool:
            return await stored(s.store) == sums(s)

        await eventually(is_written)
        patch.setattr(tally_keeper, "WRITE_SECONDS", 1_000.0)
        await do_some(s)
        sweeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sweeping
        assert await is_written()


@on_both_stores
async def test_a_program_that_only_submits_writes_beside_its_next_submit(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally_keeper, "WRITE_SECONDS", 0.0)
        await s.submit()

        async def is_written() -> bool:
            return (await told_in(s.store)).get("executions_started") == 2

        await eventually(is_written)


@on_both_stores
async def test_what_a_handler_submits_is_counted_with_its_step(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"))
    await s.submit()
    job = await s.lease_one()
    transaction = s.engine.transaction()
    await s.engine.submit_within(transaction, [Submission(path="p"), Submission(path="p")])
    assert counted(s)["executions_started"] == 1
    assert (await transaction.complete(completed(job), job.definition_id)).accepted
    assert counted(s)["executions_started"] == 3
    rolled_back = s.engine.transaction()
    await s.engine.submit_within(rolled_back, [Submission(path="p")])
    await rolled_back.rollback()
    assert counted(s)["executions_started"] == 3
