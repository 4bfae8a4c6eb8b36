"""The parts of the Python API through a server: batches, waiting, limits and pauses, the catalog."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.core.errors import InvalidInput, PayloadInvalid, UnknownExecution, UnknownPipeline
from playbook_files import CHAIN
from running import run
from served_stores import served

WITHIN = "60s"


@pytest.fixture
def address(sqlite_url: str) -> Iterator[str]:
    with served(sqlite_url) as url:
        yield url


def doubling(url: str) -> Holdfast:
    hf = Holdfast(url)

    @hf.step(retry=2)
    def double(ctx: Context) -> int:
        return int(2 * ctx.workload)

    hf.pipeline("doubles", [double])
    return hf


def test_a_batch_is_submitted_worked_on_and_waited_for(address: str) -> None:
    async def story() -> None:
        hf = doubling(address)
        async with hf, hf.working(poll_seconds=0.05):
            batch = await hf.batch("doubles", [1, 2, 3], key="k")
            again = await hf.batch("doubles", [1, 2, 3], key="k")
            assert again.id == batch.id
            view = await batch.wait(within=WITHIN)
            assert (view.items, view.executions["completed"]) == (3, 3)
            items = [item async for item in batch.items()]
            assert [item.status.value for item in items] == ["completed"] * 3

    run(story())


def test_a_stream_becomes_a_batch_and_can_be_cancelled(address: str) -> None:
    async def story() -> None:
        async with doubling(address) as hf:
            async with hf.batch("doubles", close=False) as batch:
                first = await batch.add(21)
                assert len(await batch.add_many(range(700))) == 700
            assert (await hf.status(first)).execution.workload == 21
            assert not (await batch.status()).is_over
            assert await batch.close() and not await batch.close()
            assert await batch.cancel(by="ann") == 701
            assert (await batch.wait(within=WITHIN)).executions["cancelled"] == 701

    run(story())


def test_an_execution_is_waited_for_by_its_row(address: str) -> None:
    async def story() -> None:
        hf = doubling(address)
        async with hf:
            execution = await hf.submit("doubles", 21)
            with pytest.raises(TimeoutError, match=f"Execution {execution.id} has not ended"):
                await execution.wait(within=0.2)
            async with hf.working(poll_seconds=0.05):
                assert (await execution.wait(within=WITHIN)).result == 42
            with pytest.raises(UnknownExecution):
                await hf.wait(777)

    run(story())


def test_limits_and_pauses_are_set_and_ended(address: str) -> None:
    async def story() -> None:
        async with doubling(address) as hf:
            view = await hf.set_limit("printer", 3, by="ann")
            assert (view.max_concurrency, view.set_by) == (3, "ann")
            assert [limit.name for limit in await hf.limits()] == ["printer"]
            assert await hf.remove_limit("printer") and not await hf.remove_limit("printer")
            made = await hf.pause(step="doubles/double", by="ann", reason="it is broken")
            assert await hf.pauses() == [made] and made.reason == "it is broken"
            assert await hf.resume(step="doubles/double") == made
            assert await hf.resume(step="doubles/double") is None

    run(story())


def test_playbooks_are_added_listed_and_compared(address: str) -> None:
    async def story() -> None:
        async with Holdfast(address) as hf:
            added = await hf.add_playbook(CHAIN)
            changed = await hf.add_playbook(CHAIN.replace("Hello", "Goodbye").replace("hello", "goodbye"))
            assert (added.entry.version, added.change.value) == (1, "new")
            assert [entry.path for entry in await hf.playbooks()] == ["tests/flow"]
            assert (await hf.playbook_text("tests/flow", 1)).text == CHAIN
            versions = [entry.version for entry in await hf.playbook_versions("tests/flow")]
            assert versions == list(range(changed.entry.version, 0, -1))
            with pytest.raises(UnknownPipeline, match="The catalog has no"):
                await hf.playbook_text("../flow")

    run(story())


@pytest.mark.parametrize("wrong", [{1, 2}, float("nan"), {"a": object()}, {1: 2}, "a\0b"])
def test_a_workload_that_is_no_json_is_refused_before_it_is_sent(address: str, wrong: Any) -> None:
    async def story() -> None:
        async with doubling(address) as hf:
            with pytest.raises(PayloadInvalid, match="The workload"):
                await hf.submit("doubles", wrong)
            with pytest.raises(PayloadInvalid, match="Item 2: The workload"):
                await hf.submit_many("doubles", [1, wrong])
            with pytest.raises(PayloadInvalid, match="Item 2: The workload"):
                await hf.batch("doubles", [1, wrong])
            assert (await hf.executions()).items == []

    run(story())


def test_more_than_one_request_can_carry_is_refused_with_what_to_do(address: str) -> None:
    async def story() -> None:
        async with doubling(address) as hf:
            with pytest.raises(InvalidInput, match="5,001 executions are too many") as refused:
                await hf.submit_many("doubles", range(5_001))
            assert "batch" in refused.value.guidance
            assert len(await hf.submit_many("doubles", range(5_000))) == 5_000

    run(story())
