"""What people see: the view with its sentence, pages of executions and jobs, events from where one was."""

import asyncio

import pytest

from engine_scenario import START, Scenario, on_both_stores, stage
from holdfast.core.errors import InvalidInput, UnknownExecution
from holdfast.core.model import EventType, ExecutionStatus, Lane
from holdfast.engine import RetryRequest


@on_both_stores
async def test_the_summary_follows_the_life_of_an_execution(s: Scenario) -> None:
    await s.define(stage("parse", attempts=4))
    await s.staff()
    id_ = await s.submit()

    async def summary() -> str:
        return (await s.engine.view(id_)).summary

    said = [await summary()]
    for delay in (1, 2, 4):
        job = await s.lease_one()
        said.append(await summary())
        await s.fail(job)
        said.append(await summary())
        s.tick(delay)
    await s.complete(await s.lease_one())
    said.append(await summary())
    assert said == [
        "Waiting to run parse",
        *["Running parse", "Retrying (attempt 1/3)"],
        *["Running parse (attempt 2/4)", "Retrying (attempt 2/3)"],
        *["Running parse (attempt 3/4)", "Retrying (attempt 3/3)"],
        "Complete",
    ]


@on_both_stores
async def test_the_view_of_a_failed_execution_says_where_why_and_what_to_do(s: Scenario) -> None:
    await s.define(stage("parse"))
    id_ = await s.submit({"file": "x.pdf"})
    s.tick(2)
    await s.fail(await s.lease_one(), "the file is corrupted")
    view = await s.engine.view(id_)
    assert view.summary == (
        "Failed at parse: File appears to be invalid or corrupted. Please re-upload the document."
    )
    assert (view.stage, view.outputs, len(view.jobs)) == ("parse", {}, 1)
    assert view.execution.workload == {"file": "x.pdf"}
    assert (view.execution.created_at, view.execution.finished_at) == (START, START + 2)


@on_both_stores
async def test_an_unknown_execution_has_no_view_and_no_events(s: Scenario) -> None:
    for id_ in (4711, 0, -1, 2**70):
        with pytest.raises(UnknownExecution, match=f"no execution {id_}") as unknown:
            await s.engine.view(id_)
    assert "pruned" in unknown.value.guidance
    for id_ in (4711, 0, 2**70):
        assert await s.engine.events(id_) == []
        assert (await s.engine.queue(execution_id=id_)).items == []


@on_both_stores
async def test_an_id_that_is_no_number_is_refused_with_a_sentence(s: Scenario) -> None:
    engine = s.engine
    for wrong in ("1", None, 1.0, True):
        for ask in (engine.view, engine.events, engine.cancel):
            with pytest.raises(InvalidInput, match=f"is a whole number, not {wrong!r}"):
                await ask(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="is a whole number"):
            await engine.retry(wrong, RetryRequest())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="is a whole number, not 'x'"):
        await engine.queue(execution_id="x")


