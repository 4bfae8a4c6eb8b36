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


def run(coroutine: Coroutine[Any, Any, T], timeout: float = 60) -> T:
    """Run a coroutine to its end in a fresh event loop; TimeoutError after `timeout` seconds."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout):
            return await coroutine

    return asyncio.run(bounded())


async def eventually(
    predicate: Callable[[], T | Awaitable[T]],
    timeout: float = 10,  # noqa: ASYNC109 - the deadline's message is the point
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
