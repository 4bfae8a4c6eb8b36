"""The demo's workers: real processes, started by the command that a user would type.

    demo ──starts──▶ holdfast worker --processes 2 (supervisor) ──▶ worker, worker
      └──lifeline (a pipe)──▶ its end tells the supervisor that the demo is gone, however it went

What they say goes to the log. The supervisor tells there which processes it starts; only those may be killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.cli.demo_pipeline import APP
from holdfast.cli.demo_verdict import Stopped
from holdfast.cli.options import URL_VARIABLE
from holdfast.cli.supervisor import ENDING_SECONDS, LIFELINE_VARIABLE

PROCESSES = 2
LEASE_SECONDS = 5
OPTIONS = ("--processes", str(PROCESSES), "--lease", f"{LEASE_SECONDS}s", "--grace", "0s")
# The supervisor kills by itself what does not end; this is for the case that it cannot.
END_SECONDS_MAX = ENDING_SECONDS + 5.0

_STARTED = re.compile(r"Worker process (\d+) started\.")


class Workers:
    """Started by `with workers.running()`, and ended with the block."""

    def __init__(self, url: str, log: Path) -> None:
        self._url = url
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Workers]:
        reading, writing = os.pipe()
        try:
            with self._log.open("ab") as log:
                # The address goes by the environment: it may hold a password, and a command line is public.
                # In a session of its own, Ctrl-C reaches it through the demo alone.
                process = self._process = subprocess.Popen(
                    [sys.executable, "-m", "holdfast", "worker", "--app", APP, *OPTIONS],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, URL_VARIABLE: self._url, LIFELINE_VARIABLE: str(reading)},
                    pass_fds=(reading,),
                    start_new_session=True,
                )
            try:
                yield self
            finally:
                process.terminate()
                try:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(END_SECONDS_MAX)
                finally:
                    process.kill()  # which does nothing where it has ended
                    process.wait()
        finally:
            os.close(reading)
            os.close(writing)

    def pids(self) -> list[int]:
        """Every worker process that was started, in order; the supervisor is none of them."""
        return [int(pid) for pid in _STARTED.findall(self._log.read_text(errors="replace"))]

    def kill(self, pid: int) -> bool:
        """SIGKILL; whether it was one of these workers, and there to be killed."""
        self.check()
        if pid not in self.pids():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def check(self) -> None:
        """Where the supervisor has ended, whoever waits would wait in vain."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            said = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            raise Stopped(f"The workers have ended with code {code}: {' '.join(said)}")
