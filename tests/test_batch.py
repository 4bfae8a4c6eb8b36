"""Batches in Python: in one call or streamed, repeated after a crash, waited for, rehearsed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from holdfast import Context, Holdfast, IdempotencyConflict, InvalidInput, PermanentError, Retry, UnknownName
from holdfast.batch import ITEMS_PER_TRANSACTION
from holdfast.core.errors import BatchClosed, PayloadInvalid, StoreUnavailable
from holdfast.testing import AsyncRehearsal, Rehearsal
from running import run

MANY = ITEMS_PER_TRANSACTION + 7


def reports(url: str) -> Holdfast:
    """Request, then, a quarter of an hour after all requests have ended, download. Items below 0 cannot be
    requested; what is not ready at the first download is at the second."""
    hf = Holdfast(url)

    @hf.step(operation="request", retry=2)
    async def request(ctx: Context) -> str:
        if ctx.workload < 0:
            raise PermanentError("no such report")
        return f"ticket {ctx.workload}"

    @hf.step(
        operation="download",
        retry=Retry(delays=[60, 180], wave=True),
        barrier={"after": "request", "delay": "15m"},
    )
    async def download(ctx: Context) -> str:
        if ctx.attempt == 1 and ctx.workload % 2:
            raise TimeoutError("not ready")
        return str(ctx.outputs["request"])

    hf.pipeline("reports", [request, download])
    return hf


def upto(end: int) -> Iterator[int]:
    yield from range(end)


async def slowly_upto(end: int) -> AsyncIterator[int]:
    for n in range(end):
        yield n


# submitting


@pytest.mark.parametrize("source", [lambda n: list(range(n)), range, upto, slowly_upto])
def test_a_batch_is_submitted_in_one_call_whatever_its_items_come_from(store_url: str, source: Any) -> None:
    async def story() -> None:
        async with reports(store_url) as hf:
            batch = await hf.batch("reports", source(MANY))
            view = await batch.status()
            assert (view.items, view.status, view.lane) == (MANY, "running", "bulk")
            assert [item.workload async for item in batch.items()] == list(range(MANY))
            with pytest.raises(BatchClosed, match=f"Batch {batch.id} is closed"):
                await batch.add(1)

    run(story())


def test_a_batch_is_streamed_in_a_block_and_closed_at_its_end(store_url: str) -> None:
    async def story() -> None:
        async with reports(store_url) as hf:
            async with hf.batch("reports", [0], lane="manual") as batch:
                ids = [await batch.add(1), *await batch.add_many(upto(3)), *await batch.add_many([])]
                assert (await batch.status()).status == "open"
            view = await batch.status()
            assert (view.items, view.status, view.lane, view.mode) == (5, "running", "manual", "manual")
            assert [item.id async for item in batch.items()][1:] == ids
            assert await batch.close() is False

    run(story())


def test_an_error_in_the_block_leaves_the_batch_open_and_says_so(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with reports(store_url) as hf:
            with pytest.raises(ZeroDivisionError):
                async with hf.batch("reports") as batch:
                    await batch.add(1)
                    raise ZeroDivisionError
            [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
            assert f"Batch {batch.id} was left open" in warning.getMessage()
            assert (await batch.status()).status == "open"
            again = hf.batch_by_id(batch.id)
            await again.add(2)
            assert await again.close() is True
            assert (await again.status()).items == 2

    run(story())


def test_with_a_key_the_call_is_repeated_after_a_crash_and_adds_the_rest(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks_off() -> Iterator[int]:
        yield from range(MANY - 1)
        raise ConnectionError("the source is gone")

    async def story() -> None:
        async with reports(store_url) as hf:
            with pytest.raises(ConnectionError):
                await hf.batch("reports", breaks_off(), key="june")
            begun = await hf.batch("reports", key="june")
            assert f"Batch {begun.id} was left open" in caplog.text
            view = await begun.status()
            assert (view.items, view.status) == (ITEMS_PER_TRANSACTION, "open")
            whole = await hf.batch("reports", range(MANY), key="june")
            assert whole.id == begun.id
            view = await whole.status()
            assert (view.items, view.status, view.idempotency_key) == (MANY, "running", "june")
            once_more = await hf.batch("reports", range(MANY), key="june")
            assert (await once_more.status()).items == MANY
            with pytest.raises(IdempotencyConflict):
                await hf.batch("reports", [99], key="june")
            with pytest.raises(BatchClosed):
                await hf.batch("reports", range(MANY + 1), key="june")
            other = await hf.batch("reports", range(3), key="july")
            assert other.id != whole.id and (await other.status()).items == 3

    run(story())


def test_keys_of_single_items_hold_within_their_batch(store_url: str) -> None:
    async def story() -> None:
        async with reports(store_url) as hf:
            async with hf.batch("reports") as batch:
                first = await batch.add(7, key="a")
                assert await batch.add(7, key="a") == first
            other = await hf.batch("reports")
            assert await other.add(7, key="a") != first

    run(story())


def failing_once(hf: Holdfast, at_call: int) -> Any:
    """Lets one of the calls that add to a batch fail, as a database does that is away for a moment."""

    async def arrange() -> None:
        store = (await hf.engine()).store
        add, calls = store.add_to_batch, []

        async def add_or_fail(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == at_call:
                raise StoreUnavailable("away for a moment")
            return await add(*arguments)

        store.add_to_batch = add_or_fail  # type: ignore[method-assign]

    return arrange()


def test_with_a_key_the_same_batch_can_be_awaited_again_after_an_error(store_url: str) -> None:
    async def story() -> None:
        async with reports(store_url) as hf:
            await failing_once(hf, 2)
            batch = hf.batch("reports", list(range(MANY)), key="june")
            with pytest.raises(StoreUnavailable):
                await batch
            await batch
            view = await batch.status()
            assert (view.items, view.status) == (MANY, "running")

    run(story())


@pytest.mark.parametrize(
    ("key", "source"),
    [(None, lambda: list(range(MANY))), ("june", lambda: upto(MANY))],
    ids=["no key", "once"],
)
def test_what_cannot_be_filled_again_says_so_instead_of_losing_the_rest(
    sqlite_url: str, key: str | None, source: Any
) -> None:
    async def story() -> None:
        async with reports(sqlite_url) as hf:
            await failing_once(hf, 2)
            batch = hf.batch("reports", source(), key=key)
            with pytest.raises(StoreUnavailable):
                await batch
            with pytest.raises(InvalidInput, match=f"Batch {batch.id} was filled in part"):
                await batch
            assert (await batch.status()).status == "open"

    run(story())


def test_an_item_that_could_not_be_added_keeps_its_place(sqlite_url: str) -> None:
    async def story() -> None:
        async with reports(sqlite_url) as hf:
            await failing_once(hf, 2)
            async with hf.batch("reports", key="june") as batch:
                first = await batch.add("a")
                with pytest.raises(StoreUnavailable):
                    await batch.add("b")
                second = await batch.add("b")
            again = await hf.batch("reports", ["a", "b"], key="june")
            assert [item.id async for item in again.items()] == [first, second]

    run(story())


def test_a_block_leaves_a_batch_open_where_that_is_asked_for(sqlite_url: str) -> None:
    async def story() -> None:
        async with reports(sqlite_url) as hf:
            async with hf.batch("reports", close=False) as batch:
                await batch.add(1)
            assert (await batch.status()).status == "open"
            async with hf.batch_by_id(batch.id) as again:
                await again.add(2)
            view = await again.status()
            assert (view.items, view.status) == (2, "running")

    run(story())


def test_a_batch_that_is_closed_is_not_said_to_be_left_open(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with reports(sqlite_url) as hf:
            await hf.batch("reports", [1, 2], key="june")
            with pytest.raises(IdempotencyConflict):
                await hf.batch("reports", [1, 3], key="june")
            assert "left open" not in caplog.text

    run(story())


def test_the_item_that_cannot_be_accepted_is_named(sqlite_url: str) -> None:
    async def story() -> None:
        async with reports(sqlite_url) as hf:
            items: list[Any] = [*range(MANY - 1), {"a", "set"}]
            with pytest.raises(PayloadInvalid, match=rf"^Item {MANY}: "):
                await hf.batch("reports", items)
            with pytest.raises(PayloadInvalid, match=r"^Item 2: "):
                await hf.submit_many("reports", [1, {2}])
            with pytest.raises(PayloadInvalid, match=r"^The workload"):
                await hf.submit("reports", {2})

    run(story())


def test_keys_that_look_like_those_of_items_are_refused(sqlite_url: str) -> None:
    async def story() -> None:
        async with reports(sqlite_url) as hf:
            told = "begins as those of a batch's items or of child executions do"
            with pytest.raises(InvalidInput, match=told):
                await hf.submit("reports", 1, idempotency_key="batch 7: a")
            async with hf.batch("reports", key="june") as batch:
                with pytest.raises(InvalidInput, match="what an item's place is called"):
                    await batch.add(1, key="item 1")

    run(story())


def test_a_key_is_of_one_lane_and_a_repeat_uses_up_no_number(store_url: str) -> None:
    async def story() -> None:
        async with reports(store_url) as hf:
            first = await hf.batch("reports", [1], key="june")
            with pytest.raises(IdempotencyConflict, match="whose lane is bulk"):
                await hf.batch("reports", [1], key="june", lane="manual")
            again = await hf.batch("reports", [1], key="june")
            other = await hf.batch("reports", [1])
            assert (again.id, other.id) == (first.id, first.id + 1)

    run(story())


def test_a_batch_that_nobody_awaits_is_told(sqlite_url: str) -> None:
    hf = reports(sqlite_url)
    with pytest.warns(RuntimeWarning, match="never awaited"):
        hf.batch("reports", [1]).__del__()
    hf.batch("reports").__del__()


def test_what_cannot_be_is_refused_with_what_may(sqlite_url: str) -> None:
    async def story() -> None:
        async with reports(sqlite_url) as hf:
            for items in ("text", {"a": 1}, 7, b"bytes"):
                with pytest.raises(InvalidInput, match="cannot be a"):
                    hf.batch("reports", items)  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match="does not exist yet"):
                assert hf.batch("reports").id
            with pytest.raises(InvalidInput, match="deadline"):
                hf.batch("reports", deadline="soon")
            with pytest.raises(UnknownName, match="no pipeline"):
                await hf.batch("nothing", [1])
            with pytest.raises(UnknownName, match="no batch 7"):
                await hf.batch_by_id(7).status()
            with pytest.raises(InvalidInput, match="whole number"):
                await hf.batch_by_id("7").status()  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match="cannot be a str"):
                await (await hf.batch("reports")).add_many("items")
            with pytest.raises(InvalidInput, match="lane"):
                await hf.batch("reports", [1], lane="express")

    run(story())


# looking and ending


def test_a_batch_is_waited_for_while_workers_run_it(store_url: str) -> None:
    async def story() -> None:
        hf = Holdfast(store_url)

        async def double(ctx: Context) -> int:
            return int(ctx.workload) * 2

        hf.pipeline("double", [double])
        async with hf, hf.working():
            batch = await hf.batch("double", range(20))
            view = await batch.wait("60s")
            assert (view.status, view.executions["completed"], view.ends_at) == ("finished", 20, None)
            async with hf.batch("double") as open_batch:
                with pytest.raises(TimeoutError, match=f"Batch {open_batch.id} has not ended within 0.01 s"):
                    await open_batch.wait(0.01)

    run(story(), timeout=120)


def test_a_batch_is_cancelled_with_all_that_runs(store_url: str) -> None:
    async def story() -> None:
        async with reports(store_url) as hf:
            batch = await hf.batch("reports", range(5), close=False)
            assert await batch.cancel(by="ann") == 5
            view = await batch.wait()
            assert (view.status, view.cancelled_by) == ("cancelled", "ann")
            page = await batch.page(status="cancelled", limit=2)
            assert len(page.items) == 2 and page.next is not None
            assert [item async for item in batch.items(status="running")] == []

    run(story())


# rehearsing


def test_a_rehearsal_passes_a_barrier_of_a_quarter_of_an_hour_at_once(sqlite_url: str) -> None:
    hf = reports(sqlite_url)
    with Rehearsal(hf) as rehearsal:

        async def story() -> Any:
            batch = await hf.batch("reports", [1, 2, 3, -4])
            view = await batch.wait()
            return view, [item async for item in batch.items()]

        view, items = rehearsal.do(story())
        assert view.executions == {"running": 0, "completed": 3, "failed": 1, "cancelled": 0}
        assert view.barrier.scheduled_for == view.barrier.opened_at + 900
        assert view.counts["download"]["skipped"] == 1
        assert items[3].tracking["download"]["error"] == "Request failed; download skipped"
        assert [item.tracking["download"]["attempts"] for item in items] == [2, 1, 2, 0]
        first, second = (
            rehearsal.look(items[place].id).view.execution.finished_at or 0.0 for place in (0, 2)
        )
        assert first == second == view.barrier.scheduled_for + 60  # a wave, a minute later


def test_a_rehearsal_in_a_test_that_is_async_waits_for_batches_too(store_url: str) -> None:
    async def story() -> None:
        hf = reports(store_url)
        async with AsyncRehearsal(hf) as rehearsal:
            rehearsal.fail("request", TimeoutError("portal"), times=2)
            async with hf.batch("reports") as batch:
                await batch.add_many([2, 4])
            view = await batch.wait()
            assert view.executions["completed"] + view.executions["failed"] == 2

    run(story())


def test_a_rehearsal_takes_a_batch_as_it_is(sqlite_url: str) -> None:
    hf = reports(sqlite_url)
    with Rehearsal(hf) as rehearsal:
        batch = rehearsal.do(hf.batch("reports", [2, 4]))
        assert rehearsal.do(batch.wait()).executions["completed"] == 2
