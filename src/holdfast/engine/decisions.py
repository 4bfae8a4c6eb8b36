"""What a step that has ended decided of its edges: the conditions and templates of a playbook's author,
evaluated before the transaction that needs the answers.

A plan cannot wait inside a transaction. Where it turns out that a decision is missing (a control step behind
a join, the last element of many, a lease that another process gave out), it says which, they are made, and
the transaction is run again. A decision that cannot be made ends the attempt that asked for it: it is
recorded there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.model import NO_ELEMENT, element_of, place_of, visit_of
from holdfast.core.payload import encode_payload
from holdfast.engine.definitions import Definitions
from holdfast.playbook.definition import Definition, Step
from holdfast.playbook.plan import Inputs
from holdfast.playbook.template import BUDGET, Budget, Condition, Value, compile_condition, compile_value
from holdfast.playbook.variables import edge_variables, step_names_read, step_variables
from holdfast.store.interface import Output, Store

# For all edges of a step together, of which there may be a thousand: about half a second.
DECISION_BUDGET = 4 * BUDGET

WAS_DONE = "What this step does was done."

_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])

Decided = tuple[Inputs | None, ...]
# Execution, round, step, visit, and what it is decided by: another outcome of the same job decides otherwise.
Key = tuple[int, int, str, int, bytes | None, tuple[Output, ...]]


class Undecidable(Exception):
    """What comes next cannot be told: a condition or a template of an edge has no value, a cycle went round
    too often. Why, where, and what to do."""

    error_type = "playbook_error"
    user_message = "The playbook has a mistake"
    guidance = f"Correct it and submit the work again. {WAS_DONE}"


class TooOften(Undecidable):
    """A cycle has used up its visits."""

    error_type = "max_visits"
    user_message = "A loop did not end"
    guidance = "See why what it waits for did not come, or raise its max_visits; then submit the work again."


class Needed(NamedTuple):
    """A decision that a plan asks for. `inputs` is what was handed to the step, None where the plan does not
    have it at hand; `outputs` are those that the same transaction is about to store."""

    execution_id: int
    definition_id: int
    round: int
    step: str
    visit: int
    inputs: Inputs | None
    outputs: tuple[Output, ...] = ()

    @property
    def key(self) -> Key:
        handed = None if self.inputs is None else msgspec.json.encode(self.inputs)
        return self.execution_id, self.round, self.step, self.visit, handed, self.outputs


class DecisionsMissing(Exception):
    """Make them, then run the transaction again."""

    def __init__(self, needed: Sequence[Needed]) -> None:
        super().__init__(len(needed))
        self.needed = needed


class _Way(NamedTuple):
    step: str
    when: Condition | None
    handed: Value


class Ways:
    """The edges of one step, compiled. `decided` is what the step decides whatever it returned, None where
    that depends on something; `reads` are the steps whose outputs it depends on."""

    def __init__(self, definition: Definition, step: Step) -> None:
        edges = step.next or ()
        self.edges = [
            _Way(
                edge.step,
                None if edge.when is None else compile_condition(edge.when),
                compile_value(dict(edge.with_)),
            )
            for edge in edges
        ]
        self.decided: Decided | None = None
        if step.next is None:
            self.decided = ({},)
        elif all(way.when is None and way.handed.is_constant for way in self.edges):
            self.decided = tuple(dict(edge.with_) for edge in edges)
        known = {other.name for other in definition.steps}
        self.reads: set[str] = set() if step.is_control else {step.name}  # as `result`, `data` and the like
        for way in self.edges:
            self.reads |= step_names_read(way.handed, known)
            self.reads |= set() if way.when is None else step_names_read(way.when, known)


class Decisions:
    def __init__(self, store: Store, definitions: Definitions, *, payload_bytes_max: int) -> None:
        self._store = store
        self._definitions = definitions
        self.payload_bytes_max = payload_bytes_max
        self._ways: dict[tuple[int, str], Ways] = {}

    def ways(self, definition_id: int, step: str) -> Ways:
        """For plans too: of a definition that is loaded."""
        if (definition_id, step) not in self._ways:
            definition = self._definitions[definition_id]
            self._ways[definition_id, step] = Ways(definition, definition.step(step))
        return self._ways[definition_id, step]

    async def make(self, needed: Iterable[Needed]) -> dict[Key, Decided | Undecidable]:
        made: dict[Key, Decided | Undecidable] = {}
        for item in needed:
            try:
                made[item.key] = await self._decided(item)
            except Undecidable as undecidable:
                made[item.key] = undecidable
        return made

    async def _decided(self, needed: Needed) -> Decided:
        definition = await self._definitions.load(needed.definition_id)
        step, ways = definition.step(needed.step), self.ways(needed.definition_id, needed.step)
        row = await self._store.execution(needed.execution_id)
        stored = (
            await self._store.step_outputs([needed.execution_id], sorted(ways.reads)) if ways.reads else []
        )
        outputs = {
            name: msgspec.json.decode(text)
            for name, text in outputs_by_step([*stored, *needed.outputs], definition).items()
        }
        workload = row.workload if row else None
        variables: Mapping[str, Any] = step_variables(
            workload=workload if isinstance(workload, dict) else {},
            input=await self._inputs(needed) if needed.inputs is None else needed.inputs,
            outputs=outputs,
            execution_id=needed.execution_id,
            step=step.name,
        )
        if not step.is_control:
            variables = edge_variables(variables, step=step.name, output=outputs.get(step.name))
        budget = Budget(DECISION_BUDGET)
        decided = []
        for way in ways.edges:
            decided.append(self._handed(step.name, way, variables, budget))
            await asyncio.sleep(0)  # others need this process, too
        return tuple(decided)

    async def _inputs(self, needed: Needed) -> Inputs:
        place = place_of(needed.visit, NO_ELEMENT)
        handed = await self._store.handed_inputs([(needed.execution_id, needed.step, place)])
        return msgspec.json.decode(next(iter(handed.values()), None) or "{}")  # type: ignore[no-any-return]

    def _handed(self, step: str, way: _Way, variables: Mapping[str, Any], budget: Budget) -> Inputs | None:
        try:
            if way.when is not None and not way.when.evaluate(variables, budget):
                return None
        except HoldfastError as error:
            raise Undecidable(f"`when` of the way from {step} to {way.step}: {error}") from error
        try:
            handed: Inputs = way.handed.evaluate(variables, budget=budget)
            encode_payload(handed, what="`with`", bytes_max=self.payload_bytes_max)
        except HoldfastError as error:
            raise Undecidable(f"`with` of the way from {step} to {way.step}: {error}") from error
        return handed


def outputs_by_step(rows: Iterable[Output], definition: Definition) -> dict[str, str]:
    """Of each step the output that counts, as JSON text, from rows in the order of rounds. Of a step that
    runs for each of many it is the list of what its elements returned, once all of them have."""
    last: dict[str, Output] = {}
    elements: dict[str, dict[int, Output]] = {}
    for row in rows:
        if element_of(row.element) != NO_ELEMENT:
            elements.setdefault(row.step, {})[row.element] = row
        elif row.step not in last or (row.round, row.element) >= (
            last[row.step].round,
            last[row.step].element,
        ):
            last[row.step] = row
    outputs: dict[str, str] = {}
    for name, root in last.items():
        if definition.step(name).for_each is None:
            outputs[name] = root.output
            continue
        # Those of the list that was made last: an earlier round or visit may have had another one.
        own = [
            row.output
            for place, row in sorted(elements.get(name, {}).items())
            if visit_of(place) == visit_of(root.element) and row.round >= root.round
        ]
        if len(own) == _listed(root.output):
            outputs[name] = f"[{','.join(own)}]"
    return outputs


def _listed(output: str) -> int | None:
    """How many there are; None where a worker has returned no list. Its execution has failed for that."""
    try:
        return len(_ITEMS.decode(output))
    except msgspec.ValidationError:
        return None
