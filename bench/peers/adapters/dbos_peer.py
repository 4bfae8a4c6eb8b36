"""DBOS on PostgreSQL or SQLite: workflows on a queue, steps inside them.

Settings: `handlers` ("plain" functions in threads, or "async" ones). The queue is polled each 10 ms instead
of each second. There is no bulk call, so a queue is filled by several threads.
"""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dbos import DBOS, DBOSClient

from bench.peers.adapters.adapting import Job, by_one_plain_caller, main, paced_plainly, timed

QUEUE = "bench"
VERSION = "1"
POLL_SECONDS = 0.01
POOL_CONNECTIONS = 20
FILLING_THREADS = 4
STEP_RETRY = {"retries_allowed": True, "max_attempts": 5, "interval_seconds": 0.0, "backoff_rate": 1.0}


class Adapter:
    def __init__(self, job: Job) -> None:
        self._job = job

    def _launch(self) -> None:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self._job.url,
                "log_level": "ERROR",
                "application_version": VERSION,
                "executor_id": "worker",
                "sys_db_pool_size": POOL_CONNECTIONS,
            }
        )
        if self._job.setting("handlers", "plain") == "async":
            self._define_async()
        else:
            self._define_plain()
        DBOS.launch()

    def _define_plain(self) -> None:
        tally = self._job.tally

        @DBOS.step(name="add")
        def add(number: int) -> int:
            return number + 1

        @DBOS.step(name="flaky", **STEP_RETRY)
        def flaky(number: int) -> None:
            tally.fail_twice(number)

        @DBOS.workflow(name="noop")
        def noop(number: int, sent: float) -> None:
            tally.ended()

        @DBOS.workflow(name="latency")
        def latency(number: int, sent: float) -> None:
            tally.arrived(sent)

        @DBOS.workflow(name="retry")
        def retry(number: int, sent: float) -> None:
            flaky(number)

        @DBOS.workflow(name="steps")
        def steps(number: int, sent: float) -> int:
            tally.began()
            result: int = add(add(add(number)))
            tally.ended()
            return result

    def _define_async(self) -> None:
        tally = self._job.tally

        @DBOS.step(name="add")
        async def add(number: int) -> int:
            return number + 1

        @DBOS.step(name="flaky", **STEP_RETRY)
        async def flaky(number: int) -> None:
            tally.fail_twice(number)

        @DBOS.workflow(name="noop")
        async def noop(number: int, sent: float) -> None:
            tally.ended()

        @DBOS.workflow(name="latency")
        async def latency(number: int, sent: float) -> None:
            tally.arrived(sent)

        @DBOS.workflow(name="retry")
        async def retry(number: int, sent: float) -> None:
            await flaky(number)

        @DBOS.workflow(name="steps")
        async def steps(number: int, sent: float) -> int:
            tally.began()
            result: int = await add(await add(await add(number)))
            tally.ended()
            return result

    def prepare(self) -> None:
        self._launch()
        DBOS.register_queue(QUEUE, polling_interval_sec=POLL_SECONDS)
        DBOS.destroy()

    def _client(self) -> Any:
        return DBOSClient(system_database_url=self._job.url)

    def _send(self, client: Any, work: str, number: int, sent: float = 0.0) -> None:
        options = {"workflow_name": work, "queue_name": QUEUE, "app_version": VERSION}
        client.enqueue(options, number, sent)

    def fill(self, work: str, count: int) -> float:
        client = self._client()
        with timed() as watch, ThreadPoolExecutor(FILLING_THREADS) as threads:
            for _ in threads.map(lambda number: self._send(client, work, number), range(count)):
                pass
        return watch.seconds

    def enqueue(self, count: int) -> float:
        client = self._client()
        return by_one_plain_caller(count, lambda number: self._send(client, "noop", number))

    def pace(self, count: int) -> None:
        client = self._client()
        paced_plainly(count, lambda number, sent: self._send(client, "latency", number, sent))

    def work(self, _: str) -> None:
        ended = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        self._launch()
        ended.wait()


if __name__ == "__main__":
    main(Adapter)
