"""What is measured: four kinds of work, and the programs that do them through the public API.

Each scenario is a pipeline whose handlers do nothing, so that what is left is the engine and its
database. All but the latency have a raw counterpart, see raw.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.app import Holdfast
from holdfast.core.errors import TransientError
from holdfast.core.retry import RetryPolicy
from holdfast.worker.context import Context

PIPELINE = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`failures` of each job's attempts fail before one succeeds. `size` is the number of executions."""

    name: str
    about: str
    steps: tuple[str, ...]
    size: int
    size_quick: int
    failures: int = 0
    has_raw: bool = True

    @property
    def leases_per_execution(self) -> int:
        return len(self.steps) + self.failures

    def step_after(self, step: str) -> str | None:
        following = self.steps.index(step) + 1
        return self.steps[following] if following < len(self.steps) else None


DRAIN = Scenario(
    name="drain",
    about="jobs of one step, submitted before the worker starts",
    steps=("work",),
    size=50_000,
    size_quick=10_000,
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
    has_raw=False,
)
RETRY = Scenario(
    name="retry",
    about="jobs that fail twice with a transient error and then succeed, without a delay",
    steps=("work",),
    size=2_000,
    size_quick=1_000,
    failures=2,
)

SCENARIOS = {scenario.name: scenario for scenario in (DRAIN, PIPELINE_OF_THREE, LATENCY, RETRY)}


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
