"""Programs that steps run: each under a supervisor, with bounds, and killed with all that it has started.

    run_supervised(program) ──▶ a thread: start the supervisor, read what comes, wait ──▶ Ended
        cancelled (a timeout, a lost lease): the pipe to the supervisor is closed, which kills everything

What a program writes is read to its end and kept within a bound: one that never stops writing is not held up
and costs no memory. Its environment is made from nothing: what the worker knows is not its affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.catalogue import Category
from holdfast.core.masking import TRACE_BYTES_MAX
from holdfast.steps.failing import FailedElsewhere
from holdfast.steps.interface import spare_seconds

PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
READ_BYTES = 65_536
LENGTH_BYTES = 8
"""Before what is said to a supervisor, and before an answer of code."""
# Once it has said how the program ended, or was told to end it; then it is killed itself.
END_SECONDS_MAX = 10.0
# For code that has answered to end by itself; then it is killed. Nothing that it may still do is its answer.
ANSWERED_SECONDS_MAX = 1.0

_SUPERVISOR = str(Path(__file__).absolute().with_name("supervisor.py"))
_PACKAGE = str(Path(__file__).absolute().parent.parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run: a command, or inline `code` (as data for code_child). Without `cwd` it runs in its home, a
    folder of its own that is removed afterwards."""

    step: str
    command: Sequence[str] = ()
    code: Mapping[str, Any] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    stdin: str | None = None
    memory_bytes: int | None = None
    output_bytes_max: int = 1024 * 1024
    """Kept of each of its streams."""
    answer_bytes_max: int = 0
    ends_at: float = math.inf
    """When the time of its attempt is over, by the monotonic clock: an answer is handed out before."""


class Captured:
    """What one stream of a program said: the beginning, or the end, of it."""

    def __init__(self, bytes_max: int, *, keep_end: bool = False) -> None:
        self._bytes_max = bytes_max
        self._keep_end = keep_end
        self._kept = bytearray()
        self.bytes_seen = 0

    def add(self, part: bytes) -> None:
        self.bytes_seen += len(part)
        if not self._keep_end:
            self._kept += part[: self._bytes_max - len(self._kept)]
            return
        self._kept += part
        if len(self._kept) > 2 * self._bytes_max:
            del self._kept[: -self._bytes_max]

    @property
    def kept(self) -> bytes:
        return bytes(self._kept[-self._bytes_max :] if self._keep_end else self._kept)

    def beginning(self, count: int) -> bytes:
        return bytes(self._kept[:count])

    @property
    def is_cut(self) -> bool:
        return self.bytes_seen > self._bytes_max

    @property
    def text(self) -> str:
        """Fit to be stored, whatever was written."""
        return self.kept.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


