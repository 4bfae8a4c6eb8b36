"""What is measured. Every handler does nothing, so what is left is the engine and its database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Work = Literal["noop", "retry", "steps", "latency"]


@dataclass(frozen=True, slots=True)
class Measure:
    """`size` is how many jobs one turn has, unless a contender has a size of its own."""

    name: str
    title: str
    about: str
    unit: str
    size: int
    more_is_better: bool = True

    def better(self, one: float, other: float) -> bool:
        return one > other if self.more_is_better else one < other


DRAIN = Measure(
    "drain",
    "Drain",
    "no-op jobs that are already enqueued, one worker process: from the start of the first handler until the"
    " contender's own tables say that nothing is left",
    "jobs/s",
    60_000,
)
DRAIN_TWO = Measure("drain-two", "Drain, two processes", "the same by two worker processes", "jobs/s", 60_000)
BULK = Measure(
    "bulk", "Bulk enqueue", "what fills the queue for the drain: 1,000 jobs in each call", "jobs/s", 60_000
)
ENQUEUE = Measure(
    "enqueue", "Enqueue one by one", "one caller, each job durable before the next", "jobs/s", 1_000
)
CALLERS = Measure(
    "callers",
    "Enqueue, 100 callers",
    "100 concurrent callers in one process, each job durable before its caller sends the next",
    "jobs/s",
    10_000,
)
LATENCY = Measure(
    "latency",
    "Pick-up",
    "an idle worker, one job each 50 ms from another process: from the enqueue call to the handler's start",
    "ms (median)",
    60,
    more_is_better=False,
)
EMBEDDED = Measure(
    "embedded",
    "Pick-up, embedded",
    "the same with the worker in the process that enqueues",
    "ms (median)",
    60,
    more_is_better=False,
)
RETRY = Measure(
    "retry",
    "Retry",
    "jobs that fail twice and then succeed, without a delay where the contender can: until nothing is left",
    "seconds",
    2_000,
    more_is_better=False,
)
STEPS = Measure(
    "steps",
    "Three steps",
    "durable workflows of three steps, enqueued before the worker starts: until nothing is left",
    "workflows/s",
    2_000,
)

MEASURES = {
    measure.name: measure
    for measure in (DRAIN, DRAIN_TWO, BULK, ENQUEUE, CALLERS, LATENCY, EMBEDDED, RETRY, STEPS)
}
CALLERS_COUNT = 100
BULK_CALL = 1_000
PACE_SECONDS = 0.05
FAILURES = 2
QUICK_DIVISOR = 3


def least(measure: Measure) -> int:
    """A size below which the figure says nothing, also for a quick run."""
    return min(measure.size, {LATENCY.name: 30, EMBEDDED.name: 30}.get(measure.name, 200))
