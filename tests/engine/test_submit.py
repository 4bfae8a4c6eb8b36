"""Submitting work: what is refused, what an idempotency key does, and that a list is stored whole or not."""

import asyncio
import math
from typing import Any

import pytest

from engine_scenario import START, Scenario, on_both_stores, stage
from holdfast.core.errors import (
    IdempotencyConflict,
    InvalidInput,
    PayloadInvalid,
    PayloadTooLarge,
    UnknownPipeline,
)
from holdfast.core.model import ExecutionStatus, Lane, Mode
from holdfast.engine import Submission, Submitted


async def count(s: Scenario) -> int:
    return len((await s.engine.executions(limit=1_000)).items)


@on_both_stores
async def test_an_unknown_pipeline_is_refused_with_the_known_ones(s: Scenario) -> None:
    with pytest.raises(UnknownPipeline, match="no pipeline 'p'") as refusal:
        await s.submit()
    assert refusal.value.guidance.startswith("Define it with hf.pipeline()")
    await s.define(stage("a"), path="zeta")
    await s.define(stage("a"), path="alpha")
    with pytest.raises(UnknownPipeline) as refusal:
        await s.submit()
    assert refusal.value.guidance == "Known are: alpha, zeta."


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"workload": object()}, PayloadInvalid, "workload cannot be written as JSON"),
    ({"workload": "x" * 1_000}, PayloadTooLarge, "1,002 bytes of JSON; the limit is 1,000 bytes"),
    ({"workload": {"a": "x\0"}}, PayloadInvalid, r"NUL character at \$\.a"),
    ({"workload": {"a\0": 1}}, PayloadInvalid, r"NUL character at \$ \(a key\)"),
    ({"workload": [math.nan]}, PayloadInvalid, r"nan at \$\[0\]"),
    ({"lane": "express"}, InvalidInput, "'express' is not a lane"),
    ({"lane": None}, InvalidInput, "None is not a lane"),
    ({"lane": ["bulk"]}, InvalidInput, r"\['bulk'\] is not a lane"),
    ({"mode": {}}, InvalidInput, "{} is not a mode"),
    ({"delay_seconds": False}, InvalidInput, "delay cannot be False"),
    ({"delay_seconds": 0j}, InvalidInput, "delay cannot be 0j"),
    ({"mode": "fast"}, InvalidInput, "'fast' is not a mode"),
    ({"delay_seconds": -1}, InvalidInput, "delay cannot be -1"),
    ({"delay_seconds": "soon"}, InvalidInput, "delay cannot be 'soon'"),
    ({"deadline_seconds": 0}, InvalidInput, "deadline must be longer than 0"),
    ({"deadline_seconds": math.inf}, InvalidInput, "deadline cannot be inf"),
    ({"idempotency_key": ""}, PayloadInvalid, "idempotency key must be a non-empty string"),
    ({"idempotency_key": "a\0"}, PayloadInvalid, "idempotency key .* cannot be printed"),
    ({"idempotency_key": "k" * 201}, PayloadInvalid, "the limit is 200"),
]


@on_both_stores
async def test_a_wrong_submission_is_refused_and_takes_its_list_with_it(s: Scenario) -> None:
    s.engine = s.another_engine(payload_bytes_max=1_000)
    await s.define(stage("a"))
    for fields, kind, problem in REFUSED:
        with pytest.raises(kind, match=problem):
            await s.engine.submit([Submission(path="p"), Submission(path="p", **fields)])
    assert await count(s) == 0


@on_both_stores
async def test_a_list_is_stored_in_its_order_and_an_empty_one_is_nothing(s: Scenario) -> None:
    await s.define(stage("a"))
    assert await s.engine.submit([]) == []
    submitted = await s.engine.submit([Submission(path="p", workload=n) for n in range(5)])
    assert [(await s.execution(item.id)).workload for item in submitted] == list(range(5))
    assert all(item.created for item in submitted)


@on_both_stores
async def test_lane_and_mode_are_kept_and_the_mode_follows_the_lane(s: Scenario) -> None:
    await s.define(stage("a"))
    ids = [
        await s.submit(),
        await s.submit(lane=Lane.MANUAL),
        await s.submit(lane="manual", mode="auto"),
    ]
    rows = [await s.execution(id_) for id_ in ids]
    assert [(row.lane, row.mode) for row in rows] == [
        (Lane.BULK, Mode.BULK),
        (Lane.MANUAL, Mode.MANUAL),
        (Lane.MANUAL, Mode.AUTO),
    ]


@on_both_stores
async def test_a_delayed_start_waits_for_its_time(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit(delay_seconds=90)
    asked = await s.ask()
    assert (asked.jobs, asked.next_due) == ([], START + 90)
    assert (await s.engine.view(id_)).summary == "Waiting to run a"
    s.tick(90)
    assert (await s.lease_one()).execution_id == id_


@on_both_stores
async def test_the_same_key_is_the_same_execution_also_a_failed_one(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    await s.define(stage("a"), path="other")
    item = Submission(path="p", workload={"a": 1, "b": (2, 3)}, idempotency_key="order 1")
    [first] = await s.engine.submit([item])
    await s.fail(await s.lease_one())
    same = Submission(path="p", workload={"b": [2, 3], "a": 1}, idempotency_key="order 1")
    assert await s.engine.submit([same, item]) == [Submitted(first.id, False)] * 2
    assert (await s.execution(first.id)).status is ExecutionStatus.FAILED
    elsewhere = Submission(path="other", workload={"a": 2}, idempotency_key="order 1")
    [another] = await s.engine.submit([elsewhere])
    assert another.created
    assert (await s.execution(first.id)).idempotency_key == "order 1"


@on_both_stores
async def test_a_key_used_twice_in_one_list_is_one_execution(s: Scenario) -> None:
    await s.define(stage("a"))
    item = Submission(path="p", workload=1, idempotency_key="k")
    first, second = await s.engine.submit([item, item])
    assert (first.created, second) == (True, Submitted(first.id, False))
    assert await count(s) == 1


@on_both_stores
async def test_a_key_with_another_workload_is_a_conflict_and_nothing_is_written(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit(1, idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match=f"'k' of p belongs to execution {id_}") as refusal:
        await s.engine.submit([Submission(path="p"), Submission(path="p", workload=2, idempotency_key="k")])
    assert "another key" in refusal.value.guidance
    with pytest.raises(IdempotencyConflict):
        await s.engine.submit(
            [Submission(path="p", workload=n, idempotency_key="new") for n in ("one", "two")]
        )
    assert await count(s) == 1


@on_both_stores
async def test_concurrent_submits_share_transactions_and_a_conflict_fails_alone(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.submit(0, idempotency_key="k")
    inserts: list[int] = []
    insert = s.store.insert

    async def counted(items: Any, now: float) -> Any:
        inserts.append(len(items))
        return await insert(items, now)

    s.store.insert = counted  # type: ignore[method-assign]
    ids = await asyncio.gather(*(s.submit(n) for n in range(10)))
    assert len(set(ids)) == 10
    assert inserts == [10]
    conflicting = s.submit(1, idempotency_key="k")
    answers = await asyncio.gather(s.submit(), conflicting, s.submit(), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, IdempotencyConflict, int]
    assert await count(s) == 13
