"""Waking, inside a process and, for SQLite, between processes.

Inside: a counter that moves whenever work may have become ready. Between: the log that every commit writes.
Who has something to tell gives it a new time after the commit, and whoever waits looks at that time, which is
one call of the system and no use of the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

# Where the log's time says nothing (two commits within one tick of the system's clock), it is taken to have
# moved after so many looks.
LOOKS_WITHOUT_A_MOVE_MAX = 10


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


class LogWatch:
    """Whether a log has been written to since the last look. It is never opened here: to close a file of
    SQLite's gives up the locks on it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._seen: tuple[int, int] | None = None
        self._looks = 0

    def touch(self) -> None:
        """Tell the others that a commit can be seen now: it was written to the log a moment before."""
        now = time.time_ns()
        with contextlib.suppress(OSError):
            os.utime(self._log, ns=(now, now))

    def has_moved(self) -> bool:
        try:
            found = os.stat(self._log)
        except OSError:
            return True
        state = (found.st_mtime_ns, found.st_size)
        self._looks += 1
        if state == self._seen and self._looks < LOOKS_WITHOUT_A_MOVE_MAX:
            return False
        self._seen, self._looks = state, 0
        return True
