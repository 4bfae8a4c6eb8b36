"""`holdfast queue`: the jobs, oldest first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import database_option, json_option, opened

if TYPE_CHECKING:
    from holdfast.core.model import JobRow
    from holdfast.engine import Page


@click.command(
    epilog="Example:  holdfast queue --status retry --lane manual", short_help="List jobs, oldest first."
)
@click.option(
    "--status",
    type=click.Choice(["queued", "leased", "retry", "done", "dead", "cancelled"]),
    help="Only these; dead ones that were retried since are left out.",
)
@click.option("--lane", type=click.Choice(["manual", "bulk"]), help="Only of this lane.")
@click.option("--due", is_flag=True, help="Only what waits for nothing but a worker, a pause or a limit.")
@click.option(
    "--reason",
    type=click.Choice(["exhausted", "permanent", "stopped", "not_retryable", "unknown_limit", "poisoned"]),
    help="Only dead ones with this reason.",
)
@click.option("--limit", type=int, default=20, show_default=True, help="Rows of a page.")
@click.option("--cursor", metavar="TEXT", help="Go on after the page before: its `next`.")
@database_option
@json_option
def queue(
    status: str | None,
    lane: str | None,
    due: bool,
    reason: str | None,
    limit: int,
    cursor: str | None,
    url: str,
    as_json: bool,
) -> None:
    """List jobs, oldest first: one row for each stage of each execution, in every state."""
    from holdfast.cli.output import hint, say, show_json

    async def look() -> tuple[Page, float]:
        async with opened(url) as engine:
            now = await engine.now()
            page = await engine.queue(
                status=status,
                lane=lane,
                dead_reason=reason,
                due_at=now if due else None,
                limit=limit,
                cursor=cursor,
            )
            return page, now

    page, now = asyncio.run(look())
    if as_json:
        show_json(page)
        return
    if not page.items:
        say("No jobs match." if status or lane or due or reason else "No jobs.")
        return
    _show(page.items, now)
    if page.next:
        hint(f"More:  --cursor {page.next}")


def _show(items: list[JobRow], now: float) -> None:
    from holdfast.cli.output import STATUS_STYLES, stage_name, table

    table(
        ("job", "execution", "pipeline", "stage", "status", "attempts", "lane", "when", "worker"),
        [
            (
                item.queue_id,
                item.execution_id,
                item.path,
                stage_name(item.step, item.element, item.visit),
                f"dead, {item.dead_reason.value}" if item.dead_reason else item.status.value,
                f"{item.attempts}/{item.max_attempts}",
                item.lane.value,
                _when(item, now),
                item.worker_id or "",
            )
            for item in items
        ],
        styles=[STATUS_STYLES.get(item.status.value, "") for item in items],
    )


def _when(job: JobRow, now: float) -> str:
    from holdfast.cli.output import ago, span

    if job.finished_at is not None:
        return ago(job.finished_at, now)
    if job.held_by is not None:
        return f"held by {job.held_by}"
    if job.status.value == "leased":
        late = (job.lease_until or now) < now
        return f"lease ended {ago(job.lease_until or now, now)}" if late else "running"
    return (
        f"ready for {span(now - job.available_at)}" if job.available_at <= now else ago(job.available_at, now)
    )
