"""Watching: how much work there is and who does it, what the database is, whether the server is well."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.errors import StoreError
from holdfast.core.model import ExecutionStatus, JobStatus, WorkerRow
from holdfast.engine.overview import Overview
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
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class State(msgspec.Struct, frozen=True, kw_only=True):
    status: str


class ExpiredQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Leases that ran out so many seconds ago."""

    seconds: Annotated[float, Meta(ge=0, le=315_360_000)] = 60.0


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are, counted up to 1,000."""

    leases: int


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Observed, and never asked by the engine: jobs that wait (`enqueued`), of them those between two
    attempts (`retried`), jobs that run (`in_progress`); executions that have `completed`, that have `failed`
    and wait for somebody, all of those being `permanently_failed`, with the first of them in a list."""

    enqueued: int
    in_progress: int
    retried: int
    failed: int
    completed: int
    permanently_failed: int
    permanently_failed_jobs: list[FailureDocument]


@watching("GET", "/healthz", "Whether the server lives; asks nobody", State)
async def healthz(ask: Ask) -> Any:
    return State(status="ok")


@watching("GET", "/readyz", "Whether it can do its work: the database answers", {200: State})
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


@watching("GET", "/api/info", "What the server is, and its clock", Info, hot=True)
async def info(ask: Ask) -> Any:
    return Info(
        version=ask.services.version,
        now=await ask.engine.now(),
        database=ask.services.kind,
        schema_version=ask.services.schema_version,
        payload_bytes_max=ask.engine.payload_bytes_max,
    )


@watching(
    "GET", "/api/database", "The database under the server, as `holdfast doctor` looks at it", Inspection
)
async def database(ask: Ask) -> Any:
    return await ask.engine.inspection()


@watching("GET", "/api/overview", "How much work there is, who does it, what needs attention", Overview)
async def overview(ask: Ask) -> Any:
    return await ask.engine.overview()


@watching("GET", "/api/workers", "The workers that live or went silent", Listed[WorkerRow])
async def workers(ask: Ask) -> Any:
    return Listed(items=await ask.engine.store.workers(10_000))


@watching(
    "GET", "/api/leases/expired", "Leases that have run out and nobody has swept", Expired, query=ExpiredQuery
)
async def expired(ask: Ask) -> Any:
    return Expired(leases=await ask.engine.expired_leases(ask.query.seconds, EXPIRED_COUNTED_MAX))


@watching("GET", "/api/metrics", "Counts of jobs and executions, and what has failed for good", Metrics)
async def metrics(ask: Ask) -> Any:
    jobs = await _jobs(ask)
    executions = await ask.engine.store.execution_counts()
    failures = await ask.engine.failures(limit=FAILED_SHOWN_MAX)
    by_status = {
        status: sum(count for (told, _), count in jobs.items() if told is status) for status in JobStatus
    }
    failed = executions.get(ExecutionStatus.FAILED, 0)
    return Metrics(
        enqueued=by_status[JobStatus.QUEUED] + by_status[JobStatus.RETRY],
        in_progress=by_status[JobStatus.LEASED],
        retried=by_status[JobStatus.RETRY],
        failed=failed,
        completed=executions.get(ExecutionStatus.COMPLETED, 0),
        permanently_failed=failed,
        permanently_failed_jobs=[FailureDocument(**row._asdict()) for row in failures.items],
    )


async def _jobs(ask: Ask) -> dict[tuple[JobStatus, str], int]:
    counts: dict[tuple[JobStatus, str], int] = {}
    for item in await ask.engine.store.open_work():
        key = (item.status, item.lane.value)
        counts[key] = counts.get(key, 0) + item.jobs
    return counts


@watching("GET", "/metrics", "The same for Prometheus", plain={200: PROMETHEUS})
async def prometheus(ask: Ask) -> Any:
    services = ask.services
    lines: list[str] = []
    up = 0
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            await ask.engine.store.pauses()
        up = 1
        # Counting a long history takes its time, and is no sign that the database is away.
        async with asyncio.timeout(COUNT_SECONDS_MAX):
            lines += await _of_the_store(ask)
    except StoreError:
        up = 0
    except TimeoutError:
        log.warning("The database has not answered in time what /metrics asks it.")
    lines += _gauge("holdfast_store_up", "Whether the database answers.", [({}, up)])
    lines += _gauge(
        "holdfast_leases_waiting", "Lease calls that wait for work.", [({}, services.desk.waiting)]
    )
    lines += _gauge("holdfast_stream_listeners", "Open event streams.", [({}, services.live.listeners)])
    requests: list[tuple[dict[str, str], float]] = [
        ({"status": str(status)}, count) for status, count in sorted(services.requests.items())
    ]
    lines += _lines("holdfast_http_requests_total", "counter", "Requests answered.", requests)
    seconds = time.monotonic() - services.started_at
    lines += _gauge("holdfast_server_seconds", "Since the server was started.", [({}, round(seconds, 3))])
    return "\n".join(lines) + "\n"


async def _of_the_store(ask: Ask) -> list[str]:
    jobs, now = await _jobs(ask), await ask.engine.now()
    executions = await ask.engine.store.execution_counts()
    living = [worker for worker in await ask.engine.store.workers(10_000) if worker.is_living(now)]
    return [
        *_gauge(
            "holdfast_jobs",
            "Open jobs by status and lane.",
            [
                ({"status": status.value, "lane": lane}, count)
                for (status, lane), count in sorted(jobs.items())
            ],
        ),
        *_gauge(
            "holdfast_executions",
            "Executions by status.",
            [({"status": status.value}, executions.get(status, 0)) for status in ExecutionStatus],
        ),
        *_gauge("holdfast_workers", "Living workers.", [({}, len(living))]),
        *_gauge(
            "holdfast_worker_slots", "Of living workers.", [({}, sum(one.concurrency for one in living))]
        ),
    ]


def _gauge(name: str, about: str, values: list[tuple[dict[str, str], float]]) -> Iterator[str]:
    return _lines(name, "gauge", about, values)


def _lines(name: str, kind: str, about: str, values: list[tuple[dict[str, str], float]]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values:
        told = ",".join(f'{label}="{text}"' for label, text in labels.items())
        yield f"{name}{{{told}}} {value}" if told else f"{name} {value}"
