"""A worker that is followed by the next life of it when it was killed: each is forked, and nothing is
imported anew. SIGUSR1 kills a life from outside."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from faults.processes import die_with

LIVES_MAX: Final = 500
KILLED: Final = "killed from outside"


def ended(folder: Path, life: str) -> Path:
    """There once this life is over; it says whether it was killed from outside."""
    return folder / f"{life} has ended"


class Lives:
    """One after the other, until the process is asked to stop."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._child: int | None = None
        self._is_killed = False
        self._is_asked_to_stop = False

    def live(self, life: Callable[[str], None]) -> None:
        signals = {signal.SIGTERM: self._stop, signal.SIGUSR1: self._kill}
        for number, handler in signals.items():
            signal.signal(number, handler)
        nursery = os.getpid()
        for number_of_life in range(1, LIVES_MAX + 1):
            name, self._is_killed = f"{self._name}-{number_of_life}", False
            signal.pthread_sigmask(signal.SIG_BLOCK, signals)
            child = os.fork()
            if child == 0:
                for number in signals:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
                die_with(nursery)
                life(name)
                sys.exit(0)
            self._child = child
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            if self._is_asked_to_stop:
                os.kill(child, signal.SIGTERM)
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            self._child = None  # from here on its number may become another's
            _, status = os.waitpid(child, 0)
            told = ended(self._folder, name)
            told.with_suffix(".new").write_text(KILLED if self._is_killed else "by itself")
            told.with_suffix(".new").rename(told)
            if self._is_asked_to_stop:
                return
            if not os.WIFSIGNALED(status):
                sys.exit(f"{name} ended by itself: {status}")
        sys.exit(f"{LIVES_MAX} lives are enough")

    def _stop(self, *_: object) -> None:
        self._is_asked_to_stop = True
        if self._child is not None:
            os.kill(self._child, signal.SIGTERM)

    def _kill(self, *_: object) -> None:
        if self._child is not None:
            self._is_killed = True
            os.kill(self._child, signal.SIGKILL)
