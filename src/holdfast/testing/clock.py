"""The time of a rehearsal: it stands still until somebody moves it."""

from __future__ import annotations

import math

from holdfast.core.retry import parse_duration

# The same in every run, so that what a test prints or compares is too: 2030-01-01, midnight UTC.
START = 1_893_456_000.0
# Moments are floats; what is left of a sum of them beyond this is rounding.
DECIMALS = 3


class FakeClock:
    def __init__(self, start: float = START) -> None:
        self._start = start
        self.now = start
        """Seconds since 1970."""

    def __call__(self) -> float:
        return self.now

    @property
    def elapsed(self) -> float:
        """Seconds since the rehearsal began."""
        return round(self.now - self._start, DECIMALS)

    def advance(self, duration: float | str) -> None:
        """Move it on by seconds or a text such as "15m". What becomes due is run by the next `run` or
        `drain`."""
        self.now += parse_duration(duration, field="advance")

    def move_to(self, moment: float) -> None:
        self.now = max(self.now, moment)

    def __repr__(self) -> str:
        return f"FakeClock(elapsed={self.elapsed})"


def just_after(moment: float) -> float:
    """The first moment at which something that ends at this one is over."""
    return math.nextafter(moment, math.inf)
