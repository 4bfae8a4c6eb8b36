"""Limits and pauses: what a store can be asked about them, and how both of them answer, a statement each.

Setting a limit writes its row, whose lock a claim under it holds while it counts: so a new limit holds for
every claim that begins after it was set. What is leased under a limit is counted, and kept nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.core.audit import AuditEntry, Deed, audited
from holdfast.core.limits import Limit
from holdfast.core.pauses import Pause, PauseKind

if TYPE_CHECKING:
    from holdfast.store.interface import Condition

# Names that people make, one by one.
NAMES_MAX = 100_000


class LimitRow(NamedTuple):
    """A limit with how much is leased under it in each lane; `max_concurrency` is None where steps name it
    and nobody has set it."""

    name: str
    max_concurrency: int | None
    manual_reserve: int | None
    set_by: str | None
    set_at: float | None
    leased_manual: int
    leased_bulk: int


class ControllingStore(Protocol):
    async def set_limit(self, limit: Limit, by: str, now: float) -> None:
        """Set it, or change it; it holds for every claim from then on, and what is leased stays so."""

    async def remove_limit(self, name: str, by: str, now: float) -> bool:
        """Whether it was set."""

    async def limits(self) -> list[LimitRow]:
        """By name; also those that a step has ever named and nobody has set."""

    async def pause(self, kind: PauseKind, name: str, by: str, reason: str, now: float) -> Pause:
        """Lease nothing more there; where it is paused already, that pause."""

    async def resume(self, kind: PauseKind, name: str, by: str, now: float) -> Pause | None:
        """The pause that has ended, None where there was none."""

    async def pauses(self) -> list[Pause]:
        """The oldest first."""


class Controlling:
    async def _change(
        self, query: str, *bindings: Any, audit: AuditEntry | None = None, now: float = 0.0
    ) -> list[Any]:
        """One statement in a transaction of its own, and the rows it gives back; where it gives any, the
        entry of the audit trail is written with it."""
        raise NotImplementedError

    async def _list(self, query: str, conditions: list[Condition], limit: int) -> list[Any]:
        raise NotImplementedError

    async def set_limit(self, limit: Limit, by: str, now: float) -> None:
        most, reserve = limit.max_concurrency, limit.manual_reserve
        audit = audited(
            by, Deed.SET_LIMIT, f"limit {limit.name}", max_concurrency=most, manual_reserve=reserve
        )
        await self._change("set_limit", limit.name, most, reserve, by, now, audit=audit, now=now)

    async def remove_limit(self, name: str, by: str, now: float) -> bool:
        audit = audited(by, Deed.REMOVE_LIMIT, f"limit {name}")
        return bool(await self._change("remove_limit", name, audit=audit, now=now))

    async def limits(self) -> list[LimitRow]:
        return [LimitRow(*row) for row in await self._list("limit_rows", [], NAMES_MAX)]

    async def pause(self, kind: PauseKind, name: str, by: str, reason: str, now: float) -> Pause:
        audit = audited(by, Deed.PAUSE, f"{kind.value} {name}", reason=reason)
        while True:
            if made := await self._change("pause", kind.value, name, by, reason, now, audit=audit, now=now):
                return _pause(made[0])
            same: list[Condition] = [("p.kind = {}", kind.value), ("p.name = {}", name)]
            if found := await self._list("pause_rows", same, 1):
                return _pause(found[0], already=True)
            # Somebody resumed it between the two: then it is to be paused anew.

    async def resume(self, kind: PauseKind, name: str, by: str, now: float) -> Pause | None:
        audit = audited(by, Deed.RESUME, f"{kind.value} {name}")
        ended = await self._change("resume", kind.value, name, audit=audit, now=now)
        return _pause(ended[0]) if ended else None

    async def pauses(self) -> list[Pause]:
        return [_pause(row) for row in await self._list("pause_rows", [], NAMES_MAX)]


def _pause(row: Any, *, already: bool = False) -> Pause:
    kind, name, by, reason, since = row
    return Pause(kind=PauseKind(kind), name=name, by=by, reason=reason, since=since, already=already)
