"""Real worker processes: started, killed, stopped, continued, and never left behind.

A worker dies with the process that started it, also when that one is killed: it asks the kernel for it
(Linux). Everywhere else, and in every ordinary end, `Fleet` as a context manager kills what it started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

TESTS = Path(__file__).resolve().parents[1]
STOP_SECONDS_MAX = 120
LOG_TAIL_LINES = 25
PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Called by a worker as it begins: it ends with the process that started it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the process that started this worker has ended")


def is_alive(pid: int) -> bool:
    """A process that has ended is there until its parent asks for its code: a Z."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends between opening and reading
        return False


class WorkerProcess:
    """One life of one worker; its name is its worker id and never used again."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended_with(self) -> int | None:
        return self._process.poll()

    def kill(self) -> int:
        self._process.kill()
        return self._process.wait()

    def freeze(self) -> None:
        """Stop it. The signal only asks for it: until the last of its threads has stopped, one of them can
        still take a lock."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        self.ask_to_stop()
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"worker {self.name} did not stop; {self.told()}") from None

    def told(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return f"the end of what {self.name} said:\n" + "\n".join(lines[-LOG_TAIL_LINES:])


class Fleet:
    """The worker processes of one test; at its end none of them is left."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self._url = url
        self.started: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self.started:
            worker.kill()

    def _inherited_path(self) -> list[str]:
        return [path for path in [os.environ.get("PYTHONPATH", "")] if path]

    def start(self, script: Path, *arguments: str) -> WorkerProcess:
        """Run a script as `script URL FOLDER NAME PARENT arguments...`."""
        name = f"w{len(self.started) + 1}"
        log = self.folder / f"{name}.log"
        command: Sequence[str] = [
            sys.executable,
            *("-W", "error"),
            str(script),
            *(self._url, str(self.folder), name, str(os.getpid())),
            *arguments,
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *self._inherited_path()])},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        worker = WorkerProcess(name, process, log)
        self.started.append(worker)
        return worker
