"""Reading and pruning: what is due, outputs, listings with their filters and pages, events."""

from typing import Any

import msgspec

from holdfast.core.model import (
    DeadReason,
    EventType,
    ExecutionState,
    ExecutionStatus,
    JobState,
    JobStatus,
    Lane,
    LeaseRef,
    Mode,
)
from holdfast.store import Store
from holdfast.store.changes import ChangedJob, Changes, NewJob
from holdfast.store.interface import Claimed, ExecutionFilter, JobFilter, Locked
from running import run
from store_scenario import (
    ERROR,
    GROUP,
    NOW,
    PATH,
    claim,
    complete,
    completed_stage,
    keyed,
    lease_of,
    new,
    opened,
    raw,
    row_counts,
    submit,
)

replace = msgspec.structs.replace


async def kill(store: Store, leased: Claimed, reason: DeadReason = DeadReason.PERMANENT) -> None:
    """Let a leased job die and its execution fail."""

    def plan(locked: list[Locked]) -> Changes:
        ((job, execution),) = locked
        dead = replace(job, status=JobStatus.DEAD, dead_reason=reason, settled_fence=job.fence)
        failed = replace(execution, status=ExecutionStatus.FAILED, error=ERROR)
        return Changes(jobs=[ChangedJob(dead)], executions=[failed])

    await store.amend_jobs([leased.id], plan, NOW)


async def next_round(store: Store, execution_id: int) -> None:
    def plan(executions: list[ExecutionState], jobs: list[JobState]) -> Changes:
        (execution,) = executions
        resumed = replace(execution, status=ExecutionStatus.RUNNING, round=execution.round + 1, error=None)
        return Changes(
            executions=[resumed], new_jobs=[NewJob(execution.id, "first", resumed.round, GROUP, 3, NOW)]
        )

    await store.amend_executions([execution_id], plan, NOW)


# what has run out


def test_expired_leases_come_oldest_first_and_only_once_they_ran_out(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *[new() for _ in range(4)])
            leases: dict[float, LeaseRef] = {}
            for seconds in (30.0, 10.0, 20.0):
                leases[seconds] = lease_of((await claim(store, limit=1, lease_seconds=seconds))[0])
            assert await store.expired(NOW + 10, 10) == []
            assert await store.expired(NOW + 25, 10) == [leases[10], leases[20]]
            assert await store.expired(NOW + 99, 2) == [leases[10], leases[20]]
            assert await store.expired(NOW + 99, 10) == [leases[10], leases[20], leases[30]]

    run(main())


def test_overdue_executions_are_running_ones_past_their_deadline(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *[new(deadline_at=NOW + after) for after in (1, 30, 10, 20)], new())
            (done,) = await claim(store, limit=1)
            await complete(store, done)
            assert await store.overdue(NOW + 10, 10) == []
            assert await store.overdue(NOW + 25, 10) == [3, 4]
            assert await store.overdue(NOW + 99, 1) == [3]
            assert await store.overdue(NOW + 99, 10) == [3, 4, 2]

    run(main())


# jobs as they are


def test_peeking_shows_jobs_with_their_executions_and_leaves_out_unknown_ids(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new(lane=Lane.MANUAL), new())
            found = {item.job.id: item for item in await store.peek_jobs([2, 99, 1])}
            assert sorted(found) == [1, 2]
            assert found[2].execution.lane is Lane.MANUAL
            assert found[1].job.is_live
            assert await store.peek_jobs([]) == []

    run(main())


def test_outputs_of_later_rounds_come_later(store_url: str) -> None:
    async def finish(store: Store, output: str) -> None:
        (leased,) = await claim(store)

        def plan(locked: list[Locked]) -> Changes:
            return Changes(completed=[completed_stage(leased, output=output)])

        await store.amend_jobs([leased.id], plan, NOW)

    async def main() -> None:
        async with opened(store_url) as store:
            (id_,) = await submit(store)
            await finish(store, '"one"')
            await next_round(store, id_)
            await finish(store, '"two"')
            await next_round(store, id_)
            (other,) = await submit(store, new(available_at=NOW + 9))
            outputs = await store.outputs([id_, other])
            assert [tuple(item)[:4] for item in outputs] == [
                (id_, "first", 1, '"one"'),
                (id_, "first", 2, '"two"'),
            ]
            assert await store.outputs([]) == []

    run(main())


