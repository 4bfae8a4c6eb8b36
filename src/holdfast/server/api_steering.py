"""What people steer by: limits, pauses, and failures that are started again by the many."""

from __future__ import annotations

from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

from holdfast.core.access import Right
from holdfast.core.errors import InvalidInput
from holdfast.core.pauses import Pause, PauseKind
from holdfast.engine.controls import LimitView
from holdfast.engine.redrive import Redriven
from holdfast.server.endpoints import Ask, Family
from holdfast.store.interface import FailureFilter, FailureGroup, FailureRow
from holdfast.wire import Id, Listed, Name

steering = Family("Steering")
endpoints = steering.endpoints

Words = Annotated[str, Meta(max_length=500)]
By = Annotated[str, Meta(max_length=200)]
Target = Annotated[str, Meta(min_length=1, max_length=500)]


def document_of(kind: Any) -> Any:
    """A row of the store as an object of its own kind."""
    hints = get_type_hints(kind)
    return msgspec.defstruct(
        f"{kind.__name__}Document",
        [(name, hints[name]) for name in kind._fields],
        frozen=True,
        kw_only=True,
    )


FailureDocument = document_of(FailureRow)
FailureGroupDocument = document_of(FailureGroup)


class LimitBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_concurrency: int
    manual_reserve: int | None = None
    by: By = ""


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """`removed` is false where there was no such limit."""

    name: str
    removed: bool


class PauseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`force` for a name that nobody knows yet."""

    kind: PauseKind
    name: Target
    by: By = ""
    reason: Words = ""
    force: bool = False


class ResumeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: PauseKind
    name: Target
    by: By = ""


class ByQuery(msgspec.Struct, frozen=True, kw_only=True):
    by: By = ""


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """`ended` is the pause that has ended with this; null where there was none."""

    ended: Pause | None


class DeadQuery(msgspec.Struct, frozen=True, kw_only=True):
    path: Name | None = None
    step: Name | None = None
    error_type: Name | None = None
    dead_reason: Name | None = None
    batch_id: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50


class DeadListQuery(DeadQuery, frozen=True, kw_only=True):
    cursor: Annotated[str, Meta(max_length=64)] | None = None


class RedriveBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which failed executions are started again: those of `ids`, those that match, or with `all` every one.
    One request goes through at most `limit` of them; `next` is the cursor to go on with."""

    ids: Annotated[list[int], Meta(max_length=1_000)] | None = None
    path: Name | None = None
    step: Name | None = None
    error_type: Name | None = None
    dead_reason: Name | None = None
    batch_id: Id | None = None
    all: bool = False
    force: bool = False
    dry_run: bool = False
    by: By = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000
    cursor: Annotated[str, Meta(max_length=64)] | None = None


class RedriveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer for each execution that was looked at; `redriven` counts those that run again."""

    items: list[Redriven]
    next: str | None
    redriven: int


@steering(
    "GET",
    "/api/limits",
    "Limits that are set, and those that steps name",
    Listed[LimitView],
    needs=Right.LOOK,
)
async def limits(ask: Ask) -> Any:
    return Listed(items=await ask.engine.controls.limits())


@steering(
    "PUT",
    "/api/limits/{name}",
    "Let at most so many jobs run at once",
    LimitView,
    body=LimitBody,
    needs=Right.ACT,
)
async def set_limit(ask: Ask) -> Any:
    body: LimitBody = ask.body
    return await ask.engine.controls.set_limit(
        ask.names["name"], body.max_concurrency, body.manual_reserve, by=ask.by(body.by)
    )


@steering(
    "DELETE",
    "/api/limits/{name}",
    "Limit nothing under this name any more",
    Removed,
    query=ByQuery,
    needs=Right.ACT,
)
async def remove_limit(ask: Ask) -> Any:
    name: str = ask.names["name"]
    return Removed(name=name, removed=await ask.engine.controls.remove_limit(name, by=ask.by(ask.query.by)))


@steering(
    "GET",
    "/api/pauses",
    "Where nothing new begins, the oldest pause first",
    Listed[Pause],
    needs=Right.LOOK,
)
async def pauses(ask: Ask) -> Any:
    return Listed(items=await ask.engine.controls.pauses())


@steering(
    "POST",
    "/api/pauses",
    "Begin nothing new there; what runs goes on",
    Pause,
    body=PauseBody,
    needs=Right.ACT,
)
async def pause(ask: Ask) -> Any:
    body: PauseBody = ask.body
    return await ask.engine.controls.pause(
        body.kind, body.name, by=ask.by(body.by), reason=body.reason, force=body.force
    )


@steering(
    "POST",
    "/api/pauses/resume",
    "Begin work there again",
    Resumed,
    body=ResumeBody,
    needs=Right.ACT,
)
async def resume(ask: Ask) -> Any:
    return Resumed(
        ended=await ask.engine.controls.resume(ask.body.kind, ask.body.name, by=ask.by(ask.body.by))
    )


@steering(
    "GET",
    "/api/dead",
    "What has failed and nobody has retried, in groups, the largest first",
    Listed[FailureGroupDocument],  # type: ignore[valid-type]
    query=DeadQuery,
    needs=Right.LOOK,
)
async def dead(ask: Ask) -> Any:
    found = await ask.engine.failure_groups(**msgspec.structs.asdict(ask.query))
    return {"items": [group._asdict() for group in found], "next": None}


@steering(
    "GET",
    "/api/dead/list",
    "The same one by one, the oldest execution first",
    Listed[FailureDocument],  # type: ignore[valid-type]
    query=DeadListQuery,
    needs=Right.LOOK,
)
async def dead_list(ask: Ask) -> Any:
    page = await ask.engine.failures(**msgspec.structs.asdict(ask.query))
    return {"items": [row._asdict() for row in page.items], "next": page.next}


@steering(
    "POST",
    "/api/dead/redrive",
    "Start failed executions again at their failed stages",
    RedriveAnswer,
    body=RedriveBody,
    needs=Right.ACT,
)
async def redrive(ask: Ask) -> Any:
    chosen = msgspec.structs.asdict(ask.body)
    is_all = chosen.pop("all")
    is_filtered = any(chosen[name] is not None for name in FailureFilter.__struct_fields__)
    said = sum([chosen["ids"] is not None, is_filtered, is_all])
    if said != 1:
        raise InvalidInput(
            f"Which executions are to be started again is {'said in several ways' if said else 'not said'}.",
            guidance='Name `ids`, or filters, or say "all": true.',
        )
    page = await ask.engine.redrive_page(**chosen | {"by": ask.by(ask.body.by)})
    count = sum(item.is_redriven for item in page.items)
    return RedriveAnswer(items=page.items, next=page.next, redriven=count)
