"""The engine behind a server: what `Holdfast("http://…")` and `--server` use.

    async with Client("http://127.0.0.1:8083") as client:
        [execution] = await client.submit([Submission(path="reports", workload={"city": "Bergen"})])
        view = await client.view(execution.id)

Its verbs, their arguments and what they give and raise are those of the engine, so whatever works with one
works with the other. What needs the database itself (a transaction to join) is refused with a sentence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NoReturn, TypeAlias

import msgspec

from holdfast.client.connection import Clock, HttpConnection
from holdfast.client.parts import (
    NAME_CHARS_MAX,
    RemoteBatches,
    RemoteCatalog,
    RemoteControls,
    RemoteTokens,
    check_by,
    encoded_workloads,
)
from holdfast.client.transport import Transport
from holdfast.core.audit import AuditRow
from holdfast.core.errors import InvalidInput, UnknownExecution
from holdfast.core.gates import BatchRow
from holdfast.core.model import Event, EventType, ExecutionRow, ExecutionStatus, JobRow, WorkerRow
from holdfast.core.payload import check_name
from holdfast.engine import Engine, ExecutionView, Page, RetryRequest, Submission, Submitted
from holdfast.engine.checks import check_id, check_request, is_id, page_size
from holdfast.engine.overview import Overview
from holdfast.engine.redrive import Redriven, failure_filter
from holdfast.playbook.definition import Definition
from holdfast.store.inspection import Inspection
from holdfast.store.interface import FailureGroup, FailureRow
from holdfast.wire import (
    LIST_MAX,
    Duration,
    ExecutionDocument,
    Info,
    Listed,
    Signal,
    Started,
    StartManyRequest,
    StartRequest,
)

SIGNAL_SECONDS_MAX = 30.0
SIGNAL_SECONDS_MIN = 0.05
REDRIVE_PAGE = 200

_EVENT_FIELDS = ("id", "execution_id", "at", "type", "step")


class Client:
    """One server; belongs to the event loop it is first used on. The token is the environment's
    HOLDFAST_TOKEN, unless one is given."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self.transport = Transport(url, token=token)
        self.url = self.transport.url
        self.catalog = RemoteCatalog(self.transport)
        self.controls = RemoteControls(self.transport)
        self.batches = RemoteBatches(self.transport, lambda: self.payload_bytes_max)
        self.tokens = RemoteTokens(self.transport)
        self._clock = Clock()
        self._ticket = -1
        self._pinned: dict[str, tuple[Definition, int, int]] = {}  # with its version and its id
        self._info: Info | None = None

    async def open(self) -> None:
        """Make sure that it is there and lets us in."""
        await self.info()

    async def close(self) -> None:
        await self.transport.close()

    async def __aenter__(self) -> Client:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def connection(self, *, family: int | None = None, untaken: bool = False) -> HttpConnection:
        """For a worker."""
        return HttpConnection(self.transport.twin(), family=family, untaken=untaken)

    # the server

    async def info(self) -> Info:
        asked = time.monotonic()
        self._info = await self.transport.get("/api/info", Info)
        self._clock.told(self._info.now, asked)
        return self._info

    @property
    def payload_bytes_max(self) -> int:
        assert self._info is not None, "open() comes first"
        return self._info.payload_bytes_max

    async def now(self) -> float:
        known = self._clock.now()
        return (await self.info()).now if known is None else known

    async def inspection(self) -> Inspection:
        """The database under the server, as it is seen from there."""
        seen: Inspection = await self.transport.get("/api/database", Inspection)
        return seen

    def work_ticket(self) -> int:
        return self._ticket

    async def wait_for_work(self, ticket: int, seconds: float) -> None:
        """Until something may have happened since the ticket was taken, or after `seconds`. Where much
        happens, not at once: whoever waits here looks then, and each look is a request."""
        wait = min(max(seconds, 0.0), SIGNAL_SECONDS_MAX)
        asked = time.monotonic()
        told: Signal = await self.transport.get("/api/queue/signal", Signal, ticket=ticket, wait=wait)
        self._ticket = told.ticket
        await asyncio.sleep(min(SIGNAL_SECONDS_MIN, seconds) - (time.monotonic() - asked))

    # submitting

    async def register(self, definition: Definition) -> int:
        """Make this the version of its path that this client's submissions get."""
        known = self._pinned.get(definition.path)
        if known is not None and known[0] == definition:
            return known[2]
        answer = await self.transport.post("/api/pipelines", {"definition": definition.to_json()})
        self._pinned[definition.path] = (definition, answer["version"], answer["id"])
        return int(answer["id"])

    async def submit(self, submissions: Sequence[Submission]) -> list[Submitted]:
        """Store all of them or none; once this returns they will be run."""
        if not submissions:
            return []
        if len(submissions) > LIST_MAX:
            raise InvalidInput(
                f"{len(submissions):,} executions are too many for one request; a server takes {LIST_MAX:,}.",
                guidance="Submit them in several calls, or as a batch.",
            )
        if self._info is None:
            await self.open()
        workloads = encoded_workloads(submissions, bytes_max=self.payload_bytes_max)
        items = [self._start(*item) for item in zip(submissions, workloads, strict=True)]
        request = StartManyRequest(executions=items)
        found: Listed[Started] = await self.transport.post("/api/executions/many", request, Listed[Started])
        return [Submitted(item.id, item.created) for item in found.items]

    def _start(self, item: Submission, workload: msgspec.Raw) -> StartRequest:
        pinned = self._pinned.get(item.path) if isinstance(item.path, str) else None
        version = item.version if item.version is not None or pinned is None else pinned[1]
        delay: Duration = item.delay_seconds
        return StartRequest(
            path=item.path,
            version=version,
            workload=workload,
            lane=item.lane,
            mode=item.mode,
            idempotency_key=item.idempotency_key,
            delay=delay,
            deadline=item.deadline_seconds,
        )

    async def submit_on(self, connection: Any, submissions: Sequence[Submission]) -> NoReturn:
        raise _no_transaction()

    async def submit_within(self, transaction: Any, submissions: Sequence[Submission]) -> NoReturn:
        raise _no_transaction()

    # acting

    async def cancel(self, execution_id: int, *, by: str = "") -> bool:
        check_request(execution_id, by)
        answer = await self.transport.post(f"/api/executions/{execution_id}/cancel", {"by": by})
        return bool(answer["cancelled"])

    async def retry(self, execution_id: int, request: RetryRequest) -> None:
        check_request(execution_id, request.by)
        await self.transport.post(f"/api/executions/{execution_id}/retry", request)

    async def redrive(
        self,
        ids: Sequence[int] | None = None,
        *,
        force: bool = False,
        by: str = "",
        dry_run: bool = False,
        **filters: Any,
    ) -> AsyncIterator[list[Redriven]]:
        failure_filter(filters)
        check_by(by)
        cursor: str | None = None
        parts = [None] if ids is None else [list(ids[at : at + 1_000]) for at in range(0, len(ids), 1_000)]
        for part in parts:
            while True:
                body = {"ids": part, "force": force, "by": by, "dry_run": dry_run, "limit": REDRIVE_PAGE}
                given = {name: value for name, value in filters.items() if value is not None}
                body["all"] = ids is None and not given
                answer = await self.transport.post("/api/dead/redrive", {**body, **given, "cursor": cursor})
                yield msgspec.convert(answer["items"], list[Redriven])
                cursor = answer["next"]
                if cursor is None:
                    break

    # looking

    async def view(self, execution_id: int) -> ExecutionView:
        found: ExecutionDocument = await self.transport.get(_execution(execution_id), ExecutionDocument)
        names = ExecutionRow.__struct_fields__
        return ExecutionView(
            execution=ExecutionRow(**{name: getattr(found, name) for name in names}),
            summary=found.summary,
            stage=found.stage,
            jobs=found.jobs,
            outputs=found.outputs,
            skipped=found.skipped,
            result=found.result,
        )

    async def execution(self, execution_id: int) -> ExecutionRow | None:
        try:
            row: ExecutionRow = await self.transport.get(f"{_execution(execution_id)}/row", ExecutionRow)
        except UnknownExecution:
            return None
        return row

    async def events(self, execution_id: int, *, after: str | None = None, limit: int = 1_000) -> list[Event]:
        address = f"{_execution(execution_id)}/events"
        try:
            found: Listed[dict[str, Any]] = await self.transport.get(
                address, Listed[dict[str, Any]], after=after, limit=page_size(limit)
            )
        except UnknownExecution:
            return []
        return [_event(item) for item in found.items]

    async def executions(
        self,
        *,
        status: ExecutionStatus | None = None,
        path: str | None = None,
        batch_id: int | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        if path is not None:
            check_name(path, what="path")
        if batch_id is not None and not is_id(check_id(batch_id, "batch")):
            return Page([])
        query = {
            "status": status,
            "path": path,
            "batch_id": batch_id,
            "limit": page_size(limit),
            "cursor": cursor,
        }
        found = await self.transport.get("/api/executions", Listed[ExecutionRow], **query)
        return Page(found.items, found.next)

    async def queue(self, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> Page:
        """Of the filters, `due_at` is the server's now."""
        due = filters.pop("due_at", None) is not None
        query = {**filters, "due": due or None, "limit": page_size(limit), "cursor": cursor}
        found = await self.transport.get("/api/queue", Listed[JobRow], **query)
        return Page(found.items, found.next)

    async def failure_groups(self, *, limit: int = 100, **filters: Any) -> list[FailureGroup]:
        failure_filter(filters)
        query = {**filters, "limit": page_size(limit)}
        found = await self.transport.get("/api/dead", Listed[dict[str, Any]], **query)
        return [FailureGroup(**item) for item in found.items]

    async def failures(self, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> Page:
        failure_filter(filters)
        query = {**filters, "limit": page_size(limit), "cursor": cursor}
        found = await self.transport.get("/api/dead/list", Listed[dict[str, Any]], **query)
        return Page([FailureRow(**item) for item in found.items], found.next)

    async def audit(self, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> Page:
        query = {**filters, "limit": page_size(limit), "cursor": cursor}
        found = await self.transport.get("/api/audit", Listed[AuditRow], **query)
        return Page(found.items, found.next)

    async def batch(self, batch_id: int) -> BatchRow | None:
        return await self.batches.row(batch_id)

    async def overview(self) -> Overview:
        found: Overview = await self.transport.get("/api/overview", Overview)
        return found

    async def expired_leases(self, seconds: float, limit: int) -> int:
        """How many leases ran out so long ago and are still there; counted on the server up to its own
        limit."""
        return min(int((await self.transport.get("/api/leases/expired", seconds=seconds))["leases"]), limit)

    async def living_workers(self) -> list[WorkerRow]:
        found: Listed[WorkerRow] = await self.transport.get("/api/workers", Listed[WorkerRow])
        now = await self.now()
        return [worker for worker in found.items if worker.is_living(now)]

    async def child_execution(self, queue_id: int, attempt: int, path: str) -> ExecutionRow | None:
        found: dict[str, ExecutionRow | None] = await self.transport.get(
            f"/api/queue/{queue_id}/child",
            dict[str, ExecutionRow | None],
            attempt=attempt,
            path=path[:NAME_CHARS_MAX],  # what is longer is a template, and no execution's path
        )
        return found["execution"]


# Whatever can be asked of one can be asked of the other.
AnyEngine: TypeAlias = Engine | Client


def _execution(execution_id: int) -> str:
    check_request(execution_id)
    return f"/api/executions/{execution_id}"


def _event(item: dict[str, Any]) -> Event:
    return Event(
        id=item["id"],
        execution_id=item["execution_id"],
        at=item["at"],
        type=EventType(item["type"]),
        step=item.get("step"),
        data={name: value for name, value in item.items() if name not in _EVENT_FIELDS},
    )


def _no_transaction() -> InvalidInput:
    return InvalidInput(
        "A submit cannot join a transaction through a server.",
        guidance="Leave out `connection`, or connect this Holdfast to the database itself.",
    )


__all__ = ["AnyEngine", "Client", "HttpConnection"]
