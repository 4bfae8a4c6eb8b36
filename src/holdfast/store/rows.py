"""Rows of either database as records. Both dialects return the same columns in the same order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.core.failures import StoredError
from holdfast.core.gates import BatchRow, BatchState, Gates
from holdfast.core.model import (
    ClaimGroup,
    DeadReason,
    Event,
    EventType,
    ExecutionRow,
    ExecutionState,
    ExecutionStatus,
    JobRow,
    JobState,
    JobStatus,
    Lane,
    Mode,
    RetryNote,
    WorkerRow,
    element_of,
    told_place,
    visit_of,
)
from holdfast.store.changes import ChangedJob, NewJob
from holdfast.store.interface import Claimed, Locked

Row = Sequence[Any]

_JOB_COLUMNS = len(msgspec.structs.fields(JobState))
_RETRY_NOTES = msgspec.json.Decoder(tuple[RetryNote, ...])
_STORED_ERROR = msgspec.json.Decoder(StoredError)
_GATES = msgspec.json.Decoder(Gates)
# The row and the place in it, and the times of attempts that had only begun and were told behind it.
BEGUN_MAX = 100
_EVENT_ID = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})((?:~[0-9.e+-]{1,32}){0,100})")
_EVENT_BODY = msgspec.json.Decoder(list[dict[str, Any]])


def job_states(rows: Iterable[Row]) -> list[JobState]:
    return msgspec.convert([tuple(row) for row in rows], list[JobState], strict=False)


def execution_states(rows: Iterable[Row]) -> list[ExecutionState]:
    return msgspec.convert([tuple(row) for row in rows], list[ExecutionState], strict=False)


def claimed(rows: Iterable[Row]) -> list[Claimed]:
    return msgspec.convert([tuple(row) for row in rows], list[Claimed], strict=False)


def locked(rows: Sequence[Row]) -> list[Locked]:
    """Rows that hold a job's columns and then its execution's."""
    whole = [tuple(row) for row in rows]
    jobs = job_states(row[:_JOB_COLUMNS] for row in whole)
    executions = execution_states(row[_JOB_COLUMNS:] for row in whole)
    return [Locked(job, execution) for job, execution in zip(jobs, executions, strict=True)]


def claim_groups(rows: Iterable[Row]) -> dict[ClaimGroup, int]:
    return {
        ClaimGroup(handler, lane, rank, operation, limit, bool(alone), path, step): id_
        for id_, handler, lane, rank, operation, limit, alone, path, step in rows
    }


def changed_job_columns(item: ChangedJob, groups: dict[ClaimGroup, int]) -> tuple[Any, ...]:
    job, group = item
    return (
        job.id,
        job.status,
        job.attempts,
        job.available_at,
        job.unknown_errors,
        job.losses,
        job.crashes,
        job.dead_reason,
        job.settled_fence,
        job.settled_hash,
        job.clear,
        job.held_by,
        job.scheduled_for,
        job.parked,
        groups[group] if group else None,
    )


def changed_execution_columns(execution: ExecutionState) -> tuple[Any, ...]:
    return (
        execution.id,
        execution.status,
        execution.round,
        execution.manual_retries,
        execution.last_manual_retry_at,
        execution.last_completed_stage,
        execution.error,
        execution.retry_history,
        execution.retry_count,
        execution.deadline_at,
        execution.plan,
    )


def new_job_columns(job: NewJob, groups: dict[ClaimGroup, int]) -> tuple[Any, ...]:
    return (*job[:3], groups[job.group], *job[4:], bool(job.group.limit))


def execution_row(row: Row) -> ExecutionRow:
    return ExecutionRow(
        id=row[0],
        path=row[1],
        version=row[2],
        status=ExecutionStatus(row[3]),
        lane=Lane(row[4]),
        mode=Mode(row[5]),
        batch_id=row[6],
        idempotency_key=row[7],
        round=row[8],
        manual_retries=row[9],
        retry_count=row[10],
        last_completed_stage=row[11],
        error=None if row[12] is None else _STORED_ERROR.decode(row[12]),
        retry_history=() if row[13] is None else _RETRY_NOTES.decode(row[13]),
        workload=msgspec.json.decode(row[14]),
        created_at=row[15],
        finished_at=row[16],
        deadline_at=row[17],
        parent_id=row[18],
    )


def job_row(row: Row) -> JobRow:
    return JobRow(
        queue_id=row[0],
        execution_id=row[1],
        path=row[2],
        step=row[3],
        element=element_of(row[4]),
        visit=visit_of(row[4]),
        round=row[5],
        status=JobStatus(row[6]),
        attempts=row[7],
        max_attempts=row[8],
        available_at=row[9],
        scheduled_for=row[10],
        held_by=row[11],
        lease_until=row[12],
        last_heartbeat=row[13],
        progress=row[14],
        worker_id=row[15],
        lane=Lane(row[16]),
        operation=row[17],
        mode=Mode(row[18]),
        rank=row[19],
        dead_reason=None if row[20] is None else DeadReason(row[20]),
        created_at=row[21],
        finished_at=row[22],
        output=None if row[23] is None else msgspec.json.decode(row[23]),
        limit=row[24],
        last_attempt_at=row[25],
        handler=row[26],
        definition_id=row[27],
    )


def batch_states(rows: Iterable[Row]) -> list[BatchState]:
    return msgspec.convert([tuple(row) for row in rows], list[BatchState], strict=False)


def changed_batch_columns(batch: BatchState) -> tuple[Any, ...]:
    return (
        batch.id,
        batch.items,
        batch.gates,
        batch.attention,
        batch.closed_at,
        batch.cancelled_at,
        batch.cancelled_by,
    )


def batch_row(row: Row) -> BatchRow:
    return BatchRow(
        id=row[0],
        path=row[1],
        version=row[2],
        definition_id=row[3],
        lane=Lane(row[4]),
        mode=Mode(row[5]),
        idempotency_key=row[6],
        items=row[7],
        gates=_GATES.decode(row[8]),
        created_at=row[9],
        closed_at=row[10],
        cancelled_at=row[11],
        cancelled_by=row[12],
        is_running=bool(row[13]),
    )


def worker_columns(worker: WorkerRow) -> tuple[Any, ...]:
    return (
        worker.worker_id,
        worker.host,
        worker.pid,
        worker.version,
        worker.concurrency,
        msgspec.json.encode(worker.lanes).decode(),
        msgspec.json.encode(worker.handlers).decode(),
        worker.started_at,
        worker.seen_at,
        worker.seen_until,
    )


def worker_row(row: Row) -> WorkerRow:
    return WorkerRow(
        worker_id=row[0],
        host=row[1],
        pid=row[2],
        version=row[3],
        concurrency=row[4],
        lanes=tuple(map(Lane, msgspec.json.decode(row[5]))),
        handlers=tuple(msgspec.json.decode(row[6])),
        started_at=row[7],
        seen_at=row[8],
        seen_until=row[9],
    )


class EventPlace(NamedTuple):
    """Where reading goes on: behind this event of this row, and behind the beginnings of attempts that were
    told since, which their rows will tell once more when they have ended."""

    row: int = 0
    place: int = -1
    begun: tuple[float, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.row}.{self.place}" + "".join(f"~{at!r}" for at in self.begun)


def events_after(rows: Iterable[Row], after: EventPlace, limit: int) -> list[Event]:
    """Unpack event rows. An event's id is its row and its place in it: `17.2`. An attempt that has only begun
    is in no row; it comes last, after all that is, and its id says so: `17.2~1700000000.25`."""
    events: list[Event] = []
    here = after
    begun, untold = after.begun, list(after.begun)
    for row_id, execution_id, at, body in rows:
        for place, fields in enumerate(_EVENT_BODY.decode(body)):
            if len(events) == limit:
                return events
            happened_at = fields.pop("at", at)
            is_told = fields["type"] == EventType.ACTION_STARTED and happened_at in untold
            if is_told:
                untold.remove(happened_at)
            if row_id is None:
                fields |= told_place(fields.pop("place"))
            if row_id is None:
                if is_told:
                    continue
                begun = (*begun[1 - BEGUN_MAX :], happened_at)
                here = here._replace(begun=begun)
            elif is_told:
                begun = _without(begun, happened_at)
                continue
            elif (row_id, place) <= (after.row, after.place):
                continue
            else:
                here = EventPlace(row_id, place, begun)
            events.append(
                Event(
                    id=here.id,
                    execution_id=execution_id,
                    at=happened_at,
                    type=EventType(fields.pop("type")),
                    step=fields.pop("step", None),
                    data=fields,
                )
            )
    return events


def _without(times: tuple[float, ...], told: float) -> tuple[float, ...]:
    """One of them less: the row has told it, and several attempts may have begun at one time."""
    place = times.index(told) if told in times else len(times)
    return times[:place] + times[place + 1 :]


def parse_event_id(event_id: str | None) -> EventPlace:
    """Where reading goes on; an id that nobody gave out means the beginning."""
    known = _EVENT_ID.fullmatch(event_id or "")
    if known is None:
        return EventPlace()
    begun = [_float_or_none(text) for text in known[3].split("~")[1:]]
    return EventPlace(int(known[1]), int(known[2]), tuple(at for at in begun if at is not None))


def _float_or_none(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
