"""An execution that is watched, as its events tell it: where each step stands, and a line for each turn.

One `Story` is one execution; that of a child is a story of its own. It only knows what events say, so what it
shows is what is stored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from holdfast.core.catalogue import Category
from holdfast.core.model import Event, EventType
from holdfast.playbook.definition import Definition
from holdfast.playbook.outline import tree


class Stand(Enum):
    """Where a step stands."""

    TO_COME = "to come"
    QUEUED = "queued"
    RUNNING = "running"
    RETRY = "retry"
    ASIDE = "waiting"
    """Put aside: it sleeps, or waits for the end of its child execution."""
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


ENDED = (Stand.DONE, Stand.FAILED, Stand.SKIPPED, Stand.CANCELLED)
UNDER_WAY = (Stand.QUEUED, Stand.RUNNING, Stand.RETRY, Stand.ASIDE)

_EXECUTION_ENDED = {
    EventType.EXECUTION_COMPLETED: "completed",
    EventType.EXECUTION_FAILED: "failed",
    EventType.EXECUTION_CANCELLED: "cancelled",
}


class Line(NamedTuple):
    """A turn worth telling. `stand` is what the step's mark shows then; None for the execution itself."""

    at: float
    step: str
    text: str
    stand: Stand | None


@dataclass(slots=True)
class Work:
    """One job: a step, or one element of it, in one visit."""

    stand: Stand = Stand.QUEUED
    attempt: int = 0
    since: float = 0.0
    until: float | None = None
    error: dict[str, Any] = field(default_factory=dict)
    worker: str = ""
    lease: Lease | None = None


@dataclass(slots=True)
class Lease:
    """That of a process which is not ours. Only one that has been renewed is known to live."""

    until: float
    is_renewed: bool = False


@dataclass(slots=True)
class StepStory:
    """One step. Elements of a for_each are counted by where they stand; `work` is that of the step itself.
    `child` is the story of the execution that its last attempt waits for or waited for; `former` are those of
    earlier attempts that are not told to their ends, `unseen` the attempts whose child is to be found."""

    name: str
    max_attempts: int
    has_elements: bool = False
    work: Work = field(default_factory=lambda: Work(Stand.TO_COME))
    elements: dict[int, Work] = field(default_factory=dict)
    elements_total: int | None = None
    visit: int = 1
    reason: str = ""
    dead_reason: str = ""
    child: Story | None = None
    former: list[Story] = field(default_factory=list)
    unseen: list[int] = field(default_factory=list)

    @property
    def stand(self) -> Stand:
        if self.work.stand not in ENDED and self.elements:
            stands = {work.stand for work in self.elements.values()}
            return next(
                (one for one in (Stand.RUNNING, Stand.RETRY, Stand.ASIDE) if one in stands), self.work.stand
            )
        return self.work.stand

    @property
    def counts(self) -> Counter[Stand]:
        return Counter(work.stand for work in self.elements.values())

    @property
    def total(self) -> int:
        """How many elements there are, as far as it is known."""
        return len(self.elements) if self.elements_total is None else self.elements_total

    @property
    def not_run(self) -> int:
        """How many elements will not be begun any more."""
        if self.work.stand in (Stand.FAILED, Stand.CANCELLED):
            return self.total - sum(work.attempt > 0 for work in self.elements.values())
        return sum(work.stand is Stand.CANCELLED and not work.attempt for work in self.elements.values())

    @property
    def attempt(self) -> int:
        return self.work.attempt

    @property
    def until(self) -> float | None:
        """The moment that the next retry waits for, or the end of its sleep."""
        stand = self.stand
        waits = [work.until for work in (self.work, *self.elements.values()) if work.stand is stand]
        return min((until for until in waits if until is not None), default=None)

    @property
    def error(self) -> dict[str, Any]:
        """The last error of what has not got over it."""
        for work in (self.work, *reversed(self.elements.values())):
            if work.error and work.stand in (Stand.RETRY, Stand.FAILED, Stand.RUNNING):
                return work.error
        return {}

    def leave_child(self) -> None:
        """Another attempt begins, which may have a child of its own."""
        if self.child is not None and not self.child.is_ended:
            self.former.append(self.child)
        self.child = None


