"""Completed attempts of which all is known but whether their leases are still held: what a store is handed to
settle them by one statement, without loading their rows first."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.model import ClaimGroup, ExecutionStatus


class FollowingJob(NamedTuple):
    """The job that a completed one is followed by, ready at once."""

    step: str
    round: int
    group: ClaimGroup
    max_attempts: int


class StageEnd(NamedTuple):
    """What completing an attempt does, and the log says of it: the same for all attempts alike.
    `frees_place` where its step is under a limit."""

    status: ExecutionStatus
    stage: str
    events: str
    following: FollowingJob | None
    frees_place: bool
    path: str = ""


class HeldStage(NamedTuple):
    """A stage that is completed by an attempt of which all is known but whether its lease is still held."""

    job_id: int
    execution_id: int
    fence: str
    outcome_hash: str
    output: str
    end: StageEnd
    leased_at: float = 0.0
