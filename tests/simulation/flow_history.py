"""What the log of a playbook's execution may say: each job's part of it by the grammar of history.py, and
what starts, is skipped or ends by the reference walk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from holdfast.core.model import NO_ELEMENT, Event, EventType, place_of
from holdfast.playbook.definition import Definition, Step
from simulation.history import (
    ALREADY_COMPLETED,
    COOLDOWN_SECONDS,
    MANUAL_RETRIES_MAX,
    History,
    Violation,
    ensure,
)
from simulation.reference import PASS, SKIP, START, Move, NoWayOn, Reference

E = EventType
NOT_TAKEN = "not taken"
CONTROL_ATTEMPTS = 10
LIVE, DONE, DEAD, CANCELLED = "live", "done", "dead", "cancelled"
Key = tuple[int, str, int]  # round, step, place

_OF_AN_ATTEMPT = frozenset(
    {
        E.ACTION_STARTED,
        E.ACTION_COMPLETED,
        E.ACTION_ERROR,
        E.LEASE_LOST,
        E.LEASE_RELEASED,
        E.STEP_RETRY,
        E.STEP_RETRY_EXHAUSTED,
        E.STEP_FAILED_TERMINAL,
    }
)


@dataclass(slots=True)
class Told:
    """A job as the log tells it. `is_put_aside` while it waits for a child, or has been let through since."""

    tale: History
    status: str = LIVE
    is_put_aside: bool = False


@dataclass(slots=True)
class Elements:
    """Of one visit of a step: by number, how each stands."""

    visit: int
    status: dict[int, str]
    output: dict[int, str] = field(default_factory=dict)

    def outputs(self) -> list[Any]:
        return [msgspec.json.decode(self.output[number]) for number in sorted(self.status)]

    @property
    def not_done(self) -> list[int]:
        return [number for number, status in self.status.items() if status != DONE]

    @property
    def left(self) -> int:
        return sum(status == LIVE for status in self.status.values())


class FlowHistory:
    def __init__(self, definition: Definition, execution_id: int, workload: Mapping[str, Any]) -> None:
        self.definition = definition
        self._execution_id = execution_id
        self.reference = Reference(definition, execution_id, workload)
        self.events = 0
        self.round = 1
        self.retries = self.errors = self.manual_retries = 0
        self.jobs: dict[Key, Told] = {}
        self.each: dict[str, Elements] = {}
        """Of the steps that are live, those whose elements are counted out."""
        self.is_failing = False
        self.ended: EventType | None = None
        self._manual_retry_at: float | None = None
        self._error_type = ""
        self._failed_stage = ""
        self._retry: Event | None = None
        self._kept: list[str] = []
        self._told: Counter[Move] = Counter()
        self._expected: Counter[Move] = Counter()
        self._again: dict[str, list[int]] = {}
        self._completing: str | None = None
        self._alone: dict[str, Definition] = {}
        self._late: dict[str, Any] = {}

    def read(self, events: Iterable[Event], outputs: Mapping[Key, str | None]) -> None:
        """`outputs` of all rows: what a step returned is not in the log."""
        for event in events:
            if self._retry is not None and not _begins_a_round(event):
                self._begin_round()
            self._read(event, outputs)
            self.events += 1
        if self._retry is not None:
            self._begin_round()
        self._compare()

    def _compare(self) -> None:
        ensure(
            self._completing is None, "{} is done, and that it has completed is not told", self._completing
        )
        ensure(
            self._told == self._expected,
            "execution {} had to make the moves {}; told are {}",
            self._execution_id,
            self._expected,
            self._told,
        )
        self._told.clear()
        self._expected.clear()

    def _read(self, event: Event, outputs: Mapping[Key, str | None]) -> None:
        step = event.step or ""
        ensure(self.ended is None or event.type is E.MANUAL_RETRY, "after its end: {}", event)
        match event.type:
            case E.EXECUTION_STARTED:
                ensure(self.events == 0, "it began before: {}", event)
            case E.STEP_STARTED | E.STEP_SKIPPED if self._retry is not None and _is_passed(event):
                pass  # a retry need not tell what was not a job and is none again
            case E.STEP_STARTED if event.data.get("control"):
                self._told[Move(PASS, step)] += 1
                self._begin_at(None)
            case E.STEP_STARTED:
                self._start(event, step)
            case E.STEP_COMPLETED if event.data.get("control"):
                pass
            case E.STEP_COMPLETED:
                ensure(self._completing == step, "{} had to complete: {}", self._completing, event)
                self._completing = None
            case E.STEP_SKIPPED if event.data["reason"] == NOT_TAKEN:
                self._told[Move(SKIP, step)] += 1
            case E.STEP_SKIPPED if event.data["reason"] == ALREADY_COMPLETED:
                ensure(self._retry is not None, "nothing was completed: {}", event)
                self._kept.append(step)
            case E.STEP_SKIPPED:
                self._cancel(event)
            case E.EXECUTION_COMPLETED:
                ensure(not self.reference.live, "{} are live: {}", self.reference.live, event)
                left = [key for key, job in self.jobs.items() if job.status == LIVE]
                ensure(not left, "{} have not ended: {}", left, event)
                self._end(event)
            case E.EXECUTION_FAILED:
                deadline = event.data.get("reason") == "deadline"
                ensure(deadline or self.is_failing, "what did it fail of? {}", event)
                self._failed_stage = event.data["stage"]
                self._end(event)
            case E.EXECUTION_CANCELLED:
                self._end(event)
            case E.MANUAL_RETRY:
                self._start_round(event)
            case type_ if type_ in _OF_AN_ATTEMPT:
                self._read_attempt(event, outputs)
            case _:
                raise Violation(f"no playbook tells this: {event}")

    # jobs

    def _key(self, event: Event, element: int | None = None) -> Key:
        number = event.data.get("element", NO_ELEMENT) if element is None else element
        return self.round, event.step or "", place_of(event.data.get("visit", 1), number)

    def _told_job(self, event: Event) -> Told:
        key = self._key(event)
        if key not in self.jobs:
            raise Violation(f"there is no job at {key}: {event}")
        ensure(self.jobs[key].status == LIVE, "it was {}: {}", self.jobs[key].status, event)
        return self.jobs[key]

    def _new_job(self, key: Key, at: float) -> None:
        ensure(key not in self.jobs, "{} started twice", key)
        if key[1] not in self._alone:
            step = self.definition.step(key[1])
            retry = replace(step.retry, max_attempts=CONTROL_ATTEMPTS) if step.is_control else step.retry
            alone = replace(
                step, retry=retry, next=None, on_error=None, for_each=None, max_visits=None, needs=()
            )
            self._alone[key[1]] = Definition(path="alone", steps=(alone,))
        tale = History(self._alone[key[1]], step=key[1], last=E.STEP_STARTED)
        self.jobs[key] = Told(tale)
        step = self.definition.step(key[1])
        is_first = len(self.jobs) == 1  # which may have been submitted for later
        if (
            not is_first
            and step.type == "sleep"
            and step.for_each is None
            and isinstance(step.config["seconds"], float)
        ):
            tale.available_at = at + step.config["seconds"]

    def _read_attempt(self, event: Event, outputs: Mapping[Key, str | None]) -> None:
        job, key = self._told_job(event), self._key(event)
        job.tale.read([event])
        job.is_put_aside = False
        match event.type:
            case E.LEASE_RELEASED if event.data.get("reason") == "sleep":
                job.tale.available_at = event.at + event.data["seconds"]
            case E.LEASE_RELEASED if event.data.get("reason") == "child":
                job.tale.available_at, job.is_put_aside = None, True
            case E.ACTION_ERROR:
                self.errors += 1
                self._error_type = event.data["error_type"]
            case E.STEP_RETRY:
                self.retries += 1
            case E.ACTION_COMPLETED:
                job.status = DONE
                output = outputs.get(key)
                if output is None:
                    raise Violation(f"there is no output: {event}")
                self._job_done(event, key, output)
            case E.STEP_FAILED_TERMINAL:
                job.status = DEAD
                self._job_died(event, key)

    def _is_waited_for(self, event: Event) -> bool:
        return not self.is_failing and self.reference.live.get(event.step or "") == event.data.get("visit", 1)

    def _job_done(self, event: Event, key: Key, output: str) -> None:
        step = self.definition.step(key[1])
        counted = event.data.get("elements")
        if not self._is_waited_for(event):
            ensure(counted is None, "fanned out when nobody waits for it: {}", event)
            self._note_late(event, step, output)
            return
        if step.for_each is not None and "element" not in event.data:
            items: list[Any] = msgspec.json.decode(output)
            ensure((counted or 0) == len(items), "{} elements of {}: {}", counted, items, event)
            if items:
                visit = event.data.get("visit", 1)
                self.each[key[1]] = Elements(visit, dict.fromkeys(range(len(items)), LIVE))
                for number in range(len(items)):
                    self._new_job((self.round, key[1], place_of(visit, number)), event.at)
            else:
                self._step_completed(key[1], [])
        elif step.for_each is not None:
            each, number = self.each[key[1]], event.data["element"]
            each.status[number], each.output[number] = DONE, output
            self._element_ended(step, each)
        else:
            self._step_completed(key[1], msgspec.json.decode(output))

    def _note_late(self, event: Event, step: Step, output: str) -> None:
        """It ended when its execution had failed of another one, which is to be retried yet."""
        if self.reference.live.get(step.name) != event.data.get("visit", 1):
            return
        if step.for_each is None:
            self._late[step.name] = msgspec.json.decode(output)
        elif (each := self.each.get(step.name)) and "element" in event.data:
            each.status[event.data["element"]] = DONE
            each.output[event.data["element"]] = output

    def _job_died(self, event: Event, key: Key) -> None:
        if not self._is_waited_for(event):
            return
        step = self.definition.step(key[1])
        if step.for_each is not None and "element" in event.data:
            each = self.each[key[1]]
            each.status[event.data["element"]] = DEAD
            if step.for_each.fail_fast:
                self._step_died(step)
            else:
                self._element_ended(step, each)
        else:
            self._step_died(step)

    def _element_ended(self, step: Step, each: Elements) -> None:
        if each.left:
            return
        if DEAD in each.status.values():
            self._step_died(step)
        else:
            del self.each[step.name]
            self._step_completed(step.name, each.outputs())

    def _step_completed(self, step: str, output: Any) -> None:
        self._completing = step
        try:
            self._expected.update(self.reference.completed(step, output))
        except NoWayOn:
            raise Violation(f"{step} has completed with {output}, and there is no way on") from None

    def _step_died(self, step: Step) -> None:
        if step.on_error is not None:
            try:
                self._expected.update(self.reference.died(step.name))
                self.each.pop(step.name, None)
                return
            except NoWayOn:
                pass
        self.is_failing = True

    def _cancel(self, event: Event) -> None:
        job = self._told_job(event)
        ensure(not self._is_waited_for(event), "{} is waited for: {}", event.step, event)
        job.status = CANCELLED

    # beginnings and ends

    def _begin_at(self, entry: str | None) -> None:
        if self._expected or self.jobs or self.round > 1:
            return
        is_job = entry is not None and self.definition.step(entry).is_control
        try:
            moves = self.reference.tried().begin()
        except NoWayOn:
            moves = []
        starts = [move.step for move in moves if move.what == START]
        if is_job or (entry is not None and starts != [entry]):
            self._expected.update(self.reference.begin_at_entry())
        else:
            self._expected.update(self.reference.begin())

    def _start(self, event: Event, step: str) -> None:
        if self._retry is not None:
            numbers = event.data.get("elements", [NO_ELEMENT])
            self._again.setdefault(step, []).extend(numbers)
            for number in numbers:
                self._new_job(self._key(event, number), event.at)
            if numbers == [NO_ELEMENT]:
                self._told[Move(START, step, event.data.get("visit", 1))] += 1
            return
        self._begin_at(step)
        self._told[Move(START, step, event.data.get("visit", 1))] += 1
        self._new_job(self._key(event), event.at)

    def _end(self, event: Event) -> None:
        self.ended = event.type
        for job in self.jobs.values():
            if job.status == LIVE:
                job.status = CANCELLED

    def _start_round(self, event: Event) -> None:
        ensure(self.ended is E.EXECUTION_FAILED, "it has not failed: {}", event)
        self._compare()
        if not event.data.get("redrive"):
            ensure(self.manual_retries < MANUAL_RETRIES_MAX, "retried too often: {}", event)
            if self._manual_retry_at is not None:
                ensure(event.at >= self._manual_retry_at + COOLDOWN_SECONDS, "retried too soon: {}", event)
            self.manual_retries += 1
            self._manual_retry_at = event.at
        self.round += 1
        self._retry, self._kept, self._again = event, [], {}
        self.is_failing, self.ended = False, None

    def _begin_round(self) -> None:
        """Which steps a round begins with: those that were live, or those that come first from some step on.
        A full retry names the step that it begins with, and so it is told from the first of these by what
        it keeps."""
        assert self._retry is not None
        event, self._retry = self._retry, None
        stage = event.data["from_stage"]
        if stage == self._failed_stage and self._goes_on_as_told():
            return
        tried = self.reference.afresh()
        begun = tried.begin_at_entry()
        if self._told == Counter(begun) and self.definition.step(begun[0].step).is_control:
            self._go_on_with(tried)
            return
        left = {step: each.not_done for step, each in self.each.items()}
        late = self._late | {step: self.each[step].outputs() for step, numbers in left.items() if not numbers}
        for name in (stage, None):
            tried = self.reference.tried()
            try:
                moves = tried.resumed_from(name, late, [step for step, numbers in left.items() if numbers])
            except NoWayOn:
                continue
            starts = Counter(move for move in moves if move.what == START)
            kept = {step for step in self._kept if not tried.has_completed(step)}
            begun = {move.step: [NO_ELEMENT] for move in starts}
            partly = {
                step: numbers for step, numbers in left.items() if step in tried.live and step not in begun
            }
            if starts == self._told and self._again == begun | partly and not kept:
                self._go_on_with(tried, partly)
                return
        raise Violation(f"{event} of {self.reference.live} began with {self._told}, kept {self._kept}")

    def _go_on_with(self, reference: Reference, partly: Mapping[str, list[int]] | None = None) -> None:
        self.reference, self._late = reference, {}
        self.each = {step: self.each[step] for step in partly or ()}
        for step, numbers in (partly or {}).items():
            self.each[step].status.update(dict.fromkeys(numbers, LIVE))
        self._told.clear()

    def _goes_on_as_told(self) -> bool:
        """All that was live is done again, of elements those that are not done; but what has ended since is
        gone on from."""
        tried = self.reference.tried()
        expected = {
            step: self.each[step].not_done
            if step in self.each
            else []
            if step in self._late
            else [NO_ELEMENT]
            for step in tried.live
        }
        for step in [step for step, numbers in expected.items() if not numbers]:
            output = self._late[step] if step in self._late else self.each[step].outputs()
            try:
                moves = tried.completed(step, output)
            except NoWayOn:
                return False
            del expected[step]
            expected |= {move.step: [NO_ELEMENT] for move in moves if move.what == START}
        if {step: sorted(numbers) for step, numbers in self._again.items()} != expected:
            return False
        wrong = [step for step in self._kept if not tried.has_completed(step)]
        ensure(not wrong, "execution {}: {} are not complete, and kept", self._execution_id, wrong)
        self.reference, self._late = tried, {}
        self.each = {step: each for step, each in self.each.items() if step in tried.live}
        for step, each in self.each.items():
            each.status.update(dict.fromkeys(expected[step], LIVE))
        self._told.clear()
        return True


def _begins_a_round(event: Event) -> bool:
    """Whether it can be told with a retry, and is then not told after it."""
    is_control = event.type is E.STEP_COMPLETED and event.data.get("control")
    is_skip = event.type is E.STEP_SKIPPED and event.data["reason"] in (NOT_TAKEN, ALREADY_COMPLETED)
    return bool(event.type is E.STEP_STARTED or is_control or is_skip)


def _is_passed(event: Event) -> bool:
    return bool(event.data.get("control")) or event.data.get("reason") == NOT_TAKEN
