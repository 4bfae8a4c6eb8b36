"""The routes of downloads: reports requested, and how far they are.

A set of downloads is a batch, also where it is a single item; what is done to batches in general (close,
cancel, retry an item) is done at /api/batches and /api/executions by the same numbers.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.access import Right
from holdfast.core.errors import InvalidInput
from holdfast.core.gates import BatchRow
from holdfast.core.model import ExecutionStatus, Lane, Mode
from holdfast.core.payload import decode_payload
from holdfast.engine import Engine
from holdfast.engine.batch_view import BatchItem, BatchStatus, BatchView, status_of
from holdfast.engine.checks import unknown_batch
from holdfast.pipelines.downloads.item import (
    Download,
    File,
    Item,
    Key,
    Request,
    Sha256,
    Size,
    TakingIn,
    check_item,
)
from holdfast.pipelines.downloads.playbook import PATH
from holdfast.server.api_batches import BatchQuery, BatchRequest, PageQuery, submit_batch
from holdfast.server.api_executions import key_of
from holdfast.server.endpoints import Answer, Ask, Family
from holdfast.wire import Duration, Listed, Name

downloads = Family("Downloads")
endpoints = downloads.endpoints


class DownloadsRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Many `items`, or the fields of a single one. With an `idempotency_key` the same request can be
    repeated: each item is known by its place."""

    items: Annotated[list[Item], Meta(min_length=1)] | None = None
    request: Request | None = None
    download: Download | None = None
    file: File | None = None
    sha256: Sha256 | None = None
    size: Size | None = None
    key: Key | None = None
    note: Any = None
    lane: Lane = Lane.BULK
    mode: Mode | None = None
    idempotency_key: Name | None = None
    deadline: Duration | None = None


class DownloadsStarted(msgspec.Struct, frozen=True, kw_only=True):
    """`created` is false where the key had named it before; `added` counts the items that were not there. The
    `execution_id` is that of a single item."""

    id: int
    created: bool
    items: int
    added: int
    execution_id: int | None


class DownloadsLine(msgspec.Struct, frozen=True, kw_only=True):
    """`scheduled_for` is when downloads begin: null until all items have asked."""

    id: int
    status: BatchStatus
    lane: Lane
    mode: Mode
    items: int
    idempotency_key: str | None
    created_at: float
    scheduled_for: float | None


class DownloadDocument(BatchItem, frozen=True, kw_only=True):
    """One item with its tracking document and, once it is downloaded, its file in the storage."""

    file: str | None
    size: int | None
    sha256: str | None


class DownloadsDocument(BatchView, frozen=True, kw_only=True):
    """`items` by pages, and `next` for the page after it; `size` is how many there are in all. Of a single
    item `tracking` is its tracking document."""

    size: int
    items: list[DownloadDocument]  # type: ignore[assignment]
    next: str | None
    tracking: dict[str, dict[str, Any]] | None


@downloads(
    "POST",
    "/api/downloads",
    "Request reports and download them later: one item, or many as one batch",
    {201: DownloadsStarted, 200: DownloadsStarted},
    body=DownloadsRequest,
    headers={"Idempotency-Key": "in place of idempotency_key"},
    needs=Right.ACT,
)
async def create(ask: Ask) -> Answer:
    body: DownloadsRequest = ask.body
    key = key_of(ask, body.idempotency_key)
    batch = BatchRequest(
        path=PATH,
        items=await asyncio.to_thread(_taken_in, _items_of(body), key),  # of many it takes seconds
        lane=body.lane,
        mode=body.mode,
        deadline=body.deadline,
    )
    started = await submit_batch(ask.engine, batch, key)
    alone = (await ask.engine.batches.items(started.id, limit=1)).items if started.items == 1 else []
    told = DownloadsStarted(
        id=started.id,
        created=started.created,
        items=started.items,
        added=started.added,
        execution_id=alone[0].id if alone else None,
    )
    return Answer(told, 201 if started.created else 200, {"location": f"/api/downloads/{started.id}"})


def _items_of(body: DownloadsRequest) -> list[Item]:
    names = [field.name for field in msgspec.structs.fields(Item)]
    alone = {name: value for name in names if (value := getattr(body, name)) is not None}
    if body.items is not None and alone:
        raise InvalidInput(
            f"The request has items, and beside them {', '.join(alone)} of a single one.",
            guidance="Put what belongs to an item into items.",
        )
    if body.items is not None:
        return body.items
    if body.request is None:
        raise InvalidInput(
            "There is nothing to request.",
            guidance='Give items, or the fields of a single item: {"request": {"url": "https://…"}}.',
        )
    return [Item(**alone)]


def _taken_in(items: list[Item], key: str | None) -> list[Any]:
    taking_in = TakingIn(key)
    workloads = []
    for place, item in enumerate(items):
        try:
            check_item(item)
            workloads.append(taking_in.take(item, place))
        except InvalidInput as error:
            if len(items) == 1:
                raise
            raise InvalidInput(f"Item {place + 1}: {error}", guidance=error.guidance) from None
    return workloads


@downloads(
    "GET",
    "/api/downloads",
    "Downloads, newest first",
    Listed[DownloadsLine],
    query=PageQuery,
    needs=Right.LOOK,
)
async def list_downloads(ask: Ask) -> Any:
    page = await ask.engine.batches.list(path=PATH, limit=ask.query.limit, cursor=ask.query.cursor)
    return Listed(items=[_line(row) for row in page.items], next=page.next)


def _line(row: BatchRow) -> DownloadsLine:
    barriers = row.gates.barriers
    return DownloadsLine(
        id=row.id,
        status=status_of(row),
        lane=row.lane,
        mode=row.mode,
        items=row.items,
        idempotency_key=row.idempotency_key,
        created_at=row.created_at,
        scheduled_for=barriers[0].scheduled_for if barriers else None,
    )


@downloads(
    "GET",
    "/api/downloads/{id:int}",
    "How far downloads are: by step, the barrier, what failed, and a page of items with their tracking",
    DownloadsDocument,
    query=BatchQuery,
    needs=Right.LOOK,
)
async def show(ask: Ask) -> Any:
    engine: Engine = ask.engine
    id_, query = ask.names["id"], ask.query
    row = await engine.batch(id_)
    if row is None or row.path != PATH:
        raise unknown_batch(id_)
    view = await engine.batches.view(id_, failed_max=query.failed)
    items, next_ = await _page(engine, id_, query)
    told = {**msgspec.structs.asdict(view), "items": items}
    alone = view.items == 1 and len(items) == 1
    return DownloadsDocument(
        **told, size=view.items, next=next_, tracking=items[0].tracking if alone else None
    )


async def _page(engine: Engine, id_: int, query: BatchQuery) -> tuple[list[DownloadDocument], str | None]:
    if not query.limit:
        return [], None
    page = await engine.batches.items(id_, status=query.status, limit=query.limit, cursor=query.cursor)
    done = [item.id for item in page.items if item.status is ExecutionStatus.COMPLETED]
    outputs = await engine.store.step_outputs(done, ["download"]) if done else []
    files: dict[int, dict[str, Any]] = {output.execution_id: _file(output.output) for output in outputs}
    nothing: dict[str, Any] = {"file": None, "size": None, "sha256": None}
    return [
        DownloadDocument(**msgspec.structs.asdict(item), **files.get(item.id, nothing)) for item in page.items
    ], page.next


def _file(output: str) -> dict[str, Any]:
    told = decode_payload(output)
    return {name: told.get(name) for name in ("file", "size", "sha256")}
