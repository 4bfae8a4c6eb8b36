"""The routes of documents: uploaded, looked at, searched, retried.

A document has the number of its execution, so what is done to executions in general (cancel, look at events)
is done at /api/executions by the same number.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.access import Right
from holdfast.core.errors import PermanentError, TransientError
from holdfast.core.model import Lane, RetryNote
from holdfast.engine.checks import parse_cursor
from holdfast.engine.manual_retry import RetryRequest
from holdfast.pipelines.documents.documents import (
    Document,
    DocumentDetails,
    Documents,
    DocumentStatus,
    RetryAllowed,
)
from holdfast.pipelines.documents.findings.finding import Kind as FindingKind
from holdfast.pipelines.documents.intake import intake_for
from holdfast.pipelines.documents.parts import ChunkLine, FindingLine, chunks_of, findings_of
from holdfast.pipelines.documents.playbook import Stage
from holdfast.pipelines.documents.reading.chunk import DocumentKind
from holdfast.pipelines.documents.search import LIMIT_MAX, Found, search_of
from holdfast.pipelines.upload_answers import check_fields, refused, while_admitted
from holdfast.server.api_batches import PageQuery
from holdfast.server.endpoints import Answer, Ask, Family
from holdfast.server.problems import Refused
from holdfast.wire import Id, Listed

documents = Family("Documents")
endpoints = documents.endpoints

FILES_MAX = 1_000

Text = Annotated[str, Meta(max_length=1_000)]


class UploadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`again` makes a new document of content that was uploaded before. With `sha256`, in hexadecimal, the
    one file is taken in only if that is its checksum."""

    again: bool = False
    lane: Lane = Lane.MANUAL
    sha256: Annotated[str, Meta(pattern="^[0-9A-Fa-f]{64}$")] | None = None


class UploadedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`created` is false where the same content was uploaded before: the document is the one of then."""

    id: int
    created: bool
    filename: str
    size: int
    sha256: str
    status: DocumentStatus


class UploadAnswer(UploadedDocument, frozen=True, kw_only=True):
    """The first document, and all of them as `items`."""

    items: list[UploadedDocument]
    next: None = None


class DocumentsQuery(PageQuery, frozen=True, kw_only=True):
    status: DocumentStatus | None = None


class ChunksQuery(PageQuery, frozen=True, kw_only=True):
    """`number` keeps to those that a finding points to."""

    number: Annotated[str, Meta(max_length=1_000, pattern="^[0-9]{1,9}(,[0-9]{1,9})*$")] | None = None


class FindingsQuery(msgspec.Struct, frozen=True, kw_only=True):
    kind: FindingKind | None = None


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`q` are words, and "words in quotes" that stand together; meaning is searched as well. `document_id`
    keeps to one document, `kind` to pdf, docx, xlsx or txt."""

    q: Annotated[str, Meta(min_length=1, max_length=10_000)]
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 20
    document_id: Id | None = None
    kind: DocumentKind | None = None


class RetryHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The last ten attempts that failed, newest last; how often it was retried by itself and by hand, and
    whether a person may retry it now."""

    id: int
    items: list[RetryNote]
    next: None = None
    retry_count: int
    manual_retries: int
    retry: RetryAllowed


class RetryBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """From the failed stage, from an earlier one, or all of it (`full`, with `confirm` where results would be
    lost); `force` where the error is permanent and its cause repaired."""

    from_stage: Stage | None = None
    full: bool = False
    confirm: bool = False
    force: bool = False
    by: Annotated[str, Meta(max_length=200)] = ""


class StageRetryBody(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    document_id: Id
    force: bool = False
    by: Annotated[str, Meta(max_length=200)] = ""


class DocumentRetried(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    status: DocumentStatus
    from_stage: Stage
    manual_retries: int


@documents(
    "POST",
    "/api/documents",
    "Upload documents: PDF, XLSX, DOCX, TXT",
    {202: UploadAnswer, 200: UploadAnswer},
    query=UploadQuery,
    upload=True,
    needs=Right.ACT,
)
async def upload(ask: Ask) -> Answer:
    assert ask.upload is not None
    known = await _documents(ask)
    intake = intake_for(ask.engine)
    taken: list[UploadedDocument] = []
    try:
        files_max = FILES_MAX if ask.query.sha256 is None else 1
        async for file in ask.upload.files(
            bytes_max=intake.bytes_max, files_max=files_max, too_large=intake.too_large
        ):
            check_fields(ask.upload.fields, "/api/documents")
            made = await intake.take(
                file.filename,
                while_admitted(ask, file.chunks),
                lane=ask.query.lane,
                again=ask.query.again,
                expected_sha256=ask.query.sha256,
            )
            document = await known.get(made.id)
            taken.append(
                UploadedDocument(
                    id=document.id,
                    created=made.created,
                    filename=document.filename,
                    size=made.size,
                    sha256=made.sha256,
                    status=document.status,
                )
            )
        check_fields(ask.upload.fields, "/api/documents")
    except (PermanentError, TransientError, Refused) as error:
        raise refused(error, [f"document {one.id} ({one.filename})" for one in taken]) from error
    first = msgspec.structs.asdict(taken[0])
    status = 202 if any(one.created for one in taken) else 200
    return Answer(UploadAnswer(**first, items=taken), status, {"location": f"/api/documents/{taken[0].id}"})


async def _documents(ask: Ask) -> Documents:
    found = Documents(ask.engine)
    await found.prepare()
    return found


@documents(
    "GET",
    "/api/documents",
    "Documents, newest first",
    Listed[Document],
    query=DocumentsQuery,
    needs=Right.LOOK,
)
async def list_documents(ask: Ask) -> Any:
    query = ask.query
    found = await (await _documents(ask)).page(
        status=query.status, before=parse_cursor(query.cursor), limit=query.limit
    )
    return Listed(items=found, next=str(found[-1].id) if len(found) == query.limit else None)


@documents(
    "GET",
    "/api/documents/search",
    "Search all documents, by words and by meaning: the best places first, each with a snippet",
    Found,
    query=SearchQuery,
    needs=Right.LOOK,
)
async def search(ask: Ask) -> Any:
    query = ask.query
    return await search_of(ask.engine.store).find(
        query.q, limit=query.limit, document_id=query.document_id, kind=query.kind
    )


@documents(
    "GET",
    "/api/documents/{id:int}",
    "One document: where it stands, why, and what can be done",
    DocumentDetails,
    needs=Right.LOOK,
)
async def show_document(ask: Ask) -> Any:
    return await (await _documents(ask)).details(ask.names["id"])


@documents(
    "GET",
    "/api/documents/{id:int}/retry-history",
    "The attempts at a document that failed",
    RetryHistory,
    needs=Right.LOOK,
)
async def show_retry_history(ask: Ask) -> Any:
    document = await (await _documents(ask)).details(ask.names["id"])
    return RetryHistory(
        id=document.id,
        items=list(document.retry_history),
        retry_count=document.retry_count,
        manual_retries=document.manual_retries,
        retry=document.retry,
    )


@documents(
    "GET",
    "/api/documents/{id:int}/chunks",
    "The text of a document, in chunks, each with its place",
    Listed[ChunkLine],
    query=ChunksQuery,
    needs=Right.LOOK,
)
async def list_chunks(ask: Ask) -> Any:
    query = ask.query
    document = await (await _documents(ask)).get(ask.names["id"])
    numbers = None if query.number is None else [int(number) for number in query.number.split(",")]
    found = await chunks_of(
        ask.engine.store, document, after=parse_cursor(query.cursor), numbers=numbers, limit=query.limit
    )
    return Listed(items=found, next=str(found[-1].number) if len(found) == query.limit else None)


@documents(
    "GET",
    "/api/documents/{id:int}/findings",
    "What was found in a document, each with the chunks that it stands in",
    Listed[FindingLine],
    query=FindingsQuery,
    needs=Right.LOOK,
)
async def list_findings(ask: Ask) -> Any:
    document = await (await _documents(ask)).get(ask.names["id"])
    return Listed(items=await findings_of(ask.engine.store, document, kind=ask.query.kind))


@documents(
    "POST",
    "/api/documents/{id:int}/retry",
    "Process a failed document again, from the stage that failed unless said otherwise",
    {202: DocumentRetried},
    body=RetryBody,
    body_optional=True,
    needs=Right.ACT,
)
async def retry_document(ask: Ask) -> Answer:
    return await _retried(ask, ask.names["id"], ask.body)


@documents(
    "POST",
    "/api/processing/retry/embedding",
    "Process a failed document again, from its embedding",
    {202: DocumentRetried},
    body=StageRetryBody,
    needs=Right.ACT,
)
async def retry_embedding(ask: Ask) -> Answer:
    body = RetryBody(from_stage=Stage.EMBEDDING, force=ask.body.force, by=ask.body.by)
    return await _retried(ask, ask.body.document_id, body)


@documents(
    "POST",
    "/api/processing/retry/analysis",
    "Process a failed document again, from its analysis",
    {202: DocumentRetried},
    body=StageRetryBody,
    needs=Right.ACT,
)
async def retry_analysis(ask: Ask) -> Answer:
    body = RetryBody(from_stage=Stage.ANALYZING, force=ask.body.force, by=ask.body.by)
    return await _retried(ask, ask.body.document_id, body)


async def _retried(ask: Ask, document_id: int, body: RetryBody) -> Answer:
    known = await _documents(ask)
    asked = msgspec.structs.asdict(body) | {
        "by": ask.by(body.by),
        "from_stage": None if body.from_stage is None else body.from_stage.value,
    }
    begins = await known.retry(document_id, RetryRequest(**asked))
    document = await known.get(document_id)
    return Answer(
        DocumentRetried(
            id=document.id,
            status=document.status,
            from_stage=begins,
            manual_retries=document.manual_retries,
        ),
        202,
    )
