"""How tests run asynchronous code: each in an event loop of its own, and nothing waits for ever.

No test sleeps to wait for a state: it polls with `eventually`, which fails with a sentence at its deadline.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.01
CANCELS_MAX = 5
CANCELLED_SECONDS = 5.0


def run(coroutine: Coroutine[Any, Any, T], timeout: float = 180) -> T:
    """Run a coroutine to its end in a fresh event loop; TimeoutError after `timeout` seconds, with the place
    where it stood. What it then waits for on its way out is cancelled as well."""

    async def bounded() -> T:
        task = asyncio.ensure_future(coroutine)
        await asyncio.wait([task], timeout=timeout)
        if task.done():
            return task.result()
        stood = where_it_stands(task)
        for _ in range(CANCELS_MAX):
            task.cancel()
            await asyncio.wait([task], timeout=CANCELLED_SECONDS)
            if task.done():
                break
        raise TimeoutError(f"not ended within {timeout:g} s:\n{stood}")

    return asyncio.run(bounded())


def where_it_stands(task: asyncio.Task[Any]) -> str:
    """The calls that a task waits in, the innermost last; the task's own stack has the outermost only."""
    lines = [task.get_name()]
    waits_for: Any = task.get_coro()
    while (frame := getattr(waits_for, "cr_frame", None)) is not None:
        lines.append(
            f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {waits_for.__qualname__}'
        )
        waits_for = waits_for.cr_await
    return "\n".join([*lines, f"  waits for {waits_for!r}"])


async def eventually(
    predicate: Callable[[], T | Awaitable[T]],
    timeout: float = 60,  # noqa: ASYNC109 - the deadline's message is the point
    *,
    every: float = POLL_SECONDS,
) -> T:
    """Poll a plain or asynchronous predicate until its answer is truthy, and return that answer."""
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() >= deadline:
            name = getattr(predicate, "__name__", repr(predicate))
            raise AssertionError(f"{name} was still {answer!r} after {timeout} seconds")
        await asyncio.sleep(every)
