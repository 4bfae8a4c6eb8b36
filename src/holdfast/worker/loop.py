"""The worker: leases ahead, runs in slots, reports in batches.

    leaser ──▶ prefetched jobs ──▶ slots (one task each) ──▶ outcomes ──▶ reporter
                                      heartbeats, on a thread of their own

Leasing, running and reporting overlap, so one round trip serves many short jobs. How much is leased
ahead follows how long handlers take: none where they are long, hundreds where they take microseconds.
What is leased and not run when the worker stops is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.core.errors import InvalidInput, StoreUnavailable
from holdfast.core.model import Lane, Leased, LeaseRef, Report
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
AWAY_SECONDS_MAX = 10.0


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
        self._prefetched: deque[Leased] = deque()
        self._outcomes: deque[Report] = deque()
        self._running: dict[LeaseRef, tuple[asyncio.Task[None], Context]] = {}
        self._abandoned: set[LeaseRef] = set()
        self._mean_seconds: float | None = None
        self._stopping = asyncio.Event()
        self._work_arrived = asyncio.Event()
        self._room_made = asyncio.Event()
        self._outcome_arrived = asyncio.Event()
        self._reporting = 0
        self._leasing = asyncio.Lock()

    async def run(self) -> None:
        """Work until `stop()` is called, then finish what runs and give back what was not begun.
        Cancelled, it drops everything at once: what it held runs again when its leases have expired."""
        loop = asyncio.get_running_loop()

        def on_lost(lease: LeaseRef) -> None:
            loop.call_soon_threadsafe(self._abandon, lease)

        self._heartbeats = Heartbeats(self._connection, self._lease_seconds, on_lost)
        self._executor = ThreadPoolExecutor(self._concurrency, "holdfast-handler")
        self._heartbeats.start()
        slots = [asyncio.create_task(self._run_slot()) for _ in range(self._concurrency)]
        reporter = asyncio.create_task(self._report_outcomes())
        leaser = asyncio.create_task(self._lease_ahead())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            # None of them ends by itself: one that does has failed, and the worker with it.
            done, _ = await asyncio.wait(
                [stopping, leaser, reporter, *slots], return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        except BaseException:
            for task in (leaser, reporter, *slots):
                task.cancel()
            raise
        else:
            await self._wind_down(leaser, slots, reporter)
        finally:
            stopping.cancel()
            await asyncio.shield(self._heartbeats.stop())
            self._executor.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Lease nothing more, finish what runs, give back the rest."""
        self._stopping.set()

    async def _wind_down(
        self, leaser: asyncio.Task[None], slots: list[asyncio.Task[None]], reporter: asyncio.Task[None]
    ) -> None:
        async with self._leasing:  # cut off in the middle, a lease would be nobody's
            await _ended(leaser)
        await self._give_back_prefetched()
        while self._running:
            self._room_made.clear()
            await self._room_made.wait()
        for slot in slots:
            await _ended(slot)
        while self._outcomes or self._reporting:
            self._room_made.clear()
            await self._room_made.wait()
        await _ended(reporter)

    async def _give_back_prefetched(self) -> None:
        leases = [LeaseRef(job.queue_id, job.fence) for job in self._prefetched]
        self._prefetched.clear()
        if leases:
            with contextlib.suppress(StoreUnavailable):  # then they run out by themselves
                await self._connection.release(leases)
            for lease in leases:
                self._heartbeats.drop(lease)

    # leasing

    def _jobs_wanted(self) -> int:
        """Free slots, and as many more as the handlers' usual duration allows to hold in advance."""
        ahead = 0
        if self._mean_seconds is not None:
            ahead = int(PREFETCH_SECONDS * self._concurrency / max(self._mean_seconds, 1e-6))
        target = self._concurrency + min(ahead, PREFETCH_JOBS_MAX)
        held = len(self._prefetched) + len(self._running)
        # A half-full store of short jobs is no reason to ask again; a free slot is.
        return target - held if held <= max(target // 2, self._concurrency - 1) else 0

    async def _lease_ahead(self) -> None:
        away_seconds = 0.1
        while True:
            self._room_made.clear()
            wanted = self._jobs_wanted()
            if wanted <= 0 or len(self._outcomes) > OUTCOMES_WAITING_MAX:
                await self._room_made.wait()
                continue
            ticket = self._connection.work_ticket()
            try:
                alone_ready, next_due = await self._lease(wanted, alone=False)
                if alone_ready:
                    await self._run_one_alone()
                away_seconds = 0.1
                if next_due is not None:
                    await self._wait_for_work(ticket, next_due)
            except StoreUnavailable as error:
                log.warning("Leasing waits %.1f s: %s %s", away_seconds, error, error.guidance)
                await asyncio.sleep(away_seconds)
                away_seconds = min(away_seconds * 2, AWAY_SECONDS_MAX)

    async def _lease(self, limit: int, *, alone: bool) -> tuple[bool, float | None]:
        """Lease into the prefetched jobs. Whether a job that must run alone waits, and, where nothing
        was ready, when something will be (now + the poll interval where nothing is known)."""
        async with self._leasing:
            result = await self._connection.lease(
                self.worker_id,
                self._handler_names,
                limit,
                lease_seconds=self._lease_seconds,
                lanes=self._lanes,
                alone=alone,
            )
            for job in result.jobs:
                self._heartbeats.hold(LeaseRef(job.queue_id, job.fence))
            self._prefetched.extend(result.jobs)
        if result.jobs:
            self._work_arrived.set()
            return result.alone_ready, None
        return result.alone_ready, float("inf") if result.next_due is None else result.next_due

    async def _wait_for_work(self, ticket: int, next_due: float) -> None:
        until_due = next_due - await self._connection.now()
        await self._connection.wait_for_work(ticket, max(0.0, min(self._poll_seconds, until_due)))

    async def _run_one_alone(self) -> None:
        """Let everything end, then run one job whose worker was lost before, beside nothing else."""
        await self._idle()
        await self._lease(1, alone=True)
        await self._idle()

    async def _idle(self) -> None:
        while self._prefetched or self._running or self._outcomes or self._reporting:
            self._room_made.clear()
            await self._room_made.wait()

    # running

    async def _run_slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while True:
            while not self._prefetched:
                self._work_arrived.clear()
                await self._work_arrived.wait()
            job = self._prefetched.popleft()
            await self._run_job(job, task)
            self._room_made.set()

    async def _run_job(self, job: Leased, task: asyncio.Task[None]) -> None:
        lease = LeaseRef(job.queue_id, job.fence)
        context = Context(job, lambda fraction: self._heartbeats.tell_progress(lease, fraction))
        self._running[lease] = (task, context)
        started = time.perf_counter()
        attempt = Attempt(
            job, context, self._handlers, self._executor, payload_bytes_max=self._payload_bytes_max
        )
        thread = None
        try:
            ending = await attempt.run()
            thread = ending.thread
            if lease not in self._abandoned:
                self._outcomes.append(Report(job.queue_id, job.fence, ending.outcome))
                self._outcome_arrived.set()
        except asyncio.CancelledError:
            if lease not in self._abandoned:
                raise
            task.uncancel()
            thread = attempt.thread
        finally:
            self._abandoned.discard(lease)
            del self._running[lease]
        took = time.perf_counter() - started
        mean = self._mean_seconds
        self._mean_seconds = took if mean is None else mean + 0.1 * (took - mean)
        if thread is not None:
            # A thread cannot be killed: its slot stays taken until it has ended.
            await asyncio.wait([thread])

    def _abandon(self, lease: LeaseRef) -> None:
        """The lease was lost, or its execution cancelled: nobody waits for this attempt any more."""
        if running := self._running.get(lease):
            task, context = running
            log.warning(
                "Job %d is no longer leased to this worker; its attempt is abandoned.", lease.queue_id
            )
            context.lease_lost = True
            self._abandoned.add(lease)
            task.cancel()
            return
        for job in self._prefetched:
            if (job.queue_id, job.fence) == (lease.queue_id, lease.fence):
                self._prefetched.remove(job)
                break

    # reporting

    async def _report_outcomes(self) -> None:
        away_seconds = 0.1
        while True:
            while not self._outcomes:
                self._outcome_arrived.clear()
                await self._outcome_arrived.wait()
            batch = [self._outcomes.popleft() for _ in range(min(len(self._outcomes), REPORTS_PER_BATCH))]
            self._reporting = len(batch)
            try:
                acks = await self._connection.report(batch)
            except StoreUnavailable as error:
                # Kept and reported again: the fence tells the store what it has seen.
                self._outcomes.extendleft(reversed(batch))
                log.warning("Reporting waits %.1f s: %s %s", away_seconds, error, error.guidance)
                await asyncio.sleep(away_seconds)
                away_seconds = min(away_seconds * 2, AWAY_SECONDS_MAX)
                continue
            away_seconds = 0.1
            for report, ack in zip(batch, acks, strict=True):
                self._heartbeats.drop(LeaseRef(report.queue_id, report.fence))
                if not ack.accepted:
                    log.warning("The outcome of job %d was not taken: %s", ack.queue_id, ack.message)
            self._reporting = 0
            self._room_made.set()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
