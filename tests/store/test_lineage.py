"""What playbooks with branches, elements and children keep: outputs that count, what was handed on, places
under a concurrency, and who waits for whom."""

import json
from typing import Any

import msgspec

from holdfast.core.model import ExecutionState, ExecutionStatus, JobState, JobStatus
from holdfast.store import Store
from holdfast.store.changes import ChangedJob, Changes, FinishedJob, NewJob, NextElements
from holdfast.store.interface import Output, WaitingForChild
from running import run
from store_scenario import GROUP, NOW, claim, keyed, new, opened, submit

replace = msgspec.structs.replace


async def amend(store: Store, execution_id: int, **changes: Any) -> None:
    await store.amend_executions([execution_id], lambda _executions, _jobs: Changes(**changes), NOW)


async def add(store: Store, execution_id: int, *jobs: tuple[str, int, int], **fields: Any) -> list[int]:
    """Jobs of these steps, rounds and places; their ids."""
    before = {row.id for row in await jobs_of(store, execution_id)}
    new_jobs = [
        NewJob(execution_id, step, round_, GROUP, 3, NOW, element=place, **fields)
        for step, round_, place in jobs
    ]
    await amend(store, execution_id, new_jobs=new_jobs)
    return [row.id for row in await jobs_of(store, execution_id) if row.id not in before]


async def jobs_of(store: Store, execution_id: int) -> list[JobState]:
    found: list[JobState] = []

    def look(_: list[ExecutionState], jobs: list[JobState]) -> Changes:
        found[:] = jobs
        return Changes()

    await store.amend_executions([execution_id], look, NOW)
    return found


async def finish(store: Store, *outputs: str) -> list[int]:
    """Lease what is ready and finish it, in its order, with these outputs."""
    claimed = sorted(await claim(store), key=lambda row: row.id)
    done = [FinishedJob(row.id, "hash", text) for row, text in zip(claimed, outputs, strict=True)]
    await store.amend_jobs([row.id for row in claimed], lambda _: Changes(finished=done), NOW)
    return [row.id for row in claimed]


async def park(store: Store, job_id: int, path: str, key: str) -> None:
    """The job waits for a child of that path and key."""
    parked = json.dumps({"child": {"path": path, "key": key}})

    def plan(locked: list[Any]) -> Changes:
        [(job, _)] = locked
        return Changes(jobs=[ChangedJob(replace(job, held_by="child", parked=parked))])

    await store.amend_jobs([job_id], plan, NOW)


