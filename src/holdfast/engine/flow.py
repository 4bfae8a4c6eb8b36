"""How an execution goes on whose playbook is more than a chain of steps: what starts, is skipped, fans out,
is handled, or fails, when one of its jobs has ended.

    a job ended ──▶ its step has ended? (the last of many elements) ──▶ the planner's moves ──▶ jobs and
    events

A death that nothing handles stops the execution: what waits is cancelled, what runs is waited for, then it
has failed. Its plan keeps the steps that were live, so that a retry goes on from exactly there.

Pure, like the settle plan whose transactions it works in; one `Flow` is one run of that plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core import transitions
from holdfast.core.failures import StoredError
from holdfast.core.handlers import EACH, SLEEP
from holdfast.core.model import (
    ELEMENTS_MAX,
    NO_ELEMENT,
    EventType,
    ExecutionState,
    ExecutionStatus,
    JobState,
    JobStatus,
    element_of,
    place_of,
    told_place,
)
from holdfast.core.payload import a_type
from holdfast.engine.decisions import Decided, Decisions, Key, Needed, TooOften, Undecidable
from holdfast.engine.definitions import Definitions
from holdfast.engine.events import event
from holdfast.playbook import plan
from holdfast.playbook.definition import Step
from holdfast.playbook.plan import Each, Ended, Inputs, Pass, Skip, Start, State, TooManyVisits
from holdfast.store.changes import ChangedJob, Changes, NewJob, NextElements
from holdfast.store.interface import Output

FOR_EACH = "for_each"
NOT_TAKEN = "not taken"
EACH_HANDLER = EACH
ENTRY_HANDLER = SLEEP
CONTROL_ATTEMPTS = 10
# What one transaction hands on and what waits in joins, together: so often what a payload may be.
HANDED_PAYLOADS_MAX = 16
# Of control steps that one end leads through: each that has conditions is another run of the transaction.
DECISIONS_MAX = 500
Event = dict[str, Any]


class SiblingsNeeded(Exception):
    """What this report does to its execution cannot be told without the other jobs of it."""


class DecisionMissing(Exception):
    def __init__(self, needed: Needed) -> None:
        super().__init__(needed.key)
        self.needed = needed


class Flow:
    """`siblings` has all jobs of the executions at hand, where they were loaded."""

    def __init__(
        self,
        definitions: Definitions,
        decisions: Decisions,
        made: Mapping[Key, Decided | Undecidable],
        changes: Changes,
        now: float,
        siblings: Mapping[int, JobState] | None = None,
    ) -> None:
        self._definitions = definitions
        self._decisions = decisions
        self._made = made
        self._changes = changes
        self._now = now
        self._siblings = siblings
        self._outputs: list[Output] = []

    def waits_for(self, execution: ExecutionState, job: JobState) -> bool:
        """Whether the execution goes on by this job: not where it has failed already and only waits for what
        is under way, nor where the step has ended without this element."""
        state = _state(execution)
        return state.failing is None and state.live.get(job.step) == job.visit

    # how a job ended

    def completed(
        self, execution: ExecutionState, job: JobState, output: str
    ) -> tuple[ExecutionState, list[Event]]:
        """The execution after this job has completed, and what its log says of it after the attempt's end."""
        definition, state = self._definitions[execution.definition_id], _state(execution)
        step = definition.step(job.step)
        self._outputs.append(Output(execution.id, job.step, job.round, output, job.element))
        if state.failing is not None:
            return self._one_less(execution, state)
        if state.live.get(job.step) != job.visit:
            return self._straggler_ended(execution, state)
        if step.for_each is not None:
            if not job.is_element:
                if items := _items(step, output):
                    self._fan_out(execution, state, step, job, items)
                    return _with(execution, state), []
            elif (each := self._element_ended(execution, state, job)).left:
                return _with(execution, state), []
            elif each.dead:
                return self._died(execution, state, job, _first(each))
            else:
                del state.each[job.step]
        moves = self._ended(execution, state, job, Ended.COMPLETED)
        error = execution.error
        if error is not None and msgspec.json.decode(error)["stage"] == job.step:
            error = None
        execution = msgspec.structs.replace(execution, last_completed_stage=job.step, error=error)
        told = [
            event(EventType.STEP_COMPLETED, job.step, **_visited(job)),
            *self._moved(execution, job, moves),
        ]
        return self._went_on(execution, state, told)

    def forget_output(self) -> None:
        """What was completed last has turned out to be none."""
        self._outputs.pop()

    def died(
        self, execution: ExecutionState, job: JobState, error: StoredError, *, is_handled: bool = True
    ) -> tuple[ExecutionState, list[Event]]:
        """The execution after this job has died of the error. Without `is_handled` it fails of it, whatever
        its playbook would do."""
        state = _state(execution)
        if state.failing is not None:
            return self._one_less(execution, state)
        if state.live.get(job.step) != job.visit:
            return self._straggler_ended(execution, state)
        step = self._definitions[execution.definition_id].step(job.step)
        if step.for_each is not None and job.is_element:
            told = f"Element {element_of(job.element)}: {error.message}"
            kept = msgspec.json.encode(msgspec.structs.replace(error, message=told)).decode()
            each = self._element_ended(execution, state, job, died=kept)
            if each.left and not step.for_each.fail_fast:
                return _with(execution, state), []
            error = _first(each)
        return self._died(execution, state, job, error, is_handled=is_handled)

    def cancelled(self, execution: ExecutionState, job: JobState) -> tuple[ExecutionState, list[Event]]:
        """The execution after the attempt of a job that it does not wait for has ended, and the job with
        it."""
        state = _state(execution)
        reason = "the execution has failed" if state.failing is not None else f"{job.step} has ended"
        told = [event(EventType.STEP_SKIPPED, job.step, reason=reason, **told_place(job.element))]
        if state.failing is None:
            execution, ending = self._straggler_ended(execution, state)
        else:
            execution, ending = self._one_less(execution, state)
        return execution, told + ending

    # elements

    def _fan_out(
        self, execution: ExecutionState, state: State, step: Step, job: JobState, items: list[Any]
    ) -> None:
        assert step.for_each is not None
        room = min(step.for_each.concurrency or len(items), len(items))
        state.each[step.name] = Each(left=len(items), held=len(items) - room)
        for number, item in enumerate(items):
            self._changes.new_jobs.append(
                new_job(
                    step,
                    execution,
                    job.round,
                    self._now,
                    place=place_of(job.visit, number),
                    input=msgspec.json.encode({"item": item}).decode(),
                    held_by=FOR_EACH if number >= room else None,
                )
            )

    def _element_ended(
        self, execution: ExecutionState, state: State, job: JobState, *, died: str | None = None
    ) -> Each:
        each = state.each[job.step]
        each.left -= 1
        if died is not None:
            each.dead += 1
            each.error = each.error or died
        if each.held:
            each.held -= 1
            self._let_through(execution.id, job)
        return each

    def _let_through(self, execution_id: int, job: JobState) -> None:
        waiting = self._changes.let_through
        for place, item in enumerate(waiting):
            if item[:3] == (execution_id, job.step, job.round):
                waiting[place] = item._replace(jobs=item.jobs + 1)
                return
        waiting.append(NextElements(execution_id, job.step, job.round, 1))

    # deaths

    def _died(
        self,
        execution: ExecutionState,
        state: State,
        job: JobState,
        error: StoredError,
        *,
        is_handled: bool = True,
    ) -> tuple[ExecutionState, list[Event]]:
        """The step is dead: its handler takes over, or the execution fails."""
        told: list[Event] = []
        step = self._definitions[execution.definition_id].step(job.step)
        fails_fast = step.for_each is not None and step.for_each.fail_fast
        if step.on_error is not None and is_handled:
            state.each.pop(job.step, None)
            moves = self._ended(execution, state, job, Ended.DIED, error=_shown(error))
            if fails_fast:
                told += self._cancel(execution, job, only=job.step)
                state.stragglers += self._under_way(execution, job, only=job.step)
            told += self._moved(execution, job, moves)
            return self._went_on(execution, state, told)
        state.failing = 0
        if len(state.live) > 1 or fails_fast or state.stragglers:
            told += self._cancel(execution, job)
            state.failing, state.stragglers = self._under_way(execution, job), 0
        kept = msgspec.json.encode(error).decode()
        return self._failed_once_quiet(msgspec.structs.replace(execution, error=kept), state, told)

    def _cancel(self, execution: ExecutionState, ended: JobState, only: str | None = None) -> list[Event]:
        """What waits is not begun any more."""
        if self._siblings is None:
            raise SiblingsNeeded
        told = []
        for job in self._siblings.values():
            if job.id == ended.id or job.execution_id != execution.id or only not in (None, job.step):
                continue
            if job.status in (JobStatus.QUEUED, JobStatus.RETRY):
                self._changes.jobs.append(ChangedJob(transitions.cancel(job)))
                reason = f"{ended.step} failed"
                told.append(event(EventType.STEP_SKIPPED, job.step, reason=reason, **told_place(job.element)))
        return told

    def _under_way(self, execution: ExecutionState, ended: JobState, only: str | None = None) -> int:
        """How many other jobs are leased; of one step, those of this visit."""
        assert self._siblings is not None
        return sum(
            job.status is JobStatus.LEASED
            and job.execution_id == execution.id
            and job.id != ended.id
            and (only is None or (job.step, job.visit) == (only, ended.visit))
            for job in self._siblings.values()
        )

    def _straggler_ended(self, execution: ExecutionState, state: State) -> tuple[ExecutionState, list[Event]]:
        """An element of a step that has ended without it. The execution ends when the last of them has."""
        state.stragglers -= 1
        return self._went_on(execution, state, [])

    def _one_less(self, execution: ExecutionState, state: State) -> tuple[ExecutionState, list[Event]]:
        assert state.failing is not None
        state.failing -= 1
        return self._failed_once_quiet(execution, state, [])

    def _failed_once_quiet(
        self, execution: ExecutionState, state: State, told: list[Event]
    ) -> tuple[ExecutionState, list[Event]]:
        if state.failing:
            return _with(execution, state), told
        state.failing = None
        assert execution.error is not None
        error = msgspec.json.decode(execution.error, type=StoredError)
        return (
            _with(execution, state, status=ExecutionStatus.FAILED),
            [*told, execution_failed(error)],
        )

    # the planner

    def _ended(
        self,
        execution: ExecutionState,
        state: State,
        job: JobState,
        how: Ended,
        error: dict[str, Any] | None = None,
    ) -> list[Start | Pass | Skip]:
        graph = self._definitions.graph(execution.definition_id)
        decisions = 0

        def decide(name: str, handed: Inputs) -> Decided:
            nonlocal decisions
            if self._decisions.ways(execution.definition_id, name).decided is None:
                decisions += 1
            if decisions > DECISIONS_MAX:
                raise Undecidable(
                    f"More than {DECISIONS_MAX} steps decide at once what comes after {job.step}."
                )
            # What was handed to a step that runs for each of many is not in its elements' rows.
            given = None if name == job.step and job.is_element else handed
            return self.decide(execution, job.round, name, state.visits.get(name, 1), given)

        try:
            inputs = _inputs(job) if error is None else {"error": error}
            moves = plan.ended(graph, state, job.step, how, decide, inputs)
            self._check_handed(state, moves)
            return moves
        except TooManyVisits as error:
            raise TooOften(
                f"The loop did not end: step {error.step} would run once more, and its max_visits allows"
                f" {error.max_visits}."
            ) from error

    def _check_handed(self, state: State, moves: Iterable[Start | Pass | Skip]) -> None:
        """Each edge hands on no more than a payload may be; where many meet, neither may all of them."""
        handed = [(move.step, move.inputs) for move in moves if isinstance(move, Start)]
        handed += [(step, join.inputs) for step, join in state.joins.items()]
        for region in state.regions.values():
            handed += [*region.back.items(), *region.exits.items()]
        each_max = self._decisions.payload_bytes_max
        left = HANDED_PAYLOADS_MAX * each_max
        for step, inputs in handed:
            size = 0
            for value in inputs.values():  # one by one: together they may be what memory does not hold
                size += len(msgspec.json.encode(value))
                if size > each_max:
                    raise Undecidable(
                        f"What is handed on to {step} is together more than {each_max:,} bytes."
                    )
                if size > left:
                    raise Undecidable(
                        f"What is handed on at once is more than {HANDED_PAYLOADS_MAX * each_max:,} bytes."
                    )
            left -= size

    def decide(
        self, execution: ExecutionState, round_: int, name: str, visit: int, handed: Inputs | None
    ) -> Decided:
        ways = self._decisions.ways(execution.definition_id, name)
        if ways.decided is not None:
            return ways.decided
        needed = Needed(
            execution.id,
            execution.definition_id,
            round_,
            name,
            visit,
            handed,
            tuple(
                output
                for output in self._outputs
                if output.execution_id == execution.id and output.step in ways.reads
            ),
        )
        if (made := self._made.get(needed.key)) is None:
            raise DecisionMissing(needed)
        if isinstance(made, Undecidable):
            raise made
        return made

    def _moved(
        self, execution: ExecutionState, job: JobState, moves: Iterable[Start | Pass | Skip]
    ) -> list[Event]:
        definition = self._definitions[execution.definition_id]
        told: list[Event] = []
        for move in moves:
            told += told_move(move)
            if isinstance(move, Start):
                step = definition.step(move.step)
                self._changes.new_jobs.append(started(step, execution, job.round, self._now, move))
        return told

    def _went_on(
        self, execution: ExecutionState, state: State, told: list[Event]
    ) -> tuple[ExecutionState, list[Event]]:
        if state.live or state.stragglers:
            return _with(execution, state), told
        told.append(event(EventType.EXECUTION_COMPLETED))
        completed = msgspec.structs.replace(
            execution, error=None, status=ExecutionStatus.COMPLETED, plan=None
        )
        return completed, told


