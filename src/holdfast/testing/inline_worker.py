"""The worker of a rehearsal: one attempt at a time, and when nothing is ready the clock jumps.

    sweep (where time has passed) ─▶ lease one job ─▶ run it, with its fault ─▶ report
                                      └ none ready: move the clock to the next thing there is

It leases from the real engine and runs the real `Attempt`. What a fault adds: an error raised before or
after the handler, a report that never comes (the lease then runs out on the fake clock and the sweep
finds it), a timeout that is told without waiting for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from holdfast.app import Holdfast
from holdfast.core.errors import InvalidInput
from holdfast.core.handlers import handler_key
from holdfast.core.model import ExecutionStatus, Failed, Lane, Leased, LeaseRef, LeaseResult, Report
from holdfast.engine import Engine
from holdfast.steps.registry import close_types, open_types
from holdfast.testing.clock import FakeClock, just_after
from holdfast.testing.faults import Cut, Fault, Faults, Kind
from holdfast.testing.place import Place
from holdfast.testing.run import RehearsalFailed
from holdfast.worker.announcing import worker_record
from holdfast.worker.attempt import Attempt, Function, Handler
from holdfast.worker.context import Context
from holdfast.worker.handler_error import timed_out
from holdfast.worker.transaction import Transactions

WORKER_ID = "rehearsal"
THREADS_MAX = 8
YIELD_SECONDS = 0.001
FAR_SECONDS = 36_500 * 86_400.0


class _Waits:
    """How many waits for other work a handler has under way: it may gather several."""

    count = 0


# Set in the handlers of a rehearsal.
_in_handler: ContextVar[_Waits | None] = ContextVar("in_handler", default=None)


class InlineWorker:
    """Stands in for the database and the workers of a Holdfast while the rehearsal lasts."""

    def __init__(
        self, hf: Holdfast, place: Place, clock: FakeClock, *, lease_seconds: float, attempts_max: int
    ) -> None:
        self.faults = Faults()
        self.replaced: dict[str, Handler] = {}
        self.exceptions: dict[int, list[BaseException]] = {}
        self.executor: Executor | None = None  # of plain handlers; None: threads, as in a worker
        self.hf = hf
        self.place = place
        self.clock = clock
        self._lease_seconds = lease_seconds
        self._attempts_max = attempts_max
        self._attempts = 0
        self._engines: WeakKeyDictionary[asyncio.AbstractEventLoop, Engine] = WeakKeyDictionary()
        self._home: asyncio.AbstractEventLoop | None = None
        self._threads = ThreadPoolExecutor(THREADS_MAX, "holdfast-rehearsal")
        self._held: dict[LeaseRef, float] = {}  # by attempts that run, until when
        self._lost: dict[LeaseRef, float] = {}
        self._swept_at = clock.now
        self._finding: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._busy = 0  # attempts that do not themselves wait for other work
        self._offered: Mapping[str, Handler] = {}
        self._known: tuple[int, int] | None = None

    async def open(self) -> None:
        await self.place.open()
        self._home = asyncio.get_running_loop()
        open_types()

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await close_types()
        await self.place.close()

    async def engine(self) -> Engine:
        """An engine for each event loop on the one store: a test client runs the program in its own."""
        loop = asyncio.get_running_loop()
        if loop not in self._engines:
            if loop is not self._home and not self.place.is_sqlite:
                raise InvalidInput(
                    "A rehearsal on PostgreSQL was used from another event loop than its own.",
                    guidance="Use rehearsal.do(...), or rehearse on SQLite: leave url= out.",
                )
            self._engines[loop] = engine = Engine(
                self.place.store, payload_bytes_max=self.hf._payload_bytes_max, draw=lambda: 1.0
            )
            # For whoever looks at what waits: somebody is there for it, however far the clock jumps.
            record = worker_record(
                WORKER_ID,
                concurrency=1,
                lanes=tuple(Lane),
                handlers=sorted(self.handlers()),
                lease_seconds=self._lease_seconds,
            )
            await engine.announce(msgspec.structs.replace(record, announce_seconds=FAR_SECONDS))
        return self._engines[loop]

    async def go_on(self, ticket: int | None = None) -> None:
        """For whoever waits for an execution, in the test or in a handler. Since it looked, with the ticket
        taken before, another task may have done what it waits for: then it looks again."""
        with self._not_busy(_in_handler.get()):
            if not await self.step() and ticket in (None, self.place.store.work_ticket()):
                raise RehearsalFailed("What is waited for will never end: there is nothing left to run.")

    @contextlib.contextmanager
    def _not_busy(self, waits: _Waits | None) -> Iterator[None]:
        """A handler that waits for other work must not keep the time from passing for that."""
        if waits is None:
            yield
            return
        self._busy -= not waits.count
        waits.count += 1
        try:
            yield
        finally:
            waits.count -= 1
            self._busy += not waits.count

    async def is_running(self, execution_id: int) -> bool:
        execution = await self.place.store.execution(execution_id)
        return execution is not None and execution.status is ExecutionStatus.RUNNING

    async def step(self, until: float | None = None) -> bool:
        """Do the next thing there is; False where there is none, or none before `until`."""
        engine = await self.hf.own_engine()
        # One task at a time: what another has found must not change while it does something about it.
        async with self._finding.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            if await self._sweep(engine):
                return True
            await engine.batches.attend_all()
            result = await self._lease(engine)
            if not result.jobs and self._busy <= 0:
                return await self._let_time_pass(engine, result.next_due, until)
            self._busy += len(result.jobs)  # until it is reported: time must not pass in between
        if result.jobs:
            await self._perform(engine, result.jobs[0])
        else:  # another task of the test runs an attempt: time waits for it
            await asyncio.sleep(YIELD_SECONDS)
        return True

    async def _let_time_pass(self, engine: Engine, next_due: float | None, until: float | None) -> bool:
        moment = await self._next_moment(engine, next_due)
        if moment is None or moment <= self.clock.now or (until is not None and moment > until):
            return False
        self.clock.move_to(moment)
        return True

    async def _sweep(self, engine: Engine) -> bool:
        """Whether a sweeper would find something, where time has passed. Attempts that run are alive: they
        beat."""
        now = self.clock.now
        if now == self._swept_at:
            return False
        await engine.heartbeat(list(self._held), lease_seconds=self._lease_seconds)
        self._held = dict.fromkeys(self._held, now + self._lease_seconds)
        swept = 0
        while found := await engine.sweep():
            swept += found
        self._lost = {lease: until for lease, until in self._lost.items() if until >= now}
        self._swept_at = now
        return swept > 0

    async def _lease(self, engine: Engine) -> LeaseResult:
        handlers = sorted(self.handlers())
        result = await engine.lease(WORKER_ID, handlers, 1, lease_seconds=self._lease_seconds)
        if not result.jobs and result.alone_ready:
            result = await engine.lease(WORKER_ID, handlers, 1, lease_seconds=self._lease_seconds, alone=True)
        return result

    def handlers(self) -> Mapping[str, Handler]:
        """The program's own, and those of the step types, all of them: the test is their author's."""
        known = len(self.hf._handlers), len(self.hf._functions)  # they are added and never changed
        if known != self._known:
            self._offered = self.hf._offered(allow_code=True, allow_shell=True)
            self._known = known
        return self._offered

    async def _next_moment(self, engine: Engine, next_due: float | None) -> float | None:
        """When something happens next: a job is due, a lost lease runs out, a deadline passes."""
        moments = [just_after(until) for until in self._lost.values()]
        if next_due is not None:
            moments.append(next_due)
        horizon = min(moments, default=self.clock.now + FAR_SECONDS)
        for execution_id in await engine.store.overdue(horizon, 1):  # the earliest
            execution = await engine.store.execution(execution_id)
            if execution is not None and execution.deadline_at is not None:
                moments.append(just_after(execution.deadline_at))
        return min(moments, default=None)

    async def _perform(self, engine: Engine, job: Leased) -> None:
        """One attempt, from the lease to the report, or to where its worker dies. It is busy already."""
        lease = LeaseRef(job.queue_id, job.fence)
        self._held[lease] = job.lease_until
        try:
            self._count(job)
            await self._play(engine, job, lease)
        finally:
            self._busy -= 1
            self._held.pop(lease, None)

    async def _play(self, engine: Engine, job: Leased, lease: LeaseRef) -> None:
        # Here every handler runs in this process; what its real place does not offer is not offered either.
        is_isolated = self.handlers()[job.handler].isolation is not None
        transactions = None if is_isolated else Transactions(engine.transaction, engine.store.url)
        context = Context(job, lambda fraction: None, transactions)
        place = handler_key(job.path, job.step)  # a step type's handler is that of many steps
        scene = _Scene(self.faults.take(place, context), is_replaced=place in self.replaced)
        handlers = self._handlers_with(job.handler, place, scene)
        attempt = Attempt(
            job, context, handlers, self._executor(), payload_bytes_max=self.hf._payload_bytes_max
        )
        inside = _in_handler.set(_Waits())
        try:
            outcome = await attempt.run()
            if attempt.thread is not None:  # it goes on after its timeout, and nothing runs beside it
                await asyncio.wait([attempt.thread])
        finally:
            _in_handler.reset(inside)
        self.exceptions.setdefault(job.execution_id, []).extend(scene.raised)
        if scene.test_failure is not None:
            await engine.release([lease])
            raise scene.test_failure
        if scene.cut is Kind.LOSE_WORKER:
            self._lost[lease] = self._held.pop(lease)
            return
        if scene.cut is Kind.TIME_OUT:
            assert isinstance(outcome, Failed)
            self.clock.advance(job.timeout_seconds)
            outcome = Failed(timed_out(job), outcome.cleared)
        if outcome is not None:  # else it was settled in its handler's transaction
            await engine.report([Report(job.queue_id, job.fence, outcome)])

    def _count(self, job: Leased) -> None:
        self._attempts += 1
        if self._attempts > self._attempts_max:
            raise RehearsalFailed(
                f"The rehearsal does not end: it has made {self._attempts_max} attempts, the last at step"
                f" {job.step} of {job.path}. Where that is right, give Rehearsal a greater attempts_max."
            )

    def _executor(self) -> Executor:
        # Calls for the test's own thread are made by its loop, and by no other.
        at_home = asyncio.get_running_loop() is self._home
        return self.executor if self.executor is not None and at_home else self._threads

    def _handlers_with(self, key: str, place: str, scene: _Scene) -> Mapping[str, Handler]:
        """All handlers, for their clear hooks; the one to run as the scene has it, in this process."""
        handlers = {**self.handlers(), **self.replaced}
        handler = self.replaced.get(place, handlers[key])
        function = scene.async_function(handler) if handler.is_async else scene.plain_function(handler)
        return {**handlers, key: Handler.of(function, handler.clear)}


class _Scene:
    """One attempt as it is played: its fault, and what was raised in it."""

    def __init__(self, fault: Fault | None, *, is_replaced: bool) -> None:
        self._fault = fault
        self._is_replaced = is_replaced
        self.raised: list[BaseException] = []
        self.cut: Kind | None = None
        self.test_failure: BaseException | None = None
        """The test's, not the pipeline's: the rehearsal cannot go on as the test says."""

    def async_function(self, handler: Handler) -> Function:
        async def play(context: Context) -> Any:
            try:
                self._strike(after=False)
                result = await handler.function(context)
                self._strike(after=True)
            except BaseException as error:
                self._note(error)
                raise
            return result

        return play

    def plain_function(self, handler: Handler) -> Function:
        def play(context: Context) -> Any:
            try:
                self._strike(after=False)
                result = handler.function(context)
                self._strike(after=True)
            except BaseException as error:
                self._note(error)
                raise
            return result

        return play

    def _strike(self, *, after: bool) -> None:
        if self._fault is not None and self._fault.after is after:
            self._fault.strike()

    def _note(self, error: BaseException) -> None:
        if isinstance(error, Cut):
            assert self._fault is not None
            self.cut = self._fault.kind
        elif not isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            self.raised.append(error)
            # So is an assertion, or pytest.fail(), in what a test put in the place of a handler.
            if isinstance(error, RehearsalFailed) or (
                self._is_replaced and not self._is_injected(error) and _is_the_tests(error)
            ):
                self.test_failure = error

    def _is_injected(self, error: BaseException) -> bool:
        injected = None if self._fault is None else self._fault.error
        return error is injected or type(error) is injected


def _is_the_tests(error: BaseException) -> bool:
    return isinstance(error, AssertionError) or not isinstance(error, Exception)
