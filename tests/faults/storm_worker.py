"""The program whose workers are killed: three stages, sync and async, from microseconds to 50 ms.

    parse     async, microseconds, reported in batches; every second execution writes an effect
    embed     async, up to 20 ms, and writes an effect
    deliver   sync, up to 50 ms, writes an effect and moves a counter that others move too

A share of the attempts fails, before, inside or after the transaction. Effects go through
`ctx.transaction()`: one row for each completed attempt, with its fence, or none.

Three pipelines run the same stages. `sturdy` has attempts enough for any storm: each of its executions must
complete. `fragile` has three, and may also end as exhausted or poisoned, for the right reason. The items of a
batch of `gathered` meet before they are delivered.

    storm_worker.py URL FOLDER NAME PARENT LEASE_SECONDS [WINDOW COUNT]
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

from faults.dying import (
    AFTER_TRANSACTION,
    IN_HANDLER,
    IN_TRANSACTION,
    Order,
    watch_engine,
)
from faults.ledger import Ledger
from faults.processes import die_with
from faults.tables import COUNTERS
from holdfast import Context, Holdfast, Retry, TransientError

CONCURRENCY = 4
POLL_SECONDS = 0.2
STURDY, FRAGILE, GATHERED = "sturdy", "fragile", "gathered"
ERROR_SHARE = {STURDY: 0.1, FRAGILE: 0.3, GATHERED: 0.1}
RETRIES = {
    STURDY: (Retry(max_attempts=300, initial_delay=0.02, max_delay=0.2), 200),
    FRAGILE: (Retry(max_attempts=3, initial_delay=0.02), 2),
}
RETRIES[GATHERED] = RETRIES[STURDY]
STAGES = ("parse", "embed", "deliver")
INSERT = "INSERT INTO effects (job, execution, step, fence) VALUES ($1, $2, $3, $4)"
COUNT = "UPDATE counters SET n = n + 1 WHERE id = $1"


def has_effect(step: str, number: int) -> bool:
    """Whether this stage of the execution with this number writes an effect."""
    return step != "parse" or number % 2 == 0


def app(url: str, ledger: Ledger | None = None, order: Order | None = None) -> Holdfast:
    """Without a ledger it only submits and looks."""
    hf = Holdfast(url)

    def begin(ctx: Context) -> random.Random:
        assert ledger is not None and order is not None
        job = ctx._job
        ledger.start(job.queue_id, ctx.execution_id, ctx.step, ctx.round, ctx.attempt, job.fence)
        order.at(IN_HANDLER)
        return random.Random(f"{ctx.workload['seed']} {job.queue_id} {job.fence}")

    def fail_sometimes(ctx: Context, draw: random.Random) -> None:
        if draw.random() < ERROR_SHARE[ctx.pipeline] / 3:
            raise TransientError("the storm has hit this attempt")

    def effect(ctx: Context) -> tuple[int, int, str, str]:
        return (ctx._job.queue_id, ctx.execution_id, ctx.step, ctx._job.fence)

    async def parse(ctx: Context) -> int:
        assert order is not None
        draw = begin(ctx)
        number: int = ctx.workload["number"]
        if has_effect("parse", number):
            async with ctx.transaction() as tx:
                await tx.execute(INSERT, *effect(ctx))
                fail_sometimes(ctx, draw)
            order.at(AFTER_TRANSACTION)
        fail_sometimes(ctx, draw)
        return number

    async def embed(ctx: Context) -> int:
        assert order is not None
        draw = begin(ctx)
        await asyncio.sleep(draw.uniform(0, 0.015))
        fail_sometimes(ctx, draw)
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, *effect(ctx))
            order.at(IN_TRANSACTION)
            await asyncio.sleep(draw.uniform(0, 0.005))
            fail_sometimes(ctx, draw)
        fail_sometimes(ctx, draw)
        order.at(AFTER_TRANSACTION)
        return ctx.outputs["parse"] + 1

    def deliver(ctx: Context) -> int:
        assert order is not None
        draw = begin(ctx)
        time.sleep(draw.uniform(0, 0.045))
        fail_sometimes(ctx, draw)
        with ctx.transaction() as tx:
            tx.execute(INSERT, *effect(ctx))
            tx.execute(COUNT, ctx.execution_id % COUNTERS)
            order.at(IN_TRANSACTION)
            time.sleep(draw.uniform(0, 0.005))
            fail_sometimes(ctx, draw)
        fail_sometimes(ctx, draw)
        order.at(AFTER_TRANSACTION)
        return ctx.outputs["embed"] + 1

    for name, (retry, max_crashes) in RETRIES.items():
        step = hf.step(retry=retry, max_crashes=max_crashes)
        barrier = {"after": "embed"} if name == GATHERED else None
        last = hf.step(retry=retry, max_crashes=max_crashes, barrier=barrier)
        hf.pipeline(name, [step(parse), step(embed), last(deliver)])
    return hf


def main(url: str, folder: str, name: str, parent: str, lease_seconds: str, *ordered: str) -> None:
    die_with(int(parent))
    ledger = Ledger(Path(folder), name)
    order = Order(ledger, ordered[0], int(ordered[1])) if ordered else Order(ledger, None)
    watch_engine(order)
    app(url, ledger, order).run_worker(
        worker_id=name,
        concurrency=CONCURRENCY,
        lease_seconds=float(lease_seconds),
        poll_seconds=POLL_SECONDS,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
