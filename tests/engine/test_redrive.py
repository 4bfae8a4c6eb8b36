"""Many failed executions started again: by their numbers or by what failed, with an answer for each."""

from typing import Any

import pytest

from engine_scenario import Scenario, on_both_stores, stage
from holdfast.core.errors import InvalidInput, RetryRefused
from holdfast.core.model import EventType, ExecutionStatus
from holdfast.engine import redrive as redriving
from holdfast.engine.redrive import Redriven


async def redrive(s: Scenario, ids: list[int] | None = None, **options: Any) -> list[Redriven]:
    return [answer async for batch in s.engine.redrive(ids, **options) for answer in batch]


def told(answers: list[Redriven]) -> list[tuple[int, str]]:
    return [(answer.execution_id, answer.code) for answer in answers]


async def fail_all(s: Scenario, count: int, message: str = "connection refused", **fields: Any) -> list[int]:
    ids = [await s.submit(**fields) for _ in range(count)]
    for job in await s.lease(count):
        await s.fail(job, message)
    return ids


@on_both_stores
async def test_a_redrive_starts_at_the_failed_stage_and_keeps_what_was_done(s: Scenario) -> None:
    await s.define(stage("a", attempts=1), stage("b", attempts=1))
    id_ = await s.submit()
    await s.complete(await s.lease_one(), '"kept"')
    await s.fail(await s.lease_one())
    assert told(await redrive(s, [id_], by="ops")) == [(id_, "redriven")]
    job = await s.lease_one()
    assert (job.step, job.round, job.outputs) == ("b", 2, {"a": '"kept"'})
    event = await s.last_event(id_, EventType.MANUAL_RETRY)
    assert (event.data["by"], event.data["redrive"], event.data["from_stage"]) == ("ops", True, "b")
    await s.complete(job)
    assert (await s.execution(id_)).status is ExecutionStatus.COMPLETED


