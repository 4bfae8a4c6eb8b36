"""Watching: how much work there is and who does it, what the database is, whether the server is well."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.access import Right
from holdfast.core.errors import StoreError
from holdfast.core.model import ExecutionStatus, JobStatus, WorkerRow
from holdfast.engine.gauges import HELD, Gauges
from holdfast.engine.overview import Overview
from holdfast.engine.tallies import ATTEMPT, BUCKET, DEAD, ENDED, RETRIES, STARTED, AttemptOutcome, Key
from holdfast.server import prometheus
from holdfast.server.api_steering import FailureDocument
from holdfast.server.endpoints import Ask, Family
from holdfast.server.problems import Refused
from holdfast.store.inspection import Inspection
from holdfast.wire import Info, Listed

watching = Family("Watching")
endpoints = watching.endpoints

log = logging.getLogger("holdfast.server")

READY_SECONDS_MAX = 2.0
# With the above less than the ten seconds that Prometheus waits.
COUNT_SECONDS_MAX = 7.0
EXPIRED_COUNTED_MAX = 1_000
FAILED_SHOWN_MAX = 100


class State(msgspec.Struct, frozen=True, kw_only=True):
    status: str


class ExpiredQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Leases that ran out so many seconds ago."""

    seconds: Annotated[float, Meta(ge=0, le=315_360_000)] = 60.0


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are, counted up to 1,000."""

    leases: int


class Lifecycle(msgspec.Struct, frozen=True, kw_only=True):
    """All that ever happened, as far as processes have written what they counted: executions that were
    `enqueued` and `completed`, attempts that `failed` (those lost with their worker too) and those that were
    `retried`, jobs that have `permanently_failed`; and the jobs that are `in_progress` now."""

    enqueued: int
    in_progress: int
    retried: int
    failed: int
    completed: int
    permanently_failed: int


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Observed, and never asked by the engine: jobs that wait (`enqueued`), of them those between two
    attempts (`retried`), jobs that wait at a gate of their batch (`held`), jobs that run (`in_progress`);
    executions that have `completed`, that have `failed`
    and wait for somebody, all of those being `permanently_failed`, with the first of them in a list. Where
    there is so much that counting takes long, the counts are of a moment ago: `counts_age_seconds`."""

    enqueued: int
    held: int
    in_progress: int
    retried: int
    failed: int
    completed: int
    permanently_failed: int
    lifecycle: Lifecycle
    permanently_failed_jobs: list[FailureDocument]
    counts_age_seconds: float


@watching(
    "GET",
    "/healthz",
    "Whether the server lives; asks nobody",
    State,
    needs=Right.NONE,
)
async def healthz(ask: Ask) -> Any:
    return State(status="ok")


@watching(
    "GET",
    "/readyz",
    "Whether it can do its work: the database answers",
    {200: State},
    needs=Right.NONE,
)
async def readyz(ask: Ask) -> Any:
    if ask.services.is_stopping:
        raise Refused(503, "stopping", "The server is being stopped.", "Ask another one.")
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            await ask.engine.store.pauses()  # small, and asked of the database itself
    except StoreError as error:
        # Whoever has no token may ask this, and need not know which database it is.
        log.warning("The server is not ready: %s", error)
        raise Refused(
            503, "store_unavailable", "The database does not answer.", "See the server's log."
        ) from None
    except TimeoutError:
        raise Refused(
            503,
            "store_slow",
            f"The database has not answered within {READY_SECONDS_MAX:g} seconds.",
            "See whether it is overloaded, and its log.",
        ) from None
    return State(status="ready")


@watching(
    "GET",
    "/api/info",
    "What the server is, and its clock",
    Info,
    hot=True,
    needs=Right.KNOWN,
)
async def info(ask: Ask) -> Any:
    return Info(
        version=ask.services.version,
        now=await ask.engine.now(),
        database=ask.services.kind,
        schema_version=ask.services.schema_version,
        payload_bytes_max=ask.engine.payload_bytes_max,
    )


