"""`holdfast batch`: many items through one pipeline, submitted, watched and ended as one."""

from __future__ import annotations

import asyncio
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import EXIT_FAILED, by_option, database_option, json_option, opened

if TYPE_CHECKING:
    from holdfast.cli.batch_adding import Adding
    from holdfast.cli.batch_watch import Look
    from holdfast.client import AnyEngine
    from holdfast.engine import Page

FILE_METAVAR = "[FILE|-]"


@click.group(short_help="Submit many items as one, and watch them.")
def batch() -> None:
    """Many items through one pipeline. They run like any others, and may wait for each other: at a barrier
    before a step, and in the waves in which a step's failures are retried."""


@batch.command(
    epilog="Example:  holdfast batch submit reports items.jsonl --key june --watch",
    short_help="Submit the items of a file or a pipe.",
)
@click.argument("pipeline")
@click.argument("file", required=False, metavar=FILE_METAVAR)
@click.option("--lane", type=click.Choice(["manual", "bulk"]), default="bulk", show_default=True,
              help="manual goes first: a person waits for it.")  # fmt: skip
@click.option(
    "--mode", type=click.Choice(["manual", "bulk", "auto"]), help="A tag for people.  [default: the lane]"
)
@click.option(
    "--key",
    metavar="TEXT",
    help="Idempotency key: the command can be repeated with it, and adds what is missing.",
)
@click.option("--no-close", is_flag=True, help="Leave it open: more items will be added.")
@click.option("--watch", "is_watching", is_flag=True, help="Watch it to its end, as `batch watch` does.")
@database_option
@json_option
def submit(
    pipeline: str,
    file: str | None,
    lane: str,
    mode: str | None,
    key: str | None,
    no_close: bool,
    is_watching: bool,
    url: str,
    as_json: bool,
) -> None:
    """Submit the items of FILE, or of stdin, to PIPELINE as one batch: one JSON value a line, or one JSON
    array. A file is checked to its end before anything is stored; a pipe as its lines come."""
    if no_close and is_watching:
        raise click.UsageError(
            "A batch that stays open has no end to watch: leave out --no-close or --watch."
        )
    _check_stdin(file)

    async def run() -> int:
        from holdfast.cli.batch_adding import Adding
        from holdfast.cli.batch_input import Source
        from holdfast.cli.batch_watch import watched
        from holdfast.pipelines.registry import taking_in

        async with opened(url) as engine:
            source = Source(file, engine.payload_bytes_max, lambda: taking_in(pipeline))
            # As in Batch.add_many of the Python API: where items are stored as they are, one can end what the
            # other has begun.
            item_key = None if key is None else "item"
            adding = Adding(engine, source, key=item_key, repeat=_command())
            adding.take_in = taking_in(pipeline, key)
            await adding.make(pipeline, lane=lane, mode=mode, key=key, is_closed=not no_close)
            if not as_json:
                await _tell_submitted(engine, adding, pipeline, is_open=no_close, is_watching=is_watching)
            if not is_watching:
                if as_json:
                    _show_added(adding, path=pipeline, created=adding.is_new, closed=not no_close)
                return 0
            assert adding.batch_id is not None
            return _show_end(await watched(engine, adding.batch_id, quiet=as_json), as_json)

    sys.exit(asyncio.run(run()))


@batch.command(
    epilog="Example:  holdfast batch add 7 more.jsonl", short_help="Add items to one that is open."
)
@click.argument("batch_id", type=int, metavar="BATCH")
@click.argument("file", required=False, metavar=FILE_METAVAR)
@click.option(
    "--key",
    metavar="TEXT",
    help="Idempotency key of these items, in this batch: the command can be repeated with it.",
)
@database_option
@json_option
def add(batch_id: int, file: str | None, key: str | None, url: str, as_json: bool) -> None:
    """Add the items of FILE, or of stdin, to BATCH, which must not be closed."""
    from holdfast.cli.going_on import typed
    from holdfast.cli.output import counted, hint, say

    _check_stdin(file)

    async def run() -> Adding:
        from holdfast.cli.batch_adding import Adding
        from holdfast.cli.batch_input import Source
        from holdfast.pipelines.registry import taking_in

        async with opened(url) as engine:
            row = await engine.batch(batch_id)
            pipeline = "" if row is None else row.path
            source = Source(file, engine.payload_bytes_max, lambda: taking_in(pipeline))
            adding = Adding(engine, source, key=key, repeat=_command())
            adding.take_in = taking_in(pipeline, None if key is None else f"{batch_id}\n{key}")
            await adding.add_to(batch_id)
            return adding

    adding = asyncio.run(run())
    if as_json:
        _show_added(adding)
        return
    known = adding.items - adding.added
    there = f"; {counted(known, 'item was', 'items were')} there already" if known else ""
    say(f"{counted(adding.added, 'item was', 'items were')} added to batch {batch_id}{there}.")
    hint(f"When all are there:  {typed(f'holdfast batch close {batch_id}')}")


