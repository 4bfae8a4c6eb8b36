"""The timeouts of attempts, in the hands of a test: an attempt has timed out when the test says so."""

import asyncio
import time

import pytest

from holdfast.core.model import Outcome
from holdfast.worker.attempt import Attempt

WITHIN_SECONDS = 30.0


class Timeouts:
    """Give the step a timeout that it never reaches by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = Attempt._run

        async def noted(attempt: Attempt) -> Outcome:
            self._attempt, self._loop = attempt, asyncio.get_running_loop()
            return await run(attempt)

        monkeypatch.setattr(Attempt, "_run", noted)

    def expire(self) -> None:
        """Time out the attempt that began last. To be called in its own thread, and once this returns it is
        so."""

        def over() -> None:
            assert self._attempt._limit is not None
            self._attempt._limit.reschedule(self._loop.time())

        self._loop.call_soon_threadsafe(over)
        deadline = time.monotonic() + WITHIN_SECONDS
        while self._attempt._limit is None or not self._attempt._limit.expired():
            assert time.monotonic() < deadline, "the attempt did not time out"
            time.sleep(0.01)
