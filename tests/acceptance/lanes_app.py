"""Workers of a narrow portal: their handlers write down when they begin and when they end.

All handlers of all processes append to one file, a line in one write: its order is the order in which it all
happened, and counting along it tells how many ran at once. A handler goes on when a file lets it: one named
for its item, or one for its whole lane.

    lanes_app.py URL FOLDER NAME PARENT
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from faults.processes import die_with
from holdfast import Context, Holdfast, Retry
from running import eventually

CONCURRENCY = 4
# Long enough that no healthy attempt loses its lease on a busy machine: then two of them would run.
LEASE_SECONDS = 8.0
LIMIT = "portal"


class Line(NamedTuple):
    """`worker` is a process; `item` is empty where all that it ran has ended with it."""

    what: str
    worker: str
    lane: str = ""
    operation: str = ""
    item: str = ""


class Portal:
    """The folder in which handlers and test meet."""

    def __init__(self, folder: Path) -> None:
        self._lines = folder / "portal.txt"
        self._folder = folder

    def note(self, line: Line) -> None:
        with self._lines.open("a") as lines:
            lines.write(" ".join(line) + "\n")

    def lines(self) -> list[Line]:
        text = self._lines.read_text() if self._lines.exists() else ""
        return [Line(*line.split(" ")) for line in text.split("\n")[:-1]]

    def let_end(self, name: str) -> None:
        (self._folder / f"{name} may end").touch()

    def may_end(self, name: str) -> bool:
        return (self._folder / f"{name} may end").exists()


def app(url: str, folder: Path) -> Holdfast:
    hf, portal = Holdfast(url), Portal(folder)

    async def visit(ctx: Context) -> None:
        lane, item = ctx.lane.value, ctx.workload
        told = (str(os.getpid()), lane, ctx.step, item)
        portal.note(Line("begin", *told))
        await eventually(lambda: portal.may_end(lane) or portal.may_end(item), 600)
        portal.note(Line("end", *told))

    for operation in ("request", "download"):
        step = hf.step(
            name=operation, operation=operation, limit=LIMIT, retry=Retry(max_attempts=20, delays=[0.01])
        )
        hf.pipeline(f"{operation}s", [step(visit)])
    return hf


if __name__ == "__main__":
    url, folder, name, parent = sys.argv[1:5]
    die_with(int(parent))
    app(url, Path(folder)).run_worker(
        worker_id=name, concurrency=CONCURRENCY, lease_seconds=LEASE_SECONDS, poll_seconds=0.5
    )