def test_a_finished_job_is_done_with_its_output_and_answers_the_same_report_again(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            [execution_id] = await submit(store)
            [job_id] = await finish(store, '{"n":1}')
            [job] = await jobs_of(store, execution_id)
            assert (job.id, job.status, job.fence, job.settled_hash) == (job_id, JobStatus.DONE, None, "hash")
            assert job.settled_fence is not None
            assert await store.step_outputs([execution_id], ["first"]) == [
                Output(execution_id, "first", 1, '{"n":1}', -1)
            ]

    run(main())


def test_step_outputs_are_those_of_these_steps_and_executions_the_oldest_round_first(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            one, other = await submit(store, new(), new())
            await finish(store, "1", "2")
            await add(store, one, ("second", 1, -1), ("fan", 1, 1), ("fan", 1, 0), ("first", 2, -1))
            await add(store, other, ("second", 1, -1))
            await finish(store, '"s"', '"b"', '"a"', '"new"', '"other"')
            found = await store.step_outputs([one], ["first", "fan", "none"])
            assert found == [
                Output(one, "first", 1, "1", -1),
                Output(one, "fan", 1, '"b"', 1),
                Output(one, "fan", 1, '"a"', 0),
                Output(one, "first", 2, '"new"', -1),
            ]
            both = await store.step_outputs([one, other], ["second"])
            assert {(row.execution_id, row.output) for row in both} == {(one, '"s"'), (other, '"other"')}
            assert await store.step_outputs([one], []) == []
            assert await store.step_outputs([], ["first"]) == []

    run(main())


def test_what_is_superseded_counts_no_longer_and_the_rows_of_the_same_transaction_do(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            one, other = await submit(store, new(), new())
            await finish(store, "1", "2")
            await add(store, one, ("second", 1, -1))
            await amend(
                store,
                one,
                superseded=[(one, "first"), (one, "second")],
                new_jobs=[NewJob(one, "first", 2, GROUP, 3, NOW)],
            )
            assert [(row.step, row.round, row.superseded) for row in await jobs_of(store, one)] == [
                ("first", 1, True),
                ("second", 1, True),
                ("first", 2, False),
            ]
            assert await store.step_outputs([one], ["first", "second"]) == []
            assert len(await store.step_outputs([other], ["first"])) == 1
            await finish(store, '"old"', '"new"')
            assert await store.step_outputs([one], ["first", "second"]) == [
                Output(one, "first", 2, '"new"', -1)
            ]

    run(main())


def test_handed_inputs_are_those_of_the_last_round_at_that_place(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            [one] = await submit(store, new(input='{"first":1}'))
            await add(store, one, ("fan", 1, -1), ("fan", 1, 0), input='{"n":1}')
            await add(store, one, ("fan", 2, -1), input='{"n":2}')
            await add(store, one, ("none", 1, -1), input='{"n":1}')
            await add(store, one, ("none", 2, -1))
            asked = [
                (one, "first", -1),
                (one, "fan", -1),
                (one, "fan", 0),
                (one, "fan", 7),
                (one, "none", -1),
            ]
            assert await store.handed_inputs(asked) == {
                (one, "first", -1): '{"first":1}',
                (one, "fan", -1): '{"n":2}',
                (one, "fan", 0): '{"n":1}',
            }
            assert await store.handed_inputs([]) == {}

    run(main())


def test_elements_are_let_through_in_their_order_and_only_as_many_as_there_is_room_for(
    store_url: str,
) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            one, other = await submit(store, new(), new())
            await finish(store, "1", "2")
            places = [("fan", 1, 2), ("fan", 1, 0), ("fan", 1, 1), ("fan", 2, 0), ("else", 1, 0)]
            await add(store, one, *places, held_by="for_each")
            await add(store, other, ("fan", 1, 0), held_by="for_each")
            assert await claim(store) == []
            await amend(store, one, let_through=[NextElements(one, "fan", 1, 2)])
            claimed = await claim(store)
            assert sorted((row.execution_id, row.step, row.round, row.element) for row in claimed) == [
                (one, "fan", 1, 0),
                (one, "fan", 1, 1),
            ]
            let = [NextElements(one, "fan", 1, 5), NextElements(other, "fan", 1, 1)]
            await amend(store, one, let_through=let)
            assert sorted((row.execution_id, row.element) for row in await claim(store)) == [
                (one, 2),
                (other, 0),
            ]

    run(main())


def test_a_plan_an_input_and_a_parent_are_kept_with_an_execution(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            [one] = await submit(store, new(plan='{"live":{}}', input='{"x":1}', parent_job=7, depth=2))
            [(job, execution)] = await store.peek_jobs([1])
            assert (execution.plan, execution.parent_job, execution.depth) == ('{"live":{}}', 7, 2)
            assert (job.input, job.parked, job.superseded) == ('{"x":1}', None, False)
            [row] = await claim(store)
            assert (row.input, row.depth, row.parked) == ('{"x":1}', 2, None)
            await amend(store, one, executions=[replace(execution, plan=None)])
            [(_, execution)] = await store.peek_jobs([1])
            assert execution.plan is None

    run(main())


def test_an_execution_is_found_by_its_path_and_key(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            [one] = await submit(store, keyed("k"))
            found = await store.execution_by_key("mail", "k")
            assert found is not None and found.id == one
            assert await store.execution_by_key("mail", "other") is None
            assert await store.execution_by_key("post", "k") is None

    run(main())


def test_a_version_of_a_definition_is_found_by_its_number(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            [one] = await submit(store)
            second = await store.save_definition("mail", '{"two":2}', "second", NOW)
            assert await store.definition_of(one) == 1
            assert await store.definition_of(99) is None
            found = await store.definition_version("mail", second.version)
            assert found is not None and (found.id, found.content) == (second.id, '{"two":2}')
            assert await store.definition_version("mail", 99) is None
            assert await store.definition_version("post", 1) is None

    run(main())


def test_jobs_that_wait_for_a_child_are_told_with_it_page_by_page(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new(), new(), keyed("job 1 attempt 1"))
            await park(store, 1, "mail", "job 1 attempt 1")
            await park(store, 2, "mail", "job 2 attempt 1")
            await park(store, 3, "post", "job 1 attempt 1")
            parked = [(await store.peek_jobs([id_]))[0].job.parked for id_ in (1, 2, 3)]
            waiting = [
                WaitingForChild(1, parked[0] or "", 0, 4, ExecutionStatus.RUNNING),
                WaitingForChild(2, parked[1] or "", 0, None, None),
                WaitingForChild(3, parked[2] or "", 0, None, None),
            ]
            assert await store.waiting_for_child(limit=10) == waiting
            assert await store.waiting_for_child(limit=2) == waiting[:2]
            assert await store.waiting_for_child(after=2, limit=2) == waiting[2:]
            assert await store.waiting_for_child(job_id=2) == waiting[1:2]
            assert await store.waiting_for_child(job_id=4) == []
            assert [row.id for row in await claim(store)] == [4], "they are outside the claim"

    run(main())


def test_children_are_those_that_run_and_orphans_those_whose_job_has_ended(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            [one] = await submit(store)
            child, other, gone = await submit(store, *(new(parent_job=job, depth=1) for job in (1, 1, 999)))
            assert await store.children(one, 10) == [child, other]
            assert await store.children(one, 1) == [child]
            assert await store.children(child, 10) == []
            assert await store.orphans(10) == [gone]
            [(job, _)] = await store.peek_jobs([1])
            await amend(store, one, jobs=[ChangedJob(replace(job, status=JobStatus.CANCELLED))])
            assert await store.orphans(10) == [child, other, gone]
            assert await store.orphans(1) == [child]
            [(job, ended)] = await store.peek_jobs([2])
            cancelled = replace(ended, status=ExecutionStatus.CANCELLED)
            await amend(
                store,
                child,
                executions=[cancelled],
                jobs=[ChangedJob(replace(job, status=JobStatus.CANCELLED))],
            )
            assert await store.orphans(10) == [other, gone]
            assert await store.children(one, 10) == [other]

    run(main())
