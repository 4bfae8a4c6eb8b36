"""What people read while they wait: one plain sentence for the state an execution is in."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.failures import StoredError
from holdfast.core.limits import Limit
from holdfast.core.model import ExecutionStatus, JobStatus, Lane
from holdfast.core.pauses import Pause, PauseKind


def describe(
    status: ExecutionStatus,
    *,
    step: str | None,
    job_status: JobStatus | None,
    attempts: int,
    max_attempts: int,
    error: StoredError | None,
    hindrance: str = "",
    waiting_for: str = "",
    others: int = 0,
) -> str:
    """`step` and what follows it tell of the current job, where there is one; `hindrance` is what keeps it
    waiting, in the words of `paused` or `full`; `waiting_for` the sentence about what it waits for; `others`
    how many more jobs the execution has."""
    if status is ExecutionStatus.COMPLETED:
        return "Complete"
    if status is ExecutionStatus.CANCELLED:
        return "Cancelled"
    if status is ExecutionStatus.FAILED:
        assert error is not None
        return f"Failed at {error.stage}: {error.user_message}. {error.guidance}"
    more = f", and {others:,} more" if others > 0 else ""
    if job_status is JobStatus.RETRY:
        waiting = f"; {waiting_for[0].lower()}{waiting_for[1:]}" if waiting_for else ""
        return retrying(attempts, max_attempts) + (hindrance or waiting) + more
    if job_status is JobStatus.LEASED:
        again = f" (attempt {attempts}/{max_attempts})" if attempts > 1 else ""
        return f"Running {step}{again}{more}"
    return waiting_for if waiting_for and not hindrance else f"Waiting to run {step}{hindrance}{more}"


def for_child(step: str, path: str, child_id: int | None) -> str:
    """Of a job that is put aside until its child execution has ended."""
    return f"Waiting for {path}, " + (
        "which is about to start" if child_id is None else f"execution {child_id}"
    )


def retrying(attempts: int, max_attempts: int) -> str:
    """After n failed attempts the next retry is the n-th, of max_attempts - 1 there are."""
    return f"Retrying (attempt {attempts}/{max_attempts - 1})"


def at_barrier(step: str, batch_id: int, unsettled: int, *, is_closed: bool) -> str:
    """Of a job that is held until its batch has come so far."""
    if unsettled:
        why = f"{unsettled:,} {'item' if unsettled == 1 else 'items'} of batch {batch_id}"
        why += f" {'is' if unsettled == 1 else 'are'} not settled"
    else:
        why = "it is about to open" if is_closed else f"batch {batch_id} is not closed"
    return f"Waiting for the barrier before {step}: {why}"


def in_wave(step: str, wave: str, at_work: int) -> str:
    """Of a job that failed and is held until the others of its step have ended."""
    jobs = f"{at_work:,} {'job is' if at_work == 1 else 'jobs are'} at work" if at_work else "it begins soon"
    return f"Waiting for {wave} of {step}: {jobs}"


def scheduled(step: str, when: str) -> str:
    return f"Waiting to run {step}, which is scheduled for {when}"


def paused(pause: Pause, since: str) -> str:
    """Behind a sentence about a job that waits: who paused it, since when and why. What is paused is named
    where it is more than the step the sentence is about."""
    what = "" if pause.kind is PauseKind.STEP else f"{pause.what} is "
    return f"; {what}{paused_by(pause, since)}"


def paused_by(pause: Pause, since: str) -> str:
    by = f" by {pause.by}" if pause.by else ""
    reason = f": {pause.reason}" if pause.reason else ""
    return f"paused{by} since {since}{reason}"


def full(limit: Limit, lane: Lane, manual: int, bulk: int) -> str:
    """Behind a sentence about a job that waits under a limit without room for its lane."""
    return f": limit {limit.name} is {fullness(limit, lane, manual, bulk)}"


def unoffered() -> str:
    """Behind a sentence about a job that is ready, and for which nobody works."""
    return ": no living worker offers it"


def standstill(steps: Sequence[str], pause: Pause, since: str) -> str:
    """Of steps at which nothing new begins."""
    what = "it" if pause.kind is PauseKind.STEP else pause.what
    return f"Nothing new begins at {' and '.join(steps)}: {what} is {paused_by(pause, since)}"


def waiting_jobs(step: str, jobs: int, why: str) -> str:
    """Of the jobs at a step that are ready; `why` is in the words of `full` or `unoffered`."""
    return f"{jobs:,} {'job waits' if jobs == 1 else 'jobs wait'} at {step}{why}"


def fullness(limit: Limit, lane: Lane, manual: int, bulk: int) -> str:
    running = f"{manual + bulk} of {limit.max_concurrency}"
    if manual + bulk >= limit.max_concurrency or lane is Lane.MANUAL:
        return f"full ({running})"
    return f"full for bulk work ({running}, {limit.reserve} kept for manual work)"