# listings


async def ids_of_executions(store: Store, **filters: Any) -> list[int]:
    return [row.id for row in await store.executions(ExecutionFilter(**filters))]


async def ids_of_jobs(store: Store, **filters: Any) -> list[int]:
    return [row.queue_id for row in await store.jobs(JobFilter(**filters))]


def test_executions_are_listed_newest_first_by_status_and_path(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new(), new(path="post"), new())
            one, two = await claim(store, limit=2)
            await complete(store, one)
            await kill(store, two)
            assert await ids_of_executions(store) == [4, 3, 2, 1]
            assert await ids_of_executions(store, status=ExecutionStatus.RUNNING) == [4, 3]
            assert await ids_of_executions(store, status=ExecutionStatus.COMPLETED) == [1]
            assert await ids_of_executions(store, status=ExecutionStatus.FAILED) == [2]
            assert await ids_of_executions(store, status=ExecutionStatus.CANCELLED) == []
            assert await ids_of_executions(store, path="post") == [3]
            assert await ids_of_executions(store, path=PATH, status=ExecutionStatus.RUNNING) == [4]

    run(main())


def test_pages_of_executions_go_on_where_the_last_one_ended(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *[new() for _ in range(5)])
            first = await ids_of_executions(store, limit=2)
            await submit(store)  # what comes meanwhile does not shift the pages
            second = await ids_of_executions(store, limit=2, before=first[-1])
            third = await ids_of_executions(store, limit=2, before=second[-1])
            assert [first, second, third] == [[5, 4], [3, 2], [1]]
            assert await ids_of_executions(store, before=1) == []

    run(main())


