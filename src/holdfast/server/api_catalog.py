"""The catalog: playbooks registered by their text, pipelines by the programs that define them, and what there
is."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.access import Right
from holdfast.core.errors import DefinitionInvalid, InvalidInput, UnknownName
from holdfast.core.handlers import handler_key
from holdfast.core.payload import check_payload
from holdfast.engine import Engine
from holdfast.engine.catalog import AddedPlaybook, CatalogEntry, Change
from holdfast.playbook.definition import Definition
from holdfast.playbook.document import BYTES_MAX
from holdfast.server.endpoints import Answer, Ask, Family
from holdfast.server.problems import Refused
from holdfast.wire import BODY_BYTES_MAX, Id, Listed, Name

if TYPE_CHECKING:
    from holdfast.playbook.load import Playbook

catalog = Family("Catalog")
endpoints = catalog.endpoints

YAML = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "application/json")


class CatalogQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Of each path the current version; with `path` all versions of that one, the newest first."""

    path: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50
    cursor: Name | None = None


class VersionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The current version, unless another one is named."""

    version: Id | None = None


class CatalogDocument(CatalogEntry, frozen=True, kw_only=True):
    """A version as text (of a pipeline its steps in words), and as the engine runs it."""

    text: str
    definition: msgspec.Raw


class AddedDocument(CatalogEntry, frozen=True, kw_only=True):
    """The version, what adding it has `changed`, and the one that was current until now, where that is
    another."""

    change: Change
    replaces: CatalogEntry | None


class PipelineBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline as a program has compiled it."""

    definition: Annotated[str, Meta(min_length=2)]


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    path: str
    version: int


@catalog(
    "POST",
    "/api/catalog",
    "Register a playbook: its YAML is the body",
    {201: AddedDocument, 200: AddedDocument},
    body=bytes,
    media_types=YAML,
    needs=Right.ACT,
)
async def add(ask: Ask) -> Answer:
    added = await registered(ask.engine, ask.body)
    told = AddedDocument(**msgspec.structs.asdict(added.entry), change=added.change, replaces=added.replaces)
    return Answer(told, 201 if added.change is Change.NEW else 200, {"etag": _etag(added.entry)})


async def registered(engine: Engine, source: bytes) -> AddedPlaybook:
    # A large one takes a second or more. One that is too large says so by itself.
    loaded = await asyncio.to_thread(_loaded, source[: BYTES_MAX + 1])
    return await engine.catalog.add(loaded.definition, loaded.source)


def _loaded(source: bytes) -> Playbook:
    from holdfast.playbook.load import load_playbook  # half a second, once; others are answered meanwhile

    return load_playbook(source)


@catalog(
    "GET",
    "/api/catalog",
    "What is registered, by path",
    Listed[CatalogEntry],
    query=CatalogQuery,
    needs=Right.LOOK,
)
async def list_catalog(ask: Ask) -> Any:
    query: CatalogQuery = ask.query
    catalog, page = ask.engine.catalog, {"limit": query.limit, "cursor": query.cursor}
    found = await (catalog.entries(**page) if query.path is None else catalog.versions(query.path, **page))
    return Listed(items=found.items, next=found.next)


@catalog(
    "GET",
    "/api/catalog/{path:path}",
    "One version of a playbook or pipeline",
    {200: CatalogDocument, 304: None},
    query=VersionQuery,
    headers={"If-None-Match": "304 where the version is still this one"},
    needs=Right.LOOK,
)
async def show(ask: Ask) -> Answer:
    path, version = ask.names["path"], ask.query.version
    found = await ask.engine.catalog.text(path, version)
    headers = {"etag": _etag(found.entry), "cache-control": "no-cache"}
    if _matches(ask.request.headers.get("if-none-match", ""), headers["etag"]):
        return Answer(None, 304, headers)
    definition = await ask.engine.catalog.definition(path, found.entry.version)
    document = CatalogDocument(
        **msgspec.structs.asdict(found.entry),
        text=found.text,
        definition=msgspec.Raw(definition.to_json().encode()),
    )
    return Answer(document, 200, headers)


def _etag(entry: CatalogEntry) -> str:
    """What of it may change is which one is current and how many there are, and the text's comments."""
    told = (entry.hash[:32], entry.version, entry.versions, int(entry.is_current), repr(entry.registered_at))
    return f'"{"-".join(map(str, told))}"'


def _matches(given: str, etag: str) -> bool:
    told = [item.strip().removeprefix("W/") for item in given.split(",")]
    return etag in told or "*" in told


@catalog(
    "POST",
    "/api/pipelines",
    "Register a pipeline of a program, for its workers",
    Registered,
    body=PipelineBody,
    needs=Right.WORK,
)
async def add_pipeline(ask: Ask) -> Any:
    definition = _pipeline(ask.body.definition)
    if not ask.who.may(Right.ACT):
        await _refuse_other_playbook(ask, definition.path)
    id_ = await ask.engine.publish(definition)
    row = await ask.engine.store.definition(id_)
    return Registered(id=id_, path=definition.path, version=row.version)


async def _refuse_other_playbook(ask: Ask, path: str) -> None:
    """A worker brings the pipelines that it runs; what was added as a text is not its to replace."""
    with contextlib.suppress(UnknownName):
        if (await ask.engine.catalog.text(path)).entry.kind == "yaml":
            raise Refused(
                403,
                "forbidden",
                f"{path} is a playbook of the catalog, and a worker's token may not replace it.",
                "Give the pipeline another path, or register it with an operator's token.",
            )


def _pipeline(text: str) -> Definition:
    """As `hf.pipeline` defines it: functions of a program, one after the other. What else a definition may
    have comes from a playbook, whose text was checked."""
    check_payload(text, what="definition", bytes_max=BODY_BYTES_MAX)
    try:
        definition = Definition.from_json(text)
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(
            f"The definition cannot be read: {error}.",
            guidance="Send what Definition.to_json() of the same version of Holdfast gives.",
        ) from error
    typed = any(step.type or step.config or step.inputs or step.needs for step in definition.steps)
    if typed or not definition.is_linear or definition.workload or definition.entry:
        raise DefinitionInvalid(
            f"{definition.path} is more than a pipeline: it has types, ways or a workload of its own.",
            guidance="Send a playbook's text to POST /api/catalog.",
        )
    for step in definition.steps:
        # Those of another pipeline would be run with workloads that nobody meant for them.
        if step.handler != (own := handler_key(definition.path, step.name)):
            raise DefinitionInvalid(
                f"Step {step.name} of {definition.path} has the handler {step.handler!r} of somebody else.",
                guidance=f"The steps of a pipeline are its own: {own!r}.",
            )
    return definition
