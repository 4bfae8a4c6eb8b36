"""Amending jobs and executions: all of a plan is written in one transaction, or nothing of it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from holdfast.core import transitions
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import DeadReason, ExecutionState, ExecutionStatus, JobState, JobStatus
from holdfast.store import postgres
from holdfast.store.changes import ChangedJob, Changes, CompletedStage, NewJob
from holdfast.store.interface import JobFilter, Locked
from running import eventually, run
from store_scenario import (
    ERROR,
    GROUP,
    NOW,
    claim,
    contents,
    job,
    new,
    opened,
    raw,
    raw_connection,
    submit,
    together,
)

replace = msgspec.structs.replace
STARTED = '[{"type":"step_started","step":"second"}]'


def everything(locked: list[Locked]) -> Changes:
    """Of two leased jobs the first is done and the second dead; each execution goes on in its way."""
    (done, advanced), (dead, failed) = locked
    died = replace(dead, status=JobStatus.DEAD, dead_reason=DeadReason.PERMANENT, settled_fence=dead.fence)
    return Changes(
        completed=[
            CompletedStage(done.id, advanced.id, "hash", '{"n":1}', ExecutionStatus.RUNNING, "first", STARTED)
        ],
        jobs=[ChangedJob(replace(died, settled_hash="hash-2", clear='["first"]'), GROUP._replace(rank=9))],
        executions=[replace(failed, status=ExecutionStatus.FAILED, error=ERROR, retry_count=2)],
        new_jobs=[NewJob(advanced.id, "second", 1, GROUP._replace(handler="scan"), 4, NOW + 3, '["x"]')],
        events=[(failed.id, STARTED)],
    )


def test_everything_of_a_plan_is_written(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            ids = await submit(store, new(), new())
            fences = [row.fence for row in await claim(store)]
            await store.amend_jobs([1, 2], everything, NOW + 1)
            done, dead, second = await store.jobs(JobFilter())
            assert (done.status, done.output, done.finished_at) == (JobStatus.DONE, {"n": 1}, NOW + 1)
            assert (dead.status, dead.dead_reason, dead.rank) == (JobStatus.DEAD, DeadReason.PERMANENT, 9)
            assert (second.step, second.status, second.max_attempts) == ("second", JobStatus.QUEUED, 4)
            assert (second.available_at, second.created_at) == (NOW + 3, NOW + 1)
            settled = await job(store, done.queue_id)
            assert (settled.fence, settled.lease_until) == (None, None)
            assert (settled.settled_fence, settled.settled_hash) == (fences[0], "hash")
            assert (await job(store, dead.queue_id)).clear == '["first"]'
            advanced, failed = [await store.execution(id_) for id_ in ids]
            assert advanced is not None and failed is not None
            assert (advanced.status, advanced.last_completed_stage) == (ExecutionStatus.RUNNING, "first")
            assert (failed.status, failed.finished_at, failed.retry_count) == (
                ExecutionStatus.FAILED,
                NOW + 1,
                2,
            )
            assert failed.error is not None and failed.error.message == "too slow"
            for id_ in ids:
                assert (await store.events(id_, None, 100))[-1].step == "second"
            (claimed,) = await claim(store, NOW + 3, handlers=("scan",))
            assert (claimed.step, claimed.clear) == ("second", '["x"]')

    run(main())


def test_a_plan_that_raises_writes_nothing(store_url: str) -> None:
    def refuse(locked: list[Locked]) -> Changes:
        everything(locked)
        raise LookupError("no definition")

    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new())
            await claim(store)
            before = await contents(store_url)
            with pytest.raises(LookupError, match="no definition"):
                await store.amend_jobs([1, 2], refuse, NOW)
            assert await contents(store_url) == before
            await store.amend_jobs([1, 2], everything, NOW)

    run(main())


def _no_reason(changes: Changes) -> None:
    item = changes.jobs[0]
    changes.jobs[0] = item._replace(job=replace(item.job, dead_reason=None))


def _no_error(changes: Changes) -> None:
    changes.executions[0] = replace(changes.executions[0], error=None)


def _round_zero(changes: Changes) -> None:
    changes.new_jobs[0] = changes.new_jobs[0]._replace(round=0)


def _same_step_again(changes: Changes) -> None:
    changes.new_jobs[0] = changes.new_jobs[0]._replace(step="first")


def _rank_ten(changes: Changes) -> None:
    changes.new_jobs[0] = changes.new_jobs[0]._replace(group=GROUP._replace(rank=10))


@pytest.mark.parametrize("fault", [_no_reason, _no_error, _round_zero, _same_step_again, _rank_ten])
def test_a_plan_that_breaks_a_constraint_writes_nothing(
    store_url: str, fault: Callable[[Changes], None]
) -> None:
    def faulty(locked: list[Locked]) -> Changes:
        changes = everything(locked)
        fault(changes)
        return changes

    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new())
            await claim(store)
            before = await contents(store_url)
            with pytest.raises(Exception, match=r"constraint"):
                await store.amend_jobs([1, 2], faulty, NOW)
            assert await contents(store_url) == before
            await store.amend_jobs([1, 2], everything, NOW)

    run(main())


def test_unknown_ids_are_left_out_of_the_plan(store_url: str) -> None:
    seen: list[list[int]] = []

    def jobs_plan(locked: list[Locked]) -> Changes:
        seen.append([item.job.id for item in locked])
        return Changes()

    def executions_plan(executions: list[ExecutionState], jobs: list[JobState]) -> Changes:
        seen.append([execution.id for execution in executions])
        seen.append([job.id for job in jobs])
        return Changes()

    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new())
            await store.amend_jobs([77, 2, 99], jobs_plan, NOW)
            await store.amend_jobs([], jobs_plan, NOW)
            await store.amend_executions([55, 1], executions_plan, NOW)
            await store.amend_executions([], executions_plan, NOW)

    run(main())
    assert seen == [[2], [], [1], [1], [], []]


def test_jobs_and_executions_come_in_the_order_of_their_ids(store_url: str) -> None:
    seen: list[list[int]] = []

    def jobs_plan(locked: list[Locked]) -> Changes:
        seen.append([item.job.id for item in locked])
        seen.append([item.execution.id for item in locked])
        return Changes()

    def executions_plan(executions: list[ExecutionState], jobs: list[JobState]) -> Changes:
        seen.append([execution.id for execution in executions])
        seen.append([job.execution_id for job in jobs])
        return Changes()

    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *[new() for _ in range(5)])
            await store.amend_jobs([4, 2, 5, 1], jobs_plan, NOW)
            await store.amend_executions([3, 1, 2], executions_plan, NOW)

    run(main())
    assert seen == [[1, 2, 4, 5], [1, 2, 4, 5], [1, 2, 3], [1, 2, 3]]


def test_amending_an_execution_shows_all_its_jobs_of_all_rounds(store_url: str) -> None:
    seen: list[tuple[int, int]] = []

    def new_round(executions: list[ExecutionState], jobs: list[JobState]) -> Changes:
        seen[:] = [(job.execution_id, job.round) for job in jobs]
        (execution,) = executions
        resumed = replace(
            execution,
            round=execution.round + 1,
            manual_retries=execution.manual_retries + 1,
            last_manual_retry_at=NOW,
            retry_history="[]",
            deadline_at=NOW + 9,
        )
        added = NewJob(execution.id, "first", resumed.round, GROUP, 3, NOW)
        return Changes(executions=[resumed], new_jobs=[added])

    async def main() -> None:
        async with opened(store_url) as store:
            (id_, _) = await submit(store, new(), new())
            for _ in range(3):
                await store.amend_executions([id_], new_round, NOW)
            row = await store.execution(id_)
            assert row is not None
            assert (row.round, row.manual_retries, row.deadline_at) == (4, 3, NOW + 9)
            state = (await store.peek_jobs([1]))[0].execution
            assert (state.last_manual_retry_at, state.retry_history) == (NOW, "[]")

    run(main())
    assert seen == [(1, 1), (1, 2), (1, 3)]


def test_a_job_that_ends_is_held_no_longer_and_one_that_waits_stays_held(store_url: str) -> None:
    def touch(locked: list[Locked]) -> Changes:
        waiting, ending = (item.job for item in locked)
        return Changes(jobs=[ChangedJob(waiting), ChangedJob(transitions.cancel(ending))])

    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new())
            await raw(store_url, "UPDATE jobs SET held_by = 'barrier'")
            await store.amend_jobs([1, 2], touch, NOW)
            waiting, ended = await store.jobs(JobFilter())
            assert (waiting.held_by, waiting.finished_at) == ("barrier", None)
            assert (ended.held_by, ended.status, ended.finished_at) == (None, JobStatus.CANCELLED, NOW)

    run(main())


# at once


def count_up(executions: list[ExecutionState], jobs: list[JobState]) -> Changes:
    return Changes(executions=[replace(item, retry_count=item.retry_count + 1) for item in executions])


def count_up_by_jobs(locked: list[Locked]) -> Changes:
    return count_up([item.execution for item in locked], [])


def test_changes_of_one_execution_wait_for_each_other(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as one, opened(store_url) as two:
            await submit(one)
            amends = [store.amend_executions([1], count_up, NOW) for store in (one, two) * 5]
            amends += [store.amend_jobs([1], count_up_by_jobs, NOW) for store in (one, two) * 5]
            assert await together(*amends) == [None] * 20
            row = await one.execution(1)
            assert row is not None and row.retry_count == 20

    run(main())


def test_amends_over_the_same_jobs_in_opposite_orders_do_not_deadlock(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "DEADLOCK_TRIES", 1)
    rounds = 50

    async def main() -> None:
        async with opened(store_url) as one, opened(store_url) as two:
            ids = await submit(one, *[new() for _ in range(20)])
            for _ in range(rounds):
                answers = await together(
                    one.amend_jobs(ids, count_up_by_jobs, NOW),
                    two.amend_jobs(ids[::-1], count_up_by_jobs, NOW),
                    two.amend_executions(ids[::-1], count_up, NOW),
                )
                assert answers == [None, None, None]
            counts = await raw(store_url, "SELECT DISTINCT retry_count FROM executions")
            assert counts == [(3 * rounds,)]

    run(main())


async def meet_a_deadlock(url: str, amend: Coroutine[Any, Any, None]) -> None:
    """Another transaction has the third row and wants the first, which the amending one of all three has by
    then. A gate at the second lets that one close the circle: whoever does is the one to notice it, once."""
    other, gate = await raw_connection(url), await raw_connection(url)
    try:
        await other.execute("SET deadlock_timeout = '60s'")  # the store is the one to give way
        await gate.execute("BEGIN; SELECT 1 FROM executions WHERE id = 2 FOR UPDATE")
        await other.execute("BEGIN; SELECT 1 FROM executions WHERE id = 3 FOR UPDATE")
        amending = asyncio.create_task(amend)
        await until_waiting(url, 1)
        wanting = asyncio.create_task(other.execute("SELECT 1 FROM executions WHERE id = 1 FOR UPDATE"))
        await until_waiting(url, 2)
        await gate.execute("COMMIT")
        await wanting
        await other.execute("COMMIT")
        await amending
    finally:
        await gate.close()
        await other.close()


async def until_waiting(url: str, number: int) -> None:
    async def are_waiting() -> bool:
        [(found,)] = await raw(
            url,
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()",
        )
        return bool(found == number)

    await eventually(are_waiting)


def test_a_deadlock_is_resolved_by_trying_again(postgres_url: str) -> None:
    tries: list[int] = []

    def count(locked: list[Locked]) -> Changes:
        tries.append(len(locked))
        return Changes()

    async def main() -> None:
        async with opened(postgres_url) as store:
            await submit(store, new(), new(), new())
            await meet_a_deadlock(postgres_url, store.amend_jobs([1, 2, 3], count, NOW))

    run(main())
    assert tries == [3]


def test_a_deadlock_that_does_not_end_makes_the_store_unavailable(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "DEADLOCK_TRIES", 1)

    async def main() -> None:
        async with opened(postgres_url) as store:
            await submit(store, new(), new(), new())
            amend = store.amend_jobs([1, 2, 3], lambda _: Changes(), NOW)
            with pytest.raises(StoreUnavailable, match="deadlock detected"):
                await meet_a_deadlock(postgres_url, amend)

    run(main())
