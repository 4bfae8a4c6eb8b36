"""Waking between machines: LISTEN and NOTIFY of PostgreSQL.

Two channels. Workers hear of work on the one; on the other it is said that something ended, which only a
feed of events wants to know, so that no idle worker is woken by it. A feed listens on both, and only while it
is read.

Both are hints: at most one per interval and process, sent after the commit, and lost without harm, because
whoever waits also polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg

from holdfast.core.errors import StoreUnavailable
from holdfast.store.exchange import CHANNEL, EVENTS_CHANNEL
from holdfast.store.postgres_connections import CONNECT_TIMEOUT_SECONDS, GONE
from holdfast.store.waking import WorkSignal
from holdfast.tasks import end_tasks

WORK_INTERVAL_SECONDS = 0.01
EVENTS_INTERVAL_SECONDS = 0.05
FLUSH_SECONDS = 1.0
LISTEN_RETRY_SECONDS = 1.0
# A feed that nobody has read for so long hears nothing more until it is read again.
UNREAD_SECONDS_MAX = 10.0

# A hint need not survive a crash: its commit waits for no disk, and keeps no other commit waiting for it.
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"


class Notifier:
    """Says so on one channel, at most once an interval, in a task of its own."""

    def __init__(self, send: Callable[[], Awaitable[Any]], interval_seconds: float) -> None:
        self._send = send
        self._interval_seconds = interval_seconds
        self._is_wanted = False
        self._sent_at = float("-inf")
        self.is_sending = False
        self.task: asyncio.Task[None] | None = None

    def want(self) -> None:
        self._is_wanted = True
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._is_wanted:
            await asyncio.sleep(max(0.0, self._sent_at + self._interval_seconds - time.monotonic()))
            self._is_wanted = False
            self._sent_at = time.monotonic()
            self.is_sending = True
            try:
                with contextlib.suppress(StoreUnavailable):
                    await self._send()
            finally:
                self.is_sending = False


class Listener:
    """Holds one connection that hears NOTIFY, and makes it anew whenever it breaks."""

    def __init__(self, process: str, signal: WorkSignal, *channels: str) -> None:
        self._process = process
        self._signal = signal
        self._channels = channels
        self.task: asyncio.Task[None] | None = None
        self.is_wanted: Callable[[], bool] = lambda: True

    def start(self, url: Callable[[], str]) -> None:
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run(url))

    async def _run(self, url: Callable[[], str]) -> None:
        while self.is_wanted():
            connection: asyncpg.Connection | None = None
            try:
                connection = await asyncpg.connect(url(), timeout=CONNECT_TIMEOUT_SECONDS)
                await self._hear(connection)
            except (*GONE, asyncpg.PostgresError):
                await asyncio.sleep(LISTEN_RETRY_SECONDS)
            finally:
                if connection is not None:
                    connection.terminate()

    async def _hear(self, connection: asyncpg.Connection) -> None:
        broken = asyncio.Event()
        connection.add_termination_listener(lambda _: broken.set())
        for channel in self._channels:
            await connection.add_listener(channel, self._heard)
        self._signal.move()  # something may have been announced while nobody listened
        while self.is_wanted() and not broken.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UNREAD_SECONDS_MAX):
                    await broken.wait()

    def _heard(self, _connection: object, _pid: int, _channel: str, sender: object) -> None:
        if sender != self._process:
            self._signal.move()


class PostgresWaking:
    url: str

    def __init__(self) -> None:
        process = secrets.token_hex(8)
        self._signal = WorkSignal()
        self._event_signal = WorkSignal()
        self._work_notifier = Notifier(lambda: self._fetch(_NOTIFY, CHANNEL, process), WORK_INTERVAL_SECONDS)
        self._events_notifier = Notifier(
            lambda: self._fetch(_NOTIFY, EVENTS_CHANNEL, process), EVENTS_INTERVAL_SECONDS
        )
        self._work_listener = Listener(process, self._signal, CHANNEL)
        self._events_listener = Listener(process, self._event_signal, CHANNEL, EVENTS_CHANNEL)
        self._events_listener.is_wanted = self._events_are_read
        self._events_read_at = float("-inf")

    @property
    def _is_open(self) -> bool:
        raise NotImplementedError

    async def _fetch(self, sql: str, *bindings: Any) -> Sequence[Any]:
        raise NotImplementedError

    def work_ticket(self) -> int:
        return self._signal.ticket()

    def event_ticket(self) -> int:
        return self._event_signal.ticket()

    def announce_end(self) -> None:
        self._signal.move()
        self._event_signal.move()
        self._events_notifier.want()

    def announce_work(self) -> None:
        self._signal.move()
        self._event_signal.move()
        self._work_notifier.want()

    async def wait_for_work(self, ticket: int, seconds: float) -> None:
        if self._is_open:
            self._work_listener.start(lambda: self.url)
        await self._signal.wait(ticket, seconds)

    async def wait_for_events(self, ticket: int, seconds: float) -> None:
        self._events_read_at = time.monotonic() + seconds
        if self._is_open:
            self._events_listener.start(lambda: self.url)
        await self._event_signal.wait(ticket, seconds)

    def _events_are_read(self) -> bool:
        return time.monotonic() - self._events_read_at < UNREAD_SECONDS_MAX

    async def _end_waking(self) -> None:
        """A process that submits and ends at once must not take its hint with it; that something ended need
        not be said any more, but is not broken off in the middle."""
        notifiers = (self._work_notifier, self._events_notifier)
        last = [n.task for n in notifiers if n.task and (n is self._work_notifier or n.is_sending)]
        if last and self._is_open:
            await asyncio.wait(last, timeout=FLUSH_SECONDS)
        others = (*notifiers, self._work_listener, self._events_listener)
        await end_tasks(*(other.task for other in others if other.task is not None))
        for other in others:
            other.task = None
