"""`holdfast status`: one execution in full, or everything at a glance with what needs attention."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import EXIT_FAILED, database_option, json_option, opened

if TYPE_CHECKING:
    from holdfast.core.model import WorkerRow
    from holdfast.core.pauses import Pause
    from holdfast.engine.controls import LimitView
    from holdfast.engine.overview import OpenBatch, Overview, PausedWork, Waiting

ALONE_ADVICE = 'More processes (--processes), or isolation="process" for the step, let them run sooner.'
_CODE_KINDS = {
    "code/python": ("inline code", "--allow-code"),
    "code/shell": ("shell commands", "--allow-shell"),
}


@click.command(
    epilog="Example:  holdfast status 42 --wait --within 5m",
    short_help="Show an execution, or everything at a glance.",
)
@click.argument("execution", type=int, required=False)
@click.option("--wait", "is_waiting", is_flag=True, help="Wait for its end; exit code 1 where it fails.")
@click.option(
    "--within", metavar="DURATION", help="Wait no longer than this; exit code 1 when it still runs."
)
@database_option
@json_option
def status(execution: int | None, is_waiting: bool, within: str | None, url: str, as_json: bool) -> None:
    """Show EXECUTION: its stages and attempts, what went wrong in plain words, what to do, its outputs.

    Without EXECUTION: how much work there is, who works, and what needs attention.
    """
    from holdfast.core.retry import parse_duration

    is_waiting = is_waiting or within is not None
    if execution is None and is_waiting:
        raise click.UsageError("--wait needs the number of an execution.")
    seconds = None if within is None else parse_duration(within, field="within")
    if execution is None:
        asyncio.run(_show_overview(url, as_json))
    else:
        sys.exit(asyncio.run(_show_one(url, execution, is_waiting, seconds, as_json)))


async def _show_one(
    url: str, execution_id: int, is_waiting: bool, within: float | None, as_json: bool
) -> int:
    from holdfast.cli.execution_screen import (
        as_record,
        ended,
        failed_stages,
        show_execution,
        tell_left_waiting,
    )
    from holdfast.cli.output import show_json

    async with opened(url) as engine:
        if is_waiting:
            view = await ended(engine, execution_id, within, quiet=as_json)
        else:
            view = await engine.view(execution_id)
        if as_json:
            show_json(as_record(view))
        else:
            batch_id = view.execution.batch_id
            batch = None if batch_id is None else await engine.batch(batch_id)
            stages = await failed_stages(engine, view)
            show_execution(view, await engine.now(), batch, stages)
    if not is_waiting or view.status == "completed":
        return 0
    if view.status == "running" and not as_json:
        tell_left_waiting(view)
    return EXIT_FAILED


async def _show_overview(url: str, as_json: bool) -> None:
    from holdfast.cli.output import show_json

    async with opened(url) as engine:
        overview = await engine.overview()
    if as_json:
        show_json(overview)
    else:
        show_overview(overview)


def show_overview(overview: Overview) -> None:
    from holdfast.cli.output import GOOD, HEAD, WAITING, counted, fields, say, span, table

    now = overview.at
    executions = ", ".join(f"{count:,} {status}" for status, count in overview.executions.items())
    ready = f"{overview.ready:,} ready"
    if overview.oldest_ready_at is not None:
        ready += f", the oldest for {span(now - overview.oldest_ready_at)}"
    if overview.paused:
        ready += f"; {overview.paused:,} of them paused"
    held = sum(overview.jobs.get("held", {}).values())
    if held:
        ready += f"; {held:,} held by a barrier or wave"
    fields(
        [
            ("executions", executions),
            ("jobs", ready),
            ("workers", f"{len(overview.workers)} living"),
        ]
    )
    if overview.jobs:
        say()
        lanes = ("manual", "bulk")
        table(
            ("open jobs", *lanes),
            [(state, *(f"{counts[lane]:,}" for lane in lanes)) for state, counts in overview.jobs.items()],
        )
    _show_controls(overview)
    say()
    troubles = list(attention(overview))
    if not troubles:
        say("Nothing needs attention.", GOOD)
        return
    say("Needs attention", HEAD)
    for trouble, remedy in troubles:
        say(f"  {trouble}", WAITING)
        say(f"    {remedy}")
    if len(troubles) > 1:
        say()
        say(f"{counted(len(troubles), 'thing')} in all; `holdfast doctor` checks the database as well.")


def _show_controls(overview: Overview) -> None:
    """What is kept from running by a person's wish: pauses, and limits that are full."""
    from holdfast.cli.output import HEAD, WAITING, say
    from holdfast.cli.pause import resume_command

    if overview.pauses:
        say()
        say("Paused: nothing new begins there, what runs goes on", HEAD)
    for item in overview.pauses:
        say(f"  {told_paused(item, overview.at)}", WAITING)
        say(f"    {resume_command(item.pause)}")
    full = [line for limit in overview.limits for line in told_full(limit)]
    if full:
        say()
        say("Limits that are full", HEAD)
        for line in full:
            say(f"  {line}")


