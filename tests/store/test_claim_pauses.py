"""Claiming where something is paused or full: what is left out, and what an idle worker waits for."""

import pytest

from holdfast.core.limits import FLEET_LIMIT
from limits_scenario import BULK, jobs, pause, set_limit, steps, under
from running import run
from store_scenario import (
    NOW,
    claim,
    complete,
    new,
    opened,
    raw,
    request,
    submit,
)

# pauses


@pytest.mark.parametrize(
    ("kind", "name", "stopped"),
    [
        ("step", "mail/first", "first"),
        ("playbook", "mail", "first second"),
        ("lane", "bulk", "first other"),
        ("limit", "portal", "first second"),
        ("limit", "unset", ""),
        ("limit", FLEET_LIMIT, "first second other"),
        ("step", "first", ""),
        ("playbook", "portal", ""),
    ],
)
@pytest.mark.parametrize("limited", [False, True])
def test_nothing_is_leased_where_it_is_paused(
    store_url: str, kind: str, name: str, stopped: str, limited: bool
) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(
                store,
                *jobs(1, under(), step="first"),
                *jobs(1, under(lane="manual", step="second"), step="second"),
                *jobs(1, under("", path="post"), step="other"),
            )
            if limited:
                await set_limit(store_url, 50)
            await pause(store_url, kind, name)
            left = {"first", "second", "other"} - set(stopped.split())
            due = await store.next_due(request(), NOW - 1)
            assert (due is None) == (not left)
            assert set(steps(await claim(store))) == left
            assert await store.next_due(request(), NOW - 1) is None
            await raw(store_url, "DELETE FROM pauses")
            assert set(steps(await claim(store))) == set(stopped.split())

    run(main())


def test_a_claim_that_knows_of_a_limit_still_obeys_a_pause(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(4, under()))
            await set_limit(store_url, 50)
            assert len(await claim(store, limit=1)) == 1
            await pause(store_url, "limit", "portal")
            assert await claim(store) == []

    run(main())


# what a worker that got nothing may wait for


def test_a_worker_does_not_wake_for_due_work_that_waits_for_room(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(3, under()), new(group=under(), available_at=NOW + 50))
            await submit(store, new(group=under("unset", rank=1), available_at=NOW + 70))
            assert await store.next_due(request(), NOW) == NOW, "nothing is set, so it is work to take"
            await set_limit(store_url, 1)
            assert len(await claim(store)) == 1
            assert await store.next_due(request(), NOW) == NOW + 50
            assert await store.next_due(request(), NOW + 50) == NOW + 70
            assert await store.next_due(request(), NOW + 80) == NOW + 70, "it is under no limit that is set"
            await set_limit(store_url, 1, FLEET_LIMIT)
            assert await store.next_due(request(), NOW + 80) is None

    run(main())


def test_a_worker_without_a_place_for_bulk_work_waits_for_manual_work_only(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new(group=under("", "manual"), available_at=NOW + 9))
            assert await store.next_due(request(bulk=0), NOW) == NOW + 9
            assert await store.next_due(request(bulk=1), NOW) == NOW
            assert await store.next_due(request(bulk=0, lanes=(BULK,)), NOW) is None

    run(main())


def test_no_worker_empties_itself_for_a_job_that_it_cannot_lease(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *jobs(2, under()), *jobs(1, under(alone=True)))
            assert await store.alone_ready(request(), NOW)
            await set_limit(store_url, 2, reserve=1)
            assert await store.alone_ready(request(limited=0, bulk=0), NOW), "it will have places then"
            (beside,) = await claim(store)
            assert not await store.alone_ready(request(), NOW), "the place that is left is for manual work"
            await submit(store, *jobs(1, under(lane="manual", alone=True)))
            assert await store.alone_ready(request(), NOW)
            await pause(store_url, "lane", "manual")
            assert not await store.alone_ready(request(), NOW)
            await complete(store, beside)
            assert await store.alone_ready(request(), NOW)
            (alone,) = await claim(store, alone=True, limit=1)
            assert (alone.lane, alone.leased_alone) == (BULK, True)

    run(main())
