"""How a worker process is stopped from outside: by signals, and by the end of its supervisor.

Plain signal handlers and a timer on a thread, not the event loop's: a step that blocks the loop must keep
neither a second signal from ending the process nor the grace period from being over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from holdfast.worker.loop import Worker

log = logging.getLogger("holdfast.worker")

EXIT_DROPPED = 1
# After the grace period: for what a stop in order does then, with a database that answers slowly.
LAST_SECONDS = 12.0


@contextlib.contextmanager
def stopped_by_signals(
    grace_seconds: float, stop: Callable[[str], None], lifeline: int | None = None
) -> Iterator[None]:
    """SIGINT or SIGTERM calls `stop` in the event loop, with its name; a second one ends the process at once.
    So does the end of file of `lifeline`, as a first signal: how the end of a supervisor reaches its
    workers."""
    loop = asyncio.get_running_loop()
    watchdog = threading.Timer(grace_seconds + LAST_SECONDS, _end_now, ["It did not end in time."])
    watchdog.daemon = True
    asked = False

    def ask(why: str) -> None:
        nonlocal asked
        if asked:
            _end_now("Ended by a second signal.")
        asked = True
        watchdog.start()
        loop.call_soon_threadsafe(stop, why)

    def on_signal(number: int, _: FrameType | None) -> None:
        ask(signal.Signals(number).name)

    def on_end_of_lifeline(descriptor: int) -> None:
        loop.remove_reader(descriptor)
        if not asked:
            ask("Its supervisor is gone")

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    if lifeline is not None:
        loop.add_reader(lifeline, on_end_of_lifeline, lifeline)
    try:
        yield
    finally:
        watchdog.cancel()
        if lifeline is not None:
            loop.remove_reader(lifeline)
        for number, handler in previous.items():
            signal.signal(number, handler)


def stop_worker(worker: Worker, why: str) -> None:
    running, unreported = worker.load
    log.warning(
        "%s: stopping within %g s; %d running, %d outcomes to report. Another signal ends it at once.",
        why,
        worker.grace_seconds,
        running,
        unreported,
    )
    worker.stop()


def _end_now(why: str) -> None:
    """As hard as a kill, and as harmless: what was held runs again when its leases have expired. Nothing is
    flushed or locked here, since any lock may be held by what was interrupted."""
    with contextlib.suppress(OSError):  # nobody reads it any more
        os.write(2, f"holdfast {os.getpid()}: {why}\n".encode())
    os._exit(EXIT_DROPPED)
