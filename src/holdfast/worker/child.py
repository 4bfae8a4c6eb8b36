"""The child's side of `isolation="process"`: one handler at a time, in a process that may be killed.

    worker ── Setup, then Call, Call, … ──▶ child
    worker ◀── Ready, then for each call: Started, Progress…, Answer ── child

The child imports the function, runs it under the step's memory limit and answers with its result as JSON
text, or with the failure: no object crosses. An async function runs on one event loop that lasts as long as
the process, so what a module keeps on it (connections, pools) stays usable.

It never outlives its worker: the system is asked to kill it with the thread that started it (Linux), and it
looks for itself as well. Signals that reach a whole group or service mean the worker, which decides what
becomes of its children: they are heard here and nothing is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import faulthandler
import importlib
import inspect
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import msgspec

from holdfast.core.catalogue import Category
from holdfast.core.errors import PayloadInvalid, PayloadTooLarge
from holdfast.core.failures import Failure
from holdfast.core.model import Leased
from holdfast.core.payload import encode_payload, unstorable_output
from holdfast.logs import CURRENT, LogSettings, log_to_stderr
from holdfast.worker import isolation
from holdfast.worker.bounded_process import (
    EXIT_ORPHANED,
    bytes_used,
    die_with,
    is_out_of_memory,
    limit_memory,
)
from holdfast.worker.context import Context
from holdfast.worker.handler_error import failure_of
from holdfast.worker.isolation import FunctionName

WATCH_SECONDS = 0.25
WORN_SHARE = 0.5
"""A process that holds on to more than this share of a step's limit does not run it: too little is left."""


class Setup(msgspec.Struct, tag=True, frozen=True):
    argv: list[str]
    main_program: dict[str, str]
    logs: LogSettings | None = None
    """How the worker logs; None where its program has set that up, and does so again here."""


class Call(msgspec.Struct, tag=True, frozen=True):
    job: Leased
    function: FunctionName
    memory_bytes: int | None
    output_bytes_max: int | None
    """None where what it returns is of no interest: a clear hook."""
    worker_id: str = ""
    traceparent: str = ""


class Ready(msgspec.Struct, tag=True, frozen=True):
    pass


class Started(msgspec.Struct, tag=True, frozen=True):
    """The function is loaded and begins: from here on the time is the handler's."""


class Progress(msgspec.Struct, tag=True, frozen=True):
    fraction: float


class Answer(msgspec.Struct, tag=True, frozen=True):
    """`worn`: the process should run nothing more. `bytes_used`: what it holds on to."""

    output: str | None = None
    failure: Failure | None = None
    worn: bool = False
    bytes_used: int = 0


ToChild: TypeAlias = Setup | Call
FromChild: TypeAlias = Ready | Started | Progress | Answer

_encode = msgspec.msgpack.encode
_TO_CHILD = msgspec.msgpack.Decoder(ToChild)


def main() -> None:
    """Called by the worker's command line: the connection, where to leave a trace, the worker's process."""
    connection_fd, trace_fd, worker_pid = map(int, sys.argv[1:4])
    for fd in (connection_fd, trace_fd):
        os.set_inheritable(fd, False)  # not for the programs that a handler starts
    die_with(worker_pid)
    faulthandler.enable(trace_fd)
    for number in (signal.SIGINT, signal.SIGTERM):
        # A handler of our own: to ignore them would be passed on to the programs that a handler starts.
        signal.signal(number, lambda *_: None)
    with contextlib.suppress(EOFError, ConnectionError), asyncio.Runner() as runner:
        Child(Connection(connection_fd), runner, worker_pid).run()


