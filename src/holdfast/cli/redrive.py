"""`holdfast redrive`: start many failed executions again, once their cause is gone."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.dead import failure_options
from holdfast.cli.options import EXIT_FAILED, by_option, check_batch, database_option, json_option, opened

if TYPE_CHECKING:
    from holdfast.client import AnyEngine
    from holdfast.engine.redrive import Redriven

SHOWN_MAX = 5


@click.command(
    epilog="Example:  holdfast redrive --path invoices --error-type service_unavailable --dry-run",
    short_help="Start many failed executions again.",
)
@click.argument("executions", type=int, nargs=-1, metavar="[EXECUTION]...")
@failure_options
@click.option("--all", "is_all", is_flag=True, help="Everything that failed.")
@click.option("--force", is_flag=True, help="Also where the error is permanent: its cause has been repaired.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@by_option
@database_option
@json_option
def redrive(
    executions: tuple[int, ...],
    batch_id: int | None,
    path: str | None,
    step: str | None,
    error_type: str | None,
    dead_reason: str | None,
    is_all: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
    by: str,
    url: str,
    as_json: bool,
) -> None:
    """Start failed executions again at their failed stages: those named, or all that match. Completed
    stages are kept.

    It is for operators: the cap and the cooldown of single retries do not hold, and what fails with a
    permanent error needs --force. It may be interrupted and begun again.
    """
    given = {
        "path": path,
        "step": step,
        "error_type": error_type,
        "dead_reason": dead_reason,
        "batch_id": batch_id,
    }
    filters = {name: value for name, value in given.items() if value is not None}
    if sum([bool(executions), bool(filters), is_all]) != 1:
        raise click.UsageError(
            "Say which: numbers of executions, or filters (--path, --batch, --step, --error-type, --reason),"
            " or --all."
        )
    is_many = not executions
    ask = is_many and not dry_run and not yes
    if ask and (as_json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise click.UsageError("Add --yes to start many executions again without being asked.")
    chosen: dict[str, Any] = {
        "ids": None if is_many else list(executions),
        "force": force,
        "by": by,
        **filters,
    }
    answers = asyncio.run(_redrive(url, chosen, ask=ask, dry_run=dry_run))
    if as_json:
        _show_json(answers, dry_run)
    else:
        _show(answers, dry_run, force)
    sys.exit(0 if any(answer.is_redriven for answer in answers) else EXIT_FAILED)


async def _redrive(url: str, chosen: dict[str, Any], *, ask: bool, dry_run: bool) -> list[Redriven]:
    from holdfast.cli.output import agreed

    async with opened(url) as engine:
        await check_batch(engine, chosen.get("batch_id"))
        if ask:
            expected = await _answers(engine, chosen, dry_run=True)
            count = sum(answer.is_redriven for answer in expected)
            if not count:
                return expected
            _summarise(expected, is_done=False)
            if not agreed("Go on?"):
                sys.exit(EXIT_FAILED)
        return await _answers(engine, chosen, dry_run=dry_run)


async def _answers(engine: AnyEngine, chosen: dict[str, Any], *, dry_run: bool) -> list[Redriven]:
    answers: list[Redriven] = []
    show_progress = sys.stderr.isatty() and not dry_run
    async for batch in engine.redrive(dry_run=dry_run, **chosen):
        answers += batch
        if show_progress and len(answers) > len(batch):
            click.echo(f"\r{len(answers):,} …", nl=False, err=True)
    if show_progress and len(answers) > SHOWN_MAX:
        click.echo("\r\x1b[K", nl=False, err=True)
    return answers


def _show_json(answers: list[Redriven], dry_run: bool) -> None:
    from holdfast.cli.output import show_json

    count = sum(answer.is_redriven for answer in answers)
    show_json({"redriven": count, "refused": len(answers) - count, "dry_run": dry_run, "items": answers})


def _show(answers: list[Redriven], dry_run: bool, force: bool) -> None:
    from holdfast.cli.output import say

    if not answers:
        say("Nothing that failed matches.")
        return
    refused = [answer for answer in answers if not answer.is_redriven]
    _summarise(answers, is_done=not dry_run)
    for answer in refused[:SHOWN_MAX]:
        say(f"  {answer.execution_id}  {answer.code}: {answer.message} {answer.guidance}".rstrip(), "yellow")
    if len(refused) > SHOWN_MAX:
        say(f"  and {len(refused) - SHOWN_MAX:,} more; --json lists them all.")
    if not force and any(answer.code == "permanent_error" for answer in refused):
        say("Permanent errors are started again with --force, once their cause is repaired.")


def _summarise(answers: list[Redriven], *, is_done: bool) -> None:
    from holdfast.cli.output import counted, say

    codes = Counter(answer.code for answer in answers)
    redriven = codes.pop("redriven", 0)
    verb = ("was" if redriven == 1 else "were") if is_done else "would be"
    say(f"{counted(redriven, 'execution')} {verb} started again.")
    if codes:
        told = ", ".join(f"{count:,} {code}" for code, count in codes.most_common())
        say(f"{sum(codes.values()):,} refused: {told}.")
