"""An execution as people look at it: where it stands, in one plain sentence, with its jobs and what came of
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.describe import describe, for_child
from holdfast.core.model import EventType, ExecutionRow, ExecutionStatus, JobRow, JobStatus
from holdfast.engine.batches import Batches
from holdfast.engine.checks import unknown_execution
from holdfast.engine.controls import Controls
from holdfast.engine.leasing import Leasing
from holdfast.engine.manual_retry import ALREADY_COMPLETED
from holdfast.engine.records import ExecutionView
from holdfast.engine.settle import CHILD
from holdfast.store.interface import JobFilter, Store

EXECUTION_JOBS_MAX = 100_000
EXECUTION_EVENTS_MAX = 100_000
# Of several that have begun and not ended, what tells most of how it goes.
_TELLING = {JobStatus.RETRY: 0, JobStatus.LEASED: 1, JobStatus.QUEUED: 2}


class Viewing:
    def __init__(self, store: Store, controls: Controls, batches: Batches, leasing: Leasing) -> None:
        self._store = store
        self._controls = controls
        self._batches = batches
        self._leasing = leasing

    async def view(self, execution_id: int) -> ExecutionView:
        execution = await self._store.execution(execution_id)
        jobs = await self._store.jobs(JobFilter(execution_id=execution_id, limit=EXECUTION_JOBS_MAX))
        if execution is None or not jobs:  # it may have been pruned between the two
            raise unknown_execution(execution_id)
        current = _current(execution, jobs)
        live = sum(job.status in _TELLING and job.held_by is None for job in jobs)
        summary = describe(
            execution.status,
            step=current.step,
            job_status=current.status,
            attempts=current.attempts,
            max_attempts=current.max_attempts,
            error=execution.error,
            hindrance=await self._controls.hindrance(current),
            waiting_for=await self._waited_for(current, execution.batch_id),
            others=live - 1,
        )
        outputs = await self._leasing.outputs(execution)
        return ExecutionView(
            execution=execution,
            summary=summary,
            stage=current.step,
            jobs=tuple(jobs),
            outputs=outputs,
            skipped=await self._skipped(execution),
            result=await self._leasing.result(execution.id)
            if execution.status is ExecutionStatus.COMPLETED
            else None,
        )

    async def _waited_for(self, job: JobRow, batch_id: int | None) -> str:
        if job.held_by != CHILD:
            return await self._batches.waited_for(job, batch_id)
        for waiting in await self._store.waiting_for_child(job_id=job.queue_id):
            wanted: dict[str, Any] = msgspec.json.decode(waiting.parked)["child"]
            return for_child(job.step, wanted["path"], waiting.child_id)
        return ""

    async def _skipped(self, execution: ExecutionRow) -> dict[str, str]:
        if execution.status is not ExecutionStatus.FAILED:
            return {}
        skipped: dict[str, str] = {}
        for told in await self._store.events(execution.id, None, EXECUTION_EVENTS_MAX):
            if told.type is EventType.MANUAL_RETRY:
                skipped = {}
            elif told.type is EventType.STEP_SKIPPED and told.step is not None:
                skipped[told.step] = told.data["reason"]
        return {step: reason for step, reason in skipped.items() if reason != ALREADY_COMPLETED}


def _current(execution: ExecutionRow, jobs: Sequence[JobRow]) -> JobRow:
    """The job that tells most of where an execution stands: of one that has failed, the one it failed at."""
    live = [job for job in jobs if job.status in _TELLING]
    if live:
        return min(live, key=lambda job: (job.held_by is not None, _TELLING[job.status]))
    failed_at = None if execution.error is None else execution.error.stage
    return next((job for job in reversed(jobs) if job.step == failed_at), jobs[-1])
