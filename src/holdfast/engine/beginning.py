"""How an execution of a playbook begins that is more than a chain of steps: with one job, always.

Where the way from the entry is the same for every workload and leads to one step, that step is the first job.
Where it depends on the workload, or leads to several steps at once, the entry itself is the first job, and
what it decides is recorded like what any other step decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.model import EventType
from holdfast.core.payload import a_type
from holdfast.engine.decisions import Decided, Ways
from holdfast.engine.events import event, pack
from holdfast.engine.flow import told_move
from holdfast.playbook import plan
from holdfast.playbook.definition import Definition
from holdfast.playbook.graph import Graph
from holdfast.playbook.plan import Inputs, Start, State


class Beginning(NamedTuple):
    """The first job's step and input, the plan as it is then, and the first events, packed."""

    step: str
    input: str | None
    plan: str
    events: str


class _Depends(Exception):
    """What comes first is not the same for every execution."""


def beginning_of(definition: Definition) -> Beginning:
    graph = Graph(definition)

    def decide(name: str, _: Inputs) -> Decided:
        decided = Ways(definition, definition.step(name)).decided
        if decided is None:
            raise _Depends
        return decided

    try:
        state, moves = plan.begin(graph, decide)
        starts = [move for move in moves if isinstance(move, Start)]
        if len(starts) != 1:
            raise _Depends
    except _Depends:
        visited = graph.entry in graph.region or graph.max_visits[graph.entry] is not None
        state = State(live={graph.entry: 1}, visits={graph.entry: 1} if visited else {})
        starts = [Start(graph.entry, 1, {})]
        moves = [*starts]
    events = [event(EventType.EXECUTION_STARTED)]
    for move in moves:
        events += told_move(move)
    handed = msgspec.json.encode(starts[0].inputs).decode() if starts[0].inputs else None
    return Beginning(starts[0].step, handed, state.to_json(), pack(events))


def with_defaults(definition: Definition, workload: Any) -> Any:
    """A workload over the defaults of its playbook: mappings are merged, anything else replaces what was
    there."""
    if workload is None:
        return definition.workload
    if not isinstance(workload, Mapping):
        raise InvalidInput(
            f"The workload of playbook {definition.path} is a mapping, not {a_type(workload)}.",
            guidance=f"Its fields are: {', '.join(definition.workload)}.",
        )
    return _merged(definition.workload, workload)


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(defaults)
    for name, value in given.items():
        before = merged.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return merged
