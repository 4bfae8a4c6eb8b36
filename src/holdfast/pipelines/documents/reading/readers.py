"""The pool of reading processes: `readers().read(path, …)` reads a document in one of them.

    read ──▶ an idle process, a new one, or a wait for either ──▶ Task
         ◀── parts of chunks, each given to `on_chunks`; in the end the facts, or the error, raised here

A process is used again, unless it was killed, holds on to too much memory, or has read its share of
documents. One that dies while it has nothing to do costs nobody anything: another is started. Time counts
from when a process begins to read, without what `on_chunks` takes.

Processes are started by one thread that lasts as long as they may, because Linux kills them with it.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from holdfast.core.errors import PermanentError, TransientError
from holdfast.pipelines.documents.reading.chunk import Chunk, Facts, ReadLimits
from holdfast.pipelines.documents.reading.messages import Failed, FromChild, Part, Read, Ready, Task
from holdfast.pipelines.documents.reading.reading_process import (
    ReadingProcess,
    ended_with,
    looks_out_of_memory,
)
from holdfast.pipelines.documents.reading.refusals import ReaderFailed, needs_memory, shown

DOCUMENTS_PER_PROCESS_MAX = 200
KEPT_SHARE_MAX = 0.5
"""A process that holds on to more than this share of a limit does not read under it: too little is left."""
KEPT_BYTES_MAX = 256 * 1024**2
START_SECONDS_MAX = 60.0
TOLD_SECONDS = 0.5
"""How often `on_chunks` is called where there is nothing to tell: who waits may have lost its lease."""
IDLE_SECONDS_MAX = 300.0
"""Longer than this only one process is kept for nothing."""

OnChunks = Callable[[list[Chunk], float], None]

_BROKEN = (EOFError, OSError, msgspec.MsgspecError)


class Readers:
    """Safe for use by many threads."""

    def __init__(
        self, size: int | None = None, *, documents_per_process_max: int = DOCUMENTS_PER_PROCESS_MAX
    ) -> None:
        self._size = size or os.cpu_count() or 1
        self._documents_max = documents_per_process_max
        self._free = threading.Condition()
        self._all: set[ReadingProcess] = set()
        self._taken = 0
        self._idle: list[ReadingProcess] = []  # the last one used is used first, so that few are kept warm
        self._starter: ThreadPoolExecutor | None = None
        self._is_closed = False

    def read(self, path: Path | str, *, filename: str, limits: ReadLimits, on_chunks: OnChunks) -> Facts:
        """Blocks until it is read; what `on_chunks` raises ends the reading and passes on."""
        task = Task(os.fspath(path), filename, limits)
        self._wait_for_turn(on_chunks)
        try:
            while True:
                process = self._take(limits)
                facts = self._read_in(process, task, on_chunks)
                if facts is not None:
                    return facts
        finally:
            with self._free:
                self._taken -= 1
                self._free.notify()

    def close(self) -> None:
        """End all processes; a reading that goes on fails."""
        with self._free:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for process in self._all.difference(idle):
                process.kill()  # whoever reads with it hears of it, and discards it
            starter, self._starter = self._starter, None
            self._free.notify_all()
        for process in idle:
            self._discard(process)
        if starter is not None:
            starter.shutdown(wait=True)

    @property
    def pids(self) -> list[int]:
        """Of the processes there are."""
        with self._free:
            return sorted(process.pid for process in self._all)

    # A process

    def _wait_for_turn(self, on_chunks: OnChunks) -> None:
        on_chunks([], 0.0)
        while True:
            with self._free:
                if self._taken < self._size or self._free.wait_for(
                    lambda: self._taken < self._size, TOLD_SECONDS
                ):
                    self._taken += 1
                    return
            on_chunks([], 0.0)

    def _take(self, limits: ReadLimits) -> ReadingProcess:
        worn: list[ReadingProcess] = []
        try:
            with self._free:
                if self._is_closed:
                    raise _not_started("the pool of reading processes is closed")
                while self._idle:
                    process = self._idle.pop()
                    if process.is_alive and _fits(process, limits):
                        return process
                    worn.append(process)
                if self._starter is None:
                    self._starter = ThreadPoolExecutor(1, "holdfast-readers")
                starting = self._starter.submit(ReadingProcess)
        finally:
            for process in worn:
                self._discard(process)
        try:
            process = starting.result()
        except OSError as error:
            raise _not_started(f"the system refused: {error}") from error
        with self._free:
            self._all.add(process)
            if self._is_closed:
                process.kill()
        return process

    def _give_back(self, process: ReadingProcess) -> None:
        now = time.monotonic()
        process.idle_since = now
        worn: list[ReadingProcess] = []
        with self._free:
            if (
                self._is_closed
                or process.documents >= self._documents_max
                or process.bytes_used > KEPT_BYTES_MAX
                or process.is_chatty()
            ):
                worn.append(process)
            else:
                self._idle.append(process)
            while len(self._idle) > 1 and now - self._idle[0].idle_since > IDLE_SECONDS_MAX:
                worn.append(self._idle.pop(0))
        for old in worn:
            self._discard(old)

    def _discard(self, process: ReadingProcess) -> None:
        with self._free:
            self._all.discard(process)
        process.end()

    # A reading

    def _read_in(self, process: ReadingProcess, task: Task, on_chunks: OnChunks) -> Facts | None:
        """None where the process had died before, while it had nothing to do."""
        reading = _Reading(process, task, on_chunks)
        answer: Read | Failed | None = None
        try:
            answer = reading.answer()
        except _Died as error:
            if process.documents and not reading.has_begun and not self._is_closed:
                return None
            raise reading.death(error) from error.__cause__
        finally:
            if answer is None:
                self._discard(process)
        process.documents += 1
        process.bytes_used = answer.bytes_used
        self._give_back(process)
        if isinstance(answer, Failed):
            raise _raised(answer, task)
        return answer.facts


class _Died(Exception):
    """The process will say nothing more."""


class _Reading:
    """One document, in one process."""

    def __init__(self, process: ReadingProcess, task: Task, on_chunks: OnChunks) -> None:
        self._process = process
        self._task = task
        self._on_chunks = on_chunks
        self._share = 0.0
        self._bytes_seen = 0
        self.has_begun = False

    def answer(self) -> Read | Failed:
        if not self._process.is_ready:
            self._wait_until_ready()
        try:
            self._process.send(self._task)
        except OSError as error:
            raise _Died from error
        seconds_left = self._task.limits.seconds_max
        while True:
            began = time.monotonic()
            message = self._receive(min(TOLD_SECONDS, seconds_left))
            seconds_left -= time.monotonic() - began
            if isinstance(message, Read | Failed):
                return message
            if isinstance(message, Part):
                self.has_begun = True
                self._share = message.share
                self._on_chunks(message.chunks, message.share)
            else:
                self._bytes_seen = max(self._bytes_seen, self._process.data_bytes())
                self._on_chunks([], self._share)
            if seconds_left <= 0:
                raise self._took_too_long()

    def death(self, error: _Died) -> Exception:
        """What it died of, as it is told."""
        code = self._process.exit_code()
        name, limits = shown(self._task.filename), self._task.limits
        if code is None:
            return _crashed(f"The process that read {name} closed its connection ({error.__cause__!r}).")
        words = self._process.last_words()
        if not self._process.is_ready:
            return _not_started(f"it {ended_with(code)}: {words[-500:].strip()}")
        if looks_out_of_memory(code, words, self._bytes_seen, limits.memory_bytes_max):
            return needs_memory(self._task.filename, limits.memory_bytes_max)
        told = f"The process that read {name} {ended_with(code)}."
        if -code == signal.SIGKILL:
            told += " The worker did not do that; the system does when memory runs out."
        return _crashed(told)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not isinstance(self._receive(TOLD_SECONDS), Ready):
            if time.monotonic() >= deadline:
                raise _not_started(f"it was not ready within {START_SECONDS_MAX:g} s")
            self._on_chunks([], 0.0)
        self._process.is_ready = True

    def _receive(self, seconds_max: float) -> FromChild | None:
        try:
            return self._process.receive(seconds_max)
        except _BROKEN as error:
            raise _Died from error

    def _took_too_long(self) -> TransientError:
        return TransientError(
            f"Reading {shown(self._task.filename)} took longer than {self._task.limits.seconds_max:g} s;"
            f" {self._share:.0%} of it was read by then.",
            error_type="timeout",
        )


def _fits(process: ReadingProcess, limits: ReadLimits) -> bool:
    return limits.memory_bytes_max is None or process.bytes_used <= limits.memory_bytes_max * KEPT_SHARE_MAX


def _crashed(message: str) -> TransientError:
    return TransientError(message, error_type="process_crashed")


def _not_started(why: str) -> TransientError:
    return TransientError(
        f"A process to read documents could not be started: {why}.",
        error_type="process_crashed",
        user_message="The reading of the document could not be started",
    )


def _raised(failed: Failed, task: Task) -> Exception:
    if failed.kind == "memory":
        return needs_memory(task.filename, task.limits.memory_bytes_max)
    if failed.kind == "failed":
        error = ReaderFailed(f"Reading {shown(task.filename)} failed: {failed.message}")
        error.add_note(failed.trace)
        return error
    kind = PermanentError if failed.kind == "permanent" else TransientError
    return kind(
        failed.message,
        error_type=failed.error_type,
        user_message=failed.user_message,
        guidance=failed.guidance,
    )


# The pool of this process

_lock = threading.Lock()
_pool: tuple[int, Readers] | None = None


def readers() -> Readers:
    """The one of this process; made when it is first asked for, and ended with the process."""
    global _pool
    with _lock:
        # A fork has its parent's pool, and must not speak to those processes.
        if _pool is None or _pool[0] != os.getpid():
            pool = Readers()
            _pool = os.getpid(), pool
            atexit.register(pool.close)
        return _pool[1]
