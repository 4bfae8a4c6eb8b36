"""The parts of the engine that people use by a name of their own, as they are behind a server: the catalog,
limits and pauses, batches. Their verbs are those of the engine's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.client.transport import YAML, Transport
from holdfast.core.access import Role, TokenRow
from holdfast.core.errors import InvalidInput, UnknownBatch
from holdfast.core.gates import BatchRow
from holdfast.core.limits import checked_limit, is_limit_name
from holdfast.core.model import ExecutionStatus, Lane, Mode
from holdfast.core.pauses import Pause, PauseKind
from holdfast.core.payload import check_name, encode_payload
from holdfast.engine.batch_view import BatchItem, BatchView
from holdfast.engine.catalog import (
    KNOWN_SHOWN_MAX,
    AddedPlaybook,
    CatalogEntry,
    CatalogText,
    Change,
    Versions,
    unknown_path,
)
from holdfast.engine.checks import (
    VERSION_MAX,
    check_id,
    check_version,
    is_id,
    page_size,
    unknown_batch,
)
from holdfast.engine.controls import LimitView
from holdfast.engine.records import Page, Submission, Submitted
from holdfast.engine.tokens import NewToken
from holdfast.playbook.definition import Definition
from holdfast.wire import LIST_MAX, CreatedToken, Listed, Started

FAILED_SHOWN = 100
NAME_CHARS_MAX = 200
PART_BYTES_MAX = 8 * 1024 * 1024


def path_of(name: str) -> str:
    """A name as a part of an address; the slashes of a path stay."""
    return quote(name, safe="/")


def encoded_workloads(
    submissions: Sequence[Submission], *, bytes_max: int, first_place: int = 0
) -> list[msgspec.Raw]:
    """Checked as the engine checks them, and in its words: what cannot be sent could not tell why."""
    encoded: list[msgspec.Raw] = []
    try:
        for item in submissions:
            text = encode_payload(item.workload, what="workload", bytes_max=bytes_max)
            if item.idempotency_key is not None:
                check_name(item.idempotency_key, what="idempotency key")
            encoded.append(msgspec.Raw(text.encode()))
    except InvalidInput as error:
        if len(submissions) == 1 and not first_place:
            raise
        place = first_place + len(encoded) + 1
        raise type(error)(f"Item {place}: {error}", guidance=error.guidance) from error
    return encoded


def _parts(workloads: Sequence[msgspec.Raw]) -> Iterator[tuple[int, int]]:
    """From where to where they fit into one request; one part where there is nothing to send."""
    start, size = 0, 0
    for place, workload in enumerate(workloads):
        length = len(memoryview(workload))
        is_full = size + length > PART_BYTES_MAX or place - start == LIST_MAX
        if place > start and is_full:
            yield start, place
            start, size = place, 0
        size += length
    yield start, len(workloads)


def check_by(by: str) -> None:
    if by != "":
        check_name(by, what="name of who asks")


def _batch(batch_id: int) -> str:
    if not is_id(check_id(batch_id, "batch")):
        raise unknown_batch(batch_id)
    return f"/api/batches/{batch_id}"


class _Version(CatalogEntry, frozen=True, kw_only=True):
    text: str
    definition: msgspec.Raw


class _Added(CatalogEntry, frozen=True, kw_only=True):
    change: Change
    replaces: CatalogEntry | None


class RemoteCatalog(Versions):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def add(self, definition: Definition, source: str) -> AddedPlaybook:
        told: _Added = await self._transport.send(
            "POST", "/api/catalog", _Added, body=source.encode(), media_type=YAML
        )
        return AddedPlaybook(entry=_entry(told), change=told.change, replaces=told.replaces)

    async def entries(self, *, limit: int = 50, cursor: str | None = None) -> Page:
        found = await self._transport.get(
            "/api/catalog", Listed[CatalogEntry], limit=page_size(limit), cursor=cursor
        )
        return Page(found.items, found.next)

    async def versions(self, path: str, *, limit: int = 50, cursor: str | None = None) -> Page:
        await self._check(path)
        found = await self._transport.get(
            "/api/catalog", Listed[CatalogEntry], path=path, limit=page_size(limit), cursor=cursor
        )
        return Page(found.items, found.next)

    async def text(self, path: str, version: int | None = None) -> CatalogText:
        found = await self._version(path, version)
        return CatalogText(entry=_entry(found), text=found.text)

    async def definition(self, path: str, version: int | None = None) -> Definition:
        return Definition.from_json(bytes((await self._version(path, version)).definition).decode())

    async def _version(self, path: str, version: int | None) -> _Version:
        await self._check(path)
        if version is not None:
            check_version(version, path)
            if not 0 < version <= VERSION_MAX:
                raise await self._unknown_version(path, version)
        found: _Version = await self._transport.get(
            f"/api/catalog/{path_of(path)}", _Version, version=version
        )
        return found

    async def _check(self, path: str) -> None:
        """What cannot be a part of an address is in no catalog either."""
        parts = path.split("/")
        if (
            path
            and len(path) <= NAME_CHARS_MAX
            and path.isprintable()
            and not {".", ".."}.intersection(parts)
        ):
            return
        known = [entry.path for entry in (await self.entries(limit=KNOWN_SHOWN_MAX)).items]
        raise unknown_path(path, known)


def _entry(found: CatalogEntry) -> CatalogEntry:
    names = CatalogEntry.__struct_fields__
    return CatalogEntry(**{name: getattr(found, name) for name in names})


class RemoteControls:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def set_limit(
        self, name: str, max_concurrency: int, manual_reserve: int | None = None, *, by: str = ""
    ) -> LimitView:
        checked_limit(name, max_concurrency, manual_reserve)
        check_by(by)
        body = {"max_concurrency": max_concurrency, "manual_reserve": manual_reserve, "by": by}
        view: LimitView = await self._transport.send(
            "PUT", f"/api/limits/{quote(str(name), safe='')}", LimitView, body=body
        )
        return view

    async def remove_limit(self, name: str, *, by: str = "") -> bool:
        check_name(name, what="name of a limit")
        check_by(by)
        if not is_limit_name(name):
            return False
        answer = await self._transport.send(
            "DELETE", f"/api/limits/{quote(name, safe='')}", query={"by": by or None}
        )
        return bool(answer["removed"])

    async def limits(self) -> list[LimitView]:
        found: Listed[LimitView] = await self._transport.get("/api/limits", Listed[LimitView])
        return found.items

    async def pause(
        self, kind: PauseKind | str, name: str, *, by: str = "", reason: str = "", force: bool = False
    ) -> Pause:
        check_by(by)
        body = {"kind": kind, "name": name, "by": by, "reason": reason, "force": force}
        pause: Pause = await self._transport.post("/api/pauses", body, Pause)
        return pause

    async def resume(self, kind: PauseKind | str, name: str, *, by: str = "") -> Pause | None:
        check_by(by)
        answer = await self._transport.post(
            "/api/pauses/resume", {"kind": kind, "name": name, "by": by}, dict[str, Pause | None]
        )
        ended: Pause | None = answer["ended"]
        return ended

    async def pauses(self) -> list[Pause]:
        found: Listed[Pause] = await self._transport.get("/api/pauses", Listed[Pause])
        return found.items


class RemoteTokens:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self, name: str, role: Role | str, *, expires: float | str | None = None, by: str = ""
    ) -> NewToken:
        check_by(by)
        body = {"name": name, "role": role, "expires": expires, "by": by}
        made = await self._transport.post("/api/tokens", body, CreatedToken)
        return NewToken(made.token, made.text)

    async def all(self) -> list[TokenRow]:
        found: Listed[TokenRow] = await self._transport.get("/api/tokens", Listed[TokenRow])
        return found.items

    async def revoke(self, name: str, *, by: str = "") -> TokenRow:
        check_name(name, what="name of a token")
        check_by(by)
        revoked: TokenRow = await self._transport.send(
            "DELETE", f"/api/tokens/{quote(name, safe='')}", TokenRow, query={"by": by or None}
        )
        return revoked


class RemoteBatches:
    def __init__(self, transport: Transport, payload_bytes_max: Callable[[], int]) -> None:
        self._transport = transport
        self._payload_bytes_max = payload_bytes_max

    async def create(
        self,
        path: str,
        *,
        lane: Lane = Lane.BULK,
        mode: Mode | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[int, bool]:
        if idempotency_key is not None:
            check_name(idempotency_key, what="idempotency key")
        body = {"path": path, "lane": lane, "mode": mode, "idempotency_key": idempotency_key, "close": False}
        answer = await self._transport.post("/api/batches", body)
        return answer["id"], answer["created"]

    async def add(
        self, batch_id: int, submissions: Sequence[Submission], *, first_place: int = 0
    ) -> list[Submitted]:
        """In one transaction, unless they are too large for one request: then in several."""
        workloads = encoded_workloads(
            submissions, bytes_max=self._payload_bytes_max(), first_place=first_place
        )
        added: list[Submitted] = []
        for start, end in _parts(workloads):
            items = [
                {
                    "workload": workload,
                    "idempotency_key": item.idempotency_key,
                    "deadline": item.deadline_seconds,
                }
                for item, workload in zip(submissions[start:end], workloads[start:end], strict=True)
            ]
            body = {"items": items, "first_place": first_place + start}
            found: Listed[Started] = await self._transport.post(
                f"{_batch(batch_id)}/items", body, Listed[Started]
            )
            added += [Submitted(item.id, item.created) for item in found.items]
        return added

    async def close(self, batch_id: int) -> bool:
        return bool((await self._transport.post(f"{_batch(batch_id)}/close", None))["closed"])

    async def cancel(self, batch_id: int, *, by: str = "") -> int:
        return int((await self._transport.post(f"{_batch(batch_id)}/cancel", {"by": by}))["items"])

    async def view(self, batch_id: int, *, failed_max: int = FAILED_SHOWN) -> BatchView:
        told: dict[str, Any] = await self._transport.get(_batch(batch_id), limit=0, failed=failed_max)
        return msgspec.convert({**told, "items": told["size"]}, BatchView)

    async def check(self, batch_id: int) -> None:
        await self._state(batch_id)

    async def is_open(self, batch_id: int) -> bool:
        return bool((await self._state(batch_id))["is_open"])

    async def is_over(self, batch_id: int) -> bool:
        return bool((await self._state(batch_id))["is_over"])

    async def _state(self, batch_id: int) -> dict[str, Any]:
        state: dict[str, Any] = await self._transport.get(f"{_batch(batch_id)}/state")
        return state

    async def items(
        self,
        batch_id: int,
        *,
        status: ExecutionStatus | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        found = await self._transport.get(
            f"{_batch(batch_id)}/items",
            Listed[BatchItem],
            status=status,
            limit=page_size(limit),
            cursor=cursor,
        )
        return Page(found.items, found.next)

    async def list(self, *, limit: int = 50, cursor: str | None = None) -> Page:
        found = await self._transport.get(
            "/api/batches", Listed[BatchRow], limit=page_size(limit), cursor=cursor
        )
        return Page(found.items, found.next)

    async def row(self, batch_id: int) -> BatchRow | None:
        try:
            row: BatchRow = await self._transport.get(f"{_batch(batch_id)}/row", BatchRow)
        except UnknownBatch:
            return None
        return row


__all__ = ["RemoteBatches", "RemoteCatalog", "RemoteControls", "RemoteTokens"]
