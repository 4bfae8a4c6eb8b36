"""Where a rehearsal keeps its executions: a SQLite file that is thrown away, or a test database.

The file is in a folder of its own and not durable: nobody needs it after a power failure. A PostgreSQL
database is the caller's: it is migrated, and what the rehearsal leaves running in it is cancelled.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from holdfast.core.errors import InvalidInput
from holdfast.core.model import ExecutionStatus
from holdfast.engine import Engine
from holdfast.store import Store, store_from_url
from holdfast.store.interface import ExecutionFilter
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import FakeClock

T = TypeVar("T")

FOLDER_PREFIX = "holdfast-rehearsal-"
PAGE_ROWS = 1_000


class ThrowawaySqlite(SqliteStore):
    """The SQLite store without durability and without hops between threads: most of a rehearsal's time."""

    def __init__(self, url: str, clock: FakeClock) -> None:
        super().__init__(url, clock=clock, durable=False)
        self._one_at_a_time = threading.Lock()

    async def _in_thread(self, thread: ThreadPoolExecutor, action: Callable[[], T]) -> T:
        with self._one_at_a_time:
            return action()


class Place:
    def __init__(self, url: str | None, clock: FakeClock) -> None:
        self._clock = clock
        self._given_url = url
        self._folder: Path | None = None
        self.url = url or ""
        self.store: Store
        if url is not None:
            store_from_url(url)  # a wrong address is refused here
            if url.partition(":")[0].lower() == "sqlite":
                raise InvalidInput(
                    "A rehearsal makes a SQLite file of its own and takes no other.",
                    guidance="Leave url= out. Inside the block, rehearsal.path is the file.",
                )

    @property
    def is_sqlite(self) -> bool:
        return self._given_url is None

    @property
    def path(self) -> Path:
        if self._folder is None:
            raise InvalidInput(
                "There is no SQLite file: the rehearsal runs on PostgreSQL or has not begun.",
                guidance="Ask inside the block of a rehearsal that was made without url=.",
            )
        return self._folder / "rehearsal.db"

    async def open(self) -> None:
        if self._given_url is None:
            self._folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
            self.url = f"sqlite:///{self.path}"
            self.store = ThrowawaySqlite(self.url, self._clock)
        else:
            self.store = store_from_url(self._given_url, clock=self._clock)
        try:
            await self.store.open()
        except BaseException:
            self._remove_folder()
            raise
        if not self.is_sqlite and await self._running():
            await self.store.close()
            raise InvalidInput(
                "The database of the rehearsal has executions that are still running.",
                guidance="Give a database for tests, one for each pytest-xdist worker. What a killed test"
                " left there is gone after DROP SCHEMA holdfast CASCADE.",
            )

    async def close(self) -> None:
        try:
            if not self.is_sqlite:
                engine = Engine(self.store)
                while running := await self._running():
                    for execution_id in running:
                        await engine.cancel(execution_id, by="the end of the rehearsal")
        finally:
            await self.store.close()
            self._remove_folder()

    async def _running(self) -> list[int]:
        query = ExecutionFilter(status=ExecutionStatus.RUNNING, limit=PAGE_ROWS)
        return [execution.id for execution in await self.store.executions(query)]

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
