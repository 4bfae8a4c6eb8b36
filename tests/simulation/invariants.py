"""What must hold after every step, read from the rows themselves.

`Invariants` keeps the last sight of all rows. `look` reads them anew, compares, and examines every
execution of which a row or an event is new: the rows among themselves, the rows against the replayed
log, the log against its grammar. Beside that it keeps the engine's promises (fences given out, reports
acknowledged, idempotency keys answered) and holds it to them. What is said of many executions at once is in
claim_rules.py (limits, pauses) and gate_rules.py (batches).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.model import (
    NO_ELEMENT,
    Ack,
    AckCode,
    DeadReason,
    Event,
    EventType,
    ExecutionStatus,
    JobStatus,
    Lane,
    Leased,
    Outcome,
    place_of,
    told_place,
)
from holdfast.core.replay import replay
from holdfast.engine.decisions import TooOften, Undecidable
from holdfast.playbook.definition import Definition
from holdfast.store.rows import EventPlace, events_after
from simulation.claim_rules import check_leases
from simulation.flow_history import FlowHistory
from simulation.flow_rules import CHILD, FlowRules, expected_handler
from simulation.gate_rules import GateRules
from simulation.history import ENDS_A_TRANSACTION, History, Violation, ensure
from simulation.lines import READY, BatchLine, ExecutionLine, JobLine, Sight, seen
from simulation.pipelines import is_storable
from simulation.stores import SimulatedStore

RETRY_NOTES_MAX = 10
NO_WAY_ON = (Undecidable.error_type, TooOften.error_type)
RANKS = {"request": 4, "download": 6}
RANK_DEFAULT = 5

_EVENTS = "SELECT id, execution_id, at, body FROM {schema}events WHERE id > $1 ORDER BY id"
_Place = tuple[int, str, int]  # execution, step, place
_NOTES = msgspec.json.Decoder(list[dict[str, Any]])


class Invariants:
    def __init__(self, definitions: dict[int, Definition]) -> None:
        self._definitions = definitions
        self._last_event_row = 0
        self._event_rows: list[Sequence[Any]] = []
        self._logs: dict[int, list[Event]] = {}
        self._histories: dict[int, History] = {}
        self._begun: dict[_Place, Event] = {}
        self._fences: set[tuple[int, str]] = set()
        self._settled: dict[tuple[int, str], Outcome] = {}
        self._outputs: dict[int, tuple[str, str]] = {}
        self._keys: dict[tuple[str, str], int] = {}
        self._key_answers: list[tuple[str, str, int]] = []
        self.gates = GateRules(definitions)
        self.flow = FlowRules()
        self.sight = Sight()
        self.pruned_before: float | None = None
        self.steered: set[str] = set()
        """The limits that were, or may have been, changed in this step; `pauses` for those."""
        self.hands_changed = False
        """Whether leases were, or may have been, taken over in this step."""

    @property
    def executions(self) -> dict[int, ExecutionLine]:
        return self.sight.executions

    @property
    def jobs(self) -> dict[int, JobLine]:
        return self.sight.jobs

    @property
    def batches(self) -> dict[int, BatchLine]:
        return self.sight.batches

    @property
    def running(self) -> list[ExecutionLine]:
        return [line for line in self.executions.values() if line.is_running]

    # looking at the rows

    async def look(self, store: SimulatedStore) -> None:
        before, now = self.sight, await seen(store)
        executions, jobs = now.executions, now.jobs
        events = await store.select(_EVENTS, self._last_event_row)
        self._forget_pruned(executions, jobs)
        self._remember_keys(executions)
        told = self._append(events, executions)
        told |= self._tell_beginnings(jobs.values())
        touched = set(told)
        touched.update(id_ for id_, line in executions.items() if self.executions.get(id_) != line)
        for id_, job in jobs.items():
            was = before.jobs.get(id_)
            if job != was:
                touched.add(job.execution_id)
                self._check_job_change(was, job, told)
        for id_, job in before.jobs.items():
            gone = id_ not in jobs and job.execution_id in executions
            ensure(not gone, "job {} of execution {} has vanished", id_, job.execution_id)
        self.sight = now
        of_execution: dict[int, list[JobLine]] = {}
        for job in jobs.values():
            of_execution.setdefault(job.execution_id, []).append(job)
        for id_ in sorted(touched | (of_execution.keys() - executions.keys())):
            ensure(id_ in executions, "rows of execution {} remain without it", id_)
            self._check_execution(executions[id_], of_execution.get(id_, []))
            if self._is_chain(executions[id_]):
                self.gates.look_at_item(
                    executions[id_], of_execution.get(id_, []), before.jobs, self._histories[id_], now.batches
                )
        self.flow.look(now)
        self.gates.check_waves(now.batches)
        self.gates.look(before, now, may_prune=self.pruned_before is not None)
        check_leases(before, now, steered=self.steered, hands_changed=self.hands_changed)
        self._check_promises()
        self.pruned_before = None
        self.steered = set()
        self.hands_changed = False

    def _is_chain(self, line: ExecutionLine) -> bool:
        return self._definitions[line.definition_id].is_linear

    def _append(self, rows: Sequence[Sequence[Any]], executions: dict[int, ExecutionLine]) -> set[int]:
        """The executions that have something new in their log."""
        self._event_rows += rows
        told = set()
        for row in rows:
            self._last_event_row = row[0]
            events = events_after([row], EventPlace(), 1_000)
            told.add(row[1])
            if self._is_chain(executions[row[1]]):
                ensure(events and events[-1].type in ENDS_A_TRANSACTION, "cut off in the middle: {}", events)
            self._logs.setdefault(row[1], []).extend(event for event in events if not self._has_begun(event))
        return told

    def _has_begun(self, event: Event) -> bool:
        """Whether its job's row has told it already, and so it is in the log."""
        if event.type is not EventType.ACTION_STARTED:
            return False
        place = place_of(event.data.get("visit", 1), event.data.get("element", NO_ELEMENT))
        begun = self._begun.pop((event.execution_id, event.step or "", place), None)
        if begun is not None:
            told = _led_by(begun, event.data["worker"]) if self.hands_changed else begun
            ensure(_without_id(event) == _without_id(told), "{} began as {}", event, begun)
        return begun is not None

    def _tell_beginnings(self, jobs: Iterable[JobLine]) -> set[int]:
        """Attempts that run are told by their jobs' rows, as the store's query of events does."""
        told = set()
        for job in jobs:
            place = (job.execution_id, job.step, job.place)
            if job.status == JobStatus.LEASED and self.hands_changed and place in self._begun:
                log, known = self._logs[job.execution_id], self._begun[place]
                self._begun[place] = log[log.index(known)] = _led_by(known, job.worker_id)
            if job.status != JobStatus.LEASED or place in self._begun:
                continue
            data = {"attempt": job.attempts, "is_retry": job.attempts > 1, "worker": job.worker_id}
            data |= told_place(job.place)
            begun = Event(
                id="", execution_id=job.execution_id, at=job.last_attempt_at or 0.0,
                type=EventType.ACTION_STARTED, step=job.step, data=data,
            )  # fmt: skip
            self._begun[place] = begun
            self._logs.setdefault(job.execution_id, []).append(begun)
            told.add(job.execution_id)
        return told

    def _forget_pruned(self, executions: dict[int, ExecutionLine], jobs: dict[int, JobLine]) -> None:
        for id_ in self.executions.keys() - executions.keys():
            line = self.executions[id_]
            allowed = (
                self.pruned_before is not None
                and line.finished_at is not None
                and line.finished_at < self.pruned_before
            )
            ensure(allowed, "execution {} ({}) has vanished", id_, line.status)
            parent = jobs.get(line.parent_job or 0)
            was = self.jobs.get(line.parent_job or 0)
            waits = parent is not None and parent.is_live and was is not None and was.is_live
            ensure(not waits, "execution {} is gone before {} has read what came of it", id_, parent)
            self.gates.pruned(line)
            self._logs.pop(id_)
            self._histories.pop(id_, None)
            self.flow.forget(id_)
            self._event_rows = [row for row in self._event_rows if row[1] != id_]
            self._keys = {key: known for key, known in self._keys.items() if known != id_}
            for job in self.jobs.values():
                if job.execution_id == id_:
                    self._outputs.pop(job.id, None)

    def _check_job_change(self, before: JobLine | None, now: JobLine, told: set[int]) -> None:
        if before is None:
            ensure(now.execution_id in told, "job {} appeared without an event", now.id)
            return
        superseded = not before.is_live and before._replace(superseded=True) == now
        ensure(
            before.is_live or superseded,
            "a job that was {} changed: {} became {}",
            before.status,
            before,
            now,
        )
        silent = before._replace(lease_until=now.lease_until) == now
        if self.hands_changed and before.fence and now.fence:
            taken = before._replace(lease_until=now.lease_until, fence=now.fence, worker_id=now.worker_id)
            silent |= taken == now
        if before.held_by == CHILD:  # its child has ended, and its own log does not tell that
            freed = before._replace(held_by=None, available_at=now.available_at, parked=now.parked)
            silent |= freed == now
        ensure(silent or now.execution_id in told, "{} became {} without an event", before, now)
        kept = before.scheduled_for in (None, now.scheduled_for)
        ensure(kept, "what it is scheduled for has changed: {} became {}", before, now)

    # one execution

    def _check_execution(self, line: ExecutionLine, jobs: list[JobLine]) -> None:
        name = f"execution {line.id} ({line.status}, round {line.round})"
        if line.status == ExecutionStatus.FAILED:
            error = line.stored_error
            ensure(error is not None and error.final, "{} has no final error", name)
        twice = [key for key, n in Counter((job.round, job.step, job.place) for job in jobs).items() if n > 1]
        ensure(not twice, "{} has two jobs for {}", name, twice)
        for job in jobs:
            self._check_job(job)
            self._check_group(job, line)
        if self._is_chain(line):
            self._check_chain(line, jobs, name)
        else:
            self.flow.history(line, self._definitions[line.definition_id])
            history = self.flow.check(line, jobs, self._logs.get(line.id, []))
            self._check_told(line, jobs, history)

    def _check_chain(self, line: ExecutionLine, jobs: list[JobLine], name: str) -> None:
        live = [job for job in jobs if job.is_live]
        if line.status == ExecutionStatus.RUNNING:
            ensure(len(live) == 1, "{} has {} live jobs: {}", name, len(live), jobs)
            ensure(live[0].round == line.round, "{} has a live job of another round: {}", name, live)
        else:
            ensure(not live, "{} has ended and has live jobs: {}", name, live)
        if line.status == ExecutionStatus.COMPLETED:
            last = self._definitions[line.definition_id].steps[-1].name
            ensure(line.last_completed_stage == last, "{} ended after {}", name, line.last_completed_stage)
        self._check_log(line, jobs, live)

    def _check_job(self, job: JobLine) -> None:
        ensure(0 <= job.attempts <= job.max_attempts, "too many attempts: {}", job)
        ensure((job.status == JobStatus.DEAD) == (job.dead_reason is not None), "reason to die: {}", job)
        ensure((job.status == JobStatus.DONE) == (job.output is not None), "output: {}", job)
        ensure((job.status == JobStatus.LEASED) == (job.fence is not None), "fence: {}", job)
        if job.dead_reason == DeadReason.EXHAUSTED:
            ensure(job.attempts == job.max_attempts, "exhausted too early: {}", job)
        if job.status in READY and job.scheduled_for is not None:
            ensure(job.available_at >= job.scheduled_for, "available before it is scheduled: {}", job)
        if job.status == JobStatus.RETRY:
            ensure(bool(job.alone) == (job.losses > 0), "alone after a loss, and only then: {}", job)

    def _check_group(self, job: JobLine, line: ExecutionLine) -> None:
        """Where it waits in the queue is what its definition says."""
        definition = self._definitions[line.definition_id]
        step = definition.step(job.step)
        rank = RANKS.get(step.operation, RANK_DEFAULT) if step.priority is None else step.priority
        handler = expected_handler(definition, job)
        expected = (line.path, step.name, handler, step.lane or Lane(line.lane), rank, step.limit)
        found = (job.path, job.group_step, job.handler, job.lane, job.rank, job.limit)
        ensure(found == expected, "{} expected of {}", expected, job)
        ensure(bool(job.limited) == bool(step.limit), "counted where it should not be, or not: {}", job)

    def _check_log(self, line: ExecutionLine, jobs: list[JobLine], live: list[JobLine]) -> None:
        log = self._logs.get(line.id, [])
        history = self._histories.get(line.id)
        if history is None:
            definition = self._definitions[line.definition_id]
            history = self._histories[line.id] = History(definition, line.batch_id is not None)
        history.read(log[history.events :])
        self._check_told(line, jobs, history)
        if live and history.available_at is not None:
            ensure(live[0].available_at == history.available_at, "available_at of {}: {}", live[0], history)
        if live:
            held_by = None if history.wave is None else f"wave {history.wave.number}"
            if history.is_before_barrier:
                held_by = "barrier"
            ensure(live[0].held_by == held_by, "held by {}, not by {}: {}", live[0].held_by, held_by, history)
            ensure(live[0].scheduled_for == history.scheduled_for, "schedule of {}: {}", live[0], history)
            counted = (history.losses, history.crashes)
            ensure((live[0].losses, live[0].crashes) == counted, "losses of {}: {}", live[0], history)

    def _check_told(self, line: ExecutionLine, jobs: list[JobLine], history: History | FlowHistory) -> None:
        """The rows against the log, replayed."""
        name, told = f"execution {line.id}", replay(self._logs.get(line.id, []))
        ensure(told.status == line.status, "{} is {}; its log says {}", name, line.status, told.status)
        ensure(told.round == line.round, "{} is in round {}; its log says {}", name, line.round, told.round)
        ensure(
            told.last_completed_stage == line.last_completed_stage,
            "{} completed {}; its log says {}",
            name,
            line.last_completed_stage,
            told.last_completed_stage,
        )
        rows = {(job.round, job.step, job.place): (job.status, job.attempts, job.dead_reason) for job in jobs}
        replayed = {key: (job.status.value, job.attempts, job.dead_reason) for key, job in told.jobs.items()}
        ensure(rows == replayed, "{} has jobs {}; its log says {}", name, rows, replayed)
        ensure(
            line.retry_count == history.retries, "{} counts {} retries: {}", name, line.retry_count, history
        )
        ensure(
            line.manual_retries == history.manual_retries, "{} miscounts manual retries: {}", name, history
        )
        notes = len(_NOTES.decode(line.retry_history)) if line.retry_history else 0
        ensure(notes == min(history.errors, RETRY_NOTES_MAX), "{} has {} notes: {}", name, notes, history)

    # promises

    def _check_promises(self) -> None:
        for queue_id, (fence, output) in self._outputs.items():
            job = self.jobs.get(queue_id)
            if job is not None and self._led_nowhere(job):
                continue
            if job is None or (job.status, job.settled_fence, job.output) != (JobStatus.DONE, fence, output):
                raise Violation(f"the completion {fence} {output} was lost: {job}")
        for key, id_ in self._keys.items():
            line = self.executions.get(id_)
            ensure(line is not None and line.idempotency_key == key[1], "{} was execution {}", key, id_)

    def _led_nowhere(self, job: JobLine) -> bool:
        """Whether the work was done, and yet it is dead: where its playbook goes on cannot be told."""
        return job.dead_reason == DeadReason.PERMANENT and any(
            event.data.get("error_type") in NO_WAY_ON and event.step == job.step
            for event in self._logs[job.execution_id]
        )

    def leased(self, jobs: Iterable[Leased], now: float) -> None:
        for job in jobs:
            key = (job.queue_id, job.fence)
            ensure(key not in self._fences, "fence {} was given out twice", key)
            self._fences.add(key)
            ensure(job.lease_until > now, "leased for no time: {}", job)

    def check_outputs(self, lease: Leased) -> None:
        """A handler is given the latest output of each stage before its own; of a playbook, what it reads."""
        job = self.jobs[lease.queue_id]
        definition = self._definitions[self.executions[job.execution_id].definition_id]
        given, expected = lease.outputs, {}
        if definition.is_linear:
            before = [step.name for step in definition.steps]
            latest: dict[str, str] = {}
            for other in self.jobs.values():
                if other.execution_id == job.execution_id and other.output is not None:
                    latest[other.step] = other.output
            expected = {name: latest[name] for name in before[: before.index(job.step)]}
        else:
            reference = self.flow.known(job.execution_id).reference
            reads = [name for name in definition.step(job.step).needs if not reference.has_died(name)]
            expected = {name: reference.outputs[name] for name in reads if name in reference.outputs}
            given = {name: msgspec.json.decode(given[name]) for name in reads if name in given}
        ensure(given == expected, "job {} was given {} instead of {}", job.id, given, expected)

    def answered(self, queue_id: int, fence: str, outcome: Outcome, ack: Ack) -> None:
        """A fence settles one outcome: whatever is accepted for it later is that same one."""
        ensure(ack.queue_id == queue_id, "the answer is to another report: {}", ack)
        ensure(ack.code is not AckCode.INVALID, "{} could not be stored: {}", outcome, ack)
        if not ack.accepted:
            return
        key = (queue_id, fence)
        ensure(key in self._fences, "a fence that nobody was given was accepted: {}", key)
        settled = self._settled.setdefault(key, outcome)
        ensure(settled == outcome, "{} settled {} and then {}", key, settled, outcome)
        if is_storable(outcome):
            self._outputs[queue_id] = (fence, outcome.result)

    def submitted(self, path: str, key: str, execution_id: int) -> None:
        self._key_answers.append((path, key, execution_id))

    def _remember_keys(self, executions: dict[int, ExecutionLine]) -> None:
        for path, key, id_ in self._key_answers:
            if id_ in executions:  # it may have been pruned in the same step
                known = self._keys.setdefault((path, key), id_)
                ensure(known == id_, "key {} of {} is execution {} and {}", key, path, known, id_)
        self._key_answers = []

    # the end

    async def look_again(self, store: SimulatedStore) -> None:
        """Everything once more from nothing: the log was only ever appended to."""
        rows = [tuple(row) for row in await store.select(_EVENTS, 0)]
        ensure(rows == [tuple(row) for row in self._event_rows], "events that had been read were changed")
        fresh = Invariants(self._definitions)
        fresh.gates.forgive(self.gates)
        await fresh.look(store)
        ensure(not fresh.running, "these never ended: {}", fresh.running)


def _led_by(begun: Event, worker: str | None) -> Event:
    return msgspec.structs.replace(begun, data={**begun.data, "worker": worker})


def _without_id(event: Event) -> Event:
    return msgspec.structs.replace(event, id="")
