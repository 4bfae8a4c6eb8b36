"""Leases that wait: workers with nothing to do are parked here, and answered when there is something.

Workers that offer the same stand in one line. Each line asks the engine for the first of them, and again
whenever work is announced or due; so a hundred idle workers cost what one does. Whoever has left before it
got its jobs gets none: they are given back, and nobody's attempt is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import Lane, LeaseRef, LeaseResult
from holdfast.engine import Engine

log = logging.getLogger("holdfast.server")

POLL_SECONDS = 1.0
# What is due and was not leased is locked, or must run alone: no reason to ask without a pause.
EMPTY_CLAIM_SECONDS = 0.05
BOTH_LANES = (Lane.MANUAL, Lane.BULK)
# Work that must run alone is looked at for workers that do not ask for it themselves no more often than this.
ALONE_HELD_MAX = 10_000
CALLED_BACK_MAX = 10_000
CLOSE_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What one worker asks for. A `foreign` one is not Holdfast's own: it never asks for what must run alone,
    and is given that when it holds nothing else."""

    worker_id: str
    handlers: tuple[str, ...] | None
    limit: int
    lease_seconds: float
    lanes: tuple[Lane, ...] = BOTH_LANES
    alone: bool = False
    bulk: int | None = None
    limited: int | None = None
    ageing_seconds: float | None = None
    family: int | None = None
    token: str | None = None
    knows_alone: bool = False
    foreign: bool = False

    @property
    def line(self) -> tuple[object, ...]:
        """Where one of them finds nothing, no other does."""
        kept = (self.bulk == 0, self.limited == 0, self.knows_alone, self.foreign)
        return (self.handlers, self.lanes, self.alone, self.ageing_seconds, self.family, *kept)


