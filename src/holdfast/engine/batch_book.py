"""What a plan keeps of the batches its rows are in: their gates, counted on as jobs move.

The store hands over the gated batches, locked, before the plan runs; the plan tells every move of an
execution; what has changed is written with the jobs, in their transaction.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.core.gates import BARRIER, BarrierGate, BatchState, Gates, Place, WaveGate
from holdfast.core.model import ExecutionState
from holdfast.engine.decisions import Decided, Key, Undecidable
from holdfast.engine.definitions import Definitions
from holdfast.playbook.definition import Definition, Step

_GATES = msgspec.json.Decoder(Gates)


class CompletionMissing(Exception):
    """When a step of an execution was done is not known yet: look it up, then run the transaction again."""

    def __init__(self, execution_id: int, step: str) -> None:
        super().__init__(execution_id, step)
        self.execution_id = execution_id
        self.step = step


class Start(NamedTuple):
    """How the job of a step begins: when it is available, and what it waits for until then."""

    available_at: float
    held_by: str | None = None
    scheduled_for: float | None = None


def new_gates(definition: Definition) -> Gates:
    return Gates(
        barriers=[
            BarrierGate(step.name, step.barrier.after, step.barrier.delay_seconds)
            for step in definition.steps
            if step.barrier is not None
        ],
        waves=[WaveGate(step.name) for step in definition.steps if step.retry.wave],
    )


def with_gates(batch: BatchState, gates: Gates) -> BatchState:
    """The batch with these gates; it asks for attention where one of them is to be opened."""
    return msgspec.structs.replace(
        batch,
        gates=msgspec.json.encode(gates).decode(),
        attention=gates.need_attention(is_closed=batch.closed_at is not None),
    )


def gates_of(batch: BatchState) -> Gates:
    return _GATES.decode(batch.gates)


class BatchBook:
    def __init__(self, definitions: Definitions, now: float) -> None:
        self._definitions = definitions
        self.now = now
        self._batches: dict[int, BatchState] = {}
        self._gates: dict[int, Gates] = {}
        self.completions: dict[tuple[int, str], float] = {}
        """When steps were done, looked up between two runs of a plan."""
        self.decisions: dict[Key, Decided | Undecidable] = {}
        """What steps have decided of their edges, made before a plan runs, or between two runs of it."""

    def load(self, batches: list[BatchState]) -> None:
        """Called by the store before each run of the plan."""
        self._batches = {batch.id: batch for batch in batches}
        self._gates = {}

    def _gates_of(self, execution: ExecutionState) -> Gates | None:
        batch = self._batches.get(execution.batch_id or 0)
        if batch is None:
            return None
        if batch.id not in self._gates:
            self._gates[batch.id] = gates_of(batch)
        return self._gates[batch.id]

    def moved(self, execution: ExecutionState, before: Place | None, after: Place | None) -> None:
        gates = self._gates_of(execution)
        if gates is not None:
            gates.moved(before, after, self._definitions[execution.definition_id].position)

    def wave(self, execution: ExecutionState, step: str) -> WaveGate | None:
        """The wave that a failed job of this step waits for."""
        gates = self._gates_of(execution)
        return None if gates is None else gates.wave(step)

    def start(self, step: Step, execution: ExecutionState, just_completed: str | None) -> Start:
        """How this step begins after the one that was just completed, if any was."""
        if step.barrier is None:
            return Start(self.now)
        gates = self._gates_of(execution)
        barrier = None if gates is None else gates.barrier(step.name)
        if barrier is not None and barrier.opened_at is None:
            return Start(self.now, BARRIER)
        completed_at = self.now
        if just_completed != step.barrier.after:
            completed_at = self._completed_at(execution.id, step.barrier.after)
        scheduled_for = completed_at + step.barrier.delay_seconds
        if barrier is not None and barrier.opened_at is not None and completed_at <= barrier.opened_at:
            scheduled_for = barrier.scheduled_for or scheduled_for
        return Start(max(self.now, scheduled_for), None, scheduled_for)

    def _completed_at(self, execution_id: int, step: str) -> float:
        if (execution_id, step) not in self.completions:
            raise CompletionMissing(execution_id, step)
        return self.completions[execution_id, step]

    def changed(self) -> list[BatchState]:
        changed = (with_gates(self._batches[id_], gates) for id_, gates in self._gates.items())
        return [batch for batch in changed if batch != self._batches[batch.id]]

    @property
    def needs_attention(self) -> bool:
        return any(batch.attention for batch in self.changed())
