"""A table of the user's own in Holdfast's database, for tests of handlers' transactions."""

from __future__ import annotations

from typing import Any

import apsw
import asyncpg

from holdfast import Holdfast, Retry
from holdfast.core.model import EventType
from holdfast.engine import ExecutionView

ENDS_SOON = 60.0
DELAYS = Retry(delays=[0.01, 0.01])


class Notes:
    """A table of the user's own in Holdfast's database, seen from outside."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._on_postgres = url.startswith("postgresql")

    async def make(self) -> None:
        await self._run("CREATE TABLE notes (execution integer, note text UNIQUE)")

    async def all(self) -> list[str]:
        return [row[0] for row in await self._run("SELECT note FROM notes ORDER BY note")]

    async def _run(self, sql: str) -> list[Any]:
        if self._on_postgres:
            connection = await asyncpg.connect(self._url)
            try:
                return list(await connection.fetch(sql))
            finally:
                await connection.close()
        with apsw.Connection(self._url.removeprefix("sqlite:///")) as db:
            db.set_busy_timeout(10_000)
            return list(db.execute(sql))


INSERT = "INSERT INTO notes (execution, note) VALUES ($1, $2)"


async def ended(hf: Holdfast, notes: Notes | None = None) -> ExecutionView:
    """Pipeline p, submitted once and worked on to its end; the table is there before."""
    if notes is not None:
        await notes.make()
    async with hf.working():
        return await (await hf.submit("p")).wait(ENDS_SOON)


async def errors_of(hf: Holdfast, execution_id: int) -> list[dict[str, Any]]:
    return [event.data for event in await hf.events(execution_id) if event.type is EventType.ACTION_ERROR]
