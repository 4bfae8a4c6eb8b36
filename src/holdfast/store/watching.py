"""The verbs that only look and count: the same on both stores, whose queries give the same columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.gates import BatchRow
from holdfast.core.model import ExecutionRow, ExecutionStatus, JobStatus, Lane, LeaseRef, WorkerRow
from holdfast.store import rows
from holdfast.store.catalog import CatalogRow
from holdfast.store.event_rows import BegunAttempt, EventGap, EventRow
from holdfast.store.interface import (
    BatchCount,
    BatchPace,
    BatchWork,
    Condition,
    DefinitionRow,
    FailureFilter,
    FailureGroup,
    FailureRow,
    OpenWork,
)
from holdfast.store.tallies import Tally

# Handlers times lanes times statuses: more than any fleet has, and still a bound.
GROUPS_MAX = 100_000
# In the numbers of the query of a batch's steps.
_MOST_ALIVE = {
    5: JobStatus.LEASED,
    4: JobStatus.QUEUED,
    3: JobStatus.DEAD,
    2: JobStatus.DONE,
    1: JobStatus.CANCELLED,
}


class Watching:
    async def _list(self, query: str, conditions: list[Condition], limit: int) -> list[Any]:
        """A named listing with those of its conditions that have a value."""
        raise NotImplementedError

    async def _rows(self, query: str, *values: object) -> Sequence[Sequence[Any]]:
        """A named query that only reads, with its values in their order."""
        raise NotImplementedError

    def _by_index(self, batch_id: int | None, status: ExecutionStatus | None) -> list[Condition]:
        """What more to ask for so that executions of a batch in a state are found by an index."""
        return []

    async def latest_definitions(self, path: str | None, limit: int) -> list[DefinitionRow]:
        found = await self._list("latest_definitions", [("d.path = {}", path)], limit)
        return [DefinitionRow(*row) for row in found]

    async def catalog(
        self,
        path: str | None,
        *,
        version: int | None = None,
        current: bool = False,
        after: str | None = None,
        below: int | None = None,
        limit: int,
    ) -> list[CatalogRow]:
        conditions: list[Condition] = [
            ("d.path = {}", path), ("d.version = {}", version), ("d.place = {}", 1 if current else None),
            ("d.path > {}", after), ("d.version < {}", below),
        ]  # fmt: skip
        found = [CatalogRow(*row) for row in await self._list("catalog", conditions, limit)]
        return [row._replace(is_yaml=bool(row.is_yaml), is_current=bool(row.is_current)) for row in found]

    async def definition_source(self, definition_id: int) -> str | None:
        found = await self._list("definition_source", [("d.id = {}", definition_id)], 1)
        return found[0][0] if found else None

    async def workers(self, limit: int) -> list[WorkerRow]:
        return [rows.worker_row(row) for row in await self._list("workers", [], limit)]

    async def leases_of(self, worker_id: str, limit: int) -> list[tuple[LeaseRef, bool]]:
        found = await self._list("leases_of", [("j.worker_id = {}", worker_id)], limit)
        return [(LeaseRef(id_, fence), bool(alone)) for id_, fence, alone in found]

    async def handlers(self) -> list[str]:
        return [handler for (handler,) in await self._list("handlers", [], GROUPS_MAX)]

    async def open_work(self, now: float) -> list[OpenWork]:
        return [
            OpenWork(JobStatus(status), handler, Lane(lane), jobs, oldest, bool(alone), *rest)
            for status, handler, lane, jobs, oldest, alone, *rest in await self._rows(
                "open_work", now, GROUPS_MAX
            )
        ]

    async def batch(self, batch_id: int) -> BatchRow | None:
        found = await self._list("batches", [("b.id = {}", batch_id)], 1)
        return rows.batch_row(found[0]) if found else None

    async def batches(
        self, *, before: int | None, limit: int, open_since: float | None = None, path: str | None = None
    ) -> list[BatchRow]:
        conditions: list[Condition] = [
            ("b.id < {}", before), ("b.closed_at IS NULL AND b.created_at <= {}", open_since),
            ("b.path = {}", path),
        ]  # fmt: skip
        return [rows.batch_row(row) for row in await self._list("batches", conditions, limit)]

    async def batch_items(
        self, batch_id: int, *, status: ExecutionStatus | None, after: int, limit: int
    ) -> list[ExecutionRow]:
        conditions: list[Condition] = [
            ("e.batch_id = {}", batch_id), ("e.status = {}", status), ("e.id > {}", after or None),
            *self._by_index(batch_id, status),
        ]  # fmt: skip
        return [rows.execution_row(row) for row in await self._list("batch_items", conditions, limit)]

    async def batch_counts(self, batch_id: int) -> list[BatchCount]:
        found = await self._list("batch_counts", [("e.batch_id = {}", batch_id)], GROUPS_MAX)
        return [
            BatchCount(ExecutionStatus(status), step, job and JobStatus(job), held_by, items)
            for status, step, job, held_by, items in found
        ]

    async def batch_executions(self, batch_id: int) -> list[BatchCount]:
        found = await self._list("batch_executions", [("e.batch_id = {}", batch_id)], len(ExecutionStatus))
        return [BatchCount(ExecutionStatus(status), None, None, None, items) for status, items in found]

    async def batch_steps(self, batch_id: int) -> list[BatchCount]:
        found = await self._list("batch_steps", [("e.batch_id = {}", batch_id)], GROUPS_MAX)
        return [
            BatchCount(ExecutionStatus(status), step, _MOST_ALIVE[told], None, items)
            for status, step, told, items in found
        ]

    async def batch_paces(self, batch_id: int, since: float) -> list[BatchPace]:
        conditions: list[Condition] = [("e.batch_id = {}", batch_id), ("j.finished_at >= {}", since)]
        return [BatchPace(*row) for row in await self._list("batch_paces", conditions, GROUPS_MAX)]

    async def batch_work(self, batch_id: int, *, scheduled_after: float | None = None) -> list[BatchWork]:
        conditions: list[Condition] = [
            ("e.batch_id = {}", batch_id), ("j.scheduled_for > {}", scheduled_after),
        ]  # fmt: skip
        found = await self._list("batch_work", conditions, GROUPS_MAX)
        return [BatchWork(step, handler, Lane(lane), *rest) for step, handler, lane, *rest in found]

    async def held_work(self) -> dict[Lane, int]:
        return {Lane(lane): jobs for lane, jobs in await self._list("held_work", [], len(Lane))}

    async def execution_counts(self) -> dict[ExecutionStatus, int]:
        found = await self._list("execution_counts", [], len(ExecutionStatus))
        return {ExecutionStatus(status): count for status, count in found}

    async def open_executions(self) -> dict[ExecutionStatus, int]:
        [[running]] = await self._rows("running_executions")
        [[failed]] = await self._rows("failed_executions")
        return {ExecutionStatus.RUNNING: running, ExecutionStatus.FAILED: failed}

    async def tallies(self) -> list[Tally]:
        found = await self._list("tallies", [], GROUPS_MAX)
        return [Tally(name, labels, int(value)) for name, labels, value in found]

    async def failures(self, query: FailureFilter, after: int, limit: int) -> list[FailureRow]:
        conditions = [("f.execution_id > {}", after or None), *query.conditions()]
        return [FailureRow(*row) for row in await self._list("failures", conditions, limit)]

    async def failure_groups(self, query: FailureFilter, limit: int) -> list[FailureGroup]:
        return [FailureGroup(*row) for row in await self._list("failure_groups", query.conditions(), limit)]

    # events across executions, for a feed of them

    async def last_event_row(self) -> int:
        last: int = (await self._rows("last_event_row"))[0][0]
        return last

    async def event_rows(
        self,
        after: int,
        limit: int,
        *,
        until: int | None = None,
        execution_id: int | None = None,
        path: str | None = None,
    ) -> list[EventRow]:
        conditions: list[Condition] = [
            ("v.id > {}", after), ("v.id <= {}", until), ("v.execution_id = {}", execution_id),
            ("e.path = {}", path),
        ]  # fmt: skip
        return [EventRow(*row) for row in await self._list("event_rows", conditions, limit)]

    async def event_rows_at(self, ids: Sequence[int]) -> list[EventRow]:
        return [EventRow(*row) for row in await self._rows("event_rows_at", list(ids))]

    async def event_gaps(self, after: int, until: int, limit: int) -> list[EventGap]:
        return [EventGap(*row) for row in await self._rows("event_gaps", after, until, limit)]

    async def begun_since(
        self, at: float, limit: int, *, execution_id: int | None = None
    ) -> list[BegunAttempt]:
        conditions: list[Condition] = [
            ("coalesce(j.last_attempt_at, j.created_at) >= {}", at), ("j.execution_id = {}", execution_id),
        ]  # fmt: skip
        newest_first = await self._list("begun", conditions, limit)
        return [BegunAttempt(*row) for row in reversed(newest_first)]
