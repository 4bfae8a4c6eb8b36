"""`holdfast cancel`: end executions that still run."""

from __future__ import annotations

import asyncio
import sys

import click

from holdfast.cli.options import EXIT_FAILED, EXIT_REFUSED, by_option, database_option, json_option, opened
from holdfast.core.errors import UnknownExecution

Answer = dict[str, object]


@click.command(epilog="Example:  holdfast cancel 42 43", short_help="Cancel running executions.")
@click.argument("executions", type=int, nargs=-1, required=True, metavar="EXECUTION...")
@by_option
@database_option
@json_option
def cancel(executions: tuple[int, ...], by: str, url: str, as_json: bool) -> None:
    """Cancel each EXECUTION that still runs. A handler at work is told at its next heartbeat, and what it
    reports is dropped; what was completed stays.

    Exit code 0 where something was cancelled, 1 where nothing ran any more, 2 where a number is unknown.
    """
    from holdfast.cli.output import say, show_json

    answers = asyncio.run(_cancel(url, executions, by))
    if as_json:
        show_json({"items": answers})
    else:
        for answer in answers:
            say(str(answer["message"]))
    codes = {answer["code"] for answer in answers}
    if "unknown_execution" in codes:
        sys.exit(EXIT_REFUSED)
    sys.exit(0 if "cancelled" in codes else EXIT_FAILED)


async def _cancel(url: str, ids: tuple[int, ...], by: str) -> list[Answer]:
    answers: list[Answer] = []
    async with opened(url) as engine:
        for id_ in dict.fromkeys(ids):
            try:
                if await engine.cancel(id_, by=by):
                    code, message = "cancelled", f"Execution {id_} is cancelled."
                else:
                    status = (await engine.view(id_)).status.value
                    code, message = (
                        "not_running",
                        f"Execution {id_} is {status} already; nothing was changed.",
                    )
            except UnknownExecution as error:
                code, message = error.code, f"{error} {error.guidance}"
            answers.append({"id": id_, "code": code, "message": message})
    return answers
