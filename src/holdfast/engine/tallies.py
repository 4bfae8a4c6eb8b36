"""What the engine counts of what it sees, for those who watch: in memory, and only what is committed.

    a transaction ──▶ Ended: what its plan did to attempts and executions ──▶ committed ──▶ Tallies

Counting decides nothing, writes nothing and waits for nobody: adding to a number is all it costs. What was
counted is written by tally_keeper.py. Labels are bounded in each process, in number and in length, and again
where they are added up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from holdfast.core.catalogue import CATALOGUE
from holdfast.core.model import DeadReason, ExecutionState, ExecutionStatus, JobState, JobStatus
from holdfast.engine.settle import Erred, PutAside, Settled
from holdfast.store.changes import Changes
from holdfast.store.interface import Claimed, ExecutionsPlan, JobsPlan, Locked
from holdfast.store.new_executions import Inserted
from holdfast.store.stages import HeldStage, StageEnd

STARTED = "executions_started"
ENDED = "executions_ended"
RETRIES = "retries"
DEAD = "dead"
LEASE_LATENCY = "lease_latency_seconds"
ATTEMPT = "attempt_seconds"
STEP_ATTEMPT = "step_attempt_seconds"
TRANSACTION = "store_transaction_seconds"
# What is told of times, behind their names.
BUCKET, SUM, COUNT = "_bucket", "_sum", "_count"

# Seconds, up to which each bucket goes; behind the last is one for all that took longer.
BOUNDS = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
)  # fmt: skip
ENDLESS = "+Inf"
# Sums of seconds are kept as whole numbers of this part of one: a sum of fractions could come out smaller
# after it was added up in another order, and whoever watches would take that for a counter that began anew.
TICKS_PER_SECOND = 10_000

OTHER = "other"
# What users name, of which there may be any number over the years: where the sums keep what is one too many.
OTHERS = {
    RETRIES: '["other"]',
    STEP_ATTEMPT + COUNT: '["other","other"]',
    STEP_ATTEMPT + SUM: '["other","other"]',
}
STEPS_MAX = 200
ERROR_TYPES_MAX = 100
LABEL_CHARS_MAX = 100
DEADLINE = "deadline"
DEAD_REASONS = (*(reason.value for reason in DeadReason), DEADLINE)

Key = tuple[str, tuple[str, ...]]


class AttemptOutcome(StrEnum):
    """How an attempt ended. `released` ones were given back unused, those `put_aside` go on later,
    `cancelled` ones ended with their execution."""

    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    RELEASED = "released"
    PUT_ASIDE = "put_aside"
    CANCELLED = "cancelled"


class Verb(StrEnum):
    """What the store is asked for often, and how long that takes."""

    CLAIM = "claim"
    REPORT = "report"
    SUBMIT = "submit"


class Histogram:
    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        seconds = max(seconds, 0.0)  # a clock may go back
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def add_many(self, seconds: Iterable[float]) -> float:
        """All of them at once, which costs a fraction of adding each; their sum."""
        ordered = sorted(seconds)
        if ordered[0] < 0.0:
            ordered = [max(one, 0.0) for one in ordered]
        before = 0
        for place, bound in enumerate(BOUNDS):
            upto = bisect_right(ordered, bound)
            self.buckets[place] += upto - before
            if (before := upto) == len(ordered):
                break
        self.buckets[-1] += len(ordered) - before
        total = sum(ordered)
        self.seconds += total
        return total


class Ended:
    """What a plan's transaction does to attempts and executions beside what its reports say: noted as the
    plan runs, which it may do again, and counted once it is committed."""

    def __init__(self) -> None:
        self.attempts: list[tuple[AttemptOutcome, float | None]] = []
        """Those that ended without a report, and when they were leased."""
        self.executions: list[ExecutionStatus] = []
        """How those ended that were submitted, and not started for others."""

    def of_jobs(self, plan: JobsPlan) -> JobsPlan:
        def watched(locked: list[Locked]) -> Changes:
            changes = plan(locked)
            self._note([item.execution for item in locked], [item.job for item in locked], changes)
            return changes

        return watched

    def of_executions(self, plan: ExecutionsPlan) -> ExecutionsPlan:
        def watched(executions: list[ExecutionState], jobs: list[JobState]) -> Changes:
            changes = plan(executions, jobs)
            self._note(executions, jobs, changes)
            return changes

        return watched

    def _note(self, executions: Iterable[ExecutionState], jobs: Iterable[JobState], changes: Changes) -> None:
        running = {
            execution.id
            for execution in executions
            if execution.status is ExecutionStatus.RUNNING and execution.parent_job is None
        }
        ends = {stage.execution_id: stage.status for stage in changes.completed}
        ends |= {execution.id: execution.status for execution in changes.executions}
        self.executions = [
            status for id_, status in ends.items() if id_ in running and status is not ExecutionStatus.RUNNING
        ]
        leased = {job.id: job for job in jobs if job.status is JobStatus.LEASED}
        self.attempts = [
            (_unreported(before, after), before.last_attempt_at)
            for after, _ in changes.jobs
            if (before := leased.get(after.id)) is not None and after.settled_fence != before.fence
        ]


def _unreported(before: JobState, after: JobState) -> AttemptOutcome:
    """One that is given back does not count as an attempt of its job."""
    return AttemptOutcome.RELEASED if after.attempts < before.attempts else AttemptOutcome.CANCELLED


class Tallies:
    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._times: dict[tuple[str, str], Histogram] = {}
        self._steps: dict[tuple[str, str], list[float]] = {}
        self._error_types: set[str] = set()

    # what happened

    def started(self, inserted: Iterable[Inserted]) -> None:
        if created := sum(item.created for item in inserted):
            self._plus(STARTED, "", created)

    def claimed(self, claimed: Sequence[Claimed], at: float) -> None:
        for lane in {row.lane for row in claimed}:
            waits = [at - row.available_at for row in claimed if row.lane is lane]
            self._time(LEASE_LATENCY, lane).add_many(waits)

    def stages(self, stages: Iterable[HeldStage], now: float) -> None:
        """Completed from what was remembered of them: of short jobs there are thousands a second, most of
        them alike."""
        alike: dict[int, tuple[StageEnd, list[float]]] = {}
        for stage in stages:
            if (found := alike.get(id(stage.end))) is None:
                found = alike[id(stage.end)] = (stage.end, [])
            found[1].append(now - stage.leased_at)
        for end, seconds in alike.values():
            total = self._time(ATTEMPT, AttemptOutcome.COMPLETED).add_many(seconds)
            self._step(end.path, end.stage, len(seconds), total)
            if end.status is not ExecutionStatus.RUNNING:
                self._plus(ENDED, end.status.value, len(seconds))

    def settled(self, settled: Iterable[Settled], now: float) -> None:
        for item, before, after, path in settled:
            outcome = AttemptOutcome.FAILED
            if after.status is JobStatus.DONE:
                outcome = AttemptOutcome.COMPLETED
            elif isinstance(item, PutAside):
                outcome = AttemptOutcome.PUT_ASIDE
            elif isinstance(item, Erred) and item.verdict.worker_lost:
                outcome = AttemptOutcome.LOST
            self._attempt(outcome, now - (before.last_attempt_at or now), path, before.step)
            if after.dead_reason is not None:
                self._plus(DEAD, after.dead_reason.value)
            elif after.status is JobStatus.RETRY and isinstance(item, Erred):
                self._plus(RETRIES, self._bounded(item.verdict.classification.error_type))

    def ended(self, ended: Ended, now: float) -> None:
        for outcome, leased_at in ended.attempts:
            self._time(ATTEMPT, outcome).add(now - (leased_at or now))
        for status in ended.executions:
            self._plus(ENDED, status.value)

    def overdue(self, executions: int) -> None:
        if executions:
            self._plus(DEAD, DEADLINE, executions)

    def took(self, verb: Verb, seconds: float) -> None:
        self._time(TRANSACTION, verb).add(seconds)

    # the sums

    def values(self) -> dict[Key, int]:
        """All that has been counted so far; times in ticks, in buckets that do not hold each other's."""
        found: dict[Key, int] = {
            (name, (label,) if label else ()): value for (name, label), value in self._counts.items()
        }
        for (name, label), histogram in self._times.items():
            for bound, value in zip((*map(str, BOUNDS), ENDLESS), histogram.buckets, strict=True):
                if value:
                    found[name + BUCKET, (label, bound)] = value
            found[name + SUM, (label,)] = int(histogram.seconds * TICKS_PER_SECOND)
        for step, (times, seconds) in self._steps.items():
            found[STEP_ATTEMPT + COUNT, step] = int(times)
            found[STEP_ATTEMPT + SUM, step] = int(seconds * TICKS_PER_SECOND)
        return found

    def _plus(self, name: str, label: str, times: int = 1) -> None:
        key = (name, label)
        self._counts[key] = self._counts.get(key, 0) + times

    def _time(self, name: str, label: str) -> Histogram:
        key = (name, label)
        if (found := self._times.get(key)) is None:
            found = self._times[key] = Histogram()
        return found

    def _attempt(self, outcome: AttemptOutcome, seconds: float, path: str, step: str) -> None:
        self._time(ATTEMPT, outcome).add(seconds)
        # The others do not tell how long the step takes.
        if outcome in (AttemptOutcome.COMPLETED, AttemptOutcome.FAILED):
            self._step(path, step, 1, max(seconds, 0.0))

    def _step(self, path: str, step: str, attempts: int, seconds: float) -> None:
        key = (path, step)
        if (own := self._steps.get(key)) is None:
            if len(self._steps) >= STEPS_MAX:
                key = (OTHER, OTHER)
            own = self._steps.setdefault(key, [0, 0.0])
        own[0] += attempts
        own[1] += seconds

    def _bounded(self, error_type: str) -> str:
        error_type = error_type[:LABEL_CHARS_MAX]
        if error_type in CATALOGUE or error_type in self._error_types:
            return error_type
        if len(self._error_types) >= ERROR_TYPES_MAX:
            return OTHER
        self._error_types.add(error_type)
        return error_type


def labels_text(labels: tuple[str, ...]) -> str:
    return msgspec.json.encode(labels).decode()


def labels_of(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])
