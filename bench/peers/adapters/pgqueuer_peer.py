"""PgQueuer on PostgreSQL with asyncpg. Settings: `batch` (jobs per claim), `uvloop`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.errors import RetryRequested

from bench.peers.adapters.adapting import Job, by_many_callers, by_one_caller, chunks, main, paced, timed
from bench.peers.adapters.tally import Wanted
from bench.peers.measures import BULK_CALL


def payload(number: int, sent: float = 0.0) -> bytes:
    return json.dumps({"number": number, "sent": sent}).encode()


class Adapter:
    def __init__(self, job: Job) -> None:
        self._job = job

    @asynccontextmanager
    async def _queries(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self._job.url)
        try:
            yield Queries(AsyncpgDriver(connection))
        finally:
            await connection.close()

    async def prepare(self) -> None:
        async with self._queries() as queries:
            await queries.install()

    async def fill(self, work: str, count: int) -> float:
        async with self._queries() as queries:
            with timed() as watch:
                for numbers in chunks(count, BULK_CALL):
                    size = len(numbers)
                    await queries.enqueue([work] * size, [payload(number) for number in numbers], [0] * size)
            return watch.seconds

    async def enqueue(self, count: int) -> float:
        async with self._queries() as queries:
            return await by_one_caller(count, lambda number: queries.enqueue("noop", payload(number)))

    async def callers(self, count: int) -> float:
        async with asyncpg.create_pool(self._job.url, min_size=10, max_size=10) as pool:
            queries = Queries(AsyncpgPoolDriver(pool))
            return await by_many_callers(count, lambda number: queries.enqueue("noop", payload(number)))

    async def pace(self, count: int) -> None:
        async with self._queries() as queries:
            await paced(count, lambda number, sent: queries.enqueue("latency", payload(number, sent)))

    async def work(self, _: str) -> None:
        tally = self._job.tally
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(self._job.url)))

        @queuer.entrypoint("noop")
        async def noop(job: Any) -> None:
            tally.ended()

        @queuer.entrypoint("latency")
        async def latency(job: Any) -> None:
            tally.arrived(json.loads(job.payload)["sent"])

        @queuer.entrypoint("retry")
        async def retry(job: Any) -> None:
            try:
                tally.fail_twice(json.loads(job.payload)["number"], job.attempts)
            except Wanted as error:
                raise RetryRequested(delay=timedelta(0)) from error

        await queuer.run(batch_size=self._job.setting("batch", 10))
        await asyncio.Event().wait()


if __name__ == "__main__":
    main(Adapter)
