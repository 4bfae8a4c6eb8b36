"""Counts in SQLite: there is one writer at a time, so what was read in a transaction holds until its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import apsw

from holdfast.store.tallies import LABELS_MAX, Tally

T = TypeVar("T")


class SqliteTallies:
    _sql: dict[str, str]

    async def _write(self, action: Callable[[apsw.Connection], T]) -> T:
        raise NotImplementedError

    async def write_tallies(self, source: str, tallies: Sequence[Tally], now: float, *, is_new: bool) -> bool:
        def write(db: apsw.Connection) -> bool:
            if is_new:
                db.execute(self._sql["begin_tallies"], (source, now))
            elif not db.execute(self._sql["renew_tallies"], (source, now)).fetchall():
                return False
            db.executemany(self._sql["write_tallies"], [(source, *tally, now) for tally in tallies])
            return True

        return await self._write(write)

    async def fold_tallies(
        self, *, seen_before: float, source: str = "", others: Mapping[str, str] | None = None
    ) -> int:
        def fold(db: apsw.Connection) -> int:
            silent = [name for (name,) in db.execute(self._sql["silent_tallies"], (seen_before, source))]
            sources = json.dumps(silent)
            db.execute(self._sql["fold_tallies"], (sources, json.dumps(others or {}), LABELS_MAX))
            db.execute(self._sql["drop_tallies"], (sources,))
            return len(silent)

        return await self._write(fold)