@dataclass(slots=True, eq=False)
class _Waiter:
    """A call, and its answer: given to it while it waits, or nothing where it was called back."""

    wanted: Wanted
    answer: asyncio.Future[LeaseResult] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class LeaseDesk:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lines: dict[tuple[object, ...], _Line] = {}
        self._calls: set[_Waiter] = set()
        self._called_back: OrderedDict[tuple[str, str | None], None] = OrderedDict()
        self._closing = asyncio.Event()
        self._alone: dict[str, LeaseRef] = {}
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        return sum(len(line.waiters) for line in self._lines.values())

    async def lease(
        self,
        wanted: Wanted,
        wait: float,
        gone: asyncio.Future[None] | None = None,
        is_there: Callable[[], None] = lambda: None,
    ) -> LeaseResult:
        """What there is, or what comes within `wait` seconds; nothing for one who is `gone` meanwhile. Of one
        who waits for the answer, and not just was on the way when its sender left, `is_there` is told."""
        if (wanted.worker_id, wanted.token) in self._called_back and not wanted.foreign:
            return LeaseResult([])  # Holdfast's own have a token for each call: this one was long on its way
        call = _Waiter(wanted)
        self._calls.add(call)
        try:
            ticket = self._engine.work_ticket()
            result = await self.ask(wanted)
            if call.answer.done() or (gone is not None and gone.done()):
                await asyncio.shield(self.give_back(result))
                return LeaseResult([])
            is_there()
            if _is_answer(result, wanted) or wait <= 0 or self._closing.is_set():
                return result
            return await self._wait(call, ticket, result, wait, gone)
        finally:
            self._calls.discard(call)

    async def recall(self, worker_id: str, tokens: Sequence[str]) -> None:
        """Give back what these calls have leased, and whatever those of them lease that are still under
        way: whoever made them has given them up, which need not have been seen here."""
        self._called_back.update(dict.fromkeys((worker_id, token) for token in tokens))
        while len(self._called_back) > CALLED_BACK_MAX:
            self._called_back.popitem(last=False)
        for call in self._calls:
            if call.wanted.worker_id == worker_id and call.wanted.token in tokens and not call.answer.done():
                call.answer.set_result(LeaseResult([]))
        await self._engine.recall(worker_id, tokens)

    async def _wait(
        self,
        waiter: _Waiter,
        ticket: int,
        result: LeaseResult,
        wait: float,
        gone: asyncio.Future[None] | None,
    ) -> LeaseResult:
        key = waiter.wanted.line
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(self)
        line.join(waiter, ticket, result)
        is_here = False
        try:
            waits: list[asyncio.Future[Any]] = [waiter.answer]
            if gone is not None:
                waits.append(gone)
            await asyncio.wait(waits, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            is_here = gone is None or not gone.done()
        finally:
            # A claim that is under way for it is not cut off: what it brings is given back.
            found = line.leave(waiter)
            if not line.waiters and self._lines.get(key) is line:
                del self._lines[key]
            if found is not None and not is_here:
                await asyncio.shield(self.give_back(found))
                found = None
        if found is not None:
            return found
        return result if is_here else LeaseResult([])

    async def ask(self, wanted: Wanted) -> LeaseResult:
        if wanted.foreign and wanted.worker_id in self._alone and await self._runs_alone(wanted.worker_id):
            return LeaseResult([])
        result = await self._lease(wanted, alone=wanted.alone)
        if result.jobs or not result.alone_ready or not wanted.foreign:
            return result
        if await self._engine.store.leases_of(wanted.worker_id, 1):
            return result
        result = await self._lease(wanted, alone=True)
        if result.jobs:
            if len(self._alone) >= ALONE_HELD_MAX:
                self._alone.clear()
            self._alone[wanted.worker_id] = LeaseRef(result.jobs[0].queue_id, result.jobs[0].fence)
        return result

    async def _runs_alone(self, worker_id: str) -> bool:
        """Whether it still has the job that it must run beside nothing else."""
        held = {lease for lease, _ in await self._engine.store.leases_of(worker_id, 1_000)}
        if self._alone.get(worker_id) in held:
            return True
        self._alone.pop(worker_id, None)
        return False

    async def _lease(self, wanted: Wanted, *, alone: bool) -> LeaseResult:
        return await self._engine.lease(
            wanted.worker_id,
            wanted.handlers,
            wanted.limit,
            lease_seconds=wanted.lease_seconds,
            lanes=wanted.lanes,
            alone=alone,
            bulk=wanted.bulk,
            limited=wanted.limited,
            ageing_seconds=wanted.ageing_seconds,
            family=wanted.family,
            token=wanted.token,
        )

    def is_passed_by(self, wanted: Wanted, result: LeaseResult) -> bool:
        """Whether it found nothing for what it holds itself, and others may find something."""
        return wanted.foreign and (result.alone_ready or wanted.worker_id in self._alone)

    async def give_back(self, result: LeaseResult) -> None:
        await give_back(self._engine, [LeaseRef(job.queue_id, job.fence) for job in result.jobs])

    async def pause(self, ticket: int, next_due: float | None) -> None:
        """Until work is announced, or due."""
        seconds = POLL_SECONDS
        if next_due is not None:
            seconds = min(seconds, max(next_due - await self._engine.now(), EMPTY_CLAIM_SECONDS))
        work = asyncio.ensure_future(self._engine.wait_for_work(ticket, seconds))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait([work, closing], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            work.cancel()
            closing.cancel()

    def work_ticket(self) -> int:
        return self._engine.work_ticket()

    def close(self) -> None:
        """Answer all who wait, and let nobody wait any more."""
        self._closing.set()
        for line in list(self._lines.values()):
            line.dismiss()

    async def ended(self) -> None:
        """Once no claim is under way any more for somebody who waited."""
        if self._asking:
            await asyncio.wait(self._asking, timeout=CLOSE_SECONDS_MAX)

    def begin(self, asking: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(asking)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task


class _Line:
    """Workers that offer the same, the longest waiting first, and the task that asks for them."""

    def __init__(self, desk: LeaseDesk) -> None:
        self._desk = desk
        self.waiters: deque[_Waiter] = deque()
        self._asking: asyncio.Task[None] | None = None

    def join(self, waiter: _Waiter, ticket: int, result: LeaseResult) -> None:
        """`result` is what there was for it, asked after the `ticket` was taken."""
        self.waiters.append(waiter)
        if self._asking is None or self._asking.done():
            self._asking = self._desk.begin(self._ask(ticket, result.next_due))

    def leave(self, waiter: _Waiter) -> LeaseResult | None:
        """What it got, if anything."""
        with contextlib.suppress(ValueError):
            self.waiters.remove(waiter)
        if waiter.answer.done() and not waiter.answer.cancelled():
            return waiter.answer.result()
        waiter.answer.cancel()
        return None

    def dismiss(self) -> None:
        for waiter in self.waiters:
            if not waiter.answer.done():
                waiter.answer.set_result(LeaseResult([]))

    async def _ask(self, ticket: int, next_due: float | None) -> None:
        """For those in line, for as long as there are any."""
        is_away = False
        while self.waiters:
            try:
                await self._desk.pause(ticket, next_due)
                ticket = self._desk.work_ticket()
                next_due = await self._serve()
                is_away = False
            except StoreUnavailable as error:
                if not self.waiters:  # all were sent away, and the store was closed
                    return
                if not is_away:  # once for each time
                    log.warning("Leases wait: %s %s", error, error.guidance)
                is_away = True
                await asyncio.sleep(POLL_SECONDS)
            except Exception:
                log.exception("A lease failed and will be tried again.")
                await asyncio.sleep(POLL_SECONDS)

    async def _serve(self) -> float | None:
        """One after the other, until there is nothing for them; when there may be something again."""
        passed_by: set[_Waiter] = set()
        next_due: float | None = None
        while waiter := next((one for one in self.waiters if one not in passed_by), None):
            if waiter.answer.done():  # called back, or sent away
                self.waiters.remove(waiter)
                continue
            result = await self._desk.ask(waiter.wanted)
            if _is_answer(result, waiter.wanted):
                await self._hand_over(waiter, result)
                continue
            if result.next_due is not None:
                next_due = min(next_due or result.next_due, result.next_due)
            if not self._desk.is_passed_by(waiter.wanted, result):
                break
            passed_by.add(waiter)
        return next_due

    async def _hand_over(self, waiter: _Waiter, result: LeaseResult) -> None:
        if waiter.answer.done():  # it has left while it was asked for
            await self._desk.give_back(result)
        else:
            waiter.answer.set_result(result)
        with contextlib.suppress(ValueError):
            self.waiters.remove(waiter)


def _is_answer(result: LeaseResult, wanted: Wanted) -> bool:
    return bool(result.jobs) or (result.alone_ready and not wanted.knows_alone and not wanted.foreign)


async def give_back(engine: Engine, leases: Sequence[LeaseRef]) -> None:
    """What nobody will run; where that fails, the leases run out by themselves."""
    if leases:
        try:
            await engine.release(leases)
        except Exception as error:
            log.warning("%d leases could not be given back: %s", len(leases), error)