@dataclass(frozen=True, slots=True)
class NotStarted:
    """`what` could not be had: the command, or the working directory."""

    what: str
    errno: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: `exit_code` is minus the signal's number where a signal did it; None where nobody
    knows, because its supervisor was killed."""

    exit_code: int | None
    stdout: Captured
    stderr: Captured
    answer: Captured
    not_started: NotStarted | None = None


def minimal_environment(home: str, more: Mapping[str, str]) -> dict[str, str]:
    """Enough to find and run programs; nothing that the worker was told in confidence."""
    return {
        "PATH": os.environ.get("PATH") or PATH_DEFAULT,
        "LANG": "C.UTF-8",
        "HOME": home,
        "TMPDIR": home,
        **({"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}),
        **more,
    }


async def run_supervised(program: Program) -> Ended:
    """Run it to its end. Cancelled, it kills the program with everything it has started."""
    run = _Run(program)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Ended] = loop.create_future()

    def tell(result: Ended | None, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is not None:
            ended.set_exception(error)
        else:
            assert result is not None
            ended.set_result(result)

    def work() -> None:
        result: Ended | None = None
        error: BaseException | None = None
        try:
            result = run.to_the_end()
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, result, error)

    # A thread of its own, not one of a pool: Python waits for it at its exit, and it always ends.
    threading.Thread(target=work, name=f"holdfast-{program.step}", daemon=False).start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        run.kill()
        ended.add_done_callback(_forget)
        raise


def _forget(future: asyncio.Future[Ended]) -> None:
    if not future.cancelled():
        future.exception()


class _Run:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._is_killed = False
        self._control: int | None = None  # once all is said; before that it belongs to whoever says it

    def kill(self) -> None:
        """From anywhere. A word and the end of the pipe: a handler's fork may hold the pipe open."""
        with self._lock:
            self._is_killed = True
            if self._control is not None:
                with contextlib.suppress(OSError):  # it has ended already
                    os.write(self._control, b"end")
                os.close(self._control)
                self._control = None

    def to_the_end(self) -> Ended:
        folder = tempfile.mkdtemp(prefix="holdfast-step-")
        try:
            return self._run_in(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run_in(self, folder: str) -> Ended:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            answer_read, answer_write = _pipe(ours, theirs)
            status_read, status_write = _pipe(ours, theirs)
            process = self._start(answer_write, status_write)
            try:
                theirs.close()
                self._say(process, folder)
                return self._follow(process, answer_read, status_read)
            finally:
                self.kill()
                self._wait_for(process)

    def _start(self, answer_fd: int, status_fd: int) -> subprocess.Popen[bytes]:
        # Code needs what `site` sets up; a command is not Python's affair.
        flags = ["-I"] if self._program.code is not None else ["-I", "-S"]
        try:
            return subprocess.Popen(
                [sys.executable, *flags, _SUPERVISOR, str(answer_fd), str(status_fd)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(answer_fd, status_fd),
                env=minimal_environment("/", {}),
                cwd="/",
                start_new_session=True,  # the terminal's signals mean the worker
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            raise _not_started(self._program.step, f"the system refused: {error}") from error

    def _say(self, process: subprocess.Popen[bytes], folder: str) -> None:
        program = self._program
        spec = marshal.dumps(
            {
                "command": list(program.command),
                "code": None if program.code is None else dict(program.code),
                "env": minimal_environment(folder, program.env),
                "cwd": folder if program.cwd is None else program.cwd,
                "folder": folder,
                "stdin": None if program.stdin is None else program.stdin.encode(errors="surrogatepass"),
                "memory_bytes": program.memory_bytes if sys.platform == "linux" else None,
                "path": [os.path.abspath(entry) for entry in sys.path],
                "package": _PACKAGE,
            }
        )
        view = memoryview(len(spec).to_bytes(LENGTH_BYTES, "big") + spec)
        assert process.stdin is not None
        control = os.dup(process.stdin.fileno())
        process.stdin.close()
        with contextlib.suppress(OSError):  # it was killed by somebody, which its end tells
            while view:
                view = view[os.write(control, view) :]
        with self._lock:
            self._control, is_killed = control, self._is_killed
        if is_killed:
            self.kill()

    def _follow(self, process: subprocess.Popen[bytes], answer_fd: int, status_fd: int) -> Ended:
        bound = self._program.output_bytes_max
        stdout, stderr = Captured(bound), Captured(bound, keep_end=True)
        answer, status = Captured(self._program.answer_bytes_max), Captured(READ_BYTES)
        assert process.stdout is not None and process.stderr is not None
        with selectors.DefaultSelector() as selector:
            for fd, captured in (
                (process.stdout.fileno(), stdout),
                (process.stderr.fileno(), stderr),
                (answer_fd, answer),
                (status_fd, status),
            ):
                selector.register(fd, selectors.EVENT_READ, captured)
            deadline: float | None = None
            while selector.get_map():
                now = time.monotonic()
                if deadline is None and (status.bytes_seen or status_fd not in selector.get_map()):
                    deadline = now + END_SECONDS_MAX
                elif deadline is None and _is_whole(answer):
                    deadline = now + spare_seconds(ANSWERED_SECONDS_MAX, self._program.ends_at, now)
                # What cannot be killed may hold a stream open for ever, and code that has answered may have
                # left a thread that does not end.
                if deadline is not None and now >= deadline:
                    break
                for key, _ in selector.select(None if deadline is None else deadline - now):
                    part = os.read(key.fd, READ_BYTES)
                    if part:
                        key.data.add(part)
                    else:
                        selector.unregister(key.fd)
        return _ended(status.kept, stdout, stderr, answer)

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    return read, write


def _is_whole(answer: Captured) -> bool:
    head = answer.beginning(LENGTH_BYTES)
    return len(head) == LENGTH_BYTES and answer.bytes_seen >= LENGTH_BYTES + int.from_bytes(head, "big")


def _ended(status: bytes, stdout: Captured, stderr: Captured, answer: Captured) -> Ended:
    try:
        kind, *told = marshal.loads(status)
    except (EOFError, ValueError, TypeError):
        return Ended(None, stdout, stderr, answer)
    if kind == "not_started":
        return Ended(None, stdout, stderr, answer, NotStarted(*told))
    return Ended(told[0], stdout, stderr, answer)


def signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({(signal.strsignal(number) or '').lower()})"
    except ValueError:
        return f"signal {number}"


def supervisor_lost(step: str, ended: Ended) -> FailedElsewhere:
    """Nobody knows how far the program had come: it was killed with its supervisor."""
    return FailedElsewhere.of(
        f"The process of step {step} could not be followed: the one that watched over it has ended.",
        exception="ProcessCrashed",
        error_type="process_crashed",
        stack_trace=ended.stderr.text[-TRACE_BYTES_MAX:],
    )


def _not_started(step: str, why: str) -> FailedElsewhere:
    return FailedElsewhere.of(
        f"The process of step {step} could not be started: {why}.",
        exception="ProcessNotStarted",
        error_type="unknown",
        category=Category.UNKNOWN,
        user_message="The step could not be started",
        guidance="Contact the administrator: the worker's machine, or its installation, is not in order.",
    )
