"""What a test looks at: one execution, with its history told in the words of a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.core.failures import StoredError
from holdfast.core.model import Event, EventType, ExecutionStatus
from holdfast.core.payload import member
from holdfast.engine import ExecutionView

_STORY_LEAVES_OUT = {
    "stack_trace",
    "timestamp",
    "worker",
    "available_at",
    "stage",
    "user_message",
    "guidance",
}


class RehearsalFailed(AssertionError):
    """The rehearsal did not go as the test says: it never ends, stands still, or had failures left over."""


@dataclass(frozen=True, repr=False)
class Run:
    """An execution as it was when it was looked at; it does not change afterwards."""

    view: ExecutionView
    events: tuple[Event, ...]
    exceptions: tuple[BaseException, ...] = field(default=(), compare=False)
    """What its handlers raised, injected or their own, with their tracebacks, in order."""

    @property
    def id(self) -> int:
        return self.view.id

    @property
    def pipeline(self) -> str:
        return self.view.execution.path

    @property
    def status(self) -> ExecutionStatus:
        return self.view.status

    @property
    def summary(self) -> str:
        """One plain sentence, as people are shown it."""
        return self.view.summary

    @property
    def workload(self) -> Any:
        return self.view.execution.workload

    @property
    def outputs(self) -> dict[str, Any]:
        """Results by step."""
        return self.view.outputs

    @property
    def error(self) -> StoredError | None:
        """Why it failed: error_type, category, message, stage, user_message, guidance, rule; None where
        it did not, or got over it."""
        return self.view.error

    @property
    def dead_reason(self) -> str | None:
        """Why its last stage was given up: exhausted, permanent, …; None where it was not."""
        return self.view.jobs[-1].dead_reason

    @property
    def ran(self) -> list[tuple[str, int]]:
        """Every attempt as (step, number), in the order in which they began, over all rounds."""
        return [(event.step or "", event.data["attempt"]) for event in self._of(EventType.ACTION_STARTED)]

    @property
    def attempts(self) -> dict[str, int]:
        """How many attempts each step has had, over all rounds."""
        counts: dict[str, int] = {}
        for step, _ in self.ran:
            counts[step] = counts.get(step, 0) + 1
        return counts

    @property
    def delays(self) -> dict[str, list[float]]:
        """The seconds before each retry, by step; a step that was not retried is left out."""
        delays: dict[str, list[float]] = {}
        for event in self._of(EventType.STEP_RETRY):
            delays.setdefault(event.step or "", []).append(event.data["delay"])
        return delays

    @property
    def error_types(self) -> list[str]:
        """The type of every failed attempt's error, in order."""
        return [event.data["error_type"] for event in self._of(EventType.ACTION_ERROR)]

    @property
    def story(self) -> str:
        """The history as text, a line for each event, with the seconds since it was submitted."""
        began = self.view.execution.created_at
        return "\n".join(
            f"{event.at - began:>10.1f} s  {event.type}"
            + (f" {event.step}" if event.step else "")
            + _told(event)
            for event in self.events
        )

    def expect(self, status: ExecutionStatus | str) -> Run:
        """This run, or RehearsalFailed with its whole story and what its handler raised."""
        wanted = member(ExecutionStatus, status, "status")
        if self.status is not wanted:
            cause = self.exceptions[-1] if self.exceptions else None
            raise RehearsalFailed(
                f"{self!r} was expected to be {wanted}. What happened:\n{self.story}"
            ) from cause
        return self

    def _of(self, kind: EventType) -> list[Event]:
        return [event for event in self.events if event.type is kind]

    def __repr__(self) -> str:
        why = "" if self.error is None else f", {self.error.error_type} by {self.error.rule!r}"
        return f"<Run {self.id} of {self.pipeline}: {self.summary!r}{why}, ran {self.ran}>"


def _told(event: Event) -> str:
    data = {name: value for name, value in event.data.items() if name not in _STORY_LEAVES_OUT}
    return "".join(f" {name}={value!r}" for name, value in data.items())
