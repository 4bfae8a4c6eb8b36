"""What the workers' handlers have done, as the workers themselves wrote it: one file for each worker process.

A line is one write() to a file opened for appending, so what was written before a SIGKILL is there after it.
It is the only witness that does not go through the database.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec


class Start(msgspec.Struct, frozen=True, tag="start"):
    """A handler was called."""

    worker: str
    pid: int
    job: int
    execution: int
    step: str
    round: int
    attempt: int
    fence: str
    at: float

    @property
    def lease_number(self) -> int:
        """Which lease of its job this was: a fence begins with it."""
        return int(self.fence.partition("-")[0])


class Death(msgspec.Struct, frozen=True, tag="death"):
    """The worker is about to kill itself, as it was told, in this window."""

    worker: str
    window: str


class Mark(msgspec.Struct, frozen=True, tag="mark"):
    """A handler has come to a named place."""

    worker: str
    execution: int
    words: str


Line = Start | Death | Mark
_LINE: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class Ledger:
    """Where one worker writes."""

    def __init__(self, folder: Path, worker: str) -> None:
        self.worker = worker
        self._file = os.open(
            ledger_path(folder, worker), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        )

    def write(self, line: Line) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    def start(self, job: int, execution: int, step: str, round_: int, attempt: int, fence: str) -> None:
        self.write(Start(self.worker, os.getpid(), job, execution, step, round_, attempt, fence, time.time()))


def ledger_path(folder: Path, worker: str) -> Path:
    return folder / f"{worker}.ledger"


def read_worker(folder: Path, worker: str) -> list[Line]:
    path = ledger_path(folder, worker)
    return [_LINE.decode(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def read_all(folder: Path) -> list[Line]:
    return [_LINE.decode(line) for path in folder.glob("*.ledger") for line in path.read_bytes().splitlines()]
