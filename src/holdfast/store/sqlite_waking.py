"""Waking on SQLite: a signal inside the process, and a look at the file for the commits of others."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from holdfast.store.waking import LogWatch, WorkSignal

T = TypeVar("T")

FOREIGN_COMMIT_POLL_SECONDS = 0.005
# Nobody's work waits for a feed of events.
EVENTS_POLL_SECONDS = 0.05


class SqliteWaking:
    _writer: apsw.Connection

    def __init__(self, database: Path) -> None:
        real = database.resolve()  # SQLite keeps the log beside the file that a link leads to
        log = real.with_name(f"{real.name}-wal")
        self._signal = WorkSignal()
        self._log_watch = LogWatch(log)
        self._data_version = 0
        self._event_signal = WorkSignal()
        self._event_log_watch = LogWatch(log)
        self._event_data_version = 0

    async def _on_writer(self, action: Callable[[], T]) -> T:
        raise NotImplementedError

    async def _reading(self, action: Callable[[apsw.Connection], T]) -> T:
        raise NotImplementedError

    def work_ticket(self) -> int:
        return self._signal.ticket()

    def event_ticket(self) -> int:
        return self._event_signal.ticket()

    def announce_work(self) -> None:
        self._signal.move()
        self._event_signal.move()
        self._log_watch.touch()

    def announce_end(self) -> None:
        self._signal.move()
        self._event_signal.move()

    async def wait_for_work(self, ticket: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            if await self._signal.wait(ticket, min(remaining, FOREIGN_COMMIT_POLL_SECONDS)):
                return
            if not self._log_watch.has_moved():
                continue
            # Asked of the writing connection, it moves for the commits of other processes only.
            version = await self._on_writer(self._read_data_version)
            if version != self._data_version:
                self._data_version = version
                self._signal.move()

    def _read_data_version(self) -> int:
        version: int = self._writer.execute("PRAGMA data_version").get
        return version

    async def wait_for_events(self, ticket: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            if await self._event_signal.wait(ticket, min(remaining, EVENTS_POLL_SECONDS)):
                return
            if not self._event_log_watch.has_moved():
                continue
            # Asked of the reading connection, it moves for every commit, and no writer is kept waiting.
            version: int = await self._reading(lambda db: db.execute("PRAGMA data_version").get)
            if version != self._event_data_version:
                self._event_data_version = version
                self._event_signal.move()
