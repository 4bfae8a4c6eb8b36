"""What a test holds in its hands: `Rehearsal` in a plain test, `AsyncRehearsal` in an async one.

Both are the same thing. The plain one has an event loop of its own and runs plain handlers in the test's
thread; the async one runs in the test's loop, and plain handlers in threads as a worker does.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.app import Execution, Holdfast
from holdfast.core.errors import InvalidInput, UnknownPipeline, UnknownStep
from holdfast.core.handlers import handler_key
from holdfast.core.retry import checked_seconds, parse_duration
from holdfast.step_function import StepFunction
from holdfast.testing.clock import FakeClock
from holdfast.testing.faults import Fault, Kind, When, checked_error
from holdfast.testing.inline_loop import InlineLoop
from holdfast.testing.inline_worker import InlineWorker
from holdfast.testing.place import Place
from holdfast.testing.run import RehearsalFailed, Run
from holdfast.worker.attempt import Function, Handler
from holdfast.worker.loop import LEASE_SECONDS_DEFAULT

T = TypeVar("T")

ATTEMPTS_MAX_DEFAULT = 10_000
EXECUTIONS_PER_PAGE = 1_000


class _Script:
    """What is to happen: failures, lost workers, timeouts, stand-ins for handlers; and the clock."""

    def __init__(self, worker: InlineWorker) -> None:
        self._worker = worker
        self._hf = worker.hf
        self.clock = worker.clock

    @property
    def url(self) -> str:
        """The address of the database it runs on."""
        return self._worker.place.url

    @property
    def path(self) -> Path:
        """Its SQLite file, for tables of your own and for looking into it."""
        return self._worker.place.path

    def fail(
        self,
        step: str,
        error: BaseException | type[BaseException],
        *,
        times: int | None = 1,
        after: bool = False,
        when: When | None = None,
    ) -> None:
        """Let the next attempts of a step fail: instead of its handler, or `after` it has run and done
        what it does. `times=None` is every time; `when` picks attempts by their context."""
        self._add(Kind.FAIL, step, checked_error(error, step), times, after, when)

    def lose_worker(
        self, step: str, *, times: int | None = 1, after: bool = False, when: When | None = None
    ) -> None:
        """Let the worker die in the step, before its handler or `after` it has run and before that is
        reported. The lease runs out on the clock, and the sweep finds it: `worker_lost`."""
        self._add(Kind.LOSE_WORKER, step, None, times, after, when)

    def time_out(
        self, step: str, *, times: int | None = 1, after: bool = False, when: When | None = None
    ) -> None:
        """Let the step take longer than its timeout, which passes on the clock."""
        self._add(Kind.TIME_OUT, step, None, times, after, when)

    def replace(self, step: str, function: Function) -> None:
        """Run this function of the context in the place of the step's own, plain or async. An assertion
        that fails in it, and pytest.fail(), end the test and not only the attempt."""
        key = self._handler_of(step)
        checked = StepFunction(function=function, name=step.rpartition("/")[2])
        own = self._hf._handlers.get(key)  # None: a step of a built-in type
        self._worker.replaced[key] = Handler.of(checked.function, None if own is None else own.clear)

    def _add(
        self,
        kind: Kind,
        step: str,
        error: BaseException | type[BaseException] | None,
        times: int | None,
        after: bool,
        when: When | None,
    ) -> None:
        caller = sys._getframe(2)
        place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        key = self._handler_of(step)
        self._worker.faults.add(Fault(kind, key, step, error, times, after, when, place))

    def _handler_of(self, step: str) -> str:
        """The handler that `step` or `pipeline/step` names."""
        pipelines = self._hf._pipelines
        known = {handler_key(path, one.name) for path, item in pipelines.items() for one in item.steps}
        if step in known:
            return step
        found = sorted(key for key in known if key.rpartition("/")[2] == step)
        if len(found) > 1:
            raise InvalidInput(
                f"{step!r} is a step of several pipelines.", guidance=f"Write one of: {', '.join(found)}."
            )
        if not found:
            names = ", ".join(sorted(known)) or "none: define a pipeline first"
            raise UnknownStep(f"There is no step {step!r}.", guidance=f"Known are: {names}.")
        return found[0]

    def _check_pipeline(self, name: str) -> None:
        if name not in self._hf._pipelines:
            known = ", ".join(sorted(self._hf._pipelines)) or "none"
            raise UnknownPipeline(f"There is no pipeline {name!r}.", guidance=f"Known are: {known}.")

    def _check_all_used(self) -> None:
        if unused := self._worker.faults.unused():
            told = "\n".join(f"  {fault}" for fault in unused)
            raise RehearsalFailed(f"Failures that were asked for did not happen:\n{told}")


class AsyncRehearsal(_Script):
    """In an async test: `async with AsyncRehearsal(hf) as rehearsal`, and await what it does."""

    def __init__(
        self,
        hf: Holdfast,
        *,
        url: str | None = None,
        lease_seconds: float | str = LEASE_SECONDS_DEFAULT,
        attempts_max: int = ATTEMPTS_MAX_DEFAULT,
    ) -> None:
        if not isinstance(hf, Holdfast):
            raise InvalidInput(
                f"A rehearsal needs your Holdfast object, not {hf!r}.", guidance="For example Rehearsal(hf)."
            )
        if not isinstance(attempts_max, int) or isinstance(attempts_max, bool) or attempts_max < 1:
            raise InvalidInput(f"attempts_max must be a whole number from 1, not {attempts_max!r}.")
        # A submit that joins a transaction on PostgreSQL takes the time from there.
        clock = FakeClock() if url is None else FakeClock(time.time())
        seconds = checked_seconds(lease_seconds, "lease_seconds")
        super().__init__(
            InlineWorker(hf, Place(url, clock), clock, lease_seconds=seconds, attempts_max=attempts_max)
        )

    async def __aenter__(self) -> Self:
        if self._hf._stand_in is not None:
            raise InvalidInput(
                "This Holdfast is in a rehearsal already.", guidance="End that one first; they cannot nest."
            )
        await self._worker.open()
        self._hf._stand_in = self._worker
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hf._stand_in = None
        await self._worker.close()
        if kind is None:
            self._check_all_used()

    async def run(self, pipeline: str, workload: Any = None, **options: Any) -> Run:
        """Submit one execution and run it to its end. Options are those of `hf.submit`."""
        submitted = await self.submit(pipeline, workload, **options)
        return await self._finish(submitted.id)

    async def submit(self, pipeline: str, workload: Any = None, **options: Any) -> Run:
        """Submit one execution and leave it for `drain`. Options are those of `hf.submit`."""
        self._check_begun()
        return await self.look(await self._hf.submit(pipeline, workload, **options))

    async def drain(self, within: float | str | None = None) -> list[Run]:
        """Run everything there is to its end, also what handlers submit; or only what becomes due
        `within` this time, after which the clock has moved on by all of it. All executions so far."""
        self._check_begun()
        until = None if within is None else self.clock.now + parse_duration(within, field="within")
        while await self._worker.step(until):
            pass
        if until is not None:
            self.clock.move_to(until)
        return await self.runs()

    async def retry(self, run: Run | Execution | int, **options: Any) -> Run:
        """Retry a failed execution as a person would, and run it to its end. Options are those of
        `hf.retry`; RetryRefused says why not."""
        self._check_begun()
        await self._hf.retry(_id_of(run), **options)
        return await self._finish(_id_of(run))

    async def cancel(self, run: Run | Execution | int, **options: Any) -> Run:
        self._check_begun()
        await self._hf.cancel(_id_of(run), **options)
        return await self.look(run)

    async def look(self, run: Run | Execution | int) -> Run:
        """An execution as it is now."""
        self._check_begun()
        execution_id = _id_of(run)
        return Run(
            view=await self._hf.status(execution_id),
            events=tuple(await self._hf.events(execution_id)),
            exceptions=tuple(self._worker.exceptions.get(execution_id, ())),
        )

    async def runs(self, pipeline: str | None = None) -> list[Run]:
        """All executions so far, in the order of their submission, also those that handlers submitted."""
        self._check_begun()
        if pipeline is not None:
            self._check_pipeline(pipeline)
        found: list[int] = []
        cursor = None
        while True:
            page = await self._hf.executions(path=pipeline, limit=EXECUTIONS_PER_PAGE, cursor=cursor)
            found += [execution.id for execution in page.items]
            if (cursor := page.next) is None:
                return [await self.look(execution_id) for execution_id in reversed(found)]

    async def _finish(self, execution_id: int) -> Run:
        while await self._worker.is_running(execution_id):
            if not await self._worker.step():
                run = await self.look(execution_id)
                raise RehearsalFailed(f"{run!r} stands still. What happened:\n{run.story}")
        return await self.look(execution_id)

    def _check_begun(self) -> None:
        if self._hf._stand_in is not self._worker:
            raise InvalidInput(
                "The rehearsal has not begun, or has ended.",
                guidance="Use it inside its block: with Rehearsal(hf) as rehearsal: ...",
            )


class Rehearsal(_Script):
    """In a plain test: `with Rehearsal(hf) as rehearsal`."""

    def __init__(
        self,
        hf: Holdfast,
        *,
        url: str | None = None,
        lease_seconds: float | str = LEASE_SECONDS_DEFAULT,
        attempts_max: int = ATTEMPTS_MAX_DEFAULT,
    ) -> None:
        self._inner = AsyncRehearsal(hf, url=url, lease_seconds=lease_seconds, attempts_max=attempts_max)
        super().__init__(self._inner._worker)
        self._loop: InlineLoop | None = None

    def __enter__(self) -> Self:
        if _in_event_loop():
            raise InvalidInput(
                "A Rehearsal cannot run inside an event loop.",
                guidance="In an async test write: async with AsyncRehearsal(hf) as rehearsal: ...",
            )
        self._loop = self._worker.executor = InlineLoop()
        try:
            self.do(self._inner.__aenter__())
        except BaseException:
            self._close_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.do(self._inner.__aexit__(kind, error, trace))
        finally:
            self._close_loop()

    def run(self, pipeline: str, workload: Any = None, **options: Any) -> Run:
        """Submit one execution and run it to its end. Options are those of `hf.submit`."""
        return self.do(self._inner.run(pipeline, workload, **options))

    def submit(self, pipeline: str, workload: Any = None, **options: Any) -> Run:
        """Submit one execution and leave it for `drain`. Options are those of `hf.submit`."""
        return self.do(self._inner.submit(pipeline, workload, **options))

    def drain(self, within: float | str | None = None) -> list[Run]:
        """Run everything there is to its end, also what handlers submit; or only what becomes due
        `within` this time, after which the clock has moved on by all of it. All executions so far."""
        return self.do(self._inner.drain(within))

    def retry(self, run: Run | Execution | int, **options: Any) -> Run:
        """Retry a failed execution as a person would, and run it to its end. Options are those of
        `hf.retry`; RetryRefused says why not."""
        return self.do(self._inner.retry(run, **options))

    def cancel(self, run: Run | Execution | int, **options: Any) -> Run:
        return self.do(self._inner.cancel(run, **options))

    def look(self, run: Run | Execution | int) -> Run:
        """An execution as it is now."""
        return self.do(self._inner.look(run))

    def runs(self, pipeline: str | None = None) -> list[Run]:
        """All executions so far, in the order of their submission, also those that handlers submitted."""
        return self.do(self._inner.runs(pipeline))

    def do(self, awaitable: Awaitable[T]) -> T:
        """Run something of your own in the rehearsal's event loop: a coroutine that calls `hf.submit`, or
        what `hf.batch` gives."""
        if self._loop is None or self._loop.is_running or _in_event_loop():
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            raise InvalidInput(
                "The rehearsal has not begun, has ended, or is asked from inside a handler.",
                guidance="Use it inside its block, and in an async handler use hf itself.",
            )

        async def wait_for(awaitable: Awaitable[T]) -> T:
            return await awaitable

        return self._loop.run(wait_for(awaitable))

    def _close_loop(self) -> None:
        loop, self._loop, self._worker.executor = self._loop, None, None
        if loop is not None:
            loop.close()


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _id_of(run: Run | Execution | int) -> int:
    return run if isinstance(run, int) else run.id