@batch.command(epilog="Example:  holdfast batch close 7", short_help="Say that all its items are there.")
@click.argument("batch_id", type=int, metavar="BATCH")
@database_option
@json_option
def close(batch_id: int, url: str, as_json: bool) -> None:
    """Close BATCH: nothing can be added to it any more, and what waits for all of its items may begin."""
    from holdfast.cli.going_on import typed
    from holdfast.cli.output import hint, say, show_json

    async def run() -> bool:
        async with opened(url) as engine:
            return await engine.batches.close(batch_id)

    is_new = asyncio.run(run())
    if as_json:
        show_json({"id": batch_id, "closed": is_new})
        return
    say(f"Batch {batch_id} is closed." if is_new else f"Batch {batch_id} was closed before.")
    hint(f"How it goes:  {typed(f'holdfast batch watch {batch_id}')}")


@batch.command(epilog="Example:  holdfast batch cancel 7", short_help="Cancel all of it that still runs.")
@click.argument("batch_id", type=int, metavar="BATCH")
@click.option("--yes", is_flag=True, help="Do not ask.")
@by_option
@database_option
@json_option
def cancel(batch_id: int, yes: bool, by: str, url: str, as_json: bool) -> None:
    """Close BATCH and cancel each of its items that still runs; what was completed stays.

    Exit code 0 where it was cancelled, 1 where it had ended before.
    """
    if not yes and (as_json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise click.UsageError("Add --yes to cancel a batch without being asked.")
    sys.exit(asyncio.run(_cancel(url, batch_id, by, yes, as_json)))


async def _cancel(url: str, batch_id: int, by: str, yes: bool, as_json: bool) -> int:
    from holdfast.cli.output import agreed, counted, say, show_json

    async with opened(url) as engine:
        view = await engine.batches.view(batch_id, failed_max=1)
        running = view.executions["running"]
        if not view.is_over and not yes:
            left = counted(running, "item has not ended", "items have not ended")
            say(f"Batch {batch_id} of {view.path}: {left}.")
            if not agreed("Cancel all of it that still runs?"):
                return EXIT_FAILED
        cancelled = 0 if view.is_over else await engine.batches.cancel(batch_id, by=by)
    if as_json:
        show_json({"id": batch_id, "cancelled": not view.is_over, "items": cancelled})
    elif view.is_over:
        say(f"Batch {batch_id} is {view.status.value} already; nothing was changed.")
    else:
        say(f"Batch {batch_id} is cancelled, with {counted(cancelled, 'item')} that had not ended.")
    return EXIT_FAILED if view.is_over else 0


@batch.command(epilog="Example:  holdfast batch status 7", short_help="Show how far it is.")
@click.argument("batch_id", type=int, metavar="BATCH")
@database_option
@json_option
def status(batch_id: int, url: str, as_json: bool) -> None:
    """Show BATCH: how far each step is, what waits for what, what failed, when it may be over."""
    from holdfast.cli.batch_screen import show_batch
    from holdfast.cli.batch_watch import look_at
    from holdfast.cli.output import show_json

    async def look() -> Look:
        async with opened(url) as engine:
            return await look_at(engine, batch_id)

    found = asyncio.run(look())
    if as_json:
        show_json(found.view)
    else:
        show_batch(found.view, found.failures)


@batch.command(epilog="Example:  holdfast batch watch 7", short_help="Watch it to its end.")
@click.argument("batch_id", type=int, metavar="BATCH")
@database_option
@json_option
def watch(batch_id: int, url: str, as_json: bool) -> None:
    """Watch BATCH to its end: live on a terminal, in a pipe a line when something changed. Ctrl-C ends the
    watching, not the batch.

    Exit code 0 where all items completed, 1 where some failed or were cancelled.
    """
    from holdfast.cli.batch_watch import watched

    async def run() -> int:
        async with opened(url) as engine:
            return _show_end(await watched(engine, batch_id, quiet=as_json), as_json)

    sys.exit(asyncio.run(run()))


@batch.command(
    epilog="Example:  holdfast batch items 7 --status failed", short_help="List its items with their steps."
)
@click.argument("batch_id", type=int, metavar="BATCH")
@click.option(
    "--status", type=click.Choice(["running", "completed", "failed", "cancelled"]), help="Only these."
)
@click.option("--limit", type=int, default=20, show_default=True, help="Rows of a page.")
@click.option("--cursor", metavar="TEXT", help="Go on after the page before: its `next`.")
@database_option
@json_option
def items(batch_id: int, status: str | None, limit: int, cursor: str | None, url: str, as_json: bool) -> None:
    """List the items of BATCH in the order of their submission, each with the state of its steps."""
    from holdfast.cli.batch_screen import show_items
    from holdfast.cli.output import hint, say, show_json

    async def look() -> Page:
        async with opened(url) as engine:
            return await engine.batches.items(batch_id, status=status, limit=limit, cursor=cursor)  # type: ignore[arg-type]

    page = asyncio.run(look())
    if as_json:
        show_json(page)
    elif not page.items:
        say("No items match." if status or cursor else f"Batch {batch_id} has no items.")
    else:
        show_items(page.items)
        if page.next:
            hint(f"More:  --cursor {page.next}")


@batch.command("list", epilog="Example:  holdfast batch list", short_help="List batches, newest first.")
@click.option("--limit", type=int, default=20, show_default=True, help="Rows of a page.")
@click.option("--cursor", metavar="TEXT", help="Go on after the page before: its `next`.")
@database_option
@json_option
def list_batches(limit: int, cursor: str | None, url: str, as_json: bool) -> None:
    """List batches, newest first."""
    from holdfast.cli.batch_screen import batch_record, show_batches
    from holdfast.cli.output import hint, say, show_json

    async def look() -> tuple[Page, float]:
        async with opened(url) as engine:
            return await engine.batches.list(limit=limit, cursor=cursor), await engine.now()

    page, now = asyncio.run(look())
    if as_json:
        show_json({"items": [batch_record(row) for row in page.items], "next": page.next})
    elif not page.items:
        say("No batches.")
    else:
        show_batches(page.items, now)
        if page.next:
            hint(f"More:  --cursor {page.next}")


# what several of them do


def _check_stdin(file: str | None) -> None:
    """Without a name, a terminal would be waited for, and nobody would know why."""
    if file is None and sys.stdin.isatty():
        raise click.UsageError("Name a file with the items, or send them through a pipe.")


def _command() -> str:
    """What was typed, to be typed again; a password in it is not for logs."""
    from holdfast.core.masking import mask_secrets

    return mask_secrets(shlex.join(["holdfast", *sys.argv[1:]]))


def _show_added(adding: Adding, **more: Any) -> None:
    from holdfast.cli.output import show_json

    show_json({"id": adding.batch_id, "items": adding.items, "added": adding.added, **more})


async def _tell_submitted(
    engine: AnyEngine, adding: Adding, pipeline: str, *, is_open: bool, is_watching: bool
) -> None:
    from holdfast.cli.going_on import typed
    from holdfast.cli.output import counted, hint, say
    from holdfast.cli.submit import told_unoffered

    assert adding.batch_id is not None
    id_, known = adding.batch_id, adding.items - adding.added
    row = await engine.batch(id_)
    if row is not None and row.cancelled_at is not None:
        by = f" by {row.cancelled_by}" if row.cancelled_by else ""
        say(
            f"Batch {id_} of {pipeline} was submitted before with this key and is cancelled{by};"
            " nothing was added."
        )
    elif adding.is_new:
        say(f"Batch {id_} of {pipeline} is submitted, with {counted(adding.items, 'item')}.")
    elif not adding.added:
        say(f"Batch {id_} of {pipeline} was submitted before with this key; nothing was added.")
    else:
        told = f"{counted(adding.added, 'item was', 'items were')} added, {known:,} were there already"
        say(f"Batch {id_} of {pipeline} was begun before with this key: {told}.")
    if row is not None and row.is_running and (unoffered := await told_unoffered(engine, pipeline, row.lane)):
        hint(unoffered)
    if is_open:
        add, close = typed(f"holdfast batch add {id_} FILE"), typed(f"holdfast batch close {id_}")
        hint(f"It is open:  {add} , and at the end  {close}")
    elif not is_watching:
        hint(f"How it goes:  {typed(f'holdfast batch watch {id_}')}")


def _show_end(look: Look, as_json: bool) -> int:
    from holdfast.cli.batch_screen import show_batch
    from holdfast.cli.output import show_json

    view = look.view
    if as_json:
        show_json(view)
    else:
        show_batch(view, look.failures)
    return 0 if view.executions["completed"] == view.items else EXIT_FAILED
