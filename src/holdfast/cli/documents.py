"""`holdfast documents`: documents from files, with what is in them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from holdfast.cli.options import by_option, database_option, json_option

STATUSES = ("pending", "parsing", "embedding", "analyzing", "retrying", "failed", "complete")
STAGES = ("parsing", "embedding", "analyzing")


@click.group(short_help="Upload documents, search them, see what is in them.")
def documents() -> None:
    """PDF, XLSX, DOCX and TXT: parsed, embedded and analyzed; searched by words and by meaning."""


@documents.command(
    epilog="Example:  holdfast documents add contracts/ report.pdf",
    short_help="Upload files and folders, and process them.",
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
@click.option("--again", is_flag=True, help="Make new documents of what was uploaded before.")
@click.option("--lane", type=click.Choice(["manual", "bulk"]), default="manual", show_default=True,
              help="manual goes first: a person waits for it.")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Upload only: a worker will process them.")
@database_option
@json_option
def add(paths: tuple[Path, ...], again: bool, lane: str, no_wait: bool, url: str, as_json: bool) -> None:
    """Upload each PATH, a file or a folder with all that is in it, and wait until it is processed.

    Of a folder the files are taken that could be documents; a file that is named itself always is. The same
    content is the same document. The exit code is 0 where all are complete, 1 where some have failed.
    """
    from holdfast.cli.documents_add import Adding

    adding = Adding(url, paths, again=again, lane=lane, is_waiting=not no_wait, as_json=as_json)
    sys.exit(adding.to_its_end())


@documents.command(
    "list",
    epilog="Example:  holdfast documents list --status failed",
    short_help="List them, newest first.",
)
@click.option("--status", type=click.Choice(STATUSES), help="Only these.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Rows of a page.")
@click.option("--cursor", help="Go on after the page before: its `next`.")
@database_option
@json_option
def list_documents(status: str | None, limit: int, cursor: str | None, url: str, as_json: bool) -> None:
    """List documents, newest first: where they stand, and of those that failed the reason."""
    from holdfast.cli.documents_list import list_all

    asyncio.run(list_all(url, status=status, limit=limit, cursor=cursor, as_json=as_json))


@documents.command(
    epilog="Example:  holdfast documents show 7", short_help="Show where one stands, and what is in it."
)
@click.argument("document_id", type=int, metavar="ID")
@click.option("--chunks", is_flag=True, help="Its text, too, piece by piece.")
@database_option
@json_option
def show(document_id: int, chunks: bool, url: str, as_json: bool) -> None:
    """Show the document ID: where it stands, what to do about it, what is in it."""
    from holdfast.cli.documents_show import show_one

    asyncio.run(show_one(url, document_id, with_chunks=chunks, as_json=as_json))


@documents.command(
    epilog="Example:  holdfast documents retry 7", short_help="Process one again that has failed."
)
@click.argument("document_id", type=int, metavar="ID")
@click.option("--from", "from_stage", type=click.Choice(STAGES),
              help="An earlier stage; it and what follows runs again.")  # fmt: skip
@click.option("--full", is_flag=True, help="From the beginning; what was done before is discarded.")
@click.option("--yes", is_flag=True, help="Do not ask before results are discarded.")
@click.option("--force", is_flag=True, help="Also where the error is permanent: its cause has been repaired.")
@by_option
@database_option
@json_option
def retry(
    document_id: int,
    from_stage: str | None,
    full: bool,
    yes: bool,
    force: bool,
    by: str,
    url: str,
    as_json: bool,
) -> None:
    """Process the failed document ID again, from the stage that failed. What was done before that is kept.

    Refused with exit code 2 where it would not help or is too early; the sentence says why and what to do.
    """
    from holdfast.cli.documents_retry import Retrying
    from holdfast.engine.manual_retry import RetryRequest

    if full and from_stage:
        raise click.UsageError("--full begins with the first stage: leave out --from.")
    request = RetryRequest(from_stage=from_stage, full=full, confirm=yes, force=force, by=by)
    sys.exit(asyncio.run(Retrying(url, document_id, request, as_json=as_json).ask()))


@documents.command(
    epilog="Example:  holdfast documents search notice period --limit 5",
    short_help="Find passages, by words and by meaning.",
)
@click.argument("words", nargs=-1, required=True, metavar="WORDS...")
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Passages.")
@click.option("--document", "document_id", type=int, metavar="ID", help="Only in this one.")
@database_option
@json_option
def search(words: tuple[str, ...], limit: int, document_id: int | None, url: str, as_json: bool) -> None:
    """Find the passages that have these WORDS, or mean the same, the best first."""
    from holdfast.cli.documents_search import search_for

    query = " ".join(words)
    asyncio.run(search_for(url, query, limit=limit, document_id=document_id, as_json=as_json))