def started(step: Step, execution: ExecutionState, round_: int, now: float, start: Start) -> NewJob:
    return new_job(
        step,
        execution,
        round_,
        now,
        place=place_of(start.visit, NO_ELEMENT),
        input=msgspec.json.encode(start.inputs).decode() if start.inputs else None,
    )


def new_job(
    step: Step,
    execution: ExecutionState,
    round_: int,
    now: float,
    *,
    place: int,
    input: str | None,
    held_by: str | None = None,
) -> NewJob:
    is_element = element_of(place) != NO_ELEMENT
    return NewJob(
        execution_id=execution.id,
        step=step.name,
        round=round_,
        group=step.claim_group(
            execution.path, execution.lane, handler=handler_of(step, is_element=is_element)
        ),
        max_attempts=attempts_of(step),
        available_at=now + constant_sleep(step),
        held_by=held_by,
        element=place,
        input=input,
    )


def attempts_of(step: Step) -> int:
    """How often a job of this step may be tried. What only decides is not to blame for the loss of a
    worker."""
    return CONTROL_ATTEMPTS if step.is_control else step.retry.max_attempts


def _items(step: Step, output: str) -> list[Any]:
    items = msgspec.json.decode(output)
    if not isinstance(items, list):
        raise Undecidable(f"for_each of step {step.name} needs a list, not {a_type(items)}.")
    if len(items) > ELEMENTS_MAX:
        raise Undecidable(
            f"for_each of step {step.name} has {len(items):,} items; {ELEMENTS_MAX:,} are allowed."
        )
    return items


