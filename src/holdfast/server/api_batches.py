"""Batches: many items through one playbook, submitted together, looked at and ended as one."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.access import Right
from holdfast.core.errors import HoldfastError, IdempotencyConflict, InvalidInput
from holdfast.core.gates import BatchRow
from holdfast.core.model import ExecutionStatus, Lane, Mode
from holdfast.core.retry import parse_duration
from holdfast.engine import Engine, Submission
from holdfast.engine.batch_view import BatchItem, BatchView
from holdfast.engine.checks import unknown_batch
from holdfast.server.api_executions import key_of
from holdfast.server.endpoints import Answer, Ask, Family
from holdfast.wire import LIST_MAX, CancelRequest, Duration, Listed, Name, Started

batches = Family("Batches")
endpoints = batches.endpoints

ITEMS_PER_TRANSACTION = 500


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`items` are workloads. With an `idempotency_key` the same request can be repeated: each item is known
    by its place. Without `close` more items can be added."""

    path: Name
    items: list[Any] = []
    lane: Lane = Lane.BULK
    mode: Mode | None = None
    idempotency_key: Name | None = None
    deadline: Duration | None = None
    close: bool = True


class NewItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    workload: Any = None
    idempotency_key: Name | None = None
    deadline: Duration | None = None


class ItemsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`first_place` is how many items come before these, for the words of a refusal."""

    items: Annotated[list[NewItem], Meta(max_length=LIST_MAX)]
    first_place: Annotated[int, Meta(ge=0)] = 0


class BatchStarted(msgspec.Struct, frozen=True, kw_only=True):
    """`added` counts the items that were not there before; `created` is false where the key had named it
    before."""

    id: int
    created: bool
    items: int
    added: int
    closed: bool


class BatchDocument(BatchView, frozen=True, kw_only=True):
    """`items` by pages, and `next` for the page after it; `size` is how many items there are in all."""

    size: int
    items: list[BatchItem]  # type: ignore[assignment]
    next: str | None


class BatchLine(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    is_open: bool
    is_over: bool


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """`closed` is false where it was closed before."""

    id: int
    closed: bool


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    items: int


class BatchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which of its items are in the page; `failed` bounds permanently_failed_jobs."""

    status: ExecutionStatus | None = None
    limit: Annotated[int, Meta(ge=0, le=1_000)] = 50
    cursor: Annotated[str, Meta(max_length=64)] | None = None
    failed: Annotated[int, Meta(ge=1, le=1_000)] = 100


class ItemsQuery(msgspec.Struct, frozen=True, kw_only=True):
    status: ExecutionStatus | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50
    cursor: Annotated[str, Meta(max_length=64)] | None = None


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50
    cursor: Annotated[str, Meta(max_length=64)] | None = None


@batches(
    "POST",
    "/api/batches",
    "Submit many items as one batch",
    {201: BatchStarted, 200: BatchStarted},
    body=BatchRequest,
    headers={"Idempotency-Key": "in place of idempotency_key"},
    needs=Right.ACT,
)
async def create(ask: Ask) -> Answer:
    started = await submit_batch(ask.engine, ask.body, key_of(ask, ask.body.idempotency_key))
    return Answer(started, 201 if started.created else 200, {"location": f"/api/batches/{started.id}"})


async def submit_batch(engine: Engine, body: BatchRequest, key: str | None) -> BatchStarted:
    """All items in order, some hundreds a transaction; a request that broke off can be repeated with its
    key."""
    deadline = None if body.deadline is None else parse_duration(body.deadline, field="deadline")

    def part(place: int) -> list[Submission]:
        return [
            Submission(
                path=body.path,
                workload=workload,
                # As the Python API names them, so that one can end what the other has begun.
                idempotency_key=None if key is None else f"item {number}",
                deadline_seconds=deadline,
            )
            for number, workload in enumerate(body.items[place : place + ITEMS_PER_TRANSACTION], place)
        ]

    places = range(0, len(body.items), ITEMS_PER_TRANSACTION)
    for place in places:  # a wrong one is told before anything is stored
        await _check(engine, part(place), place, len(body.items))
        await asyncio.sleep(0)  # a million of them take many seconds, in which others are answered
    id_, created = await engine.batches.create(body.path, lane=body.lane, mode=body.mode, idempotency_key=key)
    if not created and body.close:
        await _check_size(engine, id_, body, key)
    added = 0
    for place in places:
        try:
            stored = await engine.batches.add(id_, part(place), first_place=place)
        except HoldfastError as error:
            if created:  # nobody else knows its number
                error.args = (f"{error} Batch {id_} is open and has {place:,} of its items.",)
            raise
        added += sum(item.created for item in stored)
    if body.close:
        await engine.batches.close(id_)
    return BatchStarted(id=id_, created=created, items=len(body.items), added=added, closed=body.close)


