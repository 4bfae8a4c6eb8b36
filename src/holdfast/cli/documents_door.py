"""Documents, on a database or through a server: one door for the commands of `holdfast documents`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeAlias, cast

from holdfast.cli.going_on import typed
from holdfast.cli.uploading import LOOK_SECONDS, LOOK_SECONDS_AFAR, Source
from holdfast.core.errors import UnknownExecution
from holdfast.core.model import Lane
from holdfast.engine import Engine
from holdfast.engine.manual_retry import RetryRequest
from holdfast.pipelines.documents.documents import Document, DocumentDetails, Documents, DocumentStatus
from holdfast.pipelines.documents.intake import intake_for
from holdfast.pipelines.documents.parts import ChunkLine, FindingLine, chunks_of, findings_of
from holdfast.pipelines.documents.playbook import Stage
from holdfast.pipelines.documents.routes import DocumentRetried, UploadAnswer
from holdfast.pipelines.documents.search import Found, Search
from holdfast.pipelines.documents.settings import DocumentSettings
from holdfast.wire import Listed

if TYPE_CHECKING:
    from holdfast.client import AnyEngine, Client

ROUTE = "/api/documents"


class Sent(NamedTuple):
    """`is_new` is False where the same content was uploaded before."""

    id: int
    is_new: bool


class EngineDoor:
    """Documents on a database."""

    look_seconds = LOOK_SECONDS

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._documents = Documents(engine)
        self._intake = intake_for(engine)

    async def prepare(self) -> None:
        await self._documents.prepare()

    async def upload(self, name: str, file: Source, *, lane: str, again: bool) -> Sent:
        taken = await self._intake.take(name, file.pieces(), lane=Lane(lane), again=again)
        return Sent(taken.id, taken.created)

    async def page(self, *, status: str | None = None, before: int | None, limit: int) -> list[Document]:
        wanted = None if status is None else DocumentStatus(status)
        return await self._documents.page(status=wanted, before=before, limit=limit)

    async def details(self, document_id: int) -> DocumentDetails:
        return await self._documents.details(document_id)

    async def chunks(
        self,
        document: Document,
        *,
        after: int | None = None,
        numbers: Sequence[int] | None = None,
        limit: int,
    ) -> list[ChunkLine]:
        return await chunks_of(self._engine.store, document, after=after, numbers=numbers, limit=limit)

    async def findings(self, document: Document) -> list[FindingLine]:
        return await findings_of(self._engine.store, document)

    async def retry(self, document: Document, request: RetryRequest) -> Stage:
        """Gives the stage that it begins with."""
        return await self._documents.retry(document.id, request)

    async def search(self, query: str, *, document_id: int | None, limit: int) -> Found:
        search = Search(self._engine.store, DocumentSettings.from_environment())
        return await search.find(query, document_id=document_id, limit=limit)


class ServerDoor:
    """The same through a server."""

    look_seconds = LOOK_SECONDS_AFAR

    def __init__(self, client: Client) -> None:
        self._transport = client.transport

    async def prepare(self) -> None:
        pass

    async def upload(self, name: str, file: Source, *, lane: str, again: bool) -> Sent:
        body = cast(BinaryIO, file)
        answer = await self._transport.upload(ROUTE, name, body, UploadAnswer, lane=lane, again=again)
        file.check_received(answer.sha256, "document", answer.id)
        return Sent(answer.id, answer.created)

    async def page(self, *, status: str | None = None, before: int | None, limit: int) -> list[Document]:
        cursor = None if before is None else str(before)
        found: Listed[Document] = await self._transport.get(
            ROUTE, Listed[Document], status=status, cursor=cursor, limit=limit
        )
        return found.items

    async def details(self, document_id: int) -> DocumentDetails:
        found: DocumentDetails = await self._transport.get(f"{ROUTE}/{document_id}", DocumentDetails)
        return found

    async def chunks(
        self,
        document: Document,
        *,
        after: int | None = None,
        numbers: Sequence[int] | None = None,
        limit: int,
    ) -> list[ChunkLine]:
        found: Listed[ChunkLine] = await self._transport.get(
            f"{ROUTE}/{document.id}/chunks",
            Listed[ChunkLine],
            cursor=None if after is None else str(after),
            number=None if numbers is None else ",".join(map(str, numbers)),
            limit=limit,
        )
        return found.items

    async def findings(self, document: Document) -> list[FindingLine]:
        found: Listed[FindingLine] = await self._transport.get(
            f"{ROUTE}/{document.id}/findings", Listed[FindingLine]
        )
        return found.items

    async def retry(self, document: Document, request: RetryRequest) -> Stage:
        answer: DocumentRetried = await self._transport.send(
            "POST", f"{ROUTE}/{document.id}/retry", DocumentRetried, body=request
        )
        return answer.from_stage

    async def search(self, query: str, *, document_id: int | None, limit: int) -> Found:
        found: Found = await self._transport.get(
            f"{ROUTE}/search", Found, q=query, document_id=document_id, limit=limit
        )
        return found


Door: TypeAlias = EngineDoor | ServerDoor


async def door_to(engine: AnyEngine) -> Door:
    door: Door = EngineDoor(engine) if isinstance(engine, Engine) else ServerDoor(engine)
    await door.prepare()
    return door


async def document_of(door: Door, document_id: int) -> DocumentDetails:
    """Or an error that says where the numbers are."""
    try:
        return await door.details(document_id)
    except UnknownExecution as error:
        error.guidance = f"Those that there are:  {typed('holdfast documents list')}"
        raise
