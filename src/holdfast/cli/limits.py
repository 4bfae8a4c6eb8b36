"""`holdfast limits`: how much may run at once, seen and set while work goes on."""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import EXIT_FAILED, by_option, database_option, json_option, opened
from holdfast.core.limits import FLEET_LIMIT
from holdfast.core.model import Lane

if TYPE_CHECKING:
    from holdfast.engine.controls import LimitView


@click.group(short_help="Show and set how much may run at once.")
def limits() -> None:
    """Named limits hold for all processes together: a step that names one (limit="portal") runs at most so
    many times at once. The limit max_concurrency is over everything."""


@limits.command("list", epilog="Example:  holdfast limits list", short_help="Show the limits and their use.")
@database_option
@json_option
def list_limits(url: str, as_json: bool) -> None:
    """Show the limits: those that are set, and those that steps name and nobody has set."""
    from holdfast.cli.going_on import typed
    from holdfast.cli.output import hint, say, show_json

    async def look() -> tuple[list[LimitView], float]:
        async with opened(url) as engine:
            return await engine.controls.limits(), await engine.now()

    found, now = asyncio.run(look())
    if as_json:
        show_json({"items": found, "next": None})
    elif not found:
        say("No limits: everything runs as soon as a worker is free.")
    else:
        _show(found, now)
        # What only a pause names need not be set.
        named = [limit for limit in found if limit.steps or limit.pause is None]
        unset = [limit.name for limit in named if limit.max_concurrency is None]
        if unset:
            set_it = typed(f"holdfast limits set {unset[0]} N")
            hint(f"{', '.join(unset)}: not set, so nothing is limited.  {set_it}")


class SetCommand(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A negative number looks like an option, and would be refused as one that nobody knows."""
        for before, given in itertools.pairwise(["", *args]):
            if re.fullmatch(r"-\d+", given) and before not in ("--max-concurrency", "--manual-reserve"):
                raise click.UsageError(
                    f"A limit is a whole number from 1 on, not {given}. To stop all work under it, pause the"
                    " limit:  holdfast pause limit NAME",
                    ctx,
                )
        return super().parse_args(ctx, args)


@limits.command("set", cls=SetCommand, epilog="Example:  holdfast limits set portal 5 --manual-reserve 1")
@click.argument("name")
@click.argument("number", metavar="N", type=int, required=False)
@click.option("--max-concurrency", type=int, metavar="N", help="The same as N.")
@click.option(
    "--manual-reserve",
    type=int,
    metavar="R",
    help="How many of them bulk work leaves to manual work.  [default: 1 where N is more than 1]",
)
@by_option
@database_option
@json_option
def set_limit(
    name: str,
    number: int | None,
    max_concurrency: int | None,
    manual_reserve: int | None,
    by: str,
    url: str,
    as_json: bool,
) -> None:
    """Let at most N jobs under the limit NAME run at once, in all processes together. It holds from the next
    lease on; what runs goes on, even where that is more than N for a while."""
    from holdfast.cli.output import hint, say, show_json
    from holdfast.pipelines.registry import PIPELINES

    if number is None and max_concurrency is None:
        raise click.UsageError(f"How many may run at once? For example:  holdfast limits set {name} 5")
    if number is not None and max_concurrency is not None:
        raise click.UsageError("Give the number once: `holdfast limits set NAME N`.")

    async def run() -> LimitView:
        async with opened(url) as engine:
            most = number if max_concurrency is None else max_concurrency
            return await engine.controls.set_limit(name, most, manual_reserve, by=by)  # type: ignore[arg-type]

    view = asyncio.run(run())
    if as_json:
        show_json(view)
        return
    running = sum(view.in_use.values())
    say(f"Limit {view.name}: at most {view.max_concurrency} at once, {_told_reserve(view)}.")
    if view.max_concurrency is not None and running > view.max_concurrency:
        say(f"{running} run now; nothing new begins until that is less.")
    if view.manual_reserve == view.max_concurrency:
        hint("All of it is kept for manual work: bulk work under it will wait for ever.")
    known = {FLEET_LIMIT, *(pipeline.limit for pipeline in PIPELINES if pipeline.limit)}
    if not view.steps and view.name not in known:
        hint(f"No step that is registered names it yet; steps do so by limit: {view.name}")


@limits.command("remove", epilog="Example:  holdfast limits remove portal")
@click.argument("name")
@by_option
@database_option
@json_option
def remove_limit(name: str, by: str, url: str, as_json: bool) -> None:
    """Remove the limit NAME: steps that name it run without one.

    Exit code 1 where it was not set.
    """
    from holdfast.cli.output import say, show_json

    async def run() -> bool:
        async with opened(url) as engine:
            return await engine.controls.remove_limit(name, by=by)

    removed = asyncio.run(run())
    if as_json:
        show_json({"name": name, "removed": removed})
    else:
        say(f"Limit {name} is removed." if removed else f"Limit {name} was not set.")
    sys.exit(0 if removed else EXIT_FAILED)


def _show(found: list[LimitView], now: float) -> None:
    from holdfast.cli.output import WAITING, ago, table

    rows, styles = [], []
    for limit in found:
        if limit.pause is not None:
            state = "paused"
        elif limit.max_concurrency is None:
            state = "not set"
        else:
            state = "full" if any(map(limit.is_full, Lane)) else "free"
        rows.append(
            (
                limit.name,
                "-" if limit.max_concurrency is None else limit.max_concurrency,
                "-" if limit.manual_reserve is None else limit.manual_reserve,
                *limit.in_use.values(),
                f"{sum(limit.waiting.values()):,}",
                state,
                "all" if limit.name == FLEET_LIMIT else ", ".join(limit.steps),
                "" if limit.set_at is None else f"{limit.set_by or '?'}, {ago(limit.set_at, now)}",
            )
        )
        styles.append("" if state == "free" else WAITING)
    head = ("limit", "max", "reserve", "manual", "bulk", "waiting", "state", "steps", "set by")
    table(head, rows, styles=styles)


def _told_reserve(view: LimitView) -> str:
    if not view.manual_reserve:
        return "manual and bulk alike"
    return f"{view.manual_reserve} of them for manual work only"
