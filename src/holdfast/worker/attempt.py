"""One attempt: clear what an earlier round left, call the handler under its timeout, tell the outcome.

Nothing a handler does escapes: whatever it raises becomes a Failure, and so does a result that cannot
be stored. Sync handlers run in threads, which nobody can kill: their timeout is told at once, and the
caller learns when the thread has really ended. Handlers with isolation="process" run in processes, which
are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import time
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.errors import PayloadInvalid, PayloadTooLarge
from holdfast.core.model import AckCode, Completed, Deferred, Failed, Leased, Outcome, Report
from holdfast.core.payload import PAYLOAD_BYTES_MAX_DEFAULT, encode_payload, unstorable_output
from holdfast.logs import CURRENT
from holdfast.steps.failing import FailedElsewhere
from holdfast.worker.child import Call
from holdfast.worker.context import Context
from holdfast.worker.handler_error import failure_of, timed_out
from holdfast.worker.isolation import ProcessIsolation, name_of_function
from holdfast.worker.processes import START_SECONDS_MAX, IsolatedCall, Processes
from holdfast.worker.transaction import AttemptTransaction

if TYPE_CHECKING:
    from holdfast.tracing.spans import AttemptSpan, Tracing

log = logging.getLogger("holdfast.worker")

Function = Callable[[Context], Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """The function of a step, and the one that clears what a failed round left behind."""

    function: Function
    clear: Function | None = None
    is_async: bool = False
    isolation: ProcessIsolation | None = None
    has_own_process: bool = False
    """It starts one for what it runs, so that whatever happens in it happens to nobody else."""

    @property
    def is_isolated(self) -> bool:
        return self.has_own_process or self.isolation is not None

    @classmethod
    def of(
        cls, function: Function, clear: Function | None = None, isolation: ProcessIsolation | None = None
    ) -> Handler:
        return cls(function, clear, is_async(function), isolation)


def is_async(function: Function) -> bool:
    """Also for objects whose call is async."""
    call = getattr(function, "__call__", None)  # noqa: B004 - not whether it can be called, but how
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


class Attempt:
    __slots__ = (
        "_begun",
        "_cleared",
        "_context",
        "_error",
        "_executor",
        "_handlers",
        "_has_cleared_in_transaction",
        "_job",
        "_limit",
        "_payload_bytes_max",
        "_processes",
        "_span",
        "_started",
        "_tracing",
        "thread",
    )

    def __init__(
        self,
        job: Leased,
        context: Context,
        handlers: Mapping[str, Handler],
        executor: Executor,
        *,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
        processes: Processes | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Without `processes` there is nowhere else to run a handler than here."""
        self._job = job
        self._context = context
        self._handlers = handlers
        self._executor = executor
        self._payload_bytes_max = payload_bytes_max
        self._processes = processes
        self._tracing = tracing
        self._span: AttemptSpan | None = None
        self._limit: asyncio.Timeout | None = None
        self._begun: _Begun | None = None
        self._error: BaseException | None = None
        self._started = 0.0
        self._cleared = not job.clear
        self._has_cleared_in_transaction = False
        self.thread: asyncio.Future[Any] | None = None

    def run_at_once(self) -> Outcome | None:
        """The outcome of a handler that ends without waiting for anything, at the price of a call: no task,
        no timer. None where it waits, or opened a transaction; `run` goes on from there. Whoever runs one
        after the other leaves CURRENT to the next, and clears it when there is none: each change of it
        costs what a short job feels."""
        handler = self._handlers[self._job.handler]
        if not (handler.is_async and self._cleared) or self._isolation_of(handler) is not None:
            return None
        CURRENT.set(self._context)  # until it ends: what a handler keeps there itself outlives its waits
        if self._tracing is not None:
            self._begin_span(self._tracing)
        self._started = time.perf_counter()
        try:
            self._begun = _Begun(handler.function(self._context))
            if not self._begun.run_until_it_waits() or self._context.attempt_transaction is not None:
                return None
        except BaseException as error:
            if self._context.attempt_transaction is not None:
                self._error = error
                return None
            outcome = self._failed(error)
        else:
            outcome = self._completed(self._begun.result)
        if self._span is not None:
            self._end_span(outcome)
        return outcome

    async def run(self) -> Outcome | None:
        """The outcome to report; None where nothing is left to report: the attempt was settled in its
        handler's own transaction. Where a thread goes on after its timeout, `thread` is what to await
        before the slot is free again. Whoever is told nothing, as this was cancelled, asks `failed_by` or
        calls `abandoned`."""
        around = CURRENT.get()
        if around is self._context:
            around = None  # begun at once
        else:
            CURRENT.set(self._context)
            if self._tracing is not None:
                self._begin_span(self._tracing)
        try:
            outcome = await self._run_to_its_end()
            self._end_span(outcome)
            return outcome
        finally:
            CURRENT.set(around)

    def _begin_span(self, tracing: Tracing) -> None:
        with _no_harm_to_the_work():
            self._span = tracing.begin(self._job, self._context.worker_id)
            self._context.traceparent = self._span.traceparent

    def _end_span(self, outcome: Outcome | None) -> None:
        span, self._span = self._span, None
        if span is not None:
            with _no_harm_to_the_work():
                span.end(outcome)

    def abandoned(self) -> None:
        """It was cut off, and nobody will hear of an outcome; nothing where one was told."""
        span, self._span = self._span, None
        if span is not None:
            with _no_harm_to_the_work():
                span.end_abandoned()

    async def _run_to_its_end(self) -> Outcome | None:
        try:
            outcome = await self._run()
        except BaseException:
            if (transaction := self._context.attempt_transaction) is not None:
                await asyncio.shield(transaction.end())
            raise
        if (transaction := self._context.attempt_transaction) is not None:
            settled = await self._settled(outcome, transaction)
            return None if settled is None else self._masked(settled)
        return outcome

    def failed_by(self, error: BaseException) -> Outcome:
        cleared = self._cleared and not self._has_cleared_in_transaction
        outcome = self._masked(Failed(failure_of(error, self._job), cleared))
        self._end_span(outcome)
        return outcome

    async def _settled(self, outcome: Outcome, transaction: AttemptTransaction) -> Outcome | None:
        try:
            if isinstance(outcome, Completed) and transaction.failed is not None:
                outcome = Failed(failure_of(transaction.failed, self._job), self._cleared)
            if isinstance(outcome, Completed) and transaction.is_open:
                report = Report(self._job.queue_id, self._job.fence, outcome)
                ack = await transaction.complete(report, self._job)
                if ack.code is AckCode.INVALID:
                    raise ValueError(ack.message)
                if not ack.accepted:
                    log.warning("The outcome of job %d was not taken: %s", ack.queue_id, ack.message)
                    self.abandoned()
                return None
        except Exception as error:
            # Nothing was kept, or, where the connection broke at the very commit, everything was: then
            # this failure comes with a fence that is settled already, and changes nothing.
            outcome = Failed(failure_of(error, self._job), self._cleared)
        finally:
            await asyncio.shield(transaction.end())
        if self._has_cleared_in_transaction and isinstance(outcome, Failed):
            return msgspec.structs.replace(outcome, cleared=False)  # that is undone as well
        return outcome

    async def _run(self) -> Outcome:
        if self._error is not None:
            return self._failed(self._error)
        begun = self._begun
        if begun is None:
            begun, self._started = _Begun(self._work()), time.perf_counter()
        try:
            # A short job ends here without a timer, whose price it would feel: until a handler waits
            # for something, no timer could interrupt it anyway.
            if not (begun.has_ended or (not begun.waits and begun.run_until_it_waits())):
                remaining = self._job.timeout_seconds - (time.perf_counter() - self._started)
                if self._isolation_of(self._handlers[self._job.handler]) is not None:
                    remaining += START_SECONDS_MAX  # until its process has begun: see _begin_timeout
                async with asyncio.timeout(remaining) as self._limit:
                    await begun
        except BaseException as error:
            return self._failed(error)
        return self._completed(begun.result)

    def _failed(self, error: BaseException) -> Outcome:
        """How an attempt ended whose handler raised this. Raised again where that is not its own affair."""
        return self._masked(self._failure(error))

    def _failure(self, error: BaseException) -> Failed:
        """Some libraries' errors are no Exception: a panic in native code."""
        if isinstance(error, FailedElsewhere):
            return msgspec.structs.replace(error.outcome, cleared=self._cleared)
        if isinstance(error, TimeoutError) and self._limit is not None and self._limit.expired():
            return Failed(timed_out(self._job), self._cleared)
        if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise error  # meant for this worker
        if isinstance(error, KeyboardInterrupt):
            raise error
        return Failed(failure_of(error, self._job), self._cleared)

    def _completed(self, result: Any) -> Outcome:
        if result is None:
            return Completed()
        if isinstance(result, _Encoded):
            return Completed(result.text)
        if isinstance(result, Deferred):
            return result
        try:
            text = encode_payload(result, what="output", bytes_max=self._payload_bytes_max)
        except (PayloadInvalid, PayloadTooLarge) as error:
            return self._masked(Failed(unstorable_output(error), self._cleared))
        return self._masked(Completed(text))

    def _masked(self, outcome: Outcome) -> Outcome:
        """Without the secrets that this attempt has read."""
        secrets = self._context.secrets
        mask = None if secrets is None else secrets.mask
        return outcome if mask is None else mask.outcome(outcome)

    async def _work(self) -> Any:
        if not self._cleared:
            await self._clear()
        handler = self._handlers[self._job.handler]
        if (isolation := self._isolation_of(handler)) is not None:
            return await self._call_in_process(handler.function, isolation, self._payload_bytes_max)
        if handler.is_async:
            return await handler.function(self._context)
        return await self._call(handler.function, is_async=False)

    async def _clear(self) -> None:
        """Run the clear hooks of the stages that this round does again, the latest stage first."""
        prefix = self._job.handler.removesuffix(self._job.step)
        for step in self._job.clear:
            handler = self._handlers.get(prefix + step)
            if handler is None or handler.clear is None:
                continue
            if (isolation := self._isolation_of(handler)) is not None:
                await self._call_in_process(handler.clear, isolation, None)
            else:
                await self._call(handler.clear, is_async=is_async(handler.clear))
        self._cleared = True
        transaction = self._context.attempt_transaction
        self._has_cleared_in_transaction = transaction is not None and transaction.is_open

    async def _call(self, function: Function, *, is_async: bool) -> Any:
        if is_async:
            return await function(self._context)
        thread = self._in_executor(_in_thread, function, self._context)
        self.thread = thread
        # Shielded, so that a timeout ends the waiting and not the record of the thread.
        try:
            result = await asyncio.shield(thread)
        except asyncio.CancelledError:
            thread.add_done_callback(_forget)
            raise
        self.thread = None
        return result

    def _in_executor(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """In a thread that knows what this task knows: which attempt it is, and its span."""
        context = contextvars.copy_context()
        return asyncio.get_running_loop().run_in_executor(self._executor, context.run, function, *arguments)

    def _isolation_of(self, handler: Handler) -> ProcessIsolation | None:
        return None if self._processes is None else handler.isolation

    async def _call_in_process(
        self, function: Function, isolation: ProcessIsolation, output_bytes_max: int | None
    ) -> _Encoded:
        loop = asyncio.get_running_loop()
        assert self._processes is not None
        call = IsolatedCall(
            self._processes,
            Call(
                self._job,
                name_of_function(function, f"Step {self._job.step}"),
                isolation.memory_bytes,
                output_bytes_max,
                self._context.worker_id,
                self._context.traceparent,
            ),
            on_started=lambda: loop.call_soon_threadsafe(self._begin_timeout),
            tell_progress=self._context.progress,
        )
        thread = self._in_executor(call.run)
        try:
            outcome = await asyncio.shield(thread)
        except asyncio.CancelledError:
            call.kill()  # the thread ends with it, and the slot is free
            thread.add_done_callback(_forget)
            raise
        if isinstance(outcome, Failed):
            raise FailedElsewhere(outcome)
        return _Encoded(outcome.result)

    def _begin_timeout(self) -> None:
        """Starting a process and importing the step's module in it is not the handler's time."""
        if self._limit is not None:
            with contextlib.suppress(RuntimeError):  # it is over already
                self._limit.reschedule(asyncio.get_running_loop().time() + self._job.timeout_seconds)


@dataclass(frozen=True, slots=True)
class _Encoded:
    """What a process returned: JSON text already."""

    text: str


def _in_thread(function: Function, context: Context) -> Any:
    try:
        return function(context)
    except (StopIteration, GeneratorExit) as error:
        # A future cannot carry them: whoever awaits it would wait for ever, or be closed.
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error


class _Begun:
    """A coroutine that is run up to its first wait at once, and awaited from there if it has one."""

    __slots__ = ("_coroutine", "_waits_for", "has_ended", "result", "waits")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._waits_for: Any = None
        self.waits = False
        self.has_ended = False
        self.result: Any = None

    def run_until_it_waits(self) -> bool:
        """Whether it has ended already, without waiting for anything."""
        try:
            self._waits_for = self._coroutine.send(None)
        except StopIteration as end:
            self.result = end.value
            self.has_ended = True
            return True
        self.waits = True
        return False

    def __await__(self) -> Generator[Any, Any, None]:
        """What `await` does with a coroutine, from its second step on."""
        try:
            while True:
                try:
                    answer = yield self._waits_for
                except GeneratorExit:
                    self._coroutine.close()
                    raise
                except BaseException as error:
                    self._waits_for = self._coroutine.throw(error)
                else:
                    self._waits_for = self._coroutine.send(answer)
        except StopIteration as end:
            self.result = end.value


@contextlib.contextmanager
def _no_harm_to_the_work() -> Iterator[None]:
    """Spans go through what the program has set up, which may fail."""
    try:
        yield
    except Exception:
        log.exception("The span of an attempt failed; the attempt itself goes on.")


def _forget(future: asyncio.Future[Any]) -> None:
    """What a thread returns or raises after its timeout interests nobody; take it so that nobody warns."""
    if not future.cancelled():
        future.exception()
