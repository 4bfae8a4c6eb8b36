"""A worker whose handlers wait at a gate, so that a test decides how long they run.

    plain      sync: waits, returns
    effect     sync: waits, then writes an effect through ctx.transaction()
    inside     sync: writes an effect, then waits inside the transaction
    blocking   async, and blocks the event loop of its worker while it waits
    killer     kills its worker, every time
    innocent   async, microseconds

A gate is a file, named for an execution and an attempt.

    gate_worker.py URL FOLDER NAME PARENT LEASE_SECONDS [WINDOW]

With a window it waits when it first comes by it, until a file lets it go on: there it can be stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from faults.dying import Order, watch_engine
from faults.ledger import Death, Ledger, Mark, Start, read_worker
from faults.processes import die_with
from faults.tables import select
from holdfast import Context, Holdfast, Retry

WAIT_SECONDS_MAX = 300
POLL_SECONDS = 0.2
INSERT = "INSERT INTO effects (job, execution, step, fence) VALUES ($1, $2, $3, $4)"


def gate(folder: Path, execution: int, attempt: int = 1) -> Path:
    return folder / f"gate {execution}.{attempt} is open"


def window_gate(folder: Path) -> Path:
    return folder / "the window is open"


def app(url: str, folder: Path, ledger: Ledger | None = None) -> Holdfast:
    """Without a ledger it only submits and looks."""
    hf = Holdfast(url)

    def begin(ctx: Context) -> None:
        assert ledger is not None
        job = ctx._job
        ledger.start(job.queue_id, ctx.execution_id, ctx.step, ctx.round, ctx.attempt, job.fence)

    def mark(ctx: Context, words: str) -> None:
        assert ledger is not None
        ledger.write(Mark(ledger.worker, ctx.execution_id, words))

    def wait(ctx: Context) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not gate(folder, ctx.execution_id, ctx.attempt).exists():
            assert time.monotonic() < deadline, "nobody opened the gate"
            time.sleep(0.01)
        mark(ctx, f"attempt {ctx.attempt} goes on")

    def effect(ctx: Context) -> tuple[int, int, str, str]:
        return (ctx._job.queue_id, ctx.execution_id, ctx.step, ctx._job.fence)

    def plain(ctx: Context) -> int:
        begin(ctx)
        wait(ctx)
        return ctx.attempt

    def effect_after(ctx: Context) -> int:
        begin(ctx)
        wait(ctx)
        with ctx.transaction() as tx:
            tx.execute(INSERT, *effect(ctx))
        return ctx.attempt

    def inside(ctx: Context) -> int:
        begin(ctx)
        with ctx.transaction() as tx:
            tx.execute(INSERT, *effect(ctx))
            mark(ctx, f"attempt {ctx.attempt} is inside")
            wait(ctx)
        return ctx.attempt

    async def blocking(ctx: Context) -> int:
        begin(ctx)
        wait(ctx)
        return ctx.attempt

    def killer(ctx: Context) -> None:
        begin(ctx)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)  # the signal is on its way

    async def innocent(ctx: Context) -> None:
        begin(ctx)

    step = hf.step(retry=Retry(max_attempts=20, initial_delay=0.05, jitter=False))
    for name, function in (
        ("plain", plain),
        ("effect", effect_after),
        ("inside", inside),
        ("blocking", blocking),
        ("killer", killer),
        ("innocent", innocent),
    ):
        hf.pipeline(name, [step(function)])
    return hf


def started(folder: Path, worker: str, execution: int) -> Start | None:
    """The first attempt at this execution that this worker has begun."""
    lines = read_worker(folder, worker)
    return next((line for line in lines if isinstance(line, Start) and line.execution == execution), None)


def marked(folder: Path, worker: str, execution: int, words: str) -> bool:
    return Mark(worker, execution, words) in read_worker(folder, worker)


def in_window(folder: Path, worker: str) -> bool:
    """Whether it has come by its window, and waits there."""
    return any(isinstance(line, Death) for line in read_worker(folder, worker))


async def lease_until(url: str, execution: int) -> float:
    """The end of the lease of its only job; 0 where it is not leased."""
    sql = f"SELECT coalesce(lease_until, 0) FROM {{schema}}jobs WHERE execution_id = {execution}"
    return float((await select(url, sql))[0][0])


def main(
    url: str, folder: str, name: str, parent: str, lease_seconds: str, window: str | None = None
) -> None:
    die_with(int(parent))
    ledger = Ledger(Path(folder), name)
    watch_engine(Order(ledger, window, waits_for=window_gate(Path(folder))))
    app(url, Path(folder), ledger).run_worker(
        worker_id=name, lease_seconds=float(lease_seconds), poll_seconds=POLL_SECONDS
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
