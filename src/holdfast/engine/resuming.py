"""A new round of a playbook that is more than a chain of steps: what is done again, and what is kept.

By default everything goes on that had begun and not ended, as the plan of the failed execution tells: of a
step that runs for each of many only the elements that are not done. From an earlier step, the planner walks
the way again over what is kept: that is what was done, but for the step itself and all that comes behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.model import (
    NO_ELEMENT,
    EventType,
    ExecutionState,
    JobState,
    JobStatus,
    element_of,
    place_of,
    told_place,
)
from holdfast.engine.beginning import beginning_of
from holdfast.engine.decisions import Decided, Decisions, DecisionsMissing, Undecidable
from holdfast.engine.definitions import Definitions
from holdfast.engine.events import event
from holdfast.engine.flow import FOR_EACH, DecisionMissing, Flow, new_job, started
from holdfast.playbook import plan
from holdfast.playbook.graph import Graph
from holdfast.playbook.plan import Each, Ended, Inputs, Start, State, TooManyVisits
from holdfast.store.changes import Changes, NewJob

T = TypeVar("T")


class Resumed(NamedTuple):
    """The execution's plan and its new jobs, with the events that tell them; the steps that are `kept`, and
    those whose outputs count no longer."""

    plan: str
    new_jobs: list[NewJob]
    events: list[dict[str, Any]]
    kept: list[str]
    superseded: list[tuple[int, str]]


class Resuming:
    """One retry of one execution; `made` are the decisions that it has asked for before."""

    def __init__(
        self,
        definitions: Definitions,
        decisions: Decisions,
        made: dict[Any, Decided | Undecidable],
        execution: ExecutionState,
        jobs: Sequence[JobState],
        now: float,
    ) -> None:
        self._definition = definitions[execution.definition_id]
        self._graph: Graph = definitions.graph(execution.definition_id)
        self._flow = Flow(definitions, decisions, made, Changes(), now)
        self._execution = execution
        self._now = now
        self._round = execution.round + 1
        assert execution.plan is not None
        self._state = State.from_json(execution.plan)
        # Of each place the last row there is, in the order in which they began.
        self._last: dict[tuple[str, int], JobState] = {}
        for job in sorted(jobs, key=lambda job: (job.round, job.id)):
            if job.execution_id == execution.id and not job.superseded:
                self._last[job.step, job.element] = job
        self._last_visit: dict[str, int] = {}
        for (step, _), job in self._last.items():
            self._last_visit[step] = max(job.visit, self._last_visit.get(step, 1))

    def from_where_it_stopped(self) -> Resumed:
        state, new, events = self._state, [], []
        # What was under way for others has ended with the execution.
        state.failing, state.stragglers = None, 0
        done: dict[str, Inputs] = {}
        for name, visit in state.live.items():
            root = self._root(name, visit)
            told = told_place(root.element)
            if name in state.each:
                jobs, elements = self._elements_again(state, name, visit)
                told |= elements
            elif root.status is JobStatus.DONE and self._definition.step(name).for_each is None:
                jobs = []
            else:
                jobs = [self._again(root)]
            if not jobs:  # it was under way when the execution failed, and has completed since
                done[name] = msgspec.json.decode(root.input) if root.input else {}
                continue
            new += jobs
            events.append(event(EventType.STEP_STARTED, name, **told))
        kept = self._kept(set(state.live) - done.keys())
        for name, inputs in done.items():
            state.each.pop(name, None)
            moves = self._planned(
                lambda name=name, inputs=inputs: plan.ended(  # type: ignore[misc]
                    self._graph, state, name, Ended.COMPLETED, self._decide, inputs
                ),
                behind=name,
            )
            for start in (move for move in moves if isinstance(move, Start)):
                new.append(self._started(start))
                events.append(event(EventType.STEP_STARTED, start.step, **told_place(new[-1].element)))
        return Resumed(state.to_json(), new, events, kept, [])

    def _root(self, name: str, visit: int) -> JobState:
        return self._last[name, place_of(visit, NO_ELEMENT)]

    def _elements_again(self, state: State, name: str, visit: int) -> tuple[list[NewJob], dict[str, Any]]:
        """New jobs for the elements of a step that are not done, and how that is told."""
        again = [
            job
            for (step, _), job in self._last.items()
            if step == name and job.visit == visit and job.is_element and job.status is not JobStatus.DONE
        ]
        state.each[name], jobs = self._elements(name, again)
        return jobs, {"elements": [element_of(job.element) for job in again]}

    def _elements(self, name: str, again: list[JobState]) -> tuple[Each, list[NewJob]]:
        each = self._definition.step(name).for_each
        assert each is not None
        room = min(each.concurrency or len(again), len(again))
        jobs = [self._again(job, FOR_EACH if number >= room else None) for number, job in enumerate(again)]
        return Each(left=len(again), held=len(again) - room), jobs

    def _again(self, job: JobState, held_by: str | None = None) -> NewJob:
        step = self._definition.step(job.step)
        return new_job(
            step, self._execution, self._round, self._now, place=job.element, input=job.input, held_by=held_by
        )

    def from_step(self, name: str | None) -> Resumed:
        """From this step on; from the beginning where none is named."""
        again = set(self._graph.out) if name is None else {name, *self._graph.behind(name)}
        for first in self._state.regions:  # a cycle is kept whole, or not at all
            again.update(self._graph.members[first])
        for step in self._state.live:
            again.update(self._graph.members.get(self._graph.region.get(step, ""), ()))
        if name is not None and name not in self._last_visit:
            raise InvalidInput(
                f"Execution {self._execution.id} has not come to {name}.",
                guidance=f"Retry from one of: {', '.join(self._last_visit)}.",
            )
        if self._graph.entry in again:
            return self._from_the_beginning()
        kept = self._kept(again | self._without_elements())
        handled = self._handled(again)
        # Of many elements elsewhere only those that are not done are run again.
        partly = self._state.each.keys() - {*again, *kept}
        left = {
            first: keys
            for first, keys in self._state.left.items()
            if again.isdisjoint(self._graph.members[first])
        }
        visits = {step: self._last_visit[step] for step in kept}
        for step in (step for first in left for step in self._graph.members[first]):
            if step in self._graph.control and step in self._state.visits:
                visits[step] = self._state.visits[step]
        state, moves = self._planned(lambda: plan.resumed(self._graph, visits, handled, left, self._decide))
        new, events, kept_rows = [], [], {*kept, *handled}
        for start in (move for move in moves if isinstance(move, Start)):
            told = told_place(place_of(start.visit, NO_ELEMENT))
            if start.step in partly:
                jobs, elements = self._elements_again(state, start.step, start.visit)
                told |= elements
                kept_rows.add(start.step)
            else:
                jobs = [self._started(start)]
            new += jobs
            events.append(event(EventType.STEP_STARTED, start.step, **told))
        if not new:
            raise _cannot_be_gone_again("it leads nowhere this time")
        again = self._last_visit.keys() - kept_rows
        superseded = [(self._execution.id, step) for step in sorted(again)]
        return Resumed(state.to_json(), new, events, kept, superseded)

    def _without_elements(self) -> set[str]:
        """Steps whose lists were made when the execution was failing: nobody has fanned out."""
        return {
            name
            for name in self._state.live.keys() - self._state.each.keys()
            if self._definition.step(name).for_each is not None
        }

    def _from_the_beginning(self) -> Resumed:
        """As it was submitted: with one job, which decides what comes next."""
        beginning = beginning_of(self._definition)
        first = new_job(
            self._definition.step(beginning.step),
            self._execution,
            self._round,
            self._now,
            place=NO_ELEMENT,
            input=beginning.input,
        )
        _execution_started, *events = msgspec.json.decode(beginning.events)
        superseded = [(self._execution.id, step) for step in sorted(self._last_visit)]
        return Resumed(beginning.plan, [first], events, [], superseded)

    def _planned(self, walk: Callable[[], T], *, behind: str | None = None) -> T:
        try:
            return walk()
        except DecisionMissing as missing:
            raise DecisionsMissing([missing.needed]) from missing
        except (Undecidable, TooManyVisits) as error:
            raise _cannot_be_gone_again(error, behind) from error

    def _started(self, start: Start) -> NewJob:
        step = self._definition.step(start.step)
        return started(step, self._execution, self._round, self._now, start)

    def _decide(self, name: str, handed: Inputs) -> Decided:
        """Of a step that was a job, with what was handed to it then."""
        visit = self._last_visit.get(name)
        given = handed if visit is None else None
        return self._flow.decide(self._execution, self._round, name, visit or 1, given)

    def _kept(self, again: set[str]) -> list[str]:
        """The steps that are done, but for these, in the order in which they ended."""
        kept: dict[str, bool] = {}
        for (step, _), job in self._last.items():
            if step not in again:
                kept[step] = kept.get(step, True) and (
                    job.status is JobStatus.DONE or job.visit < self._last_visit[step]
                )
        return [step for step, is_done in kept.items() if is_done]

    def _handled(self, again: set[str]) -> dict[str, Inputs]:
        """Steps that died and were handled, with what their handlers were told."""
        return {
            name: told
            for name, told in self._state.handled.items()
            if name not in again and name not in self._state.live
        }


def _cannot_be_gone_again(why: object, behind: str | None = None) -> InvalidInput:
    """`behind` is the step that completed while the execution failed, after which nothing can come."""
    return InvalidInput(
        f"The way that it took cannot be gone again: {why}",
        guidance="Retry it in full." if behind is None else f"Retry it from {behind}, or in full.",
    )
