"""The queue: what people see of it, and the three calls of a worker (lease, heartbeat, report) with the
fourth that gives back."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.access import Right
from holdfast.core.errors import InvalidInput
from holdfast.core.model import (
    HANDLER_CHARS_MAX,
    Ack,
    AckCode,
    DeadReason,
    ExecutionRow,
    JobRow,
    JobStatus,
    Lane,
    Leased,
    LeaseRef,
    LeaseResult,
    Report,
    WorkerRecord,
)
from holdfast.core.payload import check_name
from holdfast.engine import Engine
from holdfast.engine.checks import is_id
from holdfast.engine.foreign import ForeignJob, foreign_jobs, handlers_of
from holdfast.server.endpoints import Answer, Ask, Family
from holdfast.server.leases import BOTH_LANES, Wanted, give_back
from holdfast.server.problems import Refused
from holdfast.wire import (
    HeartbeatRequest,
    Id,
    ItemsAnswer,
    JobDocument,
    Key,
    LeaseAnswer,
    LeaseRequest,
    Listed,
    Name,
    OutcomeReport,
    OutcomesRequest,
    OwnLeaseRequest,
    Problem,
    ReleaseRequest,
    Signal,
    TakeOverAnswer,
    TakeOverRequest,
    Worker,
    item_answers,
    outcome_of,
)

queue = Family("Queue")
endpoints = queue.endpoints

# What one lease hands over at the most, beside its first job.
LEASE_BYTES_MAX = 16 * 1024 * 1024
ANNOUNCE_SECONDS = 10.0
SIGNAL_PART_SECONDS = 1.0
_STALE = "the lease is no longer held; abandon the attempt"


class QueueQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`due` keeps to what waits for nothing but a worker, a pause or a limit; superseded dead jobs are left
    out where `status` is dead."""

    status: JobStatus | None = None
    lane: Lane | None = None
    due: bool = False
    dead_reason: DeadReason | None = None
    execution_id: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50
    cursor: Annotated[str, Meta(max_length=64)] | None = None


class ForeignAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs to run, each with the fence that its heartbeats and its outcome must show. `next_due` is when the
    next one becomes ready, `now` the clock that all times here are of: seconds since 1970."""

    jobs: list[ForeignJob]
    next_due: float | None
    now: float


@queue(
    "GET",
    "/api/queue",
    "Jobs, oldest first, in all states unless filtered",
    Listed[JobDocument],
    query=QueueQuery,
    needs=Right.LOOK,
)
async def list_queue(ask: Ask) -> Any:
    query: QueueQuery = ask.query
    page = await ask.engine.queue(
        status=query.status,
        lane=query.lane,
        dead_reason=query.dead_reason,
        execution_id=query.execution_id,
        due_at=await ask.engine.now() if query.due else None,
        limit=query.limit,
        cursor=query.cursor,
    )
    return Listed(items=await job_documents(ask.engine, page.items), next=page.next)


async def job_documents(engine: Engine, jobs: Sequence[JobRow]) -> list[JobDocument]:
    actions = await engine.actions(jobs)
    return [
        JobDocument(**msgspec.structs.asdict(job), action=action)
        for job, action in zip(jobs, actions, strict=True)
    ]


@queue(
    "POST",
    "/api/queue/lease",
    "Lease jobs; with `wait` the answer comes when there are some",
    ForeignAnswer,
    body=LeaseRequest,
    hot=True,
    needs=Right.WORK,
)
async def lease(ask: Ask) -> Any:
    body: LeaseRequest = ask.body
    handlers = None if body.types is None else tuple(sorted(set(handlers_of(body.types))))
    wanted = Wanted(
        worker_id=body.worker_id,
        handlers=handlers,
        limit=body.limit,
        lease_seconds=body.lease_seconds,
        lanes=_lanes(body.lanes),
        token=body.token or secrets.token_hex(6),
        foreign=True,
    )
    worker = body.worker or Worker(concurrency=body.limit)
    result, now = await _leased(ask, wanted, body.wait, body.recall, worker)
    jobs = await foreign_jobs(ask.engine, result.jobs)
    return ForeignAnswer(jobs=jobs, next_due=result.next_due, now=now)


@queue(
    "POST",
    "/api/queue/lease/stored",
    "The same for Holdfast's own workers: jobs as they are stored",
    LeaseAnswer,
    body=OwnLeaseRequest,
    hot=True,
    needs=Right.WORK,
)
async def lease_stored(ask: Ask) -> Any:
    body: OwnLeaseRequest = ask.body
    for handler in body.handlers:
        check_name(handler, what="handler", length_max=HANDLER_CHARS_MAX)
    wanted = Wanted(
        worker_id=body.worker_id,
        handlers=tuple(sorted(set(body.handlers))),
        limit=body.limit,
        lease_seconds=body.lease_seconds,
        lanes=_lanes(body.lanes),
        alone=body.alone,
        bulk=body.bulk,
        limited=body.limited,
        ageing_seconds=body.ageing_seconds,
        family=body.family,
        token=body.token or secrets.token_hex(6),
        knows_alone=body.knows_alone,
    )
    result, now = await _leased(ask, wanted, body.wait, body.recall, body.worker)
    return LeaseAnswer(jobs=result.jobs, alone_ready=result.alone_ready, next_due=result.next_due, now=now)


def _lanes(lanes: Sequence[Lane] | None) -> tuple[Lane, ...]:
    return BOTH_LANES if lanes is None else tuple(dict.fromkeys(lanes))


async def _leased(
    ask: Ask, wanted: Wanted, wait: float, recall: Sequence[str], told: Worker | None
) -> tuple[LeaseResult, float]:
    """What there is for it, and when that was."""
    if recall:
        await ask.services.desk.recall(wanted.worker_id, recall)
    gone = asyncio.ensure_future(_gone(ask)) if wait else None
    try:
        result = await ask.services.desk.lease(
            wanted, wait, gone, lambda: _tell_worker(ask, wanted, told, wait)
        )
    finally:
        if gone is not None:
            gone.cancel()
    try:
        if wait:
            await ask.check_still()
        return await _within_bytes(ask.engine, result), await ask.engine.now()
    except BaseException:
        # Leased and never handed out, they would end as lost by a worker that never saw them.
        await asyncio.shield(ask.services.desk.give_back(result))
        raise


async def _gone(ask: Ask) -> None:
    """Once whoever asked has hung up."""
    while (await ask.request.receive())["type"] != "http.disconnect":
        pass


def _tell_worker(ask: Ask, wanted: Wanted, told: Worker | None, wait: float) -> None:
    """That it lives and offers this. One of Holdfast's own that has not told of itself is about to."""
    if told is None or wanted.handlers is None or wanted.alone or wanted.family is not None:
        return  # what it offers is not known, or it does not offer it to everybody
    client = ask.request.client
    record = WorkerRecord(
        worker_id=wanted.worker_id,
        host=_printable(told.host) or (client.host if client else ""),
        pid=told.pid,
        version=_printable(told.version),
        concurrency=told.concurrency,
        lanes=_lanes(told.lanes) if told.lanes else wanted.lanes,
        handlers=wanted.handlers,
        started_at=told.started_at,
        announce_seconds=max(ANNOUNCE_SECONDS, wait),
    )
    ask.services.workers.heard(record)


def _printable(text: str) -> str:
    """As people can read it, and any database keep it."""
    return "".join(char for char in text if char.isprintable())


async def _within_bytes(engine: Engine, result: LeaseResult) -> LeaseResult:
    """As many of the jobs as one answer can carry; the others are given back at once."""
    size, kept = 0, 0
    for job in result.jobs:
        size += _size(job)
        if size > LEASE_BYTES_MAX and kept:
            break
        kept += 1
    if kept == len(result.jobs):
        return result
    await give_back(engine, [LeaseRef(job.queue_id, job.fence) for job in result.jobs[kept:]])
    return LeaseResult(result.jobs[:kept], result.alone_ready, result.next_due)


