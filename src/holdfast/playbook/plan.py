"""What comes next: pure questions to a definition and the little that is kept of an execution's way.

    a step ended ──▶ each of its edges is resolved, fired or not ──▶ steps all of whose edges are resolved
                                                                     start, or are skipped where none fired

Every edge is resolved exactly once in a round, so a join waits for the branches that were started and for no
other: a branch that is not taken is skipped step by step, and its edges are resolved as not fired on the way.
The edge to `on_error` is one of them, fired where the step died.

A cycle is a region that goes round as a whole. Its edges back are kept until every step of the iteration has
ended; those that fired then begin the next one. What leaves a region is decided by each step's last visit,
and resolved once the region has come to rest.

The state that is kept between two reports holds what is open, not what was, but for how often the steps of
cycles were visited and by which edges those were left: it does not grow with the history. A definition whose
steps simply follow each other needs none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from holdfast.playbook.definition import Definition, Step
from holdfast.playbook.graph import Graph, Link

Inputs = dict[str, Any]
# What a step that completed decided of its edges: for each the inputs that it hands on, None where not taken.
Decision = Sequence[Inputs | None]
# The decision of a step that has completed, given what was handed to it.
Decide = Callable[[str, Inputs], Decision]


class Ended(Enum):
    COMPLETED = "completed"
    DIED = "died"
    SKIPPED = "skipped"


class Join(msgspec.Struct):
    """A step some of whose edges are resolved: so many are not, and this is what the fired ones handed on."""

    left: int
    fired: bool = False
    inputs: Inputs = {}


class Region(msgspec.Struct):
    """A cycle that goes round: so many of its steps have not ended in this iteration. `back` is what begins
    the next one; `exits` what leaves it, by the number of the edge."""

    left: int
    back: dict[str, Inputs] = {}
    exits: dict[str, Inputs] = {}


class Each(msgspec.Struct):
    """The elements of a step that runs for each of many: so many have not ended, of which `held` wait for a
    place. `error` is the stored error of the first that died."""

    left: int
    held: int = 0
    dead: int = 0
    error: str | None = None


class State(msgspec.Struct):
    """`live` has the steps that have started and not ended, each with its visit. `left` has, of the cycles
    that have come to rest, the keys of the edges by which they were left; `handled`, of the steps that died
    and were handled, what their handlers were told. `failing` says that a death that nothing handles has
    stopped the execution, and how many attempts under way are still waited for; `stragglers` how many are
    under way for steps that have ended without them."""

    live: dict[str, int] = {}
    joins: dict[str, Join] = {}
    regions: dict[str, Region] = {}
    visits: dict[str, int] = {}
    each: dict[str, Each] = {}
    left: dict[str, list[str]] = {}
    handled: dict[str, Inputs] = {}
    stragglers: int = 0
    failing: int | None = None

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> State:
        return _STATE.decode(text)


_STATE = msgspec.json.Decoder(State)


class Start(NamedTuple):
    step: str
    visit: int
    inputs: Inputs


class Pass(NamedTuple):
    """A control step was gone through."""

    step: str


class Skip(NamedTuple):
    step: str


class TooManyVisits(Exception):
    def __init__(self, step: str, max_visits: int) -> None:
        super().__init__(step)
        self.step = step
        self.max_visits = max_visits


def begin(graph: Graph, decide: Decide) -> tuple[State, list[Start | Pass | Skip]]:
    state = State()
    walk = _Walk(graph, state, decide)
    walk.start(graph.entry, {})
    walk.run()
    return state, walk.moves


def ended(
    graph: Graph, state: State, step: str, how: Ended, decide: Decide, inputs: Inputs | None = None
) -> list[Start | Pass | Skip]:
    """Change the state by the end of a step; what starts because of it, and what is skipped. `inputs` go with
    its edge for errors."""
    del state.live[step]
    walk = _Walk(graph, state, decide)
    walk.end(step, how, inputs or {})
    walk.run()
    return walk.moves


def resumed(
    graph: Graph,
    kept: Mapping[str, int],
    died: Mapping[str, Inputs],
    left: Mapping[str, Sequence[str]],
    decide: Decide,
) -> tuple[State, list[Start | Pass | Skip]]:
    """Where an execution stands in which the `kept` steps have completed (with their last visits; of cycles
    also the control steps), those in `died` were handled by their `on_error`, and nothing else has begun. Of
    cycles those in `left` are not gone through again: they were left by these edges."""
    state = State()
    walk = _Walk(graph, state, decide, kept=kept, died=died, left=left)
    walk.start(graph.entry, {})
    walk.run()
    return state, walk.moves


class _Walk:
    def __init__(
        self,
        graph: Graph,
        state: State,
        decide: Decide,
        *,
        kept: Mapping[str, int] | None = None,
        died: Mapping[str, Inputs] | None = None,
        left: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._graph = graph
        self._state = state
        self._decide = decide
        self._kept = kept or {}
        self._died = died or {}
        self._left = left or {}
        self._ends: deque[tuple[str, Ended, Inputs]] = deque()
        self.moves: list[Start | Pass | Skip] = []

    def run(self) -> None:
        while self._ends:
            self.end(*self._ends.popleft())

    def end(self, step: str, how: Ended, inputs: Inputs) -> None:
        decision: Decision = self._decide(step, inputs) if how is Ended.COMPLETED else ()
        if how is Ended.DIED:
            self._state.handled[step] = inputs
        elif how is Ended.COMPLETED:
            self._state.handled.pop(step, None)
        for link in self._graph.out[step]:
            if how is Ended.SKIPPED and self._graph.leaves(link):
                continue  # no visit: what its last one decided still holds
            handed: Inputs | None
            if link.is_error:
                handed = inputs if how is Ended.DIED else None
            else:
                handed = decision[link.place] if how is Ended.COMPLETED else None
            self._resolve_link(link, handed)
        if step in self._graph.region:
            region = self._open_region(step)
            region.left -= 1
            if not region.left:
                self._come_round(self._graph.region[step], region)

    def _resolve_link(self, link: Link, handed: Inputs | None) -> None:
        if handed is not None:
            self._check_visits(link.target)
        if self._graph.is_back(link):
            if handed is not None:
                back = self._open_region(link.source).back
                back[link.target] = {**back.get(link.target, {}), **handed}
        elif self._graph.leaves(link):
            exits, key = self._open_region(link.source).exits, link.key
            exits.pop(key, None)
            if handed is not None:
                exits[key] = handed
        else:
            self._resolve(link.target, handed)

    def _check_visits(self, step: str) -> None:
        allowed = self._graph.max_visits[step]
        if allowed is not None and self._state.visits.get(step, 0) >= allowed:
            raise TooManyVisits(step, allowed)

    def _open_region(self, step: str) -> Region:
        first = self._graph.region[step]
        if first not in self._state.regions:
            self._state.regions[first] = Region(len(self._graph.members[first]))
        return self._state.regions[first]

    def _resolve(self, step: str, handed: Inputs | None) -> None:
        first = self._graph.region.get(step)
        is_left = first is not None and first in self._left
        if first is not None and is_left:
            step = first  # it is entered as a whole
        join = self._state.joins.pop(step, None) or Join(
            self._graph.entering[step] if is_left else self._graph.inward[step]
        )
        join.left -= 1
        if handed is not None:
            join.fired, join.inputs = True, {**join.inputs, **handed}
        if join.left:
            self._state.joins[step] = join
        elif is_left or join.fired:
            self.start(step, join.inputs)
        else:
            self.moves.append(Skip(step))
            self._ends.append((step, Ended.SKIPPED, {}))

    def start(self, step: str, inputs: Inputs) -> None:
        first = self._graph.region.get(step)
        if first is not None and first in self._left:
            self._leave(first, inputs)
            return
        visit = 1
        if first is not None or self._graph.max_visits[step] is not None:
            visit = self._state.visits.get(step, 0) + 1
            self._state.visits[step] = visit
        if step in self._graph.control:
            self.moves.append(Pass(step))
            self._ends.append((step, Ended.COMPLETED, inputs))
        elif first is None and step in self._kept:
            self._ends.append((step, Ended.COMPLETED, inputs))
        elif first is None and step in self._died:
            self._ends.append((step, Ended.DIED, self._died[step]))
        else:
            self._state.live[step] = visit
            self.moves.append(Start(step, visit, inputs))

    def _leave(self, first: str, inputs: Inputs) -> None:
        """A cycle that was gone through before: it is left by the same edges as then."""
        members = self._graph.members[first]
        self._state.left[first] = list(self._left[first])
        self._state.visits.update({name: self._kept[name] for name in members if name in self._kept})
        self._state.handled.update({name: self._died[name] for name in members if name in self._died})
        decided: dict[str, Decision] = {}
        for link in self._graph.exits[first]:
            handed: Inputs | None = None
            if link.key in self._left[first]:
                if link.is_error:
                    handed = self._died.get(link.source, {})
                else:
                    handed = self._decided_last(link.source, inputs, decided)[link.place] or {}
            self._resolve(link.target, handed)

    def _decided_last(self, name: str, inputs: Inputs, decided: dict[str, Decision]) -> Decision:
        """What a step of a cycle decided at its last visit. What was handed to a control step then is not
        kept anywhere: it is what the steps before it handed on at their last visits."""
        if name not in decided:
            decided[name] = [None] * len(self._graph.out[name])
            given: Inputs = dict(inputs)
            if name in self._graph.control:
                for source in self._graph.members[self._graph.region[name]]:
                    for link in self._graph.out[source]:
                        if link.target == name and not link.is_error and source in self._kept:
                            given.update(self._decided_last(source, inputs, decided)[link.place] or {})
            decided[name] = self._decide(name, given)
        return decided[name]

    def _come_round(self, first: str, region: Region) -> None:
        if not region.back:
            del self._state.regions[first]
            self._state.left[first] = list(region.exits)
            for link in self._graph.exits[first]:
                self._resolve(link.target, region.exits.get(link.key))
            return
        again = self._reached(first, region.back)
        self._state.regions[first] = Region(len(again), {}, region.exits)
        ready = []
        for name in again:
            waits = sum(
                link.target == name and not self._graph.is_back(link)
                for source in again
                for link in self._graph.out[source]
            )
            if waits:
                self._state.joins[name] = Join(waits, name in region.back, region.back.get(name, {}))
            else:
                ready.append(name)
        for name in ready:
            self.start(name, region.back[name])

    def _reached(self, first: str, targets: Mapping[str, Inputs]) -> list[str]:
        reached, open_ = set(targets), list(targets)
        while open_:
            for link in self._graph.out[open_.pop()]:
                if (
                    self._graph.region.get(link.target) == first
                    and not self._graph.is_back(link)
                    and link.target not in reached
                ):
                    reached.add(link.target)
                    open_.append(link.target)
        return [name for name in self._graph.members[first] if name in reached]


# of definitions whose steps simply follow each other


def first_step(definition: Definition) -> Step:
    return definition.step(definition.entry) if definition.entry else definition.steps[0]


def step_after(definition: Definition, name: str) -> Step | None:
    """The step that starts when `name` has completed; None where it was the last."""
    following = definition.position(name) + 1
    return definition.steps[following] if following < len(definition.steps) else None


def steps_before(definition: Definition, name: str) -> tuple[str, ...]:
    """The steps whose outputs `name` may read, and which a resume at `name` keeps."""
    return tuple(step.name for step in definition.steps[: definition.position(name)])


def steps_between(definition: Definition, start: str, end: str) -> tuple[str, ...]:
    """From `start` to `end`, both included: what a retry from `start` clears when `end` had failed."""
    return tuple(
        step.name for step in definition.steps[definition.position(start) : definition.position(end) + 1]
    )
