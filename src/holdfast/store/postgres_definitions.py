"""Definitions in PostgreSQL: a version for each content, numbered without gaps under the lock of its path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from holdfast.store.exchange import LOCK_DEFINITIONS
from holdfast.store.interface import DefinitionRow

T = TypeVar("T")
Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"


class PostgresDefinitions:
    _sql: dict[str, str]

    async def _query(self, query: str, *bindings: Any) -> list[Any]:
        raise NotImplementedError

    async def _transact(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        raise NotImplementedError

    async def save_definition(
        self, path: str, content: str, content_hash: str, now: float, source: str | None = None
    ) -> DefinitionRow:
        async def save(db: Connection) -> DefinitionRow:
            found = await db.fetchrow(self._sql["definition_by_hash"], path, content_hash)
            if found is None:  # a version that is known waits for nobody
                await db.execute(LOCK_DEFINITIONS, path)
                await db.execute(self._sql["save_definition"], path, content_hash, content, now)
                found = await db.fetchrow(self._sql["definition_by_hash"], path, content_hash)
            else:
                await db.execute(self._sql["renew_definition"], path, content_hash, now)
            if source is not None:
                await db.execute(self._sql["save_source"], found[0], source)
            return DefinitionRow(*found)

        return await self._transact(save)

    async def definition(self, definition_id: int) -> DefinitionRow | None:
        found = await self._query("definition", definition_id)
        return DefinitionRow(*found[0]) if found else None
