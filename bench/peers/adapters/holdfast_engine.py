"""Holdfast itself, on PostgreSQL and SQLite, through its public API.

Settings: `concurrency` of the worker (none: its default), `uvloop`.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from bench.peers.adapters.adapting import Job, by_many_callers, by_one_caller, chunks, main, paced, timed
from bench.peers.adapters.tally import Wanted
from bench.peers.measures import BULK_CALL, FAILURES
from holdfast import Context, Holdfast, TransientError

SETTLE_SECONDS = 1.0


class Adapter:
    def __init__(self, job: Job) -> None:
        self._tally = tally = job.tally
        self._app = app = Holdfast(job.url)
        concurrency = job.setting("concurrency", None)
        self._options: dict[str, Any] = {"concurrency": concurrency} if concurrency else {}

        async def noop(_: Context) -> None:
            tally.ended()

        async def latency(context: Context) -> None:
            tally.arrived(context.workload["sent"])

        async def retry(context: Context) -> None:
            try:
                tally.fail_twice(context.workload["number"], context.attempt - 1)
            except Wanted as error:
                raise TransientError(str(error)) from error

        async def first(_: Context) -> int:
            tally.began()
            return 1

        async def second(_: Context) -> int:
            return 2

        async def third(_: Context) -> int:
            tally.ended()
            return 3

        app.pipeline("noop", [app.step(name="noop")(noop)])
        app.pipeline("latency", [app.step(name="latency")(latency)])
        app.pipeline("retry", [app.step(name="retry", retry={"delays": [0] * FAILURES})(retry)])
        app.pipeline("steps", [app.step(name=step.__name__)(step) for step in (first, second, third)])

    async def prepare(self) -> None:
        async with self._app:
            await self._app.engine()

    async def fill(self, work: str, count: int) -> float:
        async with self._app:
            await self._app.engine()
            with timed() as watch:
                for numbers in chunks(count, BULK_CALL):
                    await self._app.submit_many(work, [{"number": number, "sent": 0.0} for number in numbers])
            return watch.seconds

    async def enqueue(self, count: int) -> float:
        async with self._app:
            return await by_one_caller(count, self._send)

    async def callers(self, count: int) -> float:
        async with self._app:
            return await by_many_callers(count, self._send)

    async def _send(self, number: int, sent: float = 0.0, work: str = "noop") -> None:
        await self._app.submit(work, {"number": number, "sent": sent})

    async def _send_timed(self, number: int, sent: float) -> None:
        await self._send(number, sent, "latency")

    async def pace(self, count: int) -> None:
        async with self._app:
            await paced(count, self._send_timed)

    async def embedded(self, count: int) -> None:
        async with self._app, self._app.working(**self._options):
            await paced(count, self._send_timed)
            await asyncio.sleep(SETTLE_SECONDS)

    async def work(self, _: str) -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        async with self._app, self._app.working(**self._options):
            await ended.wait()


if __name__ == "__main__":
    main(Adapter)
