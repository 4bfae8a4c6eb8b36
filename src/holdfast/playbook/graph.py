"""A definition as a graph: what leads where, which steps form cycles, and in which order they can come.

Made once for each version; it never changes between two executions of one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from holdfast.playbook.definition import Definition, Step


class Link(NamedTuple):
    """From one step to another: the edge in that `place` among the source's, or its edge for errors. One that
    `is_sure` is taken whenever its source completes."""

    source: str
    target: str
    place: int
    is_error: bool = False
    is_sure: bool = False

    @property
    def key(self) -> str:
        return f"{self.source}/{self.place}"


class Graph:
    """`inward` counts the edges into a step but for those that close a cycle; `region` names the first step
    of the cycle that a step is in, `members` the steps of each cycle, `entering` how many edges lead into it,
    `exits` the edges that leave it."""

    def __init__(self, definition: Definition) -> None:
        steps = definition.steps
        self.entry = definition.entry or steps[0].name
        self.out: dict[str, list[Link]] = {
            step.name: _links(step, steps[place + 1].name if place + 1 < len(steps) else None)
            for place, step in enumerate(steps)
        }
        self.control = frozenset(step.name for step in steps if step.is_control)
        self.max_visits = {step.name: step.max_visits for step in steps}
        self.order = _order(self.entry, self.out)
        self.unreachable = [step.name for step in steps if step.name not in self.order]
        self.region: dict[str, str] = {}
        self.members: dict[str, list[str]] = {}
        for members in _components(self.order, self.out):
            first = members[0]
            if len(members) > 1 or any(link.target == first for link in self.out[first]):
                self.members[first] = members
                self.region.update(dict.fromkeys(members, first))
        self.inward: dict[str, int] = dict.fromkeys(self.out, 0)
        for name in self.order:
            for link in self.out[name]:
                if not self.is_back(link):
                    self.inward[link.target] += 1
        self.entering: dict[str, int] = dict.fromkeys(self.members, 0)
        for name in self.order:
            for link in self.out[name]:
                if self.region.get(link.target) not in (None, self.region.get(name)):
                    self.entering[self.region[link.target]] += 1
        self.exits = {
            first: [link for name in members for link in self.out[name] if self.leaves(link)]
            for first, members in self.members.items()
        }

    def is_back(self, link: Link) -> bool:
        region = self.region.get(link.source)
        return (
            region is not None
            and region == self.region.get(link.target)
            and self.order[link.target] <= self.order[link.source]
        )

    def leaves(self, link: Link) -> bool:
        region = self.region.get(link.source)
        return region is not None and region != self.region.get(link.target)

    def unguarded_cycle(self) -> list[str] | None:
        """A cycle none of whose steps has a bound on its visits: the way round, its first step again at the
        end."""
        for members in self.members.values():
            free = [name for name in members if self.max_visits[name] is None]
            if cycle := _cycle(free, self.out):
                return cycle
        return None

    def idle_cycle(self) -> list[str] | None:
        """A cycle of control steps alone: nothing is done on the way round, so it would be gone through at
        once, as often as it may."""
        return _cycle([name for name in self.order if name in self.control], self.out)

    def before(self, name: str) -> set[str]:
        """The steps from which something leads to this one: those that may have ended when it starts."""
        into: dict[str, list[str]] = {}
        for source in self.order:
            for link in self.out[source]:
                into.setdefault(link.target, []).append(source)
        return _reached([name], into)

    def behind(self, name: str) -> set[str]:
        """The steps that something leads to from this one."""
        return _reached(
            [name], {source: [link.target for link in links] for source, links in self.out.items()}
        )

    def last(self) -> list[str]:
        """The steps behind which no other than control steps can come. Of a cycle behind which nothing else
        comes it is those that lead out of it, or all, where none does."""
        leading_on = self._groups_before([name for name in self.order if name not in self.control])
        last = []
        for name in self.order:
            if name in self.control or self._group(name) in leading_on:
                continue
            region = self.region.get(name)
            ways_out = self.exits[region] if region is not None else []
            if not ways_out or any(link.source in (name, *self._control_behind(name)) for link in ways_out):
                last.append(name)
        return last

    def ends(self) -> list[str]:
        """The steps that may be the last of an execution: those of `last`, and those whose ways on depend on
        a condition or an error."""
        last = set(self.last())
        going_on = self._surely_going_on()
        return [name for name in self.order if name in last or not (name in self.control or name in going_on)]

    def result_steps(self, completed: Collection[str]) -> list[str]:
        """Of the `ends`, those that completed and behind which no other did: what they returned is the
        result."""
        ends = [name for name in self.ends() if name in completed]
        leading_on = self._groups_before(ends)
        return [name for name in ends if self._group(name) not in leading_on]

    def _group(self, name: str) -> str:
        """A cycle is one, and so is each step outside of cycles."""
        return self.region.get(name, name)

    def _groups_before(self, names: Collection[str]) -> set[str]:
        """The groups from which one of these steps can be reached that is not in the group itself."""
        into: dict[str, list[str]] = {}
        for source in self.order:
            for link in self.out[source]:
                if self._group(source) != self._group(link.target):
                    into.setdefault(self._group(link.target), []).append(self._group(source))
        return _reached([self._group(name) for name in names], into)

    def _surely_going_on(self) -> set[str]:
        """The steps that are always followed by one that is no control step, where they complete."""
        into: dict[str, list[str]] = {}
        going_on: list[str] = []
        for source in self.order:
            for link in self.out[source]:
                if link.is_sure and link.target not in self.control:
                    going_on.append(source)
                elif link.is_sure:
                    into.setdefault(link.target, []).append(source)
        return _reached(going_on, into) | set(going_on)

    def _control_behind(self, name: str) -> set[str]:
        """The control steps that it leads to by way of control steps alone."""
        ways = {
            source: [link.target for link in links if link.target in self.control]
            for source, links in self.out.items()
        }
        return _reached([name], ways)


def _links(step: Step, following: str | None) -> list[Link]:
    if step.next is not None:
        links = [
            Link(step.name, edge.step, place, is_sure=edge.when is None)
            for place, edge in enumerate(step.next)
        ]
    else:
        links = [] if following is None else [Link(step.name, following, 0, is_sure=True)]
    if step.on_error is not None:
        links.append(Link(step.name, step.on_error, len(links), is_error=True))
    return links


def _reached(start: Collection[str], ways: Mapping[str, Sequence[str]]) -> set[str]:
    reached: set[str] = set()
    open_ = list(start)
    while open_:
        for name in ways.get(open_.pop(), ()):
            if name not in reached:
                reached.add(name)
                open_.append(name)
    return reached


def _order(entry: str, out: Mapping[str, Sequence[Link]]) -> dict[str, int]:
    """The steps that can be reached, each before those it leads to, but for the edges that close a cycle."""
    finished: list[str] = []
    seen = {entry}
    path = [(entry, iter(out[entry]))]
    while path:
        name, links = path[-1]
        for link in links:
            if link.target not in seen:
                seen.add(link.target)
                path.append((link.target, iter(out[link.target])))
                break
        else:
            finished.append(name)
            path.pop()
    return {name: place for place, name in enumerate(reversed(finished))}


def _components(order: Mapping[str, int], out: Mapping[str, Sequence[Link]]) -> list[list[str]]:
    """Steps that lead to each other, in the order of their first ones."""
    into: dict[str, list[str]] = {name: [] for name in order}
    for name in order:
        for link in out[name]:
            into[link.target].append(name)
    component: dict[str, list[str]] = {}
    components = []
    for first in order:
        if first in component:
            continue
        members: list[str] = []
        open_ = [first]
        component[first] = members
        while open_:
            name = open_.pop()
            members.append(name)
            for source in into[name]:
                if source not in component:
                    component[source] = members
                    open_.append(source)
        members.sort(key=order.__getitem__)
        components.append(members)
    return components


def _cycle(names: Sequence[str], out: Mapping[str, Sequence[Link]]) -> list[str] | None:
    allowed, done = set(names), set[str]()
    for root in names:
        if root in done:
            continue
        path, on_path = [(root, iter(out[root]))], [root]
        while path:
            name, links = path[-1]
            for link in links:
                if link.target in on_path:
                    return [*on_path[on_path.index(link.target) :], link.target]
                if link.target in allowed and link.target not in done:
                    path.append((link.target, iter(out[link.target])))
                    on_path.append(link.target)
                    break
            else:
                done.add(name)
                path.pop()
                on_path.pop()
    return None
