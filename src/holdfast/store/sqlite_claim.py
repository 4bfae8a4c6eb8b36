"""The claim in SQLite: which jobs are ready for a worker, in the order of leasing, and their lease.

The one writer that SQLite has is the lock that limits need: what is leased under them is counted in the
transaction of the lease. Groups that have no ready job are never visited, whatever their number.
"""

from __future__ import annotations

import heapq
import json
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import apsw

from holdfast.core.limits import Limit
from holdfast.core.model import Lane
from holdfast.store import rows
from holdfast.store.choosing import Choice, aged_until, lanes_to_wait_for, waited_since
from holdfast.store.interface import Claimed, ClaimRequest, Taking
from holdfast.store.queries import of_family

T = TypeVar("T")


class _Group(NamedTuple):
    """A group with its oldest ready job."""

    id: int
    lane: str
    rank: int
    limit: str
    available_at: float
    oldest: int


# waits for the manual lane, rank, available_at, id: the order of leasing
_Turn = tuple[bool, int, float, int]


class SqliteClaim:
    _sql: dict[str, str]

    async def _write(self, action: Callable[[apsw.Connection], T]) -> T:
        raise NotImplementedError

    async def _reading(self, action: Callable[[apsw.Connection], T]) -> T:
        raise NotImplementedError

    async def claim(self, request: ClaimRequest, now: float) -> list[Claimed]:
        asked_at = time.monotonic()
        return await self._write(lambda db: self._claim(db, request, now, asked_at))

    def _claim(
        self, db: apsw.Connection, request: ClaimRequest, now: float, asked_at: float
    ) -> list[Claimed]:
        # What became ready while it waited takes its turn: the free places are of that time too.
        now += waited_since(asked_at)
        groups = self._ready_groups(db, request, now, alone=request.alone)
        if not groups:
            return []
        limits = self._limits_over(db, groups)
        chosen = self._chosen(db, groups, self._choice(db, request, limits), request, now)
        if not chosen:
            return []
        bound = {
            "ids": json.dumps(chosen),
            "limits": json.dumps([limit.name for limit in limits]),
            "now": now,
            "token": request.token,
            "lease_until": now + request.lease_seconds,
            "alone": request.alone,
            "worker": request.worker_id,
        }
        db.execute(self._sql["lease"], bound)
        return rows.claimed(db.execute(self._sql["claimed"], bound))

    async def take_over(
        self, takings: Sequence[Taking], worker_id: str, now: float, lease_seconds: float
    ) -> list[Claimed]:
        asked_at = time.monotonic()

        def take(db: apsw.Connection) -> list[Claimed]:
            bound = (worker_id, now + waited_since(asked_at), lease_seconds)
            taken = {
                taking.queue_id: None
                for taking in takings
                if db.execute(self._sql["take_over"], (*taking, *bound)).fetchall()
            }
            limits = [name for (name,) in db.execute(self._sql["limit_names"])]
            found = {"ids": json.dumps(list(taken)), "limits": json.dumps(limits)}
            return rows.claimed(db.execute(self._sql["claimed"], found))

        return await self._write(take)

    def _ready_groups(
        self, db: apsw.Connection, request: ClaimRequest, now: float, *, alone: bool
    ) -> list[_Group]:
        bound = {**_offered(request.handlers, request.lanes), "now": now, "alone": alone}
        sql, further = self._of_family("ready_groups", request)
        return [_Group(*row) for row in db.execute(sql, bound | further)]

    def _of_family(self, query: str, request: ClaimRequest) -> tuple[str, dict[str, int]]:
        """With what it is bound to on top."""
        if request.family is None:
            return self._sql[query], {}
        in_family = self._sql["in_family"].format(family=":family")
        return of_family(self._sql[query], in_family), {"family": request.family}

    def _limits_over(self, db: apsw.Connection, groups: list[_Group]) -> list[Limit]:
        names = json.dumps(list({group.limit for group in groups}))
        return [Limit(*row) for row in db.execute(self._sql["limits_over"], (names,))]

    def _choice(self, db: apsw.Connection, request: ClaimRequest, limits: list[Limit]) -> Choice:
        if not limits:
            return Choice(request, [])
        names = json.dumps([limit.name for limit in limits])
        leased = db.execute(self._sql["leased_under_limits"], {"limits": names})
        return Choice(request, limits, {(name, lane): jobs for name, lane, jobs in leased})

    def _chosen(
        self, db: apsw.Connection, groups: list[_Group], choice: Choice, request: ClaimRequest, now: float
    ) -> list[int]:
        """Ids of ready jobs in the order of leasing. A group's other jobs are read once its oldest is chosen;
        a group that has no place left leaves the line."""
        aged = aged_until(request, now)

        def turn(group: _Group, available_at: float, id_: int) -> _Turn:
            return (group.lane == Lane.BULK and available_at > aged, group.rank, available_at, id_)

        line: list[tuple[_Turn, int]] = [
            (turn(group, group.available_at, group.oldest), place) for place, group in enumerate(groups)
        ]
        heapq.heapify(line)
        jobs: dict[int, list[Any]] = {}
        begun: dict[int, int] = {}  # how many of a group's jobs are chosen
        chosen: list[int] = []
        while line and not choice.is_full:
            _, place = heapq.heappop(line)
            group = groups[place]
            left = choice.left(group.limit, group.lane)
            if not left:
                continue
            if place not in jobs:
                jobs[place] = self._ready_in(db, group, request, now, left)
            own, start = jobs[place], begun.get(place, 0)
            # Its next one, and with it all that come before the next one of any other group.
            end = len(own)
            if line:
                end = bisect_left(own, line[0][0], start + 1, key=lambda job: turn(group, *job))
            end = min(end, start + left)
            choice.take(group.limit, group.lane, end - start)
            chosen += [id_ for _, id_ in own[start:end]]
            begun[place] = end
            if end < len(own):
                heapq.heappush(line, (turn(group, *own[end]), place))
        return chosen

    def _ready_in(
        self, db: apsw.Connection, group: _Group, request: ClaimRequest, now: float, limit: int
    ) -> list[Any]:
        sql = self._sql["ready_in_group"]
        bound: tuple[float, ...] = (group.id, now, limit)
        if request.family is not None:
            sql = of_family(sql, self._sql["in_family"].format(family="?4"))
            bound += (request.family,)
        return db.execute(sql, bound).fetchall()

    async def alone_ready(self, request: ClaimRequest, now: float) -> bool:
        def is_ready(db: apsw.Connection) -> bool:
            groups = self._ready_groups(db, request, now, alone=True)
            choice = self._choice(db, request, self._limits_over(db, groups)) if groups else None
            return choice is not None and any(choice.has_room(group.limit, group.lane) for group in groups)

        return await self._reading(is_ready)

    async def next_due(self, request: ClaimRequest, now: float) -> float | None:
        sql, further = self._of_family("next_due", request)
        bound = {**_offered(request.handlers, lanes_to_wait_for(request)), "now": now, **further}

        def find(db: apsw.Connection) -> Any:
            return db.execute(sql, bound).fetchall()[0][0]

        due: float | None = await self._reading(find)
        return due


def _offered(handlers: tuple[str, ...], lanes: tuple[Lane, ...]) -> dict[str, Any]:
    return {"handlers": json.dumps(handlers), "lanes": json.dumps(lanes)}
