"""The numbers that a database gives to executions, jobs, batches and rows of events.

They go out into the world: into file names, keys of requests, links, places in the feed of events. None of
them may mean something else later. A database that was put back from a backup does not know which it has
given out since; so it leaves out far more than there can have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# More than come together in three weeks of 5,000 a second, and few enough to be done 900,000 times before a
# number is too large for JavaScript.
NUMBERS_LEFT_OUT = 10_000_000_000


class Numbering:
    async def _change(self, query: str, *bindings: Any) -> list[Any]:
        """One statement in a transaction of its own, and the rows it gives back."""
        raise NotImplementedError

    async def _rows(self, query: str, *values: object) -> Sequence[Sequence[Any]]:
        raise NotImplementedError

    async def leave_out_numbers(self, count: int) -> None:
        await self._change("leave_out_numbers", count)

    async def highest_event_row(self) -> int:
        highest: int = (await self._rows("highest_event_row"))[0][0]
        return highest
