"""Completing held attempts in PostgreSQL: one statement, which is a transaction of its own.

It locks as everything else does, the execution before its job, both in the order of execution ids; the job is
found by its fence, and where one is missing the statement fails as a whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from holdfast.core.model import ClaimGroup
from holdfast.store.stages import HeldStage, StageEnd

T = TypeVar("T")
Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"

# Joined into one text and split by the server: an array of texts costs the driver more than all else here.
# Neither JSON nor anything of ours has this character.
SEPARATOR = "\x1f"

_in_order = attrgetter("execution_id")


class PostgresStages:
    _sql: dict[str, str]
    _groups: dict[ClaimGroup, int]

    async def _transact(
        self, action: Callable[[Connection], Awaitable[T]], *, one_statement: bool = False
    ) -> T:
        raise NotImplementedError

    async def _group_ids(self, db: Connection, wanted: set[ClaimGroup]) -> dict[ClaimGroup, int]:
        raise NotImplementedError

    async def complete_held(self, stages: Sequence[HeldStage], now: float) -> bool:
        ordered = sorted(stages, key=_in_order)
        ends = {id(stage.end): stage.end for stage in ordered}
        numbers = {id_: number for number, id_ in enumerate(ends, start=1)}
        groups = self._groups
        if wanted := {end.following.group for end in ends.values() if end.following} - groups.keys():
            groups = await self._transact(lambda db: self._group_ids(db, wanted))
        jobs, executions, fences, hashes, outputs, *_ = zip(*ordered, strict=True)
        bound = (
            jobs,
            executions,
            SEPARATOR.join(fences),
            SEPARATOR.join(hashes),
            SEPARATOR.join(outputs),
            [numbers[id(stage.end)] for stage in ordered],
            *zip(*(_end_columns(end, groups) for end in ends.values()), strict=True),
            now,
        )
        try:
            await self._transact(lambda db: db.fetch(self._sql["complete_held"], *bound), one_statement=True)
        except asyncpg.InvalidTextRepresentationError:
            return False
        return True


def _end_columns(end: StageEnd, groups: dict[ClaimGroup, int]) -> tuple[Any, ...]:
    following = end.following
    if following is None:
        return (end.status, end.stage, end.events, None, None, None, None, None)
    group, is_limited = groups[following.group], bool(following.group.limit)
    own = (following.step, following.round, group, following.max_attempts, is_limited)
    return (end.status, end.stage, end.events, *own)
