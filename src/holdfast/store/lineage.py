"""What comes of what: the outputs that later steps read, and the child executions that jobs wait for. The
same on both stores, which differ only in how a list of values is given to a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.model import ExecutionRow, ExecutionStatus
from holdfast.store import rows
from holdfast.store.interface import Condition, DefinitionRow, Output, WaitingForChild


class Lineage:
    async def _rows(self, query: str, *values: object) -> Sequence[Sequence[Any]]:
        """A named query that only reads, with its values in their order; lists are lists of ids or of
        names."""
        raise NotImplementedError

    async def _list(self, query: str, conditions: list[Condition], limit: int) -> list[Any]:
        raise NotImplementedError

    async def outputs(self, execution_ids: Sequence[int]) -> list[Output]:
        return [Output(*row) for row in await self._rows("outputs", list(execution_ids))]

    async def step_outputs(self, execution_ids: Sequence[int], steps: Sequence[str]) -> list[Output]:
        return [Output(*row) for row in await self._rows("step_outputs", list(execution_ids), list(steps))]

    async def execution_by_key(self, path: str, idempotency_key: str) -> ExecutionRow | None:
        conditions: list[Condition] = [("e.path = {}", path), ("e.idempotency_key = {}", idempotency_key)]
        found = await self._list("executions", conditions, 1)
        return rows.execution_row(found[0]) if found else None

    async def definition_of(self, execution_id: int) -> int | None:
        found = await self._rows("definition_of", execution_id)
        return found[0][0] if found else None

    async def definition_version(self, path: str, version: int) -> DefinitionRow | None:
        found = await self._rows("definition_version", path, version)
        return DefinitionRow(*found[0]) if found else None

    async def handed_inputs(self, places: Sequence[tuple[int, str, int]]) -> dict[tuple[int, str, int], str]:
        columns = [list(column) for column in zip(*places, strict=True)]
        found = await self._rows("handed_inputs", *columns) if places else []
        last = {(execution_id, step, place): input for execution_id, step, place, input in found}
        return {place: input for place, input in last.items() if input is not None}

    async def waiting_for_child(
        self, *, job_id: int | None = None, after: int = 0, limit: int = 1
    ) -> list[WaitingForChild]:
        found = await self._rows("waiting_for_child", after, job_id, limit)
        return [
            WaitingForChild(id_, parked, attempts, child, None if status is None else ExecutionStatus(status))
            for id_, parked, attempts, child, status in found
        ]

    async def orphans(self, limit: int) -> list[int]:
        return [id_ for (id_,) in await self._rows("orphans", limit)]

    async def children(self, execution_id: int, limit: int) -> list[int]:
        return [id_ for (id_,) in await self._rows("children", execution_id, limit)]
