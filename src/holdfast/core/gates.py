"""What the jobs of a batch wait for: barriers and waves, counted.

    barrier   jobs of its step are held until the batch is closed and no item is left before it
    wave      failed jobs of its step are held until no other job of the step is at work, and then all go

Both count places: an execution that runs has one, the step its job is at, and `moved` takes it from one to
the next in the transaction that moves the job. The counts only say when to look: before a gate opens, the
job rows themselves are asked (engine/batches.py). Pure: no clock, no store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast.core.model import Lane, Mode

BARRIER = "barrier"


class Place(NamedTuple):
    """Where an execution stands: at a step, with what holds its job there."""

    step: str
    held_by: str | None = None


class BarrierGate(msgspec.Struct, omit_defaults=True):
    """Before `step`: open once nobody is `unsettled`, that is, at `after` or still before it."""

    step: str
    after: str
    delay_seconds: float
    unsettled: int = 0
    opened_at: float | None = None
    scheduled_for: float | None = None
    released: bool = False

    @property
    def is_releasing(self) -> bool:
        return self.opened_at is not None and not self.released


class WaveGate(msgspec.Struct, omit_defaults=True):
    """Failed jobs of `step` gather in the wave with this number while others are `active`. The wave before
    it started with `started_at`, its jobs are available from `available_at`."""

    step: str
    number: int = 1
    active: int = 0
    waiting: int = 0
    longest_delay: float = 0.0
    started_at: float | None = None
    available_at: float | None = None
    released: bool = True

    @property
    def gathering(self) -> str:
        """What holds the jobs that wait for the next wave."""
        return wave_name(self.number)

    @property
    def is_due(self) -> bool:
        return self.waiting > 0 and self.active == 0


class Gates(msgspec.Struct, omit_defaults=True):
    """Those of one batch; `cancelling` while its items are being cancelled."""

    barriers: list[BarrierGate] = []
    waves: list[WaveGate] = []
    cancelling: bool = False

    def barrier(self, step: str) -> BarrierGate | None:
        return next((gate for gate in self.barriers if gate.step == step), None)

    def wave(self, step: str) -> WaveGate | None:
        return next((gate for gate in self.waves if gate.step == step), None)

    def are_due(self, *, is_closed: bool) -> bool:
        """Whether the counts say that one is to be opened."""
        return any(
            gate.opened_at is None and is_closed and not gate.unsettled for gate in self.barriers
        ) or any(wave.is_due for wave in self.waves)

    def need_attention(self, *, is_closed: bool) -> bool:
        """Whether one is to be opened, or something that was begun is not done yet."""
        return (
            self.cancelling
            or self.are_due(is_closed=is_closed)
            or any(gate.is_releasing for gate in self.barriers)
            or any(not wave.released for wave in self.waves)
        )

    def moved(
        self, before: Place | None, after: Place | None, position: Callable[[str], int], times: int = 1
    ) -> None:
        """Count so many executions out of one place and into the next; None is before their start and after
        their end."""
        for gate in self.barriers:
            if gate.opened_at is None:
                line = position(gate.after)
                was = before is not None and position(before.step) <= line
                is_ = after is not None and position(after.step) <= line
                gate.unsettled += times * (is_ - was)
        for wave in self.waves:
            for place, sign in ((before, -times), (after, times)):
                if place is None or place.step != wave.step:
                    continue
                if place.held_by == wave.gathering:
                    wave.waiting += sign
                else:
                    wave.active += sign
            if not wave.waiting:
                wave.longest_delay = 0.0


def wave_name(number: int) -> str:
    return f"wave {number}"


class BatchState(msgspec.Struct, frozen=True, array_like=True):
    """A batch as the transitions see it, in the column order of the store's queries; `gates` is JSON."""

    id: int
    path: str
    definition_id: int
    lane: Lane
    mode: Mode
    items: int
    gates: str
    attention: bool
    closed_at: float | None
    cancelled_at: float | None
    cancelled_by: str | None


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as people see it; `is_running` while an item of it runs."""

    id: int
    path: str
    version: int
    definition_id: int
    lane: Lane
    mode: Mode
    idempotency_key: str | None
    items: int
    gates: Gates
    created_at: float
    closed_at: float | None
    cancelled_at: float | None
    cancelled_by: str | None
    is_running: bool
