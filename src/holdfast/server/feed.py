"""The one reader of new events in a server, for all who listen.

On PostgreSQL a row gets its number before its commit, so rows do not become visible in the order of their
ids: a transaction may keep a number back for as long as it is open. The feed tells each row as soon as it can
be seen and remembers the numbers that it passed over, the gaps. It looks at them again at every turn, until
no transaction is open that could fill them (docs/decisions/0019).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from holdfast.core.errors import StoreError
from holdfast.core.model import EventType
from holdfast.server.audience import Audience, Filter, Listener
from holdfast.server.event_text import begun_text, events_in, row_text
from holdfast.server.pace import Pace
from holdfast.server.position import Gaps, Position
from holdfast.store import Store
from holdfast.store.event_rows import BegunAttempt, EventRow

log = logging.getLogger("holdfast.server")

PAGE_ROWS = 500
PORTION_BYTES = 64 * 1024
# It looks when it has a hint, no more often than this, and without one after a while.
TURN_SECONDS_MIN = 0.02
POLL_SECONDS = 0.5
AWAY_SECONDS = 0.5

GAP_SECONDS_MIN = 60.0
GAPS_MAX = 20_000
# So many are looked at in every turn, all of them with each poll.
GAPS_EACH_TURN = 500
# With more gaps than this they are written into tokens once a portion, and not with each change.
GAPS_WRITTEN_AT_ONCE = 200

# At its start: what is missing among so many rows, or further back if those are younger than this.
LOOK_BACK_ROWS = 10_000
LOOK_BACK_SECONDS = 60.0
LOOKS_BACK_MAX = 20
# Further back only where a transaction stays open for longer than this: others cannot have begun before.
OPEN_SECONDS_MAX = 1.0
OPEN_POLL_SECONDS = 0.05

BEGUN_MAX = 1_000
BEGUN_SECONDS = 0.5
# A claim is visible some time after the moment it tells as the attempt's beginning.
BEGUN_OVERLAP_SECONDS = 5.0

# A few write at a time, so that nobody's request waits for a thousand of them; and in how many turns of the
# event loop those do that were woken.
WOKEN_AT_ONCE = 25
LOOP_TURNS_OF_WRITERS = 3
_BEGINNING = EventType.ACTION_STARTED


class _Gap(NamedTuple):
    since: float
    # Whoever could fill it was begun before this transaction; not known until the next look.
    before: int | None


class Feed:
    """`clock` tells how old a gap is."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._audience = Audience()
        self._pace = Pace()
        # How many times it has looked for new rows.
        self.looks = 0
        self.last = 0
        self.tracks_gaps = False
        self._gaps: dict[int, _Gap] = {}
        self._gap_ids: frozenset[int] | None = frozenset()
        self._written_gaps: Gaps | None = None
        self._token = ""
        self._all_gaps_at = float("-inf")
        # The gaps behind this number are known, and the first row that was to be seen behind it.
        self._known_behind = 0
        self._first_known = 0
        self._looking_back = asyncio.Lock()
        self._begun_told: set[BegunAttempt] = set()
        self._begun_looked_at = 0.0
        self._begun_due_at = float("-inf")
        self._is_away = False
        self._has_started = False
        self._start_or_end = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def starts_within(self, seconds: float) -> bool:
        """Whether it knows where it is; or has ended, so that there is nothing to wait for."""
        if not self._start_or_end.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._start_or_end.wait()
        return self._start_or_end.is_set()

    def stop(self) -> asyncio.Task[None]:
        self._start_or_end.set()
        self._task.cancel()
        return self._task

    # for listeners

    @property
    def position(self) -> Position:
        if self._gap_ids is None:
            self._gap_ids = frozenset(self._gaps)
        return Position(self.last, self._gap_ids)

    @property
    def token(self) -> str:
        """The place behind all that has been told."""
        return self._token

    def join(self, listener: Listener) -> Position:
        """Tell it all that comes behind this place."""
        listener.behind = None
        self._audience.add(listener)
        return self.position

    def leave(self, listener: Listener) -> None:
        self._audience.remove(listener)

    def adopt(self, gaps: Iterable[int]) -> None:
        """Look for these too: somebody was told what is behind them, and not them."""
        if self.tracks_gaps:
            now = self._clock()
            self._add_gaps((id_, _Gap(now, None)) for id_ in gaps if id_ <= self.last)
            self._write_token()

    def knows_gaps_behind(self, place: int) -> bool:
        return not self.tracks_gaps or place >= self._known_behind

    async def know_gaps_behind(self, place: int) -> None:
        """Look for what is missing from there on too: somebody goes on there, from before the rows that were
        looked at when this feed began."""
        async with self._looking_back:
            if self.knows_gaps_behind(place):
                return
            _, following = await self._store.open_transactions()
            if not await self._have_ended(following):
                now = await self._store.now()
                # With more gaps than there may be, those further back would be the first to be forgotten.
                while not self.knows_gaps_behind(place) and len(self._gaps) < GAPS_MAX:
                    await self._look_further_back(now, following, place)
                self._write_token()
            found = await self._store.event_rows(place, 1)
            self._known_behind, self._first_known = place, found[0].id if found else place

    # the reader

    async def _run(self) -> None:
        while True:
            ticket = self._store.event_ticket()
            try:
                if not self._has_started:
                    await self._start()
                is_more = await self._turn()
                self._is_away = False
                if not is_more:
                    await self._store.wait_for_events(ticket, POLL_SECONDS)
            except StoreError as error:
                if not self._is_away:
                    log.warning("The feed of events waits for the store: %s", error)
                self._is_away = True
                await asyncio.sleep(AWAY_SECONDS)
            except Exception:
                log.exception("The feed of events goes on after an error.")
                await asyncio.sleep(AWAY_SECONDS)

    async def _start(self) -> None:
        self.last = await self._store.last_event_row()
        _, following = await self._store.open_transactions()
        self.tracks_gaps = following > 0  # elsewhere ids are in the order of the commits
        now = await self._store.now()
        if self.tracks_gaps:
            await self._look_back(now, following)
        self._begun_looked_at = now
        self._begun_told = set(await self._store.begun_since(now - BEGUN_OVERLAP_SECONDS, BEGUN_MAX))
        self._write_token()
        self._has_started = True
        self._start_or_end.set()

    async def _look_back(self, now: float, following: int) -> None:
        """What is missing already may still come."""
        self._known_behind = self._first_known = self.last
        for _ in range(LOOKS_BACK_MAX):
            oldest = await self._look_further_back(now, following)
            if not self._known_behind or oldest is None or now - oldest.at > LOOK_BACK_SECONDS:
                break

    async def _look_further_back(self, now: float, following: int, least: int = 0) -> EventRow | None:
        """What is missing among the next rows; the oldest of them. Since when, the row behind a gap tells."""
        known, after = self._known_behind, max(least, self._known_behind - LOOK_BACK_ROWS)
        missing = await self._store.event_gaps(after, self._first_known, GAPS_MAX)
        oldest = await self._store.event_rows(after, 1)
        here = self._clock()
        self._add_gaps(
            (id_, _Gap(here - max(0.0, now - gap.at), following))
            for gap in missing
            for last in (min(gap.last, known),)
            for id_ in range(max(gap.first, last - GAPS_MAX), last + 1)
        )
        self._known_behind = after
        if not oldest:
            return None
        self._first_known = oldest[0].id
        return oldest[0]

    async def _have_ended(self, following: int) -> bool:
        """Whether all transactions that began before this one end soon."""
        for _ in range(round(OPEN_SECONDS_MAX / OPEN_POLL_SECONDS)):
            oldest, _ = await self._store.open_transactions()
            if oldest >= following:
                return True
            await asyncio.sleep(OPEN_POLL_SECONDS)
        return False

    async def _turn(self) -> bool:
        """Whether there is more to read at once."""
        await self._pace.wait()
        begun = await self._begun()
        late = await self._late_rows()
        found = await self._store.event_rows(self.last, PAGE_ROWS)
        is_more = len(found) == PAGE_ROWS
        await self._tell([*late, *found], begun if not is_more else None)
        self._pace.rest(TURN_SECONDS_MIN)
        self.looks += 1
        return is_more

    async def _late_rows(self) -> list[EventRow]:
        """Rows of gaps that can be seen now. Of the others, those that nobody can fill any more are given
        up."""
        if not self._gaps:
            return []
        oldest, following = await self._store.open_transactions()
        now = self._clock()
        looked = self._gaps_to_look_at(now)
        found = await self._store.event_rows_at(looked)
        for id_ in set(looked).difference(row.id for row in found):
            if (gap := self._gaps.get(id_)) is None:
                continue
            before = following if gap.before is None else gap.before
            if gap.before is None:
                self._gaps[id_] = gap._replace(before=before)
            # Older as well: a number may be drawn a moment before its transaction gets its own.
            if before <= oldest and now - gap.since > GAP_SECONDS_MIN:
                del self._gaps[id_]
                self._gaps_changed()
        self._write_token()
        return found

    def _gaps_to_look_at(self, now: float) -> list[int]:
        if len(self._gaps) <= GAPS_EACH_TURN or now - self._all_gaps_at >= POLL_SECONDS:
            self._all_gaps_at = now
            return list(self._gaps)
        return list(islice(reversed(self._gaps), GAPS_EACH_TURN))

    async def _begun(self) -> list[BegunAttempt] | None:
        """Attempts that have begun and are in no row yet; asked for before the rows, so that a row that tells
        the end of one is not told before its beginning."""
        if time.monotonic() < self._begun_due_at:
            return None
        now = await self._store.now()
        since = min(now, self._begun_looked_at) - BEGUN_OVERLAP_SECONDS
        found = await self._store.begun_since(since, BEGUN_MAX)
        self._begun_looked_at, self._begun_due_at = now, time.monotonic() + BEGUN_SECONDS
        return found

    async def _tell(self, found: Sequence[EventRow], begun: list[BegunAttempt] | None) -> None:
        """In portions: listeners read in the pauses between them."""
        untold = deque(found)
        in_rows: set[tuple[int, float]] = set()
        while untold or begun is not None:
            await self._pace.wait()
            started = time.thread_time()
            before, pieces, size = self.position, _Pieces(), 0
            while untold and size < PORTION_BYTES:
                size += self._take_in(untold.popleft(), pieces, in_rows)
            self._write_token()
            if not untold and begun is not None:
                self._take_in_begun(begun, pieces, in_rows)
                begun = None
            told = self._audience.tell(pieces.joined(), before)
            self._pace.worked(time.thread_time() - started)
            await self._wake(told)

    async def _wake(self, told: Sequence[Listener]) -> None:
        for place in range(0, len(told), WOKEN_AT_ONCE):
            await self._pace.wait()
            started = time.thread_time()
            for listener in told[place : place + WOKEN_AT_ONCE]:
                listener.wake()
            for _ in range(LOOP_TURNS_OF_WRITERS):  # who was woken writes: that is a part of what it costs
                await asyncio.sleep(0)
            self._pace.worked(time.thread_time() - started)

    def _take_in(self, row: EventRow, pieces: _Pieces, in_rows: set[tuple[int, float]]) -> int:
        """Move behind it; how many bytes there are to tell of it."""
        before = self._token
        if row.id > self.last:
            first = max(self.last + 1, row.id - GAPS_MAX)
            self.last = row.id
            if self.tracks_gaps and first < row.id:
                now = self._clock()
                self._add_gaps((id_, _Gap(now, None)) for id_ in range(first, row.id))
        elif self._gaps.pop(row.id, None):
            self._gaps_changed()
        self._write_token(unless_many=True)
        if not (filters := self._audience.filters_for(row.execution_id, row.path)):
            return 0
        events = events_in(row)
        in_rows.update((row.execution_id, event.at) for event in events if event.type is _BEGINNING)
        return pieces.add(filters, row_text(events, row.path, before, self._token))

    def _take_in_begun(
        self, begun: list[BegunAttempt], pieces: _Pieces, in_rows: set[tuple[int, float]]
    ) -> None:
        for attempt in begun:
            is_told = attempt in self._begun_told or (attempt.execution_id, attempt.at) in in_rows
            filters = self._audience.filters_for(attempt.execution_id, attempt.path)
            if filters and not is_told:
                pieces.add(filters, begun_text(attempt))
        self._begun_told = set(begun)

    # gaps and tokens

    def _add_gaps(self, gaps: Iterable[tuple[int, _Gap]]) -> None:
        for id_, gap in gaps:
            self._gaps.setdefault(id_, gap)
        if len(self._gaps) > GAPS_MAX * 1.1:  # not with each of them
            for id_ in sorted(self._gaps)[:-GAPS_MAX]:
                del self._gaps[id_]
        self._gaps_changed()

    def _gaps_changed(self) -> None:
        self._gap_ids = self._written_gaps = None

    def _write_token(self, *, unless_many: bool = False) -> None:
        """The token of before is good as well: it stands for an earlier place."""
        if self._written_gaps is None and not (unless_many and len(self._gaps) > GAPS_WRITTEN_AT_ONCE):
            self._written_gaps = Gaps(self._gaps)
        if self._written_gaps is not None:
            self._token = self._written_gaps.token(self.last)


class _Pieces:
    """What is told in one go, for each filter; nothing is made twice."""

    def __init__(self) -> None:
        self._texts: dict[Filter, list[bytes]] = {}

    def add(self, filters: Iterable[Filter], text: bytes) -> int:
        for one in filters:
            self._texts.setdefault(one, []).append(text)
        return len(text)

    def joined(self) -> dict[Filter, bytes]:
        return {one: b"".join(texts) for one, texts in self._texts.items()}
