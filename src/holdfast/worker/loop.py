"""The worker: leases ahead, runs in slots, reports in batches.

    leaser ──▶ prefetched jobs ──▶ slots (one task each) ──▶ outcomes ──▶ reporter
                                      heartbeats, on a thread of their own

Leasing, running and reporting overlap, so one round trip serves many short jobs. How much is leased
ahead follows how long handlers take: none where they are long, hundreds where they take microseconds.
Which lane may be leased, and what is never leased ahead, is told in prefetched.py.

Asked to stop, it leases nothing more, gives back what it has not begun, lets handlers finish for a grace
period, then cuts them off and gives their attempts back as well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.errors import InvalidInput
from holdfast.core.model import Lane, LeaseRef, LeaseResult, Report
from holdfast.core.payload import PAYLOAD_BYTES_MAX_DEFAULT
from holdfast.logs import CURRENT, about, about_attempt
from holdfast.steps.registry import close_types, open_types
from holdfast.tasks import end_tasks
from holdfast.worker import isolation
from holdfast.worker.announcing import worker_record
from holdfast.worker.attempt import Attempt, Handler
from holdfast.worker.connection import Connection
from holdfast.worker.context import Context
from holdfast.worker.heartbeats import Heartbeats
from holdfast.worker.patience import AWAY_SECONDS_MAX, AWAY_SECONDS_MIN, away, within
from holdfast.worker.prefetched import LEASE_JOBS_MAX, Prefetched, Room, Slots, Waiting, room_for
from holdfast.worker.processes import Processes
from holdfast.worker.transaction import Transactions

if TYPE_CHECKING:
    from holdfast.tracing.spans import Tracing

log = logging.getLogger("holdfast.worker")

CONCURRENCY_DEFAULT = 16
LEASE_SECONDS_DEFAULT = 60.0
POLL_SECONDS_DEFAULT = 1.0
GRACE_SECONDS_DEFAULT = 25.0
PREFETCH_JOBS_MAX = 500
PREFETCH_SECONDS = 0.1
REPORTS_PER_BATCH = 500
# What a worker holds beyond its slots, finished and not yet reported ones included: no more than these can
# be run again when its process dies.
HELD_JOBS_MAX = 1_000
EMPTY_CLAIM_SECONDS = 0.05
# Under short jobs without a limit no slot is ever free for one with a limit: now and then nothing is leased
# ahead until one is.
LIMITED_ASKED_SECONDS = 1.0
PREFETCH_WAIT_SECONDS_MAX = 1.0
ALONE_WAIT_SECONDS_MIN = 5.0
ALONE_WAIT_SECONDS_MAX = 60.0
CUT_OFF_SECONDS = 2.0
LAST_WORDS_SECONDS = 5.0
REST_SECONDS = 0.005


class _Running(NamedTuple):
    task: asyncio.Task[None]
    context: Context
    started: float


class Worker:
    """Runs the handlers it is given, until it is stopped."""

    def __init__(
        self,
        connection: Connection,
        handlers: Mapping[str, Handler],
        *,
        worker_id: str,
        concurrency: int = CONCURRENCY_DEFAULT,
        lease_seconds: float = LEASE_SECONDS_DEFAULT,
        lanes: Sequence[Lane] = (Lane.MANUAL, Lane.BULK),
        poll_seconds: float = POLL_SECONDS_DEFAULT,
        grace_seconds: float = GRACE_SECONDS_DEFAULT,
        ageing_seconds: float | None = None,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
        tracing: Tracing | None = None,
    ) -> None:
        if concurrency < 1:
            raise InvalidInput(f"A worker needs a concurrency of at least 1, not {concurrency}.")
        if isolation.is_loading:
            raise InvalidInput(
                "A worker cannot be started while a step's module is imported in a process of its own.",
                guidance='Start it under if __name__ == "__main__":, where an import does not run it.',
            )
        self.worker_id = worker_id
        self.connection = connection
        self._handlers = handlers
        self._handler_names = sorted(handlers)
        self._isolated = [name for name in self._handler_names if handlers[name].is_isolated]
        self._in_worker = [name for name in self._handler_names if not handlers[name].is_isolated]
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._lanes = tuple(lanes)
        self._ageing_seconds = ageing_seconds
        self._record = worker_record(
            worker_id,
            concurrency=concurrency,
            lanes=lanes,
            handlers=self._handler_names,
            lease_seconds=lease_seconds,
        )
        self._poll_seconds = poll_seconds
        self.grace_seconds = grace_seconds
        self._payload_bytes_max = payload_bytes_max
        self._tracing = tracing
        self._prefetched = Prefetched(ageing=ageing_seconds is not None)
        self._outcomes: deque[Report] = deque()
        self._running: dict[LeaseRef, _Running] = {}
        self._running_bulk = 0
        self._abandoned: set[LeaseRef] = set()
        self._mean_seconds: float | None = None
        self._rested_at = 0.0  # when the event loop was last free for others
        self._stopping = asyncio.Event()
        self._work_arrived = asyncio.Event()
        self._room_made = asyncio.Event()
        self._outcome_arrived = asyncio.Event()
        self._reporting = 0
        self._leasing = asyncio.Lock()
        self._limited_asked_at = time.monotonic()
        self._slots_stuck = 0  # their threads have timed out and go on
        self._is_over = False  # a handler may swallow the cancellation that was to end its slot
        self._alone_not_before = 0.0
        self._alone_patience = ALONE_WAIT_SECONDS_MIN
        self.ended = asyncio.Event()
        self.leaves_threads = False
        """Handlers were cut off whose threads go on: only the end of the process ends them."""

    async def run(self) -> None:
        """Work until `stop()` is called, then wind down within the grace period. Cancelled, it drops
        everything at once: what it held runs again when its leases have expired."""
        loop = asyncio.get_running_loop()
        self._transactions = Transactions(self.connection.transaction, self.connection.database)

        def on_lost(lease: LeaseRef) -> None:
            loop.call_soon_threadsafe(self._abandon, lease)

        self._heartbeats = Heartbeats(self.connection, self._lease_seconds, on_lost, self._record)
        self._executor = ThreadPoolExecutor(self._concurrency, "holdfast-handler")
        self._processes = Processes(self._concurrency)
        parts: list[asyncio.Task[Any]] = []
        open_types()
        try:
            self._heartbeats.start()
            slots = [asyncio.create_task(self._run_slot()) for _ in range(self._concurrency)]
            reporter = asyncio.create_task(self._report_outcomes())
            leaser = asyncio.create_task(self._lease_ahead())
            returner = asyncio.create_task(self._return_what_waits())
            stopping = asyncio.create_task(self._stopping.wait())
            parts = [stopping, leaser, reporter, returner, *slots]
            # None of them ends by itself: one that does has failed, and the worker with it.
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.cancelled():
                    raise RuntimeError("A part of the worker was cancelled by somebody else.")
                task.result()
            await self._wind_down(leaser, slots, reporter)
        finally:
            self._is_over = True
            for task in parts:
                task.cancel()
            processes_ended = asyncio.wrap_future(self._processes.close())
            await asyncio.shield(self._heartbeats.stop())
            await asyncio.shield(processes_ended)
            await asyncio.shield(close_types())
            self._executor.shutdown(wait=False, cancel_futures=True)
            self.ended.set()

    def stop(self) -> None:
        """Lease nothing more, finish within the grace period, give back the rest."""
        self._stopping.set()
        for running in self._running.values():
            running.context.stopping = True

    @property
    def load(self) -> tuple[int, int]:
        """How many attempts run, and how many have ended and are not yet reported."""
        return len(self._running), len(self._outcomes) + self._reporting

    async def _wind_down(
        self, leaser: asyncio.Task[None], slots: list[asyncio.Task[None]], reporter: asyncio.Task[None]
    ) -> None:
        deadline = time.monotonic() + self.grace_seconds
        # Cut off in the middle, a lease would be nobody's, and run out by itself: also without any grace a
        # moment is given to it.
        await within(max(deadline, time.monotonic() + LAST_WORDS_SECONDS), self._leasing.acquire())
        await end_tasks(leaser)
        leases = self._prefetched.withdraw_all()
        await within(max(deadline, time.monotonic() + CUT_OFF_SECONDS), self._give_back(leases))
        await self._settled(deadline, lambda: not self._running)
        cut_off = await self._cut_off()
        self._is_over = True
        for slot in slots:
            slot.cancel()
        await asyncio.wait(slots, timeout=CUT_OFF_SECONDS)  # one that ignores it ends with the process
        # The reports of what has finished, and the attempts of what has not, are worth some more seconds.
        deadline = max(deadline, time.monotonic() + LAST_WORDS_SECONDS)
        if not await self._settled(deadline, lambda: not (self._outcomes or self._reporting)):
            unreported = len(self._outcomes) + self._reporting
            log.warning("%d outcomes could not be reported; these jobs will be run again.", unreported)
        await end_tasks(reporter)
        await within(deadline, self._give_back(cut_off))
        self.leaves_threads = bool(self._running or self._slots_stuck)

    async def _cut_off(self) -> list[LeaseRef]:
        """End what still runs after the grace period. A thread cannot be ended: it is left to itself."""
        cut_off = dict(self._running)
        if not cut_off:
            return []
        log.warning("The grace period is over; cut off and given back: %d.", len(cut_off))
        for lease, running in cut_off.items():
            running.context.lease_lost = True
            self._abandoned.add(lease)
            running.task.cancel()
        await self._settled(time.monotonic() + CUT_OFF_SECONDS, lambda: not self._running)
        return list(cut_off)

    async def _settled(self, deadline: float, is_settled: Callable[[], bool]) -> bool:
        """Whether it came to be so in time."""
        while not is_settled():
            self._room_made.clear()
            if not await within(deadline, self._room_made.wait()):
                return is_settled()
        return True

    # leasing

    def _slots(self) -> Slots:
        usable = self._concurrency - self._slots_stuck
        return Slots(usable, len(self._running), self._running_bulk, self._lanes)

    def _room(self) -> Room:
        slots = self._slots()
        room = room_for(slots, self._prefetched, self._jobs_ahead(slots.usable))
        unreported = len(self._outcomes) + self._reporting
        held = len(self._prefetched) + slots.running + unreported
        jobs = min(room.jobs, slots.usable + HELD_JOBS_MAX - held)
        return room._replace(jobs=jobs, bulk=min(room.bulk, max(jobs, 0)))

    def _jobs_ahead(self, slots: int) -> int:
        """How many the handlers' usual duration allows to hold in advance: none while a handler is running
        for long, however short the others were."""
        if self._mean_seconds is None or not slots:
            return 0
        if time.monotonic() - self._limited_asked_at > LIMITED_ASKED_SECONDS:
            return 0
        seconds = max(self._mean_seconds, self._longest_running(), 1e-6)
        return min(int(PREFETCH_SECONDS * slots / seconds), PREFETCH_JOBS_MAX)

    def _longest_running(self) -> float:
        oldest = next(iter(self._running.values()), None)  # kept in the order of their start
        return 0.0 if oldest is None else time.perf_counter() - oldest.started

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
                result = await self._lease_into(room)
                if 0 < len(result.jobs) < (room.bulk or room.jobs):
                    await asyncio.sleep(0)  # all there was: it begins before anything more is asked for
                isolated = result.alone_ready and await self._take_one_isolated()
                if result.alone_ready and time.monotonic() >= self._alone_not_before:
                    await self._run_one_alone()
                away_seconds = AWAY_SECONDS_MIN
                if not result.jobs and not isolated:
                    await self._wait_for_work(ticket, result.next_due, room)
            except Exception as error:
                await away("Leasing", away_seconds, error)
                away_seconds = min(away_seconds * 2, AWAY_SECONDS_MAX)

    async def _lease_into(self, room: Room) -> LeaseResult:
        """Ask for what there is room for. Where bulk work has none, only for manual work: what is due in a
        lane that cannot be served is no reason to ask again."""
        if self._is_open(room):
            self._limited_asked_at = time.monotonic()
        if not room.bulk:
            return await self._lease(room.jobs, lanes=(Lane.MANUAL,), limited=room.slots)
        result = await self._lease(room.jobs, bulk=room.bulk, limited=room.slots_bulk)
        if result.jobs or room.slots_bulk or not room.slots:
            return result
        # No job under a limit was asked for, as only the slot kept for manual work is free.
        manual = await self._lease(min(room.slots, LEASE_JOBS_MAX), lanes=(Lane.MANUAL,), limited=room.slots)
        dues = [due for due in (result.next_due, manual.next_due) if due is not None]
        return LeaseResult(manual.jobs, result.alone_ready or manual.alone_ready, min(dues, default=None))

    def _is_open(self, room: Room) -> bool:
        """Whether it has room for every kind of work: what is not leased then is not there."""
        if Lane.BULK not in self._lanes:
            return room.slots > 0
        return room.bulk > 0 and room.slots_bulk > 0

    async def _lease(
        self,
        limit: int,
        *,
        alone: bool = False,
        handlers: Sequence[str] | None = None,
        lanes: Sequence[Lane] | None = None,
        bulk: int | None = None,
        limited: int | None = None,
    ) -> LeaseResult:
        """Lease into the prefetched jobs; one that must run alone is only returned."""
        async with self._leasing:
            result = await self.connection.lease(
                self.worker_id,
                self._handler_names if handlers is None else handlers,
                limit,
                lease_seconds=self._lease_seconds,
                lanes=self._lanes if lanes is None else lanes,
                alone=alone,
                bulk=bulk,
                limited=limited,
                ageing_seconds=self._ageing_seconds,
            )
            if result.jobs:
                now, leased_at = await self.connection.now(), time.perf_counter()
                # A blocked event loop may have let them expire on their way here. Nobody has begun them, so
                # they can still be given back, unless the sweep was faster.
                jobs = [job for job in result.jobs if job.lease_until > now]
                if len(jobs) < len(result.jobs):
                    late = [job for job in result.jobs if job.lease_until <= now]
                    await self._give_back([LeaseRef(job.queue_id, job.fence) for job in late])
                leases = [LeaseRef(job.queue_id, job.fence) for job in jobs]
                self._heartbeats.hold(leases)
                if alone:
                    return LeaseResult(jobs)
                for job, lease in zip(jobs, leases, strict=True):
                    self._prefetched.add(job, leased_at, lease)
                self._work_arrived.set()
        return result

    async def _wait_for_work(self, ticket: int, next_due: float | None, asked: Room) -> None:
        """Until work is announced or due, or there is room for a kind of work that was not asked for."""
        seconds = self._poll_seconds
        if next_due is not None:
            # What is due and was not leased is locked by another worker, or must run alone: no reason
            # to ask without a pause.
            seconds = min(seconds, max(next_due - await self.connection.now(), EMPTY_CLAIM_SECONDS))
        if self._is_open(asked):
            await self.connection.wait_for_work(ticket, seconds)
            return
        work = asyncio.create_task(self._work_announced(ticket, seconds))
        work.add_done_callback(lambda _: self._room_made.set())
        try:
            while not work.done() and not self._room().lets_in_more_than(asked):
                self._room_made.clear()
                await self._room_made.wait()
            if work.done():
                work.result()
        finally:
            work.cancel()

    async def _work_announced(self, ticket: int, seconds: float) -> None:
        # While bulk work goes on, its reports and submits announce themselves as well: no reason to ask for
        # manual work without a pause.
        await asyncio.sleep(EMPTY_CLAIM_SECONDS)
        await self.connection.wait_for_work(ticket, seconds)

    async def _take_one_isolated(self) -> bool:
        """Whether there was a job to run alone whose step has a process of its own: it can begin at once,
        whatever else runs here, in a slot that is free."""
        room = self._room()
        lanes = [lane for lane in self._lanes if (room.slots_bulk if lane is Lane.BULK else room.slots)]
        if not self._isolated or not lanes:
            return False
        taken = (await self._lease(1, alone=True, handlers=self._isolated, lanes=lanes)).jobs
        for job in taken:
            self._prefetched.add_first(job)
            self._work_arrived.set()
        return bool(taken)

    async def _run_one_alone(self) -> None:
        """Take one job whose worker was lost before, let everything else here end, then run it beside
        nothing. Taken first, so that no other worker stops its own work for it; given back where the
        rest does not end soon."""
        if self._slots_stuck or not self._in_worker:  # stuck threads go on, and nobody knows for how long
            return
        taken = (await self._lease(1, alone=True, handlers=self._in_worker)).jobs
        try:
            if taken and await self._idle(self._alone_patience):
                self._prefetched.add(taken.pop(), time.perf_counter())
                self._work_arrived.set()
                self._alone_patience = ALONE_WAIT_SECONDS_MIN
                await self._idle(None)
        finally:
            if taken:
                # More patience the next time: with handlers that take minutes, a few seconds never do.
                self._alone_not_before = time.monotonic() + self._alone_patience
                self._alone_patience = min(self._alone_patience * 2, ALONE_WAIT_SECONDS_MAX)
                await self._give_back([LeaseRef(job.queue_id, job.fence) for job in taken])

    async def _idle(self, seconds: float | None) -> bool:
        """Whether nothing runs here any more, within this time."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._prefetched or self._running or self._outcomes or self._reporting:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return False
            self._room_made.clear()
            room = asyncio.ensure_future(self._room_made.wait())
            await asyncio.wait([room], timeout=remaining)
            room.cancel()
        return True

    async def _return_what_waits(self) -> None:
        """Give back what was leased ahead and found no slot: another worker may be free."""
        while True:
            await asyncio.sleep(PREFETCH_WAIT_SECONDS_MAX / 2)
            too_old = time.perf_counter() - PREFETCH_WAIT_SECONDS_MAX
            if not self._prefetched.has_waited(too_old):
                continue
            async with self._leasing:  # a stop waits for it
                await self._give_back(self._prefetched.withdraw(too_old))
            self._room_made.set()

    async def _give_back(self, leases: list[LeaseRef]) -> None:
        if leases:
            try:
                await self.connection.release(leases)
            except Exception as error:  # then they run out by themselves
                log.warning("%d leases could not be given back: %s", len(leases), error)
            for lease in leases:
                self._heartbeats.drop(lease)

    # running

    async def _run_slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not self._is_over:
            while (waiting := self._next_job()) is None:
                CURRENT.set(None)
                self._work_arrived.clear()
                await self._work_arrived.wait()
            if self._heartbeats.may_be_lost(waiting.lease):
                CURRENT.set(None)
                await self._give_back([waiting.lease])  # another worker may have done it meanwhile
                self._room_made.set()
                continue
            started = time.perf_counter()
            context = Context(
                waiting.job, self._progress_of(waiting.lease), self._transactions, self.worker_id
            )
            attempt = Attempt(
                waiting.job,
                context,
                self._handlers,
                self._executor,
                payload_bytes_max=self._payload_bytes_max,
                processes=self._processes,
                tracing=self._tracing,
            )
            try:
                outcome = attempt.run_at_once()
            except asyncio.CancelledError as error:
                outcome = attempt.failed_by(error)
            if outcome is not None and task.cancelling():
                await self._keep(task)
            if outcome is None:
                await self._run_waiting(waiting, attempt, _Running(task, context, started))
            else:
                self._outcomes.append(Report(waiting.lease.queue_id, waiting.lease.fence, outcome))
                self._outcome_arrived.set()
                self._learn(started)
            if time.perf_counter() - self._rested_at > REST_SECONDS:
                # Handlers that never wait must not keep reports, leases and stops waiting.
                await asyncio.sleep(0)
                self._rested_at = time.perf_counter()
            self._room_made.set()

    def _next_job(self) -> Waiting | None:
        if self._stopping.is_set():  # what has arrived since, or not begun before, is given back
            return None
        return self._prefetched.take(bulk=self._running_bulk < self._slots().for_bulk)

    def _progress_of(self, lease: LeaseRef) -> Callable[[float], None]:
        return lambda fraction: self._heartbeats.tell_progress(lease, fraction)

    def _learn(self, started: float) -> None:
        took, mean = time.perf_counter() - started, self._mean_seconds
        self._mean_seconds = took if mean is None else mean + 0.1 * (took - mean)

    async def _keep(self, task: asyncio.Task[None]) -> None:
        """However the handler took a cancellation, or caused one, the slot goes on."""
        while task.cancelling() and not self._is_over:
            try:
                await asyncio.sleep(0)  # where one that was not taken yet comes out
            except asyncio.CancelledError:
                if self._is_over:
                    raise
            task.uncancel()

    async def _run_waiting(self, waiting: Waiting, attempt: Attempt, running: _Running) -> None:
        """Run an attempt to its outcome that could not be had at once."""
        lease, is_bulk = waiting.lease, waiting.job.lane is Lane.BULK
        running.context.stopping = self._stopping.is_set()
        self._running[lease] = running
        self._running_bulk += is_bulk
        try:
            outcome = await attempt.run()
            if outcome is None:
                self._heartbeats.drop(lease)
            elif lease not in self._abandoned:
                self._outcomes.append(Report(lease.queue_id, lease.fence, outcome))
                self._outcome_arrived.set()
        except asyncio.CancelledError as error:
            if self._is_over:
                raise
            if lease not in self._abandoned:
                # The handler cancelled the task that it runs in: its own affair, as any other error is.
                self._outcomes.append(Report(lease.queue_id, lease.fence, attempt.failed_by(error)))
                self._outcome_arrived.set()
        finally:
            attempt.abandoned()  # where no outcome was told before
            del self._running[lease]
            self._running_bulk -= is_bulk
            self._abandoned.discard(lease)
            await self._keep(running.task)
        self._learn(running.started)
        if attempt.thread is not None and not attempt.thread.done():
            # A thread cannot be killed: its slot stays taken until it has ended.
            self._slots_stuck += 1
            self._room_made.set()
            self._work_arrived.set()  # the last slot that can be used serves both lanes
            await asyncio.wait([attempt.thread])
            self._slots_stuck -= 1

    def _abandon(self, lease: LeaseRef) -> None:
        """The lease was lost, or its execution cancelled: nobody waits for this attempt any more."""
        if running := self._running.get(lease):
            transaction = running.context.attempt_transaction
            if transaction is not None and transaction.is_completing:
                return  # the lease ends with its commit, or the commit will find the fence to be stale
            log.warning(
                "Job %d is no longer leased to this worker; its attempt is abandoned.",
                lease.queue_id,
                extra=about_attempt(running.context),
            )
            running.context.lease_lost = True
            self._abandoned.add(lease)
            running.task.cancel()
            return
        self._prefetched.drop(lease)

    # reporting

    async def _report_outcomes(self) -> None:
        away_seconds = AWAY_SECONDS_MIN
        while True:
            while not self._outcomes:
                self._outcome_arrived.clear()
                await self._outcome_arrived.wait()
            batch = [self._outcomes.popleft() for _ in range(min(len(self._outcomes), REPORTS_PER_BATCH))]
            self._reporting = len(batch)
            try:
                acks = await self.connection.report(batch)
            except Exception as error:
                # Kept and reported again: the fence tells the store what it has seen.
                self._outcomes.extendleft(reversed(batch))
                self._reporting = 0
                await away("Reporting", away_seconds, error)
                away_seconds = min(away_seconds * 2, AWAY_SECONDS_MAX)
                continue
            away_seconds = AWAY_SECONDS_MIN
            for report, ack in zip(batch, acks, strict=True):
                self._heartbeats.drop(LeaseRef(report.queue_id, report.fence))
                if not ack.accepted:
                    ids = about(queue_id=ack.queue_id, worker_id=self.worker_id)
                    log.warning(
                        "The outcome of job %d was not taken: %s", ack.queue_id, ack.message, extra=ids
                    )
            self._reporting = 0
            self._room_made.set()
