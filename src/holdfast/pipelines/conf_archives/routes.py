"""The routes of configuration archives: files uploaded, runs, and what was read of them.

A run has the number of its execution, so what is done to executions in general (cancel, look at events) is
done at /api/executions by the same number.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Meta

from holdfast.core.access import Right
from holdfast.core.errors import PermanentError, TransientError
from holdfast.core.model import Lane
from holdfast.engine.checks import parse_cursor
from holdfast.engine.manual_retry import RetryRequest
from holdfast.pipelines.conf_archives.conf_parser import NAME_CHARS_MAX
from holdfast.pipelines.conf_archives.differences import StanzaDifference, differences
from holdfast.pipelines.conf_archives.effective import EffectiveStanza, effective
from holdfast.pipelines.conf_archives.intake import intake_for
from holdfast.pipelines.conf_archives.runs import NotComplete, Run, RunMetrics, Runs, RunsMetrics, RunStatus
from holdfast.pipelines.conf_archives.stanzas import RunFile, StanzaLine, StanzaReader, cursor_of
from holdfast.pipelines.upload_answers import check_fields, refused, while_admitted
from holdfast.server.api_batches import PageQuery
from holdfast.server.api_executions import RetryBody
from holdfast.server.endpoints import Answer, Ask, Family
from holdfast.server.problems import Refused
from holdfast.wire import Id, Listed

conf_archives = Family("Configuration archives")
endpoints = conf_archives.endpoints

FILES_MAX = 100
MERGED_AT_ONCE = 2  # each takes up to a hundred megabytes

Text = Annotated[str, Meta(max_length=1_000)]
StanzaName = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]


class UploadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`again` makes a new run of a file that was uploaded before. With `sha256`, in hexadecimal, the one file
    is taken in only if that is its checksum."""

    again: bool = False
    lane: Lane = Lane.MANUAL
    sha256: Annotated[str, Meta(pattern="^[0-9A-Fa-f]{64}$")] | None = None


class UploadedRun(msgspec.Struct, frozen=True, kw_only=True):
    run_id: int
    status: RunStatus
    created: bool
    filename: str
    size: int
    sha256: str


class UploadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`created` is false where the file was uploaded before: the run is the one of then. Of several files
    `run_id` is the first one's, and `runs` has all."""

    run_id: int
    status: RunStatus
    created: bool
    filename: str
    size: int
    sha256: str
    runs: list[UploadedRun]


class RunsQuery(PageQuery, frozen=True, kw_only=True):
    status: RunStatus | None = None


class FilesQuery(PageQuery, frozen=True, kw_only=True):
    """`errors` leaves out files that could be read without any."""

    conf: Text | None = None
    errors: bool = False


class StanzasQuery(PageQuery, frozen=True, kw_only=True):
    """`conf` is a file's name without its ending, `name` a stanza's. `q` are words that all stand in the
    stanza, in its name, its keys or its values; the beginning of a word is enough."""

    conf: Text | None = None
    name: StanzaName | None = None
    path: Text | None = None
    q: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None


class EffectiveQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`app` is the app's folder, or its last part; it may be left out where there is one. `name` keeps to one
    stanza."""

    app: Text | None = None
    conf: Text | None = None
    name: StanzaName | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 200
    cursor: Annotated[str, Meta(max_length=64)] | None = None


class DifferenceQuery(msgspec.Struct, frozen=True, kw_only=True):
    """From run `from` to this one."""

    from_: Id = msgspec.field(name="from")
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 200
    cursor: Annotated[str, Meta(max_length=6_000)] | None = None


class RunRetried(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is `retrying`, or `already_completed` where there is nothing left to do."""

    run_id: int
    status: str


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    run_id: int
    status: RunStatus
    task_id: str | None
    retry_count: int
    error_message: str | None
    error_traceback: str | None
    created_at: float
    started_at: float | None
    completed_at: float | None
    last_heartbeat: float | None
    metrics: RunMetrics


@conf_archives(
    "POST",
    "/v1/uploads",
    "Upload configuration: .tar, .tar.gz, .tgz, .spl, .tar.bz2, .tar.xz, .zip, or a single .conf",
    {202: UploadAnswer, 200: UploadAnswer},
    query=UploadQuery,
    upload=True,
    needs=Right.ACT,
)
async def upload(ask: Ask) -> Answer:
    assert ask.upload is not None
    runs = await _runs(ask)
    intake = intake_for(ask.engine)
    taken: list[UploadedRun] = []
    try:
        files_max = FILES_MAX if ask.query.sha256 is None else 1
        async for file in ask.upload.files(
            bytes_max=intake.bytes_max, files_max=files_max, too_large=intake.too_large
        ):
            check_fields(ask.upload.fields, "/v1/uploads")
            chunks = while_admitted(ask, file.chunks)
            made = await intake.take(
                file.filename,
                chunks,
                lane=ask.query.lane,
                again=ask.query.again,
                expected_sha256=ask.query.sha256,
            )
            run = await runs.get(made.id)
            taken.append(
                UploadedRun(
                    run_id=run.id,
                    status=run.status,
                    created=made.created,
                    filename=run.filename,
                    size=made.size,
                    sha256=made.sha256,
                )
            )
        check_fields(ask.upload.fields, "/v1/uploads")
    except (PermanentError, TransientError, Refused) as error:
        raise refused(error, [f"run {one.run_id} ({one.filename})" for one in taken]) from error
    first = msgspec.structs.asdict(taken[0])
    status = 202 if any(one.created for one in taken) else 200
    return Answer(UploadAnswer(**first, runs=taken), status, {"location": f"/v1/runs/{taken[0].run_id}"})


