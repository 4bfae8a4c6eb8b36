"""The reading process: one document at a time, until the pool closes the connection.

What a stranger's file does to the libraries that read it (a crash, an endless loop, all memory) it does to
this process only. Nothing but plain data leaves it.

It never outlives who started it: the system is asked to kill it with the thread that did (Linux), and it
looks for itself as well. Signals that reach a whole group mean the worker, which decides what becomes of its
children: they are heard here and nothing is done.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from holdfast.core.errors import PermanentError, TransientError
from holdfast.pipelines.documents.reading.chunk import Chunk
from holdfast.pipelines.documents.reading.document import read_document
from holdfast.pipelines.documents.reading.messages import Failed, Part, Read, Ready, Task, decode_task, encode
from holdfast.worker.bounded_process import (
    EXIT_ORPHANED,
    bytes_used,
    die_with,
    is_out_of_memory,
    limit_memory,
)

WATCH_SECONDS = 0.25
TRACE_CHARS_MAX = 8_000
MESSAGE_CHARS_MAX = 2_000
COLLECT_SHARE = 1 / 4


def main() -> None:
    """Called by the pool's command line: the connection, and the pool's process."""
    connection_fd, parent_pid = map(int, sys.argv[1:3])
    os.set_inheritable(connection_fd, False)
    die_with(parent_pid)
    faulthandler.enable()
    gc.set_threshold(20_000, 20, 20)  # readers make many small things, and hardly any circles of them
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    connection: Connection[Any, Any] = Connection(connection_fd)
    threading.Thread(target=_watch, args=(connection, parent_pid), name="watch", daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(encode(Ready()))
        while True:
            task = decode_task(connection.recv_bytes())
            connection.send_bytes(encode(answer_to(task, connection)))


def answer_to(task: Task, connection: Connection[Any, Any]) -> Read | Failed:
    """Parts of it are sent meanwhile."""

    def hand_on(chunks: list[Chunk], share: float) -> None:
        connection.send_bytes(encode(Part(chunks, share)))

    unlimited = resource.getrlimit(resource.RLIMIT_DATA)
    memory_bytes = task.limits.memory_bytes_max
    try:
        try:
            hand_on([], 0.0)  # from here on what becomes of this process is the document's doing
            limit_memory(memory_bytes)
            facts = read_document(Path(task.path), task.filename, task.limits, hand_on)
        finally:
            # Whatever is told of a lack of memory needs some.
            resource.setrlimit(resource.RLIMIT_DATA, unlimited)
    except Exception as error:
        failed = failure_of(error)
        # Its traceback held all that was being read.
        error.__traceback__ = None
    else:
        return Read(facts, bytes_used(memory_bytes, collect_share=COLLECT_SHARE))
    failed.bytes_used = bytes_used(memory_bytes, collect_share=COLLECT_SHARE)
    return failed


def failure_of(error: Exception) -> Failed:
    if isinstance(error, PermanentError | TransientError):
        return Failed(
            "permanent" if isinstance(error, PermanentError) else "transient",
            str(error),
            error.error_type,
            error.user_message,
            error.guidance,
        )
    if is_out_of_memory(error):
        return Failed("memory", f"{type(error).__name__}: {error}"[:MESSAGE_CHARS_MAX])
    trace = "".join(traceback.format_exception(error))[-TRACE_CHARS_MAX:]
    return Failed("failed", f"{type(error).__name__}: {error}"[:MESSAGE_CHARS_MAX], trace=trace)


def _watch(connection: Connection[Any, Any], parent_pid: int) -> None:
    """End the process when nobody waits for it any more."""
    hung_up = select.poll()
    hung_up.register(connection.fileno(), 0)  # asked for nothing, it tells of the other end's close
    while True:
        time.sleep(WATCH_SECONDS)
        if os.getppid() != parent_pid or hung_up.poll(0):
            os._exit(EXIT_ORPHANED)
