"""The worker's side of `isolation="process"`: a few child processes, kept warm, killed when they must be.

    attempt ──▶ IsolatedCall.run, in a handler thread ──▶ a process of its own while it runs ──▶ Outcome
                IsolatedCall.kill, from anywhere: a timeout, a lost lease, a worker that is dropped

A process runs one call at a time and is used again, unless it was killed, ran out of memory, holds on to too
much of it, or has run its share of calls. What a process dies of is told as what it was: a signal, an exit,
a start that failed. One that dies while it has nothing to do costs nobody anything: another is started.

Processes are started by one thread that lasts as long as they may, because Linux kills them with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Pipe

import msgspec

from holdfast.core.catalogue import Category
from holdfast.core.failures import Failure
from holdfast.core.model import Completed, Failed, Leased
from holdfast.core.sizes import shown_bytes
from holdfast.logs import settings_in_use
from holdfast.worker.bounded_process import EXIT_ORPHANED, HAS_MEMORY_LIMITS
from holdfast.worker.child import (
    WORN_SHARE,
    Answer,
    Call,
    FromChild,
    Progress,
    Ready,
    Setup,
    Started,
    ToChild,
)
from holdfast.worker.handler_error import is_ours
from holdfast.worker.isolation import main_program

log = logging.getLogger("holdfast.worker")

CALLS_PER_PROCESS_MAX = 100
START_SECONDS_MAX = 60.0
"""To start a process and import the step's module in it; not part of the step's timeout."""
LOOK_SECONDS = 1.0
END_SECONDS_MAX = 2.0
ENDING_THREADS_MAX = 16
TRACE_BYTES_MAX = 16_384

# The path comes first: Holdfast itself may be found by it only.
_COMMAND = r"""
import sys
sys.path[:] = sys.argv.pop().split("\n")
from holdfast.worker.child import main
main()
"""
_FROM_CHILD = msgspec.msgpack.Decoder(FromChild)
_CRASHED_THREAD = re.compile(r"^Current thread .*\n(?:  .*\n?)*", re.MULTILINE)
_FILE = re.compile(r'  File "(.*)", line')
_BROKEN = (EOFError, OSError, msgspec.MsgspecError)


class _NotStarted(Exception):
    """Why a process could not be had."""


class _Process:
    """One child. Its connection belongs to whoever runs a call in it; `kill` may be called by anybody."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self._trace = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.is_ready = False
        self.calls = 0
        self.bytes_used = 0
        self.is_worn = False
        try:
            self._popen = subprocess.Popen(
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    *("-c", _COMMAND, str(theirs.fileno()), str(self._trace.fileno()), str(os.getpid())),
                    "\n".join(entry or os.getcwd() for entry in sys.path),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._trace.fileno()),
                # A group of its own: the terminal's signals mean the worker, and what a handler has started
                # is killed with it.
                process_group=0,
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            theirs.close()

    def send(self, message: ToChild) -> None:
        self._connection.send_bytes(msgspec.msgpack.encode(message))

    def receive(self, deadline: float | None = None) -> FromChild:
        """The next message. TimeoutError at the deadline, EOFError or OSError where none will come."""
        while True:
            seconds = LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, deadline - time.monotonic())
            if self._connection.poll(max(seconds, 0.0)):
                message: FromChild = _FROM_CHILD.decode(self._connection.recv_bytes())
                return message
            # What a handler has forked may hold the connection open after its death.
            if not self.is_alive and not self._connection.poll(0):
                raise EOFError
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def fits(self, memory_bytes: int | None) -> bool:
        return memory_bytes is None or self.bytes_used <= memory_bytes * WORN_SHARE

    def kill(self) -> None:
        if self._popen.returncode is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.kill()  # a handler may have taken it to another group

    def exit_code(self) -> int | None:
        """What it ended with by itself, None where it did not end and was killed; minus a signal's number."""
        try:
            code = self._popen.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return None
        self._kill_group()  # what the handler has started
        return code

    def trace(self) -> str:
        """What its thread was doing when it crashed, as Python has told it, without our own part."""
        self._trace.seek(0)
        text = self._trace.read(TRACE_BYTES_MAX).decode(errors="replace")
        found = _CRASHED_THREAD.search(text)
        lines = [text.partition("\n")[0], *(found.group() if found else "").splitlines()]
        return "\n".join(line for line in lines if not _leads_here(line))

    def end(self) -> None:
        """Let it end by itself where it can, so that it clears up behind itself; else kill it."""
        self._connection.close()
        try:
            self._popen.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            self._popen.wait()
        self._kill_group()  # what handlers have started, and left
        self._close_files()

    def end_at_once(self) -> None:
        self.kill()
        self._popen.wait()
        self._close_files()

    def _close_files(self) -> None:
        self._connection.close()
        self._trace.close()


