"""What a claim may take, told independently of the code that takes it.

`expected_claim` is the plain reading of the order of leasing: go through all that is ready, lane by lane,
rank by rank, oldest first, and take what every bound still has a place for. `check_leases` holds for any
number of claims at once: whatever they took, no limit has more than it may have, and nothing was paused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from holdfast.core.model import Lane
from simulation.history import ensure
from simulation.lines import FLEET, JobLine, LimitLine, Sight


class Asked(NamedTuple):
    """What a worker asks for; None is without a bound."""

    limit: int
    handlers: tuple[str, ...]
    lanes: tuple[Lane, ...]
    alone: bool = False
    bulk: int | None = None
    limited: int | None = None
    ageing_seconds: float | None = None

    def __str__(self) -> str:
        handlers = f"{len(self.handlers)} handlers" if len(self.handlers) > 3 else self.handlers
        bounds = f"bulk={self.bulk} limited={self.limited} ageing={self.ageing_seconds}"
        return f"{self.limit} {handlers} {'+'.join(self.lanes)} alone={self.alone} {bounds}"


def ready(sight: Sight, asked: Asked, now: float) -> list[JobLine]:
    """In the order of leasing, whatever room there is."""

    def turn(job: JobLine) -> tuple[bool, int, float, int]:
        aged = asked.ageing_seconds is not None and job.available_at <= now - asked.ageing_seconds
        return (job.lane != Lane.MANUAL and not aged, job.rank, job.available_at, job.id)

    return sorted(
        (job for job in _offered(sight, asked) if job.alone == asked.alone and job.available_at <= now),
        key=turn,
    )


def _offered(sight: Sight, asked: Asked) -> list[JobLine]:
    return [
        job
        for job in sight.jobs.values()
        if job.is_waiting
        and job.handler in asked.handlers
        and job.lane in asked.lanes
        and not sight.is_paused(job)
    ]


def expected_claim(sight: Sight, asked: Asked, now: float) -> list[JobLine]:
    used = {name: sight.leased_under(name) for name in sight.limits}
    taken: list[JobLine] = []
    bulk = limited = 0
    for job in ready(sight, asked, now):
        over = _limits_over(sight, job)
        if (
            len(taken) < asked.limit
            and (job.lane == Lane.MANUAL or asked.bulk is None or bulk < asked.bulk)
            and (not over or asked.limited is None or limited < asked.limited)
            and all(_has_room(limit, used[limit.name], job.lane) for limit in over)
        ):
            taken.append(job)
            bulk += job.lane == Lane.BULK
            limited += bool(over)
            for limit in over:
                used[limit.name][job.lane] += 1
    return taken


def expected_alone_ready(sight: Sight, asked: Asked, now: float) -> bool:
    """Whether a worker that asked for jobs beside others is to ask for one to run alone."""
    return any(
        all(_has_room(limit, sight.leased_under(limit.name), job.lane) for limit in _limits_over(sight, job))
        for job in ready(sight, asked._replace(alone=True), now)
    )


def expected_next_due(sight: Sight, asked: Asked, now: float) -> float | None:
    """When to ask again where nothing was leased: what is due under a limit waits for room, not for time."""
    return min(
        (
            job.available_at
            for job in _offered(sight, asked)
            if (job.available_at > now or not _limits_over(sight, job))
            and (job.lane == Lane.MANUAL or asked.bulk != 0)
        ),
        default=None,
    )


def _limits_over(sight: Sight, job: JobLine) -> list[LimitLine]:
    return [sight.limits[name] for name in (job.limit, FLEET) if name in sight.limits]


def _has_room(limit: LimitLine, used: dict[str, int], lane: str) -> bool:
    return sum(used.values()) < limit.max_concurrency and (
        lane == Lane.MANUAL or used[Lane.BULK] < limit.bulk_max
    )


def check_leases(before: Sight, now: Sight, *, steered: Collection[str], hands_changed: bool) -> None:
    """`steered` names the limits that somebody may have changed since, and `pauses` where those were. Where
    `hands_changed`, a lease that has another fence may have been taken over."""
    for name, limit in now.limits.items():
        if name in steered:
            continue
        had, has = before.leased_under(name), now.leased_under(name)
        ensure(
            sum(has.values()) <= max(limit.max_concurrency, sum(had.values())),
            "{} had {} leased and now has {}",
            limit,
            had,
            has,
        )
        ensure(
            has[Lane.BULK] <= max(limit.bulk_max, had[Lane.BULK]),
            "of {} the reserve is taken: {} became {}",
            limit,
            had,
            has,
        )
    if "pauses" not in steered and now.pauses:
        for id_, job in now.jobs.items():
            old = before.jobs.get(id_)
            if hands_changed and old is not None and old.fence is not None:
                continue
            if job.fence is not None and (old is None or job.fence != old.fence):
                ensure(not now.is_paused(job), "leased although it was paused: {} {}", job, now.pauses)
