"""Claiming: which jobs a worker gets, in which order, and what the lease writes."""

from typing import Any

import msgspec
import pytest

from holdfast.core import transitions
from holdfast.core.model import ClaimGroup, JobState, JobStatus, Lane
from holdfast.store.changes import ChangedJob
from running import run
from store_scenario import (
    GROUP,
    NOW,
    change_job,
    claim,
    job,
    new,
    opened,
    raw,
    request,
    submit,
    together,
)


def group(handler: str = "send", lane: str = "bulk", rank: int = 5, *, alone: bool = False) -> ClaimGroup:
    return ClaimGroup(handler, lane, rank, alone=alone)


def test_manual_work_comes_before_bulk_then_rank_time_and_id_decide(store_url: str) -> None:
    async def claimed() -> list[str]:
        async with opened(store_url) as store:
            await submit(
                store,
                new(step="bulk-rank5-late", available_at=NOW - 1),
                new(step="bulk-rank5-early", available_at=NOW - 2),
                new(step="bulk-rank0", group=group(rank=0)),
                new(step="manual-rank9", group=group(lane="manual", rank=9)),
                new(step="manual-rank1-b", group=group(lane="manual", rank=1)),
                new(step="manual-rank1-c", group=group(lane="manual", rank=1)),
            )
            return [row.step for row in await claim(store)]

    assert run(claimed()) == [
        "manual-rank1-b",
        "manual-rank1-c",
        "manual-rank9",
        "bulk-rank0",
        "bulk-rank5-early",
        "bulk-rank5-late",
    ]


def test_groups_of_equal_rank_are_merged_by_time(store_url: str) -> None:
    async def claimed() -> list[list[float]]:
        async with opened(store_url) as store:
            await submit(
                store,
                *(
                    new(group=group("send" if i % 2 else "scan"), available_at=NOW - age)
                    for i, age in enumerate((1, 6, 4, 3, 5, 2))
                ),
            )
            first = await claim(store, handlers=("scan", "send"), limit=4)
            rest = await claim(store, handlers=("scan", "send"), limit=4)
            ids = {row.id: row for row in first + rest}
            assert len(ids) == 6
            return [[NOW - (await job(store, row.id)).available_at for row in rows] for rows in (first, rest)]

    assert run(claimed()) == [[6, 5, 4, 3], [2, 1]]


def test_a_job_is_not_leased_before_its_time(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(available_at=NOW + 10))
            assert await claim(store, NOW + 9.99) == []
            assert len(await claim(store, NOW + 10)) == 1

    run(main())


def test_a_held_job_is_not_leased(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
            await raw(store_url, "UPDATE jobs SET held_by = 'barrier'")
            assert await claim(store) == []
            await raw(store_url, "UPDATE jobs SET held_by = NULL")
            assert len(await claim(store)) == 1

    run(main())


def test_a_worker_gets_only_jobs_it_has_handlers_for(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(group=group("scan")), new(group=group("send")))
            assert [row.handler for row in await claim(store, handlers=("send", "other"))] == ["send"]
            assert await claim(store, handlers=()) == []

    run(main())


def test_a_worker_gets_only_the_lanes_it_asks_for(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(lane=Lane.BULK), new(lane=Lane.MANUAL))
            assert [row.lane for row in await claim(store, lanes=(Lane.MANUAL,))] == [Lane.MANUAL]
            assert await claim(store, lanes=()) == []
            assert [row.lane for row in await claim(store, lanes=(Lane.BULK,))] == [Lane.BULK]

    run(main())


def test_a_claim_takes_no_more_than_its_limit(store_url: str) -> None:
    async def sizes() -> list[int]:
        async with opened(store_url) as store:
            await submit(store, *[new(group=group(rank=i % 3)) for i in range(7)])
            return [len(await claim(store, limit=3)) for _ in range(4)]

    assert run(sizes()) == [3, 3, 1, 0]


def test_jobs_that_must_run_alone_are_leased_only_when_asked_for(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(step="beside"), new(step="alone", group=group(alone=True)))
            (beside,) = await claim(store)
            (alone,) = await claim(store, alone=True)
            assert (beside.step, beside.leased_alone) == ("beside", False)
            assert (alone.step, alone.leased_alone) == ("alone", True)

    run(main())


@pytest.mark.parametrize("alone", [False, True])
def test_the_lease_in_sql_is_the_lease_of_the_state_machine(store_url: str, alone: bool) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(group=group(alone=alone)))
            await raw(store_url, f"UPDATE jobs SET losses = {int(alone)}")
            before = (await store.peek_jobs([1]))[0].job
            (claimed,) = await claim(store, token="abc", alone=alone, lease_seconds=30.0)
            expected = transitions.lease(before, fence="1-abc", lease_until=NOW + 30.0, now=NOW)
            assert await job(store, 1) == msgspec.structs.replace(expected, worker_id="worker-1")
            assert (claimed.fence, claimed.attempts, claimed.lease_until) == ("1-abc", 1, NOW + 30.0)

    run(main())


