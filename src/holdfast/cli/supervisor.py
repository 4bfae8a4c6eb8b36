"""Several worker processes under one: started again when they die, stopped together.

    supervisor ──starts──▶ worker 1 … worker N        each a `holdfast worker` of its own
        │  signals are passed on, once each
        └──lifeline (a pipe)──▶ its end tells the workers that the supervisor is gone: they stop too

A process that dies costs what it held, never the others. One that dies at once after each start is
started ever more rarely; one that says that its command is wrong ends them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Sequence

from holdfast.cli.options import EXIT_FAILED, EXIT_REFUSED
from holdfast.cli.output import counted

log = logging.getLogger("holdfast.supervisor")

LIFELINE_VARIABLE = "HOLDFAST_LIFELINE"
# What a worker under a supervisor ends with where its command is wrong. Not the 2 of other refusals: a
# handler that ends its process with an ordinary code must not end them all.
EXIT_WRONG_COMMAND = 78
RESTART_SECONDS_MIN = 0.5
RESTART_SECONDS_MAX = 30.0
LIVED_LONG_SECONDS = 10.0
# Beyond the grace period that the workers give their handlers: to report, and to give back.
ENDING_SECONDS = 15.0


class Supervisor:
    """`lifeline` is a file descriptor whose end of file stops it as a signal does."""

    def __init__(
        self, command: Sequence[str], processes: int, *, grace_seconds: float, lifeline: int | None = None
    ) -> None:
        self._own_lifeline = lifeline
        self._command = command
        self._count = processes
        self._grace_seconds = grace_seconds
        self._living: dict[int, asyncio.subprocess.Process] = {}
        self._exit_code = 0
        self._signals = 0

    async def run(self) -> int:
        """Supervise until told to stop; the exit code: 0 where every worker ended in order."""
        self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        if self._own_lifeline is not None:
            loop.add_reader(self._own_lifeline, self._stop_without_parent, self._own_lifeline)
        # Held open for as long as this process lives, however it ends.
        self._lifeline, writing = os.pipe()
        os.set_inheritable(self._lifeline, True)
        try:
            keepers = [asyncio.create_task(self._keep_one()) for _ in range(self._count)]
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([stopping])
            await asyncio.wait(keepers, timeout=self._grace_seconds + ENDING_SECONDS)
            for process in list(self._living.values()):
                log.warning("Worker process %d did not end and is killed.", process.pid)
                self._exit_code = EXIT_FAILED
                _send(process, signal.SIGKILL)
            await asyncio.wait(keepers)
            for keeper in keepers:
                keeper.result()
        finally:
            os.close(writing)
            os.close(self._lifeline)
        return self._exit_code

    def _stop(self) -> None:
        self._signals += 1
        self._stopping.set()
        living = len(self._living)
        processes = counted(living, "worker process", "worker processes")
        if self._signals > 1:
            log.warning("Ending %s at once.", processes)
        elif living:
            them = "it" if living == 1 else "them"
            log.warning("Stopping %s. Another signal ends %s at once.", processes, them)
        for process in list(self._living.values()):
            # A second SIGTERM that comes while the first is pending would be lost: signals do not queue.
            _send(process, signal.SIGTERM if self._signals == 1 else signal.SIGKILL)

    def _stop_without_parent(self, lifeline: int) -> None:
        asyncio.get_running_loop().remove_reader(lifeline)
        if not self._stopping.is_set():
            log.warning("What started this supervisor is gone.")
            self._stop()

    async def _keep_one(self) -> None:
        """Start a worker, and another one whenever it ends, until all are to stop."""
        delay = 0.0
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_one()
            if self._stopping.is_set():
                if code not in (0, -signal.SIGTERM):  # it may have been told before it could listen
                    self._exit_code = self._exit_code or EXIT_FAILED
            elif code == EXIT_WRONG_COMMAND:
                self._exit_code = EXIT_REFUSED  # it has said why; the others will say the same
                log.error("A worker cannot start: see above. None is started again.")
                self._stop()
            else:
                lived = time.monotonic() - started
                short_lived = lived < LIVED_LONG_SECONDS
                delay = min(max(2 * delay, RESTART_SECONDS_MIN), RESTART_SECONDS_MAX) if short_lived else 0.0
                log.warning(
                    "A worker process %s after %.0f s; started again in %.1f s.", _ending(code), lived, delay
                )
                stopping = asyncio.ensure_future(self._stopping.wait())
                await asyncio.wait([stopping], timeout=delay)
                stopping.cancel()

    async def _run_one(self) -> int:
        # In a session of its own: Ctrl-C reaches it through this process alone, and once.
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, LIFELINE_VARIABLE: str(self._lifeline)},
                pass_fds=(self._lifeline,),
                start_new_session=True,
            )
        except OSError as error:  # no memory, no process numbers left: perhaps later
            log.error("A worker process could not be started: %s", error)
            return EXIT_FAILED
        self._living[process.pid] = process
        log.info("Worker process %d started.", process.pid)
        if self._stopping.is_set():  # told to stop while it was being started
            _send(process, signal.SIGTERM)
        try:
            return await process.wait()
        finally:
            del self._living[process.pid]


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
