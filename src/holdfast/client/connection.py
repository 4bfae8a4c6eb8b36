"""A worker's connection to the engine behind a server: the same as the direct one, over HTTP.

    lease ──▶ what there is
    wait_for_work ──▶ the same lease, held by the server until there is something; what it brings is handed
                      out by the next lease
    report ──▶ in parts that fit into a request; what was not answered the worker reports again

Each lease call has a token of its own. Where its answer is lost (the server was killed, the connection cut,
the wait called off), or comes when the worker has no room any more, what it may have leased is given back by
that token, with the next call or a second later: nobody loses an attempt for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.client.transport import Transport
from holdfast.core.catalogue import Category
from holdfast.core.errors import HoldfastError, PayloadTooLarge, StoreUnavailable, TransactionUnavailable
from holdfast.core.failures import Failure
from holdfast.core.masking import clean_message
from holdfast.core.model import (
    UNTAKEN_PREFIX,
    Ack,
    Failed,
    Lane,
    Leased,
    LeaseRef,
    LeaseResult,
    Outcome,
    Report,
    WorkerRecord,
)
from holdfast.wire import (
    LEASE_JOBS_MAX,
    LIST_MAX,
    Beat,
    HeartbeatRequest,
    Info,
    ItemAnswer,
    ItemsAnswer,
    Lease,
    LeaseAnswer,
    OwnLeaseRequest,
    ReleaseRequest,
    TakeOverAnswer,
    TakeOverRequest,
    Worker,
    as_report,
)

log = logging.getLogger("holdfast.worker")

T = TypeVar("T")

WAIT_SECONDS = 30.0
# While a job waits that must run alone, the worker decides when to ask for it.
WAIT_SECONDS_ALONE = 1.0
MARGIN_SECONDS = 15.0
REPORT_BYTES_MAX = 4 * 1024 * 1024
RECALLED_MAX = 1_000
CLOSE_SECONDS_MAX = 5.0
JITTER_SECONDS_MAX = 0.25
PUSHED_OUT_SECONDS = 0.5
# What was leased and is not handed out stays here no longer than this.
LEFT_SECONDS = 1.0
LEFT_SECONDS_AWAY = 10.0
# A worker's first heartbeat comes when up to half of a lease is over: with less left, it comes too late.
LEFT_OF_LEASE_MIN = 0.5
# The request would be refused however often it is sent.
_NEVER_TAKEN = ("invalid_request", "malformed_json", "request_too_large", PayloadTooLarge.code)


class Clock:
    """The server's, followed by the local monotonic one; the quickest answer tells it best."""

    def __init__(self) -> None:
        self._lead: float | None = None
        self._took = float("inf")

    def told(self, now: float, asked: float) -> None:
        arrived = time.monotonic()
        took = arrived - asked
        lead = now - (arrived - took / 2)
        # A clock that was set, or an estimate that is old news, gives way.
        if self._lead is None or took <= self._took * 2 or abs(lead - self._lead) > took:
            self._lead, self._took = lead, took

    def now(self) -> float | None:
        return None if self._lead is None else time.monotonic() + self._lead


