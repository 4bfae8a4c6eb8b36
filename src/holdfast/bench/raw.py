"""The raw counterpart of a scenario: a bare loop that writes the same rows, with no engine around it.

What the engine writes for one execution is taken from a sample: one execution is run through the engine,
and each of its leases becomes a `Turn` with the very texts that the engine stored. The loop then plays
these turns for every execution, in batches: claim a batch, settle it with its events, the next jobs and
the executions' new state, each in one transaction. It knows beforehand how
every job will end and checks nothing, so it is as fast as one connection can write these rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.bench import engine_run
from holdfast.bench.places import Place
from holdfast.bench.scenarios import Scenario
from holdfast.worker.context import Context

BATCH = 500
LEASE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One lease of a job and its end, as the engine stores them.

    `error` and `history` are the execution's texts after a failure; None where the job succeeds.
    """

    step: str
    attempt: int
    worker_id: str
    settled: str
    outcome_hash: str
    output: str
    following: str | None
    error: str | None = None
    history: str | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """The turns of one execution, by step and attempt; claims go through the steps in their order."""

    turns: dict[tuple[str, int], Turn]

    @property
    def steps(self) -> list[str]:
        return list(dict.fromkeys(step for step, _ in self.turns))

    def batches(self, claimed: Sequence[Sequence[Any]]) -> list[tuple[Turn, list[tuple[int, int]]]]:
        """Claimed rows (job, execution, step, attempt, …) by the turn they are in, which is mostly one."""
        found: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for job, execution, step, attempt, *_ in claimed:
            found.setdefault((step, attempt), []).append((job, execution))
        return [(self.turns[key], rows) for key, rows in found.items()]


class RawLoop(Protocol):
    async def __call__(self, url: str, script: Script) -> float:
        """Seconds that the bare loop takes for all executions submitted to this database."""


async def sample(place: Place, scenario: Scenario) -> Script:
    """Run one execution through the engine and read what it left."""
    attempts: list[tuple[str, int]] = []
    errors: list[tuple[str | None, str | None]] = []  # before each attempt, and so after the one before

    async with place.database() as url:

        def look(context: Context) -> None:
            # In a thread and blocking: a handler that waits would leave a longer stack trace.
            query = f"SELECT error, retry_history FROM {place.schema}executions"
            [[error, history]] = thread.submit(lambda: asyncio.run(place.fetch(url, query))).result()
            attempts.append((context.step, context.attempt))
            errors.append((error, history))

        with ThreadPoolExecutor(1) as thread:
            await engine_run.run_one(url, scenario, look)
        bodies = [
            body for (body,) in await place.fetch(url, f"SELECT body FROM {place.schema}events ORDER BY id")
        ]
        jobs = await place.fetch(
            url, f"SELECT worker_id, settled_hash, output FROM {place.schema}jobs ORDER BY id"
        )
    worker_id, outcome_hash, output = jobs[0]
    # The first row tells of the submission; then each attempt has one, for its start and its end.
    assert len(bodies) == 1 + len(attempts), f"{len(bodies)} event rows of {len(attempts)} attempts"
    turns = {}
    for number, (step, attempt) in enumerate(attempts):
        failed = attempt <= scenario.failures
        error, history = errors[number + 1] if failed else (None, None)
        turns[step, attempt] = Turn(
            step=step,
            attempt=attempt,
            worker_id=worker_id,
            settled=bodies[number + 1],
            outcome_hash=outcome_hash,
            output=output,
            following=scenario.step_after(step),
            error=error,
            history=history,
        )
    return Script(turns)
