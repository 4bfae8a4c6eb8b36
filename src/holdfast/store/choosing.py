"""Which of the ready jobs a claim takes: as many as it asks for, within every bound, in the order of leasing.

A bound never grows while a claim chooses, so what has no place once has none until its end: the rest of that
lane under that limit need not be looked at.
"""

from __future__ import annotations

import time

from holdfast.core.limits import FLEET_LIMIT, Limit, Room
from holdfast.core.model import Lane
from holdfast.store.interface import ClaimRequest

NO_WAIT_SECONDS = 0.1


class Choice:
    """`limits` are those that are set and matter to the request, `leased` what is leased under them."""

    def __init__(
        self, request: ClaimRequest, limits: list[Limit], leased: dict[tuple[str, str], int] | None = None
    ) -> None:
        self._room = Room(limits, leased or {})
        self._jobs = request.limit
        self._bulk = request.limit if request.bulk is None else request.bulk
        self._limited = request.limit if request.limited is None else request.limited

    def is_limited(self, limit: str) -> bool:
        return self._room.left(limit, Lane.MANUAL) is not None

    def left(self, limit: str, lane: str) -> int:
        """How many more may be taken of this lane and limit."""
        bounds = [self._jobs]
        if lane == Lane.BULK:
            bounds.append(self._bulk)
        room = self._room.left(limit, lane)
        if room is not None:
            bounds += [room, self._limited]
        return max(min(bounds), 0)

    def take(self, limit: str, lane: str, jobs: int = 1) -> bool:
        if self.left(limit, lane) < jobs:
            return False
        self._room.take(limit, lane, jobs)
        self._jobs -= jobs
        if lane == Lane.BULK:
            self._bulk -= jobs
        if self.is_limited(limit):
            self._limited -= jobs
        return True

    def has_room(self, limit: str, lane: str) -> bool:
        """Whether the limits would let one more run, whatever the request asks for."""
        return self._room.left(limit, lane) != 0

    @property
    def is_full(self) -> bool:
        return self._jobs <= 0


def shares(choice: Choice, limits: list[Limit], lanes: tuple[Lane, ...]) -> list[tuple[str, str, int]]:
    """Each lane under each limit, and under none, with how many may be taken of it. Those of which nothing
    may be taken are among them: their jobs are under that limit, not under none."""
    names = ["", *(limit.name for limit in limits if limit.name != FLEET_LIMIT)]
    return [(name, lane, choice.left(name, lane)) for name in names for lane in dict.fromkeys(lanes)]


def aged_until(request: ClaimRequest, now: float) -> float:
    """Bulk jobs that have been ready since then or longer take their turn among the manual ones."""
    return float("-inf") if request.ageing_seconds is None else now - request.ageing_seconds


def lanes_to_wait_for(request: ClaimRequest) -> tuple[Lane, ...]:
    """A worker that has no place for bulk work now asks again when it has: it need not wake for any."""
    return tuple(lane for lane in request.lanes if lane != Lane.BULK or request.bulk != 0)


def waited_since(asked_at: float) -> float:
    """Seconds that a lease waited for its transaction's turn: it counts from then, not from when it was asked
    for. Moments do not matter."""
    waited = time.monotonic() - asked_at
    return waited if waited > NO_WAIT_SECONDS else 0.0
