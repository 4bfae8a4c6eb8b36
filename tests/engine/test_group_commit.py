"""Callers that share a transaction: who goes with whom, and what one caller's trouble means for others."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.engine.group_commit import CALLERS_DIVIDED_MIN, ITEMS_PER_FLUSH, GroupCommit
from running import run


class Writer:
    """A flush that answers each item with ten times its value, once its gate is open."""

    def __init__(
        self, refuse: Callable[[list[int]], BaseException | None] = lambda items: None, *, at_once: int = 1
    ) -> None:
        self.flushes: list[list[int]] = []
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self._refuse = refuse
        self.group: GroupCommit[int, int] = GroupCommit(self.flush, at_once=at_once)

    async def flush(self, items: list[int]) -> list[int]:
        self.flushes.append(items)
        self.entered.set()
        await self.gate.wait()
        if error := self._refuse(items):
            raise error
        return [item * 10 for item in items]

    def start(self, *items: int) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.group.commit(items))  # type: ignore[arg-type]


async def settled(*tasks: "asyncio.Task[Any]") -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


def story(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def played() -> None:
        run(test())

    played.__name__, played.__doc__ = test.__name__, test.__doc__
    return played


@story
async def test_who_comes_while_nothing_runs_goes_at_once() -> None:
    writer = Writer()
    assert list(await writer.group.commit([1, 2])) == [10, 20]
    assert list(await writer.group.commit([3])) == [30]
    assert writer.flushes == [[1, 2], [3]]


@story
async def test_who_comes_while_a_transaction_runs_shares_the_next_one() -> None:
    writer = Writer()
    writer.gate.clear()
    first = writer.start(1)
    await writer.entered.wait()
    others = [writer.start(2, 3), writer.start(4), writer.start()]
    await asyncio.sleep(0)
    writer.gate.set()
    assert await settled(first, *others) == [[10], [20, 30], [40], []]
    assert writer.flushes == [[1], [2, 3, 4]]


@story
async def test_a_transaction_has_a_bounded_number_of_items_unless_one_caller_brings_more() -> None:
    writer = Writer()
    writer.gate.clear()
    first = writer.start(0)
    await writer.entered.wait()
    others = [writer.start(*range(ITEMS_PER_FLUSH - 1)), writer.start(1), writer.start(2)]
    large = writer.start(*range(ITEMS_PER_FLUSH + 5))
    await asyncio.sleep(0)
    writer.gate.set()
    await settled(first, *others, large)
    sizes = [len(items) for items in writer.flushes]
    assert sizes == [1, ITEMS_PER_FLUSH, 1, ITEMS_PER_FLUSH + 5]


@story
async def test_a_store_error_goes_to_all_callers_and_nothing_is_tried_again() -> None:
    writer = Writer(lambda items: StoreUnavailable("gone") if 2 in items else None)
    writer.gate.clear()
    first = writer.start(1)
    await writer.entered.wait()
    others = [writer.start(2), writer.start(3)]
    await asyncio.sleep(0)
    writer.gate.set()
    answers = await settled(first, *others)
    assert answers[0] == [10]
    assert [type(answer) for answer in answers[1:]] == [StoreUnavailable] * 2
    assert writer.flushes == [[1], [2, 3]]
    assert list(await writer.group.commit([4])) == [40]


@story
async def test_a_refusal_is_told_to_the_caller_it_belongs_to() -> None:
    writer = Writer(lambda items: ValueError("bad") if 3 in items else None)
    writer.gate.clear()
    first = writer.start(1)
    await writer.entered.wait()
    others = [writer.start(2), writer.start(3), writer.start(4, 5)]
    await asyncio.sleep(0)
    writer.gate.set()
    answers = await settled(first, *others)
    assert [answers[index] for index in (0, 1, 3)] == [[10], [20], [40, 50]]
    assert isinstance(answers[2], ValueError)
    assert writer.flushes == [[1], [2, 3, 4, 5], [2], [3], [4, 5]]


@story
async def test_a_cancelled_caller_does_not_lose_its_items_or_disturb_others() -> None:
    writer = Writer()
    writer.gate.clear()
    running = writer.start(1)
    await writer.entered.wait()
    waiting, other = writer.start(2), writer.start(3)
    await asyncio.sleep(0)
    running.cancel()
    waiting.cancel()
    cancelled = await settled(running, waiting)
    writer.gate.set()
    assert await settled(other) == [[30]]
    assert [type(answer) for answer in cancelled] == [asyncio.CancelledError] * 2
    assert writer.flushes == [[1], [2, 3]]


@story
async def test_a_cancelled_caller_is_not_told_of_a_later_failure() -> None:
    writer = Writer(lambda items: StoreUnavailable("gone"))
    writer.gate.clear()
    caller = writer.start(1)
    await writer.entered.wait()
    other = writer.start(2)
    caller.cancel()
    await settled(caller)
    writer.gate.set()
    with pytest.raises(StoreUnavailable):
        await other


@story
async def test_many_callers_are_divided_where_two_transactions_can_be_written_at_once() -> None:
    writer = Writer(at_once=2)
    writer.gate.clear()
    callers = [writer.start(number) for number in range(CALLERS_DIVIDED_MIN + 1)]
    await writer.entered.wait()
    await asyncio.sleep(0)
    half = CALLERS_DIVIDED_MIN // 2 + 1
    assert [len(items) for items in writer.flushes] == [half, half - 1]
    late = [writer.start(100 + number) for number in range(3)]
    await asyncio.sleep(0)
    assert len(writer.flushes) == 2
    writer.gate.set()
    answers = await settled(*callers, *late)
    assert answers == [[number * 10] for number in [*range(CALLERS_DIVIDED_MIN + 1), 100, 101, 102]]
    assert writer.flushes[2:] == [[100, 101, 102]]


@story
async def test_few_callers_share_one_transaction_though_there_could_be_two() -> None:
    writer = Writer(at_once=2)
    callers = [writer.start(number) for number in range(CALLERS_DIVIDED_MIN - 1)]
    await settled(*callers)
    assert [len(items) for items in writer.flushes] == [CALLERS_DIVIDED_MIN - 1]
    assert list(await writer.group.commit([1])) == [10]  # and the flushers have ended in order


@story
async def test_a_flusher_that_was_cancelled_before_it_began_is_followed_by_another() -> None:
    writer = Writer()
    lost = writer.start(1)
    await asyncio.sleep(0)
    (flusher,) = writer.group._flushers
    flusher.cancel()
    await settled(flusher)
    assert list(await writer.group.commit([2])) == [20]
    assert await settled(lost) == [[10]]
