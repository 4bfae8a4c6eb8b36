"""`holdfast dead`: what failed and waits for somebody, in groups of the same cause, or one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.options import check_batch, database_option, json_option, opened

if TYPE_CHECKING:
    from holdfast.engine import Page
    from holdfast.store.interface import FailureGroup

Command = TypeVar("Command", bound=Callable[..., Any])

REASONS = (
    *("exhausted", "permanent", "stopped", "not_retryable", "unknown_limit", "poisoned"),
    "deadline",
)


def failure_options(command: Command) -> Command:
    """The filters of `dead` and `redrive`."""
    for option in (
        click.option("--reason", "dead_reason", type=click.Choice(REASONS), help="Why it was given up."),
        click.option("--error-type", metavar="TYPE", help="Only this type of error, such as timeout."),
        click.option("--step", metavar="STAGE", help="Only what failed at this stage."),
        click.option("--path", metavar="PIPELINE", help="Only of this pipeline."),
        click.option("--batch", "batch_id", type=int, metavar="BATCH", help="Only items of this batch."),
    ):
        command = option(command)
    return command


@click.command(
    epilog="Example:  holdfast dead --path invoices --list", short_help="Show what failed, in groups."
)
@failure_options
@click.option("--list", "is_list", is_flag=True, help="One row for each execution instead of groups.")
@click.option("--limit", type=int, default=50, show_default=True, help="Rows of a page.")
@click.option("--cursor", metavar="TEXT", help="With --list: go on after the page before, its `next`.")
@database_option
@json_option
def dead(
    batch_id: int | None,
    path: str | None,
    step: str | None,
    error_type: str | None,
    dead_reason: str | None,
    is_list: bool,
    limit: int,
    cursor: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Show what failed for good and was not retried since, in groups of the same pipeline, stage, type of
    error and reason; the largest group first."""
    from holdfast.cli.output import GOOD, say, show_json

    if cursor is not None and not is_list:
        raise click.UsageError("--cursor goes with --list.")
    filters: dict[str, Any] = {
        "path": path,
        "step": step,
        "error_type": error_type,
        "dead_reason": dead_reason,
        "batch_id": batch_id,
    }

    async def look() -> tuple[Page, float]:
        from holdfast.engine import Page

        async with opened(url) as engine:
            await check_batch(engine, batch_id)
            now = await engine.now()
            if is_list:
                return await engine.failures(limit=limit, cursor=cursor, **filters), now
            return Page(await engine.failure_groups(limit=limit, **filters)), now

    page, now = asyncio.run(look())
    if as_json:
        show_json({"items": [item._asdict() for item in page.items], "next": page.next})
    elif not page.items:
        say(
            "Nothing that failed matches." if set(filters.values()) != {None} else "Nothing has failed.", GOOD
        )
    elif is_list:
        _show_list(page, now)
    else:
        _show_groups(page.items, now, "" if batch_id is None else f" --batch {batch_id}")


def _show_list(page: Page, now: float) -> None:
    from holdfast.cli.output import ago, clipped, hint, table

    table(
        ("execution", "pipeline", "stage", "error", "reason", "failed", "message"),
        [
            (
                item.execution_id,
                item.path,
                item.step,
                item.error_type,
                item.dead_reason,
                ago(item.failed_at, now),
                clipped(item.message, 120),
            )
            for item in page.items
        ],
    )
    if page.next:
        hint(f"More:  --cursor {page.next}")


def _show_groups(groups: list[FailureGroup], now: float, batch: str) -> None:
    from holdfast.cli.going_on import typed
    from holdfast.cli.output import clipped, hint, table

    table(
        ("count", "pipeline", "stage", "error", "reason", "failed", "example", "message"),
        [
            (
                f"{group.executions:,}",
                group.path,
                group.step,
                group.error_type,
                group.dead_reason,
                _between(group, now),
                group.example,
                clipped(group.message, 80),
            )
            for group in groups
        ],
    )
    first = groups[0]
    force = " --force" if first.category == "permanent" else ""
    chosen = f"--path {first.path} --error-type {first.error_type}{batch}"
    hint(f"Look at one:         {typed(f'holdfast status {first.example}')}")
    hint(f"One by one:          {typed(f'holdfast dead --list {chosen}')}")
    hint(f"Start a group again: {typed(f'holdfast redrive {chosen}{force}')}")


def _between(group: FailureGroup, now: float) -> str:
    from holdfast.cli.output import ago, span

    last = ago(group.last_at, now)
    first = span(max(now - group.first_at, 0.0))
    return last if last.startswith(first) else f"{first} to {last}"
