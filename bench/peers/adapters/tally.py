"""What the handlers tell the driver: when the first one began, how many have ended, how late each job came.

Each process writes one small memory-mapped file, so that counting costs a fraction of a microsecond and
forked workers count as well: `<pid>.tally` holds the time of the first call and the number of ended ones.
Latencies are lines in `<pid>.latencies`.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path

LAYOUT = struct.Struct("<dq")  # when the first handler began, how many have ended
FAILURES = 2


class Wanted(Exception):
    """The failure that the retry measure asks for."""


class Tally:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._pid = 0
        self._attempts: dict[int, int] = {}

    def began(self) -> None:
        """A handler has begun; only the first call is kept."""
        self._add(0)

    def ended(self) -> None:
        """One job has been done."""
        self._add(1)

    def arrived(self, sent: float) -> None:
        """A job that was sent at this time has reached its handler; a warm-up is sent at 0."""
        late = time.time() - sent
        if sent:
            with (self._folder / f"{os.getpid()}.latencies").open("a") as file:
                file.write(f"{late:.9f}\n")
        self._add(1)

    def fail_twice(self, number: int, failed: int | None = None) -> None:
        """Raise on the first two attempts of a job. `failed` is what the engine says of earlier attempts;
        where it says nothing, this process remembers."""
        self.began()
        if failed is None:
            failed = self._attempts.get(number, 0)
            self._attempts[number] = failed + 1
        if failed < FAILURES:
            raise Wanted("this attempt was meant to fail")
        self._attempts.pop(number, None)
        self.ended()

    def _add(self, jobs: int) -> None:
        with self._lock:
            if self._pid != os.getpid():
                self._open()
            self._ended += jobs
            LAYOUT.pack_into(self._map, 0, self._first, self._ended)

    def _open(self) -> None:
        """In the process that counts: a forked worker opens its own."""
        self._pid, self._first, self._ended = os.getpid(), time.time(), 0
        with (self._folder / f"{self._pid}.tally").open("w+b") as file:
            file.truncate(LAYOUT.size)
            self._map = mmap.mmap(file.fileno(), LAYOUT.size)


def read_tally(folder: Path) -> tuple[float, int]:
    """When the first handler of all processes began (0 while none has), and how many have ended."""
    first, ended = 0.0, 0
    for path in folder.glob("*.tally"):
        content = path.read_bytes()
        if len(content) < LAYOUT.size:
            continue  # just being made
        begun, count = LAYOUT.unpack_from(content)
        if begun:
            first, ended = min(first or begun, begun), ended + count
    return first, ended


def read_latencies(folder: Path) -> list[float]:
    """Seconds, of every process; a line that is still being written does not count."""
    found: list[float] = []
    for path in folder.glob("*.latencies"):
        found += [float(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return found
