"""`holdfast audit`: who did what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import database_option, json_option, opened
from holdfast.core.audit import Deed

if TYPE_CHECKING:
    from holdfast.core.audit import AuditRow
    from holdfast.engine import Page


@click.command(
    epilog='Example:  holdfast audit --target "execution 17"',
    short_help="Show who retried, cancelled, paused, changed limits.",
)
@click.option("--actor", metavar="NAME", help="Only what this one did, as the list names it.")
@click.option("--action", type=click.Choice([deed.value for deed in Deed]), help="Only this.")
@click.option("--target", metavar="TEXT", help='Only to this thing: "execution 17", "limit portal".')
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="How many.")
@click.option("--cursor", metavar="CURSOR", help="Go on behind the page before.")
@database_option
@json_option
def audit(
    actor: str | None,
    action: str | None,
    target: str | None,
    limit: int,
    cursor: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Show what people did, the latest first: retries, cancels, pauses, limits, tokens. Each entry was
    written in the transaction that did it, and is never changed."""
    from holdfast.cli.output import hint, say, show_json

    async def look() -> tuple[Page, float]:
        async with opened(url) as engine:
            found = await engine.audit(limit=limit, cursor=cursor, actor=actor, action=action, target=target)
            return found, await engine.now()

    page, now = asyncio.run(look())
    if as_json:
        show_json({"items": page.items, "next": page.next})
    elif not page.items:
        say(
            "Nobody has done any of that."
            if any(one is not None for one in (actor, action, target))
            else "Nobody has done anything yet."
        )
    else:
        _show(page.items, now)
        if page.next is not None:
            hint(f"There is more:  --cursor {page.next}")


def _show(found: list[AuditRow], now: float) -> None:
    from holdfast.cli.output import moment, table

    rows = [
        (
            moment(row.at, now),
            row.actor or "?",
            row.action.replace("_", " "),
            row.target,
            ", ".join(f"{name} {value}" for name, value in row.details.items()),
        )
        for row in found
    ]
    table(("when", "who", "did", "to", "details"), rows)
