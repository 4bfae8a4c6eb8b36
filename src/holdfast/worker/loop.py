"""The worker: leases ahead, runs in slots, reports in batches.

    leaser ──▶ prefetched jobs ──▶ slots (one task each) ──▶ outcomes ──▶ reporter
                                      heartbeats, on a thread of their own

Leasing, running and reporting overlap, so one round trip serves many short jobs. How much is leased
ahead follows how long handlers take: none where they are long, hundreds where they take microseconds.
What is leased and not run when the worker stops is given back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.model import Lane, Leased, LeaseRef, LeaseResult, Report
from holdfast.core.payload import PAYLOAD_BYTES_MAX_DEFAULT
from holdfast.worker.attempt import Attempt, Handler
from holdfast.worker.connection import Connection
from holdfast.worker.context import Context
from holdfast.worker.heartbeats import Heartbeats

log = logging.getLogger("holdfast.worker")

CONCURRENCY_DEFAULT = 16
LEASE_SECONDS_DEFAULT = 60.0
POLL_SECONDS_DEFAULT = 1.0
PREFETCH_JOBS_MAX = 500
PREFETCH_SECONDS = 0.1
REPORTS_PER_BATCH = 500
OUTCOMES_WAITING_MAX = 2_000
AWAY_SECONDS_MIN = 0.1
AWAY_SECONDS_MAX = 10.0
EMPTY_CLAIM_SECONDS = 0.05
PREFETCH_WAIT_SECONDS_MAX = 1.0
ALONE_WAIT_SECONDS = 5.0
YIELD_SECONDS = 0.001


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
        payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
    ) -> None:
        if concurrency < 1:
            raise InvalidInput(f"A worker needs a concurrency of at least 1, not {concurrency}.")
        self.worker_id = worker_id
        self._connection = connection
        self._handlers = handlers
        self._handler_names = sorted(handlers)
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._lanes = lanes
        self._poll_seconds = poll_seconds
        self._payload_bytes_max = payload_bytes_max
        self._prefetched: deque[tuple[float, Leased]] = deque()  # with the time it was leased
        self._outcomes: deque[Report] = deque()
        self._running: dict[LeaseRef, _Running] = {}
        self._abandoned: set[LeaseRef] = set()
        self._mean_seconds: float | None = None
        self._stopping = asyncio.Event()
        self._work_arrived = asyncio.Event()
        self._room_made = asyncio.Event()
        self._outcome_arrived = asyncio.Event()
        self._reporting = 0
        self._leasing = asyncio.Lock()
        self._slots_stuck = 0  # their threads have timed out and go on
        self._alone_not_before = 0.0
        self._running_task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self.was_dropped = False

    async def run(self) -> None:
        """Work until `stop()` is called, then finish what runs and give back what was not begun.
        Cancelled, it drops everything at once: what it held runs again when its leases have expired."""
        loop = asyncio.get_running_loop()

        def on_lost(lease: LeaseRef) -> None:
            loop.call_soon_threadsafe(self._abandon, lease)

        self._heartbeats = Heartbeats(self._connection, self._lease_seconds, on_lost)
        self._executor = ThreadPoolExecutor(self._concurrency, "holdfast-handler")
        self._heartbeats.start()
        self._running_task = asyncio.current_task()
        slots = [asyncio.create_task(self._run_slot()) for _ in range(self._concurrency)]
        reporter = asyncio.create_task(self._report_outcomes())
        leaser = asyncio.create_task(self._lease_ahead())
        returner = asyncio.create_task(self._return_what_waits())
        stopping = asyncio.create_task(self._stopping.wait())
        tasks = [stopping, leaser, reporter, returner, *slots]
        try:
            # None of them ends by itself: one that does has failed, and the worker with it.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._wind_down(leaser, slots, reporter)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.shield(self._heartbeats.stop())
            self._executor.shutdown(wait=False, cancel_futures=True)
            self.ended.set()

    def stop(self) -> None:
        """Lease nothing more, finish what runs, give back the rest."""
        self._stopping.set()

    def stop_or_drop(self) -> None:
        """For signals: the first stops, a second one drops what still runs."""
        if not self._stopping.is_set():
            log.warning(
                "Stopping: %d running, %d outcomes to report. Another signal ends the worker at once.",
                len(self._running),
                len(self._outcomes) + self._reporting,
            )
            self.stop()
        elif self._running_task is not None:
            self.was_dropped = True
            self._running_task.cancel()

    async def _wind_down(
        self, leaser: asyncio.Task[None], slots: list[asyncio.Task[None]], reporter: asyncio.Task[None]
    ) -> None:
        async with self._leasing:  # cut off in the middle, a lease would be nobody's
            await _ended(leaser)
        leases = [LeaseRef(job.queue_id, job.fence) for _, job in self._prefetched]
        self._prefetched.clear()
        await self._give_back(leases)
        while self._running:
            self._room_made.clear()
            await self._room_made.wait()
        for slot in slots:
            await _ended(slot)
        while self._outcomes or self._reporting:
            self._room_made.clear()
            await self._room_made.wait()
        await _ended(reporter)

    # leasing

    def _jobs_wanted(self) -> int:
        """Free slots, and as many more as the handlers' usual duration allows to hold in advance: none
        while a handler is running for long, however short the others were."""
        slots = self._concurrency - self._slots_stuck
        ahead = 0
        if self._mean_seconds is not None and slots:
            seconds = max(self._mean_seconds, self._longest_running(), 1e-6)
            ahead = min(int(PREFETCH_SECONDS * slots / seconds), PREFETCH_JOBS_MAX)
        target = slots + ahead
        held = len(self._prefetched) + len(self._running)
        # A half-full store of short jobs is no reason to ask again; a free slot is.
        return target - held if held <= max(target // 2, slots - 1) else 0

    def _longest_running(self) -> float:
        oldest = next(iter(self._running.values()), None)  # kept in the order of their start
        return 0.0 if oldest is None else time.perf_counter() - oldest.started

    async def _lease_ahead(self) -> None:
        away_seconds = AWAY_SECONDS_MIN
        while True:
            self._room_made.clear()
            wanted = self._jobs_wanted()
            if wanted <= 0 or len(self._outcomes) > OUTCOMES_WAITING_MAX:
                await self._room_made.wait()
                continue
            ticket = self._connection.work_ticket()
            try:
                result = await self._lease(wanted, alone=False)
                if result.alone_ready and time.monotonic() >= self._alone_not_before:
                    await self._run_one_alone()
                away_seconds = AWAY_SECONDS_MIN
                if not result.jobs:
                    await self._wait_for_work(ticket, result.next_due)
            except Exception as error:
                await _away("Leasing", away_seconds, error)
                away_seconds = min(away_seconds * 2, AWAY_SECONDS_MAX)

    async def _lease(self, limit: int, *, alone: bool) -> LeaseResult:
        """Lease into the prefetched jobs; one that must run alone is only returned."""
        async with self._leasing:
            result = await self._connection.lease(
                self.worker_id,
                self._handler_names,
                limit,
                lease_seconds=self._lease_seconds,
                lanes=self._lanes,
                alone=alone,
            )
            if result.jobs:
                now, leased_at = await self._connection.now(), time.perf_counter()
                # A blocked event loop may have let them expire on their way here.
                jobs = [job for job in result.jobs if job.lease_until > now]
                for job in jobs:
                    self._heartbeats.hold(LeaseRef(job.queue_id, job.fence))
                if alone:
                    return LeaseResult(jobs)
                self._prefetched.extend((leased_at, job) for job in jobs)
                self._work_arrived.set()
        return result

    async def _wait_for_work(self, ticket: int, next_due: float | None) -> None:
        seconds = self._poll_seconds
        if next_due is not None:
            # What is due and was not leased is locked by another worker, or must run alone: no reason
            # to ask without a pause.
            seconds = min(seconds, max(next_due - await self._connection.now(), EMPTY_CLAIM_SECONDS))
        await self._connection.wait_for_work(ticket, seconds)

    async def _run_one_alone(self) -> None:
        """Take one job whose worker was lost before, let everything else here end, then run it beside
        nothing. Taken first, so that no other worker stops its own work for it; given back where the
        rest does not end soon."""
        taken = (await self._lease(1, alone=True)).jobs
        try:
            if taken and await self._idle(ALONE_WAIT_SECONDS):
                self._prefetched.append((time.perf_counter(), taken.pop()))
                self._work_arrived.set()
                await self._idle(None)
        finally:
            if taken:
                self._alone_not_before = time.monotonic() + ALONE_WAIT_SECONDS
                await self._give_back([LeaseRef(job.queue_id, job.fence) for job in taken])

    async def _idle(self, seconds: float | None) -> bool:
        """Whether nothing runs here any more, within this time."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._prefetched or self._running or self._outcomes or self._reporting or self._slots_stuck:
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
            waiting = [entry for entry in self._prefetched if entry[0] < too_old]
            for entry in waiting:
                self._prefetched.remove(entry)
            await self._give_back([LeaseRef(job.queue_id, job.fence) for _, job in waiting])
            if waiting:
                self._room_made.set()

    async def _give_back(self, leases: list[LeaseRef]) -> None:
        if leases:
            try:
                await self._connection.release(leases)
            except Exception as error:  # then they run out by themselves
                log.warning("%d leases could not be given back: %s", len(leases), error)
            for lease in leases:
                self._heartbeats.drop(lease)

    # running

    async def _run_slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while True:
            while not self._prefetched:
                self._work_arrived.clear()
                await self._work_arrived.wait()
            _, job = self._prefetched.popleft()
            if await self._run_job(job, task) > YIELD_SECONDS:
                await asyncio.sleep(0)  # a handler that blocks must not keep reports and stops waiting
            self._room_made.set()

    async def _run_job(self, job: Leased, task: asyncio.Task[None]) -> float:
        """Run one attempt to its outcome; how many seconds it took."""
        lease = LeaseRef(job.queue_id, job.fence)
        context = Context(job, lambda fraction: self._heartbeats.tell_progress(lease, fraction))
        started = time.perf_counter()
        self._running[lease] = _Running(task, context, started)
        attempt = Attempt(
            job, context, self._handlers, self._executor, payload_bytes_max=self._payload_bytes_max
        )
        try:
            outcome = await attempt.run()
            if lease not in self._abandoned:
                self._outcomes.append(Report(job.queue_id, job.fence, outcome))
                self._outcome_arrived.set()
        except asyncio.CancelledError:
            if lease not in self._abandoned:
                raise
        finally:
            del self._running[lease]
            if lease in self._abandoned:
                # However the handler took its cancellation, the slot goes on.
                self._abandoned.discard(lease)
                task.uncancel()
        took = time.perf_counter() - started
        mean = self._mean_seconds
        self._mean_seconds = took if mean is None else mean + 0.1 * (took - mean)
        if attempt.thread is not None and not attempt.thread.done():
            # A thread cannot be killed: its slot stays taken until it has ended.
            self._slots_stuck += 1
            self._room_made.set()
            await asyncio.wait([attempt.thread])
            self._slots_stuck -= 1
        return took

    def _abandon(self, lease: LeaseRef) -> None:
        """The lease was lost, or its execution cancelled: nobody waits for this attempt any more."""
        if running := self._running.get(lease):
            log.warning(
                "Job %d is no longer leased to this worker; its attempt is abandoned.", lease.queue_id
            )
            running.context.lease_lost = True
            self._abandoned.add(lease)
            running.task.cancel()
            return
        for entry in self._prefetched:
            if (entry[1].queue_id, entry[1].fence) == (lease.queue_id, lease.fence):
                self._prefetched.remove(entry)
                break

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
                acks = await self._connection.report(batch)
            except Exception as error:
                # Kept and reported again: the fence tells the store what it has seen.
                self._outcomes.extendleft(reversed(batch))
                await _away("Reporting", away_seconds, error)
                away_seconds = min(away_seconds * 2, AWAY_SECONDS_MAX)
                continue
            away_seconds = AWAY_SECONDS_MIN
            for report, ack in zip(batch, acks, strict=True):
                self._heartbeats.drop(LeaseRef(report.queue_id, report.fence))
                if not ack.accepted:
                    log.warning("The outcome of job %d was not taken: %s", ack.queue_id, ack.message)
            self._reporting = 0
            self._room_made.set()


async def _away(what: str, seconds: float, error: Exception) -> None:
    """Tell why something waits, and wait. An error of ours is a sentence; any other is a bug, told whole."""
    if isinstance(error, HoldfastError):
        log.warning("%s waits %.1f s. %s %s", what, seconds, error, error.guidance)
    else:
        log.exception("%s failed and is tried again in %.1f s.", what, seconds)
    await asyncio.sleep(seconds)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
