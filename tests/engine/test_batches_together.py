"""Several processes on one batch: nothing waits in a circle, nothing is counted twice, a gate opens once."""

import asyncio
import random
from collections import Counter

from engine_scenario import completed, failed, stage
from holdfast.core.model import EventType
from holdfast.engine import Engine, RetryRequest, Submission
from holdfast.playbook.definition import Barrier, Definition
from holdfast.store import store_from_url
from running import run

ITEMS = 60


def test_engines_that_add_report_cancel_and_open_at_once_agree(store_url: str) -> None:
    definition = Definition(
        path="p",
        steps=(
            stage("request", 2, initial_delay=0.0),
            stage("download", 3, barrier=Barrier(after="request"), wave=True, initial_delay=0.0),
        ),
    )
    handlers = [step.handler for step in definition.steps]

    async def work(engine: Engine, batch_id: int, seed: int, adding: asyncio.Event) -> None:
        chance = random.Random(seed)
        for _ in range(10_000):
            jobs = (await engine.lease(f"w{seed}", handlers, 5, bulk=None)).jobs
            reports = [
                completed(job) if chance.random() < 0.8 else failed(job, "connection refused") for job in jobs
            ]
            chance.shuffle(reports)
            await engine.report(reports)
            await engine.batches.attend_all()
            if not jobs and adding.is_set() and await engine.batches.is_over(batch_id):
                return

    async def add(engine: Engine, batch_id: int, start: int) -> list[int]:
        ids = []
        for n in range(start, start + ITEMS // 2, 5):
            items = [Submission(path="p", workload=n + i, idempotency_key=str(n + i)) for i in range(5)]
            ids += [item.id for item in await engine.batches.add(batch_id, items)]
            again = await engine.batches.add(batch_id, items)
            assert not any(item.created for item in again)
        return ids

    async def main() -> None:
        stores = [store_from_url(store_url) for _ in range(3)]
        for store in stores:
            await store.open()
        try:
            engines = [Engine(store) for store in stores]
            for engine in engines:
                await engine.register(definition)
            batch_id, _ = await engines[0].batches.create("p")
            closed = asyncio.Event()

            async def fill() -> list[int]:
                halves = await asyncio.gather(
                    add(engines[0], batch_id, 0), add(engines[1], batch_id, ITEMS // 2)
                )
                ids = [id_ for half in halves for id_ in half]
                await engines[2].cancel(ids[0])
                await engines[0].batches.close(batch_id)
                closed.set()
                return ids

            ids, *_ = await asyncio.gather(
                fill(), *(work(engine, batch_id, seed, closed) for seed, engine in enumerate(engines))
            )
            view = await engines[0].batches.view(batch_id)
            assert (view.items, len(set(ids)), view.status) == (ITEMS, ITEMS, "finished")
            assert view.executions["running"] == 0
            opened = view.barrier.opened_at if view.barrier else None
            assert opened is not None
            for id_ in ids:
                events = await engines[0].events(id_)
                told = Counter(event.type for event in events)
                assert told[EventType.BARRIER_OPENED] <= 1
                downloads = [
                    e.at for e in events if e.type is EventType.ACTION_STARTED and e.step == "download"
                ]
                assert all(at >= opened for at in downloads)
            # What has failed is started again by hand, and ends too.
            broken = [item.execution_id for item in view.permanently_failed_jobs]
            for id_ in broken:
                await engines[1].retry(id_, RetryRequest(force=True))
            await asyncio.gather(
                *(work(engine, batch_id, 10 + seed, closed) for seed, engine in enumerate(engines))
            )
            assert (await engines[2].batches.view(batch_id)).status == "finished"
        finally:
            for store in stores:
                await store.close()

    run(main())