def handler_of(step: Step, *, is_element: bool) -> str:
    """What runs a job of this step. Before the elements of a step there is one job that makes the list of
    them; a control step is a job only where it is the entry and has something to decide."""
    if step.is_control:
        return ENTRY_HANDLER
    return EACH_HANDLER if step.for_each is not None and not is_element else step.handler


def constant_sleep(step: Step) -> float:
    """How long the job of a sleep waits before anybody needs to look at it."""
    seconds = step.config.get("seconds") if step.type == "sleep" and step.for_each is None else None
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def told_move(move: Start | Pass | Skip) -> list[Event]:
    if isinstance(move, Skip):
        return [event(EventType.STEP_SKIPPED, move.step, reason=NOT_TAKEN)]
    if isinstance(move, Pass):
        return [
            event(EventType.STEP_STARTED, move.step, control=True),
            event(EventType.STEP_COMPLETED, move.step, control=True),
        ]
    return [event(EventType.STEP_STARTED, move.step, **told_place(place_of(move.visit, NO_ELEMENT)))]


def execution_failed(error: StoredError, **data: Any) -> Event:
    return event(
        EventType.EXECUTION_FAILED,
        stage=error.stage,
        error_type=error.error_type,
        user_message=error.user_message,
        guidance=error.guidance,
        **data,
    )


def _shown(error: StoredError) -> dict[str, Any]:
    """What a handler is told of the error that it is there for."""
    return {
        "type": error.error_type,
        "category": error.category.value,
        "message": error.message,
        "step": error.stage,
        "user_message": error.user_message,
        "guidance": error.guidance,
    }


def _state(execution: ExecutionState) -> State:
    assert execution.plan is not None, f"execution {execution.id} has lost its plan"
    return State.from_json(execution.plan)


def _with(execution: ExecutionState, state: State, **changes: Any) -> ExecutionState:
    return msgspec.structs.replace(execution, plan=state.to_json(), **changes)


def _first(each: Each) -> StoredError:
    assert each.error is not None
    return msgspec.json.decode(each.error, type=StoredError)


def _inputs(job: JobState) -> Inputs:
    return msgspec.json.decode(job.input) if job.input and not job.is_element else {}


def _visited(job: JobState) -> dict[str, int]:
    return told_place(place_of(job.visit, NO_ELEMENT))
