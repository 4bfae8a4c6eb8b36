"""Taking a lease over: the same attempt under another fence, for one of all who show the first one."""

import asyncio
from typing import Any

from holdfast.core.limits import FLEET_LIMIT, Limit
from holdfast.core.model import fence_after
from holdfast.store import Store
from holdfast.store.interface import Beat, Claimed, JobFilter, Taking
from running import run
from store_scenario import NOW, claim, complete, contents, job, lease_of, new, opened, raw_connection, submit

TOKEN = "taker_token"


def taking(leased: Claimed, token: str = TOKEN) -> Taking:
    new_fence = fence_after(leased.fence, token)
    assert new_fence is not None
    return Taking(leased.id, leased.fence, new_fence)


async def take(store: Store, *takings: Taking, worker: str = "taker", at: float = NOW + 5) -> list[Claimed]:
    return await store.take_over(takings, worker, at, 30.0)


def test_the_taker_gets_the_attempt_as_a_claim_hands_it_out(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new(workload='{"to":"ben"}'), new())
            one, two, three = await claim(store)
            before = await job(store, three.id)
            taken = await take(store, taking(two), taking(one))
            assert [(row.id, row.fence) for row in taken] == [
                (two.id, "2-taker_token"),
                (one.id, "2-taker_token"),
            ]
            as_claimed = [told(two) | {"fence": "2-taker_token"}, told(one) | {"fence": "2-taker_token"}]
            assert [told(row) for row in taken] == as_claimed
            assert {row.lease_until for row in taken} == {NOW + 35}
            rows = {row.queue_id: row for row in await store.jobs(JobFilter())}
            assert [
                (rows[id_].worker_id, rows[id_].last_heartbeat) for id_ in (one.id, two.id, three.id)
            ] == [
                ("taker", NOW + 5),
                ("taker", NOW + 5),
                ("worker-1", NOW),
            ]
            assert await job(store, three.id) == before

    run(main())


def told(row: Claimed) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__ if name != "lease_until"}


def test_whoever_held_it_before_can_do_nothing_more(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
            (leased,) = await claim(store)
            (taken,) = await take(store, taking(leased))
            assert await store.heartbeat([Beat(leased.id, leased.fence)], NOW + 6, NOW + 66) == set()
            assert await take(store, taking(leased, "another_token")) == []
            assert await store.heartbeat([Beat(taken.id, taken.fence)], NOW + 6, None) == {lease_of(taken)}
            assert (await job(store, leased.id)).lease_until == NOW + 36

    run(main())


def test_the_same_call_again_hands_out_the_same_lease(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
            (leased,) = await claim(store)
            (taken,) = await take(store, taking(leased))
            (again,) = await take(store, taking(leased), at=NOW + 10)
            assert told(again) == told(taken)
            assert again.lease_until == NOW + 40
            # It was counted once: what is leased next has the number after it.
            (further,) = await take(store, taking(again, "third_token"))
            assert further.fence == "3-third_token"
            assert await take(store, taking(leased)) == []

    run(main())


def test_a_stale_or_foreign_fence_takes_nothing(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new())
            one, two = await claim(store)
            await complete(store, two)
            before = await contents(store_url)
            wrong = [
                Taking(one.id, two.fence + "x", "2-other"),
                Taking(999, one.fence, "2-other"),
                taking(two),
                Taking(one.id, "", "2-other"),
            ]
            assert await take(store, *wrong) == []
            assert await take(store) == []
            assert await contents(store_url) == before

    run(main())


def test_one_of_many_who_show_the_same_fence_at_once_wins(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store, opened(store_url) as other:
            await submit(store, *(new() for _ in range(20)))
            leased = await claim(store)
            answers = await asyncio.gather(
                *(
                    take(place, *(taking(row, f"token_{number}") for row in leased), worker=f"w{number}")
                    for number in range(4)
                    for place in (store, other)
                )
            )
            taken = [row.id for answer in answers for row in answer]
            # Both stores show the same token in each pair: that is one call, repeated.
            assert set(taken) == {row.id for row in leased}
            winners = {row.fence for answer in answers for row in answer}
            for row in leased:
                fences = {found.fence for answer in answers for found in answer if found.id == row.id}
                assert len(fences) == 1 and fences <= winners

    run(main())


def test_a_lease_that_is_taken_over_keeps_its_place_under_a_limit(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await store.set_limit(Limit(FLEET_LIMIT, 1), "ann", NOW)
            await submit(store, new(), new())
            (leased,) = await claim(store)
            (taken,) = await take(store, taking(leased))
            assert taken.limited
            assert await claim(store) == []
            await complete(store, taken)
            assert len(await claim(store)) == 1

    run(main())


def test_a_taker_waits_for_whoever_changes_the_row_and_sees_what_came_of_it(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await submit(store)
            (leased,) = await claim(store)
            other = await raw_connection(postgres_url)
            transaction = other.transaction()
            await transaction.start()
            await other.execute("UPDATE jobs SET fence = '2-somebody', leases = 2 WHERE id = $1", leased.id)
            taking_over = asyncio.create_task(take(store, taking(leased)))
            await asyncio.wait([taking_over], timeout=0.3)
            assert not taking_over.done()
            await transaction.commit()
            assert await taking_over == []
            await other.close()

    run(main())
