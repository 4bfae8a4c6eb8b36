"""Executions: started, looked at, retried, cancelled; their histories, and the live stream of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.access import Right
from holdfast.core.errors import InvalidInput
from holdfast.core.model import ExecutionRow, ExecutionStatus
from holdfast.core.retry import parse_duration
from holdfast.engine import Engine, ExecutionView, Submission
from holdfast.engine.checks import unknown_execution
from holdfast.engine.manual_retry import RetryRequest
from holdfast.server.endpoints import Answer, Ask, Family
from holdfast.server.problems import Refused
from holdfast.wire import (
    CancelAnswer,
    CancelRequest,
    EventDocument,
    ExecutionDocument,
    Id,
    Listed,
    Name,
    RetryAnswer,
    Started,
    StartManyRequest,
    StartRequest,
)

executions = Family("Executions")
endpoints = executions.endpoints

KEY_HEADER = "idempotency-key"
PATH_CHARS_MAX = 200


class ExecutionsQuery(msgspec.Struct, frozen=True, kw_only=True):
    status: ExecutionStatus | None = None
    path: Name | None = None
    batch_id: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50
    cursor: Annotated[str, Meta(max_length=64)] | None = None


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`after` is the id of the last event seen."""

    after: Annotated[str, Meta(max_length=4_096)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to hear of; `after` is a Last-Event-ID for clients that cannot set the header."""

    execution_id: Id | None = None
    path: Name | None = None
    after: Annotated[str, Meta(max_length=8_192)] | None = None


class WaitQuery(msgspec.Struct, frozen=True, kw_only=True):
    """With `wait` the answer comes when the execution has ended, at the latest after so many seconds."""

    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0


class RetryBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """From the failed stage, from an earlier one, or all of it (`full`, with `confirm` where results would be
    lost); `force` where the error is permanent and its cause repaired."""

    from_stage: Name | None = None
    full: bool = False
    confirm: bool = False
    force: bool = False
    by: Annotated[str, Meta(max_length=200)] = ""


@executions(
    "POST",
    "/api/executions",
    "Start an execution; the same idempotency key gives the same one",
    {201: Started, 200: Started},
    body=StartRequest,
    headers={"Idempotency-Key": "in place of idempotency_key"},
    needs=Right.ACT,
)
async def start(ask: Ask) -> Answer:
    submission = await _submission(ask.engine, ask.body, key_of(ask, ask.body.idempotency_key))
    [submitted] = await ask.engine.submit([submission])
    started = Started(id=submitted.id, created=submitted.created, path=submission.path)
    return Answer(started, 201 if submitted.created else 200, {"location": f"/api/executions/{submitted.id}"})


@executions(
    "POST",
    "/api/executions/many",
    "Start several executions in one transaction: all of them or none",
    {201: Listed[Started]},
    body=StartManyRequest,
    needs=Right.ACT,
)
async def start_many(ask: Ask) -> Answer:
    body: StartManyRequest = ask.body
    if KEY_HEADER in ask.request.headers:  # ignored, it would promise what is not done
        raise InvalidInput(
            "The header Idempotency-Key is for a single execution, and these are several.",
            guidance="Give each of them an idempotency_key of its own.",
        )
    submissions = [await _submission(ask.engine, item, item.idempotency_key) for item in body.executions]
    stored = await ask.engine.submit(submissions)
    items = [
        Started(id=item.id, created=item.created, path=submission.path)
        for item, submission in zip(stored, submissions, strict=True)
    ]
    return Answer(Listed(items=items), 201)


def key_of(ask: Ask, told: str | None) -> str | None:
    """The idempotency key, from the header or from the body."""
    given = {_as_utf8(value) for value in ask.request.headers.getlist(KEY_HEADER)}
    if "" in given:  # a variable that was never set, and each request would start another one
        raise InvalidInput(
            "The header Idempotency-Key is empty.", guidance="Give it a value, or leave it out."
        )
    if told is not None:
        given.add(told)
    if len(given) > 1:
        raise InvalidInput(
            "Several different idempotency keys are given, in the header Idempotency-Key or beside it.",
            guidance="Give one of them.",
        )
    return next(iter(given), None)


def _as_utf8(header: str) -> str:
    """What stands in the body as this text is the same key."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            "The header Idempotency-Key is not UTF-8 text.", guidance="Use plain letters and digits."
        ) from None


async def _submission(engine: Engine, body: StartRequest, key: str | None) -> Submission:
    if (body.path is None) == (body.playbook is None):
        raise InvalidInput(
            "An execution needs a path." if body.path is None else "Both path and playbook are given.",
            guidance="Give `path`, or `playbook` with a path or the text of one.",
        )
    path = body.path or await _registered(engine, body.playbook or "")
    return Submission(
        path=path,
        version=body.version,
        workload=body.workload,
        lane=body.lane,
        mode=body.mode,
        idempotency_key=key,
        delay_seconds=parse_duration(body.delay, field="delay"),
        deadline_seconds=None if body.deadline is None else parse_duration(body.deadline, field="deadline"),
    )


