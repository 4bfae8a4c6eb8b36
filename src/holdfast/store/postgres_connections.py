"""The store's connections: a pool, and of it a few that stay in hand between two uses.

The way back into a pool is a task and a turn of the event loop each time. A connection that nobody waits for
goes back without; one whose use ended in an error takes the long way, where it is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"

CONNECT_TIMEOUT_SECONDS = 10.0
# What a connection says that is gone, or a server that cannot go on.
GONE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.DiskFullError,
    asyncpg.OutOfMemoryError,
    asyncpg.QueryCanceledError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what a connection says that broke between two messages
)
# Those in hand are never closed for want of use; the others are.
IN_HAND_MAX = 2
RESET_TIMEOUT_SECONDS = 5.0


class Connections:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._in_hand: list[Connection] = []
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        db = await self._from_hand() or await self._from_pool()
        try:
            yield db
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError | TimeoutError):
                await _reset(db)
            await self._pool.release(db)
            raise
        if self._waiting or len(self._in_hand) >= IN_HAND_MAX or _is_lost(db):
            await self._pool.release(db)
        else:
            self._in_hand.append(db)

    async def _from_hand(self) -> Connection | None:
        while self._in_hand:
            if not _is_lost(db := self._in_hand.pop()):
                return db
            await self._pool.release(db)  # makes place for a new one
        return None

    async def _from_pool(self) -> Connection:
        self._waiting += 1
        try:
            return await self._pool.acquire()
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """At once: nothing is under way, as every verb has answered its caller."""
        self._in_hand.clear()
        self._pool.terminate()


async def _reset(db: Connection) -> None:
    """Cut off between two messages, a session would keep its locks until its next use."""
    try:
        await db.reset(timeout=RESET_TIMEOUT_SECONDS)
    except BaseException:
        if not _is_lost(db):
            db.terminate()


def _is_lost(db: Connection) -> bool:
    try:
        return bool(db.is_closed())
    except asyncpg.InterfaceError:  # it has been taken from us
        return True
