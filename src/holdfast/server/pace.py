"""How much of the event loop's time a part may take: an eighth. The rest is for the server's work."""

from __future__ import annotations

import asyncio
import time

# After work that took so long, so many times as long a pause.
PAUSE_FOR_WORK = 7.0
PAUSE_SECONDS_MAX = 2.0


class Pace:
    """Whoever works under it waits before, and tells afterwards how long it kept the event loop."""

    def __init__(self) -> None:
        self._free_at = float("-inf")

    async def wait(self) -> None:
        if (seconds := self._free_at - time.monotonic()) > 0:
            await asyncio.sleep(seconds)

    def worked(self, seconds: float) -> None:
        now = time.monotonic()
        self._free_at = min(max(self._free_at, now) + seconds * PAUSE_FOR_WORK, now + PAUSE_SECONDS_MAX)

    def rest(self, seconds: float) -> None:
        """At least so long, however little was done."""
        self._free_at = max(self._free_at, time.monotonic() + seconds)
