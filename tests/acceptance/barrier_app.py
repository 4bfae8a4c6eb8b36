"""Workers of a batch whose items are requested first and downloaded later, to be killed in every phase.

    request    every fifth fails once, every twentieth until the portal is well
    download   waits for all requests and a delay; every tenth fails once and waits for the others' end;
               what it does is one row, written in its transaction

Each handler leaves a line when it is called. One request and one download do not go on, so that their worker
can be killed in the middle of them; a worker that is told so dies while it lets items through the barrier.

    barrier_app.py URL FOLDER NAME PARENT
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

from faults.processes import die_with
from holdfast import Context, Holdfast, Retry, TransientError
from holdfast.engine import batches
from holdfast.store import store_from_url
from running import eventually

CONCURRENCY = 4
# Long enough that only the workers that are killed lose their leases: handlers called late would be told in
# another order.
LEASE_SECONDS = 6.0
DELAY_SECONDS = 1.0
ITEMS = 200
STUCK_REQUEST, STUCK_DOWNLOAD = 43, 82
ITEMS_PER_CHUNK = 50
INSERT = "INSERT INTO effects (job, execution, step, fence) VALUES ($1, $2, $3, $4)"


def fails_for_ever(number: int) -> bool:
    return number % 20 == 19


def request_fails_once(number: int) -> bool:
    return number % 5 == 1


def download_fails_once(number: int) -> bool:
    return number % 10 == 4


class Call(NamedTuple):
    step: str
    number: int
    round: int
    attempt: int
    worker: int


class Diary:
    """The folder in which handlers and test meet."""

    def __init__(self, folder: Path) -> None:
        self._calls = folder / "calls.txt"
        self._folder = folder

    def note(self, call: Call) -> None:
        with self._calls.open("a") as lines:
            lines.write(" ".join(map(str, call)) + "\n")

    def calls(self, step: str) -> list[Call]:
        lines = self._calls.read_text().split("\n")[:-1] if self._calls.exists() else []
        told = (line.split(" ") for line in lines)
        return [Call(name, *map(int, numbers)) for name, *numbers in told if name == step]

    def say(self, words: str) -> None:
        (self._folder / words).touch()

    def said(self, words: str) -> bool:
        return (self._folder / words).exists()

    def heard_first(self, words: str) -> bool:
        """Whether it was said, for the first one who asks."""
        try:
            (self._folder / words).unlink()
        except FileNotFoundError:
            return False
        return True


def app(url: str, folder: Path) -> Holdfast:
    hf, diary = Holdfast(url), Diary(folder)

    def called(ctx: Context) -> int:
        number: int = ctx.workload["number"]
        diary.note(Call(ctx.step, number, ctx.round, ctx.attempt, os.getpid()))
        return number

    @hf.step(operation="request", retry=Retry(max_attempts=4, delays=[0.05]))
    async def request(ctx: Context) -> None:
        number = called(ctx)
        if number == STUCK_REQUEST and ctx.attempt == 1:
            await eventually(lambda: False, 600)
        if (fails_for_ever(number) and not diary.said("the portal is well")) or (
            request_fails_once(number) and ctx.attempt == 1
        ):
            raise TransientError("The portal did not answer.")

    @hf.step(
        operation="download",
        barrier={"after": "request", "delay": DELAY_SECONDS},
        retry=Retry(max_attempts=6, delays=[0.2], wave=True),
    )
    async def download(ctx: Context) -> None:
        number = called(ctx)
        if number == STUCK_DOWNLOAD and ctx.attempt == 1:
            await eventually(lambda: False, 600)
        if download_fails_once(number) and ctx.attempt == 1:
            raise TransientError("The report is not ready.")
        job = ctx._job
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, job.queue_id, ctx.execution_id, ctx.step, job.fence)

    hf.pipeline("reports", [request, download])
    return hf


def die_while_opening(url: str, diary: Diary) -> None:
    """The first to look for a second chunk of items at the barrier is killed there: some of them have passed,
    the others have not."""
    kind = type(store_from_url(url))
    held_jobs = kind.held_jobs

    async def watched(self: Any, batch_id: int, step: str, held_by: str, after: int, limit: int) -> Any:
        if after and diary.heard_first("die while opening"):
            os.kill(os.getpid(), signal.SIGKILL)
        return await held_jobs(self, batch_id, step, held_by, after, limit)

    kind.held_jobs = watched  # type: ignore[method-assign]
    batches.CHUNK_ITEMS = ITEMS_PER_CHUNK


if __name__ == "__main__":
    url, folder, name, parent = sys.argv[1:5]
    die_with(int(parent))
    die_while_opening(url, Diary(Path(folder)))
    app(url, Path(folder)).run_worker(
        worker_id=name, concurrency=CONCURRENCY, lease_seconds=LEASE_SECONDS, poll_seconds=0.5
    )
