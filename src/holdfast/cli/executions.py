"""`holdfast executions`: the list, newest first; where the numbers come from that other commands take."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import check_batch, database_option, json_option, opened

if TYPE_CHECKING:
    from holdfast.core.model import ExecutionRow
    from holdfast.engine import Page


@click.command(
    epilog="Example:  holdfast executions --status failed --path invoices",
    short_help="List executions, newest first.",
)
@click.option(
    "--status", type=click.Choice(["running", "completed", "failed", "cancelled"]), help="Only these."
)
@click.option("--path", metavar="PIPELINE", help="Only of this pipeline.")
@click.option("--batch", "batch_id", type=int, metavar="BATCH", help="Only items of this batch.")
@click.option("--limit", type=int, default=20, show_default=True, help="Rows of a page.")
@click.option("--cursor", metavar="TEXT", help="Go on after the page before: its `next`.")
@database_option
@json_option
def executions(
    status: str | None,
    path: str | None,
    batch_id: int | None,
    limit: int,
    cursor: str | None,
    url: str,
    as_json: bool,
) -> None:
    """List executions, newest first."""
    from holdfast.cli.output import hint, say, show_json

    async def look() -> tuple[Page, float]:
        async with opened(url) as engine:
            await check_batch(engine, batch_id)
            page = await engine.executions(
                status=status,  # type: ignore[arg-type]
                path=path,
                batch_id=batch_id,
                limit=limit,
                cursor=cursor,
            )
            return page, await engine.now()

    page, now = asyncio.run(look())
    if as_json:
        show_json(page)
        return
    if not page.items:
        is_all = (status, path, batch_id) == (None, None, None)
        say("No executions." if is_all else "No executions match.")
        return
    _show(page.items, now)
    if page.next:
        hint(f"More:  --cursor {page.next}")


def _show(items: list[ExecutionRow], now: float) -> None:
    from holdfast.cli.output import STATUS_STYLES, ago, span, table

    table(
        ("id", "pipeline", "status", "submitted", "took", "last stage done", "error"),
        [
            (
                item.id,
                item.path,
                item.status.value,
                ago(item.created_at, now),
                span(item.finished_at - item.created_at) if item.finished_at else "",
                item.last_completed_stage or "",
                f"{item.error.error_type} at {item.error.stage}" if item.error else "",
            )
            for item in items
        ],
        styles=[STATUS_STYLES.get(item.status.value, "") for item in items],
    )
