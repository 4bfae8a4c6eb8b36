"""A worker behind a server, for the storm over HTTP: the stages of the storm, without transactions.

http_worker.py URL FOLDER NAME PARENT SERVER LEASE_SECONDS
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from pathlib import Path

from faults.ledger import Ledger
from faults.processes import die_with
from faults.storm_worker import STURDY
from holdfast import Context, Holdfast, Retry, TransientError

CONCURRENCY = 4
ERROR_SHARE = 0.1
RETRY = Retry(max_attempts=300, initial_delay=0.02, max_delay=0.2)


def app(url: str, ledger: Ledger | None = None) -> Holdfast:
    """Without a ledger it only submits and looks."""
    hf = Holdfast(url)

    def begin(ctx: Context) -> random.Random:
        assert ledger is not None
        job = ctx.job
        ledger.start(job.queue_id, ctx.execution_id, ctx.step, ctx.round, ctx.attempt, job.fence)
        return random.Random(f"{job.queue_id} {job.fence}")

    def fail_sometimes(draw: random.Random) -> None:
        if draw.random() < ERROR_SHARE:
            raise TransientError("the storm has hit this attempt")

    async def parse(ctx: Context) -> int:
        fail_sometimes(begin(ctx))
        return int(ctx.workload["number"])

    async def embed(ctx: Context) -> int:
        draw = begin(ctx)
        await asyncio.sleep(draw.uniform(0, 0.05))
        fail_sometimes(draw)
        return int(ctx.outputs["parse"]) + 1

    def deliver(ctx: Context) -> int:
        draw = begin(ctx)
        time.sleep(draw.uniform(0, 0.05))
        fail_sometimes(draw)
        return int(ctx.outputs["embed"]) + 1

    step = hf.step(retry=RETRY, max_crashes=200)
    hf.pipeline(STURDY, [step(parse), step(embed), step(deliver)])
    return hf


def main(_url: str, folder: str, name: str, parent: str, server: str, lease_seconds: str) -> None:
    die_with(int(parent))
    logging.basicConfig(level="WARNING")
    hf = app(server, Ledger(Path(folder), name))
    hf.run_worker(worker_id=name, concurrency=CONCURRENCY, lease_seconds=float(lease_seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
