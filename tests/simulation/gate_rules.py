"""What must hold of batches, recounted from the rows of the jobs.

The engine counts its gates up and down as jobs move; here every batch is counted anew after every step. An
opening is compared with what was there before it: nobody may have been left behind, and what was decided
once stays decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.core.gates import BarrierGate, WaveGate
from holdfast.playbook.definition import Definition
from simulation.flow_rules import CHILD, FOR_EACH
from simulation.history import History, ensure
from simulation.lines import BatchLine, ExecutionLine, JobLine, Sight


class _Begun(NamedTuple):
    """That a wave has begun, as one of its jobs tells it."""

    batch_id: int
    step: str
    number: int
    delay: float
    available_at: float


class GateRules:
    def __init__(self, definitions: dict[int, Definition]) -> None:
        self._definitions = definitions
        self._pruned: dict[int, int] = {}
        self._wave_delays: dict[tuple[int, str, int], float] = {}
        self._wave_times: dict[tuple[int, str, int], float] = {}
        self._begun: list[_Begun] = []
        self._keys: dict[tuple[str, str], int] = {}

    def forgive(self, others: GateRules) -> None:
        """What was pruned in the sight of others is missing here too."""
        self._pruned = dict(others._pruned)
        self._wave_delays = dict(others._wave_delays)

    def pruned(self, line: ExecutionLine) -> None:
        if line.batch_id is not None:
            self._pruned[line.batch_id] = self._pruned.get(line.batch_id, 0) + 1

    def made(self, path: str, key: str, batch_id: int) -> None:
        """The answer to whoever made a batch with a key."""
        known = self._keys.setdefault((path, key), batch_id)
        ensure(known == batch_id, "key {} of {} is batch {} and {}", key, path, known, batch_id)

    def look(self, before: Sight, now: Sight, *, may_prune: bool) -> None:
        """Of all batches; the executions that were touched are `look_at_item`'s."""
        items: dict[int, list[ExecutionLine]] = {id_: [] for id_ in now.batches}
        for line in now.executions.values():
            if line.batch_id is not None:
                ensure(line.batch_id in items, "{} is in no batch that there is", line)
                items[line.batch_id].append(line)
        live: dict[int, list[JobLine]] = {id_: [] for id_ in now.batches}
        for job in now.jobs.values():
            batch_id = now.executions[job.execution_id].batch_id
            if job.is_live and batch_id is not None:
                live[batch_id].append(job)
            else:
                ensure(job.held_by in (None, FOR_EACH, CHILD), "held, and by what? {}", job)
        for id_, batch in now.batches.items():
            self._check_batch(batch, before.batches.get(id_), items[id_])
            self._check_gates(batch, before, live[id_])
        for id_, gone in before.batches.items():
            if id_ not in now.batches:
                ensure(may_prune and gone.closed_at is not None, "batch {} has vanished", gone)
                self._keys = {key: known for key, known in self._keys.items() if known != id_}
        for key, id_ in self._keys.items():
            ensure(id_ in now.batches, "the batch {} of key {} is gone", id_, key)

    def _check_batch(self, batch: BatchLine, before: BatchLine | None, items: list[ExecutionLine]) -> None:
        there = len(items) + self._pruned.get(batch.id, 0)
        ensure(batch.items == there, "{} counts {} items; there are {}", batch, batch.items, there)
        ensure(batch.cancelled_at is None or batch.closed_at is not None, "cancelled and open: {}", batch)
        for line in items:
            same = (line.path, line.definition_id, line.lane) == (
                batch.path,
                batch.definition_id,
                batch.lane,
            )
            ensure(same, "{} is no item for {}", line, batch)
        if before is not None:
            ensure(
                (before.path, before.definition_id, before.lane)
                == (batch.path, batch.definition_id, batch.lane),
                "{} became {}",
                before,
                batch,
            )
            for was, is_ in (
                (before.closed_at, batch.closed_at),
                (before.cancelled_at, batch.cancelled_at),
            ):
                ensure(was is None or was == is_, "{} is {} now", before, batch)
            if before.closed_at is not None:
                ensure(batch.items == before.items, "{} was closed and is {} now", before, batch)

    # gates

    def _check_gates(self, batch: BatchLine, before: Sight, live: list[JobLine]) -> None:
        definition, gates = self._definitions[batch.definition_id], batch.gates
        place = {step.name: number for number, step in enumerate(definition.steps)}
        old = before.batches.get(batch.id)
        barred = [step.name for step in definition.steps if step.barrier is not None]
        ensure([gate.step for gate in gates.barriers] == barred, "{} has other barriers: {}", batch, barred)
        waved = [step.name for step in definition.steps if step.retry.wave]
        ensure([gate.step for gate in gates.waves] == waved, "{} has other waves: {}", batch, waved)
        is_due = gates.cancelling
        for gate in gates.barriers:
            left = [job for job in live if place[job.step] <= place[gate.after]]
            was = None if old is None else old.gates.barrier(gate.step)
            self._check_barrier(batch, gate, was, left, before)
            is_due |= gate.opened_at is not None and not gate.released
            is_due |= gate.opened_at is None and batch.closed_at is not None and not left
        for wave in gates.waves:
            here = [job for job in live if job.step == wave.step]
            waiting = [job for job in here if job.held_by == f"wave {wave.number}"]
            counted = (wave.waiting, wave.active)
            found = (len(waiting), len(here) - len(waiting))
            ensure(counted == found, "{} counts {} of {}; there are {}", batch, counted, wave.step, found)
            if old is not None and (was_wave := old.gates.wave(wave.step)) is not None:
                self._check_wave(batch, wave, was_wave, here, before)
            is_due |= not wave.released or (bool(waiting) and len(waiting) == len(here))
        ensure(bool(batch.attention) == is_due, "attention={}, due={}: {}", batch.attention, is_due, batch)
        for job in live:
            self._check_held(batch, job)

    def _check_barrier(
        self,
        batch: BatchLine,
        gate: BarrierGate,
        was: BarrierGate | None,
        left: list[JobLine],
        before: Sight,
    ) -> None:
        step = self._definitions[batch.definition_id].step(gate.step)
        assert step.barrier is not None
        ensure(
            (gate.after, gate.delay_seconds) == (step.barrier.after, step.barrier.delay_seconds), "{}", gate
        )
        if gate.opened_at is None:
            ensure(gate.scheduled_for is None and not gate.released, "half open: {}", gate)
            ensure(gate.unsettled == len(left), "{}: {} are not settled: {}", batch, gate.unsettled, left)
            ensure(was is None or was.opened_at is None, "{} was shut again: {}", was, gate)
            return
        ensure(batch.closed_at is not None, "opened although more may come: {}", batch)
        ensure(gate.scheduled_for == gate.opened_at + gate.delay_seconds, "another time: {}", gate)
        for job in left:
            # Only who is retried by hand comes before an open barrier.
            ensure(job.round > 1, "opened although one was not settled: {} {}", gate, job)
        if was is None or was.opened_at is None:
            early = [job for job in left if job.id in before.jobs]
            ensure(not early, "opened although these were not settled: {} {}", gate, early)
        else:
            decided = (was.opened_at, was.scheduled_for)
            ensure(decided == (gate.opened_at, gate.scheduled_for), "{} was opened again: {}", was, gate)
            ensure(gate.released or not was.released, "{} became {}", was, gate)

    def _check_wave(
        self, batch: BatchLine, wave: WaveGate, was: WaveGate, here: list[JobLine], before: Sight
    ) -> None:
        ensure(wave.number >= was.number, "{} became {}", was, wave)
        if wave.number == was.number:
            ensure(wave.started_at == was.started_at, "{} became {}", was, wave)
            ensure(wave.available_at == was.available_at, "{} became {}", was, wave)
            return
        for job in here:
            old = before.jobs.get(job.id)
            at_work = (
                old is not None
                and old.held_by != was.gathering
                and (old.status, old.fence, old.attempts) == (job.status, job.fence, job.attempts)
            )
            ensure(not at_work, "{} started while this one was at work: {}", wave, job)

    def _check_held(self, batch: BatchLine, job: JobLine) -> None:
        """Only by what still stands, or is about to let it through."""
        if job.held_by in (None, FOR_EACH, CHILD):
            return
        ensure(not job.is_leased, "held and leased: {}", job)
        barrier, wave = batch.gates.barrier(job.step), batch.gates.wave(job.step)
        if job.held_by == "barrier":
            ensure(barrier is not None and not barrier.released, "forgotten by {}: {}", barrier, job)
            return
        assert wave is not None, f"held by a wave where there is none: {job}"
        gathering = job.held_by == f"wave {wave.number}"
        going = job.held_by == f"wave {wave.number - 1}" and not wave.released
        ensure(gathering or going, "forgotten by {}: {}", wave, job)

    # items

    def look_at_item(
        self,
        line: ExecutionLine,
        jobs: list[JobLine],
        old_jobs: Mapping[int, JobLine],
        history: History,
        batches: Mapping[int, BatchLine],
    ) -> None:
        batch = None if line.batch_id is None else batches[line.batch_id]
        for job in jobs:
            old = old_jobs.get(job.id)
            is_new = old is None or old.scheduled_for is None
            if job.is_live and job.scheduled_for is not None and is_new:
                self._check_schedule(job, old, history, batch)
        if batch is not None:
            for wave in history.waves:
                key = (batch.id, wave.step, wave.number)
                self._wave_delays[key] = max(self._wave_delays.get(key, 0.0), wave.delay)
                if wave.available_at is not None:
                    self._begun.append(_Begun(*key, wave.delay, wave.available_at))
            history.waves.clear()

    def _check_schedule(
        self, job: JobLine, old: JobLine | None, history: History, batch: BatchLine | None
    ) -> None:
        barrier = history.definition.step(job.step).barrier
        assert barrier is not None, f"scheduled without a barrier: {job}"
        gate = None if batch is None else batch.gates.barrier(job.step)
        earlier = history.schedules[job.step][:-1]
        completed_at = history.completed_at[barrier.after]
        if old is not None and old.held_by is not None:
            expected = None if gate is None else gate.scheduled_for
        elif history.is_resumed_here and earlier:
            expected = earlier[-1]
        elif gate is not None and gate.opened_at is not None and completed_at <= gate.opened_at:
            expected = gate.scheduled_for
        else:
            expected = completed_at + barrier.delay_seconds
        ensure(job.scheduled_for == expected, "{} expected of {}, {}: {}", expected, gate, history, job)

    def check_waves(self, batches: Mapping[int, BatchLine]) -> None:
        """All jobs of a wave go at one time, which leaves each of them the delay that it needs."""
        for told in self._begun:
            key = (told.batch_id, told.step, told.number)
            begins = self._wave_times.setdefault(key, told.available_at)
            ensure(begins == told.available_at, "wave {} began at {} and {}", key, begins, told)
            gate = batches[told.batch_id].gates.wave(told.step)
            assert gate is not None
            if gate.number == told.number + 1:
                ensure(gate.available_at == begins, "{} began at {}", gate, begins)
                waited = begins - (gate.started_at or 0.0)
                ensure(told.delay - 1e-6 <= waited, "{} is too short for {}", gate, told)
                longest = self._wave_delays[key]
                ensure(waited <= longest + 1e-6, "{} waits for longer than {}", gate, longest)
        self._begun = []
