"""What a worker gets: the order, what comes with a job, and jobs that must run alone."""

from typing import Any

import msgspec
import pytest

from engine_scenario import START, Scenario, completed, on_both_stores, stage
from holdfast.core.errors import InvalidInput, StoreUnavailable
from holdfast.core.model import Lane


@on_both_stores
async def test_a_wrong_request_is_refused(s: Scenario) -> None:
    await s.define(stage("a"))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"limit": 0}, "1 to 1000 jobs, not 0"),
        ({"limit": 1_001}, "1 to 1000 jobs, not 1001"),
        ({"lease_seconds": 0}, "longer than 0 seconds"),
        ({"lease_seconds": -5}, "lease_seconds cannot be -5"),
        ({"bulk": -1}, "bulk of a lease must be a whole number from 0, or None, not -1"),
        ({"limited": True}, "limited of a lease must be a whole number from 0, or None, not True"),
        ({"limited": 1.5}, "limited of a lease must be .* not 1.5"),
        ({"ageing_seconds": 0}, "ageing_seconds must be longer than 0"),
        ({"ageing_seconds": "soon"}, "ageing_seconds cannot be 'soon'"),
        ({"worker": ""}, "worker id must be a non-empty string"),
        ({"worker": "a\0"}, "worker id .* cannot be printed"),
    ]
    for fields, problem in wrong:
        with pytest.raises(InvalidInput, match=problem):
            await s.ask(**fields)
    await s.submit()
    job = await s.lease_one(lease_seconds="2m")
    assert job.lease_until == START + 120
    with pytest.raises(InvalidInput, match="longer than 0"):
        await s.engine.heartbeat([job], lease_seconds=0)  # type: ignore[list-item]


@on_both_stores
async def test_jobs_come_by_lane_then_rank_then_time_then_id(s: Scenario) -> None:
    await s.define(stage("a", operation="download"), path="download")
    await s.define(stage("b", operation="request"), path="request")
    await s.define(stage("c"), path="plain")
    await s.define(stage("d", priority=0), path="first")
    names = {}
    for path, lane, delay in [
        ("plain", Lane.BULK, 2),
        ("plain", Lane.BULK, 1),
        ("download", Lane.BULK, 0),
        ("request", Lane.BULK, 0),
        ("download", Lane.MANUAL, 0),
        ("request", Lane.MANUAL, 0),
        ("first", Lane.BULK, 3),
        ("plain", Lane.BULK, 2),
    ]:
        id_ = await s.submit(path=path, lane=lane, delay_seconds=delay)
        names[id_] = f"{lane} {path} {delay} #{id_}"
    s.tick(3)
    first = [names[job.execution_id] for job in await s.lease(3)]
    rest = [names[job.execution_id] for job in await s.lease(10)]
    assert first == ["manual request 0 #6", "manual download 0 #5", "bulk first 3 #7"]
    assert rest == [
        *["bulk request 0 #4", "bulk plain 1 #2", "bulk plain 2 #1", "bulk plain 2 #8"],
        "bulk download 0 #3",
    ]


@on_both_stores
async def test_a_worker_gets_only_what_it_has_handlers_and_lanes_for(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit()
    assert (await s.engine.lease("w", ["other"], 5)).jobs == []
    assert (await s.engine.lease("w", [], 5)).jobs == []
    assert (await s.engine.lease("w", ["p/a"], 5, lanes=[Lane.MANUAL])).jobs == []
    assert len((await s.engine.lease("w", ["p/a"], 5, lanes=[Lane.BULK])).jobs) == 1


@on_both_stores
async def test_a_job_comes_with_all_that_its_handler_needs(s: Scenario) -> None:
    definition_id = await s.define(stage("a", timeout_seconds=5), stage("b"), stage("c", attempts=7))
    ids = [await s.submit({"n": n}) for n in range(2)]
    first = await s.lease_one()
    assert first.outputs == {}
    assert (first.workload, first.timeout_seconds, first.clear) == ('{"n":0}', 5.0, ())
    await s.complete(first, '"from a"')
    others = await s.lease()
    assert [(job.step, job.outputs) for job in others] == [("a", {}), ("b", {"a": '"from a"'})]
    await s.complete(others[1], '"from b"')
    job = await s.lease_one()
    assert msgspec.structs.asdict(job) | {"fence": "", "queue_id": 0} == {
        "queue_id": 0,
        "fence": "",
        "execution_id": ids[0],
        "path": "p",
        "definition_id": definition_id,
        "step": "c",
        "handler": "p/c",
        "element": -1,
        "round": 1,
        "attempt": 1,
        "max_attempts": 7,
        "lane": Lane.BULK,
        "lease_until": START + 60,
        "timeout_seconds": 3600.0,
        "workload": '{"n":0}',
        "outputs": {"a": '"from a"', "b": '"from b"'},
        "clear": (),
        "alone": False,
        "limited": False,
        "type": "",
        "config": "{}",
        "inputs": "{}",
        "input": "{}",
        "item": None,
        "item_name": "item",
        "for_each": None,
        "parked": None,
        "secrets": (),
    }


@on_both_stores
async def test_the_next_due_time_is_told_where_nothing_is_ready(s: Scenario) -> None:
    await s.define(stage("a"))
    assert (await s.ask()).next_due is None
    await s.submit(delay_seconds=30)
    await s.submit(delay_seconds=20)
    assert (await s.ask()).next_due == START + 20
    await s.submit()
    asked = await s.ask()
    assert (len(asked.jobs), asked.next_due) == (1, None)


@on_both_stores
async def test_after_a_lost_worker_a_job_is_leased_alone(s: Scenario) -> None:
    await s.define(stage("a", attempts=9))
    suspects = [await s.submit(), await s.submit()]
    await s.lease()
    await s.lose()
    s.tick(1)
    asked = await s.ask()
    assert (asked.jobs, asked.alone_ready) == ([], True)
    innocent = await s.submit()
    [normal] = await s.lease()
    assert (normal.execution_id, normal.alone) == (innocent, False)
    alone = await s.ask(10, alone=True)
    assert [(job.execution_id, job.alone, job.attempt) for job in alone.jobs] == [(suspects[0], True, 2)]
    await s.fail(alone.jobs[0])
    s.tick(2)
    [second] = await s.lease(10, alone=True)
    await s.complete(second)
    [again] = await s.lease(10, alone=True)
    assert {second.execution_id, again.execution_id} == set(suspects)
    asked = await s.ask(alone=True)
    assert (asked.jobs, asked.alone_ready) == ([], False)


@on_both_stores
async def test_under_load_a_worker_is_told_now_and_then_that_a_job_waits_to_run_alone(s: Scenario) -> None:
    await s.define(stage("a", attempts=9))
    await s.submit()
    await s.lease()
    await s.lose()
    s.tick(1)
    for _ in range(4):
        await s.submit()
    told = [(await s.ask(1)).alone_ready for _ in range(2)]
    s.tick(5)
    told.append((await s.ask(1)).alone_ready)
    assert told == [True, False, True]


@on_both_stores
async def test_jobs_claimed_by_a_call_that_fails_are_given_back(s: Scenario) -> None:
    await s.define(stage("a"), stage("b"))
    id_ = await s.submit()
    await s.report(completed(await s.lease_one()))
    outputs = s.store.outputs

    async def away(*_: Any) -> Any:
        raise StoreUnavailable("away")

    s.store.outputs = away  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await s.lease()
    s.store.outputs = outputs  # type: ignore[method-assign]
    assert await s.state(id_) == "queued 0/3"
    assert (await s.lease_one()).attempt == 1
