"""What must hold of playbooks that are more than chains: the rows of an execution against its plan and
against what its log has told, and of children and those that wait for them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.model import NO_ELEMENT, Event, ExecutionStatus, JobStatus
from holdfast.playbook.definition import Definition
from holdfast.playbook.plan import State
from simulation.flow_history import DEAD, FlowHistory
from simulation.graphs import EACH, SLEEP
from simulation.history import ensure
from simulation.lines import READY, ExecutionLine, JobLine, Sight

FOR_EACH, CHILD = "for_each", "child"


def expected_handler(definition: Definition, job: JobLine) -> str:
    step = definition.step(job.step)
    if step.is_control:
        return SLEEP
    return EACH if step.for_each is not None and not job.is_element else step.handler


class FlowRules:
    def __init__(self) -> None:
        self._histories: dict[int, FlowHistory] = {}
        self._children: dict[tuple[str, str], int] = {}

    def history(self, line: ExecutionLine, definition: Definition) -> FlowHistory:
        if line.id not in self._histories:
            workload = msgspec.json.decode(line.workload)
            self._histories[line.id] = FlowHistory(definition, line.id, workload)
        return self._histories[line.id]

    def known(self, execution_id: int) -> FlowHistory:
        return self._histories[execution_id]

    def forget(self, execution_id: int) -> None:
        self._histories.pop(execution_id, None)

    # one execution

    def check(self, line: ExecutionLine, jobs: Sequence[JobLine], log: Sequence[Event]) -> FlowHistory:
        history = self._histories[line.id]
        outputs = {(job.round, job.step, job.place): job.output for job in jobs}
        history.read(log[history.events :], outputs)
        live = [job for job in jobs if job.is_live]
        if line.is_running:
            self._check_running(line, live, history)
        else:
            ensure(not live, "{} has ended and has live jobs: {}", line, live)
            completed = line.status == ExecutionStatus.COMPLETED
            ensure((line.plan is None) == completed, "its plan is {}: {}", line.plan, line)
        for job in jobs:
            self._check_inputs(job, jobs, history)
        for job in live:
            self._check_live(job, history)
        return history

    def _check_running(self, line: ExecutionLine, live: list[JobLine], history: FlowHistory) -> None:
        assert line.plan is not None, f"a running playbook without a plan: {line}"
        state, reference = State.from_json(line.plan), history.reference
        ensure(live, "it runs, and nothing is live: {}", line)
        ensure(
            all(job.round == line.round for job in live), "{} has live jobs of another round: {}", line, live
        )
        stragglers = [job for job in live if reference.live.get(job.step) != job.visit]
        ensure(state.live == reference.live, "live are {}, not {}: {}", reference.live, state.live, line)
        counted = {step: (each.left, each.dead) for step, each in state.each.items()}
        told = {
            step: (each.left, sum(status == DEAD for status in each.status.values()))
            for step, each in history.each.items()
        }
        under_way = [job for job in live if job.is_leased]
        ensure((state.failing is not None) == history.is_failing, "failing is {}: {}", state.failing, line)
        if history.is_failing:
            ensure(live == under_way, "{} fails, and these wait: {}", line, live)
            ensure(state.failing == len(under_way), "{} of {} are waited for", state.failing, under_way)
            return
        ensure(state.stragglers == len(stragglers), "{} are waited for, not {}", stragglers, state.stragglers)
        ensure(all(job.is_leased for job in stragglers), "nobody waits for these: {} {}", stragglers, line)
        ensure(counted == told, "elements are counted {}, not {}: {}", counted, told, line)
        for name, visit in reference.live.items():
            own = [job for job in live if (job.step, job.visit) == (name, visit)]
            ensure(own, "{} is live in {} and has no job", name, line)
            each = history.each.get(name)
            if each is None:
                ensure([job.element for job in own] == [NO_ELEMENT], "one job of {}: {}", name, own)
            else:
                self._check_elements(history.definition, name, own, state)

    def _check_elements(self, definition: Definition, name: str, own: list[JobLine], state: State) -> None:
        for_each = definition.step(name).for_each
        assert for_each is not None
        held = [job for job in own if job.held_by == FOR_EACH]
        going = len(own) - len(held)
        each = state.each[name]
        ensure(len(own) == each.left, "{} elements of {} are left, not {}", len(own), name, each)
        ensure(len(held) == each.held, "{} elements of {} wait, not {}", held, name, each)
        if for_each.concurrency is None:
            ensure(not held, "held by nothing: {}", held)
        else:
            ensure(going <= for_each.concurrency, "{} elements of {} at once: {}", going, name, own)
            ensure(not held or going == for_each.concurrency, "a place is free, and {} wait", held)

    def _check_inputs(self, job: JobLine, jobs: Sequence[JobLine], history: FlowHistory) -> None:
        """What it was handed; of an element, the item."""
        given = msgspec.json.decode(job.input) if job.input else {}
        if job.is_element:
            roots = [
                other
                for other in jobs
                if (other.step, other.visit, other.element) == (job.step, job.visit, NO_ELEMENT)
                and other.round <= job.round
                and other.output is not None
            ]
            ensure(roots, "of which list is this an element? {}", job)
            items = msgspec.json.decode(max(roots, key=lambda other: other.round).output or "")
            ensure(job.element < len(items), "the list has {}: {}", items, job)
            ensure(given == {"item": items[job.element]}, "the item is {}: {}", items[job.element], job)
        elif job.is_live and history.reference.live.get(job.step) == job.visit:
            expected = dict(history.reference.inputs[job.step])
            ensure(("error" in given) == ("error" in expected), "{} was handed on: {}", expected, job)
            given.pop("error", None)
            expected.pop("error", None)
            ensure(given == expected, "{} was handed on: {}", expected, job)

    def _check_live(self, job: JobLine, history: FlowHistory) -> None:
        told = history.jobs[job.round, job.step, job.place]
        if told.tale.available_at is not None:
            ensure(job.available_at == told.tale.available_at, "available_at of {}: {}", job, told)
        counted = (told.tale.losses, told.tale.crashes)
        ensure((job.losses, job.crashes) == counted, "losses of {}: {}", job, told)
        if job.held_by is not None:
            ensure(job.status in READY, "held and leased: {}", job)
            expected = (
                FOR_EACH if job.is_element and told.tale.last is not None and not told.is_put_aside else CHILD
            )
            ensure(job.held_by == expected, "held by {}: {}", expected, job)
        if told.is_put_aside:
            ensure(job.parked is not None, "put aside for nothing: {}", job)

    # children

    def look(self, now: Sight) -> None:
        for line in now.executions.values():
            if line.parent_job is None:
                continue
            assert line.idempotency_key is not None
            key = (line.path, line.idempotency_key)
            parent = now.jobs.get(line.parent_job)
            known = self._children.setdefault(key, line.id)
            ensure(
                known == line.id or parent is None or not parent.is_live,
                "{} was started for {}, and {} before",
                line,
                parent,
                known,
            )
            self._children[key] = line.id
            if parent is not None:
                number = int(line.idempotency_key.rpartition(" ")[2])
                ensure(line.idempotency_key.startswith(f"job {parent.id} "), "{} is not of {}", line, parent)
                ensure(number <= max(parent.attempts + 1, 1), "{} is of no attempt of {}", line, parent)

    def check_swept(self, now: Sight) -> None:
        """After a sweep nothing waits for what has ended, and nothing runs that nobody waits for."""
        running = [
            line for line in now.executions.values() if line.is_running and line.parent_job is not None
        ]
        for line in running:
            parent = now.jobs.get(line.parent_job or 0)
            ensure(parent is not None and parent.is_live, "{} runs for {}", line, parent)
        for job in now.jobs.values():
            if job.held_by == CHILD:
                assert job.parked is not None
                wanted = msgspec.json.decode(job.parked)["child"]
                children = [
                    line
                    for line in now.executions.values()
                    if (line.path, line.idempotency_key) == (wanted["path"], wanted["key"])
                ]
                ensure(len(children) == 1 and children[0].is_running, "{} waits for {}", job, children)


def moves_along(old: JobLine, now: JobLine, owners: set[int]) -> bool:
    """Whether a job may change by what became of another one: an element that gets a place, a job whose child
    has ended, what is cancelled when its execution fails, its step ends or its parent is cancelled."""
    let_through = old.held_by in (FOR_EACH, CHILD) and now.held_by is None
    superseded = old._replace(superseded=now.superseded) == now
    return let_through or superseded or (old.execution_id in owners and now.status == JobStatus.CANCELLED)
