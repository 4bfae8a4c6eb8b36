"""Procrastinate on PostgreSQL with psycopg. Settings: `concurrency`, `delete_jobs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import procrastinate

from bench.peers.adapters.adapting import Job, by_many_callers, by_one_caller, chunks, main, paced, timed
from bench.peers.measures import BULK_CALL

POOL_CONNECTIONS = 20


class Adapter:
    def __init__(self, job: Job) -> None:
        self._job, tally = job, job.tally
        connector = procrastinate.PsycopgConnector(
            conninfo=job.url, min_size=POOL_CONNECTIONS, max_size=POOL_CONNECTIONS
        )
        self._app = app = procrastinate.App(connector=connector)

        @app.task(name="noop")
        async def noop(number: int, sent: float) -> None:
            tally.ended()

        @app.task(name="latency")
        async def latency(number: int, sent: float) -> None:
            tally.arrived(sent)

        @app.task(name="retry", retry=procrastinate.RetryStrategy(max_attempts=5, wait=0), pass_context=True)
        async def retry(context: Any, number: int, sent: float) -> None:
            tally.fail_twice(number, context.job.attempts)

        self._tasks = {"noop": noop, "latency": latency, "retry": retry}

    async def prepare(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def fill(self, work: str, count: int) -> float:
        async with self._app.open_async():
            with timed() as watch:
                for numbers in chunks(count, BULK_CALL):
                    jobs = [{"number": number, "sent": 0.0} for number in numbers]
                    await self._tasks[work].batch_defer_async(*jobs)
            return watch.seconds

    def _sender(self, work: str) -> Callable[..., Any]:
        task = self._tasks[work]
        return lambda number, sent=0.0: task.defer_async(number=number, sent=sent)

    async def enqueue(self, count: int) -> float:
        async with self._app.open_async():
            return await by_one_caller(count, self._sender("noop"))

    async def callers(self, count: int) -> float:
        async with self._app.open_async():
            return await by_many_callers(count, self._sender("noop"))

    async def pace(self, count: int) -> None:
        async with self._app.open_async():
            await paced(count, self._sender("latency"))

    async def work(self, _: str) -> None:
        options = {"concurrency": self._job.setting("concurrency", 10)}
        if delete_jobs := self._job.setting("delete_jobs", None):
            options["delete_jobs"] = delete_jobs
        async with self._app.open_async():
            await self._app.run_worker_async(fetch_job_polling_interval=1.0, **options)


if __name__ == "__main__":
    main(Adapter)
