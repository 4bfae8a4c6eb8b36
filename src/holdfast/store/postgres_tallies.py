"""Counts in PostgreSQL: whoever writes a source, and whoever folds it, locks the row without a name first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from holdfast.store.tallies import LABELS_MAX, Tally

T = TypeVar("T")
Connection: TypeAlias = Any


class PostgresTallies:
    _sql: dict[str, str]

    async def _transact(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        raise NotImplementedError

    async def write_tallies(self, source: str, tallies: Sequence[Tally], now: float, *, is_new: bool) -> bool:
        columns = list(zip(*tallies, strict=True)) or [(), (), ()]

        async def write(db: Connection) -> bool:
            stands = "begin_tallies" if is_new else "renew_tallies"
            if not await db.fetch(self._sql[stands], source, now):
                return False
            await db.execute(self._sql["write_tallies"], source, *columns, now)
            return True

        return await self._transact(write)

    async def fold_tallies(
        self, *, seen_before: float, source: str = "", others: Mapping[str, str] | None = None
    ) -> int:
        names, labels = list((others or {}).keys()), list((others or {}).values())

        async def fold(db: Connection) -> int:
            silent = [one for (one,) in await db.fetch(self._sql["silent_tallies"], seen_before, source)]
            if silent:
                await db.execute(self._sql["fold_tallies"], silent, names, labels, LABELS_MAX)
            return len(silent)

        return await self._transact(fold)