def _size(job: Leased) -> int:
    return len(job.workload) + len(job.input) + len(job.config) + sum(map(len, job.outputs.values()))


@queue(
    "POST",
    "/api/queue/takeover",
    "Go on with attempts that another has leased, under new fences",
    TakeOverAnswer,
    body=TakeOverRequest,
    hot=True,
    needs=Right.WORK,
)
async def take_over(ask: Ask) -> Any:
    body: TakeOverRequest = ask.body
    jobs = await ask.engine.take_over(
        body.worker_id,
        [_lease_ref(item.queue_id, item.fence) for item in body.leases],
        token=body.token,
        lease_seconds=body.lease_seconds,
    )
    return TakeOverAnswer(jobs=jobs, now=await ask.engine.now())


@queue(
    "POST",
    "/api/queue/heartbeat",
    "Extend leases; 409 where none of them is held any more",
    {200: ItemsAnswer, 409: ItemsAnswer},
    body=HeartbeatRequest,
    hot=True,
    needs=Right.WORK,
)
async def heartbeat(ask: Ask) -> Any:
    body: HeartbeatRequest = ask.body
    if body.worker_id is not None:
        ask.services.workers.lives(body.worker_id)
    leases = [_lease_ref(beat.queue_id, beat.fence) for beat in body.leases]
    acks = await ask.engine.heartbeat(
        leases,
        lease_seconds=body.lease_seconds,
        progress={beat.queue_id: beat.progress for beat in body.leases if beat.progress is not None},
    )
    return _answered(acks)


@queue(
    "POST",
    "/api/queue/release",
    "Give attempts back unused: available at once, not counted",
    {200: ItemsAnswer, 409: ItemsAnswer},
    body=ReleaseRequest,
    hot=True,
    needs=Right.WORK,
)
async def release(ask: Ask) -> Any:
    body: ReleaseRequest = ask.body
    if body.recall:
        if body.worker_id is None:
            raise InvalidInput("recall needs the worker_id that leased.", guidance="Add worker_id.")
        await ask.services.desk.recall(body.worker_id, body.recall)
    return _answered(
        await ask.engine.release([_lease_ref(item.queue_id, item.fence) for item in body.leases])
    )


@queue(
    "POST",
    "/api/events",
    "Report how attempts ended; 409 where none of the outcomes was taken",
    {200: ItemsAnswer, 409: ItemsAnswer},
    body=OutcomesRequest,
    hot=True,
    needs=Right.WORK,
)
async def report(ask: Ask) -> Any:
    body: OutcomesRequest = ask.body
    acks: list[Ack | None] = []
    reports: list[Report] = []
    for item in body.outcomes:
        ack = _unusable(item)
        acks.append(ack)
        if ack is None:
            reports.append(Report(item.queue_id, item.fence, outcome_of(item)))
    taken = iter(await ask.engine.report(reports))
    return _answered([next(taken) if ack is None else ack for ack in acks])


def _unusable(item: OutcomeReport) -> Ack | None:
    """The answer to what the engine need not see."""
    if not is_id(item.queue_id) or not _is_fence(item.fence):
        return Ack(item.queue_id, AckCode.STALE_LEASE, _STALE)
    try:
        outcome_of(item)
    except UnicodeDecodeError:
        return Ack(item.queue_id, AckCode.INVALID, "the result is not UTF-8 text")
    return None


def _lease_ref(queue_id: int, fence: str) -> LeaseRef:
    """One that nobody gave out is told as what it is, whatever it is made of."""
    return LeaseRef(queue_id if is_id(queue_id) else 0, fence if _is_fence(fence) else "unknown")


