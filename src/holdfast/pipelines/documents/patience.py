"""How long an attempt waits for a service, and when it asks again.

Patience    of one attempt: what may be waited in sum until the service does something again
Gate        of one service in this process: when it wants to be left alone, all leave it alone, and then
            come one after the other
Time        clocks, sleep and chance, for tests to replace
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

PATIENCE_SECONDS = 30.0
BACKOFF_FIRST_SECONDS, BACKOFF_SECONDS_MAX = 0.5, 8.0
TURN_SECONDS = 0.05  # between two that waited for the same moment


def _draw() -> float:
    return random.uniform(0.5, 1.5)


@dataclass(frozen=True, slots=True)
class Time:
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    """Of the day, for dates that a service names."""
    draw: Callable[[], float] = _draw
    """From 0.5 to 1.5, for those who wait not to come all at once."""


class Patience:
    """What is left of it is spent by waiting, and by requests that came to nothing; a success renews it. A
    single request never takes more than half of it: even after a long one, it is asked once more."""

    def __init__(self, seconds: float = PATIENCE_SECONDS) -> None:
        self.seconds = seconds
        self.left = seconds
        self.failures = 0
        """In a row."""

    def renew(self) -> None:
        self.left = self.seconds
        self.failures = 0

    def failed(self, seconds: float) -> None:
        """A request that took so long came to nothing."""
        self.failures += 1
        self.left -= min(seconds, self.seconds / 2)

    def allows(self, wait: float) -> bool:
        return wait <= self.left

    def waited(self, seconds: float) -> None:
        self.left -= seconds

    def pause(self, draw: float) -> float:
        """Before the next request, where the service names no time."""
        if not self.failures:
            return 0.0
        doubled = BACKOFF_FIRST_SECONDS * 2.0 ** min(self.failures - 1, 10)
        return min(doubled, BACKOFF_SECONDS_MAX) * draw


class Gate:
    """Shared by all threads that ask one service. Turns are given in the order they are asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opens_at = float("-inf")
        self._last_turn = float("-inf")

    def close(self, until: float) -> None:
        """Nobody asks before that. It stays closed longer where that was said before."""
        with self._lock:
            self._opens_at = max(self._opens_at, until)

    def is_closed(self, now: float) -> bool:
        with self._lock:
            return now < self._opens_at

    def opens_in(self, now: float) -> float:
        with self._lock:
            return max(0.0, self._opens_at - now)

    def turn(self, now: float, draw: float) -> float:
        """When the one who asks may go; now, where nobody has to wait."""
        with self._lock:
            if now >= self._opens_at and now >= self._last_turn:
                return now
            self._last_turn = max(self._opens_at, self._last_turn + TURN_SECONDS * draw)
            return max(self._last_turn, now)


_GATES: dict[str, Gate] = {}
_GATES_LOCK = threading.Lock()


def gate_of(url: str) -> Gate:
    """The one that all of this process share who ask there."""
    with _GATES_LOCK:
        return _GATES.setdefault(url, Gate())
