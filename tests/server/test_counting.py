"""Counts that are told anew where that is quick, and from a moment ago where it is not."""

import asyncio
from collections.abc import Callable

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.server import counting
from holdfast.server.counting import REST_FACTOR, Counted
from running import eventually, run


class Slow:
    """A count that takes as many seconds as it is told to, in the time of the test."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.takes = 0.0
        self.calls = 0
        self.free = asyncio.Event()
        self.free.set()
        self.error: Exception | None = None
        self.counted: Counted[int] = Counted(self.count, lambda: self.now)

    async def count(self) -> int:
        self.calls += 1
        number = self.calls
        await self.free.wait()
        self.now += self.takes
        if self.error is not None:
            raise self.error
        return number

    async def settled(self) -> None:
        await eventually(lambda: self.counted._counting is None)


def story(play: Callable[[Slow], object]) -> None:
    async def main() -> None:
        slow = Slow()
        try:
            await play(slow)  # type: ignore[misc]
        finally:
            slow.free.set()
            await slow.counted.close()

    run(main())


def test_a_quick_count_is_made_for_each_who_asks() -> None:
    async def play(slow: Slow) -> None:
        assert [await slow.counted.get() for _ in range(3)] == [(1, 0.0), (2, 0.0), (3, 0.0)]

    story(play)


def test_a_slow_one_is_told_with_its_age_and_renewed_beside_when_it_has_rested() -> None:
    async def play(slow: Slow) -> None:
        slow.takes = 2.0
        assert await slow.counted.get() == (1, 0.0)
        slow.now += 1.0
        assert await slow.counted.get() == (1, 3.0)
        assert slow.calls == 1, "it rests"
        slow.now += 2.0 * REST_FACTOR
        slow.free.clear()
        for _ in range(3):
            assert await slow.counted.get() == (1, 3.0 + 2.0 * REST_FACTOR)
            await asyncio.sleep(0)
        assert slow.calls == 2, "one at a time"
        slow.free.set()
        await slow.settled()
        assert await slow.counted.get() == (2, 2.0)

    story(play)


def test_all_who_ask_for_the_first_count_share_it_and_may_give_up() -> None:
    async def play(slow: Slow) -> None:
        slow.free.clear()
        asking = [asyncio.create_task(slow.counted.get()) for _ in range(3)]
        await eventually(lambda: slow.calls)
        asking[0].cancel()
        slow.free.set()
        assert await asyncio.gather(*asking[1:]) == [(1, 0.0), (1, 0.0)]
        assert slow.calls == 1

    story(play)


def test_one_that_was_quick_and_is_not_any_more_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "PATIENCE_SECONDS", 0.01)

    async def play(slow: Slow) -> None:
        assert await slow.counted.get() == (1, 0.0)
        slow.free.clear()
        slow.now += 5.0
        assert await slow.counted.get() == (1, 5.0)
        slow.takes = 9.0
        slow.free.set()
        await slow.settled()
        assert await slow.counted.get() == (2, 9.0)

    story(play)


def test_one_that_is_quick_again_is_made_for_each_again() -> None:
    async def play(slow: Slow) -> None:
        slow.takes = 1.0
        await slow.counted.get()
        slow.takes = 0.0
        slow.now += 1.0 * REST_FACTOR + 1.0
        await slow.counted.get()
        await slow.settled()
        assert [await slow.counted.get() for _ in range(2)] == [(3, 0.0), (4, 0.0)]

    story(play)


def test_what_cannot_be_counted_is_told_and_tried_again() -> None:
    async def play(slow: Slow) -> None:
        slow.error = StoreUnavailable("away")
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await slow.counted.get()
        slow.error = None
        assert await slow.counted.get() == (3, 0.0)

    story(play)


def test_a_slow_one_that_fails_beside_leaves_the_last_one_which_grows_old() -> None:
    async def play(slow: Slow) -> None:
        slow.takes = 1.0
        await slow.counted.get()
        slow.error = StoreUnavailable("away")
        slow.now += 100.0
        assert await slow.counted.get() == (1, 101.0)
        await slow.settled()
        assert (await slow.counted.get())[0] == 1

    story(play)
