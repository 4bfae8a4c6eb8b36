"""Celery with a broker that speaks the Redis protocol.

Messages are acknowledged after the task, so that a killed worker loses none; the broker itself keeps them in
memory. A chain of tasks is not durable in the way of the other workflows: its rest travels in a message.

Settings: `pool` (prefork, threads, solo), `processes` (or threads), `prefetch`.
"""

from __future__ import annotations

from typing import Any

from celery import Celery, chain

from bench.peers.adapters.adapting import Job, by_one_plain_caller, main, paced_plainly, timed
from bench.peers.adapters.tally import Wanted


class Adapter:
    def __init__(self, job: Job) -> None:
        self._job, tally = job, job.tally
        self._app = app = Celery("bench", broker=job.url)
        app.conf.update(
            task_acks_late=True,
            task_ignore_result=True,
            worker_prefetch_multiplier=job.setting("prefetch", 4),
            worker_disable_rate_limits=True,
            worker_hijack_root_logger=False,
            broker_connection_retry_on_startup=True,
        )

        @app.task(name="noop")
        def noop(number: int, sent: float) -> None:
            tally.ended()

        @app.task(name="latency")
        def latency(number: int, sent: float) -> None:
            tally.arrived(sent)

        @app.task(name="retry", bind=True, max_retries=5)
        def retry(task: Any, number: int, sent: float) -> None:
            try:
                tally.fail_twice(number, task.request.retries)
            except Wanted as error:
                raise task.retry(exc=error, countdown=0) from error

        @app.task(name="step")
        def step(number: int, last: bool = False) -> int:
            if last:
                tally.ended()
            else:
                tally.began()
            return number + 1

        self._tasks = {"noop": noop, "latency": latency, "retry": retry, "step": step}

    def prepare(self) -> None:
        """A broker has no tables to make."""

    def _send(self, work: str, number: int, sent: float = 0.0) -> None:
        if work == "steps":
            step = self._tasks["step"]
            chain(step.s(number), step.s(), step.s(last=True)).apply_async()
        else:
            self._tasks[work].delay(number, sent)

    def fill(self, work: str, count: int) -> float:
        with timed() as watch:
            for number in range(count):
                self._send(work, number)
        return watch.seconds

    def enqueue(self, count: int) -> float:
        return by_one_plain_caller(count, lambda number: self._send("noop", number))

    def pace(self, count: int) -> None:
        paced_plainly(count, lambda number, sent: self._send("latency", number, sent))

    def work(self, _: str) -> None:
        pool, processes = self._job.setting("pool", "prefork"), self._job.setting("processes", 2)
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
        self._app.worker_main(["worker", f"--pool={pool}", f"--concurrency={processes}", *quiet])


if __name__ == "__main__":
    main(Adapter)
