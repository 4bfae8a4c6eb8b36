"""Completing held attempts: by their fences, all or none, in rows that are those of any other report."""

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core.model import JobStatus
from holdfast.store.stages import FollowingJob
from running import run
from store_scenario import GROUP, NOW, claim, completed_stage, held_stage, job, new, opened, raw, submit

FOLLOWING = FollowingJob("second", 1, GROUP._replace(handler="other", limit="portal"), 7)


async def rows_of(store_url: str, *tables: str) -> list[Sequence[Any]]:
    return [row for table in tables for row in await raw(store_url, f"SELECT * FROM {table} ORDER BY id")]


def test_held_attempts_are_done_and_followed_by_their_next_jobs(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new(), new())
            first, second, third = await claim(store)
            stages = [
                held_stage(third, output='{"text":"\\u001f, \\u0000 and ☃"}'),
                held_stage(first, following=FOLLOWING),
                held_stage(second, following=FOLLOWING),
            ]
            assert await store.complete_held(stages, NOW + 1)
            done = await job(store, third.id)
            assert (done.status, done.fence, done.settled_fence) == (JobStatus.DONE, None, third.fence)
            texts = {item.execution_id: item.output for item in await store.outputs([1, 2, 3])}
            assert texts == {1: '"done"', 2: '"done"', 3: '{"text":"\\u001f, \\u0000 and ☃"}'}
            following = await claim(store, NOW + 1, handlers=("other",))
            assert [(row.execution_id, row.step, row.max_attempts) for row in following] == [
                (1, "second", 7),
                (2, "second", 7),
            ]
            executions = [await store.execution(id_) for id_ in (1, 2, 3)]
            assert [row and row.status.value for row in executions] == ["running", "running", "completed"]
            assert [row and row.finished_at for row in executions] == [None, None, NOW + 1]
            assert [event.type.value for event in await store.events(3, None, 10)][-1] == "action_completed"

    run(main())


@pytest.mark.parametrize("missing", ["fence", "job", "execution"])
def test_where_one_is_not_held_nothing_is_written(store_url: str, missing: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new(), new())
            leased = await claim(store)
            stages = [held_stage(row, following=FOLLOWING) for row in leased]
            gone = {"fence": {"fence": "9-other"}, "job": {"job_id": 99}, "execution": {"execution_id": 99}}
            stages[1] = stages[1]._replace(**gone[missing])
            await claim(store)  # makes no difference, and no claim group is made on the way
            before = await rows_of(store_url, "executions", "jobs", "events")
            assert not await store.complete_held(stages, NOW + 1)
            assert await rows_of(store_url, "executions", "jobs", "events") == before
            assert await store.complete_held([stages[0], stages[2]], NOW + 1)

    run(main())


def test_a_lease_is_completed_once(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new())
            (leased,) = await claim(store)
            stage = held_stage(leased)
            assert await store.complete_held([stage], NOW)
            before = await rows_of(store_url, "executions", "jobs", "events")
            assert not await store.complete_held([stage], NOW)
            assert await rows_of(store_url, "executions", "jobs", "events") == before

    run(main())


def test_it_leaves_the_rows_that_a_plan_under_lock_leaves(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new())
            held, planned = await claim(store)
            stage = held_stage(held)
            assert await store.complete_held([stage], NOW + 1)
            from holdfast.store.changes import Changes

            same = completed_stage(planned, status=stage.end.status, events=stage.end.events)
            await store.amend_jobs([planned.id], lambda _: Changes(completed=[same]), NOW + 1)
            for table, own in (("executions", ("id",)), ("jobs", ("id", "execution_id"))):
                one, other = await raw(store_url, f"SELECT * FROM {table} ORDER BY id")
                columns = dict(one).keys() if hasattr(one, "keys") else range(len(one))
                differing = {column for column in columns if one[column] != other[column]}
                assert len(differing) <= len(own), differing

    run(main())
