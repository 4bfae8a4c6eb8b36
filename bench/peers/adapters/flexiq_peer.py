"""FlexiQ on PostgreSQL or SQLite. It sets synchronous=NORMAL on SQLite itself.

Settings: `handlers` ("plain" or "async"), `threads`, `at_once` (async handlers), `claim` (jobs per claim),
`poll_ms`.
"""

from __future__ import annotations

from typing import Any

from flexiq import Queue, current_job

from bench.peers.adapters.adapting import Job, by_one_plain_caller, chunks, main, paced_plainly, timed
from bench.peers.measures import BULK_CALL

ATTEMPTS_AGAIN = 5
POOL_CONNECTIONS = 10


class Adapter:
    def __init__(self, job: Job) -> None:
        self._job = job
        options: dict[str, Any] = {
            "workers": job.setting("threads", 2),
            "async_concurrency": job.setting("at_once", 100),
            "scheduler_poll_interval_ms": job.setting("poll_ms", 50),
        }
        if claim := job.setting("claim", None):
            options["scheduler_batch_size"] = claim
        if job.url.startswith("sqlite:///"):
            options["db_path"] = job.url.removeprefix("sqlite:///")
        else:
            options |= {"backend": "postgres", "db_url": job.url, "pool_size": POOL_CONNECTIONS}
        self._queue = Queue(**options)
        define = self._define_async if job.setting("handlers", "plain") == "async" else self._define_plain
        self._tasks = define()

    def _define_plain(self) -> dict[str, Any]:
        queue, tally = self._queue, self._job.tally

        @queue.task(name="noop")
        def noop(number: int, sent: float) -> None:
            tally.ended()

        @queue.task(name="latency")
        def latency(number: int, sent: float) -> None:
            tally.arrived(sent)

        @queue.task(name="retry", max_retries=ATTEMPTS_AGAIN, retry_delays=[0.0])
        def retry(number: int, sent: float) -> None:
            tally.fail_twice(number, current_job.retry_count)

        @queue.task(name="steps")
        def steps(number: int, sent: float) -> None:
            tally.began()
            for name in ("first", "second", "third"):
                number = current_job.step.run(name, lambda number=number: number + 1)
            tally.ended()

        return {"noop": noop, "latency": latency, "retry": retry, "steps": steps}

    def _define_async(self) -> dict[str, Any]:
        queue, tally = self._queue, self._job.tally

        @queue.task(name="noop")
        async def noop(number: int, sent: float) -> None:
            tally.ended()

        @queue.task(name="latency")
        async def latency(number: int, sent: float) -> None:
            tally.arrived(sent)

        @queue.task(name="retry", max_retries=ATTEMPTS_AGAIN, retry_delays=[0.0])
        async def retry(number: int, sent: float) -> None:
            tally.fail_twice(number, current_job.retry_count)

        @queue.task(name="steps")
        async def steps(number: int, sent: float) -> None:
            tally.began()
            for name in ("first", "second", "third"):
                number = await current_job.step.arun(name, lambda number=number: number + 1)
            tally.ended()

        return {"noop": noop, "latency": latency, "retry": retry, "steps": steps}

    def prepare(self) -> None:
        """The queue made its tables when it was made itself."""

    def fill(self, work: str, count: int) -> float:
        again = ATTEMPTS_AGAIN if work == "retry" else None
        with timed() as watch:
            for numbers in chunks(count, BULK_CALL):
                jobs = [(number, 0.0) for number in numbers]
                self._queue.enqueue_many(work, jobs, max_retries=again)
        return watch.seconds

    def enqueue(self, count: int) -> float:
        return by_one_plain_caller(count, lambda number: self._tasks["noop"].delay(number, 0.0))

    def pace(self, count: int) -> None:
        paced_plainly(count, self._tasks["latency"].delay)

    def work(self, _: str) -> None:
        self._queue.run_worker()


if __name__ == "__main__":
    main(Adapter)
