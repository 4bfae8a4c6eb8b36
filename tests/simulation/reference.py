"""Where an execution of a playbook may go, walked independently of the planner: slowly, and with everything
that was decided kept.

    what has ended ──▶ every step all of whose edges are resolved starts, or is skipped ──▶ again, until
    nothing moves

The planner keeps counts of what is open, and asks conditions again when an execution is resumed; this one
keeps the answers themselves, so that the two can only agree where both are right.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from holdfast.core.errors import HoldfastError
from holdfast.playbook.definition import Definition
from holdfast.playbook.graph import Graph, Link
from holdfast.playbook.template import compile_condition, compile_value
from holdfast.playbook.variables import edge_variables, step_variables

Inputs = dict[str, Any]
DONE, DIED, SKIPPED = "done", "died", "skipped"
START, PASS, SKIP = "start", "pass", "skip"


class Move(NamedTuple):
    what: str
    step: str
    visit: int = 1


class NoWayOn(Exception):
    """A condition has no answer, or a step would be visited too often."""


class _Kept:
    """What is remembered of a way. `handed` has every edge that is resolved, with what it handed on; `exits`
    those that leave a cycle which has not come to rest."""

    def __init__(self) -> None:
        self.live: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.visits: dict[str, int] = {}
        self.inputs: dict[str, Inputs] = {}
        self.outputs: dict[str, Any] = {}
        self.handed: dict[Link, Inputs | None] = {}
        self.exits: dict[Link, Inputs | None] = {}
        self.back: dict[str, dict[str, Inputs]] = {}
        self.turn: dict[str, frozenset[str]] = {}
        self.seeds: dict[str, Inputs] = {}
        self.at_rest: set[str] = set()
        self.deaths: set[str] = set()

    def copied(self) -> _Kept:
        """What is inside of these is never changed, only replaced."""
        other = _Kept()
        for name, known in vars(self).items():
            setattr(other, name, known.copy())
        return other


class Reference:
    def __init__(self, definition: Definition, execution_id: int, workload: Mapping[str, Any]) -> None:
        self._definition = definition
        self._execution_id = execution_id
        self._workload = workload
        self._graph = graph = Graph(definition)
        self._into: dict[str, list[Link]] = {name: [] for name in graph.out}
        for name in graph.order:
            for link in graph.out[name]:
                if not graph.is_back(link):
                    self._into[link.target].append(link)
        self._kept = _Kept()
        self._moves: list[Move] = []

    @property
    def live(self) -> dict[str, int]:
        return self._kept.live

    @property
    def inputs(self) -> dict[str, Inputs]:
        return self._kept.inputs

    @property
    def outputs(self) -> dict[str, Any]:
        return self._kept.outputs

    def has_died(self, step: str) -> bool:
        """Of a step in a cycle: at its last visit."""
        return step in self._kept.deaths

    def has_completed(self, step: str) -> bool:
        """Of a step in a cycle: at some visit."""
        return self._kept.ended.get(step) == DONE or step in self.outputs

    # what happens

    def begin_at_entry(self) -> list[Move]:
        """With the entry as a job, although it is control flow."""
        entry = self._graph.entry
        self.live[entry] = 1
        self.inputs[entry] = {}
        if self._counts_visits(entry):
            self._kept.visits[entry] = 1
        return [Move(START, entry)]

    def begin(self) -> list[Move]:
        return self._moved(lambda: self._start(self._graph.entry, {}))

    def completed(self, step: str, output: Any) -> list[Move]:
        def end() -> None:
            if step not in self._graph.control:
                self.outputs[step] = output
            self._end(step, DONE, self.inputs[step])

        return self._moved(end)

    def died(self, step: str) -> list[Move]:
        return self._moved(lambda: self._end(step, DIED, {"error": "told"}))

    def resumed_from(self, name: str | None, late: Mapping[str, Any], partly: Collection[str]) -> list[Move]:
        """What starts where everything from this step on is forgotten, and all that has not ended. Elsewhere
        what is `late` has completed since with these outputs, and what is `partly` done goes on."""
        kept, graph = self._kept, self._graph
        again = set(graph.out) if name is None else {name, *graph.behind(name)}
        for first, members in graph.members.items():
            begun = any(member in kept.ended or member in kept.live for member in members)
            if begun and first not in kept.at_rest:
                again.update(members)

        def forget() -> None:
            ended = {step: late[step] for step in kept.live.keys() & late.keys() - again}
            for step in again | (kept.live.keys() - ended.keys() - set(partly)):
                for known in (kept.live, kept.ended, kept.visits, kept.inputs, kept.outputs, kept.seeds):
                    known.pop(step, None)
                kept.deaths.discard(step)
                for link in graph.out[step]:
                    kept.handed.pop(link, None)
                    kept.exits.pop(link, None)
            for first, members in graph.members.items():
                if again & set(members):
                    kept.turn.pop(first, None)
                    kept.back.pop(first, None)
                    kept.at_rest.discard(first)
            for step, output in ended.items():
                self.outputs[step] = output
                self._end(step, DONE, self.inputs[step])
            if graph.entry not in kept.ended and graph.entry not in kept.live:
                self._start(graph.entry, {})

        return self._moved(forget)

    def afresh(self) -> Reference:
        other = copy.copy(self)
        other._kept = _Kept()
        return other

    def tried(self) -> Reference:
        """A second one, to see what would become of this."""
        other = copy.copy(self)
        other._kept = self._kept.copied()
        return other

    # the walk

    def _moved(self, change: Any) -> list[Move]:
        before, self._moves = self._kept.copied(), []
        try:
            change()
            while self._goes_on():
                pass
        except NoWayOn:
            self._kept = before
            raise
        return self._moves

    def _goes_on(self) -> bool:
        kept, before = self._kept, len(self._moves)
        for step in self._graph.order:
            if step not in kept.live and step not in kept.ended:
                self._look_at(step)
        turned = [first for first in self._graph.members if self._comes_round(first)]
        return len(self._moves) > before or bool(turned)

    def _look_at(self, step: str) -> None:
        kept = self._kept
        links = self._into[step]
        turn = kept.turn.get(self._graph.region.get(step, ""))
        if turn is not None:
            links = [link for link in links if link.source in turn]
        handed = [kept.handed.get(link, 0) for link in links]
        if 0 in handed or (not links and step not in kept.seeds):
            return
        fired = [kept.seeds[step]] if step in kept.seeds else []
        fired += [inputs for inputs in handed if inputs is not None]  # type: ignore[misc]
        if fired:
            self._start(step, {key: value for inputs in fired for key, value in inputs.items()})
        else:
            self._moves.append(Move(SKIP, step))
            self._end(step, SKIPPED, {})

    def _counts_visits(self, step: str) -> bool:
        return step in self._graph.region or self._graph.max_visits[step] is not None

    def _start(self, step: str, inputs: Inputs) -> None:
        kept, visit = self._kept, 1
        if self._counts_visits(step):
            visit = kept.visits[step] = kept.visits.get(step, 0) + 1
        kept.inputs[step] = inputs
        if step in self._graph.control:
            self._moves.append(Move(PASS, step))
            self._end(step, DONE, inputs)
        else:
            kept.live[step] = visit
            self._moves.append(Move(START, step, visit))

    def _end(self, step: str, how: str, inputs: Inputs) -> None:
        kept, graph = self._kept, self._graph
        kept.live.pop(step, None)
        kept.ended[step] = how
        if how == DIED:
            kept.deaths.add(step)
        elif how == DONE:
            kept.deaths.discard(step)
        decided = self._decided(step, inputs) if how == DONE else []
        for link in graph.out[step]:
            handed = decided[link.place] if how == DONE and not link.is_error else None
            if link.is_error and how == DIED:
                handed = inputs
            most = graph.max_visits[link.target]
            if handed is not None and most is not None and kept.visits.get(link.target, 0) >= most:
                raise NoWayOn
            if graph.is_back(link):
                if handed is not None:
                    back = kept.back.get(graph.region[step], {})
                    merged = {**back.get(link.target, {}), **handed}
                    kept.back[graph.region[step]] = {**back, link.target: merged}
            elif graph.leaves(link):
                if how != SKIPPED:  # which is no visit: what the last one decided still holds
                    kept.exits[link] = handed
            else:
                kept.handed[link] = handed

    def _comes_round(self, first: str) -> bool:
        """A cycle all of whose steps have ended begins anew, or comes to rest."""
        kept, graph = self._kept, self._graph
        members = kept.turn.get(first, frozenset(graph.members[first]))
        if first in kept.at_rest or not members <= kept.ended.keys():
            return False
        back = kept.back.pop(first, {})
        if not back:
            kept.at_rest.add(first)
            for link in graph.exits[first]:
                kept.handed[link] = kept.exits.get(link)
            return True
        again = set(back)
        for name in graph.members[first]:  # in their order, so that one time is enough
            if name in again:
                again.update(
                    link.target
                    for link in graph.out[name]
                    if graph.region.get(link.target) == first and not graph.is_back(link)
                )
        kept.turn[first] = frozenset(again)
        for name in again:
            del kept.ended[name]
            kept.seeds.pop(name, None)
            for link in graph.out[name]:
                kept.handed.pop(link, None)
        kept.seeds.update(back)
        return True

    def _decided(self, step: str, inputs: Inputs) -> list[Inputs | None]:
        following = self._definition.step(step)
        if following.next is None:
            return [{}]
        variables: Mapping[str, Any] = step_variables(
            workload=self._workload,
            input=inputs,
            outputs=self.outputs,
            execution_id=self._execution_id,
            step=step,
        )
        if not following.is_control:
            variables = edge_variables(variables, step=step, output=self.outputs.get(step))
        try:
            return [
                compile_value(dict(edge.with_)).evaluate(variables)
                if edge.when is None or compile_condition(edge.when).evaluate(variables)
                else None
                for edge in following.next
            ]
        except HoldfastError as error:
            raise NoWayOn from error
