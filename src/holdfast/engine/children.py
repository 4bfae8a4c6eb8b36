"""Child executions: started for a job that waits for them, and ended with it.

    an attempt is put aside ──▶ its job waits, with what it asked for ──▶ the child is started, under the key
    of job and attempt ──▶ the child ends ──▶ the job is let through, and its next lease is told what came of
    the child

Each arrow is a transaction of its own, and between any two of them a process may die: the job that waits is
the truth, and whoever sweeps starts a child that is missing, lets through a job whose child has ended, and
cancels children whose jobs have ended without them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core import transitions
from holdfast.core.errors import HoldfastError, StoreError
from holdfast.core.model import ExecutionStatus, JobState
from holdfast.engine.definitions import Definitions
from holdfast.engine.events import text_of
from holdfast.engine.records import Submission
from holdfast.engine.settle import CHILD
from holdfast.engine.submission import Kinds, new_executions
from holdfast.store.changes import ChangedJob, Changes
from holdfast.store.interface import Locked, Store, WaitingForChild

log = logging.getLogger("holdfast.engine")

DEPTH_MAX = 10
PAGE_JOBS = 500


class Children:
    """`cancel` ends an execution, and what was started for it."""

    def __init__(
        self,
        store: Store,
        definitions: Definitions,
        *,
        payload_bytes_max: int,
        cancel: Callable[[Sequence[int]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._definitions = definitions
        self._payload_bytes_max = payload_bytes_max
        self._cancel = cancel

    async def attend(self, job_ids: Iterable[int]) -> None:
        """Go on at once with jobs that wait for children. Where that fails, the next sweep does it."""
        for job_id in job_ids:
            try:
                for waiting in await self._store.waiting_for_child(job_id=job_id):
                    await self._go_on(waiting)
            except StoreError as error:
                log.warning("Job %d waits for its child until the next sweep: %s", job_id, error)

    async def sweep(self) -> int:
        after, found = 0, 0
        while True:
            page = await self._store.waiting_for_child(after=after, limit=PAGE_JOBS)
            for waiting in page:
                found += await self._go_on(waiting)
            if len(page) < PAGE_JOBS:
                break
            after = page[-1].job_id
        orphans = await self._store.orphans(PAGE_JOBS)
        if orphans:
            await self._cancel(orphans)
        return found + len(orphans)

    async def _go_on(self, waiting: WaitingForChild) -> bool:
        """Whether there was anything to do for it."""
        if waiting.child_id is None:
            return await self._start(waiting)
        if waiting.child_status is ExecutionStatus.RUNNING:
            return False
        await self._let_through(waiting.job_id, waiting.parked)
        return True

    async def _start(self, waiting: WaitingForChild) -> bool:
        wanted: dict[str, Any] = msgspec.json.decode(waiting.parked)["child"]
        found = await self._store.peek_jobs([waiting.job_id])
        if not found or found[0].job.held_by != CHILD:
            return False
        execution = found[0].execution
        depth = (execution.depth or 0) + 1
        try:
            if depth > DEPTH_MAX:
                raise _too_deep(wanted["path"])
            latest = await self._definitions.version(wanted["path"], wanted.get("version"))
            new = new_executions(
                [Submission(path=wanted["path"], workload=wanted["workload"], lane=execution.lane)],
                {(wanted["path"], None): latest},
                Kinds(parent=(waiting.job_id, depth)),
                payload_bytes_max=self._payload_bytes_max,
            )
        except StoreError:
            raise
        except HoldfastError as error:
            refused = {"refused": {"message": str(error), "guidance": error.guidance}}
            await self._let_through(waiting.job_id, text_of(refused))
            return True
        keyed = [item._replace(idempotency_key=wanted["key"]) for item in new]
        [child] = await self._store.insert(keyed, await self._store.now())
        self._store.announce_work()
        return child.created

    async def _let_through(self, job_id: int, parked: str) -> None:
        now = await self._store.now()

        def let_through(locked: list[Locked]) -> Changes:
            changes = Changes()
            for job, _ in locked:
                if job.held_by == CHILD:
                    changes.jobs.append(ChangedJob(_freed(job, now, parked)))
            return changes

        await self._store.amend_jobs([job_id], let_through, now)
        self._store.announce_work()


def _freed(job: JobState, now: float, parked: str) -> JobState:
    freed = transitions.let_through(job, available_at=now, scheduled_for=None)
    return msgspec.structs.replace(freed, parked=parked)


def _too_deep(path: str) -> HoldfastError:
    return HoldfastError(
        f"{path} would be the {DEPTH_MAX + 1}th playbook inside another one; {DEPTH_MAX} are allowed.",
        guidance="A playbook that calls itself needs a condition that ends that.",
    )