def told_paused(item: PausedWork, now: float) -> str:
    from holdfast.cli.output import counted, sentence

    waiting = f" {counted(item.jobs, 'job waits', 'jobs wait')} for it." if item.jobs else ""
    return sentence(told_pause_of(item.pause, now)) + waiting


def told_pause_of(pause: Pause, now: float) -> str:
    from holdfast.cli.pause import told_pause

    what = pause.what.removeprefix("the ")
    return f"{what} {told_pause(pause, now)}"


def told_full(limit: LimitView) -> list[str]:
    """A line where work waits that would run but for this limit."""
    from holdfast.core.describe import fullness
    from holdfast.core.limits import Limit
    from holdfast.core.model import Lane

    waiting = {lane: limit.waiting[lane] for lane in Lane if limit.waiting[lane] and limit.is_full(lane)}
    if not waiting or limit.max_concurrency is None or limit.pause is not None:
        return []
    lane = next(iter(waiting))
    known = Limit(limit.name, limit.max_concurrency, limit.manual_reserve)
    told = fullness(known, lane, limit.in_use[Lane.MANUAL], limit.in_use[Lane.BULK])
    jobs = " and ".join(f"{count:,} {lane.value}" for lane, count in waiting.items())
    wait = "waits" if sum(waiting.values()) == 1 else "wait"
    return [f"{limit.name} is {told}: {jobs} {wait}."]


def attention(overview: Overview) -> list[tuple[str, str]]:
    """What needs somebody, and what they may do."""
    from holdfast.cli.going_on import typed
    from holdfast.cli.output import counted

    found = []
    failed = overview.executions["failed"]
    if failed:
        found.append((f"{counted(failed, 'execution')} failed.", f"See why:  {typed('holdfast dead')}"))
    found += [(told_waiting(item, overview.at), start_advice(item)) for item in overview.unoffered]
    if overview.alone:
        found.append((told_alone(overview.alone), ALONE_ADVICE))
    for batch in overview.open_batches:
        if batch.is_waited_for:
            found.append((told_open(batch, overview.at), close_advice(batch)))
    for worker in overview.vanished:
        found.append(
            (told_vanished(worker, overview.at), "If it should run, start it again and see its log.")
        )
    return found


def told_open(batch: OpenBatch, now: float) -> str:
    from holdfast.cli.output import ago, counted

    told = f"Batch {batch.id} of {batch.path}, begun {ago(batch.created_at, now)}, is not closed"
    if batch.is_waited_for:
        return f"{told}; its {counted(batch.items, 'item')} wait at a barrier only for that."
    return f"{told}: {counted(batch.items, 'item')} so far."


def close_advice(batch: OpenBatch) -> str:
    from holdfast.cli.going_on import typed

    return f"When all items are there:  {typed(f'holdfast batch close {batch.id}')}"


def told_vanished(worker: WorkerRow, now: float) -> str:
    from holdfast.cli.output import ago

    return f"Worker {worker.worker_id} was last seen {ago(worker.seen_at, now)} and said no goodbye."


def told_waiting(item: Waiting, now: float) -> str:
    from holdfast.cli.output import counted, span

    jobs = counted(item.jobs, "job waits", "jobs wait")
    return (
        f"{jobs} for {told_handler(item.handler)} ({item.lane.value} lane), which no living worker offers;"
        f" the oldest for {span(now - item.since)}."
    )


def told_alone(jobs: int) -> str:
    from holdfast.cli.output import counted

    return (
        f"{counted(jobs, 'job waits', 'jobs wait')} to run alone, one at a time in each worker process:"
        f" {'its' if jobs == 1 else 'their'} worker was lost before."
    )


def told_handler(handler: str) -> str:
    """What a worker must offer, in words: `http steps`, `inline code`, `my_handlers:store`, `mail/send`."""
    kind, _, name = handler.partition("/")
    if handler in _CODE_KINDS:
        return _CODE_KINDS[handler][0]
    if kind == "type":
        return f"{name} steps" if name != "each" else "the items of a for_each"
    return name if kind == "python" and ":" in name else handler


def start_advice(item: Waiting) -> str:
    from holdfast.cli.going_on import typed
    from holdfast.pipelines.registry import all_functions

    kind, _, name = item.handler.partition("/")
    if item.handler in _CODE_KINDS:
        worker = typed(f"holdfast worker {_CODE_KINDS[item.handler][1]}")
        return f"Start a worker with leave for it:  {worker}"
    if kind == "type" or name in all_functions():
        return f"Start a worker:  {typed('holdfast worker')}"
    if kind == "python" and ":" in name:
        return f"Start a worker that has it:  {typed(f'holdfast worker --functions {name}')}"
    pipeline = item.handler.rpartition("/")[0] or item.handler
    worker = typed("holdfast worker --app your_module:hf", app=True)
    return f"Start the program that defines {pipeline}:  {worker}"
