"""The dispatcher: leases what is ready and hands each attempt to the broker, until somebody takes it over.

    leaser ──▶ untaken attempts, a window for each lane ──▶ sender ──▶ broker
                 │ heartbeats, on a thread of their own: they wait in the broker and are not lost
                 └ a heartbeat is refused: taken over, or cancelled; either way no longer here

What nobody takes is sent again, ever more rarely: a message that was lost, or a broker that lost its memory,
costs nothing but time. While a window is full it looks more often for what was taken, so that work flows.
Asked to stop, it leases nothing more and gives back what nobody has taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.core.errors import HoldfastError
from holdfast.core.model import Lane, Leased, LeaseRef, LeaseResult
from holdfast.fleet.broker import Broker
from holdfast.fleet.message import Message
from holdfast.tasks import end_tasks
from holdfast.worker.announcing import worker_record
from holdfast.worker.connection import Connection
from holdfast.worker.heartbeats import HEARTBEATS_PER_LEASE, Heartbeats
from holdfast.worker.patience import AWAY_SECONDS_MAX, AWAY_SECONDS_MIN, away, within
from holdfast.worker.prefetched import LEASE_JOBS_MAX

log = logging.getLogger("holdfast.dispatcher")

RESEND_SECONDS_DEFAULT = 30.0
RESEND_SECONDS_MAX = 300.0
LOOK_SECONDS_MIN = 0.02
LOOK_SECONDS_MAX = 1.0
EMPTY_CLAIM_SECONDS = 0.05
LAST_WORDS_SECONDS = 5.0
SENT_TOGETHER_MAX = 100
RESENDS_UNTOLD_MAX = 2
# Beyond a step's own timeout: for taking over, for the process of an isolated step, for its report.
TIME_LIMIT_MARGIN_SECONDS = 120.0


class _Untaken:
    """An attempt that waits in the broker: when its message is sent, or sent again."""

    __slots__ = ("due_at", "message", "resend_seconds", "times")

    def __init__(self, message: Message, resend_seconds: float) -> None:
        self.message = message
        self.due_at = 0.0
        self.resend_seconds = resend_seconds
        self.times = 0

    def sent(self, at: float) -> None:
        self.times += 1
        self.due_at = at + self.resend_seconds
        self.resend_seconds = min(self.resend_seconds * 2, max(self.resend_seconds, RESEND_SECONDS_MAX))


class _Room(NamedTuple):
    """How many may be leased now, and how many of them bulk."""

    jobs: int
    bulk: int

    def lets_in_more_than(self, asked: _Room) -> bool:
        return self.jobs > 0 and (asked.jobs <= 0 or (self.bulk > 0 and asked.bulk <= 0))


class Dispatcher:
    """`window` is how many attempts of each lane may wait in the broker."""

    def __init__(
        self,
        connection: Connection,
        broker: Broker,
        handlers: Sequence[str],
        *,
        worker_id: str,
        window: int,
        lease_seconds: float,
        lanes: Sequence[Lane],
        poll_seconds: float,
        grace_seconds: float,
        ageing_seconds: float | None = None,
        resend_seconds: float = RESEND_SECONDS_DEFAULT,
    ) -> None:
        self.worker_id = worker_id
        self.connection = connection
        self.broker = broker
        self.grace_seconds = grace_seconds
        self._handlers = sorted(handlers)
        self._window = window
        self._lease_seconds = lease_seconds
        self._lanes = tuple(lanes)
        self._poll_seconds = poll_seconds
        self._ageing_seconds = ageing_seconds
        self._resend_seconds = resend_seconds
        self._record = worker_record(
            worker_id,
            concurrency=window,
            lanes=lanes,
            handlers=self._handlers,
            lease_seconds=lease_seconds,
        )
        self._untaken: dict[LeaseRef, _Untaken] = {}
        self._by_lane: Counter[Lane] = Counter()
        self._is_served = False  # somebody has taken something
        self._leasing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._arrived = asyncio.Event()
        self._filled = asyncio.Event()
        self._room_made = asyncio.Event()
        self.ended = asyncio.Event()

    @property
    def untaken(self) -> int:
        """How many attempts wait to be taken over."""
        return len(self._untaken)

    def stop(self) -> None:
        """Lease nothing more, and give back what nobody has taken."""
        self._stopping.set()

    async def run(self) -> None:
        """Dispatch until `stop()` is called."""
        loop = asyncio.get_running_loop()

        def on_lost(lease: LeaseRef) -> None:
            loop.call_soon_threadsafe(self._drop, lease)

        self._heartbeats = Heartbeats(self.connection, self._lease_seconds, on_lost, self._record)
        parts: list[asyncio.Task[Any]] = []
        try:
            self._heartbeats.start()
            leaser = asyncio.create_task(self._lease_ahead())
            stopping = asyncio.create_task(self._stopping.wait())
            sender = asyncio.create_task(self._send_what_is_due())
            parts = [stopping, leaser, sender, asyncio.create_task(self._look_for_taken())]
            # None of them ends by itself: one that does has failed, and the dispatcher with it.
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._wind_down(leaser, sender)
        finally:
            for task in parts:
                task.cancel()
            await asyncio.shield(self._heartbeats.stop())
            await asyncio.shield(self.broker.close())
            self.ended.set()

    async def _wind_down(self, leaser: asyncio.Task[None], sender: asyncio.Task[None]) -> None:
        deadline = time.monotonic() + max(self.grace_seconds, LAST_WORDS_SECONDS)
        # Cut off in the middle, a lease would be nobody's, and run out by itself.
        await within(deadline, self._leasing.acquire())
        await end_tasks(leaser, sender)
        await within(deadline, self._give_back(list(self._untaken)))

    # leasing

    def _room(self) -> _Room:
        bulk = self._window - self._by_lane[Lane.BULK] if Lane.BULK in self._lanes else 0
        jobs = self._window * len(self._lanes) - len(self._untaken) if Lane.MANUAL in self._lanes else bulk
        return _Room(min(jobs, LEASE_JOBS_MAX), max(min(bulk, jobs, LEASE_JOBS_MAX), 0))

    async def _lease_ahead(self) -> None:
        away_seconds = AWAY_SECONDS_MIN
        while True:
            self._room_made.clear()
            room = self._room()
            if room.jobs <= 0:
                await self._room_made.wait()
                continue
            ticket = self.connection.work_ticket()
            try:
                result = await self._lease(room)
                is_alone_taken = result.alone_ready and await self._take_one_alone()
                away_seconds = AWAY_SECONDS_MIN
                if not result.jobs and not is_alone_taken:
                    await self._wait_for_work(ticket, result.next_due, room)
            except Exception as error:
                await away("Leasing", away_seconds, error)
                away_seconds = min(away_seconds * 2, AWAY_SECONDS_MAX)

    async def _lease(self, room: _Room, *, alone: bool = False) -> LeaseResult:
        """Where bulk work has no room only manual is asked for: what is due in a lane that cannot be served
        is no reason to ask again."""
        async with self._leasing:
            result = await self.connection.lease(
                self.worker_id,
                self._handlers,
                room.jobs,
                lease_seconds=self._lease_seconds,
                lanes=self._lanes if room.bulk else (Lane.MANUAL,),
                alone=alone,
                bulk=None if alone or not room.bulk else room.bulk,
                limited=None,
                ageing_seconds=self._ageing_seconds,
            )
            self._hold(result.jobs)
        return result

    async def _take_one_alone(self) -> bool:
        """One whose worker was lost: a process of the fleet runs one attempt at a time, and so this one by
        itself."""
        room = self._room()
        return room.jobs > 0 and bool((await self._lease(room._replace(jobs=1), alone=True)).jobs)

    def _hold(self, jobs: Sequence[Leased]) -> None:
        leases = [LeaseRef(job.queue_id, job.fence) for job in jobs]
        self._heartbeats.hold(leases)
        for job, lease in zip(jobs, leases, strict=True):
            message = Message(lease, job.lane, job.timeout_seconds + TIME_LIMIT_MARGIN_SECONDS)
            self._untaken[lease] = _Untaken(message, self._resend_seconds)
            self._by_lane[job.lane] += 1
        if jobs:
            self._arrived.set()
            self._tell_room()

    def _drop(self, lease: LeaseRef) -> None:
        """It is in other hands, or cancelled, or given back."""
        self._heartbeats.drop(lease)
        self._is_served = True
        if (untaken := self._untaken.pop(lease, None)) is not None:
            self._by_lane[untaken.message.lane] -= 1
            self._tell_room()

    def _tell_room(self) -> None:
        room = self._room()
        if room.jobs > 0:
            self._room_made.set()
        if room.jobs > 0 and (room.bulk > 0 or Lane.BULK not in self._lanes):
            self._filled.clear()
        else:
            self._filled.set()

    async def _wait_for_work(self, ticket: int, next_due: float | None, asked: _Room) -> None:
        """Until work is announced or due, or there is room for a kind of work that was not asked for."""
        seconds = self._poll_seconds
        if next_due is not None:
            seconds = min(seconds, max(next_due - await self.connection.now(), EMPTY_CLAIM_SECONDS))
        work = asyncio.create_task(self.connection.wait_for_work(ticket, seconds))
        work.add_done_callback(lambda _: self._room_made.set())
        try:
            while not work.done() and not self._room().lets_in_more_than(asked):
                self._room_made.clear()
                await self._room_made.wait()
            if work.done():
                work.result()
        finally:
            await end_tasks(work)

    async def _give_back(self, leases: list[LeaseRef]) -> None:
        try:
            given_back = sum(ack.accepted for ack in await self.connection.release(leases))
            log.info("Given back: %d attempts that nobody has taken.", given_back)
        except Exception as error:  # then they run out by themselves
            log.warning("%d leases could not be given back: %s", len(leases), error)
        for lease in leases:
            self._drop(lease)

    # sending

    async def _send_what_is_due(self) -> None:
        away_seconds = AWAY_SECONDS_MIN
        while True:
            self._arrived.clear()
            now = time.monotonic()
            due = [untaken for untaken in self._untaken.values() if untaken.due_at <= now]
            if not due:
                next_due = min((untaken.due_at for untaken in self._untaken.values()), default=None)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if next_due is None else next_due - now):
                        await self._arrived.wait()
                continue
            due.sort(key=lambda untaken: untaken.message.lane is Lane.BULK)
            together = due[:SENT_TOGETHER_MAX]
            try:
                await self.broker.send([untaken.message for untaken in together])
            except HoldfastError as error:
                await away("Sending to the fleet", away_seconds, error)
                away_seconds = min(away_seconds * 2, AWAY_SECONDS_MAX)
                continue
            away_seconds = AWAY_SECONDS_MIN
            for untaken in together:
                untaken.sent(time.monotonic())
            self._tell_sent_again(together)

    def _tell_sent_again(self, sent: Sequence[_Untaken]) -> None:
        """One that is sent again may have been lost, or waits for a fleet that is busy. Where nobody has ever
        taken any, the fleet does not run, or not for this dispatcher."""
        again = sum(untaken.times > 1 for untaken in sent)
        if not self._is_served and any(untaken.times > RESENDS_UNTOLD_MAX for untaken in sent):
            log.warning(
                "No Celery worker has taken anything yet: %d attempts are sent again. Check that Celery"
                " workers run, and consume the queues %s.",
                again,
                " and ".join(self.broker.queues),
            )
        elif again:
            log.info("Sent again, as nobody has taken them: %d attempts.", again)

    # learning what was taken

    async def _look_for_taken(self) -> None:
        """While there is no room, more often than the heartbeats do: whatever was taken makes room. The
        longer nothing is taken, the more rarely."""
        slowest = min(LOOK_SECONDS_MAX, self._lease_seconds / HEARTBEATS_PER_LEASE)
        seconds = LOOK_SECONDS_MIN
        while True:
            if not self._filled.is_set():
                seconds = LOOK_SECONDS_MIN
                await self._filled.wait()
            await asyncio.sleep(seconds)
            taken = await self._taken()
            for lease in taken:
                self._drop(lease)
            seconds = LOOK_SECONDS_MIN if taken else min(seconds * 2, slowest)

    async def _taken(self) -> list[LeaseRef]:
        leases = [lease for lease, untaken in self._untaken.items() if untaken.due_at]
        try:
            acks = await self.connection.heartbeat(leases, lease_seconds=self._lease_seconds, progress={})
        except HoldfastError:  # the heartbeats tell of it
            return []
        return [lease for lease, ack in zip(leases, acks, strict=True) if not ack.accepted]
