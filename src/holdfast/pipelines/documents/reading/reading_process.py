"""One reading process as the pool sees it: started, spoken to, killed, and what it died of."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Pipe

from holdfast.pipelines.documents.reading.messages import FromChild, Task, decode_answer, encode
from holdfast.worker.bounded_process import data_bytes

LOOK_SECONDS = 0.5
END_SECONDS_MAX = 2.0
TRACE_BYTES_MAX = 16 * 1024
STDERR_BYTES_MAX = 1024**2
"""A library that writes this much to its standard error has its process replaced."""

# The path comes first: Holdfast itself may be found by it only.
_COMMAND = r"""
import sys
sys.path[:] = sys.argv.pop().split("\n")
from holdfast.pipelines.documents.reading.child import main
main()
"""
# What libraries write that end the process where they get no memory.
_OUT_OF_MEMORY = re.compile(
    r"memory allocation of \d+ bytes failed|bad_alloc|out of memory|cannot allocate memory", re.IGNORECASE
)
# How a program ends that gives up, or uses memory that it did not get.
_GAVE_UP = frozenset({signal.SIGABRT, signal.SIGTRAP, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS})


class ReadingProcess:
    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.is_ready = False
        self.documents = 0
        self.bytes_used = 0
        self.idle_since = 0.0
        try:
            self._popen = subprocess.Popen(
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    *("-c", _COMMAND, str(theirs.fileno()), str(os.getpid())),
                    "\n".join(entry or os.getcwd() for entry in sys.path),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                pass_fds=(theirs.fileno(),),
                # A group of its own: the terminal's signals mean the worker.
                process_group=0,
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def send(self, task: Task) -> None:
        self._connection.send_bytes(encode(task))

    def receive(self, seconds_max: float) -> FromChild | None:
        """The next message, None where there is none by then. EOFError or OSError where none will come."""
        deadline = time.monotonic() + max(seconds_max, 0.0)
        while True:
            left = deadline - time.monotonic()
            if self._connection.poll(min(max(left, 0.0), LOOK_SECONDS)):
                message: FromChild = decode_answer(self._connection.recv_bytes())
                return message
            if not self.is_alive and not self._connection.poll(0):
                raise EOFError
            if time.monotonic() >= deadline:
                return None

    def data_bytes(self) -> int:
        """What it uses of its memory limit just now; 0 where that is not told."""
        try:
            return data_bytes(self._popen.pid)
        except (OSError, IndexError):
            return 0

    def is_chatty(self) -> bool:
        return os.fstat(self._stderr.fileno()).st_size > STDERR_BYTES_MAX

    def exit_code(self) -> int | None:
        """What it ended with by itself, None where it did not; minus a signal's number."""
        try:
            return self._popen.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return None

    def last_words(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        begin = max(size - TRACE_BYTES_MAX, 0)
        return os.pread(self._stderr.fileno(), TRACE_BYTES_MAX, begin).decode(errors="replace")

    def kill(self) -> None:
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.kill()

    def end(self) -> None:
        """At once: there is nothing that it should clear up."""
        self.kill()
        self._popen.wait()
        self._close_files()

    def _close_files(self) -> None:
        self._connection.close()
        self._stderr.close()


def looks_out_of_memory(code: int, words: str, bytes_seen: int, bytes_max: int | None) -> bool:
    """Libraries not written in Python end their process where they get no more memory."""
    if -code not in _GAVE_UP or bytes_max is None:
        return False
    return _OUT_OF_MEMORY.search(words) is not None or bytes_seen > bytes_max // 2


def ended_with(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name} ({(signal.strsignal(-code) or '').lower()})"
    except ValueError:
        return f"was ended by signal {-code}"