async def _runs(ask: Ask) -> Runs:
    runs = Runs(ask.engine)
    await runs.prepare()
    return runs


async def _reader(ask: Ask, run_id: int) -> StanzaReader:
    try:
        await (await _runs(ask)).completed(run_id)
    except NotComplete as error:
        raise Refused(409, error.code, str(error), error.guidance) from None
    return StanzaReader(ask.engine.store, run_id)


_merges: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def _merging() -> asyncio.Semaphore:
    """The turns of this server to hold much at once."""
    return _merges.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MERGED_AT_ONCE))


@conf_archives("GET", "/v1/runs", "Runs, newest first", Listed[Run], query=RunsQuery, needs=Right.LOOK)
async def list_runs(ask: Ask) -> Any:
    query = ask.query
    runs = await _runs(ask)
    found = await runs.page(status=query.status, before=parse_cursor(query.cursor), limit=query.limit)
    return Listed(items=found, next=str(found[-1].id) if len(found) == query.limit else None)


@conf_archives("GET", "/v1/runs/{id:int}", "One run: where it stands, and why", Run, needs=Right.LOOK)
async def show_run(ask: Ask) -> Any:
    return await (await _runs(ask)).get(ask.names["id"])


@conf_archives(
    "POST",
    "/v1/runs/{id:int}/retry",
    "Run a failed run on, from the stage that failed unless said otherwise",
    {202: RunRetried, 200: RunRetried},
    body=RetryBody,
    body_optional=True,
    needs=Right.ACT,
)
async def retry_run(ask: Ask) -> Answer:
    run = await (await _runs(ask)).get(ask.names["id"])
    if run.status is RunStatus.COMPLETE:
        return Answer(RunRetried(run_id=run.id, status="already_completed"))
    request = RetryRequest(**msgspec.structs.asdict(ask.body) | {"by": ask.by(ask.body.by)})
    await ask.engine.retry(run.id, request)
    return Answer(RunRetried(run_id=run.id, status="retrying"), 202)


@conf_archives(
    "GET",
    "/v1/runs/{id:int}/files",
    "The files that were read, with the lines that could not be",
    Listed[RunFile],
    query=FilesQuery,
    needs=Right.LOOK,
)
async def list_files(ask: Ask) -> Any:
    query = ask.query
    reader = await _reader(ask, ask.names["id"])
    after = parse_cursor(query.cursor)
    found = await reader.files(after=after, limit=query.limit, conf=query.conf, faulty=query.errors)
    return Listed(items=found.items, next=None if found.is_last else str(found.items[-1].id))


@conf_archives(
    "GET",
    "/v1/runs/{id:int}/stanzas",
    "Stanzas in the order of the archive: all, of one configuration, of one name, or those that have words",
    Listed[StanzaLine],
    query=StanzasQuery,
    needs=Right.LOOK,
)
async def list_stanzas(ask: Ask) -> Any:
    query = ask.query
    reader = await _reader(ask, ask.names["id"])
    found = await reader.stanzas(
        conf=query.conf,
        name=query.name,
        path=query.path,
        search=query.q,
        cursor=query.cursor,
        limit=query.limit,
    )
    return Listed(items=found.items, next=None if found.is_last else cursor_of(found.items[-1]))


@conf_archives(
    "GET",
    "/v1/runs/{id:int}/effective",
    "The effective configuration of an app: default and local merged, each key with its origin",
    Listed[EffectiveStanza],
    query=EffectiveQuery,
    needs=Right.LOOK,
)
async def show_effective(ask: Ask) -> Any:
    query = ask.query
    reader = await _reader(ask, ask.names["id"])
    begin = parse_cursor(query.cursor) or 0  # a run that is COMPLETE never changes
    async with _merging():
        found, end = await effective(
            reader, app=query.app, conf=query.conf, name=query.name, begin=begin, limit=query.limit
        )
    return Listed(items=found, next=None if end is None else str(end))


@conf_archives(
    "GET",
    "/v1/runs/{id:int}/diff",
    "What differs between an earlier run and this one, stanza by stanza",
    Listed[StanzaDifference],
    query=DifferenceQuery,
    needs=Right.LOOK,
)
async def show_difference(ask: Ask) -> Any:
    query = ask.query
    old, new = await _reader(ask, query.from_), await _reader(ask, ask.names["id"])
    async with _merging():
        found, next_ = await differences(old, new, cursor=query.cursor, limit=query.limit)
    return Listed(items=found, next=next_)


@conf_archives(
    "GET",
    "/v1/worker/runs/{id:int}/status",
    "A run as its worker sees it, with the trace of its last error",
    WorkerStatus,
    needs=Right.LOOK,
)
async def worker_status(ask: Ask) -> Any:
    runs = await _runs(ask)
    run = await runs.get(ask.names["id"])
    return WorkerStatus(
        run_id=run.id,
        status=run.status,
        task_id=run.task_id,
        retry_count=run.retry_count,
        error_message=run.error_message,
        error_traceback=await runs.traceback(run),
        created_at=run.created_at,
        started_at=run.started_at,
        completed_at=run.completed_at,
        last_heartbeat=run.last_heartbeat,
        metrics=run.metrics,
    )


@conf_archives(
    "GET",
    "/v1/worker/metrics",
    "Runs counted: by state, retries, durations, failures",
    RunsMetrics,
    needs=Right.LOOK,
)
async def worker_metrics(ask: Ask) -> Any:
    return await (await _runs(ask)).metrics()
