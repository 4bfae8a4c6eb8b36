"""The claim in PostgreSQL: which jobs are ready for a worker, in the order of leasing, and their lease.

Work that is under no limit is leased by one statement. Where a limit is set over anything that the worker may
take, all of it goes another way, so that the order holds: lock the rows of these limits, count what is leased
under them, choose, lease. The first statement finds that out by itself and leases nothing then; for how long
the other way is needed is remembered, and each use of it sees whether it still is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from holdfast.core.limits import Limit
from holdfast.store import rows
from holdfast.store.choosing import Choice, aged_until, lanes_to_wait_for, shares, waited_since
from holdfast.store.interface import Claimed, ClaimRequest, Taking
from holdfast.store.queries import numbered, of_family

T = TypeVar("T")
Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"
Offer: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], bool]

OFFERS_MAX = 1_000


class PostgresClaim:
    _sql: dict[str, str]
    # What workers offer that is under a limit, as far as is known: handlers, lanes, alone.
    _limited_offers: set[Offer]

    async def _fetch(self, sql: str, *bindings: Any) -> list[Any]:
        raise NotImplementedError

    async def _transact(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        raise NotImplementedError

    async def _change(self, query: str, *bindings: Any) -> list[Any]:
        raise NotImplementedError

    async def claim(self, request: ClaimRequest, now: float) -> list[Claimed]:
        asked_at = time.monotonic()
        offer = (request.handlers, request.lanes, request.alone)
        if offer not in self._limited_offers:
            choice = Choice(request, [])
            found = await self._ask(
                "claim",
                **_asked(request, now),
                **_leasing(request, now),
                **_share_columns(shares(choice, [], request.lanes)),
                limit=request.limit,
            )
            if not found or found[0][0] is not None:
                return rows.claimed(found)
            if len(self._limited_offers) >= OFFERS_MAX:
                self._limited_offers.clear()
            self._limited_offers.add(offer)
        return await self._transact(lambda db: self._claim_under_limits(db, request, now, asked_at))

    async def take_over(
        self, takings: Sequence[Taking], worker_id: str, now: float, lease_seconds: float
    ) -> list[Claimed]:
        columns = [list(column) for column in zip(*takings, strict=True)] or [[], [], []]
        return rows.claimed(await self._change("take_over", *columns, worker_id, now, lease_seconds))

    async def _claim_under_limits(
        self, db: Connection, request: ClaimRequest, now: float, asked_at: float
    ) -> list[Claimed]:
        limits = [Limit(*row) for row in await self._ask("lock_limits", db, **_asked(request, now))]
        if not limits:
            self._limited_offers.discard((request.handlers, request.lanes, request.alone))
        choice = await self._choice(db, request, limits)
        # What became ready while it waited takes its turn: the free places are of that time too.
        now += waited_since(asked_at)
        asked = _asked(request, now)
        bounded = _share_columns(shares(choice, limits, request.lanes))
        if not any(bounded["share_bounds"]):
            return []
        wanted: Counter[int] = Counter()
        limited: dict[int, bool] = {}
        for group, limit, lane in await self._ask("ready_under_limits", db, **asked, **bounded):
            if choice.take(limit, lane):
                wanted[group] += 1
                limited[group] = choice.is_limited(limit)
        if not wanted:
            return []
        found = await self._ask(
            "lease_under_limits",
            db,
            **asked,
            **_leasing(request, now),
            groups=list(wanted),
            jobs=list(wanted.values()),
            are_limited=list(limited.values()),
        )
        return rows.claimed(found)

    async def _choice(self, db: Connection | None, request: ClaimRequest, limits: list[Limit]) -> Choice:
        names = [limit.name for limit in limits]
        found = await self._ask("leased_under_limits", db, limits=names) if names else []
        return Choice(request, limits, {(name, lane): jobs for name, lane, jobs in found})

    async def alone_ready(self, request: ClaimRequest, now: float) -> bool:
        asked = {**_asked(request, now), "alone": True}
        ready = await self._ask("alone_ready", **asked)
        if not ready:
            return False
        limits = [Limit(*row) for row in await self._ask("limits_over_alone", **asked)]
        choice = await self._choice(None, request, limits)
        return any(choice.has_room(limit, lane) for limit, lane in ready)

    async def next_due(self, request: ClaimRequest, now: float) -> float | None:
        asked = {**_asked(request, now), "lanes": lanes_to_wait_for(request)}
        due: float | None = (await self._ask("next_due", **asked))[0][0]
        return due

    async def _ask(self, query: str, db: Connection | None = None, /, **bindings: Any) -> list[Any]:
        """Run a query with those of the bindings that it has parameters for."""
        sql = self._sql[query]
        if bindings.get("family") is not None:
            sql = of_family(sql, self._sql["in_family"])
        sql, names = numbered(sql)
        values = [bindings[name] for name in names]
        return await (self._fetch(sql, *values) if db is None else db.fetch(sql, *values))


def _asked(request: ClaimRequest, now: float) -> dict[str, Any]:
    return {
        "now": now,
        "aged_until": aged_until(request, now),
        "handlers": request.handlers,
        "lanes": request.lanes,
        "alone": request.alone,
        "family": request.family,
    }


def _leasing(request: ClaimRequest, now: float) -> dict[str, Any]:
    return {
        "token": request.token,
        "lease_until": now + request.lease_seconds,
        "worker": request.worker_id,
    }


def _share_columns(bounds: list[tuple[str, str, int]]) -> dict[str, list[Any]]:
    limits, lanes, jobs = zip(*bounds, strict=True) if bounds else ((), (), ())
    return {"share_limits": list(limits), "share_lanes": list(lanes), "share_bounds": list(jobs)}
