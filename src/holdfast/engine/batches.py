"""Batches: items submitted together, and the gates at which they wait for each other.

    create ─▶ add, add, … ─▶ close                     items run meanwhile, and count themselves at the gates
    a gate's count says that it is time ─▶ attend: ask the job rows, open it once, let its jobs through

Opening is two steps. The first, one small transaction under the lock of the batch, decides: the counts in
the batch only say when to look, the rows of the jobs decide. The second lets the held jobs through in chunks
that do no harm when they are repeated. Between any two of them a process may die: `attention` stays set on
the batch, and any engine that sweeps goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from holdfast.core import transitions
from holdfast.core.audit import Deed, audited
from holdfast.core.errors import BatchClosed, IdempotencyConflict, StoreError
from holdfast.core.gates import BARRIER, BatchRow, BatchState, Gates, Place, wave_name
from holdfast.core.model import (
    EventType,
    ExecutionState,
    ExecutionStatus,
    JobRow,
    JobState,
    JobStatus,
    Lane,
    Mode,
)
from holdfast.core.payload import check_name, member
from holdfast.engine.batch_book import BatchBook, gates_of, new_gates, with_gates
from holdfast.engine.batch_view import (
    PACE_SECONDS,
    BatchView,
    FailedItem,
    Hindrance,
    batch_item,
    batch_view,
    counts_by_step,
    hindrances,
    step_counts,
    waited_for,
)
from holdfast.engine.checks import check_id, is_id, page_size, parse_cursor, unknown_batch
from holdfast.engine.controls import living_workers
from holdfast.engine.definitions import Definitions
from holdfast.engine.events import event, pack
from holdfast.engine.planning import Planning
from holdfast.engine.records import Page, Submission, Submitted
from holdfast.engine.settle import end_execution
from holdfast.engine.submission import Kinds, new_executions, submitted
from holdfast.playbook import plan
from holdfast.playbook.definition import Definition
from holdfast.store.changes import ChangedJob, Changes
from holdfast.store.interface import (
    BatchWork,
    ExecutionFilter,
    FailureFilter,
    LiveJobs,
    Locked,
    NewBatch,
    Store,
)
from holdfast.store.new_executions import Inserted, has_keys

log = logging.getLogger("holdfast.batches")

# Items of one transaction: enough to be fast, few enough that nobody waits long for its locks.
CHUNK_ITEMS = 500
BATCHES_PER_PAGE = 100
PASSES_MAX = 10
FAILED_SHOWN = 100


class Batches:
    def __init__(
        self, store: Store, definitions: Definitions, planning: Planning, *, payload_bytes_max: int
    ) -> None:
        self._store = store
        self._definitions = definitions
        self._planning = planning
        self._payload_bytes_max = payload_bytes_max

    async def create(
        self,
        path: str,
        *,
        lane: Lane = Lane.BULK,
        mode: Mode | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[int, bool]:
        """The id of a new batch, open for items, all of which get the version that its path has now; or of
        the one that has this key already, and whether it was made."""
        if idempotency_key is not None:
            check_name(idempotency_key, what="idempotency key")
        lane = member(Lane, lane, "lane")
        mode = Mode(lane.value) if mode is None else member(Mode, mode, "mode")
        definition_id, definition = (await self._definitions.latest([path]))[path]
        gates = new_gates(definition)
        batch, created = await self._store.create_batch(
            NewBatch(
                path=definition.path,
                definition_id=definition_id,
                lane=lane,
                mode=mode,
                idempotency_key=idempotency_key,
                gated=bool(gates.barriers or gates.waves),
                gates=msgspec.json.encode(gates).decode(),
            ),
            await self._store.now(),
        )
        if not created and (batch.lane, batch.mode) != (lane, mode):
            raise IdempotencyConflict(
                f"The key {idempotency_key!r} of {path} belongs to batch {batch.id}, whose lane is"
                f" {batch.lane} and whose mode is {batch.mode}.",
                guidance="Submit it as it was, or choose another key.",
            )
        return batch.id, created

    async def add(
        self, batch_id: int, submissions: Sequence[Submission], *, first_place: int = 0
    ) -> list[Submitted]:
        """Add items, all of them or none. An idempotency key holds within its batch: what was added with it
        before is found again, also where the batch is closed; anything new is refused then. `first_place` is
        how many the caller has added before, for errors that name an item by its place."""
        row, definition = await self._found(batch_id)
        if not submissions:
            return []
        now = await self._store.now()
        of_batch = [
            msgspec.structs.replace(item, path=row.path, lane=row.lane, mode=row.mode, version=None)
            for item in submissions
        ]
        new = new_executions(
            of_batch,
            {(row.path, None): (row.definition_id, definition)},
            Kinds(batch_id),
            payload_bytes_max=self._payload_bytes_max,
            first_place=first_place,
        )
        if has_keys(new):
            new = [item._replace(idempotency_key=_key_in(batch_id, item.idempotency_key)) for item in new]
        first = Place(plan.first_step(definition).name)

        def count(batch: BatchState, inserted: Sequence[Inserted]) -> BatchState:
            created = sum(item.created for item in inserted)
            if created and batch.closed_at is not None:
                raise batch_closed(batch)
            gates = gates_of(batch)
            gates.moved(None, first, definition.position, times=created)
            return with_gates(msgspec.structs.replace(batch, items=batch.items + created), gates)

        inserted = await self._store.add_to_batch(batch_id, new, count, now)
        if inserted is None:  # pruned a moment ago
            raise unknown_batch(batch_id)
        self._planning.tallies.started(inserted)
        self._store.announce_work()
        return submitted(inserted)

    async def close(self, batch_id: int) -> bool:
        """Say that all items are there; whether that is new. What waits for it opens. The gates are counted
        anew for it, so that closing a batch again is also how a wrong count is healed."""
        _, definition = await self._found(batch_id)
        now, was_open = await self._store.now(), False

        def close(batch: BatchState, live: LiveJobs) -> BatchState:
            nonlocal was_open
            was_open = batch.closed_at is None
            closed = msgspec.structs.replace(batch, closed_at=now) if was_open else batch
            gates = gates_of(batch)
            _recount(gates, live, definition)
            return with_gates(closed, gates)

        closed = await self._store.amend_batch(batch_id, close, now, count_jobs=True)
        if closed is None:  # pruned a moment ago
            raise unknown_batch(batch_id)
        if closed.attention:
            await self.attend(batch_id)
        return was_open

    async def cancel(self, batch_id: int, *, by: str = "") -> int:
        """Close it and cancel every item that runs; how many those were. One that is over stays as it is."""
        check_id(batch_id, "batch")
        if by != "":
            check_name(by, what="name of who asks")
        if await self.is_over(batch_id):
            return 0
        now, running = await self._store.now(), 0

        def cancel(batch: BatchState, live: LiveJobs) -> BatchState:
            nonlocal running
            running = sum(live.values())
            gates = gates_of(batch)
            gates.cancelling = True
            cancelled = msgspec.structs.replace(
                batch, closed_at=batch.closed_at or now, cancelled_at=batch.cancelled_at or now,
                cancelled_by=batch.cancelled_by or by,
            )  # fmt: skip
            return with_gates(cancelled, gates)

        audit = audited(by, Deed.CANCEL, f"batch {batch_id}")
        await self._store.amend_batch(batch_id, cancel, now, count_jobs=True, audit=audit)
        if not (await self._found(batch_id))[1].is_linear:  # an item may have several jobs at once
            counted = await self._store.batch_executions(batch_id)
            running = sum(
                count.items for count in counted if count.execution_status is ExecutionStatus.RUNNING
            )
        await self._cancel_items(batch_id, by)  # with whoever attends to it meanwhile
        await self.attend(batch_id)
        return running

    # looking

    async def view(self, batch_id: int, *, failed_max: int = FAILED_SHOWN) -> BatchView:
        batch, definition = await self._found(batch_id)
        now = await self._store.now()
        failures = await self._store.failures(FailureFilter(batch_id=batch_id), 0, failed_max)
        failed = [
            FailedItem(
                execution_id=row.execution_id,
                step=row.step,
                error=f"{row.error_type}: {row.message}",
                dead_reason=row.dead_reason,
                failed_at=row.failed_at,
            )
            for row in failures
        ]
        by_step = None
        if definition.is_linear:
            counted = await self._store.batch_counts(batch_id)
        else:
            counted = await self._store.batch_executions(batch_id)
            by_step = counts_by_step(definition, counted, await self._store.batch_steps(batch_id))
        is_running = any(count.execution_status is ExecutionStatus.RUNNING for count in counted)
        if not is_running:
            return batch_view(batch, definition, counted, [], failed, now, counts=by_step)
        paces = await self._store.batch_paces(batch_id, now - PACE_SECONDS)
        work = await self._store.batch_work(batch_id)
        return batch_view(
            batch,
            definition,
            counted,
            paces,
            failed,
            now,
            work=work,
            own_times=await self._own_times(batch, work, now),
            hindrances=await self._hindrances(
                batch, definition, by_step or step_counts(definition, counted), work, now
            ),
            counts=by_step,
        )

    async def _own_times(self, batch: BatchRow, work: Sequence[BatchWork], now: float) -> Sequence[BatchWork]:
        """Of what waits at an open barrier's step, that which was retried by hand and has a later time."""
        found: list[BatchWork] = []
        for gate in batch.gates.barriers:
            common = max(gate.scheduled_for or 0.0, now)
            if any(item.step == gate.step and (item.scheduled_for or 0.0) > common for item in work):
                later = await self._store.batch_work(batch.id, scheduled_after=common)
                found += [item for item in later if item.step == gate.step]
        return found

    async def _hindrances(
        self,
        batch: BatchRow,
        definition: Definition,
        counts: dict[str, dict[str, int]],
        work: Sequence[BatchWork],
        now: float,
    ) -> Sequence[Hindrance]:
        pauses = await self._store.pauses()
        is_ready = any(item.first_at <= now for item in work)
        limits = await self._store.limits() if is_ready else []
        living = await living_workers(self._store, now) if is_ready else []
        return hindrances(batch, definition, counts, work, pauses, limits, living, now)

    async def check(self, batch_id: int) -> None:
        """Raise where there is no such batch."""
        await self._found(batch_id)

    async def is_open(self, batch_id: int) -> bool:
        """Whether items can still be added."""
        batch, _ = await self._found(batch_id)
        return batch.closed_at is None

    async def is_over(self, batch_id: int) -> bool:
        """Whether it is closed and nothing of it runs; asked without counting it all."""
        batch, _ = await self._found(batch_id)
        running = ExecutionFilter(batch_id=batch_id, status=ExecutionStatus.RUNNING, limit=1)
        return batch.closed_at is not None and not await self._store.executions(running)

    async def items(
        self,
        batch_id: int,
        *,
        status: ExecutionStatus | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Its items in the order of their submission, each with its tracking document."""
        _, definition = await self._found(batch_id)
        size = page_size(limit)
        executions = await self._store.batch_items(
            batch_id,
            status=None if status is None else member(ExecutionStatus, status, "status"),
            after=parse_cursor(cursor) or 0,
            limit=size,
        )
        jobs: dict[int, list[JobRow]] = {}
        for job in await self._store.jobs_of([execution.id for execution in executions]):
            jobs.setdefault(job.execution_id, []).append(job)
        items = [batch_item(execution, jobs.get(execution.id, []), definition) for execution in executions]
        return Page(items, str(items[-1].id) if len(items) == size else None)

    async def list(self, *, path: str | None = None, limit: int = 50, cursor: str | None = None) -> Page:
        """Batches, newest first, without their counts; with `path` those of one pipeline."""
        size = page_size(limit)
        rows = await self._store.batches(before=parse_cursor(cursor), limit=size, path=path)
        return Page(rows, str(rows[-1].id) if len(rows) == size else None)

    async def waited_for(self, job: JobRow, batch_id: int | None) -> str:
        """What a job of a batch waits for, in the words of `describe`; empty where it waits for nothing."""
        if job.status not in (JobStatus.QUEUED, JobStatus.RETRY):
            return ""
        row = None if job.held_by is None or batch_id is None else await self._store.batch(batch_id)
        return waited_for(job, row, await self._store.now())

    async def _found(self, batch_id: int) -> tuple[BatchRow, Definition]:
        row = await self._store.batch(batch_id) if is_id(check_id(batch_id, "batch")) else None
        if row is None:
            raise unknown_batch(batch_id)
        return row, await self._definitions.load(row.definition_id)

    # gates

    async def attend_all(self) -> int:
        """Open what is to be opened, and go on with what somebody has begun; how many batches that were."""
        self._planning.attention.clear()
        attended, last = 0, 0
        while ids := await self._store.batches_to_attend(last, BATCHES_PER_PAGE):
            for id_ in ids:
                try:
                    await self.attend(id_)
                except StoreError:
                    raise
                except Exception:  # one odd batch must not keep the others waiting
                    log.exception("Batch %d could not be looked after; it will be tried again.", id_)
            attended, last = attended + len(ids), ids[-1]
        return attended

    async def wait_for_attention(self, seconds: float) -> None:
        """Until a report in this process has made a gate's turn come, or so long."""
        waiting = asyncio.ensure_future(self._planning.attention.wait())
        try:
            await asyncio.wait([waiting], timeout=max(seconds, 0.0))
        finally:
            waiting.cancel()

    async def attend(self, batch_id: int) -> None:
        for _ in range(PASSES_MAX):  # what is let through may bring the next gate's turn, but not for ever
            row = await self._store.batch(batch_id)
            if row is None:
                return
            gates, is_closed = row.gates, row.closed_at is not None
            if not gates.need_attention(is_closed=is_closed):
                return
            if gates.cancelling:
                await self._cancel_items(batch_id, row.cancelled_by or "")
            if gates.are_due(is_closed=is_closed):
                state = await self._open_due(batch_id, await self._definitions.load(row.definition_id))
                if state is None:
                    return
                gates = gates_of(state)
            await self._let_through(batch_id, gates)

    async def _open_due(self, batch_id: int, definition: Definition) -> BatchState | None:
        now = await self._store.now()

        def open_due(batch: BatchState, live: LiveJobs) -> BatchState:
            gates = gates_of(batch)
            _recount(gates, live, definition)
            if batch.closed_at is not None:
                _open_barriers(gates, now)
            _start_waves(gates, now)
            return with_gates(batch, gates)

        return await self._store.amend_batch(batch_id, open_due, now, count_jobs=True)

    async def _let_through(self, batch_id: int, gates: Gates) -> None:
        for gate in gates.barriers:
            if gate.is_releasing:
                assert gate.scheduled_for is not None
                opened = event(EventType.BARRIER_OPENED, gate.step, scheduled_for=gate.scheduled_for)
                if await self._release(
                    batch_id, gate.step, BARRIER, opened, gate.scheduled_for, gate.scheduled_for
                ):
                    await self._mark_released(batch_id, gate.step, BARRIER)
        for wave in gates.waves:
            if not wave.released:
                assert wave.available_at is not None
                name = wave_name(wave.number - 1)
                started = event(
                    EventType.WAVE_STARTED, wave.step, wave=wave.number - 1, available_at=wave.available_at
                )
                if await self._release(batch_id, wave.step, name, started, wave.available_at, None):
                    await self._mark_released(batch_id, wave.step, name)

    async def _release(
        self,
        batch_id: int,
        step: str,
        held_by: str,
        told: dict[str, object],
        available_at: float,
        scheduled_for: float | None,
    ) -> bool:
        """Let these jobs through, chunk by chunk; whether none is left. Rows that somebody has locked are
        left for the next pass."""
        body = pack([told])

        def let_through(locked: list[Locked]) -> Changes:
            changes = Changes()
            for job, execution in locked:
                if job.held_by == held_by and job.step == step:
                    free = transitions.let_through(
                        job,
                        available_at=max(available_at, job.scheduled_for or 0.0),
                        scheduled_for=scheduled_for,
                    )
                    changes.jobs.append(ChangedJob(free))
                    changes.events.append((execution.id, body))
            return changes

        for _ in range(PASSES_MAX):
            after, is_clear = 0, True
            while held := await self._store.held_jobs(batch_id, step, held_by, after, CHUNK_ITEMS):
                is_clear = False
                after = held[-1][0]
                book = self._planning.book(await self._store.now())
                await self._planning.jobs([job for _, job in held], let_through, book, skip_locked=True)
                self._store.announce_work()
            if is_clear:
                return True
        return False

    async def _mark_released(self, batch_id: int, step: str, held_by: str) -> None:
        def mark(batch: BatchState, _: LiveJobs) -> BatchState:
            gates = gates_of(batch)
            barrier, wave = gates.barrier(step), gates.wave(step)
            if held_by == BARRIER and barrier is not None:
                barrier.released = True
            elif wave is not None and held_by == wave_name(wave.number - 1):
                wave.released = True
            return with_gates(batch, gates)

        await self._store.amend_batch(batch_id, mark, await self._store.now())

    async def _cancel_items(self, batch_id: int, by: str) -> None:
        before = None
        while True:
            running = await self._store.executions(
                ExecutionFilter(
                    status=ExecutionStatus.RUNNING, batch_id=batch_id, before=before, limit=CHUNK_ITEMS
                )
            )
            if not running:
                break
            before = running[-1].id
            book = self._planning.book(await self._store.now())
            ids = sorted(row.id for row in running)
            await self._planning.executions(ids, CancelPlan(book, by), book)

        def done(batch: BatchState, _: LiveJobs) -> BatchState:
            gates = gates_of(batch)
            gates.cancelling = False
            return with_gates(batch, gates)

        await self._store.amend_batch(batch_id, done, await self._store.now())
        self._store.announce_work()  # what ran may have made room under a limit


class CancelPlan:
    """Cancels those of the executions that run; `found` and `cancelled` are their ids."""

    def __init__(self, book: BatchBook, by: str, *, audit: bool = False) -> None:
        self._book = book
        self._by = by
        self._audit = audit
        self.found: list[int] = []
        self.cancelled: list[int] = []
        self.parents: list[int] = []
        """Jobs that have waited for those that were cancelled."""

    def __call__(self, executions: list[ExecutionState], jobs: list[JobState]) -> Changes:
        self.found = [execution.id for execution in executions]
        self.cancelled, self.parents, changes = [], [], Changes()
        for execution in executions:
            if execution.status is ExecutionStatus.RUNNING:
                self.cancelled.append(execution.id)
                self.parents += [execution.parent_job] if execution.parent_job else []
                ending = [event(EventType.EXECUTION_CANCELLED, by=self._by)]
                part = end_execution(execution, jobs, ExecutionStatus.CANCELLED, ending, self._book)
                changes.jobs += part.jobs
                changes.executions += part.executions
                changes.events += part.events
                if self._audit:
                    changes.audit.append(audited(self._by, Deed.CANCEL, f"execution {execution.id}"))
        changes.batches = self._book.changed()
        return changes


def _recount(gates: Gates, live: LiveJobs, definition: Definition) -> None:
    """The counts as the rows of the jobs have them, which is how they should be."""
    before = msgspec.json.encode(gates)
    for gate in gates.barriers:
        if gate.opened_at is None:
            line = definition.position(gate.after)
            gate.unsettled = sum(
                jobs for (step, _), jobs in live.items() if definition.position(step) <= line
            )
    for wave in gates.waves:
        at_step = {held_by: jobs for (step, held_by), jobs in live.items() if step == wave.step}
        wave.waiting = at_step.pop(wave.gathering, 0)
        wave.active = sum(at_step.values())
    if msgspec.json.encode(gates) != before:
        log.error("The counts of a batch's gates were wrong, and were put right: %s.", before.decode())


def _open_barriers(gates: Gates, now: float) -> None:
    for gate in gates.barriers:
        if gate.opened_at is None and not gate.unsettled:
            gate.opened_at, gate.scheduled_for = now, now + gate.delay_seconds


def _start_waves(gates: Gates, now: float) -> None:
    for wave in gates.waves:
        if wave.is_due:
            wave.number += 1
            wave.started_at, wave.available_at = now, now + wave.longest_delay
            wave.active, wave.waiting, wave.longest_delay, wave.released = wave.waiting, 0, 0.0, False


def _key_in(batch_id: int, key: str | None) -> str | None:
    return None if key is None else f"batch {batch_id}: {key}"


def batch_closed(batch: BatchState) -> BatchClosed:
    what = "closed" if batch.cancelled_at is None else "cancelled"
    return BatchClosed(
        f"Batch {batch.id} is {what}: nothing can be added to it.",
        guidance="Submit further items as a batch of their own.",
    )