@on_both_stores
async def test_executions_come_newest_first_by_pages_and_filters(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    await s.define(stage("b"), path="other")
    ids = [await s.submit() for _ in range(4)]
    other = await s.submit(path="other")
    await s.fail(await s.lease_one())
    first = await s.engine.executions(limit=2)
    second = await s.engine.executions(limit=2, cursor=first.next)
    third = await s.engine.executions(limit=2, cursor=second.next)
    pages = [[item.id for item in page.items] for page in (first, second, third)]
    assert pages == [[other, ids[3]], [ids[2], ids[1]], [ids[0]]]
    assert third.next is None
    failed = await s.engine.executions(status="failed", path="p")  # type: ignore[arg-type]
    assert [item.id for item in failed.items] == [ids[0]]
    running = await s.engine.executions(status=ExecutionStatus.RUNNING, path="other")
    assert [item.id for item in running.items] == [other]


@on_both_stores
async def test_the_queue_comes_oldest_first_by_pages_and_filters(s: Scenario) -> None:
    await s.define(stage("a", attempts=1), stage("b"))
    ids = [await s.submit() for _ in range(3)]
    urgent = await s.submit(lane=Lane.MANUAL)
    later = await s.submit(delay_seconds=60)
    await s.fail(await s.lease_one())  # the urgent one
    done = await s.lease_one(worker="w9")
    await s.complete(done)
    await s.lease_one()

    async def found(**filters: object) -> list[str]:
        return [
            f"{job.execution_id} {job.step} {job.status}" for job in (await s.engine.queue(**filters)).items
        ]

    everything = await found()
    assert everything == [
        *[f"{ids[0]} a done", f"{ids[1]} a leased", f"{ids[2]} a queued"],
        *[f"{urgent} a dead", f"{later} a queued", f"{ids[0]} b queued"],
    ]
    assert await found(status="queued") == [everything[2], *everything[4:]]
    assert await found(lane="manual") == [everything[3]]
    assert await found(dead_reason="exhausted", status=None) == [everything[3]]
    assert await found(due_at=s.now) == [everything[2], everything[5]]
    assert await found(execution_id=ids[0]) == [everything[0], everything[5]]
    first = await s.engine.queue(limit=4)
    second = await s.engine.queue(limit=4, cursor=first.next)
    assert (len(first.items), len(second.items), second.next) == (4, 2, None)
    row = first.items[0]
    assert (row.worker_id, row.lane, row.rank, row.finished_at) == ("w9", Lane.BULK, 5, START)


@on_both_stores
async def test_wrong_pages_are_refused(s: Scenario) -> None:
    for limit in (0, -1, 1_001, "5", True, 2.0):
        for listing in (s.engine.executions, s.engine.queue):
            with pytest.raises(InvalidInput, match=f"1 to 1000 rows, not {limit!r}"):
                await listing(limit=limit)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="rows"):
            await s.engine.events(1, limit=limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"path .* cannot be printed"):
        await s.engine.executions(path="a\0")
    for cursor in (7, "", "x", "-1", "1.5", "9" * 30, str(2**63)):
        for listing in (s.engine.executions, s.engine.queue):
            with pytest.raises(InvalidInput, match="is not a cursor") as refusal:
                await listing(cursor=cursor)  # type: ignore[arg-type]
            assert "`next`" in refusal.value.guidance
    for field, kind in (("status", "status"), ("lane", "lane"), ("dead_reason", "dead reason")):
        with pytest.raises(InvalidInput, match=f"'odd' is not a {kind}"):
            await s.engine.queue(**{field: "odd"})
    with pytest.raises(InvalidInput, match="'odd' is not a status") as refusal:
        await s.engine.executions(status="odd")  # type: ignore[arg-type]
    assert refusal.value.guidance == "Allowed are: running, completed, failed, cancelled."


@on_both_stores
async def test_events_go_on_after_the_last_one_seen(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    await s.complete(await s.lease_one())
    everything = await s.events(id_)
    seen, last = [], None
    while page := await s.engine.events(id_, after=last, limit=2):
        seen += page
        last = page[-1].id
    assert seen == everything
    for wrong in ("nonsense", "", 7, "1." + "9" * 30):
        with pytest.raises(InvalidInput, match="is not an event id"):
            await s.engine.events(id_, after=wrong)  # type: ignore[arg-type]
    assert len({event.id for event in everything}) == len(everything) == 6
    assert everything[1].to_dict() == {
        "id": everything[1].id,
        "execution_id": id_,
        "at": START,
        "type": EventType.STEP_STARTED.value,
        "step": "a",
    }


@on_both_stores
async def test_one_execution_one_job_and_one_batch_are_found_by_their_numbers(s: Scenario) -> None:
    definition_id = await s.define(stage("a"))
    first, second = await s.submit(), await s.submit()
    batch, _ = await s.engine.batches.create("p")
    found = await s.engine.execution(second)
    assert found is not None and found.id == second
    job = await s.engine.job((await s.job(first)).queue_id)
    assert job is not None and (job.execution_id, job.definition_id) == (first, definition_id)
    row = await s.engine.batch(batch)
    assert row is not None and row.id == batch
    for ask in (s.engine.execution, s.engine.job, s.engine.batch):
        for unknown in (0, -1, 999, 2**63):
            assert await ask(unknown) is None
        with pytest.raises(InvalidInput, match="is a whole number"):
            await ask("1")  # type: ignore[arg-type]


@on_both_stores
async def test_the_engine_tells_the_time_and_wakes_whoever_waits_for_work(s: Scenario) -> None:
    await s.define(stage("a"))
    assert await s.engine.now() == START
    ticket = s.engine.work_ticket()
    await s.submit()
    await asyncio.wait_for(s.engine.wait_for_work(ticket, 600), 60)
