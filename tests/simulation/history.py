"""What an execution's events may say, told independently of the code that writes them.

`FOLLOWS` is the whole grammar of a history; beside it the counters are kept and every decision (retry
or die, when, and why) is made a second time from the definition and the log alone. This is the oracle
that the engine's decisions are compared with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.core.catalogue import Category
from holdfast.core.model import DeadReason, Event, EventType
from holdfast.core.retry import JITTER_HIGH, JITTER_LOW, RetryPolicy
from holdfast.playbook.definition import Definition, Step
from simulation.pipelines import RETRY_WORD, STOP_WORD

E = EventType

MANUAL_RETRIES_MAX = 5
COOLDOWN_SECONDS = 60.0

# Where its deadline ends an execution, what a barrier would have let begin is skipped before.
_WAITING = frozenset({E.ACTION_STARTED, E.EXECUTION_CANCELLED, E.EXECUTION_FAILED, E.STEP_SKIPPED})
FOLLOWS: dict[EventType | None, frozenset[EventType]] = {
    None: frozenset({E.EXECUTION_STARTED}),
    E.EXECUTION_STARTED: frozenset({E.STEP_STARTED}),
    E.STEP_STARTED: _WAITING | {E.BARRIER_OPENED},
    E.BARRIER_OPENED: _WAITING,
    E.ACTION_STARTED: frozenset(
        {
            E.ACTION_COMPLETED,
            E.ACTION_ERROR,
            E.LEASE_LOST,
            E.LEASE_RELEASED,
            E.EXECUTION_CANCELLED,
            E.EXECUTION_FAILED,
            E.STEP_SKIPPED,
        }
    ),
    E.ACTION_COMPLETED: frozenset({E.STEP_COMPLETED}),
    E.STEP_COMPLETED: frozenset({E.STEP_STARTED, E.EXECUTION_COMPLETED}),
    E.LEASE_LOST: frozenset({E.ACTION_ERROR}),
    E.LEASE_RELEASED: _WAITING,
    E.ACTION_ERROR: frozenset({E.STEP_RETRY, E.STEP_RETRY_EXHAUSTED, E.STEP_FAILED_TERMINAL}),
    E.STEP_RETRY: _WAITING | {E.WAVE_STARTED},
    E.WAVE_STARTED: _WAITING,
    E.STEP_RETRY_EXHAUSTED: frozenset({E.STEP_FAILED_TERMINAL}),
    E.STEP_FAILED_TERMINAL: frozenset({E.EXECUTION_FAILED, E.STEP_SKIPPED}),
    E.EXECUTION_FAILED: frozenset({E.MANUAL_RETRY}),
    E.MANUAL_RETRY: frozenset({E.STEP_SKIPPED, E.STEP_STARTED}),
    E.STEP_SKIPPED: frozenset({E.STEP_SKIPPED, E.STEP_STARTED, E.EXECUTION_FAILED}),
    E.EXECUTION_COMPLETED: frozenset(),
    E.EXECUTION_CANCELLED: frozenset(),
}
# Where a transaction may end: what follows any other event is written together with it.
ENDS_A_TRANSACTION = frozenset(
    {
        E.STEP_STARTED,
        E.BARRIER_OPENED,
        E.STEP_RETRY,
        E.WAVE_STARTED,
        E.LEASE_RELEASED,
        E.EXECUTION_COMPLETED,
        E.EXECUTION_FAILED,
        E.EXECUTION_CANCELLED,
    }
)


ALREADY_COMPLETED = "already_completed"


class Violation(AssertionError):
    """An invariant does not hold."""


def ensure(condition: object, broken: str, *things: object) -> None:
    """`broken` is the sentence for when it does not hold; only then `things` are written into it."""
    if not condition:
        raise Violation(broken.format(*things))


class Wave(NamedTuple):
    """One gathered job of a wave: how long it had to wait by its own, and when its wave began, once told."""

    step: str
    number: int
    delay: float
    available_at: float | None = None


@dataclass(slots=True)
class History:
    """What the log has told so far. `attempts` and what follows it are the current job's, `waves` and what
    follows that the execution's."""

    definition: Definition
    is_in_batch: bool = False
    events: int = 0
    last: EventType | None = None
    step: str = ""
    next_stage: int = 0
    attempts: int = 0
    losses: int = 0
    crashes: int = 0
    unknown_errors: int = 0
    available_at: float | None = None
    scheduled_for: float | None = None
    wave: Wave | None = None
    is_resumed_here: bool = False
    verdict: DeadReason | tuple[float, float] | None = None
    waves: list[Wave] = field(default_factory=list)
    completed_at: dict[str, float] = field(default_factory=dict)
    schedules: dict[str, list[float]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    retries: int = 0
    errors: int = 0
    manual_retries: int = 0
    manual_retry_at: float | None = None
    stages_done: set[str] = field(default_factory=set)

    def read(self, events: Iterable[Event]) -> None:
        for event in events:
            ensure(event.type in FOLLOWS[self.last], "{} follows {}: {}", event.type, self.last, event)
            self._read(event)
            self.last = event.type
            self.events += 1

    def _read(self, event: Event) -> None:
        match event.type:
            case E.STEP_STARTED:
                self._start_step(event)
            case E.STEP_SKIPPED if event.data["reason"] == ALREADY_COMPLETED:
                ensure(self.last in (E.MANUAL_RETRY, E.STEP_SKIPPED), "nothing was completed: {}", event)
                ensure(event.step == self._expected_stage(), "{} is out of order", event)
                self.next_stage += 1
            case E.STEP_SKIPPED:
                self.skipped.append(event.step or "")
                reason = f"{self.step[0].upper()}{self.step[1:]} failed; {event.step} skipped"
                ensure(event.data["reason"] == reason, "{} expected: {}", reason, event)
            case E.BARRIER_OPENED:
                self._open_barrier(event)
            case E.WAVE_STARTED:
                self._start_wave(event)
            case E.ACTION_STARTED:
                ensure(self.wave is None, "leased while it waits for {}: {}", self.wave, event)
                ensure(not self.is_before_barrier, "leased before its barrier was opened: {}", event)
                ensure(event.at >= (self.scheduled_for or event.at), "leased too early: {}", event)
                self.attempts += 1
                ensure(
                    event.data["attempt"] == self.attempts, "attempt {} expected: {}", self.attempts, event
                )
                ensure(event.data["is_retry"] == (self.attempts > 1), "is_retry is wrong: {}", event)
                ensure(self.attempts <= self.policy.max_attempts, "more attempts than allowed: {}", event)
                ensure(
                    self.available_at is None or event.at >= self.available_at,
                    "leased before {}: {}",
                    self.available_at,
                    event,
                )
            case E.LEASE_LOST:
                # Only losses while alone count, and a job is alone after its first loss.
                self.crashes += self.losses > 0
                self.losses += 1
            case E.LEASE_RELEASED:
                self.attempts -= 1
                self.available_at = max(event.at, self.scheduled_for or event.at)
            case E.ACTION_ERROR:
                if event.data.get("crashed"):  # nobody else was in that process
                    self.crashes += 1
                    self.losses += 1
                self._judge(event)
            case E.STEP_RETRY:
                self._check_retry(event)
            case E.STEP_RETRY_EXHAUSTED:
                ensure(self.verdict is DeadReason.EXHAUSTED, "{} expected: {}", self.verdict, event)
            case E.STEP_FAILED_TERMINAL:
                ensure(event.data["dead_reason"] == self.verdict, "{} expected: {}", self.verdict, event)
                exhausted = self.last is E.STEP_RETRY_EXHAUSTED
                ensure(
                    exhausted == (self.verdict is DeadReason.EXHAUSTED), "exhaustion is not told: {}", event
                )
            case E.STEP_COMPLETED:
                ensure(event.step == self.step, "{} was running: {}", self.step, event)
                ensure(event.step not in self.stages_done, "completed twice in a round: {}", event)
                self.stages_done.add(self.step)
                self.completed_at[self.step] = event.at
                self.next_stage += 1
            case E.EXECUTION_COMPLETED:
                ensure(self.next_stage == len(self.definition.steps), "a stage is missing: {}", event)
            case E.EXECUTION_FAILED:
                self._check_skipped(event)
            case E.MANUAL_RETRY:
                self._start_round(event)
        if event.type in (E.ACTION_STARTED, E.ACTION_COMPLETED, E.ACTION_ERROR, E.LEASE_RELEASED):
            ensure(event.step == self.step, "{} was running: {}", self.step, event)
        if event.type in (E.ACTION_COMPLETED, E.ACTION_ERROR, E.LEASE_LOST):
            ensure(event.data["attempt"] == self.attempts, "attempt {} was running: {}", self.attempts, event)

    @property
    def _current(self) -> Step:
        return self.definition.step(self.step)

    @property
    def is_before_barrier(self) -> bool:
        return self._current.barrier is not None and self.scheduled_for is None

    @property
    def policy(self) -> RetryPolicy:
        return self._current.retry

    def _expected_stage(self) -> str | None:
        steps = self.definition.steps
        return steps[self.next_stage].name if self.next_stage < len(steps) else None

    def _start_step(self, event: Event) -> None:
        ensure(event.step == self._expected_stage(), "{} is next: {}", self._expected_stage(), event)
        self.step = event.step or ""
        self.attempts = self.losses = self.crashes = self.unknown_errors = 0
        self.available_at = self.verdict = self.scheduled_for = self.wave = None
        self.is_resumed_here = self.last in (E.MANUAL_RETRY, E.STEP_SKIPPED)
        self.skipped = []

    def _open_barrier(self, event: Event) -> None:
        ensure(event.step == self.step, "{} was waiting: {}", self.step, event)
        ensure(self._current.barrier is not None, "there is no barrier: {}", event)
        scheduled_for: float = event.data["scheduled_for"]
        self.scheduled_for = scheduled_for
        self.schedules.setdefault(self.step, []).append(scheduled_for)

    def _start_wave(self, event: Event) -> None:
        ensure(event.step == self.step, "{} was waiting: {}", self.step, event)
        if self.wave is None or event.data["wave"] != self.wave.number:
            raise Violation(f"it waited for {self.wave}: {event}")
        self.waves.append(self.wave._replace(available_at=event.data["available_at"]))
        self.available_at = max(event.data["available_at"], self.scheduled_for or 0.0)
        self.wave = None

    def _check_skipped(self, event: Event) -> None:
        """All that a barrier would have let begin later, and nothing else."""
        steps = self.definition.steps
        place = next(n for n, step in enumerate(steps) if step.name == self.step)
        expected = [step.name for step in steps[place + 1 :] if step.barrier is not None]
        ensure(self.skipped == expected, "{} had to be skipped, not {}: {}", expected, self.skipped, event)

    def _start_round(self, event: Event) -> None:
        if not event.data.get("redrive"):
            ensure(self.manual_retries < MANUAL_RETRIES_MAX, "retried too often: {}", event)
            if self.manual_retry_at is not None:
                ensure(event.at >= self.manual_retry_at + COOLDOWN_SECONDS, "retried too soon: {}", event)
            self.manual_retries += 1
            self.manual_retry_at = event.at
        self.next_stage = 0
        self.stages_done = set()

    def _judge(self, event: Event) -> None:
        """The decision table of a failed attempt: a reason to die, or the range of the delay."""
        self.errors += 1
        message: str = event.data["message"]
        category = Category(event.data["category"])
        self.unknown_errors += category is Category.UNKNOWN
        policy = self.policy
        asked = None if policy.retry_when is None else RETRY_WORD in message
        if self.crashes >= self._current.max_crashes:
            self.verdict = DeadReason.POISONED
        elif policy.stop_when is not None and STOP_WORD in message:
            self.verdict = DeadReason.STOPPED
        elif asked is False:
            self.verdict = DeadReason.NOT_RETRYABLE
        elif asked is None and category is Category.PERMANENT:
            self.verdict = DeadReason.PERMANENT
        elif self.attempts == policy.max_attempts:
            self.verdict = DeadReason.EXHAUSTED
        elif (
            asked is None and category is Category.UNKNOWN and self.unknown_errors >= policy.unknown_attempts
        ):
            self.verdict = DeadReason.UNKNOWN_LIMIT
        else:
            self.verdict = self._delay_range(message)

    def _delay_range(self, message: str) -> tuple[float, float]:
        policy, after = self.policy, self.attempts - 1
        if policy.delays is not None:
            base = policy.delays[min(after, len(policy.delays) - 1)]
        else:
            base = min(policy.initial_delay * policy.backoff_multiplier**after, policy.max_delay)
        low, high = (base * JITTER_LOW, base * JITTER_HIGH) if policy.jitter else (base, base)
        if policy.delays is None:
            low, high = min(low, policy.max_delay), min(high, policy.max_delay)
        if wish := re.search(r"retry after (\d+)", message):
            low, high = max(low, float(wish[1])), max(high, float(wish[1]))
        return low, high

    def _check_retry(self, event: Event) -> None:
        if not isinstance(self.verdict, tuple):
            raise Violation(f"{self.verdict} expected: {event}")
        low, high = self.verdict
        delay: float = event.data["delay"]
        ensure(low - 1e-9 <= delay <= high + 1e-9, "a delay of {} to {} expected: {}", low, high, event)
        self.retries += 1
        self.available_at = event.data["available_at"]
        if self.is_in_batch and self.policy.wave:
            ensure(self.available_at is None, "when its wave will be is not known yet: {}", event)
            self.wave = Wave(self.step, event.data["wave"], delay)
            self.waves.append(self.wave)
        else:
            expected = max(event.at + delay, self.scheduled_for or 0.0)
            ensure(self.available_at == expected, "available_at is not at + delay: {}", event)