def _is_fence(fence: str) -> bool:
    return fence.isascii() and fence.isprintable() and 0 < len(fence) <= 200


def _answered(acks: Sequence[Ack]) -> Answer:
    items = item_answers(acks)
    if not items or any(item.accepted for item in items):
        return Answer(ItemsAnswer(items=items))
    first = items[0]
    problem = Problem(
        code=first.code.value,
        message=f"None was accepted: {first.message or first.code.value}.",
        guidance="Abandon these attempts: they belong to other workers now, or have ended."
        if first.code is AckCode.STALE_LEASE
        else "Correct what the items say and send them again.",
    )
    return Answer(ItemsAnswer(items=items, error=problem), 409)


class SignalQuery(msgspec.Struct, frozen=True, kw_only=True):
    ticket: int = -1
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0


@queue(
    "GET",
    "/api/queue/signal",
    "Wait until something may have happened since `ticket` was told",
    Signal,
    query=SignalQuery,
    hot=True,
    needs=Right.KNOWN,
)
async def signal(ask: Ask) -> Any:
    query: SignalQuery = ask.query
    loop = asyncio.get_running_loop()
    deadline = loop.time() + query.wait
    # By parts: a server that is being stopped lets nobody wait.
    while query.ticket == ask.engine.work_ticket() and not ask.services.is_stopping:
        if (left := deadline - loop.time()) <= 0:
            break
        await ask.engine.wait_for_work(query.ticket, min(left, SIGNAL_PART_SECONDS))
    return Signal(ticket=ask.engine.work_ticket())


class ChildQuery(msgspec.Struct, frozen=True, kw_only=True):
    attempt: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    path: Name


class Child(msgspec.Struct, frozen=True, kw_only=True):
    execution: ExecutionRow | None


@queue(
    "GET",
    "/api/queue/{id:int}/child",
    "The execution that was started for an attempt of this job",
    Child,
    query=ChildQuery,
    needs=Right.LOOK,
)
async def child(ask: Ask) -> Any:
    id_: int = ask.names["id"]
    if not is_id(id_):
        raise Refused(404, "unknown_name", f"There is no job {id_}.", "Check the number.")
    check_name(ask.query.path, what="path")
    return Child(execution=await ask.engine.child_execution(id_, ask.query.attempt, ask.query.path))


class AnnounceBody(msgspec.Struct, frozen=True, kw_only=True):
    """Who a worker is and what it offers; it is said again every `announce_seconds`."""

    worker_id: Name
    host: Annotated[str, Meta(max_length=500)] = ""
    pid: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    version: Annotated[str, Meta(max_length=200)] = ""
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    lanes: tuple[Lane, ...] = BOTH_LANES
    handlers: tuple[Key, ...] = ()
    started_at: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    announce_seconds: Annotated[float, Meta(gt=0, le=86_400)] = ANNOUNCE_SECONDS


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: str


@queue(
    "POST",
    "/api/workers",
    "Tell that a worker lives",
    Announced,
    body=AnnounceBody,
    hot=True,
    needs=Right.WORK,
)
async def announce(ask: Ask) -> Any:
    told = msgspec.structs.asdict(ask.body)
    record = WorkerRecord(**told | {name: _printable(told[name]) for name in ("host", "version")})
    for handler in record.handlers:
        check_name(handler, what="handler", length_max=HANDLER_CHARS_MAX)
    await ask.engine.announce(record)
    return Announced(worker_id=record.worker_id)


@queue(
    "DELETE",
    "/api/workers/{worker_id:path}",
    "Tell that a worker has ended in order",
    Announced,
    hot=True,
    needs=Right.WORK,
)
async def retire(ask: Ask) -> Any:
    worker_id: str = ask.names["worker_id"]
    if len(worker_id) > 200 or not worker_id.isprintable():
        raise Refused(404, "unknown_name", "There is no such worker.", "Check its id.")
    await ask.services.workers.retire(worker_id)
    return Announced(worker_id=worker_id)
