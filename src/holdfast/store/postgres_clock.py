"""PostgreSQL's clock, followed by this machine's monotonic one.

No change of the local wall clock can move it. It is compared with the server's every few seconds, aside: what
is under way does not wait for the answer. Only who has not asked for long waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from holdfast.core.errors import StoreError
from holdfast.tasks import end_tasks

SYNC_SECONDS = 5.0
# Whoever was held up between the question and the answer asks again, a few times.
QUICK_ANSWER_SECONDS = 0.005
ANSWERS_MAX = 5
# A server's clock that was set anew is followed after this time at the latest.
STALE_SECONDS = 30.0
# Seconds a second: how far two clocks part at most while one of them is slewed.
DRIFT_MAX = 0.0005


class Lead(NamedTuple):
    """How far the server's clock is ahead of the monotonic one, give or take `error`."""

    seconds: float
    error: float


class ServerClock:
    """`compare` asks the server. An answer that took long says less than a good one of some seconds ago, and
    replaces it only where both cannot be true: then the server's clock was set anew."""

    def __init__(self, compare: Callable[[], Awaitable[Lead]]) -> None:
        self._compare = compare
        self._comparing: asyncio.Task[None] | None = None
        self._error = float("inf")
        self._measured_at = 0.0
        self.offset = 0.0
        self.compared_at = float("-inf")

    async def now(self) -> float:
        age = time.monotonic() - self.compared_at
        if age > STALE_SECONDS:
            await self._synchronise()
        elif age > SYNC_SECONDS and (self._comparing is None or self._comparing.done()):
            self._comparing = asyncio.create_task(self._synchronise_aside())
        return self.offset + time.monotonic()

    async def close(self) -> None:
        if self._comparing is not None:
            await end_tasks(self._comparing)
            self._comparing = None

    async def _synchronise_aside(self) -> None:
        # A store that is away tells so to whoever wants something of it.
        with contextlib.suppress(StoreError):
            await self._synchronise()

    async def _synchronise(self) -> None:
        lead = await self._compare()
        self.compared_at = time.monotonic()
        error = self._error + DRIFT_MAX * (self.compared_at - self._measured_at)
        if lead.error <= error or abs(lead.seconds - self.offset) > lead.error + error:
            self.offset, self._error = lead
            self._measured_at = self.compared_at


async def lead_of(ask: Callable[[], Awaitable[float]]) -> Lead:
    """The quickest answer counts: the truth is within half the time that it took."""
    answers: list[tuple[float, float]] = []
    while len(answers) < ANSWERS_MAX:
        before = time.monotonic()
        told = await ask()
        after = time.monotonic()
        answers.append((after - before, told - (before + after) / 2))
        if after - before < QUICK_ANSWER_SECONDS:
            break
    journey, seconds = min(answers)
    return Lead(seconds, journey / 2)
