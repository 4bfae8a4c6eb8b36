"""Heartbeats: a lease that stands is extended, one that does not is left out of the answer."""

import pytest

from holdfast.core import transitions
from holdfast.core.limits import FLEET_LIMIT, Limit
from holdfast.core.model import JobState
from holdfast.store import Store, postgres_claim, sqlite_claim
from holdfast.store.changes import ChangedJob
from holdfast.store.interface import Beat, Claimed, JobFilter
from holdfast.store.sqlite import SqliteStore
from running import run
from store_scenario import (
    NOW,
    change_job,
    claim,
    complete,
    job,
    lease_of,
    new,
    opened,
    raw_connection,
    submit,
)


def beat(leased: Claimed, progress: float | None = None) -> Beat:
    return Beat(leased.id, leased.fence, progress)


async def progress_of(store: Store, leased: Claimed) -> float | None:
    rows = await store.jobs(JobFilter(execution_id=leased.execution_id))
    return rows[-1].progress


def test_a_heartbeat_extends_the_leases_it_names_and_no_others(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new(), new())
            one, two, _ = await claim(store, lease_seconds=60.0)
            standing = await store.heartbeat([beat(two), beat(one)], NOW + 20, NOW + 80)
            assert standing == {lease_of(one), lease_of(two)}
            rows = await store.jobs(JobFilter())
            assert [row.lease_until for row in rows] == [NOW + 80, NOW + 80, NOW + 60]
            assert [row.last_heartbeat for row in rows] == [NOW + 20, NOW + 20, NOW]

    run(main())


def test_a_stale_fence_extends_nothing(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new())
            one, two = await claim(store)
            before = await store.jobs(JobFilter())
            foreign = [Beat(one.id, two.fence + "x"), Beat(999, one.fence, 0.5)]
            assert await store.heartbeat(foreign, NOW + 20, NOW + 80) == set()
            assert await store.heartbeat([*foreign, beat(two)], NOW, NOW + 60) == {lease_of(two)}
            assert await store.jobs(JobFilter()) == before

    run(main())


def test_a_settled_attempt_is_not_extended(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
            (claimed,) = await claim(store)
            await complete(store, claimed)
            before = await job(store, claimed.id)
            assert await store.heartbeat([beat(claimed, 0.9)], NOW + 20, NOW + 80) == set()
            assert await job(store, claimed.id) == before

    run(main())


def test_no_leases_are_an_empty_answer(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await store.heartbeat([], NOW, NOW) == set()

    run(main())


def test_a_row_locked_elsewhere_counts_as_standing_and_does_not_block(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await submit(store, new(), new())
            held, free = await claim(store)
            other = await raw_connection(postgres_url)
            async with other.transaction():
                await other.execute("SELECT 1 FROM jobs WHERE id = 1 FOR UPDATE")
                standing = await store.heartbeat([beat(held), beat(free)], NOW + 20, NOW + 80)
                assert standing == {lease_of(held), lease_of(free)}
            await other.close()
            assert [row.lease_until for row in await store.jobs(JobFilter())] == [NOW + 60, NOW + 80]
            assert await store.heartbeat([beat(held)], NOW + 21, NOW + 81) == {lease_of(held)}
            assert (await job(store, held.id)).lease_until == NOW + 81

    run(main())


def test_progress_is_kept_until_a_new_one_is_told(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
            (leased,) = await claim(store)
            assert await progress_of(store, leased) is None
            for told, kept in ((0.25, 0.25), (None, 0.25), (0.5, 0.5), (0.0, 0.0)):
                await store.heartbeat([beat(leased, told)], NOW, NOW + 60)
                assert await progress_of(store, leased) == kept

    run(main())


def test_a_new_attempt_begins_without_progress(store_url: str) -> None:
    def release(state: JobState) -> ChangedJob:
        return ChangedJob(transitions.release(state, now=NOW))

    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
            (leased,) = await claim(store)
            await store.heartbeat([beat(leased, 0.75)], NOW, NOW + 60)
            await change_job(store, leased.id, release)
            await claim(store)
            assert await progress_of(store, leased) is None

    run(main())


def test_without_a_new_end_a_lease_goes_on_for_as_long_as_it_was_given(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new())
            short = (await claim(store, limit=1, lease_seconds=30.0))[0]
            long = (await claim(store, limit=1, lease_seconds=90.0))[0]
            standing = await store.heartbeat([beat(short, 0.5), beat(long)], NOW + 20, None)
            assert standing == {lease_of(short), lease_of(long)}
            rows = await store.jobs(JobFilter())
            assert [row.lease_until for row in rows] == [NOW + 50, NOW + 110]
            assert [row.last_heartbeat for row in rows] == [NOW + 20] * 2
            assert [row.progress for row in rows] == [0.5, None]
            await store.heartbeat([beat(short)], NOW + 40, None)
            assert (await job(store, short.id)).lease_until == NOW + 70

    run(main())


@pytest.mark.parametrize("limited", [False, True])
def test_what_a_lease_waited_for_its_transaction_is_no_part_of_its_length(
    store_url: str, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            for module in (sqlite_claim, postgres_claim):
                monkeypatch.setattr(module, "waited_since", lambda asked_at: 5.0)
            if limited:
                await store.set_limit(Limit(FLEET_LIMIT, 10), "ann", NOW)
            await submit(store)
            (leased,) = await claim(store, lease_seconds=30.0)
            # PostgreSQL waits for nobody where no limit is set.
            waited = 5 if limited or isinstance(store, SqliteStore) else 0
            assert leased.lease_until == NOW + waited + 30
            await store.heartbeat([beat(leased)], NOW + 20, None)
            assert (await job(store, leased.id)).lease_until == NOW + 50

    run(main())
