"""What the tests of the stores share: short ways to open one, fill it, claim from it and look inside.

`raw` runs plain SQL on a connection of its own, beside the store; both dialects take the same text, as
PostgreSQL's search path is set to the schema.
"""

import asyncio
import contextlib
import math
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import uuid4

import apsw
import asyncpg
import msgspec
import pytest

from holdfast.core.model import ClaimGroup, ExecutionStatus, JobState, Lane, LeaseRef, Mode
from holdfast.store import Store, choosing, store_from_url
from holdfast.store.changes import ChangedJob, Changes, CompletedStage
from holdfast.store.interface import Claimed, ClaimRequest, Locked
from holdfast.store.new_executions import ExecutionKind, NewExecution
from holdfast.store.stages import FollowingJob, HeldStage, StageEnd

NOW = 1_000_000.0
PATH = "mail"
GROUP = ClaimGroup("send", "bulk", 5)
TABLES = ("definitions", "claim_groups", "executions", "jobs", "events")
ERROR = (
    '{"error_type":"timeout","category":"transient","message":"too slow","stage":"first","timestamp":1.0,'
    '"retry_count":0,"user_message":"","guidance":"","rule":"","stack_trace":""}'
)

_NEW = NewExecution(
    kind=ExecutionKind(
        path=PATH,
        definition_id=1,
        lane=Lane.BULK,
        mode=Mode.BULK,
        batch_id=None,
        step="first",
        group=GROUP,
        max_attempts=3,
        events='[{"type":"execution_started"},{"type":"step_started","step":"first"}]',
    ),
    workload='{"to":"ann"}',
)


# For processes that a test starts: they find what this one finds.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}


@contextlib.contextmanager
def waits_do_not_count() -> Iterator[None]:
    """A lease is longer by what it waited for its transaction: the machine's time, which is none of a test's
    that tells the time itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "NO_WAIT_SECONDS", math.inf)
        yield


@contextlib.asynccontextmanager
async def opened(
    url: str, *, clock: Callable[[], float] | None = None, migrate: bool = True
) -> AsyncIterator[Store]:
    store = store_from_url(url, clock=clock)
    await store.open(migrate=migrate)
    try:
        with waits_do_not_count():
            yield store
    finally:
        await store.close()


async def raw(url: str, sql: str) -> list[tuple[Any, ...]]:
    """Run SQL on a connection of its own; the rows of its answer."""
    if url.startswith("sqlite"):
        database = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            database.set_busy_timeout(60_000)
            return list(database.execute(sql))
        finally:
            database.close()
    connection = await raw_connection(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


async def raw_connection(url: str) -> Any:
    """A PostgreSQL connection that finds Holdfast's tables without their schema's name."""
    return await asyncpg.connect(url, server_settings={"search_path": "holdfast,public"})


async def row_counts(url: str) -> dict[str, int]:
    return {table: (await raw(url, f"SELECT count(*) FROM {table}"))[0][0] for table in TABLES}


async def contents(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    return {table: await raw(url, f"SELECT * FROM {table} ORDER BY id") for table in TABLES}


def new(**changes: Any) -> NewExecution:
    """An execution to submit; a lane given here is its claim group's too, unless a group is given. Times
    may be given as what they are when it is inserted at NOW."""
    if "lane" in changes and "group" not in changes:
        changes["group"] = GROUP._replace(lane=changes["lane"])
    if "available_at" in changes:
        changes["delay_seconds"] = changes.pop("available_at") - NOW
    if "deadline_at" in changes:
        changes["deadline_seconds"] = changes.pop("deadline_at") - NOW
    of_kind = {name: changes.pop(name) for name in ExecutionKind._fields if name in changes}
    return _NEW._replace(kind=_NEW.kind._replace(**of_kind) if of_kind else _NEW.kind, **changes)


def keyed(key: str, workload_hash: str = "h1", **changes: Any) -> NewExecution:
    return new(idempotency_key=key, workload_hash=workload_hash, **changes)


async def submit(store: Store, *items: NewExecution) -> list[int]:
    """Store executions (one, when none is given) and return their ids."""
    await store.save_definition(PATH, "{}", "the-only-one", NOW)
    return [answer.execution_id for answer in await store.insert(items or (new(),), NOW)]


def request(**changes: Any) -> ClaimRequest:
    asked = ClaimRequest(
        worker_id="worker-1", handlers=("send",), limit=100, lease_seconds=60.0, token=uuid4().hex[:12]
    )
    return msgspec.structs.replace(asked, **changes)


async def claim(store: Store, now: float = NOW, **changes: Any) -> list[Claimed]:
    return await store.claim(request(**changes), now)


def lease_of(claimed: Claimed) -> LeaseRef:
    return LeaseRef(claimed.id, claimed.fence)


async def job(store: Store, job_id: int) -> JobState:
    return (await store.peek_jobs([job_id]))[0].job


async def change_job(store: Store, job_id: int, change: Callable[[JobState], ChangedJob]) -> None:
    """Put one job into the state that `change` makes of the one it is in."""

    def plan(locked: list[Locked]) -> Changes:
        return Changes(jobs=[change(locked[0].job)])

    await store.amend_jobs([job_id], plan, NOW)


def completed_stage(
    leased: Claimed,
    *,
    output: str = '"done"',
    status: ExecutionStatus = ExecutionStatus.RUNNING,
    events: str = '[{"type":"action_started","step":"first"},{"type":"action_completed","step":"first"}]',
) -> CompletedStage:
    """What a plan says of an attempt that has done its stage."""
    return CompletedStage(leased.id, leased.execution_id, "hash", output, status, leased.step, events)


def held_stage(
    leased: Claimed, *, output: str = '"done"', following: FollowingJob | None = None, **changed: Any
) -> HeldStage:
    """What an engine that gave out the lease says of an attempt that has done its stage."""
    status = ExecutionStatus.COMPLETED if following is None else ExecutionStatus.RUNNING
    end = StageEnd(status, leased.step, '[{"type":"action_completed","step":"first"}]', following, False)
    stage = HeldStage(leased.id, leased.execution_id, leased.fence, "hash", output, end)
    return stage._replace(**changed)


async def complete(store: Store, leased: Claimed, *, output: str = '"done"', now: float = NOW) -> None:
    """Settle an attempt as the only step of its execution."""

    def plan(locked: list[Locked]) -> Changes:
        return Changes(
            completed=[completed_stage(leased, output=output, status=ExecutionStatus.COMPLETED)],
        )

    await store.amend_jobs([leased.id], plan, now)


async def together(*actions: Any) -> list[Any]:
    """Run coroutines at once; an exception of any is an answer like another."""
    return list(await asyncio.gather(*actions, return_exceptions=True))
