"""What is measured: fifteen kinds of work, and the programs that do them through the public API.

Each scenario is a pipeline whose handlers do nothing, so that what is left is the engine and its
database. Those whose figure is a rate have a raw counterpart, see raw.py and submits.py; a second process
stands beside the first (fleet.py), the default settings beside the best. Of a batch, of a claim and of a
drain it is shown that they stay as they are where there is ten times as much (batches.py), a full queue
(claims.py) or a database that has grown (growth.py). A worker behind a server stands beside one at the
database, and a server with a thousand listeners beside one with none (over_http.py). What it costs to watch
is shown where a great many executions are in the database (scrapes.py). Last come the built-in pipelines
whose steps do work of their own: for configuration archives (conf.py), and for documents (documents.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from holdfast.app import Holdfast
from holdfast.core.errors import TransientError
from holdfast.core.retry import RetryPolicy
from holdfast.worker.context import Context

PIPELINE = "bench"


class Kind(Enum):
    """What the figures of a scenario are."""

    SUBMIT = "executions per second, stored but not run, and of the raw loop"
    RATES = "executions per second, and of the raw loop"
    PROCESSES = "executions per second of two worker processes, and of one"
    SETTINGS = "executions per second with the default settings, and with the best"
    LATENCY = "milliseconds"
    BATCH = "the cost of an item, and of one in a batch of a tenth"
    CLAIM = "the cost of a claim, and of one in a full queue"
    HTTP = "executions per second over HTTP, and at the database; milliseconds"
    STREAMS = "executions per second over HTTP with a thousand listeners, and with none"
    SCRAPE = "milliseconds of an answer with a great many rows in the database"
    CONF = "MB and stanzas per second, of the raw loop and of a peer; MB of memory"
    DOCUMENTS = "pages and MB per second, beside bare libraries; documents per second; milliseconds"
    GROWTH = "executions per second with a great many rows in the way, and without; and of a long drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`failures` of each job's attempts fail before one succeeds. `size` is the number of executions."""

    name: str
    about: str
    steps: tuple[str, ...]
    size: int
    size_quick: int
    failures: int = 0
    kind: Kind = Kind.RATES

    @property
    def has_raw(self) -> bool:
        return self.kind is Kind.RATES

    @property
    def leases_per_execution(self) -> int:
        return len(self.steps) + self.failures

    def step_after(self, step: str) -> str | None:
        following = self.steps.index(step) + 1
        return self.steps[following] if following < len(self.steps) else None


SUBMIT = Scenario(
    name="submit",
    about="executions of one step stored: one by one from 100 concurrent callers, and 1,000 in a call",
    steps=("work",),
    size=30_000,
    size_quick=10_000,
    kind=Kind.SUBMIT,
)
DRAIN = Scenario(
    name="drain",
    about="jobs of one step, submitted before the worker starts",
    steps=("work",),
    size=50_000,
    size_quick=10_000,
)
PROCESSES = Scenario(
    name="processes",
    about="the drain by two worker processes beside the same by one",
    steps=("work",),
    size=50_000,
    size_quick=10_000,
    kind=Kind.PROCESSES,
)
SETTINGS = Scenario(
    name="settings",
    about="the drain with the default settings beside the best of concurrency 1, 16, 64 and 256",
    steps=("work",),
    size=20_000,
    size_quick=5_000,
    kind=Kind.SETTINGS,
)
PIPELINE_OF_THREE = Scenario(
    name="pipeline",
    about="executions of three steps, submitted before the worker starts",
    steps=("fetch", "work", "store"),
    size=10_000,
    size_quick=2_000,
)
LATENCY = Scenario(
    name="latency",
    about="from the submit call to the start of the handler, the worker being idle",
    steps=("work",),
    size=200,
    size_quick=60,
    kind=Kind.LATENCY,
)
RETRY = Scenario(
    name="retry",
    about="jobs that fail twice with a transient error and then succeed, without a delay",
    steps=("work",),
    size=2_000,
    size_quick=1_000,
    failures=2,
)

BATCH = Scenario(
    name="batch",
    about="by the item of a batch with a barrier, and how many times (x) what it takes in one of a tenth",
    steps=("request", "download"),
    size=100_000,
    size_quick=10_000,
    kind=Kind.BATCH,
)
CLAIM = Scenario(
    name="claim",
    about="a claim of 10 jobs, an empty one, and how many times (x) that with jobs ahead, not due or ready",
    steps=("work",),
    size=300_000,
    size_quick=50_000,
    kind=Kind.CLAIM,
)
GROWTH = Scenario(
    name="growth",
    about="a drain with so many executions queued behind it, or finished and kept, beside an empty database;"
    " and a drain of half as many by tenths, with the memory of its worker process",
    steps=("work",),
    size=1_000_000,
    size_quick=100_000,
    kind=Kind.GROWTH,
)

HTTP = Scenario(
    name="http",
    about="the drain by a worker process over HTTP beside the same at the database; from the submit call to"
    " the start of the handler, both through the server",
    steps=("work",),
    size=50_000,
    size_quick=10_000,
    kind=Kind.HTTP,
)
STREAMS = Scenario(
    name="streams",
    about="the drain over HTTP while 1,000 clients listen to the events, 10 of them to all, beside the same"
    " while nobody does; the memory of the server",
    steps=("work",),
    size=30_000,
    size_quick=10_000,
    kind=Kind.STREAMS,
)

SCRAPE = Scenario(
    name="scrape",
    about="/metrics and /api/metrics of a server whose database has so many executions finished, and /metrics"
    " with as many queued; the first answer, and the middle and the slowest one of those that follow",
    steps=("work",),
    size=1_000_000,
    size_quick=100_000,
    kind=Kind.SCRAPE,
)

CONF = Scenario(
    name="conf",
    about="so many stanzas of .conf text parsed, beside Splunk's parser library; parsed and stored with the"
    " index for the search, beside bare inserts without it; a .tar.gz with ten times as many, by the real"
    " step, and how many times (x) the memory of one with as many it takes",
    steps=("parse",),
    size=40_000,
    size_quick=10_000,
    kind=Kind.CONF,
)
DOCUMENTS = Scenario(
    name="documents",
    about="files of up to so many pages read in one reading process, beside the bare library of each format"
    " in one process, and on all cores, beside one; documents of 10 pages through all steps, and their chunks"
    " embedded by the bare library of the local model; searches among so many chunks",
    steps=("parsing", "embedding", "analyzing"),
    size=200,
    size_quick=40,
    kind=Kind.DOCUMENTS,
)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        SUBMIT,
        DRAIN,
        PROCESSES,
        SETTINGS,
        PIPELINE_OF_THREE,
        LATENCY,
        RETRY,
        BATCH,
        CLAIM,
        HTTP,
        STREAMS,
        SCRAPE,
        GROWTH,
        CONF,
        DOCUMENTS,
    )
}


OnCall = Callable[[Context], None]


def application(url: str, scenario: Scenario, on_call: OnCall) -> Holdfast:
    """The program of a scenario; `on_call` is told of each call of a handler, as it starts."""
    app = Holdfast(url)
    failures = scenario.failures

    async def work(context: Context) -> None:
        on_call(context)
        if context.attempt <= failures:
            raise TransientError("The service did not answer in time.")

    retry = RetryPolicy(delays=[0] * failures) if failures else None
    app.pipeline(PIPELINE, [app.step(name=step, retry=retry)(work) for step in scenario.steps])
    return app
