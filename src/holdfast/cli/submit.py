"""`holdfast submit`: a piece of work, from the command line and without the program's code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import EXIT_FAILED, database_option, json_option, opened
from holdfast.core.errors import InvalidInput, UnknownPipeline

if TYPE_CHECKING:
    from holdfast.client import AnyEngine
    from holdfast.engine import Submission
    from holdfast.playbook.definition import Definition


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

    given = read_workload(workload)
    known = list(given) if isinstance(given, dict) else []
    submission = Submission(
        path=pipeline,
        workload=with_fields(given, settings),
        lane=lane,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        idempotency_key=key,
        delay_seconds=parse_duration(delay, field="delay"),
        deadline_seconds=None if deadline is None else parse_duration(deadline, field="deadline"),
    )
    seconds = None if within is None else parse_duration(within, field="within")

    async def run() -> int:
        async with opened(url) as engine:
            await _refuse_slips(engine, pipeline, known, settings)
            return await _submit(engine, submission, is_waiting or within is not None, seconds, as_json)

    sys.exit(asyncio.run(run()))


async def _refuse_slips(
    engine: AnyEngine, path: str, known: Collection[str], settings: tuple[str, ...]
) -> None:
    if not settings:
        return
    try:
        definition = await engine.catalog.definition(path)
    except UnknownPipeline:
        return  # submitting to it says so
    for setting in settings:
        refuse_slip(setting, {**definition.workload, **dict.fromkeys(known)}, definition)


async def _submit(
    engine: AnyEngine, submission: Submission, is_waiting: bool, within: float | None, as_json: bool
) -> int:
    from holdfast.cli.execution_screen import (
        as_record,
        ended,
        failed_stages,
        show_execution,
        tell_left_waiting,
        tell_submitted,
    )
    from holdfast.cli.going_on import typed
    from holdfast.cli.output import hint, say, show_json

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
            hint(f"How it goes:  {typed(f'holdfast status {submitted.id}')}")
        return 0
    view = await ended(engine, submitted.id, within, quiet=as_json)
    if as_json:
        show_json({**as_record(view), "created": submitted.created})
    else:
        say()
        show_execution(view, await engine.now(), stages=await failed_stages(engine, view))
    if view.status == "running" and not as_json:
        tell_left_waiting(view)
    return 0 if view.status == "completed" else EXIT_FAILED


async def told_unoffered(engine: AnyEngine, path: str, lane: str) -> str:
    """A sentence where no living worker offers the first step of this path's last version in this lane."""
    from holdfast.engine.controls import offers
    from holdfast.playbook.graph import Graph

    definition = await engine.catalog.definition(path)
    step = next((step for step in map(definition.step, Graph(definition).order) if not step.is_control), None)
    if step is None:
        return ""
    offered = offers(await engine.living_workers())
    if (step.handler, step.lane or lane) in offered:
        return ""
    in_lane = f" in the {step.lane or lane} lane" if any(name == step.handler for name, _ in offered) else ""
    return f"No living worker offers its first step{in_lane}: it waits until one is started."


def read_workload(source: str | None) -> Any:
    """The workload of `--workload`."""
    import msgspec

    if source is None:
        return None
    text, where = _text_of(source)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(
            f"The workload {where} is not JSON: {error}.",
            guidance="""Write it like '{"file": "a.pdf"}', or use --set file=a.pdf.""",
        ) from None


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


def refuse_slip(setting: str, known: Collection[str], definition: Definition) -> None:
    """A field of `--set` that a playbook with a workload of its own does not have is likely a slip; whoever
    means it gives it by `--workload`."""
    import difflib

    name = setting.partition("=")[0].partition(".")[0]
    if not definition.workload or name in known or "=" not in setting:
        return
    near = next(iter(difflib.get_close_matches(name, list(known), 1)), None)
    raise InvalidInput(
        f"--set {name}: the workload of {definition.path} has no {name!r}."
        + (f" Did you mean {near!r}?" if near else ""),
        guidance=f"It has: {', '.join(known)}. Others can be given with --workload.",
    )


def with_fields(workload: Any, settings: tuple[str, ...]) -> Any:
    """The workload, with the fields of `--set` put into it."""
    for setting in settings:
        workload = with_field(workload, setting)
    return workload


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
