"""Runs as people look at them: what is stored of a run together with what has become of its execution."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput, UnknownExecution
from holdfast.core.model import EventType, ExecutionStatus
from holdfast.engine import Engine
from holdfast.engine.checks import is_id
from holdfast.pipelines.conf_archives.tables import STATE, executions_in, tables_for
from holdfast.store.tables import Row

EVENTS_MAX = 1_000  # more than its rounds can have
FAILURES_SHOWN = 10
DURATIONS_MAX = 1_000  # of the newest runs, for their mean


class RunStatus(StrEnum):
    PENDING = "PENDING"
    STORED = "STORED"
    PARSING = "PARSING"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"


class RunMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Counted by the attempt that completed the run; zero before. `parse_errors` are lines that could not be
    read; `error_type` is that of a failed run."""

    files_parsed: int
    stanzas_created: int
    duration_seconds: float | None
    parse_errors: int
    retry_count: int
    error_type: str | None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One upload. Its `id` is that of its execution. Of one that was retried, or failed, the error says what
    happened and what to do, and its category whether it can heal; while a retry waits it is the last one."""

    id: int
    status: RunStatus
    filename: str
    size: int
    sha256: str
    created_at: float
    started_at: float | None
    last_heartbeat: float | None
    completed_at: float | None
    task_id: str | None
    retry_count: int
    error_message: str | None
    user_message: str | None
    guidance: str | None
    category: str | None
    metrics: RunMetrics


class RunsMetrics(msgspec.Struct, frozen=True, kw_only=True):
    status_counts: dict[str, int]
    retry_stats: dict[str, float]
    avg_duration: float | None
    recent_failures: list[dict[str, Any]]


_COLUMNS = f"""r.id, {STATE}, r.filename, r.size, r.sha256, r.created_at, r.started_at, r.last_heartbeat,
    r.completed_at, r.task_id, r.duration_seconds, r.files_parsed, r.stanzas_created, r.parse_errors,
    e.status, e.finished_at, e.retry_count, e.error"""


class Runs:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store
        executions = executions_in(self._store.dialect)
        self._from = f"FROM holdfast_conf_runs r LEFT JOIN {executions} e ON e.id = r.id"

    async def prepare(self) -> None:
        """Make the tables: whoever looks before anything was uploaded sees nothing, and no error."""
        await self._store.make_tables(tables_for(self._store.dialect))

    async def page(self, *, status: RunStatus | None, before: int | None, limit: int) -> list[Run]:
        """Newest first; `before` is the last id of the page before."""
        conditions, values = ["r.id < $1"], [before if before is not None else 2**63 - 1, limit]
        if status is not None:
            conditions.append(f"{STATE} = $3")
            values.append(status.value)  # type: ignore[arg-type]
        found = await self._store.fetch_rows(
            f"SELECT {_COLUMNS} {self._from} WHERE {' AND '.join(conditions)} ORDER BY r.id DESC LIMIT $2",
            *values,
        )
        return await self._alive([_run(row) for row in found])

    async def get(self, run_id: int) -> Run:
        found: list[Row] = []
        if is_id(run_id):
            found = await self._store.fetch_rows(f"SELECT {_COLUMNS} {self._from} WHERE r.id = $1", run_id)
        if not found:
            raise UnknownExecution(
                f"There is no run {run_id}.", guidance="Runs are listed by GET /v1/runs, newest first."
            )
        [run] = await self._alive([_run(found[0])])
        return run

    async def completed(self, run_id: int) -> Run:
        """The run, whose stanzas can be read: no run is shown in halves."""
        run = await self.get(run_id)
        if run.status is RunStatus.COMPLETE:
            return run
        raise NotComplete(
            f"Run {run_id} is {run.status}, and has nothing to show before it is COMPLETE.",
            guidance=run.guidance or f"Look how it goes: GET /v1/runs/{run_id}.",
        )

    async def _alive(self, runs: Sequence[Run]) -> list[Run]:
        """With the heartbeats of attempts that are under way, which the engine keeps."""
        parsing = [run.id for run in runs if run.status is RunStatus.PARSING]
        if not parsing:
            return list(runs)
        beats: dict[int, float] = {}
        for job in await self._store.jobs_of(parsing):
            if job.last_heartbeat is not None:
                beats[job.execution_id] = max(beats.get(job.execution_id, 0.0), job.last_heartbeat)
        return [
            msgspec.structs.replace(run, last_heartbeat=max(beats[run.id], run.last_heartbeat or 0.0))
            if run.id in beats
            else run
            for run in runs
        ]

    async def traceback(self, run: Run) -> str | None:
        """Of its last error, in full."""
        if run.error_message is None:
            return None
        events = await self._engine.events(run.id, limit=EVENTS_MAX)
        for event in reversed(events):
            if event.type is EventType.ACTION_ERROR:
                return str(event.data.get("stack_trace") or "") or None
        return None

    async def metrics(self) -> RunsMetrics:
        fetch = self._store.fetch_rows
        counts = dict.fromkeys((status.value for status in RunStatus), 0)
        counts |= dict(await fetch(f"SELECT {STATE}, count(*) {self._from} GROUP BY 1"))
        [(retried, total, most)] = await fetch(
            "SELECT count(*), coalesce(sum(e.retry_count), 0), coalesce(max(e.retry_count), 0)"
            f" {self._from} WHERE e.retry_count > 0"
        )
        [(mean,)] = await fetch(
            "SELECT avg(d.duration_seconds) FROM (SELECT duration_seconds FROM holdfast_conf_runs"
            f" WHERE status = 'COMPLETE' ORDER BY id DESC LIMIT {DURATIONS_MAX}) AS d"
        )
        failed = await self.page(status=RunStatus.FAILED, before=None, limit=FAILURES_SHOWN)
        return RunsMetrics(
            status_counts={name: int(number) for name, number in counts.items()},
            retry_stats={"runs_retried": int(retried), "total_retries": int(total), "max_retries": int(most)},
            avg_duration=None if mean is None else float(mean),
            recent_failures=[
                {
                    "run_id": run.id,
                    "filename": run.filename,
                    "error_type": run.metrics.error_type,
                    "error_message": run.error_message,
                    "guidance": run.guidance,
                    "retry_count": run.retry_count,
                    "failed_at": run.completed_at,
                }
                for run in failed
            ],
        )


class NotComplete(InvalidInput):
    code = "not_complete"


def _run(row: Row) -> Run:
    (id_, state, filename, size, sha256, created_at, started_at, last_heartbeat, completed_at, task_id) = row[
        :10
    ]
    duration, files, stanzas, errors, execution_status, finished_at, retry_count, stored = row[10:]
    is_failed = state == RunStatus.FAILED
    error = _error(execution_status, stored) if state != RunStatus.COMPLETE else {}
    return Run(
        id=id_,
        status=RunStatus(state),
        filename=filename,
        size=size,
        sha256=sha256,
        created_at=created_at,
        started_at=started_at,
        last_heartbeat=last_heartbeat,
        completed_at=finished_at if is_failed else completed_at,
        task_id=task_id,
        retry_count=retry_count or 0,
        error_message=error.get("message"),
        user_message=error.get("user_message"),
        guidance=error.get("guidance"),
        category=error.get("category"),
        metrics=RunMetrics(
            files_parsed=files,
            stanzas_created=stanzas,
            duration_seconds=duration,
            parse_errors=errors,
            retry_count=retry_count or 0,
            error_type=error.get("error_type") if is_failed else None,
        ),
    )


def _error(execution_status: str | None, stored: str | None) -> dict[str, Any]:
    if execution_status is None:
        return {
            "error_type": "unknown",
            "message": "The history of this run has been removed.",
            "user_message": "What became of it is not known any more",
            "guidance": "Upload the file again.",
        }
    if execution_status == ExecutionStatus.CANCELLED:
        return {
            "error_type": "cancelled",
            "message": "The run was cancelled.",
            "user_message": "It was cancelled",
            "guidance": "Upload the file again, asking for a new run.",
        }
    return {} if stored is None else dict(msgspec.json.decode(stored))
