"""From rows just claimed to what workers are handed: what the step is, and all that its handler may read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.core.model import (
    NO_ELEMENT,
    ExecutionRow,
    ExecutionStatus,
    Leased,
    element_of,
    place_of,
    visit_of,
)
from holdfast.engine.decisions import outputs_by_step
from holdfast.engine.definitions import Definitions
from holdfast.engine.events import text_of
from holdfast.engine.flow import EACH_HANDLER, constant_sleep
from holdfast.engine.tallies import Tallies, Verb
from holdfast.playbook import plan
from holdfast.playbook.definition import Definition, Step
from holdfast.playbook.template import ConditionInvalid, compile_value
from holdfast.playbook.variables import INDEX_NAME, step_names_read
from holdfast.store.interface import Claimed, ClaimRequest, Output, Store

_NO_OUTPUTS: dict[str, str] = {}


class _Offer(NamedTuple):
    """What all jobs of a step have in common."""

    timeout_seconds: float
    reads: tuple[str, ...]
    typed: dict[str, Any]
    is_limited: bool


class Leasing:
    def __init__(self, store: Store, definitions: Definitions, tallies: Tallies) -> None:
        self._store = store
        self._definitions = definitions
        self._tallies = tallies
        self._offers: dict[tuple[int, str, bool], _Offer] = {}
        self._secrets: dict[int, tuple[str, ...]] = {}

    async def claim(self, request: ClaimRequest, now: float) -> list[Claimed]:
        began = time.perf_counter()
        claimed = await self._store.claim(request, now)
        if claimed:  # a look that finds nothing is no news, and an idle process has nothing to write
            seconds = time.perf_counter() - began
            self._tallies.took(Verb.CLAIM, seconds)
            self._tallies.claimed(claimed, now + seconds)
        return claimed

    async def offer(self, definition_id: int, name: str, *, is_element: bool = False) -> _Offer:
        key = (definition_id, name, is_element)
        if key not in self._offers:
            definition = await self._definitions.load(definition_id)
            step = definition.step(name)
            reads = step.needs if step.type else plan.steps_before(definition, name)
            if is_element:
                reads = _read_by_elements(step)
            typed = _typed(step)
            if typed and (secrets := self._secrets_of(definition_id, definition)):
                typed["secrets"] = secrets
            self._offers[key] = _Offer(step.timeout_seconds, reads, typed, step.limit != "")
        return self._offers[key]

    def _secrets_of(self, definition_id: int, definition: Definition) -> tuple[str, ...]:
        if definition_id not in self._secrets:
            named: set[str] = set()
            for step in definition.steps:
                with contextlib.suppress(ConditionInvalid):  # the worker says what is wrong
                    named |= compile_value(_templates(step)).secrets
            self._secrets[definition_id] = tuple(sorted(named))
        return self._secrets[definition_id]

    async def _offers_to(self, claimed: Sequence[Claimed]) -> list[_Offer]:
        """Looked up once per step and call: of short jobs there are thousands a second."""
        known: dict[tuple[int, str, bool], _Offer] = {}
        offers = []
        for row in claimed:
            key = (row.definition_id, row.step, _is_element(row))
            if key not in known:
                known[key] = await self.offer(key[0], key[1], is_element=key[2])
            offers.append(known[key])
        return offers

    async def leased(self, claimed: Sequence[Claimed]) -> list[Leased]:
        offers = await self._offers_to(claimed)
        outputs = await self._outputs(claimed, offers)
        handed = await self._handed(claimed)
        leased = []
        for row, offer in zip(claimed, offers, strict=True):
            known = outputs.get(row.execution_id, _NO_OUTPUTS)
            job = Leased(
                queue_id=row.id,
                fence=row.fence,
                execution_id=row.execution_id,
                path=row.path,
                definition_id=row.definition_id,
                step=row.step,
                handler=row.handler,
                element=row.element if row.element == NO_ELEMENT else element_of(row.element),
                round=row.round,
                attempt=row.attempts,
                max_attempts=row.max_attempts,
                lane=row.lane,
                lease_until=row.lease_until,
                timeout_seconds=offer.timeout_seconds,
                workload=row.workload,
                # One may be missing where the execution has just been cancelled and pruned.
                outputs={name: known[name] for name in offer.reads if name in known}
                if offer.reads
                else _NO_OUTPUTS,
                clear=tuple(msgspec.json.decode(row.clear)) if row.clear else (),
                alone=row.leased_alone,
                limited=row.limited,
            )
            if offer.typed:
                job = await self._typed_job(job, row, offer, handed)
            leased.append(job)
        return leased

    async def is_fleet_limited(self, claimed: Sequence[Claimed]) -> bool | None:
        """Whether a limit over everything is set, as work without a limit of its own tells; None where there
        is none of that."""
        told: bool | None = None
        for kind, row in {(row.definition_id, row.step): row for row in claimed}.items():
            if not (await self.offer(*kind)).is_limited:
                told = row.limited
        return told

    async def _typed_job(
        self, job: Leased, row: Claimed, offer: _Offer, handed: dict[tuple[int, str, int], str]
    ) -> Leased:
        further = dict(offer.typed)
        if row.handler == EACH_HANDLER:
            further["type"] = "each"
        if not _is_element(row):
            further["input"] = row.input or "{}"
        else:
            assert row.input is not None
            # The item as it stands in the list that was made.
            further["item"] = msgspec.json.encode(msgspec.json.decode(row.input)["item"]).decode()
            further["input"] = handed.get((row.execution_id, row.step, _root(row))) or "{}"
        if row.parked is not None:
            further["parked"] = await self._came_of(row.parked)
        return msgspec.structs.replace(job, **further)

    async def _outputs(
        self, claimed: Sequence[Claimed], offers: Sequence[_Offer]
    ) -> dict[int, dict[str, str]]:
        """By execution and step: of chains all that was done, of other playbooks what the steps read."""
        chains: set[int] = set()
        reading: dict[int, set[str]] = {}
        definitions: dict[int, int] = {}
        for row, offer in zip(claimed, offers, strict=True):
            if not offer.reads:
                continue
            if offer.typed:
                reading.setdefault(row.execution_id, set()).update(offer.reads)
                definitions[row.execution_id] = row.definition_id
            else:
                chains.add(row.execution_id)
        outputs: dict[int, dict[str, str]] = {}
        if chains:
            for item in await self._store.outputs(sorted(chains)):
                outputs.setdefault(item.execution_id, {})[item.step] = item.output
        if reading:
            steps = sorted(set().union(*reading.values()))
            found: dict[int, list[Output]] = {}
            for item in await self._store.step_outputs(sorted(reading), steps):
                found.setdefault(item.execution_id, []).append(item)
            for execution_id, rows in found.items():
                definition = self._definitions[definitions[execution_id]]
                outputs.setdefault(execution_id, {}).update(outputs_by_step(rows, definition))
        return outputs

    async def _handed(self, claimed: Sequence[Claimed]) -> dict[tuple[int, str, int], str]:
        """What was handed to the steps whose elements these are."""
        roots = {(row.execution_id, row.step, _root(row)) for row in claimed if _is_element(row)}
        return await self._store.handed_inputs(sorted(roots)) if roots else {}

    async def _came_of(self, parked: str) -> str:
        """What the attempt was put aside for, with what came of it."""
        told: dict[str, Any] = msgspec.json.decode(parked)
        if "child" not in told:
            return parked
        child = await self._store.execution_by_key(told["child"]["path"], told["child"]["key"])
        if child is None:
            refused = {"message": "The child execution has been pruned.", "guidance": "Retry the step."}
            return text_of({"refused": refused})
        end: dict[str, Any] = {"id": child.id, "status": child.status.value, "result": None, "error": None}
        if child.status is ExecutionStatus.COMPLETED:
            end["result"] = await self.result(child.id)
        elif child.error is not None:
            names = ("error_type", "category", "message", "user_message", "guidance", "stage")
            end["error"] = {name: getattr(child.error, name) for name in names}
        return text_of({"child": end})

    async def result(self, execution_id: int) -> Any:
        """What an execution came to: the output of the last step that it took, or those of its last steps by
        their names."""
        outputs = await self._outputs_of(execution_id, last=True)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs or None

    async def outputs(self, execution: ExecutionRow) -> dict[str, Any]:
        """What counts of what its steps returned, in the order of its playbook; of a chain of steps that is
        what was done up to the last that is complete."""
        outputs = await self._outputs_of(execution.id)
        definition_id = await self._store.definition_of(execution.id)
        if definition_id is None or not self._definitions[definition_id].is_linear:
            return outputs
        definition, done = self._definitions[definition_id], execution.last_completed_stage
        before = 0 if done is None else definition.position(done) + 1
        return {step.name: outputs[step.name] for step in definition.steps[:before] if step.name in outputs}

    async def _outputs_of(self, execution_id: int, *, last: bool = False) -> dict[str, Any]:
        definition_id = await self._store.definition_of(execution_id)
        if definition_id is None:  # it has just been pruned
            return {}
        definition = await self._definitions.load(definition_id)
        graph = self._definitions.graph(definition_id)
        names = graph.ends() if last else [step.name for step in definition.steps]
        rows = await self._store.step_outputs([execution_id], names)
        found = outputs_by_step(rows, definition)
        if last:
            names = graph.result_steps(found)
        return {name: msgspec.json.decode(found[name]) for name in names if name in found}


def _is_element(row: Claimed) -> bool:
    return row.element != NO_ELEMENT and element_of(row.element) != NO_ELEMENT


def _root(row: Claimed) -> int:
    return place_of(visit_of(row.element), NO_ELEMENT)


def _read_by_elements(step: Step) -> tuple[str, ...]:
    """Of what a step needs, what its elements do: not the list that they were made of, which would be read as
    often as it is long."""
    assert step.for_each is not None
    try:
        compiled = compile_value(_templates(step))
    except ConditionInvalid:  # another version of ours has accepted it: the worker says what is wrong
        return step.needs
    read = step_names_read(compiled, step.needs, hidden={step.for_each.as_, INDEX_NAME})
    return tuple(name for name in step.needs if name in read)


def _templates(step: Step) -> list[Any]:
    """What of a step may have templates, but for the items of a for_each."""
    return [dict(step.inputs), {} if step.type == "python" else dict(step.config)]  # code is no template


def _typed(step: Step) -> dict[str, Any]:
    """What a step with a type is handed on top, but for what differs from job to job."""
    if not step.type:
        return {}
    typed: dict[str, Any] = {
        "type": step.type,
        "config": text_of(step.config),
        "inputs": text_of(step.inputs),
    }
    if step.for_each is not None:
        typed |= {"item_name": step.for_each.as_, "for_each": text_of(step.for_each.items)}
    if step.is_control:
        typed |= {"type": "sleep", "config": '{"seconds":0}', "parked": '{"slept":0}'}
    elif constant_sleep(step):
        typed["parked"] = text_of({"slept": constant_sleep(step)})
    return typed
