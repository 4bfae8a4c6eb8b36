"""Documents as people look at them: what is stored of one together with what has become of its execution."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from holdfast.core.catalogue import Category
from holdfast.core.describe import retrying
from holdfast.core.errors import HoldfastError, RetryRefused, UnknownExecution
from holdfast.core.failures import StoredError
from holdfast.core.model import ExecutionStatus, JobRow, JobStatus, RetryNote
from holdfast.engine import Engine
from holdfast.engine.checks import is_id
from holdfast.engine.manual_retry import COOLDOWN_SECONDS, MANUAL_RETRIES_MAX, RetryRequest
from holdfast.pipelines.documents.playbook import Stage
from holdfast.pipelines.documents.reading.chunk import Facts
from holdfast.pipelines.documents.tables import engine_table, status_in, tables_for
from holdfast.pipelines.documents.vector_tables import vector_tables_for
from holdfast.store.tables import Row

GIVEN_UP = "what became of its execution"
"""The rule of what stands in the place of an error where it did not fail: nothing can be resumed."""


class DocumentStatus(StrEnum):
    """`retrying` is the time between a failed attempt and the next; while that runs, its stage is told."""

    PENDING = "pending"
    PARSING = "parsing"
    EMBEDDING = "embedding"
    ANALYZING = "analyzing"
    RETRYING = "retrying"
    FAILED = "failed"
    COMPLETE = "complete"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One upload. Its `id` is that of its execution. `summary` says in plain words where it stands. Of one
    that has failed, or whose stage is retried, `processing_error` says what happened and what to do, and its
    category whether it can heal; while a retry waits, `retry_at` is when it is due."""

    id: int
    filename: str
    size: int
    sha256: str
    kind: str | None
    title: str | None
    status: DocumentStatus
    last_completed_stage: str | None
    stage: Stage | None
    summary: str
    progress: float | None
    processing_error: StoredError | None
    retry_count: int
    retry_at: float | None
    manual_retries: int
    chunks: int
    findings: int
    embedding_model: str | None
    created_at: float
    started_at: float | None
    last_heartbeat: float | None
    parsed_at: float | None
    embedded_at: float | None
    analyzed_at: float | None
    completed_at: float | None