class _Shared:
    """What the connection of a worker and that of its heartbeats both know."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.record: WorkerRecord | None = None
        self.heard_at = float("-inf")
        self.waiting = 0  # lease calls that wait and have told of this worker


class HttpConnection:
    """With `family` the worker is given only jobs of that execution, and of those that were started for it;
    with `untaken` what it leases runs once somebody takes it over."""

    database: str | None = None

    def __init__(
        self,
        transport: Transport,
        *,
        family: int | None = None,
        untaken: bool = False,
        shared: _Shared | None = None,
    ) -> None:
        self._transport = transport
        self._family = family
        self._token_prefix = UNTAKEN_PREFIX if untaken else ""
        self._shared = shared or _Shared()
        self._worker_id = ""
        self._asked: OwnLeaseRequest | None = None
        self._alone_ready = False
        self._brought: tuple[str, LeaseResult] | None = None  # with the token of its call
        self._lost: list[str] = []  # tokens of lease calls whose jobs nobody here will run
        self._calling: set[str] = set()  # those that may still be answered
        self._returning: asyncio.Task[None] | None = None

    # leasing

    async def lease(
        self,
        worker_id: str,
        handlers: Sequence[str],
        limit: int,
        *,
        lease_seconds: float,
        lanes: Sequence[Lane],
        alone: bool,
        bulk: int | None,
        limited: int | None,
        ageing_seconds: float | None,
    ) -> LeaseResult:
        if self._brought is not None and not alone:
            (token, brought), self._brought = self._brought, None
            return self._in_time(token, brought, lease_seconds)
        request = OwnLeaseRequest(
            worker_id=worker_id,
            handlers=list(handlers),
            limit=min(limit, LEASE_JOBS_MAX),
            lease_seconds=lease_seconds,
            lanes=list(lanes),
            alone=alone,
            bulk=None if bulk is None else min(bulk, LEASE_JOBS_MAX),
            limited=None if limited is None else min(limited, LEASE_JOBS_MAX),
            ageing_seconds=ageing_seconds,
            family=self._family,
        )
        if not handlers:
            return LeaseResult([])
        self._worker_id = worker_id
        token, result = await self._call(request, 0.0)
        if not alone:
            self._asked = request
        return self._in_time(token, result, lease_seconds)

    def _in_time(self, token: str, result: LeaseResult, lease_seconds: float) -> LeaseResult:
        """Without jobs whose leases are too old to be kept by heartbeats: the answer was long on its way."""
        now = self._shared.clock.now()
        if now is None or all(
            job.lease_until - now > lease_seconds * LEFT_OF_LEASE_MIN for job in result.jobs
        ):
            return result
        self._lost.append(token)
        self._return_soon()
        return LeaseResult([], result.alone_ready, result.next_due)

    async def _call(self, request: OwnLeaseRequest, wait: float) -> tuple[str, LeaseResult]:
        token, recall = f"{self._token_prefix}{secrets.token_hex(6)}", self._lost[:RECALLED_MAX]
        request = msgspec.structs.replace(
            request,
            token=token,
            recall=recall,
            wait=wait,
            knows_alone=bool(wait) and self._alone_ready,
            worker=self._worker(),
        )
        asked = time.monotonic()
        self._lost.append(token)  # until it is answered
        self._calling.add(token)
        tells = bool(wait) and request.worker is not None
        self._shared.waiting += tells
        try:
            answer: LeaseAnswer = await self._transport.send(
                "POST", "/api/queue/lease/stored", LeaseAnswer, body=request, seconds=wait + MARGIN_SECONDS
            )
        except BaseException:
            self._return_soon()
            raise
        finally:
            self._calling.discard(token)
            self._shared.waiting -= tells
        self._forget([token, *recall])
        if not wait:
            self._shared.clock.told(answer.now, asked)
        if request.worker is not None:
            self._shared.heard_at = time.monotonic()
        if not request.alone:
            self._alone_ready = answer.alone_ready
        return token, LeaseResult(answer.jobs, answer.alone_ready, answer.next_due)

    # what nobody here will run

    def _forget(self, tokens: Sequence[str]) -> None:
        given_back = set(tokens)
        self._lost = [token for token in self._lost if token not in given_back]

    def _left(self) -> list[str]:
        return [token for token in self._lost if token not in self._calling]

    def _return_soon(self) -> None:
        if self._returning is None or self._returning.done():
            self._returning = asyncio.create_task(self._return_what_is_left())

    async def _return_what_is_left(self) -> None:
        """Give back what no lease has taken over or called back for a while: the worker has no room for it
        any more, or is being stopped."""
        seconds = LEFT_SECONDS
        while self._brought is not None or self._left():
            brought, left = self._brought, self._left()
            await asyncio.sleep(seconds)
            if brought is not None and self._brought is brought:
                self._brought = None
                self._lost.append(brought[0])
                left.append(brought[0])
            still = set(self._left())
            try:
                await self._recall([token for token in left if token in still])
                seconds = LEFT_SECONDS
            except HoldfastError:  # with the next call, then, or the next time
                seconds = min(seconds * 2, LEFT_SECONDS_AWAY)

    async def _recall(self, tokens: Sequence[str], seconds: float = MARGIN_SECONDS) -> None:
        if tokens:
            tokens = tokens[:RECALLED_MAX]
            request = ReleaseRequest(worker_id=self._worker_id, recall=list(tokens))
            await self._items("/api/queue/release", request, seconds)
            self._forget(tokens)

    def _worker(self) -> Worker | None:
        record = self._shared.record
        if record is None:
            return None
        return Worker(
            host=record.host,
            pid=record.pid,
            version=record.version,
            concurrency=record.concurrency,
            lanes=list(record.lanes),
            started_at=record.started_at,
        )

    def work_ticket(self) -> int:
        return 0

    async def wait_for_work(self, ticket: int, seconds: float) -> None:
        """Until the server has work, however long that takes: it is the server that looks for it. Called off,
        or without an answer, what it may have leased is given back with the next call."""
        if self._brought is not None:
            return
        if self._asked is None:  # it offers nothing
            await asyncio.sleep(seconds)
            return
        try:
            while True:
                wait = WAIT_SECONDS_ALONE if self._alone_ready else WAIT_SECONDS
                asked = time.monotonic()
                token, result = await self._call(self._asked, wait)
                if result.jobs:
                    self._brought = (token, result)
                    self._return_soon()
                if result.jobs or result.alone_ready:
                    return
                if time.monotonic() - asked < wait / 2:  # a server that is being stopped lets nobody wait
                    await asyncio.sleep(random.uniform(0.5, 1) * PUSHED_OUT_SECONDS)
                    return
        except StoreUnavailable:
            # All who waited there are cut off at once; they need not come back at once.
            await asyncio.sleep(random.uniform(0, JITTER_SECONDS_MAX))
            raise

    async def take_over(
        self, worker_id: str, leases: Sequence[LeaseRef], *, token: str, lease_seconds: float
    ) -> list[Leased]:
        request = TakeOverRequest(
            worker_id=worker_id,
            leases=[Lease(lease.queue_id, lease.fence) for lease in leases],
            token=token,
            lease_seconds=lease_seconds,
        )
        asked = time.monotonic()
        answer: TakeOverAnswer = await self._transport.send(
            "POST", "/api/queue/takeover", TakeOverAnswer, body=request, seconds=MARGIN_SECONDS
        )
        self._shared.clock.told(answer.now, asked)
        return answer.jobs

    # what is held

    async def heartbeat(
        self, leases: Sequence[LeaseRef], *, lease_seconds: float, progress: Mapping[int, float]
    ) -> list[Ack]:
        beats = [Beat(lease.queue_id, lease.fence, progress.get(lease.queue_id)) for lease in leases]
        seconds = max(lease_seconds / 3, 1.0)
        acks: list[Ack] = []
        for part in _parts(beats):
            request = HeartbeatRequest(leases=part, lease_seconds=lease_seconds)
            acks += await self._items("/api/queue/heartbeat", request, seconds)
        return acks

    async def report(self, reports: Sequence[Report]) -> list[Ack]:
        """In parts that fit into requests. Where one is not answered, none is: those that were taken are
        taken again without effect."""
        acks: list[Ack] = []
        part: list[Report] = []
        encoded: list[msgspec.Raw] = []
        size = 0
        for report in reports:
            text = _encoded(report)
            if part and (size + len(text) > REPORT_BYTES_MAX or len(part) == LIST_MAX):
                acks += await self._report(part, encoded)
                part, encoded, size = [], [], 0
            part.append(report)
            encoded.append(msgspec.Raw(text))
            size += len(text)
        return acks + await self._report(part, encoded) if part else acks

    async def _report(self, reports: list[Report], encoded: list[msgspec.Raw]) -> list[Ack]:
        try:
            return await self._items("/api/events", {"outcomes": encoded})
        except HoldfastError as error:
            if error.code not in _NEVER_TAKEN:
                raise
            if len(reports) > 1:
                apart = zip(reports, encoded, strict=True)
                return [ack for report, text in apart for ack in await self._report([report], [text])]
            # Sent again and again, it would keep all others from being told.
            untold = _encoded(_untold(reports[0], error))
            return await self._items("/api/events", {"outcomes": [msgspec.Raw(untold)]})

    async def release(self, leases: Sequence[LeaseRef]) -> list[Ack]:
        acks: list[Ack] = []
        for part in _parts([Lease(lease.queue_id, lease.fence) for lease in leases]):
            acks += await self._items("/api/queue/release", ReleaseRequest(leases=part))
        return acks

    async def _items(self, path: str, body: object, seconds: float = 60.0) -> list[Ack]:
        answer: ItemsAnswer = await self._transport.send(
            "POST", path, ItemsAnswer, body=body, seconds=seconds, accepted=(409,)
        )
        return [_ack(item) for item in answer.items]

    # who it is

    async def announce(self, worker: WorkerRecord) -> None:
        """Told with each lease; a call of its own only where none was made for a while."""
        self._shared.record = worker
        recently = time.monotonic() - self._shared.heard_at < worker.announce_seconds
        if self._family is None and (self._shared.waiting or recently):
            return
        await self._transport.post("/api/workers", worker)
        self._shared.heard_at = time.monotonic()

    async def retire(self, worker_id: str) -> None:
        await self._transport.send("DELETE", f"/api/workers/{quote(worker_id, safe='')}")

    async def now(self) -> float:
        known = self._shared.clock.now()
        if known is not None:
            return known
        asked = time.monotonic()
        info: Info = await self._transport.get("/api/info", Info)
        self._shared.clock.told(info.now, asked)
        return info.now

    def transaction(self) -> NoReturn:
        raise TransactionUnavailable(
            "ctx.transaction() needs the database, and this worker has only a server.",
            error_type="validation_error",
            guidance="Run this step on a worker with --db, or keep what it writes elsewhere safe to repeat.",
        )

    async def twin(self) -> HttpConnection:
        return HttpConnection(self._transport.twin(), family=self._family, shared=self._shared)

    async def close(self) -> None:
        """Give back what was leased and not handed out, as far as the server can be told."""
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait([self._returning], timeout=CLOSE_SECONDS_MAX)
        if self._brought is not None:
            (token, _), self._brought = self._brought, None
            self._lost.append(token)
        with contextlib.suppress(HoldfastError):
            await self._recall(self._lost, CLOSE_SECONDS_MAX)
        await self._transport.close()


def _ack(item: ItemAnswer) -> Ack:
    return Ack(item.queue_id, item.code, item.message, item.repeated)


def _parts(items: list[T]) -> list[list[T]]:
    return [items[start : start + LIST_MAX] for start in range(0, len(items), LIST_MAX)]


def _encoded(report: Report) -> bytes:
    try:
        return msgspec.json.encode(as_report(report))
    except Exception as error:  # whatever a handler has put into its error
        return msgspec.json.encode(as_report(_untold(report, error)))


def _untold(report: Report, error: Exception) -> Report:
    """That the attempt has ended, where how it ended cannot be told."""
    outcome: Outcome = report.outcome
    log.warning("The outcome of job %d cannot be told to the server: %s", report.queue_id, error)
    told = f"How the attempt ended cannot be told to the server: {error}"
    if not isinstance(outcome, Failed):
        failure = Failure(message=clean_message(told), category=Category.PERMANENT)
        return Report(report.queue_id, report.fence, Failed(failure))
    failure = Failure(
        message=clean_message(f"{outcome.failure.message[:1_000]} ({told})"),
        category=outcome.failure.category,
    )
    return Report(report.queue_id, report.fence, Failed(failure, outcome.cleared, outcome.crashed))
