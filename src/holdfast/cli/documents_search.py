"""`holdfast documents search`: passages, each with its place, the matches marked on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.documents_door import document_of, door_to
from holdfast.cli.documents_words import NAME_CHARS, told_place
from holdfast.cli.going_on import typed
from holdfast.cli.options import opened
from holdfast.cli.output import (
    DIM,
    HEAD,
    WAITING,
    clipped,
    hint,
    is_terminal,
    new_console,
    say,
    sentence,
    show_json,
    shown,
)
from holdfast.cli.uploading import quiet
from holdfast.core.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.pipelines.documents.search import Found, Hit

MATCH_STYLE = f"bold {WAITING}"
QUERY_CHARS = 100
HEADING_CHARS = 80


async def search_for(url: str, query: str, *, limit: int, document_id: int | None, as_json: bool) -> None:
    if not query.strip():
        raise InvalidInput(
            "There is nothing to search for.", guidance="Give words:  holdfast documents search WORDS"
        )
    async with opened(url) as engine:
        door = await door_to(engine)
        if document_id is not None:
            await document_of(door, document_id)  # nothing found in none would pass for an answer
        with quiet():
            found = await door.search(query, document_id=document_id, limit=limit)
        has_any = bool(found.items) or bool(await door.page(before=None, limit=1))
    if as_json:
        show_json(found)
        return
    if not has_any:
        say("There are no documents yet.")
        hint(f"Upload some:  {typed('holdfast documents add FILE_OR_FOLDER')}")
        return
    for place, hit in enumerate(found.items):
        if place:
            say()
        _show(hit)
    _tell_what_was_compared(found, query, document_id)


def _tell_what_was_compared(found: Found, query: str, document_id: int | None) -> None:
    if not found.items:
        where = "" if document_id is None else f" in document {document_id}"
        say(f"Nothing was found{where} for {clipped(repr(query), QUERY_CHARS)}.")
        hint("Try fewer words, or others. Documents are found once they are parsed:")
        hint(f"  {typed('holdfast documents list')}")
    if not found.vectors:
        why = f" {sentence(found.reason)}" if found.reason else ""
        hint(f"Only words were compared, not what they mean.{why}")


def _show(hit: Hit) -> None:
    where = ", ".join(filter(None, [clipped(hit.filename, NAME_CHARS), told_place(hit)]))
    heading = clipped(hit.heading, HEADING_CHARS) if hit.heading else ""
    if not is_terminal():
        click.echo(shown(f"{where}{f' ({heading})' if heading else ''}; document {hit.document_id}"))
        click.echo(f"  {shown(' '.join(hit.snippet.split()))}")
        return
    from rich.padding import Padding
    from rich.text import Text

    head = Text(shown(where), HEAD)
    if heading:
        head.append(f"  {shown(heading)}", "not bold")
    head.append(f"  document {hit.document_id}", f"not bold {DIM}")
    console = new_console()
    console.print(head)
    snippet = Text()
    for text, is_match in pieces(hit.snippet, hit.matches):
        snippet.append(shown(text), MATCH_STYLE if is_match else "")
    console.print(Padding(snippet, (0, 0, 0, 2)))


def pieces(text: str, matches: Sequence[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """The text, cut where matches begin and end."""
    last = 0
    for start, end in sorted(matches):
        if start >= last:
            yield text[last:start], False
            yield text[start:end], True
            last = end
    yield text[last:], False