class RetryAllowed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a person may retry it now, and else why not, in words. `resumes_at` is the stage that a retry
    begins with unless another one is asked for; `retries_left` are those by hand."""

    allowed: bool
    reason: str | None
    resumes_at: Stage | None
    retries_left: int
    cooldown_until: float | None


class DocumentDetails(Document, frozen=True, kw_only=True):
    """`embedded_chunks` counts vectors that are stored, also of an embedding that is under way or failed."""

    facts: Facts | None
    embedded_chunks: int
    retry_history: tuple[RetryNote, ...]
    retry: RetryAllowed


_COLUMNS = """d.id, d.filename, d.size, d.sha256, d.kind, d.title, {status}, d.last_completed_stage,
    d.chunks, d.findings, d.embedding_model, d.created_at, d.started_at, d.last_heartbeat, d.parsed_at,
    d.embedded_at, d.analyzed_at, d.completed_at, e.status, e.retry_count, e.manual_retries, e.error,
    d.facts, e.last_manual_retry_at"""

_WORKED_ON = frozenset(
    {DocumentStatus.PARSING, DocumentStatus.EMBEDDING, DocumentStatus.ANALYZING, DocumentStatus.RETRYING}
)
_LIVE = (JobStatus.QUEUED, JobStatus.LEASED, JobStatus.RETRY)
_STAGES = {stage.value: stage for stage in Stage}
_NEXT_STAGES = {
    None: Stage.PARSING,
    "parsed": Stage.EMBEDDING,
    "embedded": Stage.ANALYZING,
    "analyzed": Stage.ANALYZING,
}
_EXECUTION = re.compile(r"\bExecution(?= [0-9])")
_ERROR = msgspec.json.Decoder(StoredError)
_FACTS = msgspec.json.Decoder(Facts)


class Documents:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store
        dialect = self._store.dialect
        self._status = status_in(dialect)
        self._columns = _COLUMNS.format(status=self._status)
        executions = engine_table(dialect, "executions")
        self._from = f"FROM holdfast_documents d LEFT JOIN {executions} e ON e.id = d.id"

    async def prepare(self) -> None:
        """Make the tables: whoever looks before anything was uploaded sees nothing, and no error."""
        await self._store.make_tables(tables_for(self._store.dialect))
        await self._store.make_tables(vector_tables_for(self._store.dialect))

    async def page(
        self, *, status: DocumentStatus | None = None, before: int | None = None, limit: int = 100
    ) -> list[Document]:
        """Newest first; `before` is the last id of the page before."""
        conditions, values = ["d.id < $1"], [before if before is not None else 2**63 - 1, limit]
        if status is DocumentStatus.COMPLETE:
            conditions.append("d.completed_at IS NOT NULL")
        elif status is not None:
            conditions.append(f"d.completed_at IS NULL AND {self._status} = $3")
            values.append(status.value)  # type: ignore[arg-type]
        found = await self._store.fetch_rows(
            f"SELECT {self._columns} {self._from} WHERE {' AND '.join(conditions)}"
            " ORDER BY d.id DESC LIMIT $2",
            *values,
        )
        jobs = await self._live_jobs(found)
        return [_document(row, jobs.get(row[0])) for row in found]

    async def get(self, document_id: int) -> Document:
        row = await self._row(document_id)
        return _document(row, (await self._live_jobs([row])).get(document_id))

    async def details(self, document_id: int) -> DocumentDetails:
        row = await self._row(document_id)
        document = _document(row, (await self._live_jobs([row])).get(document_id))
        execution = await self._engine.execution(document_id)
        [(embedded,)] = await self._store.fetch_rows(
            "SELECT count(*) FROM holdfast_document_embeddings WHERE document_id = $1", document_id
        )
        return DocumentDetails(
            **msgspec.structs.asdict(document),
            facts=None if row[22] is None else _FACTS.decode(row[22]),
            embedded_chunks=embedded,
            retry_history=() if execution is None else execution.retry_history,
            retry=_retry_allowed(document, row[23], await self._engine.now()),
        )

    async def retry(self, document_id: int, request: RetryRequest) -> Stage:
        """The stage that it begins with; or RetryRefused, in words about documents."""
        document = await self.details(document_id)
        # Where a round has done nothing the engine knows of no loss. What else stands in the way comes first.
        if request.full and not request.confirm and _may_be_retried(document, request) and _loss(document):
            raise RetryRefused(
                f"A full retry of document {document_id} discards what was done: {_loss(document)}.",
                code="confirmation_required",
                guidance=f"Confirm it, or retry from {document.stage} to keep it.",
            )
        try:
            await self._engine.retry(document_id, request)
        except HoldfastError as error:  # the engine knows it as an execution
            if isinstance(error, RetryRefused) and error.code == "not_failed" and not _is_worked_on(document):
                error.guidance = "To process its file anew, upload it again with again=true."
            error.args = (_EXECUTION.sub("Document", str(error)), *error.args[1:])
            raise
        if request.full:
            return Stage.PARSING
        return Stage(request.from_stage) if request.from_stage else document.stage or Stage.PARSING

    async def _row(self, document_id: int) -> Row:
        found: list[Row] = []
        if is_id(document_id):
            found = await self._store.fetch_rows(
                f"SELECT {self._columns} {self._from} WHERE d.id = $1", document_id
            )
        if not found:
            raise UnknownExecution(
                f"There is no document {document_id}.",
                guidance="Documents are listed by GET /api/documents, newest first.",
            )
        return found[0]

    async def _live_jobs(self, rows: Sequence[Row]) -> dict[int, JobRow]:
        """Of those that are worked on, or wait for that: the job of the stage they are at."""
        ids = [row[0] for row in rows if row[6] in _WORKED_ON]
        if not ids:
            return {}
        return {job.execution_id: job for job in await self._store.jobs_of(ids) if job.status in _LIVE}


def _may_be_retried(document: DocumentDetails, request: RetryRequest) -> bool:
    retry, error = document.retry, document.processing_error
    if retry.allowed or not request.force:
        return retry.allowed
    is_failed = document.status is DocumentStatus.FAILED and error is not None and error.rule != GIVEN_UP
    return is_failed and retry.retries_left > 0 and retry.cooldown_until is None


def _is_worked_on(document: Document) -> bool:
    return document.status is DocumentStatus.PENDING or document.status in _WORKED_ON


def _loss(document: DocumentDetails) -> str:
    counts = (
        (document.chunks, "chunk"),
        (document.embedded_chunks, "vector"),
        (document.findings, "finding"),
    )
    parts = [f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _document(row: Row, job: JobRow | None) -> Document:
    (id_, filename, size, sha256, kind, title, status_text, last_completed_stage, chunks, findings) = row[:10]
    (model, created_at, started_at, last_heartbeat, parsed_at, embedded_at, analyzed_at) = row[10:17]
    completed_at, execution_status, retry_count, manual_retries, stored = row[17:22]
    status = DocumentStatus(status_text)
    error = None if status is DocumentStatus.COMPLETE else _error(id_, execution_status, stored, row)
    stage = _stage(status, job, error)
    is_leased = job is not None and job.status is JobStatus.LEASED
    return Document(
        id=id_,
        filename=filename,
        size=size,
        sha256=sha256,
        kind=kind,
        title=title,
        status=status,
        last_completed_stage=last_completed_stage,
        stage=stage,
        summary=_summary(status, job, stage, error),
        progress=job.progress if job is not None and is_leased else None,
        processing_error=error,
        retry_count=retry_count or 0,
        retry_at=job.available_at if job is not None and job.status is JobStatus.RETRY else None,
        manual_retries=manual_retries or 0,
        chunks=chunks,
        findings=findings,
        embedding_model=model,
        created_at=created_at,
        started_at=started_at,
        last_heartbeat=max(filter(None, (last_heartbeat, job.last_heartbeat if job else None)), default=None),
        parsed_at=parsed_at,
        embedded_at=embedded_at,
        analyzed_at=analyzed_at,
        completed_at=completed_at,
    )


def _stage(status: DocumentStatus, job: JobRow | None, error: StoredError | None) -> Stage | None:
    if status in (DocumentStatus.COMPLETE, DocumentStatus.PENDING):
        return None
    name = job.step if job is not None else error.stage if error is not None else ""
    return _STAGES.get(name)


def _summary(
    status: DocumentStatus, job: JobRow | None, stage: Stage | None, error: StoredError | None
) -> str:
    if status is DocumentStatus.RETRYING and job is not None:
        return retrying(job.attempts, job.max_attempts)
    if status is DocumentStatus.FAILED and error is not None:
        if error.rule == GIVEN_UP or stage is None:
            return error.user_message
        return f"Failed at {stage}: {error.user_message}. {error.guidance}"
    if status is DocumentStatus.PENDING:
        return "Waiting to be parsed"
    if job is not None and job.status is JobStatus.LEASED and job.attempts > 1:
        return f"{status.capitalize()} (retry {job.attempts - 1} of {job.max_attempts - 1})"
    if job is not None and job.status is JobStatus.QUEUED:
        return f"Waiting for {status}"
    return status.capitalize()


def _error(
    document_id: int, execution_status: str | None, stored: str | None, row: Row
) -> StoredError | None:
    if execution_status is None:
        return _ended(
            "unknown",
            f"The history of document {document_id} has been removed.",
            "What became of it is not known any more",
            "Upload the file again, asking for a new document.",
            row,
        )
    if execution_status == ExecutionStatus.CANCELLED:
        return _ended(
            "cancelled",
            f"Document {document_id} was cancelled.",
            "It was cancelled",
            "Upload the file again, asking for a new document.",
            row,
        )
    return None if stored is None else _ERROR.decode(stored)


def _ended(error_type: str, message: str, user_message: str, guidance: str, row: Row) -> StoredError:
    """In the shape of an error, for what is none."""
    return StoredError(
        error_type=error_type,
        category=Category.PERMANENT,
        message=message,
        stage=_NEXT_STAGES[row[7]].value,
        timestamp=row[13] or row[11],
        retry_count=row[19] or 0,
        user_message=user_message,
        guidance=guidance,
        rule=GIVEN_UP,
        stack_trace="",
        final=True,
    )


def _retry_allowed(document: Document, last_manual_retry_at: float | None, now: float) -> RetryAllowed:
    """As the engine would answer now, in its order."""
    error, left = document.processing_error, MANUAL_RETRIES_MAX - document.manual_retries
    is_given_up = error is not None and error.rule == GIVEN_UP
    cooldown_until = None
    if last_manual_retry_at is not None and now < last_manual_retry_at + COOLDOWN_SECONDS:
        cooldown_until = last_manual_retry_at + COOLDOWN_SECONDS
    reason = None
    if document.status is DocumentStatus.COMPLETE:
        reason = "It is complete."
    elif document.status is not DocumentStatus.FAILED:
        reason = "It is still being processed."
    elif error is not None and error.category is Category.PERMANENT:
        reason = f"Retrying will not help: {error.user_message}. {error.guidance}"
    elif left <= 0:
        reason = f"It was retried {document.manual_retries} times by hand, which is the most."
    elif cooldown_until is not None:
        reason = f"It was retried by hand less than {COOLDOWN_SECONDS:g} seconds ago."
    return RetryAllowed(
        allowed=reason is None,
        reason=reason,
        resumes_at=document.stage if document.status is DocumentStatus.FAILED and not is_given_up else None,
        retries_left=max(0, left),
        cooldown_until=cooldown_until,
    )