@watching(
    "GET",
    "/api/database",
    "The database under the server, as `holdfast doctor` looks at it",
    Inspection,
    needs=Right.LOOK,
)
async def database(ask: Ask) -> Any:
    return await ask.engine.inspection()


@watching(
    "GET",
    "/api/overview",
    "How much work there is, who does it, what needs attention",
    Overview,
    needs=Right.LOOK,
)
async def overview(ask: Ask) -> Any:
    return await ask.engine.overview()


@watching(
    "GET",
    "/api/workers",
    "The workers that live or went silent",
    Listed[WorkerRow],
    needs=Right.LOOK,
)
async def workers(ask: Ask) -> Any:
    return Listed(items=await ask.engine.store.workers(10_000))


@watching(
    "GET",
    "/api/leases/expired",
    "Leases that have run out and nobody has swept",
    Expired,
    query=ExpiredQuery,
    needs=Right.LOOK,
)
async def expired(ask: Ask) -> Any:
    return Expired(leases=await ask.engine.expired_leases(ask.query.seconds, EXPIRED_COUNTED_MAX))


@watching(
    "GET",
    "/api/metrics",
    "Counts of jobs and executions, and what has failed for good",
    Metrics,
    needs=Right.LOOK,
)
async def metrics(ask: Ask) -> Any:
    await ask.services.counting.write_own()
    (gauges, sums), age = await ask.services.counting.open.get()
    completed, history_age = await ask.services.counting.completed.get()
    failures = await ask.engine.failures(limit=FAILED_SHOWN_MAX)
    failed = gauges.executions[ExecutionStatus.FAILED]
    retried = gauges.in_status(JobStatus.RETRY)
    return Metrics(
        enqueued=gauges.in_status(JobStatus.QUEUED) + retried,
        held=gauges.in_status(HELD),
        in_progress=gauges.in_status(JobStatus.LEASED),
        retried=retried,
        failed=failed,
        completed=completed,
        permanently_failed=failed,
        lifecycle=_lifecycle(gauges, sums),
        permanently_failed_jobs=[FailureDocument(**row._asdict()) for row in failures.items],
        counts_age_seconds=round(max(age, history_age), 3),
    )


def _lifecycle(gauges: Gauges, sums: dict[Key, int]) -> Lifecycle:
    def total(name: str, *labels: str) -> int:
        """Of all whose first label is one of these; of all, where none is named."""
        return sum(
            value
            for (known, told), value in sums.items()
            if known == name and (not labels or told[0] in labels)
        )

    return Lifecycle(
        enqueued=total(STARTED),
        in_progress=gauges.in_status(JobStatus.LEASED),
        retried=total(RETRIES),
        failed=total(ATTEMPT + BUCKET, AttemptOutcome.FAILED, AttemptOutcome.LOST),
        completed=total(ENDED, ExecutionStatus.COMPLETED),
        permanently_failed=total(DEAD),
    )


@watching(
    "GET",
    "/metrics",
    "All there is to watch, for Prometheus",
    plain={200: prometheus.CONTENT_TYPE},
    needs=Right.LOOK,
)
async def metrics_text(ask: Ask) -> Any:
    services, counting = ask.services, ask.services.counting
    work: list[str] = []
    is_up, seconds, pauses = False, None, None
    began = time.monotonic()
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            pauses = len(await ask.engine.store.pauses())
        is_up, seconds = True, round(time.monotonic() - began, 6)
        # Counting what is open takes its time, and is no sign that the database is away.
        async with asyncio.timeout(COUNT_SECONDS_MAX):
            await counting.write_own()
            work += prometheus.of_work(*await counting.open.get())
    except StoreError:
        is_up = False
    except TimeoutError:
        log.warning("The database has not answered in time what /metrics asks it.")
    lines = [
        *prometheus.of_database(is_up=is_up, seconds=seconds, pauses=pauses),
        *work,
        *prometheus.of_server(services, time.monotonic() - services.started_at),
    ]
    return "\n".join(lines) + "\n"
