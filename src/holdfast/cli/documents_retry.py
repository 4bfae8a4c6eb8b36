"""The work of `holdfast documents retry`: asked for, confirmed where results would be lost, or refused in
words that say what to type and when."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.documents_door import document_of, door_to
from holdfast.cli.documents_words import named
from holdfast.cli.going_on import advised, at, typed
from holdfast.cli.options import EXIT_FAILED, opened
from holdfast.cli.output import agreed, hint, say, show_json
from holdfast.cli.submit import told_unoffered
from holdfast.core.errors import RetryRefused
from holdfast.engine.manual_retry import RetryRequest
from holdfast.pipelines.documents.playbook import PATH, Stage

if TYPE_CHECKING:
    from holdfast.cli.documents_door import Door
    from holdfast.client import AnyEngine
    from holdfast.pipelines.documents.documents import DocumentDetails


class Retrying:
    def __init__(self, url: str, document_id: int, request: RetryRequest, *, as_json: bool) -> None:
        self._url = url
        self._id = document_id
        self._request = request
        self._as_json = as_json

    async def ask(self) -> int:
        """The exit code."""
        async with opened(self._url) as engine:
            door = await door_to(engine)
            document = await document_of(door, self._id)
            try:
                stage = await door.retry(document, self._request)
            except RetryRefused as refusal:
                if refusal.code != "confirmation_required" or self._as_json or not _can_ask():
                    raise await self._advised(engine, document, refusal) from None
                say(str(refusal))
                if not agreed("Discard it, and process the document from the beginning?"):
                    return EXIT_FAILED
                stage = await self._confirmed(engine, door, document)
            after = await door.details(self._id)
            execution = await engine.execution(self._id)
            unoffered = "" if execution is None else await told_unoffered(engine, PATH, execution.lane.value)
        if self._as_json:
            show_json(
                {
                    "id": self._id,
                    "status": after.status,
                    "from_stage": stage,
                    "manual_retries": after.manual_retries,
                }
            )
            return 0
        say(f"Document {self._id} ({named(document)}) is processed again, from {stage}.")
        if unoffered:
            hint(f"{unoffered}  {typed('holdfast worker')}" if self._url_is_database() else unoffered)
        hint(f"How it goes:  {typed(f'holdfast documents show {self._id}')}")
        return 0

    def _url_is_database(self) -> bool:
        from holdfast.addresses import is_server

        return not is_server(self._url)

    async def _confirmed(self, engine: AnyEngine, door: Door, document: DocumentDetails) -> Stage:
        try:
            return await door.retry(document, msgspec.structs.replace(self._request, confirm=True))
        except RetryRefused as refusal:
            raise await self._advised(engine, document, refusal) from None

    async def _advised(
        self, engine: AnyEngine, document: DocumentDetails, refusal: RetryRefused
    ) -> RetryRefused:
        request = self._request
        command = f"holdfast documents retry {self._id}"
        command += f" --from {request.from_stage}" if request.from_stage else ""
        command += " --full" if request.full else ""
        command += " --yes" if request.confirm else ""
        forced = f"{command} --force{at(self._url)}"
        if refusal.code == "confirmation_required":
            return RetryRefused(
                str(refusal),
                code="confirmation_required",
                guidance=f"Without --full it goes on from {document.stage}, and keeps it. To discard it:\n"
                f"  {command} --yes{' --force' if request.force else ''}{at(self._url)}",
            )
        if refusal.code == "not_failed":
            return _not_failed(document)
        again = forced if request.force else f"{command}{at(self._url)}"
        return advised(refusal, await engine.view(self._id), again, forced)


def _not_failed(document: DocumentDetails) -> RetryRefused:
    """Also where it was cancelled, or nothing is known of it any more: both are shown as failed."""
    again = typed("holdfast documents add FILE --again")
    status, guidance = document.status.value, f"Process the file anew, as a new document:  {again}"
    if status == "failed" and document.processing_error is not None:
        told = f"Document {document.id} cannot be retried: {document.processing_error.user_message.lower()}."
    else:
        told = f"Document {document.id} is {status}; only one that failed can be retried."
        if status != "complete":
            guidance = f"Wait until it has ended:  {typed(f'holdfast documents show {document.id}')}"
    return RetryRefused(told, code="not_failed", guidance=guidance)


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
