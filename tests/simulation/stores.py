"""The real stores, made deterministic and breakable.

`Trouble` is one process's share of bad luck: it strikes a transaction before it begins, inside it (so
that it must roll back), or after its commit, when the answer is lost on its way. A fatal strike ends
the process: nothing that it asks the store for afterwards is answered.

The SQLite store runs in the event loop's own thread, so one seed gives one order of events; between
its calls it lets other tasks go first as often as `Trouble` says, which is how calls interleave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from random import Random
from typing import Any, Protocol, TypeVar

import apsw

from holdfast.core.errors import StoreUnavailable
from holdfast.store.interface import Claimed, ClaimRequest, Condition, Store
from holdfast.store.postgres import Connection, PostgresStore
from holdfast.store.sqlite import SqliteStore

T = TypeVar("T")

TABLES = ("executions", "jobs", "events", "claim_groups", "definitions", "limits", "pauses", "batches")


class Fault(StrEnum):
    BEFORE = "before the transaction"
    INSIDE = "inside the transaction"
    AFTER = "after the commit"


class Clock:
    """The only time there is: it moves when the schedule says so, in either direction."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Trouble:
    def __init__(self) -> None:
        self.transactions = 0
        self._fault: Fault | None = None
        self._calls_before = 0
        self._fatal = False
        self._dead = False
        self._random: Random | None = None

    def arm(self, fault: Fault, *, calls_before: int, fatal: bool) -> None:
        self._fault, self._calls_before, self._fatal = fault, calls_before, fatal

    def disarm(self) -> bool:
        """End all trouble; whether the process has died of it."""
        died, self._dead, self._fault = self._dead, False, None
        return died

    def interleave(self, random: Random | None) -> None:
        """Let concurrent calls overtake each other by these draws, or (None) run each to its end."""
        self._random = random

    async def pause(self) -> None:
        if self._random is not None:
            for _ in range(self._random.choice((0, 1, 1, 2, 5))):
                await asyncio.sleep(0)

    def check_alive(self) -> None:
        if self._dead:
            raise unavailable()

    def strike(self) -> Fault | None:
        """The fault of the transaction that begins now."""
        self.check_alive()
        self.transactions += 1
        if self._fault is None:
            return None
        if self._calls_before:
            self._calls_before -= 1
            return None
        fault, self._fault = self._fault, None
        if fault is Fault.BEFORE:
            self.lose()
        return fault

    def lose(self) -> None:
        self._dead = self._fatal
        raise unavailable()


def unavailable() -> StoreUnavailable:
    return StoreUnavailable("The simulation broke the connection.")


class SimulatedStore(Store, Protocol):
    trouble: Trouble
    claim_lead: float
    """How far the clock of this process is ahead when it claims, and corrected when it has."""

    async def select(self, sql: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        """Rows, read past all trouble; `{schema}` in the SQL stands for where the tables are."""

    async def empty(self) -> None:
        """Delete everything, and number anew from 1."""

    def forget(self) -> None:
        """Lose what a process keeps in its memory."""


class SimulatedSqlite(SqliteStore):
    def __init__(self, url: str, *, clock: Callable[[], float]) -> None:
        super().__init__(url, clock=clock)
        self.trouble = Trouble()
        self.claim_lead = 0.0

    async def claim(self, request: ClaimRequest, now: float) -> list[Claimed]:
        return await super().claim(request, now + self.claim_lead)

    async def open(self, *, migrate: bool = True) -> None:
        await super().open(migrate=migrate)
        # What a power cut does to the disk is not simulated, so waiting for it proves nothing.
        self._writer.execute("PRAGMA synchronous = OFF")

    async def _in_thread(self, thread: ThreadPoolExecutor, action: Callable[[], T]) -> T:
        await self.trouble.pause()
        return action()

    async def _write(self, action: Callable[[apsw.Connection], T]) -> T:
        fault = self.trouble.strike()

        def broken(db: apsw.Connection) -> T:
            action(db)
            raise apsw.FullError("simulated")

        try:
            answer = await super()._write(broken if fault is Fault.INSIDE else action)
        except StoreUnavailable:
            self.trouble.lose()
        if fault is Fault.AFTER:
            self.trouble.lose()
        return answer

    async def _reading(self, action: Callable[[apsw.Connection], T]) -> T:
        self.trouble.check_alive()
        return await super()._reading(action)

    async def select(self, sql: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        return self._writer.execute(sql.format(schema=""), bindings).fetchall()

    async def empty(self) -> None:
        for table in (*TABLES, "sqlite_sequence"):
            self._writer.execute(f"DELETE FROM {table}")

    def forget(self) -> None:
        self._groups = {}


class SimulatedPostgres(PostgresStore):
    def __init__(self, url: str, *, clock: Callable[[], float]) -> None:
        super().__init__(url, clock=clock)
        self.trouble = Trouble()
        self.claim_lead = 0.0

    async def claim(self, request: ClaimRequest, now: float) -> list[Claimed]:
        return await super().claim(request, now + self.claim_lead)

    async def _transact(
        self, action: Callable[[Connection], Awaitable[T]], *, one_statement: bool = False
    ) -> T:
        fault = self.trouble.strike()
        if one_statement and fault is Fault.INSIDE:
            self.trouble.lose()  # it has no inside

        async def broken(db: Connection) -> T:
            await action(db)
            raise ConnectionResetError("simulated")

        await self.trouble.pause()
        try:
            answer = await super()._transact(
                broken if fault is Fault.INSIDE else action, one_statement=one_statement
            )
        except StoreUnavailable:
            self.trouble.lose()
        if fault is Fault.AFTER:
            self.trouble.lose()
        return answer

    async def _query(self, query: str, *bindings: Any) -> list[Any]:
        return await self._statement(super()._query(query, *bindings))

    async def _ask(self, query: str, db: Connection | None = None, /, **bindings: Any) -> list[Any]:
        asked = super()._ask(query, db, **bindings)
        return await (self._statement(asked) if db is None else asked)

    async def _list(self, query: str, conditions: list[Condition], limit: int) -> list[Any]:
        self.trouble.check_alive()
        return await super()._list(query, conditions, limit)

    async def _statement(self, statement: Coroutine[Any, Any, list[Any]]) -> list[Any]:
        """In a transaction of its own, which has no inside."""
        try:
            fault = self.trouble.strike()
            if fault is Fault.INSIDE:
                self.trouble.lose()
            await self.trouble.pause()
        except BaseException:
            statement.close()
            raise
        found = await statement
        if fault is Fault.AFTER:
            self.trouble.lose()
        return found

    async def select(self, sql: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        return [tuple(row) for row in await self._fetch(sql.format(schema="holdfast."), *bindings)]

    async def empty(self) -> None:
        named = ", ".join(f"holdfast.{table}" for table in TABLES)
        await self._fetch(f"TRUNCATE {named} RESTART IDENTITY")

    def forget(self) -> None:
        self._groups = {}
        self._limited_offers = set()


def simulated_store(url: str, clock: Clock) -> SimulatedSqlite | SimulatedPostgres:
    kind = SimulatedSqlite if url.startswith("sqlite:") else SimulatedPostgres
    return kind(url, clock=clock)
