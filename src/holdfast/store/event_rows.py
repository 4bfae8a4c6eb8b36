"""The rows of events as the live feed reads them: across executions, in the order of their ids.

Where several transactions write at once an id is drawn before its commit, so a row may become visible after
one with a higher id. What was passed over so is a gap; `open_transactions` tells how long one may still be
filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class EventRow(NamedTuple):
    """What one transaction wrote for one execution: `body` is a JSON list of its events."""

    id: int
    execution_id: int
    path: str
    at: float
    body: str


class BegunAttempt(NamedTuple):
    """An attempt that has begun and not ended: it is in no row yet, and `body` tells it as one would."""

    execution_id: int
    path: str
    at: float
    body: str


class EventGap(NamedTuple):
    """No row is to be seen from `first` to `last`; the one behind them was written at `at`."""

    first: int
    last: int
    at: float


class EventRowsStore(Protocol):
    """The part of a store that a feed of events reads."""

    def event_ticket(self) -> int:
        """Taken before a look at the rows, so that what comes between look and wait is not slept through."""

    async def wait_for_events(self, ticket: int, seconds: float) -> None:
        """Return when there may be new events since the ticket was taken, or after `seconds`; a hint, as for
        work."""

    async def last_event_row(self) -> int:
        """The highest id there is, 0 where there is none."""

    async def highest_event_row(self) -> int:
        """The highest id that was ever given out, also to what is not there any more or not yet."""

    async def event_rows(
        self,
        after: int,
        limit: int,
        *,
        until: int | None = None,
        execution_id: int | None = None,
        path: str | None = None,
    ) -> list[EventRow]:
        """Behind this id and up to that one, in their order; all else that is given must match."""

    async def event_rows_at(self, ids: Sequence[int]) -> list[EventRow]:
        """Those of them that can be seen, in the order of their ids."""

    async def event_gaps(self, after: int, until: int, limit: int) -> list[EventGap]:
        """What is missing between these ids, the newest first; `after` counts as seen, and what is missing
        behind the last row that can be seen is not told."""

    async def open_transactions(self) -> tuple[int, int]:
        """The oldest transaction that is open, and the one that will be begun next; the same where none is
        open. (0, 0) where rows become visible in the order of their ids."""

    async def begun_since(
        self, at: float, limit: int, *, execution_id: int | None = None
    ) -> list[BegunAttempt]:
        """Attempts that run and began at this time or later, in the order of their beginnings; the last ones
        where there are more than `limit`."""
