"""One attempt: clear what an earlier round left, call the handler under its timeout, tell the outcome.

Nothing a handler does escapes: whatever it raises becomes a Failure, and so does a result that cannot
be stored. Sync handlers run in threads, which nobody can kill: their timeout is told at once, and the
caller learns when the thread has really ended.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import PayloadInvalid, PayloadTooLarge
from holdfast.core.failures import Failure, failure_from_exception
from holdfast.core.model import Completed, Failed, Leased, Outcome
from holdfast.core.payload import PAYLOAD_BYTES_MAX_DEFAULT, encode_payload, unstorable_output
from holdfast.worker.context import Context

Function = Callable[[Context], Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """The function of a step, and the one that clears what a failed round left behind."""

    function: Function
    clear: Function | None = None
    is_async: bool = False

    @classmethod
    def of(cls, function: Function, clear: Function | None = None) -> Handler:
        return cls(function, clear, is_async(function))


def is_async(function: Function) -> bool:
    """Also for objects whose call is async."""
    call = getattr(function, "__call__", None)  # noqa: B004 - not whether it can be called, but how
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


class Attempt:
    def __init__(
        self,
        job: Leased,
        context: Context,
        handlers: Mapping[str, Handler],
        executor: Executor,
        *,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
    ) -> None:
        self._job = job
        self._context = context
        self._handlers = handlers
        self._executor = executor
        self._payload_bytes_max = payload_bytes_max
        self._cleared = not job.clear
        self.thread: asyncio.Future[Any] | None = None

    async def run(self) -> Outcome:
        """The outcome. Where a thread goes on after its timeout, `thread` is what to await before the slot is
        free again."""
        job = self._job
        limit: asyncio.Timeout | None = None
        begun = _Begun(self._work())
        started = time.perf_counter()
        try:
            # A short job ends here without a timer, whose price it would feel: until a handler waits
            # for something, no timer could interrupt it anyway.
            if not begun.run_until_it_waits():
                remaining = job.timeout_seconds - (time.perf_counter() - started)
                async with asyncio.timeout(remaining) as limit:
                    await begun
        except TimeoutError as error:
            expired = limit is not None and limit.expired()
            failure = _timed_out(job) if expired else _failure(error)
            return Failed(failure, self._cleared)
        except asyncio.CancelledError as error:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise  # meant for this worker, not the handler's own affair
            return Failed(_failure(error), self._cleared)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # some libraries' errors are no Exception: a panic in native code
            return Failed(_failure(error), self._cleared)
        if begun.result is None:
            return Completed()
        try:
            text = encode_payload(begun.result, what="output", bytes_max=self._payload_bytes_max)
        except (PayloadInvalid, PayloadTooLarge) as error:
            return Failed(unstorable_output(error), self._cleared)
        return Completed(text)

    async def _work(self) -> Any:
        if not self._cleared:
            await self._clear()
        handler = self._handlers[self._job.handler]
        if handler.is_async:
            return await handler.function(self._context)
        return await self._call(handler.function, is_async=False)

    async def _clear(self) -> None:
        """Run the clear hooks of the stages that this round does again, the latest stage first."""
        prefix = self._job.handler.removesuffix(self._job.step)
        for step in self._job.clear:
            handler = self._handlers.get(prefix + step)
            if handler is not None and handler.clear is not None:
                await self._call(handler.clear, is_async=is_async(handler.clear))
        self._cleared = True

    async def _call(self, function: Function, *, is_async: bool) -> Any:
        if is_async:
            return await function(self._context)
        thread = asyncio.get_running_loop().run_in_executor(
            self._executor, _in_thread, function, self._context
        )
        self.thread = thread
        # Shielded, so that a timeout ends the waiting and not the record of the thread.
        try:
            result = await asyncio.shield(thread)
        except asyncio.CancelledError:
            thread.add_done_callback(_forget)
            raise
        self.thread = None
        return result


def _in_thread(function: Function, context: Context) -> Any:
    try:
        return function(context)
    except (StopIteration, GeneratorExit) as error:
        # A future cannot carry them: whoever awaits it would wait for ever, or be closed.
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error


class _Begun:
    """A coroutine that is run up to its first wait at once, and awaited from there if it has one."""

    __slots__ = ("_coroutine", "_waits_for", "result")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._waits_for: Any = None
        self.result: Any = None

    def run_until_it_waits(self) -> bool:
        """Whether it has ended already, without waiting for anything."""
        try:
            self._waits_for = self._coroutine.send(None)
        except StopIteration as end:
            self.result = end.value
            return True
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


def _failure(error: BaseException) -> Failure:
    """The error as the handler's author sees it: without the frames of this file that led to the handler."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return failure_from_exception(error.with_traceback(trace), now=time.time())


def _timed_out(job: Leased) -> Failure:
    return Failure(
        message=f"Step {job.step} did not finish within its timeout of {job.timeout_seconds:g} s.",
        exception="TimeoutError",
        exception_types=("builtins.TimeoutError",),
    )


def _forget(future: asyncio.Future[Any]) -> None:
    """What a thread returns or raises after its timeout interests nobody; take it so that nobody warns."""
    if not future.cancelled():
        future.exception()