@on_both_stores
async def test_each_execution_gets_its_own_answer(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    [healthy] = await fail_all(s, 1)
    [broken] = await fail_all(s, 1, "the file is corrupted")
    running = await s.submit()
    answers = await redrive(s, [running, broken, 999, healthy, healthy, -1])
    assert told(answers) == [
        (-1, "unknown_execution"),
        (healthy, "redriven"),
        (broken, "permanent_error"),
        (running, "not_failed"),
        (999, "unknown_execution"),
    ]
    assert "Retrying will not help" in answers[2].message
    assert told(await redrive(s, [broken], force=True)) == [(broken, "redriven")]
    assert told(await redrive(s, [healthy, broken], force=True)) == [
        (healthy, "not_failed"),
        (broken, "not_failed"),
    ]


@on_both_stores
async def test_neither_cap_nor_cooldown_holds_for_a_redrive_or_is_used_up_by_it(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    [id_] = await fail_all(s, 1)
    for _ in range(6):
        assert told(await redrive(s, [id_])) == [(id_, "redriven")]
        await s.fail(await s.lease_one())
    execution = await s.execution(id_)
    assert (execution.round, execution.manual_retries) == (7, 0)
    for _ in range(5):  # a person has all of theirs
        await s.retry(id_)
        await s.fail(await s.lease_one())
        s.tick(60)
    for refused in (dict[str, bool](), {"force": True}):
        with pytest.raises(RetryRefused) as refusal:
            await s.retry(id_, **refused)
        assert refusal.value.code == "retry_cap"
    assert told(await redrive(s, [id_])) == [(id_, "redriven")]


@on_both_stores
async def test_a_redrive_need_not_wait_after_a_retry_by_hand(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    [id_] = await fail_all(s, 1)
    await s.retry(id_)
    await s.fail(await s.lease_one())
    with pytest.raises(RetryRefused, match="less than 60 seconds ago"):
        await s.retry(id_)
    assert told(await redrive(s, [id_])) == [(id_, "redriven")]


@on_both_stores
async def test_filters_choose_what_is_redriven(s: Scenario) -> None:
    await s.define(stage("a", attempts=1), stage("b", attempts=1))
    await s.define(stage("x", attempts=1, path="q"), path="q")
    timeouts = await fail_all(s, 2, "timed out")
    refused = await fail_all(s, 2)
    elsewhere = await fail_all(s, 1, path="q")
    late = await s.submit(deadline_seconds=5)
    s.tick(6)
    await s.engine.sweep()

    async def chosen(**filters: str) -> list[int]:
        answers = await redrive(s, dry_run=True, **filters)
        assert all(answer.is_redriven for answer in answers)
        return [answer.execution_id for answer in answers]

    assert await chosen() == [*timeouts, *refused, *elsewhere, late]
    assert await chosen(path="p", error_type="connection_error") == refused
    assert await chosen(path="q") == elsewhere
    assert await chosen(dead_reason="deadline") == [late]
    assert await chosen(step="b") == []
    assert (await s.engine.overview()).executions["failed"] == 6  # nothing was changed so far
    assert told(await redrive(s, error_type="timeout", dead_reason="exhausted")) == [
        (id_, "redriven") for id_ in timeouts
    ]
    assert (await s.engine.overview()).executions["failed"] == 4


@on_both_stores
async def test_many_are_redriven_in_batches_each_of_them_once(
    s: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "REDRIVE_BATCH", 4)
    await s.define(stage("a", attempts=1))
    ids = await fail_all(s, 10)
    amend, transactions = s.store.amend_executions, []

    async def counted(some: Any, *rest: Any, **options: Any) -> None:
        transactions.append(list(some))
        await amend(some, *rest, **options)

    monkeypatch.setattr(s.store, "amend_executions", counted)
    seen = []
    async for batch in s.another_engine().redrive():
        seen += told(batch)
        for job in await s.lease():  # they fail again while the redrive goes on
            await s.fail(job)
    assert seen == [(id_, "redriven") for id_ in ids]
    # The first batch is planned twice: this engine had not met the definition yet.
    assert transactions == [ids[:4], ids[:4], ids[4:8], ids[8:]]
    assert told(await redrive(s, list(reversed(ids)))) == [(id_, "redriven") for id_ in ids]


@on_both_stores
async def test_wrong_filters_and_names_are_refused(s: Scenario) -> None:
    with pytest.raises(InvalidInput, match="'odd' is not a dead reason") as refusal:
        await redrive(s, dead_reason="odd")
    assert "deadline" in refusal.value.guidance and "poisoned" in refusal.value.guidance
    for wrong in ({"path": "a\0"}, {"step": ""}, {"error_type": 7}, {"by": "a\nb"}):
        with pytest.raises(InvalidInput):
            await redrive(s, **wrong)
    with pytest.raises(InvalidInput, match="whole number"):
        await redrive(s, ["1"])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="rows"):
        await s.engine.failures(limit=0)


@on_both_stores
async def test_failures_are_looked_at_in_groups_and_pages(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    ids = await fail_all(s, 3)
    await fail_all(s, 1, "the file is corrupted")
    [group, other] = await s.engine.failure_groups()
    assert (group.executions, group.error_type, group.example) == (3, "connection_error", ids[-1])
    assert other.guidance == "Please re-upload the document."
    assert [g.executions for g in await s.engine.failure_groups(dead_reason="permanent")] == [1]
    first = await s.engine.failures(limit=2)
    second = await s.engine.failures(limit=3, cursor=first.next)
    assert [row.execution_id for row in first.items] == ids[:2]
    assert (len(second.items), second.next) == (2, None)
    await redrive(s, ids[:1])
    assert [g.executions for g in await s.engine.failure_groups(path="p")] == [2, 1]


@on_both_stores
async def test_a_redrive_by_pages_meets_everything_once_refused_ones_too(
    s: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "REDRIVE_BATCH", 2)
    await s.define(stage("a", attempts=1))
    broken = await fail_all(s, 2, "the file is corrupted")
    ids = await fail_all(s, 5)
    pages, cursor = [], None
    for _ in range(10):
        page = await s.engine.redrive_page(limit=3, cursor=cursor, path="p", by="ops")
        pages.append(told(page.items))
        for job in await s.lease():  # they fail again while the redrive goes on
            await s.fail(job)
        if (cursor := page.next) is None:
            break
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [answer for page in pages for answer in page] == [
        *((id_, "permanent_error") for id_ in broken), *((id_, "redriven") for id_ in ids),
    ]  # fmt: skip
    forced = await s.engine.redrive_page(limit=2, cursor=None, path="p", force=True, dry_run=True)
    assert told(forced.items) == [(id_, "redriven") for id_ in broken]
    assert (await s.engine.overview()).executions["failed"] == 7


@on_both_stores
async def test_those_that_are_named_are_redriven_by_pages_as_well(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    ids = await fail_all(s, 3)
    asked = [*reversed(ids), ids[0], 999, 2**70, -1]
    first = await s.engine.redrive_page(ids=asked, limit=2, cursor=None)
    # What can be no number of an execution has no place in the order of pages.
    assert told(first.items) == [
        (-1, "unknown_execution"), (ids[0], "redriven"), (ids[1], "redriven"), (2**70, "unknown_execution"),
    ]  # fmt: skip
    second = await s.engine.redrive_page(ids=asked, limit=2, cursor=first.next)
    assert told(second.items) == [(ids[2], "redriven"), (999, "unknown_execution")]
    third = await s.engine.redrive_page(ids=asked, limit=2, cursor=second.next)
    assert (third.items, third.next) == ([], None)


@on_both_stores
async def test_a_page_of_a_redrive_that_is_asked_for_wrongly_is_refused(s: Scenario) -> None:
    for wrong in ({"limit": 0}, {"cursor": "x"}, {"dead_reason": "odd"}, {"ids": ["1"]}, {"by": "a\nb"}):
        with pytest.raises(InvalidInput):
            await s.engine.redrive_page(**{"limit": 5, "cursor": None, **wrong})  # type: ignore[arg-type]
