"""What is asked of the engine and what it answers, where that is more than a number."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.failures import StoredError
from holdfast.core.model import ExecutionRow, ExecutionStatus, JobRow, Lane, Mode


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work. `delay_seconds` postpones its start; `deadline_seconds` bounds all of it. It gets
    this `version` of its path, or the one registered last."""

    path: str
    workload: Any = None
    lane: Lane = Lane.BULK
    mode: Mode | None = None
    idempotency_key: str | None = None
    delay_seconds: float = 0.0
    deadline_seconds: float | None = None
    version: int | None = None


class Submitted(msgspec.Struct, frozen=True):
    """`created` is False where the idempotency key had named this execution before."""

    id: int
    created: bool


class ExecutionView(msgspec.Struct, frozen=True, kw_only=True):
    """An execution with its jobs, its outputs and one plain sentence. Of a failed one, `skipped` has the
    steps that will not be run, each with the reason. `result` is what the last step returned, or what the
    last steps returned, by their names, where there are several."""

    execution: ExecutionRow
    summary: str
    stage: str | None
    jobs: tuple[JobRow, ...]
    outputs: dict[str, Any]
    skipped: dict[str, str] = {}
    result: Any = None

    @property
    def id(self) -> int:
        return self.execution.id

    @property
    def status(self) -> ExecutionStatus:
        return self.execution.status

    @property
    def error(self) -> StoredError | None:
        """The last error, in plain words and in full; None once the execution has got over it."""
        return self.execution.error


class Page(msgspec.Struct, frozen=True):
    """One page of a list; `next` is the cursor of the following one."""

    items: list[Any]
    next: str | None = None
