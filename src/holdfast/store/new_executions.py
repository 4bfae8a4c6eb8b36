"""Executions on their way into a store, and what it answers.

What many of them have in common is their kind. It is one object for all of them, so that a store is told of
it once and not with each: most of what inserting in bulk costs is saying the same again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.errors import IdempotencyConflict
from holdfast.core.model import ClaimGroup, Lane, Mode


class ExecutionKind(NamedTuple):
    """What executions of one version, lane and mode have in common, with their first job; `events` is the
    packed body of their first events. `plan` is where they stand in a playbook that is more than a chain;
    `input` is handed to the first job; `parent_job` is what a child execution was started for."""

    path: str
    definition_id: int
    lane: Lane
    mode: Mode
    batch_id: int | None
    step: str
    group: ClaimGroup
    max_attempts: int
    events: str
    plan: str | None = None
    input: str | None = None
    parent_job: int | None = None
    depth: int | None = None
    sleep_seconds: float = 0.0


class NewExecution(NamedTuple):
    """An execution with its first job. Its times count from the moment of insertion."""

    kind: ExecutionKind
    workload: str
    workload_hash: str | None = None
    idempotency_key: str | None = None
    deadline_seconds: float | None = None
    delay_seconds: float = 0.0


def kinds_of(executions: Sequence[NewExecution]) -> list[ExecutionKind]:
    """Each once. Told apart by identity, which is quicker than by content; an equal one beside it does no
    harm."""
    return list({id(item.kind): item.kind for item in executions}.values())


def groups_of(executions: Sequence[NewExecution]) -> set[ClaimGroup]:
    return {kind.group for kind in kinds_of(executions)}


def has_keys(executions: Sequence[NewExecution]) -> bool:
    return any(item.idempotency_key is not None for item in executions)


class Inserted(NamedTuple):
    """`created` is False where the idempotency key was known; the hash is the stored workload's."""

    execution_id: int
    created: bool
    workload_hash: str | None

    def checked(self, wanted: NewExecution) -> Inserted:
        """Itself, unless the key was given before with another workload."""
        if self.workload_hash != wanted.workload_hash:
            raise IdempotencyConflict(
                f"The idempotency key {wanted.idempotency_key!r} of {wanted.kind.path} belongs to execution"
                f" {self.execution_id}, which has another workload."
                if wanted.kind.batch_id is None
                else f"The key of an item is known in batch {wanted.kind.batch_id}: it belongs to execution"
                f" {self.execution_id}, which has another workload.",
                guidance="Submit the same workload again, or choose another key.",
            )
        return self