async def _check_size(engine: Engine, id_: int, body: BatchRequest, key: str | None) -> None:
    """A request that has all items of its batch has no fewer than there are."""
    row = await engine.batch(id_)
    if row is not None and row.items > len(body.items):
        raise IdempotencyConflict(
            f"The key {key!r} of {body.path} belongs to batch {id_}, which has {row.items:,} items, and not"
            f" {len(body.items):,}.",
            guidance="Submit the same items again, or choose another key.",
        )


async def _check(engine: Engine, submissions: list[Submission], first_place: int, items: int) -> None:
    """The one that cannot be accepted is named by its place among all `items`."""
    try:
        await engine.check(submissions)
    except InvalidInput:
        for place, submission in enumerate(submissions, first_place + 1):
            try:
                await engine.check([submission])
            except InvalidInput as error:
                if items == 1:
                    raise
                raise type(error)(f"Item {place}: {error}", guidance=error.guidance) from error
        raise


@batches(
    "GET",
    "/api/batches",
    "Batches, newest first",
    Listed[BatchRow],
    query=PageQuery,
    needs=Right.LOOK,
)
async def list_batches(ask: Ask) -> Any:
    page = await ask.engine.batches.list(limit=ask.query.limit, cursor=ask.query.cursor)
    return Listed(items=page.items, next=page.next)


@batches(
    "GET",
    "/api/batches/{id:int}",
    "How far a batch is, what it waits for, and a page of its items",
    BatchDocument,
    query=BatchQuery,
    needs=Right.LOOK,
)
async def show(ask: Ask) -> Any:
    query: BatchQuery = ask.query
    view: BatchView = await ask.engine.batches.view(ask.names["id"], failed_max=query.failed)
    items, next_ = [], None
    if query.limit:
        page = await ask.engine.batches.items(
            view.id, status=query.status, limit=query.limit, cursor=query.cursor
        )
        items, next_ = page.items, page.next
    told = {**msgspec.structs.asdict(view), "items": items}
    return BatchDocument(**told, size=view.items, next=next_)


@batches(
    "GET",
    "/api/batches/{id:int}/row",
    "The row of a batch, as it is kept",
    BatchRow,
    needs=Right.LOOK,
)
async def row(ask: Ask) -> Any:
    found = await ask.engine.batch(ask.names["id"])
    if found is None:
        raise unknown_batch(ask.names["id"])
    return found


@batches(
    "GET",
    "/api/batches/{id:int}/state",
    "Whether it is open, and whether it is over; cheap",
    BatchLine,
    needs=Right.LOOK,
)
async def state(ask: Ask) -> Any:
    id_: int = ask.names["id"]
    is_open = await ask.engine.batches.is_open(id_)
    return BatchLine(id=id_, is_open=is_open, is_over=await ask.engine.batches.is_over(id_))


@batches(
    "GET",
    "/api/batches/{id:int}/items",
    "Items in the order of their submission, with their tracking documents",
    Listed[BatchItem],
    query=ItemsQuery,
    needs=Right.LOOK,
)
async def items(ask: Ask) -> Any:
    query: ItemsQuery = ask.query
    page = await ask.engine.batches.items(
        ask.names["id"], status=query.status, limit=query.limit, cursor=query.cursor
    )
    return Listed(items=page.items, next=page.next)


@batches(
    "POST",
    "/api/batches/{id:int}/items",
    "Add items to an open batch, in one transaction",
    {201: Listed[Started]},
    body=ItemsRequest,
    needs=Right.ACT,
)
async def add(ask: Ask) -> Answer:
    body: ItemsRequest = ask.body
    id_: int = ask.names["id"]
    row = await ask.engine.batch(id_)
    if row is None:
        raise unknown_batch(id_)
    submissions = [
        Submission(
            path=row.path,
            workload=item.workload,
            idempotency_key=item.idempotency_key,
            deadline_seconds=None
            if item.deadline is None
            else parse_duration(item.deadline, field="deadline"),
        )
        for item in body.items
    ]
    stored = await ask.engine.batches.add(id_, submissions, first_place=body.first_place)
    return Answer(
        Listed(items=[Started(id=item.id, created=item.created, path=row.path) for item in stored]), 201
    )


@batches(
    "POST",
    "/api/batches/{id:int}/close",
    "Say that all its items are there",
    Closed,
    needs=Right.ACT,
)
async def close(ask: Ask) -> Any:
    return Closed(id=ask.names["id"], closed=await ask.engine.batches.close(ask.names["id"]))


@batches(
    "POST",
    "/api/batches/{id:int}/cancel",
    "Close it, and cancel each item that still runs",
    Cancelled,
    body=CancelRequest,
    body_optional=True,
    needs=Right.ACT,
)
async def cancel(ask: Ask) -> Any:
    cancelled = await ask.engine.batches.cancel(ask.names["id"], by=ask.by(ask.body.by))
    return Cancelled(id=ask.names["id"], items=cancelled)
