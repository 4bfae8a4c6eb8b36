"""What a worker holds and what it may lease: its queue of leased jobs, and the room in its slots.

    room_for ──▶ a lease ──▶ Prefetched: manual before bulk, those under a limit first ──▶ a slot

Of several slots one is kept for manual work, so that a person's job never waits for a long bulk job. Work
without a limit is leased ahead; a job under a limit holds a place there for the whole fleet, and is leased
only for a slot that is free.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from holdfast.core.model import Lane, Leased, LeaseRef

# One lease takes no more than these, however many slots there are.
LEASE_JOBS_MAX = 1_000
# With ageing, what has waited here for this long goes first: manual work that never ends must not pass by it.
PASSED_BY_SECONDS_MAX = 0.1


class Waiting(NamedTuple):
    leased_at: float  # of the process's own clock
    job: Leased
    lease: LeaseRef


class Prefetched:
    """The jobs that are leased and not begun, in the order in which slots take them."""

    def __init__(self, *, ageing: bool = False) -> None:
        self._ageing = ageing
        self._manual_limited: deque[Waiting] = deque()
        self._manual: deque[Waiting] = deque()
        self._bulk_limited: deque[Waiting] = deque()
        self._bulk: deque[Waiting] = deque()
        self._lines = (self._manual_limited, self._manual, self._bulk_limited, self._bulk)

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    @property
    def manual(self) -> int:
        return len(self._manual_limited) + len(self._manual)

    @property
    def bulk(self) -> int:
        return len(self._bulk_limited) + len(self._bulk)

    @property
    def bulk_limited(self) -> int:
        return len(self._bulk_limited)

    def add(self, job: Leased, leased_at: float, lease: LeaseRef | None = None) -> None:
        if job.lane is Lane.MANUAL:
            line = self._manual_limited if job.limited else self._manual
        else:
            line = self._bulk_limited if job.limited else self._bulk
        line.append(Waiting(leased_at, job, lease or LeaseRef(job.queue_id, job.fence)))

    def add_first(self, job: Leased) -> None:
        """Before all others of its lane."""
        line = self._manual_limited if job.lane is Lane.MANUAL else self._bulk_limited
        line.appendleft(Waiting(time.perf_counter(), job, LeaseRef(job.queue_id, job.fence)))

    def take(self, *, bulk: bool) -> Waiting | None:
        """The next job to begin; one of the bulk lane only where it has a slot."""
        if bulk and self._ageing and (passed_by := self._passed_by()):
            return passed_by.popleft()
        for line in self._lines if bulk else self._lines[:2]:
            if line:
                return line.popleft()
        return None

    def _passed_by(self) -> deque[Waiting] | None:
        too_long = time.perf_counter() - PASSED_BY_SECONDS_MAX
        return next((line for line in self._lines[2:] if line and line[0].leased_at < too_long), None)

    def withdraw(self, leased_before: float) -> list[LeaseRef]:
        """Take out what has waited since then."""
        withdrawn = []
        for line in self._lines:
            withdrawn += [entry.lease for entry in line if entry.leased_at < leased_before]
            in_time = [entry for entry in line if entry.leased_at >= leased_before]
            line.clear()
            line.extend(in_time)
        return withdrawn

    def withdraw_all(self) -> list[LeaseRef]:
        leases = [entry.lease for line in self._lines for entry in line]
        for line in self._lines:
            line.clear()
        return leases

    def has_waited(self, leased_before: float) -> bool:
        return any(entry.leased_at < leased_before for line in self._lines for entry in line)

    def drop(self, lease: LeaseRef) -> None:
        for line in self._lines:
            for entry in line:
                if entry.lease == lease:
                    line.remove(entry)
                    return


class Slots(NamedTuple):
    """The slots of a worker: those that can be used, and how many run which lane."""

    usable: int
    running: int
    running_bulk: int
    lanes: tuple[Lane, ...]

    @property
    def for_bulk(self) -> int:
        """How many may run bulk work at a time: all but one, where manual work may come."""
        keeps_one = Lane.MANUAL in self.lanes and self.usable > 1
        return self.usable - 1 if keeps_one else self.usable


class Room(NamedTuple):
    """How many jobs may be leased now, how many of them bulk; and the slots that are free for jobs under a
    limit, for any, and for those of the bulk lane."""

    jobs: int
    bulk: int
    slots: int
    slots_bulk: int

    def lets_in_more_than(self, asked: Room) -> bool:
        """Whether there is room for a kind of work for which there was none."""
        return self.jobs > 0 and (
            (self.bulk > 0 and asked.bulk <= 0)
            or (self.slots > 0 and asked.slots <= 0)
            or (self.slots_bulk > 0 and asked.slots_bulk <= 0)
        )


def room_for(slots: Slots, held: Prefetched, ahead: int) -> Room:
    """The free slots, and `ahead` jobs more. Bulk work that waits without a limit takes no manual job's
    place, as it is passed by. A half-full store of short jobs is no reason to ask again; a free slot is."""
    before_bulk = slots.running + held.manual + held.bulk_limited
    target = slots.usable + ahead
    jobs = target - before_bulk if before_bulk <= max(target // 2, slots.usable - 1) else 0
    free = max(slots.usable - before_bulk, 0)
    if Lane.BULK not in slots.lanes:
        return Room(min(jobs, LEASE_JOBS_MAX), 0, free, 0)
    left_by_manual = slots.usable - (slots.running - slots.running_bulk) - held.manual
    share = min(slots.for_bulk, left_by_manual)
    bulk_target = share + ahead
    bulk_held = slots.running_bulk + held.bulk
    bulk = bulk_target - bulk_held if bulk_held <= max(bulk_target // 2, share - 1) else 0
    bulk = max(min(bulk, jobs, LEASE_JOBS_MAX), 0)
    if Lane.MANUAL not in slots.lanes:
        jobs = bulk
    free_bulk = max(min(free, slots.for_bulk - slots.running_bulk - held.bulk_limited), 0)
    return Room(min(jobs, LEASE_JOBS_MAX), bulk, free, free_bulk)
