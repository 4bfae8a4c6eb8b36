"""The event loop of a rehearsal in a plain test, and the plain handlers that run beside it.

A plain handler is called in the test's own thread, outside the loop: breakpoints, connections that
belong to a thread, `asyncio.run` and libraries that refuse to run inside a loop all work in it. While it
runs the loop goes on in another thread, for what the handler may ask of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class InlineLoop(Executor):
    """As an executor it takes calls; `run` makes them, between two turns of the loop."""

    def __init__(self) -> None:
        self.is_running = False
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._beside = ThreadPoolExecutor(1, "holdfast-rehearsal-loop")
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.append((future, partial(function, *args, **kwargs)))
        self._loop.stop()  # at the end of this turn
        return future

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = self._loop.create_task(coroutine)
        task.add_done_callback(lambda _: self._loop.stop())
        self.is_running = True
        try:
            while not task.done():
                self._loop.run_forever()
                while self._calls:
                    self._call(*self._calls.popleft())
        finally:
            self.is_running = False
            if task.done() and not task.cancelled():
                task.exception()  # looked at, also where an interrupt ends the run instead of its result
        return task.result()

    def _call(self, future: Future[Any], function: Callable[[], Any]) -> None:
        finished = threading.Event()
        looping = self._beside.submit(self._run_until, finished)
        result: Any = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        finally:
            finished.set()
            self._loop.call_soon_threadsafe(self._loop.stop)
            looping.result()
        # Only now, so that what follows happens in this thread again.
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _run_until(self, finished: threading.Event) -> None:
        while not finished.is_set():  # it may be stopped for another call before
            self._loop.run_forever()

    def close(self) -> None:
        self._beside.shutdown()
        self._runner.close()
