"""The pipelines that simulated work goes through, and the errors that simulated handlers raise.

Between them they use every part of a retry policy. What an error must lead to can be told from its
message and its category alone, so that the history of an execution explains itself: see history.py.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeGuard

from holdfast.core.catalogue import Category
from holdfast.core.failures import Failure
from holdfast.core.model import Completed, Failed, Lane, Outcome
from holdfast.core.retry import RetryPolicy
from holdfast.playbook.definition import Barrier, Definition, Step
from simulation.graphs import FLOW_HANDLERS

PAYLOAD_BYTES_MAX = 2_000
STOP_WORD, RETRY_WORD = "halt", "again"

PIPELINES = (
    Definition(path="single", steps=(Step(name="only", handler="single/only", retry=RetryPolicy.once()),)),
    Definition(
        path="relay",
        steps=(
            Step(name="first", handler="relay/first", retry=RetryPolicy(max_attempts=3, jitter=False)),
            Step(
                name="second",
                handler="relay/second",
                retry=RetryPolicy(max_attempts=4, initial_delay=2),
                operation="request",
            ),
            Step(
                name="third", handler="relay/third", retry=RetryPolicy(delays=[5, 30]), operation="download"
            ),
        ),
    ),
    Definition(
        path="fussy",
        steps=(
            Step(
                name="limited",
                handler="fussy/limited",
                retry=RetryPolicy(max_attempts=4, unknown_attempts=2, jitter=False),
            ),
            Step(
                name="judged",
                handler="fussy/judged",
                retry=RetryPolicy(
                    max_attempts=5,
                    stop_when=f"{{{{ '{STOP_WORD}' in error }}}}",
                    retry_when=f"{{{{ '{RETRY_WORD}' in error }}}}",
                ),
            ),
        ),
    ),
    Definition(
        path="deadly",
        steps=(
            Step(
                name="strike",
                handler="deadly/strike",
                retry=RetryPolicy(max_attempts=6, initial_delay=0.5),
                max_crashes=1,
                lane=Lane.MANUAL,
                priority=1,
            ),
            Step(name="rest", handler="deadly/rest", retry=RetryPolicy(max_attempts=2, jitter=False)),
        ),
    ),
    Definition(
        path="narrow",
        steps=(
            Step(
                name="ask",
                handler="narrow/ask",
                retry=RetryPolicy(max_attempts=3, jitter=False),
                operation="request",
                limit="portal",
            ),
            Step(
                name="keep",
                handler="narrow/keep",
                retry=RetryPolicy(max_attempts=2, initial_delay=3),
                lane=Lane.BULK,
                limit="archive",
            ),
        ),
    ),
    # The barrier right after the step that it waits for.
    Definition(
        path="reports",
        steps=(
            Step(
                name="request",
                handler="reports/request",
                retry=RetryPolicy(max_attempts=2, jitter=False),
                operation="request",
                limit="portal",
            ),
            Step(
                name="download",
                handler="reports/download",
                retry=RetryPolicy(delays=[6, 20]),
                operation="download",
                limit="portal",
                barrier=Barrier(after="request", delay_seconds=6),
            ),
        ),
    ),
    # A step in between, and one after it.
    Definition(
        path="detour",
        steps=(
            Step(name="order", handler="detour/order", retry=RetryPolicy(max_attempts=3, initial_delay=2)),
            Step(name="prepare", handler="detour/prepare", retry=RetryPolicy(max_attempts=2, jitter=False)),
            Step(
                name="collect",
                handler="detour/collect",
                retry=RetryPolicy(max_attempts=2, jitter=False),
                barrier=Barrier(after="order", delay_seconds=15),
            ),
            Step(name="file", handler="detour/file", retry=RetryPolicy.once()),
        ),
    ),
    Definition(
        path="tide",
        steps=(
            Step(
                name="swim",
                handler="tide/swim",
                retry=RetryPolicy(max_attempts=4, initial_delay=4, unknown_attempts=3, wave=True),
            ),
        ),
    ),
    # Two barriers and a wave behind one of them.
    Definition(
        path="harvest",
        steps=(
            Step(name="sow", handler="harvest/sow", retry=RetryPolicy(max_attempts=2, jitter=False)),
            Step(
                name="reap",
                handler="harvest/reap",
                retry=RetryPolicy(delays=[7, 9, 30], wave=True),
                limit="archive",
                barrier=Barrier(after="sow", delay_seconds=8),
            ),
            Step(
                name="feast",
                handler="harvest/feast",
                retry=RetryPolicy.once(),
                barrier=Barrier(after="reap"),
            ),
        ),
    ),
)

GATED = ("reports", "detour", "tide", "harvest")
LIMITS = ("max_concurrency", "portal", "archive")

# A later version of `relay`: executions that began before it must end as the version they began with.
RELAY_SHORTENED = Definition(
    path="relay",
    steps=(
        Step(name="first", handler="relay/first", retry=RetryPolicy(max_attempts=2, jitter=False)),
        Step(name="third", handler="relay/third", retry=RetryPolicy.once()),
    ),
)

HANDLERS = (*(step.handler for definition in PIPELINES for step in definition.steps), *FLOW_HANDLERS)

_FAILURES: tuple[Callable[[int], Failure], ...] = (
    lambda n: Failure(message=f"connection refused #{n}", exception="ConnectionRefusedError"),
    lambda n: Failure(message=f"connection reset, {RETRY_WORD} #{n}"),
    lambda n: Failure(message=f"timed out, {RETRY_WORD} #{n}"),
    lambda n: Failure(message=f"too busy, retry after 90 #{n}", status_code=429, retry_after=90.0),
    lambda n: Failure(message=f"an odd thing #{n}"),
    lambda n: Failure(message=f"an odd thing, {RETRY_WORD} #{n}"),
    lambda n: Failure(message=f"the sky fell, {STOP_WORD} #{n}"),
    lambda n: Failure(message=f"file corrupted #{n}", category=Category.PERMANENT),
    lambda n: Failure(message=f"file corrupted, {RETRY_WORD} #{n}", category=Category.PERMANENT),
)


def random_outcome(random: Random, number: int, *, failing: float) -> Outcome:
    """How an attempt ended. `number` makes every outcome of a run different from every other."""
    if random.random() < failing:
        crashed = random.random() < 0.1
        return Failed(random.choice(_FAILURES)(number), cleared=random.random() < 0.8, crashed=crashed)
    if random.random() < 0.95:
        return Completed(f'{{"outcome":{number}}}')
    if random.random() < 0.5:
        return Completed(f'"{"x" * (PAYLOAD_BYTES_MAX + number)}"')
    return Completed(f'{{"key-{number}":"\\u0000"}}')


def is_storable(outcome: Outcome) -> TypeGuard[Completed]:
    """Whether the engine keeps it as a completion; what it cannot store it takes as a failure."""
    return isinstance(outcome, Completed) and len(outcome.result) < 100 and "\\u0000" not in outcome.result
