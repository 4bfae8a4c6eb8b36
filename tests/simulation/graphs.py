"""Playbooks that are more than chains of steps, drawn by the seed: branches and joins, handlers of errors,
elements, cycles, control steps, sleeps, and playbooks inside playbooks.

    leaf ◀── mid ◀── top        each may start those on its left as children, or a pipeline

What the workers of their steps do is drawn too: see `flow_outcome`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.core.catalogue import Category
from holdfast.core.failures import Failure
from holdfast.core.model import Completed, Deferred, ExecutionStatus, Failed, Leased, Outcome
from holdfast.core.retry import RetryPolicy
from holdfast.playbook.definition import Definition, Edge, ForEach, Step

LEVELS = ("leaf", "mid", "top")
WORK, EACH, SLEEP, PLAYBOOK = "flow/work", "type/each", "type/sleep", "type/playbook"
FLOW_HANDLERS = (WORK, EACH, SLEEP, PLAYBOOK)
SLEEP_SECONDS = 4.0
NO_PLAYBOOK = "missing"

_KINDS = ("work", "each", "control", "sleep", "later", "playbook")
_RETRIES = (
    RetryPolicy.once(),
    RetryPolicy(max_attempts=2, jitter=False),
    RetryPolicy(max_attempts=3, initial_delay=2),
)


def random_graphs(random: Random) -> list[Definition]:
    graphs: list[Definition] = []
    for level in LEVELS:
        children = [*(graph.path for graph in graphs), *(graph.path for graph in graphs), "single"]
        graphs.append(_Drawing(random, level, children if graphs else []).definition())
    return graphs


class _Drawing:
    """One playbook. Its edges lead on in the order of its steps, but for the one that closes a cycle."""

    def __init__(self, random: Random, path: str, children: Sequence[str]) -> None:
        self._random = random
        self._path = path
        self._children = children
        self._names = [f"s{number}" for number in range(random.randint(3, 8))]
        weights = (10, 6, 3, 1, 1, 4 if children else 0)
        drawn = random.choices(_KINDS, weights, k=len(self._names))
        self._kinds = dict(zip(self._names, drawn, strict=True))
        self._edges: dict[str, list[Edge] | None] = {}
        self._handlers: dict[str, str] = {}
        self._visits: dict[str, int] = {}

    def definition(self) -> Definition:
        random, names = self._random, self._names
        for place, name in enumerate(names):
            later = names[place + 1 :]
            self._edges[name] = (
                self._drawn_edges(name, later) if place == 0 or random.random() < 0.8 else None
            )
            handled = {"control": 0.0, "each": 0.5}.get(self._kinds[name], 0.3)
            if later and random.random() < handled:
                self._handlers[name] = random.choice(later)
        if random.random() < 0.5:
            self._close_cycle()
        return Definition(path=self._path, steps=tuple(map(self._step, names)))

    def _drawn_edges(self, name: str, later: Sequence[str]) -> list[Edge]:
        """To some of the next few; the first of all leads to several, so that much is live at once."""
        random = self._random
        near = later[:4]
        most = 3 if name == self._names[0] else random.choice((0, 1, 1, 1, 2, 2, 3))
        chosen = random.sample(near, min(most, len(near)))
        return [self._edge(name, target) for target in near if target in chosen]

    def _edge(self, name: str, target: str, *, is_back: bool = False) -> Edge:
        random = self._random
        conditional = is_back or random.random() < 0.45
        with_: dict[str, Any] = {}
        if random.random() < 0.5:
            with_[f"from_{name}"] = random.choice(("{{ workload.n }}", 7, *self._own_value(name)))
        if self._kinds[target] == "control":
            with_[f"token_{name}"] = random.choice(("{{ workload.n }}", *self._own_value(name)))
        return Edge(
            step=target, when=self._condition(name, is_back=is_back) if conditional else None, with_=with_
        )

    def _own_value(self, name: str) -> tuple[str, ...]:
        return {
            "work": ("{{ result.outcome }}", f"{{{{ {name}.outcome }}}}"),
            "each": ("{{ result | length }}",),
            "control": ("{{ input | length }}",),
        }.get(self._kinds[name], ("{{ workload.n }}",))

    def _condition(self, name: str, *, is_back: bool) -> str:
        random = self._random
        own = {
            "work": (
                "{{ result.outcome % 2 == 0 }}",
                f"{name}.outcome % 3 > 0",
                "{{ data.outcome % 2 == 1 }}",
            ),
            "each": ("{{ result | length > 1 }}", "{{ result | length % 2 == 0 }}"),
            "control": ("{{ input | length % 2 == 0 }}", "{{ input | length > 1 }}"),
        }.get(self._kinds[name], ())
        if random.random() < 0.04:
            return "{{ input.nothing > 1 }}"  # which has no answer
        always = ("{{ workload.n % 2 == 0 }}", "{{ true }}", "{{ false }}")
        return random.choice(own if own and is_back else (*always, *own, *own, *own))

    def _close_cycle(self) -> None:
        """From a step back to itself or an earlier one, which bounds it."""
        random, names = self._random, self._names
        last = random.randrange(len(names))
        first = random.randint(max(0, last - 3), last)
        if all(self._kinds[name] == "control" for name in names[first : last + 1]):
            self._kinds[names[first]] = "work"
            for name in names:  # what was drawn for it as it was
                self._edges[name] = [Edge(step=edge.step) for edge in self._edges[name] or ()]
        source, target = names[last], names[first]
        edges = self._edges[source]
        if edges is None:
            edges = [Edge(step=names[last + 1])] if last + 1 < len(names) else []
        self._edges[source] = [*edges, self._edge(source, target, is_back=True)]
        for name in names[first : last + 1]:
            if name == target or random.random() < 0.2:
                self._visits[name] = random.randint(2, 4)

    def _step(self, name: str) -> Step:
        random, kind = self._random, self._kinds[name]
        edges = self._edges[name]
        config: Mapping[str, Any] = {}
        each: ForEach | None = None
        handler, type_ = WORK, "python"
        if kind == "control":
            handler, type_ = "", "control"
        elif kind == "sleep":
            handler, type_, config = SLEEP, "sleep", {"seconds": SLEEP_SECONDS}
        elif kind == "later":
            handler, type_, config = SLEEP, "sleep", {"seconds": "{{ workload.n }}"}
        elif kind == "playbook":
            child = NO_PLAYBOOK if random.random() < 0.05 else random.choice(self._children)
            handler, type_, config = PLAYBOOK, "playbook", {"path": child}
        if kind == "each" or (kind == "playbook" and random.random() < 0.3):
            each = ForEach(
                items="{{ workload.n }}",
                concurrency=random.choice((None, 1, 2)),
                fail_fast=random.random() < 0.5,
            )
        retry, max_crashes = random.choice(_RETRIES), random.choice((1, 3))
        before = sorted(self._before(name))
        needs = () if kind == "control" else tuple(before if random.random() < 0.7 else before[:1])
        return Step(
            name=name,
            handler=handler,
            type=type_,
            config=config,
            retry=retry,
            max_crashes=max_crashes,
            inputs={f"of_{other}": f"{{{{ {other} }}}}" for other in needs},
            needs=needs,
            next=None if edges is None else tuple(edges),
            on_error=self._handlers.get(name),
            for_each=each,
            max_visits=self._visits.get(name),
        )

    def _before(self, name: str) -> set[str]:
        """The steps from which others lead on to this one: they have ended whenever it starts."""
        before: set[str] = set()
        for place in range(self._names.index(name) - 1, -1, -1):
            source = self._names[place]
            edges = self._edges[source]
            targets = {edge.step for edge in edges} if edges is not None else {self._names[place + 1]}
            targets.add(self._handlers.get(source, source))
            targets -= set(self._names[: place + 1])
            if name in targets or before & targets:
                before.add(source)
        return {source for source in before if self._kinds[source] != "control"}


def flow_outcome(random: Random, lease: Leased, number: int, *, failing: float) -> Outcome | None:
    """How an attempt at a step of a playbook ended; None where it is as any other."""
    if lease.handler not in FLOW_HANDLERS or random.random() < failing:
        return None
    if lease.handler == EACH:
        items = [number * 10 + place for place in range(random.choice((0, 1, 2, 3, 3, 4)))]
        return Completed(msgspec.json.encode(items).decode())
    parked = None if lease.parked is None else msgspec.json.decode(lease.parked)
    if lease.handler == SLEEP:
        if parked is None:
            return Deferred(until_seconds=SLEEP_SECONDS + number % 5)
        return Completed('{"seconds":4}')
    if lease.handler == PLAYBOOK:
        return _of_child(random, lease, parked, number)
    return None


def _of_child(random: Random, lease: Leased, parked: Any, number: int) -> Outcome:
    if parked is None:
        wanted = {"path": msgspec.json.decode(lease.config)["path"], "workload": {"n": random.randrange(100)}}
        return Deferred(child=msgspec.json.encode(wanted).decode())
    if "refused" in parked:
        return Failed(Failure(message=f"refused #{number}", category=Category.PERMANENT))
    child = parked["child"]
    if child["status"] == ExecutionStatus.COMPLETED:
        return Completed(f'{{"execution_id":{child["id"]},"data":{number}}}')
    return Failed(Failure(message=f"connection reset, the child is {child['status']} #{number}"))