class Story:
    def __init__(self, execution_id: int, definition: Definition) -> None:
        self.execution_id = execution_id
        self.definition = definition
        self.status = "running"
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.last_event: str | None = None
        self.rows = tree(definition, with_summaries=False)
        self.steps = {
            step.name: StepStory(step.name, step.retry.max_attempts, step.for_each is not None)
            for step in definition.steps
        }

    @property
    def is_ended(self) -> bool:
        return self.status != "running"

    def tell(self, event: Event) -> list[Line]:
        """Take note of an event; the lines to show for it, none where another event says it better."""
        self.last_event = event.id
        if self.started_at is None:
            self.started_at = event.at
        if event.type in _EXECUTION_ENDED:
            return self._ended(event)
        if event.type is EventType.MANUAL_RETRY:
            return self._retried_by_hand(event)
        step = self.steps.get(event.step or "")
        if step is None:
            return []
        said = getattr(self, f"_{event.type.value}", None)
        return [] if said is None else said(event, step)

    # One method per event type that has something to say of a step.

    def _step_started(self, event: Event, step: StepStory) -> list[Line]:
        self._note_handled(event)
        element, visit = event.data.get("element"), event.data.get("visit", 1)
        if element is not None:
            step.elements[element] = Work(Stand.QUEUED, since=event.at)
            return []
        step.reason, step.dead_reason = "", ""
        step.leave_child()
        again = event.data.get("elements")
        if again is not None:  # the others are done, and so is the list of them
            step.work.stand = Stand.QUEUED
            step.elements.update({number: Work(Stand.QUEUED, since=event.at) for number in again})
            return []
        step.elements, step.elements_total, step.visit = {}, None, visit
        step.work = Work(Stand.QUEUED, since=event.at, until=self._sleeps_until(event))
        return [Line(event.at, self._name(event), f"visit {visit}", Stand.QUEUED)] if visit > 1 else []

    def _sleeps_until(self, event: Event) -> float | None:
        """A sleep of a known length is a job that nobody takes before its end."""
        step = self.definition.step(event.step or "")
        seconds = step.config.get("seconds") if step.type == "sleep" else None
        return event.at + seconds if isinstance(seconds, int | float) else None

    def _note_handled(self, event: Event) -> None:
        """Elements die one by one; that their step has, only what handles it tells."""
        for source in self.definition.steps:
            told = self.steps[source.name]
            if source.on_error == event.step and told.counts[Stand.FAILED] and told.work.stand in UNDER_WAY:
                told.work.stand = Stand.FAILED

    def _action_started(self, event: Event, step: StepStory) -> list[Line]:
        work = self._work(event, step)
        again = work.stand in (Stand.RUNNING, Stand.ASIDE) and work.attempt == event.data["attempt"]
        work.stand, work.since, work.until = Stand.RUNNING, event.at, None
        work.attempt, work.worker, work.lease = event.data["attempt"], event.data.get("worker") or "", None
        if again or event.data.get("element") is not None:
            return []
        step.leave_child()
        is_counted = step.max_attempts > 1 and not step.has_elements
        attempt = f"attempt {self._of(work.attempt, step)}" if is_counted else "starts"
        return [Line(event.at, self._name(event), attempt, Stand.RUNNING)]

    def _action_completed(self, event: Event, step: StepStory) -> list[Line]:
        work, total = self._work(event, step), event.data.get("elements")
        if total is not None:
            step.elements_total = total
            return [Line(event.at, self._name(event), f"{total:,} to do", Stand.RUNNING)]
        if event.data.get("element") is None:
            return []  # told when the step is complete
        healed = work.attempt > 1
        work.stand, work.since, work.error = Stand.DONE, event.at, {}
        text = f"healed at attempt {self._of(work.attempt, step)}"
        return [Line(event.at, self._name(event), text, Stand.DONE)] if healed else []

    def _step_completed(self, event: Event, step: StepStory) -> list[Line]:
        work = self._work(event, step)
        work.stand, work.error = Stand.DONE, {}
        work.since, work.until = event.at, None
        if event.data.get("element") is not None or event.data.get("control"):
            return []
        text = "done"
        if step.elements:
            healed = sum(one.attempt > 1 for one in step.elements.values() if one.stand is Stand.DONE)
            text = f"done: {step.counts[Stand.DONE]:,} of {step.total:,}"
            text += f", {healed:,} of them healed" if healed else ""
        elif work.attempt > 1:
            text = f"done, healed at attempt {self._of(work.attempt, step)}"
        step.reason = text.removeprefix("done").lstrip(":, ")
        return [Line(event.at, self._name(event), text, Stand.DONE)]

    def _action_error(self, event: Event, step: StepStory) -> list[Line]:
        self._work(event, step).error = event.data
        return []  # told with what follows from it

    def _step_retry(self, event: Event, step: StepStory) -> list[Line]:
        work = self._work(event, step)
        work.stand, work.until = Stand.RETRY, event.data.get("available_at")
        delay = event.data.get("delay")
        when = "Retrying with the others of its batch." if delay is None else f"Retrying in {delay:.3g} s."
        return [Line(event.at, self._name(event), f"{self._failed(work, step)} {when}", Stand.RETRY)]

    def _step_failed_terminal(self, event: Event, step: StepStory) -> list[Line]:
        work = self._work(event, step)
        work.stand, work.until, work.since = Stand.FAILED, None, event.at
        dead = str(event.data.get("dead_reason", "")).replace("_", " ")
        if event.data.get("element") is None:
            step.dead_reason = dead
        last = f" Not retried: {dead}." if dead and dead != "exhausted" else " That was the last attempt."
        return [Line(event.at, self._name(event), self._failed(work, step) + last, Stand.FAILED)]

    def _step_skipped(self, event: Event, step: StepStory) -> list[Line]:
        if event.data.get("element") is not None:
            self._work(event, step).stand = Stand.CANCELLED
            return []
        reason = str(event.data.get("reason", "")).replace("_", " ")
        kept = reason == "already completed"
        step.work.stand = Stand.DONE if kept else Stand.SKIPPED
        step.reason = "kept from before" if kept else reason
        if reason == "not taken":
            return []
        text = "kept, it was completed before" if kept else f"skipped: {reason}"
        return [Line(event.at, self._name(event), text, step.work.stand)]

    def _lease_lost(self, event: Event, step: StepStory) -> list[Line]:
        return [Line(event.at, self._name(event), "the worker was lost", Stand.RETRY)]

    def _lease_released(self, event: Event, step: StepStory) -> list[Line]:
        work, seconds = self._work(event, step), event.data.get("seconds")
        work.stand, work.until = Stand.QUEUED, None
        if event.data.get("reason") == "child":
            work.stand = Stand.ASIDE
            if event.data.get("element") is None:
                step.unseen.append(event.data.get("attempt", work.attempt))
        elif seconds is not None:
            work.stand, work.until = Stand.ASIDE, event.at + seconds
            return [Line(event.at, self._name(event), f"sleeps for {seconds:g} s", Stand.ASIDE)]
        return []

    def _retried_by_hand(self, event: Event) -> list[Line]:
        self.status, self.ended_at = "running", None
        for step in self.steps.values():
            if step.work.stand is Stand.DONE:
                continue
            new = StepStory(step.name, step.max_attempts, step.has_elements)
            if step.elements_total is not None:  # those that are done are kept, unless it begins anew
                new.work.attempt, new.elements_total, new.visit = (
                    step.attempt,
                    step.elements_total,
                    step.visit,
                )
                new.elements = {
                    number: work for number, work in step.elements.items() if work.stand is Stand.DONE
                }
            self.steps[step.name] = new
        return [Line(event.at, "", f"retried by hand, from {event.data.get('from_stage')}", None)]

    def _ended(self, event: Event) -> list[Line]:
        self.status, self.ended_at = _EXECUTION_ENDED[event.type], event.at
        for step in self.steps.values():
            if step.counts[Stand.FAILED] and step.work.stand in UNDER_WAY:
                step.work.stand = Stand.FAILED
            for work in (step.work, *step.elements.values()):
                if work.stand in UNDER_WAY:
                    work.stand, work.until = Stand.CANCELLED, None
        return []  # told at the end, with the result

    def _work(self, event: Event, step: StepStory) -> Work:
        element = event.data.get("element")
        return step.work if element is None else step.elements.setdefault(element, Work())

    def _name(self, event: Event) -> str:
        element = event.data.get("element")
        return (event.step or "") if element is None else f"{event.step}[{element}]"

    def _of(self, attempt: int, step: StepStory) -> str:
        return f"{attempt}/{step.max_attempts}"

    def _failed(self, work: Work, step: StepStory) -> str:
        attempt = (
            f"attempt {self._of(work.error.get('attempt', work.attempt), step)} "
            if step.max_attempts > 1
            else ""
        )
        return f"{attempt}failed: {reason_of(work.error)}."


def reason_of(error: dict[str, Any]) -> str:
    """Why an attempt failed, in plain words; with its own where the catalogue has none."""
    words, message = str(error.get("user_message") or ""), str(error.get("message") or "")
    message = " ".join(message.split()).rstrip(".")
    if error.get("category") == Category.UNKNOWN or not words:
        words = f"{words}: {message}" if words and message else words or message
    elif message:
        words = f"{words} ({message})"
    return words.rstrip(".")
