"""What the tools that look after executions ask of an engine, beside its verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.model import ExecutionRow, WorkerRow
from holdfast.engine.controls import living_workers
from holdfast.engine.settle import child_key
from holdfast.store.interface import Store

if TYPE_CHECKING:
    from holdfast.store.inspection import Inspection


class Asking:
    store: Store

    async def expired_leases(self, seconds: float, limit: int) -> int:
        """How many leases ran out so long ago and are still there, counted up to `limit`."""
        return len(await self.store.expired(await self.store.now() - seconds, limit))

    async def child_execution(self, queue_id: int, attempt: int, path: str) -> ExecutionRow | None:
        """The execution that was started for this attempt of a job: the one it waits for, or, once nobody
        waits any more, the one of this path."""
        waiting = await self.store.waiting_for_child(job_id=queue_id)
        if waiting and waiting[0].attempts == attempt and waiting[0].child_id is not None:
            return await self.store.execution(waiting[0].child_id)
        return await self.store.execution_by_key(path, child_key(queue_id, attempt))

    async def living_workers(self) -> list[WorkerRow]:
        """Those that have told lately what they offer."""
        return await living_workers(self.store, await self.store.now())

    async def inspection(self) -> Inspection:
        """The database, looked at from outside."""
        from holdfast.store.inspection import inspect  # it loads the drivers of both stores

        return await inspect(self.store.url)