class Child:
    def __init__(self, connection: Connection[Any, Any], runner: asyncio.Runner, worker_pid: int) -> None:
        self._connection = connection
        self._runner = runner
        self._worker_pid = worker_pid
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._is_running = False
        self._progress: float | None = None
        self._functions: dict[FunctionName, Callable[[Context], Any]] = {}
        self._setup = Setup([], {})

    def run(self) -> None:
        """Until the worker closes the connection."""
        threading.Thread(target=self._watch, name="holdfast-watch", daemon=True).start()
        while True:
            message = _TO_CHILD.decode(self._connection.recv_bytes())
            if isinstance(message, Setup):
                self._setup, sys.argv = message, message.argv
                if message.logs is not None:
                    log_to_stderr(message.logs)
                self._send(Ready())
            else:
                self._answer(message)

    def _answer(self, call: Call) -> None:
        try:
            function = self._load(call.function)
        except BaseException as error:
            self._send(Answer(failure=_not_loaded(error, call), worn=True))
            return
        self._progress, self._is_running = None, True
        self._send(Started())
        answer = contextvars.copy_context().run(self._run, function, call)
        if os.getpid() != self._pid:
            # What a handler has forked comes out here as well: it must not answer for this process.
            os._exit(0 if answer.failure is None else 1)
        with self._sending:
            self._is_running = False  # no progress after the answer: it would be told of the next job
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()  # the process may be killed before it would do so itself
        self._send(answer)

    def _load(self, place: FunctionName) -> Callable[[Context], Any]:
        """The function; where its name was given to the step made of it, that step, which calls it."""
        if place not in self._functions:
            isolation.is_loading = True
            try:
                if place.module == "__main__":
                    spawn.prepare(self._setup.main_program)
                found: Any = importlib.import_module(place.module)
                for part in place.name.split("."):
                    found = getattr(found, part)
            finally:
                isolation.is_loading = False
            self._functions[place] = found
        return self._functions[place]

    def _run(self, function: Callable[[Context], Any], call: Call) -> Answer:
        unlimited = resource.getrlimit(resource.RLIMIT_DATA)
        context = Context(call.job, self._tell_progress, worker_id=call.worker_id)
        context.traceparent = call.traceparent
        CURRENT.set(context)
        output: str | Failure | None = None
        try:
            try:
                if call.traceparent:
                    from holdfast.tracing.spans import (
                        join,  # what it needs is large, and few programs need it
                    )

                    join(call.traceparent)
                limit_memory(call.memory_bytes)
                result = function(context)
                if inspect.isawaitable(result):
                    result = self._await(result)
                if call.output_bytes_max is not None:
                    output = _encoded(result, call.output_bytes_max)
            finally:
                # Whatever is told of a lack of memory needs some.
                resource.setrlimit(resource.RLIMIT_DATA, unlimited)
        except BaseException as error:
            failure = failure_of(error, call.job, call.memory_bytes)
            worn = is_out_of_memory(error) or not isinstance(error, Exception)
            return Answer(failure=failure, worn=worn, bytes_used=_bytes_used(call))
        del result
        if isinstance(output, Failure):
            return Answer(failure=output, bytes_used=_bytes_used(call))
        return Answer(output, bytes_used=_bytes_used(call))

    def _await(self, awaitable: Awaitable[Any]) -> Any:
        async def awaited() -> tuple[Any, BaseException | None]:
            try:
                return await awaitable, None
            except BaseException as error:  # caught here, so that its trace does not lead through the loop
                return None, error

        result, error = self._runner.run(awaited(), context=contextvars.copy_context())
        if error is not None:
            raise error
        return result

    # what is said meanwhile

    def _tell_progress(self, fraction: float) -> None:
        self._progress = fraction  # sent by the watch: a handler may call this in every turn of a loop

    def _watch(self) -> None:
        """Send progress now and then, and end the process when nobody waits for it any more."""
        hung_up = select.poll()
        hung_up.register(self._connection.fileno(), 0)  # asked for nothing, it tells of the other end's close
        sent: float | None = None
        while True:
            time.sleep(WATCH_SECONDS)
            if os.getppid() != self._worker_pid or (self._is_running and hung_up.poll(0)):
                os._exit(EXIT_ORPHANED)
            with self._sending:
                fraction = self._progress
                if self._is_running and fraction is not None and fraction != sent:
                    with contextlib.suppress(OSError):
                        self._connection.send_bytes(_encode(Progress(fraction)))
                sent = fraction

    def _send(self, message: FromChild) -> None:
        with self._sending:
            self._connection.send_bytes(_encode(message))


def _encoded(result: Any, bytes_max: int) -> str | Failure:
    try:
        return encode_payload(result, what="output", bytes_max=bytes_max)
    except (PayloadInvalid, PayloadTooLarge) as error:
        return unstorable_output(error)


def _not_loaded(error: BaseException, call: Call) -> Failure:
    name = type(error).__name__
    return msgspec.structs.replace(
        failure_of(error, call.job),
        message=f"Step {call.job.step}'s function {call.function} could not be imported in its own process: "
        f"{name}: {error}",
        # Half a deployment looks like this, and heals; so whatever the error looks like, it is unknown.
        error_type="unknown",
        category=Category.UNKNOWN,
        user_message="The step could not be started",
        guidance="Contact the administrator: the worker's code, or its installation, is not complete.",
    )


def _bytes_used(call: Call) -> int:
    return bytes_used(call.memory_bytes, collect_share=WORN_SHARE)
