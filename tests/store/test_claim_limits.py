"""Claiming under limits and with ageing: what may be leased at once, by whom, and in which order."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast.core.limits import FLEET_LIMIT
from holdfast.store import Store, postgres_claim, sqlite_claim
from limits_scenario import BULK, MANUAL, jobs, set_limit, steps, under
from running import run
from store_scenario import (
    NOW,
    claim,
    complete,
    new,
    opened,
    raw,
    submit,
)


async def lanes_claimed(store: Store, **changes: Any) -> Counter[str]:
    return Counter(row.lane for row in await claim(store, **changes))


# how much


def test_no_more_than_the_limit_is_leased_at_once(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(10, under()))
            await set_limit(store_url, 3, reserve=0)
            first = await claim(store)
            assert len(first) == 3 and all(row.limited for row in first)
            assert await claim(store) == []
            await complete(store, first[0])
            assert len(await claim(store)) == 1
            assert await claim(store) == []

    run(main())


def test_by_default_bulk_work_leaves_one_place_to_manual_work(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(10, under()))
            await set_limit(store_url, 3)
            assert await lanes_claimed(store) == {BULK: 2}
            await submit(store, *jobs(5, under(lane="manual")))
            assert await lanes_claimed(store) == {MANUAL: 1}
            assert await claim(store) == []

    run(main())


def test_a_limit_of_one_has_no_reserve_and_bulk_work_gets_its_turn(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(2, under()))
            await set_limit(store_url, 1)
            assert await lanes_claimed(store) == {BULK: 1}
            assert await claim(store) == []

    run(main())


def test_manual_work_may_take_all_places_and_bulk_work_what_it_leaves(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(9, under()), *jobs(3, under(lane="manual")))
            await set_limit(store_url, 5, reserve=3)
            assert await lanes_claimed(store) == {MANUAL: 3, BULK: 2}
            await submit(store, *jobs(9, under(lane="manual")))
            assert await claim(store) == []

    run(main())


def test_a_reserve_of_everything_keeps_bulk_work_out(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(2, under()), *jobs(1, under(lane="manual")))
            await set_limit(store_url, 2, reserve=2)
            assert await lanes_claimed(store) == {MANUAL: 1}

    run(main())


def test_groups_under_one_limit_share_it(store_url: str) -> None:
    groups = [
        under(),
        under(rank=1),
        under(handler="scan"),
        under(lane="manual"),
        under(step="second"),
        under(alone=True),
    ]

    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *(item for group in groups for item in jobs(2, group)))
            await set_limit(store_url, 5, reserve=0)
            (alone,) = await claim(store, alone=True, limit=1)
            assert alone.limited
            assert len(await claim(store, handlers=("scan",), limit=1)) == 1
            assert len(await claim(store)) == 3
            assert await claim(store, handlers=("send", "scan")) == []
            assert await claim(store, alone=True, limit=1) == []

    run(main())


def test_a_job_must_find_room_under_its_own_limit_and_under_the_one_over_everything(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(9, under(), step="portal"), *jobs(9, under("", rank=6), step="free"))
            await set_limit(store_url, 2, reserve=0)
            await set_limit(store_url, 5, FLEET_LIMIT, reserve=0)
            found = await claim(store)
            assert Counter(steps(found)) == {"portal": 2, "free": 3}
            assert all(row.limited for row in found)
            assert await claim(store) == []
            await complete(store, found[-1])
            assert steps(await claim(store)) == ["free"]
            await complete(store, found[0])
            assert steps(await claim(store)) == ["portal"]

    run(main())


def test_the_limit_over_everything_counts_what_this_worker_has_no_handler_for(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(4, under("", handler="scan")), *jobs(4, under("other")))
            assert len(await claim(store, handlers=("scan",), limit=2)) == 2
            await set_limit(store_url, 3, FLEET_LIMIT, reserve=0)
            assert len(await claim(store)) == 1

    run(main())


def test_a_name_without_a_limit_limits_nothing(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(4, under()))
            await set_limit(store_url, 1, "another")
            found = await claim(store, limited=0)
            assert len(found) == 4 and not any(row.limited for row in found)

    run(main())


def test_a_lowered_limit_leases_nothing_until_enough_has_ended(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(9, under()), *jobs(1, under(lane="manual")))
            await set_limit(store_url, 5, reserve=0)
            running = await claim(store, lanes=(BULK,))
            await set_limit(store_url, 2, reserve=0)
            for leased in running[:3]:
                assert await claim(store) == []
                await complete(store, leased)
            assert await claim(store) == []
            await complete(store, running[3])
            assert await lanes_claimed(store) == {MANUAL: 1}

    run(main())


def test_a_limit_that_another_process_sets_changes_or_removes_holds_from_the_next_claim(
    store_url: str,
) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(20, under()))
            assert len(await claim(store, limit=2)) == 2, "nothing is set yet"
            await set_limit(store_url, 4, reserve=0)
            assert len(await claim(store)) == 2
            await set_limit(store_url, 5, reserve=0)
            assert len(await claim(store)) == 1
            await raw(store_url, "DELETE FROM limits")
            free = await claim(store, limit=5)
            assert len(free) == 5 and not any(row.limited for row in free)
            assert len(await claim(store, limit=2)) == 2
            await set_limit(store_url, 12, FLEET_LIMIT, reserve=0)
            assert len(await claim(store)) == 0
            await set_limit(store_url, 13, FLEET_LIMIT, reserve=0)
            assert len(await claim(store)) == 1

    run(main())


def test_a_request_bounds_its_bulk_jobs(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            for name in ("", "portal"):
                await submit(store, *jobs(3, under(name)), *jobs(3, under("unset", rank=6)))
                await submit(store, *jobs(2, under(name, "manual")))
                assert await lanes_claimed(store, bulk=3) == {MANUAL: 2, BULK: 3}
                assert await claim(store, bulk=0) == []
                assert await lanes_claimed(store, bulk=9, limit=2) == {BULK: 2}
                await claim(store)
                await set_limit(store_url, 1_000)

    run(main())


def test_a_request_bounds_its_jobs_under_limits_that_are_set(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(
                store,
                *jobs(4, under(rank=1), step="portal"),
                *jobs(4, under("unset", rank=2), step="unset"),
                *jobs(4, under("", rank=3), step="free"),
            )
            await set_limit(store_url, 100)
            found = await claim(store, limit=4, limited=1)
            assert steps(found) == ["portal", "unset", "unset", "unset"]
            assert [row.limited for row in found] == [True, False, False, False]
            assert steps(await claim(store, limit=2, limited=0)) == ["unset", "free"]
            await set_limit(store_url, 100, FLEET_LIMIT)
            assert await claim(store, limited=0) == []
            assert steps(await claim(store, limited=2)) == ["portal", "portal"]

    run(main())


# in which order


def test_lane_rank_time_and_id_decide_across_limits(store_url: str) -> None:
    async def main() -> list[str]:
        async with opened(store_url) as store:
            await submit(
                store,
                new(step="bulk-5-late", group=under("")),
                new(step="bulk-5-early", group=under(), available_at=NOW - 2),
                new(step="bulk-5-middle", group=under("mail"), available_at=NOW - 1),
                new(step="bulk-0", group=under("mail", rank=0)),
                new(step="manual-9", group=under("", "manual", rank=9)),
                new(step="manual-1-a", group=under("portal", "manual", rank=1)),
                new(step="manual-1-b", group=under("unset", "manual", rank=1)),
            )
            await set_limit(store_url, 100)
            await set_limit(store_url, 100, "mail")
            first = await claim(store, limit=4)
            return steps(first) + steps(await claim(store))

    assert run(main()) == [
        "manual-1-a",
        "manual-1-b",
        "manual-9",
        "bulk-0",
        "bulk-5-early",
        "bulk-5-middle",
        "bulk-5-late",
    ]


def test_a_full_limit_at_the_head_hides_nothing_behind_it(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(
                store,
                *jobs(20, under(rank=0), step="portal"),
                *jobs(20, under(rank=1), step="portal-too"),
                *jobs(1, under("mail", rank=2), step="mail"),
                *jobs(3, under("", rank=3), step="free"),
            )
            await set_limit(store_url, 2, reserve=0)
            await set_limit(store_url, 2, "mail", reserve=0)
            assert steps(await claim(store, limit=4)) == ["portal", "portal", "mail", "free"]
            assert steps(await claim(store, limit=1)) == ["free"]

    run(main())


def test_what_bulk_work_may_not_take_hides_nothing_behind_it(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(
                store,
                *jobs(3, under(lane="manual"), step="portal-manual"),
                *jobs(9, under(rank=0), step="portal"),
                *jobs(9, under("", rank=1), step="free"),
            )
            await set_limit(store_url, 3, reserve=1)
            assert steps(await claim(store, limit=4)) == [*["portal-manual"] * 3, "free"]

    run(main())


def test_without_ageing_manual_work_always_comes_first(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(
                store,
                new(step="old", available_at=NOW - 1e6),
                new(step="young", group=under("", "manual", rank=9)),
            )
            assert steps(await claim(store, limit=1)) == ["young"]

    run(main())


@pytest.mark.parametrize("limited", [False, True])
def test_bulk_work_that_has_aged_takes_its_turn_among_manual_work(store_url: str, limited: bool) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(
                store,
                new(step="bulk-young", group=under(rank=0), available_at=NOW - 59),
                new(step="bulk-aged", group=under(rank=3), available_at=NOW - 60),
                new(step="bulk-aged-too", group=under(rank=3), available_at=NOW - 61),
                new(step="bulk-young-too", group=under(rank=3), available_at=NOW - 1),
                new(step="manual-before", group=under(lane="manual", rank=2)),
                new(step="manual-between", group=under(lane="manual", rank=3), available_at=NOW - 60.5),
                new(step="manual-behind", group=under(lane="manual", rank=4), available_at=NOW - 90),
            )
            if limited:
                await set_limit(store_url, 100)
            found = await claim(store, ageing_seconds=60.0)
            assert steps(found) == [
                "manual-before",
                "bulk-aged-too",
                "manual-between",
                "bulk-aged",
                "manual-behind",
                "bulk-young",
                "bulk-young-too",
            ]

    run(main())


@pytest.mark.parametrize("limited", [False, True])
def test_aged_bulk_work_still_counts_as_bulk_work(store_url: str, limited: bool) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(
                store,
                *jobs(9, under(rank=0), available_at=NOW - 99),
                *jobs(1, under(lane="manual", rank=9), step="manual"),
            )
            if limited:
                await set_limit(store_url, 3)
                assert await lanes_claimed(store, ageing_seconds=60.0) == {BULK: 2, MANUAL: 1}
            else:
                found = await claim(store, ageing_seconds=60.0, bulk=2)
                assert steps(found) == ["first", "first", "manual"]

    run(main())


# by many at once


def test_processes_that_claim_at_once_never_exceed_a_limit_or_its_share_for_bulk_work(store_url: str) -> None:
    size, reserve, fleet = 4, 1, 6
    work = {"portal-bulk": 40, "portal-manual": 12, "free": 20}
    seen: list[tuple[int, int, int]] = []

    async def in_use() -> None:
        (counts,) = await raw(
            store_url,
            "SELECT coalesce(sum(CASE WHEN g.limit_name <> '' THEN 1 END), 0),"
            " coalesce(sum(CASE WHEN g.limit_name <> '' AND g.lane = 'bulk' THEN 1 END), 0), count(*)"
            " FROM jobs j JOIN claim_groups g ON g.id = j.claim_group WHERE j.status = 'leased'",
        )
        seen.append(counts)

    async def work_off(store: Store, left: Counter[str], limit: int) -> None:
        while left.total():
            found = await claim(store, limit=limit)
            await in_use()
            for row in found:
                await complete(store, row)
                left[row.step] -= 1
            await asyncio.sleep(0)

    async def main() -> None:
        async with opened(store_url) as one, opened(store_url) as two:
            await submit(
                one,
                *jobs(work["portal-bulk"], under(), step="portal-bulk"),
                *jobs(work["portal-manual"], under(lane="manual"), step="portal-manual"),
                *jobs(work["free"], under(""), step="free"),
            )
            await set_limit(store_url, size, reserve=reserve)
            await set_limit(store_url, fleet, FLEET_LIMIT, reserve=0)
            left = Counter(work)
            await asyncio.gather(*(work_off(one if n % 2 else two, left, 1 + n) for n in range(4)))
            assert set(left.values()) == {0}

    run(main())
    assert max(limited for limited, _, _ in seen) <= size
    assert max(bulk for _, bulk, _ in seen) <= size - reserve
    assert max(total for _, _, total in seen) <= fleet


def test_manual_work_that_came_while_a_claim_waited_for_its_turn_goes_before_bulk_work(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place may have become free since that work came: bulk work would keep it."""

    async def main() -> None:
        async with opened(store_url) as store:
            for module in (sqlite_claim, postgres_claim):
                monkeypatch.setattr(module, "waited_since", lambda asked_at: 5.0)
            await submit(store, *jobs(1, under()), *jobs(1, under(lane="manual"), available_at=NOW + 4))
            await set_limit(store_url, 1)
            (leased,) = await claim(store, lease_seconds=30.0)
            assert leased.lane == MANUAL
            assert leased.lease_until == NOW + 35

    run(main())
