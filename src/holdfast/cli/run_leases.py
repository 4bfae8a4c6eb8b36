"""Steps of a run that another process works on: how long its lease lasts is looked up now and then.

After a kill, what the lost process had is leased until that time, and nobody can tell it from a process that
lives, but by this: one that lives renews its lease.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.cli.output import wall_time
from holdfast.cli.run_story import Lease, Line, Stand, StepStory, Story, Work
from holdfast.core.model import JobStatus

if TYPE_CHECKING:
    from holdfast.client import AnyEngine

LOOK_SECONDS = 2.0
LEASED_MAX = 1_000


class Leases:
    """`own` is the worker of this process."""

    def __init__(self, engine: AnyEngine, own: str) -> None:
        self._engine = engine
        self._own = own
        self._looked_at = -math.inf

    async def look(self, story: Story, now: float) -> list[Line]:
        """Note the leases of other processes; a line for each that has come up since."""
        if now - self._looked_at < LOOK_SECONDS:
            return []
        self._looked_at = now
        return await self._look(story, now)

    async def _look(self, story: Story, now: float, outer: str = "") -> list[Line]:
        lines = []
        held = {place: work for place, work in _running(story) if work.worker not in ("", self._own)}
        if held:
            leased = await self._engine.queue(
                execution_id=story.execution_id, status=JobStatus.LEASED, limit=LEASED_MAX
            )
            for job in leased.items:
                work = held.get((job.step, job.element))
                # What has only just begun is likely to end before anybody has read of it.
                if work is None or job.lease_until is None or now - work.since < LOOK_SECONDS:
                    continue
                if work.lease is None:
                    work.lease = Lease(job.lease_until)
                    name = outer + (job.step if job.element < 0 else f"{job.step}[{job.element}]")
                    lines.append(Line(now, name, _told(work, story.steps[job.step]), Stand.RUNNING))
                elif job.lease_until > work.lease.until:
                    work.lease = Lease(job.lease_until, is_renewed=True)
        for step in story.steps.values():
            if step.child is not None and not step.child.is_ended:
                lines += await self._look(step.child, now, f"{outer}{step.name}/")
        return lines


def _running(story: Story) -> Iterator[tuple[tuple[str, int], Work]]:
    for step in story.steps.values():
        for element, work in ((-1, step.work), *step.elements.items()):
            if work.stand is Stand.RUNNING:
                yield (step.name, element), work


def _told(work: Work, step: StepStory) -> str:
    assert work.lease is not None
    then = "it is tried again by itself"
    if work.attempt >= step.max_attempts:
        then = "it has failed, for that was its last attempt; resume it once more then"
    return (
        f"is held by another process, {work.worker}, which may be lost."
        f" If it is, its lease lasts until {wall_time(work.lease.until)}; soon after that {then}."
    )
