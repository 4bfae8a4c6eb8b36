"""The whole state machine of a job, in one place.

    queued ──lease──▶ leased ──complete──▶ done
      ▲                │  ▲
      └──release, park─┤  │ lease, once available_at is reached
                  fail │  │
                       ▼  │
                     retry ┘        fail, and no retry left or none allowed ──▶ dead

    cancel leads from queued, retry and leased to cancelled. Done, dead and cancelled are final:
    a manual retry makes a new row in a new round.

`LEGAL_MOVES` is the table of what may follow what; each move has a named function, and every one of
them goes through `_move`, which refuses the rest. `decide()` answers the one hard question: after this
error, retry or die? Pure: time and the jitter draw are arguments, conditions were evaluated before.

The claim makes the `lease` move in SQL for many rows at once; the conformance suite holds it to the
function here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.catalogue import Category
from holdfast.core.failures import Classification
from holdfast.core.model import DeadReason, JobState, JobStatus
from holdfast.core.retry import RetryPolicy

LEGAL_MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.LEASED, JobStatus.CANCELLED}),
    JobStatus.RETRY: frozenset({JobStatus.LEASED, JobStatus.CANCELLED}),
    JobStatus.LEASED: frozenset(
        {JobStatus.DONE, JobStatus.RETRY, JobStatus.DEAD, JobStatus.QUEUED, JobStatus.CANCELLED}
    ),
    JobStatus.DONE: frozenset(),
    JobStatus.DEAD: frozenset(),
    JobStatus.CANCELLED: frozenset(),
}

MAX_CRASHES_DEFAULT = 3


class IllegalMove(AssertionError):
    """A transition that the table does not allow was asked for: a bug in Holdfast, never a user's."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an error before the decision.

    `stop` and `retry` are the values of `stop_when` and `retry_when`; None where the policy has none
    or it failed to evaluate (then `condition_error` says why). `worker_lost` and `crashed` tell whose death
    it was: of a worker, which others may have caused, or of the attempt's own process.
    """

    classification: Classification
    stop: bool | None = None
    retry: bool | None = None
    condition_error: str | None = None
    retry_after: float | None = None
    worker_lost: bool = False
    crashed: bool = False


class RetryLater(msgspec.Struct, frozen=True):
    delay: float
    available_at: float


class Die(msgspec.Struct, frozen=True):
    reason: DeadReason


Decision = RetryLater | Die


def decide(
    job: JobState,
    verdict: Verdict,
    policy: RetryPolicy,
    *,
    now: float,
    draw: float,
    max_crashes: int = MAX_CRASHES_DEFAULT,
) -> Decision:
    """Retry or die: the rows of the decision table, in their order.

    `job` carries its counters with this failure already counted (see `fail`).
    """
    category = verdict.classification.category
    if job.crashes >= max_crashes:
        return Die(DeadReason.POISONED)
    if verdict.stop:
        return Die(DeadReason.STOPPED)
    if verdict.retry is False:
        return Die(DeadReason.NOT_RETRYABLE)
    if verdict.retry is None and category is Category.PERMANENT:
        return Die(DeadReason.PERMANENT)
    if job.attempts >= job.max_attempts:
        return Die(DeadReason.EXHAUSTED)
    if (
        verdict.retry is None
        and category is Category.UNKNOWN
        and job.unknown_errors >= policy.unknown_attempts
    ):
        return Die(DeadReason.UNKNOWN_LIMIT)
    delay = policy.delay_after(job.attempts, draw, verdict.retry_after)
    return RetryLater(delay, now + delay)


def lease(job: JobState, *, fence: str, lease_until: float, now: float) -> JobState:
    """The attempt is counted here, not at its end, so a crash uses one up."""
    return _move(
        job,
        JobStatus.LEASED,
        attempts=job.attempts + 1,
        fence=fence,
        lease_until=lease_until,
        leased_alone=job.losses > 0,
        last_attempt_at=now,
    )


def complete(job: JobState, *, outcome_hash: str) -> JobState:
    return _settle(job, JobStatus.DONE, outcome_hash)


def fail(
    job: JobState,
    verdict: Verdict,
    policy: RetryPolicy,
    *,
    outcome_hash: str,
    cleared: bool,
    now: float,
    draw: float,
    max_crashes: int = MAX_CRASHES_DEFAULT,
    wave: str | None = None,
) -> tuple[JobState, Decision]:
    """Count the failure, decide, and move. A lost worker counts as a crash only while the job ran alone, the
    death of its own process always: nobody else was in it. A retry waits for its `wave`, where it has one."""
    is_unknown = verdict.classification.category is Category.UNKNOWN
    counted = msgspec.structs.replace(
        job,
        unknown_errors=job.unknown_errors + is_unknown,
        losses=job.losses + (verdict.worker_lost or verdict.crashed),
        crashes=job.crashes + (verdict.crashed or (verdict.worker_lost and job.leased_alone)),
        clear=None if cleared else job.clear,
    )
    decision = decide(counted, verdict, policy, now=now, draw=draw, max_crashes=max_crashes)
    if isinstance(decision, Die):
        return _settle(counted, JobStatus.DEAD, outcome_hash, dead_reason=decision.reason), decision
    # After a jump of the clock the retry could come before the time that the job was scheduled for.
    available_at = max(decision.available_at, job.scheduled_for or 0.0)
    retried = _settle(
        counted, JobStatus.RETRY, outcome_hash, available_at=available_at, held_by=wave, parked=None
    )
    return retried, RetryLater(decision.delay, available_at)


def release(job: JobState, *, now: float) -> JobState:
    """Give an attempt back unused: its number may be used again, its fence never."""
    attempts = job.attempts - 1
    to = JobStatus.RETRY if attempts else JobStatus.QUEUED
    available_at = max(now, job.scheduled_for or 0.0)
    return _move(job, to, attempts=attempts, fence=None, lease_until=None, available_at=available_at)


def park(
    job: JobState, *, outcome_hash: str, available_at: float, held_by: str | None, parked: str
) -> JobState:
    """Put an attempt aside: given back like one that is released, for what it waits for to happen. The same
    report again is accepted again."""
    attempts = job.attempts - 1
    to = JobStatus.RETRY if attempts else JobStatus.QUEUED
    return _settle(
        job,
        to,
        outcome_hash,
        attempts=attempts,
        available_at=max(available_at, job.scheduled_for or 0.0),
        held_by=held_by,
        parked=parked,
    )


def cancel(job: JobState) -> JobState:
    return _move(job, JobStatus.CANCELLED, fence=None, lease_until=None, held_by=None)


def let_through(job: JobState, *, available_at: float, scheduled_for: float | None) -> JobState:
    """What held the job holds it no longer; it stays queued or waiting for its retry."""
    if job.held_by is None:
        raise IllegalMove(f"job {job.id} is not held by anything")
    return msgspec.structs.replace(
        job, held_by=None, available_at=available_at, scheduled_for=scheduled_for or job.scheduled_for
    )


def _settle(job: JobState, to: JobStatus, outcome_hash: str, **changes: Any) -> JobState:
    # The settled fence and hash let the same report be accepted again without changing anything.
    return _move(
        job,
        to,
        fence=None,
        lease_until=None,
        settled_fence=job.fence,
        settled_hash=outcome_hash,
        **changes,
    )


def _move(job: JobState, to: JobStatus, **changes: Any) -> JobState:
    if to not in LEGAL_MOVES[job.status]:
        allowed = ", ".join(sorted(LEGAL_MOVES[job.status])) or "nothing: it is final"
        raise IllegalMove(f"job {job.id} cannot go from {job.status} to {to}; allowed: {allowed}")
    return msgspec.structs.replace(job, status=to, **changes)
