"""`holdfast pause` and `holdfast resume`: begin nothing new somewhere, and go on with it."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from holdfast.cli.options import EXIT_FAILED, by_option, database_option, json_option, opened

if TYPE_CHECKING:
    from holdfast.core.pauses import Pause


class Kind(click.Choice[str]):
    def fail(self, message: str, param: Any = None, ctx: Any = None) -> NoReturn:
        everything = "To pause everything:  holdfast pause limit max_concurrency"
        super().fail(f"{message.rstrip('.')}. {everything}", param, ctx)


KINDS = Kind(("step", "playbook", "lane", "limit"))


@click.command(
    epilog='Example:  holdfast pause step reports/download --reason "portal maintenance"',
    short_help="Begin nothing new of a step, a playbook, a lane or a limit.",
)
@click.argument("kind", type=KINDS)
@click.argument("name")
@click.option("--reason", default="", metavar="TEXT", help="Why, on one line, for those who will wonder.")
@click.option("--force", is_flag=True, help="Also where no pipeline is known to have it.")
@by_option
@database_option
@json_option
def pause(kind: str, name: str, reason: str, force: bool, by: str, url: str, as_json: bool) -> None:
    """Lease nothing new of a step (PIPELINE/STEP), a playbook (PIPELINE), a lane (manual, bulk) or a limit;
    `limit max_concurrency` is everything. What runs goes on to its end; what waits stays where it is, until
    `holdfast resume`.

    A name that nobody knows is refused with exit code 2. What is paused already stays as it is.
    """
    from holdfast.cli.output import hint, say, show_json

    async def run() -> tuple[Pause, float]:
        async with opened(url) as engine:
            made = await engine.controls.pause(kind, name, by=by, reason=reason, force=force)
            return made, await engine.now()

    made, now = asyncio.run(run())
    if as_json:
        show_json(made)
        return
    if made.already:
        say(f"{_beginning(made)} is {told_pause(made, now)}. It was paused already and stays so.")
    else:
        say(f"{_beginning(made)} is paused. Nothing new begins there; what runs goes on.")
    hint(f"Go on with it:  {resume_command(made)}")


@click.command(
    epilog="Example:  holdfast resume step reports/download",
    short_help="Go on with what was paused.",
)
@click.argument("kind", type=KINDS)
@click.argument("name")
@by_option
@database_option
@json_option
def resume(kind: str, name: str, by: str, url: str, as_json: bool) -> None:
    """End the pause of a step (PIPELINE/STEP), a playbook, a lane or a limit: what waits there may run.

    Exit code 1 where it was not paused.
    """
    from holdfast.cli.output import say, show_json, span

    async def run() -> tuple[Pause | None, list[Pause], float]:
        async with opened(url) as engine:
            ended = await engine.controls.resume(kind, name, by=by)
            return ended, await engine.controls.pauses(), await engine.now()

    ended, left, now = asyncio.run(run())
    if as_json:
        show_json({"resumed": ended})
    elif ended is not None:
        who = f" by {ended.by}" if ended.by else ""
        say(f"{_beginning(ended)} goes on. It was paused{who} for {span(now - ended.since)}.")
    else:
        say(f"{kind.capitalize()} {name} was not paused.")
        if left:
            say(f"Paused are: {', '.join(pause.what for pause in left)}.")
    sys.exit(0 if ended is not None else EXIT_FAILED)


def told_pause(pause: Pause, now: float) -> str:
    """`paused by ann since 2026-01-02 12:40:00 (2 h ago): portal maintenance`"""
    from holdfast.cli.output import moment
    from holdfast.core.describe import paused_by

    return paused_by(pause, moment(pause.since, now))


def resume_command(pause: Pause) -> str:
    import shlex

    from holdfast.cli.going_on import typed

    return typed(f"holdfast resume {pause.kind.value} {shlex.quote(pause.name)}")


def _beginning(pause: Pause) -> str:
    return pause.what[0].upper() + pause.what[1:]
