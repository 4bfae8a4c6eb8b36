"""What a plan wants written: the rows to change and to add, at one moment, in one transaction."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.core.audit import AuditEntry
from holdfast.core.gates import BatchState
from holdfast.core.model import ClaimGroup, ExecutionState, ExecutionStatus, JobState


class NewJob(NamedTuple):
    execution_id: int
    step: str
    round: int
    group: ClaimGroup
    max_attempts: int
    available_at: float
    clear: str | None = None
    held_by: str | None = None
    scheduled_for: float | None = None
    element: int = -1
    input: str | None = None


class CompletedStage(NamedTuple):
    """The hot case, kept slim: a job is done, its execution one stage further, and this is what the log
    says of it. Written by one statement."""

    job_id: int
    execution_id: int
    outcome_hash: str
    output: str
    status: ExecutionStatus
    stage: str
    events: str


class FinishedJob(NamedTuple):
    """A job is done, with its output; what that does to its execution is written apart."""

    job_id: int
    outcome_hash: str
    output: str


class NextElements(NamedTuple):
    """So many elements of a step that wait for a place get one, the first of them first."""

    execution_id: int
    step: str
    round: int
    jobs: int


class ChangedJob(NamedTuple):
    """The job's new state; `group` where it moves to another claim group."""

    job: JobState
    group: ClaimGroup | None = None


class Changes(msgspec.Struct):
    """What a plan wants written, at one moment, in one transaction. `let_through` are elements that waited
    for a place; `superseded` names steps of executions whose outputs so far count no longer."""

    completed: list[CompletedStage] = []
    jobs: list[ChangedJob] = []
    executions: list[ExecutionState] = []
    new_jobs: list[NewJob] = []
    events: list[tuple[int, str]] = []
    batches: list[BatchState] = []
    finished: list[FinishedJob] = []
    let_through: list[NextElements] = []
    superseded: list[tuple[int, str]] = []
    audit: list[AuditEntry] = []
