"""The engine: what can be asked of Holdfast, whatever asks: a program, a worker, a server.

    submit ─▶ lease ─▶ (a worker runs the step) ─▶ report ─▶ decide, store, advance: one transaction
                                  sweep: expired leases become reports and take the same path

The engine decides; the store keeps. What user code or user data can make slow or wrong (encoding,
classification, conditions) happens before a transaction begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from holdfast.core.audit import Deed
from holdfast.core.errors import InvalidInput, RetryRefused, UnknownExecution
from holdfast.core.gates import BatchRow
from holdfast.core.handlers import HOLDFASTS_OWN
from holdfast.core.model import (
    UNTAKEN_PREFIX,
    Ack,
    AckCode,
    DeadReason,
    Event,
    ExecutionRow,
    ExecutionState,
    ExecutionStatus,
    JobRow,
    JobState,
    JobStatus,
    Lane,
    LeaseRef,
    LeaseResult,
    Report,
    WorkerRecord,
    is_untaken,
)
from holdfast.core.payload import PAYLOAD_BYTES_MAX_DEFAULT, check_name, member
from holdfast.core.retry import checked_seconds, parse_duration
from holdfast.engine.actions import Actions
from holdfast.engine.asking import Asking
from holdfast.engine.batches import Batches, CancelPlan
from holdfast.engine.catalog import Catalog
from holdfast.engine.checks import (
    check_event_id,
    check_execution_id,
    check_id,
    check_request,
    check_share,
    check_token,
    is_id,
    page_size,
    parse_cursor,
    unknown_execution,
)
from holdfast.engine.children import Children
from holdfast.engine.controls import Controls
from holdfast.engine.decisions import Decisions
from holdfast.engine.definitions import Definitions, Provided
from holdfast.engine.leasing import Leasing
from holdfast.engine.manual_retry import RetryRequest, retry_plan
from holdfast.engine.overview import Overview, announce, overview
from holdfast.engine.planning import Planning
from holdfast.engine.prepare import Preparation
from holdfast.engine.records import ExecutionView, Page, Submission, Submitted
from holdfast.engine.redrive import Redrive, Redriven, failure_filter
from holdfast.engine.reporting import Reporting
from holdfast.engine.settle import deadline_plan
from holdfast.engine.step_transaction import StepTransaction
from holdfast.engine.submission import Kinds, new_executions, submit_on, submits, submitted
from holdfast.engine.taking_over import TakingOver
from holdfast.engine.tallies import Tallies
from holdfast.engine.tally_keeper import TallyKeeper
from holdfast.engine.tokens import Tokens
from holdfast.engine.viewing import Viewing
from holdfast.playbook.definition import Definition
from holdfast.store.changes import Changes
from holdfast.store.interface import (
    Beat,
    Claimed,
    ClaimRequest,
    DefinitionRow,
    ExecutionFilter,
    FailureGroup,
    JobFilter,
    Store,
)
from holdfast.store.new_executions import NewExecution

LEASE_SECONDS_DEFAULT = 60.0
LEASE_JOBS_MAX = 1_000
SWEEP_JOBS = 500
ALONE_ASKED_SECONDS = 1.0
CHILDREN_MAX = 1_000


def _jitter_draw() -> float:
    return random.uniform(0.5, 1.5)


class Engine(Asking, TakingOver):
    def __init__(
        self,
        store: Store,
        *,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
        draw: Callable[[], float] = _jitter_draw,
        new_token: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        self.store = store
        self.payload_bytes_max = payload_bytes_max
        self._new_token = new_token
        self._definitions = Definitions(store)
        self.catalog = Catalog(store, self._definitions)
        self.controls = Controls(store, self._definitions)
        self.tokens = Tokens(store)
        self._decisions = Decisions(store, self._definitions, payload_bytes_max=payload_bytes_max)
        self.tallies = Tallies()
        self.keeper = TallyKeeper(store, self.tallies)
        self._planning = Planning(store, self._definitions, self._decisions, self.tallies)
        self._leasing = Leasing(store, self._definitions, self.tallies)
        self._children = Children(
            store, self._definitions, payload_bytes_max=payload_bytes_max, cancel=self._cancel_children
        )
        self.batches = Batches(store, self._definitions, self._planning, payload_bytes_max=payload_bytes_max)
        self._reporting = Reporting(store, self._definitions, self._planning, self._decisions, self._children)
        self._preparation = Preparation(
            store,
            self._definitions,
            self._reporting.held,
            payload_bytes_max=payload_bytes_max,
            draw=draw,
        )
        self.step_actions = Actions(self._definitions)
        self._viewing = Viewing(store, self.controls, self.batches, self._leasing)
        self._alone_asked_at: dict[tuple[Lane, ...], float] = {}
        self._kinds = Kinds()
        self._submits = submits(store, self.tallies, self.keeper)

    async def register(self, definition: Definition) -> int:
        """Make this the version of its path that new submissions get. Equal content is one version."""
        return await self._definitions.register(definition)

    async def publish(self, definition: Definition) -> int:
        """As `register`, for others: what is submitted here gets the version that is registered last."""
        return await self._definitions.publish(definition)

    def provide(self, path: str, provided: Provided) -> None:
        """Have a playbook ready, which is registered when something is submitted to its path."""
        self._definitions.provide(path, provided)

    # submit

    async def submit(self, submissions: Sequence[Submission]) -> list[Submitted]:
        """Store all of them or none; once this returns they will be run."""
        if not submissions:
            return []
        return submitted(await self._submits.commit(await self._new_executions(submissions)))

    async def check(self, submissions: Sequence[Submission]) -> None:
        """Raise what a submit of them would refuse; nothing is stored."""
        await self._new_executions(submissions)

    async def submit_on(self, connection: Any, submissions: Sequence[Submission]) -> list[Submitted]:
        """As a part of the caller's own transaction: once it has committed, they will be run."""
        if not submissions:
            return []
        return await submit_on(connection, await self._new_executions(submissions), self.store)

    async def submit_within(
        self, transaction: StepTransaction, submissions: Sequence[Submission]
    ) -> list[Submitted]:
        """As a part of a handler's transaction: once its step is complete, they will be run."""
        if not submissions:
            return []
        if transaction.url != self.store.url:
            raise InvalidInput(
                "The transaction belongs to another database than this Holdfast's.",
                guidance="Submit with the Holdfast object whose worker runs the step.",
            )
        return submitted(await transaction.insert(await self._new_executions(submissions)))

    async def _new_executions(self, submissions: Sequence[Submission]) -> list[NewExecution]:
        versions = await self._definitions.versions((item.path, item.version) for item in submissions)
        return new_executions(submissions, versions, self._kinds, payload_bytes_max=self.payload_bytes_max)

    # lease, heartbeat, report, release

    async def lease(
        self,
        worker_id: str,
        handlers: Sequence[str] | None,
        limit: int,
        *,
        lease_seconds: float = LEASE_SECONDS_DEFAULT,
        lanes: Sequence[Lane] = (Lane.MANUAL, Lane.BULK),
        alone: bool = False,
        bulk: int | None = None,
        limited: int | None = None,
        ageing_seconds: float | None = None,
        family: int | None = None,
        token: str | None = None,
        untaken: bool = False,
    ) -> LeaseResult:
        """Up to `limit` ready jobs this worker has handlers for, in the order of lanes and ranks: at most
        `bulk` of them bulk, at most `limited` under a limit. With None for `handlers`, any but those that
        only Holdfast's own workers can run. Bulk jobs that have been ready for `ageing_seconds` take their
        turn among the manual ones. With `family` only jobs of that execution and of those that were started
        for it. A caller that may miss the answer gives a `token` of its own, to `recall` the leases by. What
        is leased `untaken` runs only once somebody takes it over: such a lease that runs out is given back,
        and no attempt is lost."""
        check_name(worker_id, what="worker id")
        if not 1 <= limit <= LEASE_JOBS_MAX:
            raise InvalidInput(f"A lease takes 1 to {LEASE_JOBS_MAX} jobs, not {limit}.")
        lease_seconds = checked_seconds(lease_seconds, "lease_seconds")
        check_share(bulk, "bulk")
        check_share(limited, "limited")
        if ageing_seconds is not None:
            ageing_seconds = checked_seconds(ageing_seconds, "ageing_seconds")
        if token is not None:
            check_token(token)
        else:
            token = f"{UNTAKEN_PREFIX if untaken else ''}{self._new_token()}"
        if handlers is None:
            handlers = [key for key in await self.store.handlers() if key not in HOLDFASTS_OWN]
        request = ClaimRequest(
            worker_id=worker_id,
            # In one order: PostgreSQL's claim remembers what it learned of each such offer.
            handlers=tuple(sorted(set(handlers))),
            limit=1 if alone else limit,
            lease_seconds=lease_seconds,
            token=token,
            lanes=tuple(lanes),
            alone=alone,
            bulk=bulk,
            limited=limited,
            ageing_seconds=ageing_seconds,
            family=family,
        )
        now = await self.store.now()
        claimed = await self._leasing.claim(request, now)
        try:
            claimed = await self._put_back_early(claimed)
            alone_ready = not alone and await self._is_alone_ready(request, now, idle=not claimed)
            if claimed:
                return LeaseResult(await self._handed_out(claimed, worker_id), alone_ready)
            return LeaseResult([], alone_ready, await self.store.next_due(request, now))
        except BaseException:
            # Leased and never handed out, they would end as lost by a worker that never saw them.
            with contextlib.suppress(Exception):
                await self.release([LeaseRef(row.id, row.fence) for row in claimed])
            raise

    async def _put_back_early(self, claimed: list[Claimed]) -> list[Claimed]:
        """What a clock that was ahead has let go before the time it is scheduled for goes back, its attempt
        uncounted."""
        scheduled = [row for row in claimed if row.scheduled_for is not None]
        if not scheduled:
            return claimed
        now = await self.store.now()
        early = [row for row in scheduled if (row.scheduled_for or 0.0) > now]
        if not early:
            return claimed
        await self.release([LeaseRef(row.id, row.fence) for row in early])
        ids = {row.id for row in early}
        return [row for row in claimed if row.id not in ids]

    async def _is_alone_ready(self, request: ClaimRequest, now: float, *, idle: bool) -> bool:
        """Asked whenever there is nothing else, and now and then under load, so that such a job starves
        neither way."""
        if not idle and abs(now - self._alone_asked_at.get(request.lanes, 0.0)) < ALONE_ASKED_SECONDS:
            return False
        self._alone_asked_at[request.lanes] = now
        return await self.store.alone_ready(request, now)

    async def heartbeat(
        self,
        leases: Sequence[LeaseRef],
        *,
        lease_seconds: float | None = LEASE_SECONDS_DEFAULT,
        progress: Mapping[int, float] | None = None,
    ) -> list[Ack]:
        """Extend leases; with None for `lease_seconds`, each for as long as it was given the last time. A
        stale one answers stale_lease: its worker must abandon the attempt."""
        if not leases:
            return []
        if lease_seconds is not None:
            lease_seconds = checked_seconds(lease_seconds, "lease_seconds")
        now = await self.store.now()
        told = progress or {}
        beats = [
            Beat(lease.queue_id, lease.fence, told.get(lease.queue_id))
            for lease in leases
            if is_id(lease.queue_id)
        ]
        until = None if lease_seconds is None else now + lease_seconds
        standing = await self.store.heartbeat(beats, now, until)
        return [
            Ack(lease.queue_id, AckCode.ACCEPTED)
            if lease in standing
            else Ack(lease.queue_id, AckCode.STALE_LEASE, "the lease is no longer held; abandon the attempt")
            for lease in leases
        ]

    async def report(self, reports: Sequence[Report]) -> list[Ack]:
        """Settle attempts. Each report is answered on its own; one that is stale or wrong changes
        nothing and harms no other. The same report again is accepted again."""
        if not reports:
            return []
        prepared = await self._preparation.reports(reports)
        return list(await self._reporting.commit(prepared))

    def transaction(self) -> StepTransaction:
        """For one attempt: its SQL and its completion commit together."""
        return StepTransaction(
            self.store, self._preparation, self._definitions, self._planning, self._reporting, self._decisions
        )

    # sweep, retention

    async def sweep(self, limit: int = SWEEP_JOBS, *, second_look_after: float = 0.0) -> int:
        """End what nobody will end: leases that ran out, executions past their deadline. With a second look
        a lease must have run out at both: heartbeats that were kept waiting go between them."""
        now = await self.store.now()
        expired = await self.store.expired(now, limit)
        if expired and second_look_after:
            await asyncio.sleep(second_look_after)
            still = set(await self.store.expired(now, limit))
            expired = [lease for lease in expired if lease in still]
        swept = 0
        if expired:
            untaken = [lease for lease in expired if is_untaken(lease.fence)]
            lost = [lease for lease in expired if not is_untaken(lease.fence)]
            items = await self._preparation.lost(lost, now)
            # Apart from the reports, and past locked rows: what somebody holds is no worker's fault, and
            # waiting for it would keep healthy workers' reports waiting.
            acks = await self._reporting.settle_locked(items, skip_locked=True) if items else []
            acks += await self.release(untaken, skip_locked=True)
            swept = sum(ack.accepted and not ack.repeated for ack in acks)
        overdue = await self.store.overdue(now, limit)
        if overdue:
            book, late = self._planning.book(now), list[ExecutionState]()

            def fail_overdue(executions: list[ExecutionState], jobs: list[JobState]) -> Changes:
                changes = deadline_plan(executions, jobs, self._definitions, book)
                late[:] = changes.executions
                return changes

            await self._planning.executions(overdue, fail_overdue, book)
            self.tallies.overdue(len(late))
            self.store.announce_work()  # it may have made a place under a limit
        return swept + len(overdue) + await self._children.sweep()

    async def prune(self, older_than_seconds: float, limit: int = 500) -> int:
        """Delete executions that ended so long ago, with their history and their idempotency keys."""
        age = parse_duration(older_than_seconds, field="older_than_seconds")
        return await self.store.prune(await self.store.now() - age, limit)

    # what people do

    async def cancel(self, execution_id: int, *, by: str = "") -> bool:
        """Whether it was running and is cancelled now. Its worker is told at the next heartbeat."""
        check_request(execution_id, by)
        return await self._cancel(execution_id, by, is_asked_for=True)

    async def _cancel(self, execution_id: int, by: str, *, is_asked_for: bool) -> bool:
        book = self._planning.book(await self.store.now())
        cancel = CancelPlan(book, by, audit=is_asked_for)
        await self._planning.executions([execution_id], cancel, book)
        if not cancel.found:
            raise unknown_execution(execution_id)
        self.store.announce_work()  # it may have made a place under a limit
        if cancel.cancelled:
            await self._children.attend(cancel.parents)
            await self._cancel_children(await self.store.children(execution_id, CHILDREN_MAX), by=by)
        return bool(cancel.cancelled)

    async def _cancel_children(self, execution_ids: Sequence[int], *, by: str = "") -> None:
        """Those that are left where this is cut short, or of which there are more, are found by the sweep."""
        for execution_id in execution_ids:
            with contextlib.suppress(UnknownExecution):
                await self._cancel(execution_id, by, is_asked_for=False)

    async def retry(self, execution_id: int, request: RetryRequest) -> None:
        """Start a new round of a failed execution, or raise RetryRefused with the reason."""
        check_request(execution_id, request.by)
        book = self._planning.book(await self.store.now())
        found: list[ExecutionState] = []

        def retry(executions: list[ExecutionState], jobs: list[JobState]) -> Changes:
            found[:] = executions
            if not executions:
                return Changes()
            changes = retry_plan(request, executions[0], jobs, self._definitions, self._decisions, book)
            changes.batches = book.changed()
            return changes

        try:
            await self._planning.executions([execution_id], retry, book)
        except RetryRefused as refusal:
            raise await self._naming_parent(refusal, execution_id) from None
        if not found:
            raise unknown_execution(execution_id)
        self.store.announce_work()

    async def _naming_parent(self, refusal: RetryRefused, execution_id: int) -> RetryRefused:
        child = await self.store.execution(execution_id) if refusal.code == "child_execution" else None
        if child is None or child.parent_id is None:
            return refusal
        return RetryRefused(
            f"Execution {execution_id} was started for a step of execution {child.parent_id}, and has ended"
            " with its attempt.",
            code="child_execution",
            guidance=f"Retry execution {child.parent_id}: it starts this work again.",
        )

    async def redrive(
        self,
        ids: Sequence[int] | None = None,
        *,
        force: bool = False,
        by: str = "",
        dry_run: bool = False,
        **filters: Any,
    ) -> AsyncIterator[list[Redriven]]:
        """Start failed executions again at their failed stages: those named, or all that match the
        filters path, step, error_type, dead_reason. Answers come batch by batch, as they are stored."""
        redrive = self._redrive(force=force, by=by, dry_run=dry_run)
        batches = redrive.matching(failure_filter(filters)) if ids is None else redrive.named(ids)
        async for answers in batches:
            yield answers

    async def redrive_page(
        self,
        *,
        limit: int,
        cursor: str | None = None,
        ids: Sequence[int] | None = None,
        force: bool = False,
        by: str = "",
        dry_run: bool = False,
        **filters: Any,
    ) -> Page:
        """As `redrive`, up to `limit` of them by a call: the answers in the order of ids, and the cursor
        behind which the next call goes on."""
        redrive = self._redrive(force=force, by=by, dry_run=dry_run)
        query = failure_filter(filters) if ids is None else ids
        return await redrive.page(query, parse_cursor(cursor) or 0, page_size(limit))

    def _redrive(self, **asked: Any) -> Redrive:
        return Redrive(self.store, self._definitions, self._planning, self._decisions, **asked)

    # workers, for people to know of

    async def announce(self, worker: WorkerRecord) -> None:
        await announce(self.store, worker)

    async def retire(self, worker_id: str) -> None:
        await self.store.retire_worker(worker_id)

    # looking

    async def now(self) -> float:
        """The store's clock, which all decisions go by."""
        return await self.store.now()

    def work_ticket(self) -> int:
        """Taken before a lease, so that work arriving between lease and wait is not slept through."""
        return self.store.work_ticket()

    async def wait_for_work(self, ticket: int, seconds: float) -> None:
        """Until there may be work since the ticket was taken, or something ended, or for so long."""
        await self.store.wait_for_work(ticket, seconds)

    async def execution(self, execution_id: int) -> ExecutionRow | None:
        known = is_id(check_id(execution_id, "execution"))
        return await self.store.execution(execution_id) if known else None

    async def batch(self, batch_id: int) -> BatchRow | None:
        return await self.store.batch(batch_id) if is_id(check_id(batch_id, "batch")) else None

    async def job(self, queue_id: int) -> JobRow | None:
        known = is_id(check_id(queue_id, "job"))
        found = await self.store.jobs(JobFilter(queue_id=queue_id, limit=1)) if known else []
        return found[0] if found else None

    async def actions(self, jobs: Sequence[JobRow]) -> list[str]:
        """What each of the jobs is to do, as JSON text: the fields of its step with its retry policy."""
        return await self.step_actions.texts(jobs)

    async def overview(self) -> Overview:
        return await overview(self.store, self.controls)

    async def pipelines(self, limit: int = 1_000) -> list[DefinitionRow]:
        """Of every path that a program has registered, the version registered last."""
        return await self.store.latest_definitions(None, page_size(limit))

    async def failure_groups(self, *, limit: int = 100, **filters: Any) -> list[FailureGroup]:
        """Failures that nobody has retried, the most frequent first; filters as in redrive()."""
        return await self.store.failure_groups(failure_filter(filters), page_size(limit))

    async def failures(self, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> Page:
        """The same one by one, oldest execution first."""
        size, after = page_size(limit), parse_cursor(cursor) or 0
        items = await self.store.failures(failure_filter(filters), after, size)
        return Page(items, str(items[-1].execution_id) if len(items) == size else None)

    async def audit(self, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> Page:
        """What people did, the latest first: filters are actor, action, target."""
        size, action = page_size(limit), filters.pop("action", None)
        items = await self.store.audit(
            **filters,
            action=None if action is None else member(Deed, action, "action"),
            before=parse_cursor(cursor),
            limit=size,
        )
        return Page(items, str(items[-1].id) if len(items) == size else None)

    async def view(self, execution_id: int) -> ExecutionView:
        check_request(execution_id)
        return await self._viewing.view(execution_id)

    async def events(self, execution_id: int, *, after: str | None = None, limit: int = 1_000) -> list[Event]:
        """Its history in its order, or what came after one event; empty where it is not known."""
        check_execution_id(execution_id)
        if after is not None:
            check_event_id(after)
        if not is_id(execution_id):
            return []
        return await self.store.events(execution_id, after, page_size(limit))

    async def executions(
        self,
        *,
        status: ExecutionStatus | None = None,
        path: str | None = None,
        batch_id: int | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Executions, newest first."""
        size = page_size(limit)
        if path is not None:
            check_name(path, what="path")
        if batch_id is not None and not is_id(check_id(batch_id, "batch")):
            return Page([])
        query = ExecutionFilter(
            status=None if status is None else member(ExecutionStatus, status, "status"),
            path=path,
            batch_id=batch_id,
            before=parse_cursor(cursor),
            limit=size,
        )
        items = await self.store.executions(query)
        return Page(items, str(items[-1].id) if len(items) == size else None)

    async def queue(self, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> Page:
        """Jobs, oldest first: filters are status, lane, dead_reason, due_at, execution_id."""
        size = page_size(limit)
        for name, kind in _QUEUE_FILTERS.items():
            if filters.get(name) is not None:
                filters[name] = member(kind, filters[name], name.replace("_", " "))
        execution_id = filters.get("execution_id")
        if execution_id is not None:
            check_execution_id(execution_id)
            if not is_id(execution_id):
                return Page([])
        items = await self.store.jobs(JobFilter(**filters, after=parse_cursor(cursor) or 0, limit=size))
        return Page(items, str(items[-1].queue_id) if len(items) == size else None)


_QUEUE_FILTERS: dict[str, type[StrEnum]] = {"status": JobStatus, "lane": Lane, "dead_reason": DeadReason}


__all__ = ["Engine", "ExecutionView", "Page", "RetryRequest", "Submission", "Submitted"]
