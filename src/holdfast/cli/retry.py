"""`holdfast retry`: run a failed execution on, from its failed stage or an earlier one."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import EXIT_FAILED, by_option, database_option, json_option, opened
from holdfast.core.errors import RetryRefused

if TYPE_CHECKING:
    from holdfast.client import AnyEngine


@click.command(epilog="Example:  holdfast retry 42 --from embed", short_help="Run a failed execution on.")
@click.argument("execution", type=int)
@click.option(
    "--from", "from_stage", metavar="STAGE", help="An earlier stage; it and what follows runs again."
)
@click.option("--full", is_flag=True, help="From the first stage on; what was done before is discarded.")
@click.option("--confirm", is_flag=True, help="Discard the results that a full retry would lose.")
@click.option("--force", is_flag=True, help="Also where the error is permanent: its cause has been repaired.")
@by_option
@database_option
@json_option
def retry(
    execution: int,
    from_stage: str | None,
    full: bool,
    confirm: bool,
    force: bool,
    by: str,
    url: str,
    as_json: bool,
) -> None:
    """Run the failed EXECUTION on, from the stage that failed. Stages that were completed are kept.

    Refused with exit code 2 where it would not help or is too early; the sentence says why and what to do.
    """
    from holdfast.cli.going_on import advised, at, typed
    from holdfast.cli.output import agreed, hint, say, show_json

    options = f"{f' --from {from_stage}' if from_stage else ''}{' --full' if full else ''}"
    command = f"holdfast retry {execution}{options}{' --confirm' if confirm else ''}"

    async def run() -> tuple[int, str]:
        from holdfast.engine import RetryRequest

        async with opened(url) as engine:
            sure = confirm
            while True:
                request = RetryRequest(from_stage=from_stage, full=full, confirm=sure, force=force, by=by)
                try:
                    await engine.retry(execution, request)
                    break
                except RetryRefused as refusal:
                    if refusal.code != "confirmation_required" or as_json or not _can_ask():
                        view = await engine.view(execution)
                        forced = f"{command} --force{at(url)}"
                        again = forced if force else f"{command}{at(url)}"
                        raise advised(_with_option(refusal), view, again, forced) from None
                    say(str(refusal))
                    if not agreed("Discard them and run it from the beginning?"):
                        sys.exit(EXIT_FAILED)
                    sure = True
            return (await engine.view(execution)).execution.round, await _began_at(engine, execution)

    round_, stage = asyncio.run(run())
    if as_json:
        show_json({"id": execution, "round": round_, "from_stage": stage})
    else:
        say(f"Execution {execution} runs again from {stage} (round {round_}).")
        hint(f"How it goes:  {typed(f'holdfast status {execution} --wait')}")


async def _began_at(engine: AnyEngine, execution_id: int) -> str:
    """The stage that the last retry by hand began at."""
    from holdfast.core.model import EventType

    stage, last = "", None
    while page := await engine.events(execution_id, after=last):
        last = page[-1].id
        for event in page:
            if event.type is EventType.MANUAL_RETRY:
                stage = event.data["from_stage"]
    return stage


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _with_option(refusal: RetryRefused) -> RetryRefused:
    """The refusal, its guidance in terms of this command."""
    from holdfast.cli.output import sentence

    if refusal.code == "confirmation_required":
        refusal.guidance = f"{sentence(refusal.guidance)} Add --confirm to discard them.".strip()
    return refusal
