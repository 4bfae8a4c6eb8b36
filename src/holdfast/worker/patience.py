"""How a worker waits: for what is away, ever longer and not all at once; and for what has a deadline."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable
from typing import Any

from holdfast.core.errors import HoldfastError

log = logging.getLogger("holdfast.worker")

AWAY_SECONDS_MIN = 0.1
AWAY_SECONDS_MAX = 10.0


async def away(what: str, seconds: float, error: Exception) -> None:
    """Tell why something waits, and wait for half of these seconds up to all of them: workers that were cut
    off together do not come back together. An error of ours is a sentence; any other is a bug, told whole."""
    seconds = random.uniform(seconds / 2, seconds)
    if isinstance(error, HoldfastError):
        log.warning("%s waits %.1f s. %s %s", what, seconds, error, error.guidance)
    else:
        log.exception("%s failed and is tried again in %.1f s.", what, seconds)
    await asyncio.sleep(seconds)


async def within(deadline: float, awaitable: Awaitable[Any]) -> bool:
    """Whether it ended before the deadline; it is cancelled otherwise."""
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait([task], timeout=max(deadline - time.monotonic(), 0.0))
    finally:
        ended = task.done()
        task.cancel()
    return ended
