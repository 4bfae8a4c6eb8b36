"""An execution's state, told from its events alone.

The log is complete: folding it gives the same statuses and counters as the rows. The simulation
compares the two after every step, which is how a transition that forgets its event is found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.core.model import NO_ELEMENT, Event, EventType, ExecutionStatus, JobStatus, place_of


@dataclass(slots=True)
class ReplayedJob:
    status: JobStatus
    attempts: int = 0
    dead_reason: str | None = None


@dataclass(slots=True)
class ReplayedExecution:
    """`jobs` by round, step and place."""

    status: ExecutionStatus = ExecutionStatus.RUNNING
    round: int = 1
    last_completed_stage: str | None = None
    jobs: dict[tuple[int, str, int], ReplayedJob] = field(default_factory=dict)


_LIVE = (JobStatus.QUEUED, JobStatus.RETRY, JobStatus.LEASED)
_ENDS = {
    EventType.EXECUTION_COMPLETED: ExecutionStatus.COMPLETED,
    EventType.EXECUTION_FAILED: ExecutionStatus.FAILED,
    EventType.EXECUTION_CANCELLED: ExecutionStatus.CANCELLED,
}


def replay(events: Iterable[Event]) -> ReplayedExecution:
    execution = ReplayedExecution()
    for event in events:
        if event.type in _ENDS:
            execution.status = _ENDS[event.type]
            for job in execution.jobs.values():
                if job.status in _LIVE:
                    job.status = JobStatus.CANCELLED
        elif event.type is EventType.MANUAL_RETRY:
            execution.status = ExecutionStatus.RUNNING
            execution.round += 1
            execution.last_completed_stage = event.data["last_completed_stage"]
        elif event.step is not None:
            _apply_to_job(execution, event, event.step)
    return execution


def _apply_to_job(execution: ReplayedExecution, event: Event, step: str) -> None:
    visit, element = event.data.get("visit", 1), event.data.get("element", NO_ELEMENT)
    key = (execution.round, step, place_of(visit, element))
    match event.type:
        case EventType.STEP_STARTED | EventType.STEP_COMPLETED if event.data.get("control"):
            pass  # no job was made for it
        case EventType.STEP_STARTED:
            for number in event.data.get("elements", [element]):
                place = place_of(visit, number)
                execution.jobs[execution.round, step, place] = ReplayedJob(JobStatus.QUEUED)
        case EventType.ACTION_STARTED:
            execution.jobs[key].status = JobStatus.LEASED
            execution.jobs[key].attempts = event.data["attempt"]
        case EventType.STEP_RETRY:
            execution.jobs[key].status = JobStatus.RETRY
        case EventType.LEASE_RELEASED:
            job = execution.jobs[key]
            job.attempts -= 1
            job.status = JobStatus.RETRY if job.attempts else JobStatus.QUEUED
        case EventType.STEP_FAILED_TERMINAL:
            execution.jobs[key].status = JobStatus.DEAD
            execution.jobs[key].dead_reason = event.data["dead_reason"]
        case EventType.STEP_SKIPPED if key in execution.jobs and execution.jobs[key].status in _LIVE:
            execution.jobs[key].status = JobStatus.CANCELLED
        case EventType.ACTION_COMPLETED:
            execution.jobs[key].status = JobStatus.DONE
            for number in range(event.data.get("elements", 0)):
                place = place_of(visit, number)
                execution.jobs[execution.round, step, place] = ReplayedJob(JobStatus.QUEUED)
        case EventType.STEP_COMPLETED:
            execution.last_completed_stage = step
        case _:
            pass  # it explains, and changes no state