def test_a_claimed_job_brings_what_its_handler_needs(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            (execution,) = await submit(store, new(lane=Lane.MANUAL, max_attempts=7))
            (claimed,) = await claim(store)
            assert claimed.execution_id == execution
            assert (claimed.path, claimed.definition_id) == ("mail", 1)
            assert (claimed.step, claimed.handler, claimed.lane) == ("first", "send", Lane.MANUAL)
            assert (claimed.element, claimed.round, claimed.max_attempts) == (-1, 1, 7)
            assert (claimed.clear, claimed.workload) == (None, '{"to":"ann"}')

    run(main())


def test_a_released_attempt_may_be_numbered_again_but_its_fence_never_returns(store_url: str) -> None:
    def release(state: JobState) -> ChangedJob:
        return ChangedJob(transitions.release(state, now=NOW))

    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
            (first,) = await claim(store, token="same")
            await change_job(store, first.id, release)
            (second,) = await claim(store, token="same")
            assert (first.attempts, second.attempts) == (1, 1)
            assert (first.fence, second.fence) == ("1-same", "2-same")

    run(main())


def test_a_retry_is_leased_as_the_next_attempt(store_url: str) -> None:
    def wait(state: JobState) -> ChangedJob:
        return ChangedJob(
            msgspec.structs.replace(state, status=JobStatus.RETRY, fence=None, available_at=NOW + 5)
        )

    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
            (first,) = await claim(store)
            await change_job(store, first.id, wait)
            assert await claim(store, NOW) == []
            (second,) = await claim(store, NOW + 5)
            assert second.attempts == 2
            started = [event.data for event in await store.events(first.execution_id, None, 100)][2:]
            assert started == [{"attempt": 2, "is_retry": True, "worker": "worker-1"}]

    run(main())


def test_the_lease_is_told_whatever_the_worker_is_called(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            for worker in ('a "quoted" one', "back\\slash", "Łódź ☃ \U0001f600", "a\nb\t'c'", "$1 ?1 :now"):
                (execution,) = await submit(store)
                (leased,) = await claim(store, worker_id=worker)
                assert (await store.events(execution, None, 100))[-1].data["worker"] == worker
                assert (await job(store, leased.id)).worker_id == worker

    run(main())


def test_many_claimers_at_once_share_the_jobs_without_overlap(store_url: str) -> None:
    async def drain(store: Any) -> list[int]:
        mine: list[int] = []
        empty = 0
        # One empty answer may mean that others hold the head of the queue; several mean the end.
        while empty < 3:
            rows = await claim(store, limit=7)
            empty = 0 if rows else empty + 1
            mine += [row.id for row in rows]
        return mine

    async def main() -> None:
        async with opened(store_url) as one, opened(store_url) as two:
            await submit(one, *[new(group=group(rank=i % 4)) for i in range(300)])
            shares = await together(*(drain(store) for store in (one, two) * 5))
            taken = [id_ for share in shares for id_ in share]
            assert len(taken) == len(set(taken)) == 300
            assert await raw(store_url, "SELECT count(*) FROM jobs WHERE status <> 'leased'") == [(0,)]
            assert await raw(store_url, "SELECT max(attempts), max(leases) FROM jobs") == [(1, 1)]

    run(main())


def test_claiming_from_an_empty_store_gives_nothing(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await claim(store) == []

    run(main())


# what a worker that got nothing may wait for


def test_alone_ready_tells_of_a_ready_job_that_must_run_alone(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new(group=group(alone=True), available_at=NOW + 5))
            assert not await store.alone_ready(request(), NOW)
            assert await store.alone_ready(request(), NOW + 5)
            assert not await store.alone_ready(request(handlers=("scan",)), NOW + 5)
            assert not await store.alone_ready(request(lanes=(Lane.MANUAL,)), NOW + 5)
            await claim(store, NOW + 5, alone=True)
            assert not await store.alone_ready(request(), NOW + 5)

    run(main())


def test_next_due_is_the_earliest_time_among_what_the_worker_could_take(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await store.next_due(request(), NOW) is None
            await submit(
                store,
                new(available_at=NOW + 30),
                new(available_at=NOW + 20, group=GROUP._replace(rank=1)),
                new(available_at=NOW + 10, group=group("scan")),
                new(available_at=NOW + 15, lane=Lane.MANUAL),
            )
            assert await store.next_due(request(), NOW) == NOW + 15
            assert await store.next_due(request(lanes=(Lane.BULK,)), NOW) == NOW + 20
            assert await store.next_due(request(handlers=("scan",)), NOW) == NOW + 10
            assert await store.next_due(request(handlers=("other",)), NOW) is None
            await raw(store_url, f"UPDATE jobs SET held_by = 'wave' WHERE available_at < {NOW + 25}")
            assert await store.next_due(request(), NOW) == NOW + 30

    run(main())
