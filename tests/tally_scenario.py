"""What engines count, beside what the logs of the same story tell: the two must be the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.core.model import Event, EventType, JobStatus
from holdfast.engine.tallies import (
    ATTEMPT,
    BUCKET,
    COUNT,
    DEAD,
    DEADLINE,
    ENDED,
    RETRIES,
    STARTED,
    STEP_ATTEMPT,
    AttemptOutcome,
    Key,
)

if TYPE_CHECKING:
    from engine_scenario import Scenario

_ENDS = {
    EventType.EXECUTION_COMPLETED: "completed",
    EventType.EXECUTION_FAILED: "failed",
    EventType.EXECUTION_CANCELLED: "cancelled",
}


def sums(s: Scenario) -> Counter[Key]:
    """Of all engines of the story."""
    found: Counter[Key] = Counter()
    for engine in s.engines:
        found.update(engine.tallies.values())
    return found


def counted(s: Scenario) -> Counter[str]:
    return told_sums(sums(s))


def told_sums(found: Mapping[Key, int]) -> Counter[str]:
    """In words, without what only time decides."""
    told: Counter[str] = Counter()
    for (name, labels), value in found.items():
        if name in (STARTED, ENDED, RETRIES, DEAD):
            told[f"{name} {' '.join(labels)}".strip()] += value
        elif name == ATTEMPT + BUCKET:
            told[f"attempts {labels[0]}"] += value
        elif name == STEP_ATTEMPT + COUNT:
            told[f"attempts of {labels[1]}"] += value
    return told


async def told_by_logs(s: Scenario) -> Counter[str] | None:
    """The same from the events of every execution; None where some were pruned, and their events too."""
    told: Counter[str] = Counter()
    if s.is_pruned:
        return None
    executions = (await s.engine.executions(limit=1_000)).items
    for execution in executions:
        log = await s.events(execution.id)
        of_log = _told(log)
        leased = [job for job in await s.jobs(execution.id) if job.status is JobStatus.LEASED]
        begun = sum(event.type is EventType.ACTION_STARTED for event in log)
        ends = sum(of_log[f"attempts {outcome}"] for outcome in AttemptOutcome)
        of_log[f"attempts {AttemptOutcome.CANCELLED}"] = begun - len(leased) - ends
        if execution.parent_id is not None:  # its parent stands for it
            of_log = Counter({k: v for k, v in of_log.items() if not k.startswith("executions")})
        told += of_log
    return +told


def _told(log: list[Event]) -> Counter[str]:
    told: Counter[str] = Counter()
    errors: dict[Any, str] = {}
    lost: set[Any] = set()
    for event in log:
        where = (event.step, event.data.get("attempt"), event.data.get("element"), event.data.get("visit"))
        match event.type:
            case EventType.EXECUTION_STARTED:
                told[STARTED] += 1
            case EventType.EXECUTION_COMPLETED | EventType.EXECUTION_FAILED | EventType.EXECUTION_CANCELLED:
                told[f"{ENDED} {_ENDS[event.type]}"] += 1
                if event.data.get("reason") == DEADLINE:
                    told[f"{DEAD} {DEADLINE}"] += 1
            case EventType.ACTION_COMPLETED:
                told[f"attempts {AttemptOutcome.COMPLETED}"] += 1
                told[f"attempts of {event.step}"] += 1
            case EventType.LEASE_LOST:
                lost.add(where)
            case EventType.ACTION_ERROR:
                errors[where] = event.data["error_type"]
                if where in lost:
                    lost.remove(where)
                    told[f"attempts {AttemptOutcome.LOST}"] += 1
                else:
                    told[f"attempts {AttemptOutcome.FAILED}"] += 1
                    told[f"attempts of {event.step}"] += 1
            case EventType.STEP_RETRY:
                told[f"{RETRIES} {errors[where]}"] += 1
            case EventType.STEP_FAILED_TERMINAL:
                told[f"{DEAD} {event.data['dead_reason']}"] += 1
            case EventType.LEASE_RELEASED:
                aside = "reason" in event.data
                told[f"attempts {AttemptOutcome.PUT_ASIDE if aside else AttemptOutcome.RELEASED}"] += 1
            case _:
                pass
    return told