async def _registered(engine: Engine, playbook: str) -> str:
    """The path of a playbook; a whole text is registered, as no path has a line break or a brace in it, or is
    so long."""
    is_path = "\n" not in playbook and not playbook.lstrip().startswith("{")
    if is_path and len(playbook) <= PATH_CHARS_MAX:
        return playbook
    from holdfast.server.api_catalog import registered

    return (await registered(engine, playbook.encode())).entry.path


@executions(
    "GET",
    "/api/executions",
    "Executions, newest first",
    Listed[ExecutionRow],
    query=ExecutionsQuery,
    needs=Right.LOOK,
)
async def list_executions(ask: Ask) -> Any:
    query: ExecutionsQuery = ask.query
    page = await ask.engine.executions(
        status=query.status,
        path=query.path,
        batch_id=query.batch_id,
        limit=query.limit,
        cursor=query.cursor,
    )
    return Listed(items=page.items, next=page.next)


@executions(
    "GET",
    "/api/executions/{id:int}",
    "An execution with its jobs, its outputs and one plain sentence",
    ExecutionDocument,
    query=WaitQuery,
    needs=Right.LOOK,
)
async def show(ask: Ask) -> Any:
    id_: int = ask.names["id"]
    await _until_it_ends(ask, id_, ask.query.wait)
    if ask.query.wait:
        await ask.check_still()
    return execution_document(await ask.engine.view(id_))


@executions(
    "GET",
    "/api/executions/{id:int}/row",
    "An execution without its jobs",
    ExecutionRow,
    needs=Right.LOOK,
)
async def show_row(ask: Ask) -> Any:
    row = await ask.engine.execution(ask.names["id"])
    if row is None:
        raise unknown_execution(ask.names["id"])
    return row


async def _until_it_ends(ask: Ask, execution_id: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while seconds and not ask.services.is_stopping and (left := deadline - loop.time()) > 0:
        ticket = ask.engine.work_ticket()
        row = await ask.engine.execution(execution_id)
        if row is None or row.status is not ExecutionStatus.RUNNING:
            return
        await ask.engine.wait_for_work(ticket, min(left, 1.0))


def execution_document(view: ExecutionView) -> ExecutionDocument:
    return ExecutionDocument(
        **msgspec.structs.asdict(view.execution),
        summary=view.summary,
        stage=view.stage,
        outputs=view.outputs,
        result=view.result,
        jobs=view.jobs,
        skipped=view.skipped,
    )


@executions(
    "GET",
    "/api/executions/{id:int}/events",
    "The history of an execution, in its order",
    Listed[EventDocument],
    query=EventsQuery,
    needs=Right.LOOK,
)
async def events(ask: Ask) -> Any:
    id_, query = ask.names["id"], ask.query
    found = await ask.engine.events(id_, after=query.after, limit=query.limit)
    if not found and await ask.engine.execution(id_) is None:
        raise unknown_execution(id_)
    items: Sequence[dict[str, Any]] = [event.to_dict() for event in found]
    return {"items": items, "next": found[-1].id if len(found) == query.limit else None}


@executions(
    "POST",
    "/api/executions/{id:int}/retry",
    "Run a failed execution on, from the stage that failed unless said otherwise",
    {202: RetryAnswer},
    body=RetryBody,
    body_optional=True,
    needs=Right.ACT,
)
async def retry(ask: Ask) -> Answer:
    id_: int = ask.names["id"]
    await ask.engine.retry(
        id_, RetryRequest(**msgspec.structs.asdict(ask.body) | {"by": ask.by(ask.body.by)})
    )
    row = await ask.engine.execution(id_)
    if row is None:
        raise unknown_execution(id_)
    return Answer(RetryAnswer(id=id_, round=row.round, status=row.status), 202)


@executions(
    "POST",
    "/api/executions/{id:int}/cancel",
    "Cancel an execution; what runs of it is told at its next heartbeat",
    CancelAnswer,
    body=CancelRequest,
    body_optional=True,
    needs=Right.ACT,
)
async def cancel(ask: Ask) -> Any:
    id_: int = ask.names["id"]
    cancelled = await ask.engine.cancel(id_, by=ask.by(ask.body.by))
    row = await ask.engine.execution(id_)
    if row is None:
        raise unknown_execution(id_)
    return CancelAnswer(id=id_, cancelled=cancelled, status=row.status)


@executions(
    "GET",
    "/api/events/stream",
    "Events as they happen, as server-sent events; may repeat, never misses",
    query=StreamQuery,
    plain={200: "text/event-stream"},
    headers={"Last-Event-ID": "go on behind this event"},
    needs=Right.LOOK,
)
async def stream(ask: Ask) -> Any:
    query: StreamQuery = ask.query
    after = ask.request.headers.get("last-event-id") or query.after
    if after and await ask.services.live.is_beyond_the_end(after):
        raise Refused(
            410,
            "place_gone",
            "What you were told last is not in the database any more: it was put back from a backup.",
            "Read anew what you keep, and listen from now on, without Last-Event-ID.",
        )
    chunks = ask.services.live.stream(execution_id=query.execution_id, path=query.path, after=after)
    return Answer(chunks, 200, {"cache-control": "no-store", "x-accel-buffering": "no"})
