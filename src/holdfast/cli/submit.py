"""`holdfast submit`: a piece of work, from the command line and without the program's code."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import EXIT_FAILED, database_option, json_option, opened
from holdfast.core.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.engine import Engine, Submission


@click.command(
    epilog="Example:  holdfast submit invoices --set file=march.pdf --key march --wait",
    short_help="Submit work to a pipeline.",
)
@click.argument("pipeline")
@click.option(
    "--workload", metavar="JSON|@FILE|-", help="The input as JSON: given here, in a file, or on stdin."
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set one field of the input; may be repeated. Dots go deeper (customer.id=7). A value that is"
    " JSON is taken as such, anything else as text.",
)
@click.option("--lane", type=click.Choice(["manual", "bulk"]), default="bulk", show_default=True,
              help="manual goes first: a person waits for it.")  # fmt: skip
@click.option(
    "--mode", type=click.Choice(["manual", "bulk", "auto"]), help="A tag for people.  [default: the lane]"
)
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key never makes a second execution.")
@click.option("--delay", metavar="DURATION", default="0", help='Start later: 90, "90s", "15m", "2h".')
@click.option("--deadline", metavar="DURATION", help="Fail it when it has not ended by then.")
@click.option("--wait", "is_waiting", is_flag=True, help="Wait for its end; exit code 1 where it fails.")
@click.option(
    "--within", metavar="DURATION", help="Wait no longer than this; exit code 1 when it still runs."
)
@database_option
@json_option
def submit(
    pipeline: str,
    workload: str | None,
    settings: tuple[str, ...],
    lane: str,
    mode: str | None,
    key: str | None,
    delay: str,
    deadline: str | None,
    is_waiting: bool,
    within: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Submit work to PIPELINE, as it was registered last by a program that uses this database.

    Once it is submitted it will be run to its end, by whichever worker offers the pipeline's steps.
    """
    from holdfast.core.retry import parse_duration
    from holdfast.engine import Submission

    submission = Submission(
        path=pipeline,
        workload=read_workload(workload, settings),
        lane=lane,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        idempotency_key=key,
        delay_seconds=parse_duration(delay, field="delay"),
        deadline_seconds=None if deadline is None else parse_duration(deadline, field="deadline"),
    )
    seconds = None if within is None else parse_duration(within, field="within")
    sys.exit(asyncio.run(_submit(url, submission, is_waiting or within is not None, seconds, as_json)))


async def _submit(
    url: str, submission: Submission, is_waiting: bool, within: float | None, as_json: bool
) -> int:
    from holdfast.cli.execution_screen import (
        as_record,
        ended,
        show_execution,
        tell_left_waiting,
        tell_submitted,
    )
    from holdfast.cli.output import hint, say, show_json

    async with opened(url) as engine:
        [submitted] = await engine.submit([submission])
        if not as_json:
            tell_submitted(submitted.id, submission.path, created=submitted.created)
            if submitted.created and (
                unoffered := await told_unoffered(engine, submission.path, submission.lane)
            ):
                hint(unoffered)
        if not is_waiting:
            if as_json:
                show_json({"id": submitted.id, "created": submitted.created, "path": submission.path})
            else:
                hint(f"How it goes:  holdfast status {submitted.id}")
            return 0
        view = await ended(engine, submitted.id, within, quiet=as_json)
        if as_json:
            show_json({**as_record(view), "created": submitted.created})
        else:
            say()
            show_execution(view, await engine.store.now())
    if view.status == "running" and not as_json:
        tell_left_waiting(view)
    return 0 if view.status == "completed" else EXIT_FAILED


async def told_unoffered(engine: Engine, path: str, lane: str) -> str:
    """A sentence where no living worker offers the first step of this path's last version in this lane."""
    from holdfast.engine.controls import living_workers, offers
    from holdfast.playbook.definition import Definition
    from holdfast.playbook.graph import Graph

    [row] = await engine.store.latest_definitions(path, 1)
    definition = Definition.from_json(row.content)
    step = next((step for step in map(definition.step, Graph(definition).order) if not step.is_control), None)
    if step is None:
        return ""
    offered = offers(await living_workers(engine.store, await engine.store.now()))
    if (step.handler, step.lane or lane) in offered:
        return ""
    in_lane = f" in the {step.lane or lane} lane" if any(name == step.handler for name, _ in offered) else ""
    return f"No living worker offers its first step{in_lane}: it waits until one is started."


def read_workload(source: str | None, settings: tuple[str, ...]) -> Any:
    """The workload of `--workload`, with the fields of `--set` put into it."""
    import msgspec

    workload: Any = None
    if source is not None:
        text, where = _text_of(source)
        try:
            workload = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidInput(
                f"The workload {where} is not JSON: {error}.",
                guidance="""Write it like '{"file": "a.pdf"}', or use --set file=a.pdf.""",
            ) from None
    for setting in settings:
        workload = with_field(workload, setting)
    return workload


def _text_of(source: str) -> tuple[bytes, str]:
    if source == "-":
        return sys.stdin.buffer.read(), "on stdin"
    if not source.startswith("@"):
        return source.encode(errors="surrogateescape"), "of --workload"
    try:
        with open(source[1:], "rb") as file:
            return file.read(), f"in {source[1:]}"
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"The workload cannot be read from {source[1:]!r}: {getattr(error, 'strerror', None) or error}.",
            guidance="Check the name of the file; a relative one starts in this folder.",
        ) from None


def with_field(workload: Any, setting: str) -> Any:
    import msgspec

    name, equals, text = setting.partition("=")
    places = name.split(".")
    if not equals or not all(places):
        raise InvalidInput(f"--set {setting!r} is not KEY=VALUE.", guidance="For example --set file=a.pdf.")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        value = text
    whole = {} if workload is None else workload
    inner = whole
    for place in places[:-1]:
        inner = inner.setdefault(place, {}) if isinstance(inner, dict) else inner
    if not isinstance(inner, dict):
        raise InvalidInput(
            f"--set {name} has no place: the workload is no object there.",
            guidance="Fields can be set in objects only, not in lists, texts or numbers.",
        )
    inner[places[-1]] = value
    return whole