def test_an_unknown_execution_is_none(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await store.execution(1) is None

    run(main())


def test_jobs_are_listed_oldest_first_by_every_filter(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new(), new(lane=Lane.MANUAL), new(available_at=NOW + 50), new())
            manual, done, dead = await claim(store, limit=3)
            await complete(store, done)
            await kill(store, dead)
            assert (manual.id, done.id, dead.id) == (3, 1, 2)
            assert await ids_of_jobs(store) == [1, 2, 3, 4, 5]
            assert await ids_of_jobs(store, status=JobStatus.QUEUED) == [4, 5]
            assert await ids_of_jobs(store, status=JobStatus.LEASED) == [3]
            assert await ids_of_jobs(store, status=JobStatus.DONE) == [1]
            assert await ids_of_jobs(store, status=JobStatus.DEAD) == [2]
            assert await ids_of_jobs(store, lane=Lane.MANUAL) == [3]
            assert await ids_of_jobs(store, lane=Lane.BULK, status=JobStatus.QUEUED) == [4, 5]
            assert await ids_of_jobs(store, dead_reason=DeadReason.PERMANENT) == [2]
            assert await ids_of_jobs(store, dead_reason=DeadReason.POISONED) == []
            assert await ids_of_jobs(store, due_at=NOW) == [5]
            assert await ids_of_jobs(store, due_at=NOW + 50) == [4, 5]
            assert await ids_of_jobs(store, execution_id=3) == [3]
            assert await ids_of_jobs(store, after=3) == [4, 5]
            assert await ids_of_jobs(store, limit=2) == [1, 2]
            assert await ids_of_jobs(store, after=2, limit=2) == [3, 4]

    run(main())


def test_a_listed_job_shows_all_of_itself(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            group = GROUP._replace(operation="request", rank=2)
            await submit(store, new(mode=Mode.AUTO, group=group))
            (leased,) = await claim(store, lease_seconds=5.0)
            await complete(store, leased, output='{"n":[1,null]}', now=NOW + 1)
            await raw(store_url, f"UPDATE jobs SET scheduled_for = {NOW}")
            (row,) = await store.jobs(JobFilter())
            assert (row.path, row.step, row.element, row.round) == (PATH, "first", -1, 1)
            assert (row.lane, row.operation, row.mode, row.rank) == (Lane.BULK, "request", Mode.AUTO, 2)
            assert (row.attempts, row.max_attempts, row.worker_id) == (1, 3, "worker-1")
            assert (row.created_at, row.finished_at, row.scheduled_for) == (NOW, NOW + 1, NOW)
            assert (row.lease_until, row.last_heartbeat, row.held_by) == (None, NOW, None)
            assert row.output == {"n": [1, None]}

    run(main())


def test_the_list_of_dead_jobs_leaves_out_those_a_later_round_replaced(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new())
            replaced, standing = await claim(store)
            await kill(store, replaced)
            await kill(store, standing)
            await next_round(store, replaced.execution_id)
            assert await ids_of_jobs(store, status=JobStatus.DEAD) == [standing.id]
            assert await ids_of_jobs(store, dead_reason=DeadReason.PERMANENT) == [1, 2]
            assert await ids_of_jobs(store, execution_id=replaced.execution_id) == [1, 3]

    run(main())


# events


def test_events_are_paged_by_id_also_inside_a_packed_row(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            (id_, other) = await submit(store, new(), new())
            (leased, _) = await claim(store)
            await complete(store, leased)
            whole = await store.events(id_, None, 100)
            assert [event.type for event in whole] == [
                EventType.EXECUTION_STARTED,
                EventType.STEP_STARTED,
                EventType.ACTION_STARTED,
                EventType.ACTION_COMPLETED,
            ]
            assert [event.execution_id for event in whole] == [id_] * 4
            assert {event.at for event in whole} == {NOW}
            assert len({event.id for event in whole}) == 4
            for size in (1, 2, 3, 4):
                paged, after = [], None
                while page := await store.events(id_, after, size):
                    assert len(page) <= size
                    paged += page
                    after = page[-1].id
                assert paged == whole
            assert len(await store.events(other, None, 100)) == 3

    run(main())


def test_an_event_id_that_nobody_gave_out_means_the_beginning(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            (id_,) = await submit(store)
            whole = await store.events(id_, None, 100)
            for odd in ("", "x", "1", "1.", ".1", "-1.0", "1.2.3", "1.x", "9" * 40 + ".0", "²·²"):
                assert await store.events(id_, odd, 100) == whole, odd

    run(main())


def test_an_unknown_execution_has_no_events(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await store.events(1, None, 10) == []

    run(main())


# retention


def test_pruning_deletes_what_ended_before_with_jobs_and_events(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *[new() for _ in range(3)])
            for leased, ended in zip(await claim(store, limit=2), (NOW + 1, NOW + 2), strict=True):
                await complete(store, leased, now=ended)
            assert await store.prune(NOW + 1, 100) == 0
            assert await store.prune(NOW + 2, 100) == 1
            assert await store.execution(1) is None
            assert await store.prune(NOW + 1_000, 100) == 1
            assert await ids_of_executions(store) == [3]
            counts = await row_counts(store_url)
            assert (counts["jobs"], counts["events"]) == (1, 1)
            assert await store.prune(NOW + 1_000, 100) == 0

    run(main())


def test_pruning_goes_in_steps_of_its_limit(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *[new() for _ in range(5)])
            for leased in await claim(store):
                await complete(store, leased, now=NOW - leased.id)
            assert await store.prune(NOW, 2) == 2
            assert len(await ids_of_executions(store)) == 3
            assert [await store.prune(NOW, 2) for _ in range(3)] == [2, 1, 0]

    run(main())


def test_a_pruned_execution_frees_its_key_and_its_id_is_not_used_again(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            (first,) = await submit(store, keyed("k"))
            (leased,) = await claim(store)
            await complete(store, leased)
            assert await store.prune(NOW + 1, 10) == 1
            (second,) = await store.insert([keyed("k", "h2")], NOW)
            assert second.created and second.execution_id > first

    run(main())