class Processes:
    """The child processes of one worker, at most as many as it has slots."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._all: set[_Process] = set()
        self._idle: list[_Process] = []  # the last one used is used first, so that few are kept warm
        self._starter = ThreadPoolExecutor(1, "holdfast-processes")
        self._enders = ThreadPoolExecutor(ENDING_THREADS_MAX, "holdfast-processes-end")
        self._ending: set[Future[None]] = set()
        self._is_closed = False
        self._was_used = False

    def take(self, memory_bytes: int | None, *, fresh: bool) -> _Process:
        with self._lock:
            while self._idle and not fresh:
                process = self._idle.pop()
                if process.fits(memory_bytes):
                    return process
                self._retire(process)
            while self._idle and len(self._all) >= self._size:
                self._retire(self._idle.pop(0))
            if self._is_closed:
                raise _NotStarted("the worker has ended")
            self._was_used = True
            starting = self._starter.submit(_Process)
        try:
            process = starting.result()
        except OSError as error:
            raise _NotStarted(f"the system refused: {error}") from error
        with self._lock:
            self._all.add(process)
            if self._is_closed:
                process.kill()
        return process

    def give_back(self, process: _Process) -> None:
        with self._lock:
            if process.is_worn or process.calls >= CALLS_PER_PROCESS_MAX or self._is_closed:
                self._retire(process)
            else:
                self._idle.append(process)

    def discard(self, process: _Process) -> None:
        with self._lock:
            self._all.discard(process)
        process.end_at_once()

    def _retire(self, process: _Process) -> None:
        self._all.discard(process)
        if self._is_closed:
            process.end_at_once()
            return
        ending = self._enders.submit(process.end)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def close(self) -> Future[None]:
        """Kill what runs, let end what does not; when all of that has happened."""
        with self._lock:
            idle, self._idle = self._idle, []
            for process in self._all.difference(idle):
                process.kill()  # whoever waits for it hears of it, and discards it
            for process in idle:
                self._retire(process)
            self._is_closed = True
            if not self._was_used:
                self._starter.shutdown(wait=False)
                ended: Future[None] = Future()
                ended.set_result(None)
                return ended
            ending = list(self._ending)
            # In the thread that has started them: they would be killed with it.
            ended = self._starter.submit(_wait_for, ending)
            self._starter.shutdown(wait=False)
            self._enders.shutdown(wait=False)
        return ended


def _wait_for(ending: list[Future[None]]) -> None:
    wait(ending)


class IsolatedCall:
    """One call of a function in a process of its own. `run` blocks until it has ended, however it does;
    `on_started` is called when the function begins."""

    def __init__(
        self,
        processes: Processes,
        call: Call,
        *,
        on_started: Callable[[], object],
        tell_progress: Callable[[float], None],
    ) -> None:
        self._processes = processes
        self._call = call
        self._on_started = on_started
        self._tell_progress = tell_progress
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._is_killed = False

    def kill(self) -> None:
        """End it at once; `run` then returns something that nobody waits for."""
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def run(self) -> Completed | Failed:
        job = self._call.job
        if self._call.memory_bytes is not None and not HAS_MEMORY_LIMITS:
            log.warning("Step %s has a memory limit, which this system does not keep.", job.step)
        fresh = job.alone  # it has killed a process before: let it show whether it was its own doing
        while True:
            try:
                process = self._processes.take(self._call.memory_bytes, fresh=fresh)
            except _NotStarted as error:
                return _not_started(job, str(error))
            with self._lock:
                self._process = process
                if self._is_killed:
                    process.kill()
            outcome = self._run_in(process)
            if outcome is not None:
                return outcome
            fresh = True

    def _run_in(self, process: _Process) -> Completed | Failed | None:
        """None where it had died before, while it had nothing to do."""
        answer: Answer | None = None
        has_started = False
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            if not process.is_ready:
                process.send(Setup(sys.argv, main_program(), settings_in_use()))
                if not isinstance(process.receive(deadline), Ready):
                    raise EOFError
                process.is_ready = True
            process.send(self._call)
            while answer is None:
                message = process.receive(None if has_started else deadline)
                if isinstance(message, Started):
                    has_started = True
                    self._on_started()
                elif isinstance(message, Progress):
                    self._tell_progress(message.fraction)
                elif isinstance(message, Answer):
                    answer = message
        except TimeoutError:
            return _not_started(
                self._call.job,
                f"its function {self._call.function} was not ready to begin within {START_SECONDS_MAX:g} s",
            )
        except _BROKEN:
            if process.calls and not has_started and not self._is_killed:
                return None
            return self._death(process)
        finally:
            with self._lock:
                self._process = None  # from here on it may be another's
            if answer is None:
                self._processes.discard(process)
        process.calls += 1
        process.bytes_used, process.is_worn = answer.bytes_used, answer.worn
        self._processes.give_back(process)
        if answer.failure is not None:
            return Failed(answer.failure)
        return Completed(answer.output or "null")

    def _death(self, process: _Process) -> Failed:
        job, limit = self._call.job, self._call.memory_bytes
        code = process.exit_code()
        if not process.is_ready:
            told = "it did not answer" if code is None else _ended_with(code)
            return _not_started(job, f"{told}; its standard error says more")
        if code is None or code == EXIT_ORPHANED:
            message = f"Step {job.step} closed the connection of its process to the worker."
        elif code >= 0:
            message = f"Step {job.step}'s process ended with exit code {code} before the step had returned."
        else:
            message = f"Step {job.step}'s process {_ended_with(code)}."
            if -code == signal.SIGKILL:
                message += " The worker did not do that; the system does when memory runs out."
            elif limit is not None:
                message += (
                    f" Its memory was limited to {shown_bytes(limit)};"
                    " some libraries end like this when they get no more."
                )
        failure = Failure(
            message=message,
            exception="ProcessCrashed" if code is not None and code < 0 else "SystemExit",
            error_type="process_crashed" if code is not None and code < 0 else "process_exited",
            stack_trace=process.trace(),
        )
        return Failed(failure, crashed=True)


def _leads_here(line: str) -> bool:
    file = _FILE.match(line)
    return file is not None and (is_ours(file[1]) or file[1] == "<string>")


def _ended_with(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name} ({(signal.strsignal(-code) or '').lower()})"
    except ValueError:
        return f"was ended by signal {-code}"


def _not_started(job: Leased, why: str) -> Failed:
    failure = Failure(
        message=f"The process of step {job.step} could not be started: {why}.",
        exception="ProcessNotStarted",
        error_type="unknown",
        category=Category.UNKNOWN,
        user_message="The step could not be started",
        guidance="Contact the administrator: the worker's machine, or its installation, is not in order.",
    )
    return Failed(failure)
