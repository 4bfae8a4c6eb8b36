"""`holdfast documents list`: a row for each, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.cli.documents_door import door_to
from holdfast.cli.documents_words import STYLES, badge, told_size
from holdfast.cli.going_on import typed
from holdfast.cli.options import opened
from holdfast.cli.output import ago, clipped, hint, say, show_json, table
from holdfast.engine.checks import parse_cursor

if TYPE_CHECKING:
    from holdfast.pipelines.documents.documents import Document

NAME_CHARS = 40
ERROR_CHARS = 80


async def list_all(url: str, *, status: str | None, limit: int, cursor: str | None, as_json: bool) -> None:
    before = parse_cursor(cursor)
    async with opened(url) as engine:
        door = await door_to(engine)
        found = await door.page(status=status, before=before, limit=limit)
        now = await engine.now()
    following = str(found[-1].id) if len(found) == limit else None
    if as_json:
        show_json({"items": found, "next": following})
    elif found:
        _show(found, now)
        if following:
            hint(f"More:  --cursor {following}")
    elif status is not None or cursor is not None:
        say("No documents match.")
    else:
        say("No documents.")
        hint(f"Upload some:  {typed('holdfast documents add FILE_OR_FOLDER')}")


def _show(found: Sequence[Document], now: float) -> None:
    table(
        ("id", "status", "kind", "size", "uploaded", "name", "error"),
        [
            (
                document.id,
                badge(document),
                document.kind or "",
                told_size(document.size),
                ago(document.created_at, now),
                clipped(document.filename, NAME_CHARS),
                _error(document),
            )
            for document in found
        ],
        styles=[STYLES.get(document.status.value, "") for document in found],
    )


def _error(document: Document) -> str:
    error = document.processing_error
    return "" if error is None else clipped(error.user_message, ERROR_CHARS)
