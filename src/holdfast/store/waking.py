"""The in-process half of waking: a counter that moves whenever work may have become ready."""

from __future__ import annotations

import asyncio


class WorkSignal:
    """A waiter that took its ticket before looking for work cannot miss work that came afterwards."""

    def __init__(self) -> None:
        self._count = 0
        self._moved: asyncio.Future[None] | None = None

    def ticket(self) -> int:
        return self._count

    def move(self) -> None:
        self._count += 1
        if self._moved is not None:
            self._moved.set_result(None)
            self._moved = None

    async def wait(self, ticket: int, seconds: float) -> bool:
        """Whether the signal has moved since the ticket was taken."""
        if self._count == ticket:
            if self._moved is None:
                self._moved = asyncio.get_running_loop().create_future()
            # A timeout that raises nothing: most waits end with one.
            await asyncio.wait([self._moved], timeout=seconds)
        return self._count != ticket
