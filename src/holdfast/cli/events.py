"""`holdfast events`: the history of an execution, line by line, as it was stored or as it comes."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import database_option, json_option, opened

if TYPE_CHECKING:
    from holdfast.client import AnyEngine
    from holdfast.core.model import Event

FOLLOW_SECONDS = 0.5
_STYLES = {
    "action_completed": "green",
    "step_completed": "green",
    "execution_completed": "green",
    "action_error": "red",
    "step_failed_terminal": "red",
    "step_retry_exhausted": "red",
    "execution_failed": "red",
    "step_retry": "yellow",
    "lease_lost": "yellow",
    "lease_released": "yellow",
    "manual_retry": "yellow",
    "step_skipped": "dim",
    "execution_cancelled": "dim",
}


@click.command(epilog="Example:  holdfast events 42 --follow", short_help="Show the history of an execution.")
@click.argument("execution", type=int)
@click.option("--follow", is_flag=True, help="Go on until it has ended. With --json: one object a line.")
@database_option
@json_option
def events(execution: int, follow: bool, url: str, as_json: bool) -> None:
    """Show the history of EXECUTION: every attempt, error, retry and decision, in order."""
    asyncio.run(_show(url, execution, follow, as_json))


async def _show(url: str, execution_id: int, follow: bool, as_json: bool) -> None:
    from holdfast.cli.output import show_json

    async with opened(url) as engine:
        await engine.view(execution_id)  # says where there is none
        if not follow:
            items = await _after(engine, execution_id, None)
            if as_json:
                show_json({"items": [event.to_dict() for event in items], "next": None})
            else:
                for event in items:
                    _print(event)
            return
        await _follow(engine, execution_id, as_json)


async def _follow(engine: AnyEngine, execution_id: int, as_json: bool) -> None:
    from holdfast.cli.outages import through_outages

    last: str | None = None
    while True:
        is_over, ticket, items = await through_outages(partial(_news, engine, execution_id, last))
        for event in items:
            last = event.id
            if as_json:
                click.echo(json.dumps(event.to_dict()))
            else:
                _print(event)
        if is_over:
            return
        await through_outages(partial(engine.wait_for_work, ticket, FOLLOW_SECONDS))


async def _news(engine: AnyEngine, execution_id: int, last: str | None) -> tuple[bool, int, list[Event]]:
    """Whether it has ended, a ticket from before that was asked, and what is new."""
    ticket = engine.work_ticket()
    # Asked before the events: once it has ended, no further one comes. Its row alone, for it may have many
    # jobs.
    execution = await engine.execution(execution_id)
    is_over = execution is None or execution.status.value != "running"
    return is_over, ticket, await _after(engine, execution_id, last)


async def _after(engine: AnyEngine, execution_id: int, last: str | None) -> list[Event]:
    items: list[Event] = []
    while page := await engine.events(execution_id, after=items[-1].id if items else last):
        items += page
    return items


def _print(event: Event) -> None:
    from holdfast.cli.output import say, stage_name, wall_time

    stage = stage_name(event.step or "", event.data.get("element"), event.data.get("visit", 1))
    line = f"{wall_time(event.at, exact=True)}  {event.type.value:20}  {stage:12}  {told(event)}"
    say(line.rstrip(), _STYLES.get(event.type.value, ""), hang=61)


def told(event: Event) -> str:
    """What belongs to the event, in a few words."""
    from holdfast.cli.output import compact, wall_time

    data: dict[str, Any] = dict(event.data)
    if event.type.value == "action_error":
        error = f"{data.get('error_type')} ({data.get('category')}): {data.get('message')}"
        return " ".join(f"attempt {data.get('attempt')}: {error}".split())
    if event.type.value == "execution_failed":
        return f"{data.get('user_message')}. {data.get('guidance') or ''}".strip()
    if event.type.value == "step_retry":
        failed = f"attempt {data.get('attempt')} failed, the next"
        if data.get("available_at") is None:
            return f"{failed} with wave {data.get('wave')}"
        return f"{failed} {wall_time(data['available_at'])} (in {data.get('delay', 0):.3g} s)"
    if event.type.value == "barrier_opened":
        return f"scheduled for {wall_time(data['scheduled_for'])}"
    if event.type.value == "wave_started":
        return f"wave {data.get('wave')} begins {wall_time(data['available_at'])}"
    if event.type.value == "action_started":
        return f"attempt {data.get('attempt')} by {data.get('worker')}"
    if event.type.value == "lease_released" and data.get("reason") == "child":
        return "waits for its child execution"
    if event.type.value == "lease_released" and data.get("reason") == "sleep":
        return f"sleeps for {data.get('seconds', 0):g} s"
    shown = {
        key: value
        for key, value in data.items()
        if value not in (None, "") and key not in ("element", "visit", "control")
    }
    return " ".join(
        f"{key}={value if isinstance(value, str) else compact(value)}" for key, value in shown.items()
    )
