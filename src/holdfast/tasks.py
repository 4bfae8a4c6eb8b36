"""Ending tasks of our own.

One cancellation need not be enough: a driver that is cut off may tell of a broken connection instead, and
whoever tries again after errors goes on.
"""

from __future__ import annotations

import asyncio
from typing import Any

# Time for what a task does on its way out, before it is told once more.
CANCEL_AGAIN_SECONDS = 5.0


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them until they have ended, however they end."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_SECONDS)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at, so that nobody warns
