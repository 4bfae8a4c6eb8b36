"""What the engine remembers of the leases it gave out, so that a completed attempt needs one statement.

    claimed rows ──▶ HeldLeases ──▶ a completed report ──▶ HeldStage, written against its fence

While a lease is held nobody changes its job, nor the state, the round or the lane of its execution: each of
those ends the lease first. So what was read with the claim still holds when the report comes, and only the
fence is left to check, which the store does as it writes. What is not remembered (another process gave out
the lease), what has gates to count, and whatever is refused goes the way of all other reports: see settle.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.core.model import ExecutionStatus, Lane, LeaseRef, Report, visit_of
from holdfast.engine.decisions import Decisions, Needed
from holdfast.engine.definitions import Definitions
from holdfast.engine.events import began, completed
from holdfast.engine.flow import constant_sleep
from holdfast.engine.settle import Prepared, Succeeded
from holdfast.playbook import plan
from holdfast.store.interface import Claimed, Output
from holdfast.store.stages import FollowingJob, HeldStage, StageEnd

# Of more than these the oldest are forgotten: no worker holds as many, so they have been lost or given back.
LEASES_MAX = 20_000
WORKLOAD_CHARS_MAX = 50_000_000
ENDS_MAX = 1_000

_EndKey = tuple[int, str, int, int, Lane, str]
# With the event that tells its beginning. A plain tuple: there are thousands a second.
_Lease = tuple[Claimed, str]


class HeldLeases:
    def __init__(self, definitions: Definitions, decisions: Decisions) -> None:
        self._definitions = definitions
        self._decisions = decisions
        self._leases: dict[int, _Lease] = {}
        self._workload_chars = 0
        self._ends: dict[_EndKey, StageEnd | None] = {}

    def remember(self, claimed: Iterable[Claimed], worker_id: str) -> None:
        begun: dict[tuple[str, int, int, float], str] = {}
        for row in claimed:
            kind = (row.step, row.attempts, row.element, row.leased_at)
            if kind not in begun:
                begun[kind] = began(row.step, row.attempts, worker_id, row.leased_at, row.element)
            self._drop(row.id)
            self._leases[row.id] = (row, begun[kind])
            self._workload_chars += len(row.workload)
        while len(self._leases) > LEASES_MAX or (self._workload_chars > WORKLOAD_CHARS_MAX and self._leases):
            self._drop(next(iter(self._leases)))

    def _drop(self, job_id: int) -> None:
        if (lease := self._leases.pop(job_id, None)) is not None:
            self._workload_chars -= len(lease[0].workload)

    def forget(self, leases: Iterable[LeaseRef | Report | Prepared]) -> None:
        for lease in leases:
            self._drop(lease.queue_id)

    def take(self, report: Report) -> Claimed | None:
        """The lease that this report ends. One that is not here was given out elsewhere, or has been reported
        before."""
        lease = self._leases.get(report.queue_id)
        if lease is None or lease[0].fence != report.fence:
            return None
        self._drop(report.queue_id)
        return lease[0]

    def stages(self, items: Sequence[Prepared]) -> list[HeldStage | None]:
        """For each report the stage that it completes; None where it must be settled under lock. A lease is
        used once: the same report again is looked up in its row."""
        stages: list[HeldStage | None] = []
        for item in items:
            stage = None
            if type(item) is Succeeded:
                lease = self._leases.get(item.queue_id)
                if lease is not None and lease[0].fence == item.fence:
                    stage = self._stage(item, *lease)
                    if stage is not None:
                        self._drop(item.queue_id)
            stages.append(stage)
        return stages

    def needed(self, items: Iterable[Prepared]) -> list[Needed]:
        """The decisions that these reports will ask for, as far as that is known here."""
        needed = []
        for item in items:
            lease = self._leases.get(item.queue_id)
            if type(item) is not Succeeded or lease is None or lease[0].fence != item.fence:
                continue
            row = lease[0]
            definition = self._definitions[row.definition_id]
            if definition.is_linear or definition.step(row.step).for_each is not None:
                continue
            ways = self._decisions.ways(row.definition_id, row.step)
            if ways.decided is not None:
                continue
            visit, inputs = visit_of(row.element), msgspec.json.decode(row.input) if row.input else {}
            output = Output(row.execution_id, row.step, row.round, item.result, row.element)
            outputs = (output,) if row.step in ways.reads else ()
            needed.append(
                Needed(row.execution_id, row.definition_id, row.round, row.step, visit, inputs, outputs)
            )
        return needed

    def _stage(self, item: Succeeded, lease: Claimed, begun: str) -> HeldStage | None:
        if lease.depth is not None:
            return None  # its parent waits for its end
        key = (lease.definition_id, lease.step, lease.attempts, lease.round, lease.lane, begun)
        if key not in self._ends:
            if len(self._ends) >= ENDS_MAX:
                self._ends.clear()
            self._ends[key] = self._end(lease, begun)
        end = self._ends[key]
        if end is None:
            return None
        return HeldStage(
            lease.id, lease.execution_id, item.fence, item.outcome_hash, item.result, end, lease.leased_at
        )

    def _end(self, lease: Claimed, begun: str) -> StageEnd | None:
        definition = self._definitions[lease.definition_id]
        step = definition.step(lease.step)
        following = plan.step_after(definition, lease.step)
        if definition.has_gates or (following is not None and step.lane is not None):
            return None  # the lane of a step that has its own does not tell the execution's
        if not definition.is_linear or (following is not None and constant_sleep(following)):
            return None
        return StageEnd(
            status=ExecutionStatus.COMPLETED if following is None else ExecutionStatus.RUNNING,
            stage=step.name,
            events=completed(step.name, lease.attempts, following.name if following else None, begun),
            following=None
            if following is None
            else FollowingJob(
                following.name,
                lease.round,
                following.claim_group(lease.path, lease.lane),
                following.retry.max_attempts,
            ),
            frees_place=step.limit != "",
            path=lease.path,
        )
