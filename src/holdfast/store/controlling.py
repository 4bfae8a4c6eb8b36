"""Limits and pauses as they are kept: the same on both stores, a statement each.

Setting a limit writes its row, whose lock a claim under it holds while it counts: so a new limit holds for
every claim that begins after it was set. What is leased under a limit is counted, and kept nowhere.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.limits import Limit
from holdfast.core.pauses import Pause, PauseKind
from holdfast.store.interface import Condition, LimitRow

# Names that people make, one by one.
NAMES_MAX = 100_000


class Controlling:
    async def _change(self, query: str, *bindings: Any) -> list[Any]:
        """One statement in a transaction of its own, and the rows it gives back."""
        raise NotImplementedError

    async def _list(self, query: str, conditions: list[Condition], limit: int) -> list[Any]:
        raise NotImplementedError

    async def set_limit(self, limit: Limit, by: str, now: float) -> None:
        await self._change("set_limit", limit.name, limit.max_concurrency, limit.manual_reserve, by, now)

    async def remove_limit(self, name: str) -> bool:
        return bool(await self._change("remove_limit", name))

    async def limits(self) -> list[LimitRow]:
        return [LimitRow(*row) for row in await self._list("limit_rows", [], NAMES_MAX)]

    async def pause(self, kind: PauseKind, name: str, by: str, reason: str, now: float) -> Pause:
        while True:
            if made := await self._change("pause", kind.value, name, by, reason, now):
                return _pause(made[0])
            same: list[Condition] = [("p.kind = {}", kind.value), ("p.name = {}", name)]
            if found := await self._list("pause_rows", same, 1):
                return _pause(found[0], already=True)
            # Somebody resumed it between the two: then it is to be paused anew.

    async def resume(self, kind: PauseKind, name: str) -> Pause | None:
        ended = await self._change("resume", kind.value, name)
        return _pause(ended[0]) if ended else None

    async def pauses(self) -> list[Pause]:
        return [_pause(row) for row in await self._list("pause_rows", [], NAMES_MAX)]


def _pause(row: Any, *, already: bool = False) -> Pause:
    kind, name, by, reason, since = row
    return Pause(kind=PauseKind(kind), name=name, by=by, reason=reason, since=since, already=already)
