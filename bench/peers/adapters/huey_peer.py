"""huey on SQLite. A task is deleted when a worker takes it: one that dies loses what it held.

Settings: `fsync` (none: huey's default, which leaves SQLite at synchronous=FULL; false: OFF), `threads`,
`poll_seconds` (none: huey's default).
"""

from __future__ import annotations

from typing import Any

from huey import SqliteHuey

from bench.peers.adapters.adapting import Job, by_one_plain_caller, main, paced_plainly, timed


class Adapter:
    def __init__(self, job: Job) -> None:
        self._job, tally = job, job.tally
        options: dict[str, Any] = {"filename": job.url.removeprefix("sqlite:///"), "results": False}
        if (fsync := job.setting("fsync", None)) is not None:
            options["fsync"] = fsync
        self._huey = huey = SqliteHuey("bench", **options)

        @huey.task(name="noop")
        def noop(number: int, sent: float) -> None:
            tally.ended()

        @huey.task(name="latency")
        def latency(number: int, sent: float) -> None:
            tally.arrived(sent)

        @huey.task(name="retry", retries=5, retry_delay=0)
        def retry(number: int, sent: float) -> None:
            tally.fail_twice(number)

        self._tasks = {"noop": noop, "latency": latency, "retry": retry}

    def prepare(self) -> None:
        """The queue made its tables when it was made itself."""

    def fill(self, work: str, count: int) -> float:
        with timed() as watch:
            for number in range(count):
                self._tasks[work](number, 0.0)
        return watch.seconds

    def enqueue(self, count: int) -> float:
        return by_one_plain_caller(count, lambda number: self._tasks["noop"](number, 0.0))

    def pace(self, count: int) -> None:
        paced_plainly(count, self._tasks["latency"])

    def work(self, _: str) -> None:
        poll = self._job.setting("poll_seconds", None)
        delays = {"initial_delay": poll, "max_delay": poll, "backoff": 1.0} if poll else {}
        options = {"workers": self._job.setting("threads", 1), "periodic": False, **delays}
        self._huey.create_consumer(worker_type="thread", **options).run()


if __name__ == "__main__":
    main(Adapter)
