"""Watching a batch to its end: a live view on a terminal, in a pipe a line when something changed.

Counting a batch costs in proportion to its items, so it is counted the less often the longer that takes;
whether it is over is asked more often, which is cheap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import click

from holdfast.cli.batch_screen import (
    FAILURE_GROUPS,
    example_of,
    remedy_of,
    told_barrier,
    told_failure,
    told_gates,
    told_hindrance,
    told_state,
    told_wave,
)
from holdfast.cli.going_on import typed
from holdfast.cli.outages import through_outages
from holdfast.cli.output import (
    BAD,
    DIM,
    HEAD,
    WAITING,
    is_terminal,
    moment,
    new_console,
    shown,
    wall_time,
)

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from holdfast.client import AnyEngine
    from holdfast.engine.batch_view import BatchView
    from holdfast.store.interface import FailureGroup

POLL_SECONDS = 1.0
LOOK_SECONDS_MAX = 30.0
# Of the time that passes, counting takes at most this part.
LOOK_SHARE = 0.05
LINE_SECONDS = 10.0
BAR_CHARS = 30
_HINDRANCE = "hindrance"


class Look(NamedTuple):
    view: BatchView
    failures: Sequence[FailureGroup] = ()


class Screen(Protocol):
    def show(self, look: Look) -> None: ...

    def close(self) -> None: ...


async def look_at(engine: AnyEngine, batch_id: int) -> Look:
    view = await engine.batches.view(batch_id)
    if not view.executions["failed"]:
        return Look(view)
    return Look(view, await engine.failure_groups(batch_id=batch_id, limit=FAILURE_GROUPS))


async def watched(engine: AnyEngine, batch_id: int, *, quiet: bool) -> Look:
    """The batch once it is over. Whoever ends the watching before is told that the batch goes on."""
    begun = time.monotonic()
    look = await look_at(engine, batch_id)
    screen: Screen = SilentScreen() if quiet else LiveScreen() if is_terminal() else PlainScreen()
    try:
        while not look.view.is_over:
            screen.show(look)
            cost = time.monotonic() - begun
            await through_outages(partial(_pass_time, engine, batch_id, cost=cost))
            begun = time.monotonic()
            look = await through_outages(partial(look_at, engine, batch_id))
    except asyncio.CancelledError:
        screen.close()
        click.echo(
            f"Batch {batch_id} goes on without being watched. Look again:  "
            + typed(f"holdfast batch watch {batch_id}"),
            err=True,
        )
        raise
    finally:
        screen.close()
    return look


async def _pass_time(engine: AnyEngine, batch_id: int, *, cost: float) -> None:
    """Until it is time for another look that costs so much, or the batch is over."""
    until = time.monotonic() + min(max(cost / LOOK_SHARE, POLL_SECONDS), LOOK_SECONDS_MAX)
    while True:
        await asyncio.sleep(POLL_SECONDS)
        if time.monotonic() >= until or await engine.batches.is_over(batch_id):
            return


class SilentScreen:
    def show(self, look: Look) -> None:
        pass

    def close(self) -> None:
        pass


class PlainScreen(SilentScreen):
    """A line when a gate, the state or a failure is new, and now and then one that tells how far it is."""

    def __init__(self) -> None:
        self._told: set[object] = set()
        self._counts: object = None
        self._next_at = 0.0

    def show(self, look: Look) -> None:
        view = look.view
        gates = list(_news(view))
        is_news = any(key not in self._told for key, _ in gates) or view.status not in self._told
        if is_news or (view.counts != self._counts and time.monotonic() >= self._next_at):
            self._line(view, f"{told_state(view)}. {_told_steps(view)}.")
            self._counts, self._next_at = view.counts, time.monotonic() + LINE_SECONDS
        for item in view.permanently_failed_jobs:
            gates.append(
                (
                    (item.execution_id, item.failed_at),
                    f"Item {item.execution_id} failed at {item.step}: {item.error}",
                )
            )
        for key, line in gates:
            if key not in self._told:
                self._line(view, line)
        keys = {key for key, _ in gates}
        # What has ceased to be in the way is news when it comes again.
        self._told = {key for key in self._told if key in keys or not _is_hindrance(key)}
        self._told |= {view.status, *keys}

    def _line(self, view: BatchView, text: str) -> None:
        click.echo(f"{wall_time(view.at)}  {shown(text)}")


def _news(view: BatchView) -> Iterator[tuple[object, str]]:
    """What may be told of the gates, with a key that changes when it is worth telling again."""
    for barrier in view.barriers:
        has_begun = barrier.scheduled_for is not None and barrier.scheduled_for <= view.at
        state = (has_begun, has_begun and barrier.has_begun, barrier.own_times)
        yield (barrier.step, barrier.opened_at, state), told_barrier(barrier, view)
    for wave in view.waves:
        for line in told_wave(wave, view.at):
            yield (wave.step, wave.number, wave.available_at), line
    for hindrance in view.hindrances:
        told = f"{told_hindrance(hindrance)}  {remedy_of(hindrance)}"
        # Of a limit that is full and how many wait for it, each look tells other numbers.
        yield (_HINDRANCE, hindrance.kind, hindrance.steps, hindrance.action), told


def _is_hindrance(key: object) -> bool:
    return isinstance(key, tuple) and key[0] == _HINDRANCE


class LiveScreen:
    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(console=new_console(), auto_refresh=False, transient=True)
        self._live.start()

    def show(self, look: Look) -> None:
        self._live.update(_picture(look), refresh=True)

    def close(self) -> None:
        self._live.stop()


def _picture(look: Look) -> Group:
    from rich.console import Group
    from rich.text import Text

    view = look.view
    lines = [Text(line) for line in told_gates(view)]
    for hindrance in view.hindrances:
        lines.append(Text(shown(told_hindrance(hindrance)), style=WAITING))
        lines.append(Text(f"  {shown(remedy_of(hindrance))}", style=DIM))
    if view.ends_at is not None:
        lines.append(Text(f"It may be over {moment(view.ends_at, view.at)}."))
    for group in look.failures:
        lines.append(Text(shown(told_failure(group)), style=BAD))
        lines.append(Text(f"  {shown(example_of(group))}", style=DIM, overflow="ellipsis", no_wrap=True))
    head = Text(f"Batch {view.id} of {view.path}: {told_state(view)}", style=HEAD)
    return Group(head, _bars(view), *lines, Text("Ctrl-C ends the watching, not the batch.", style=DIM))


def _bars(view: BatchView) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    for step, counts in view.counts.items():
        ended = counts["completed"] + counts["failed"] + counts["skipped"]
        grid.add_row(
            Text(step),
            ProgressBar(total=max(view.items, 1), completed=ended, width=BAR_CHARS),
            Text(f"{ended:,}/{view.items:,}", justify="right"),
            Text(", ".join(_told_counts(counts)), style=DIM),
        )
    return grid


def _told_steps(view: BatchView) -> str:
    return "; ".join(
        f"{step}: {', '.join(_told_counts(counts)) or 'nothing'}" for step, counts in view.counts.items()
    )


def _told_counts(counts: dict[str, int]) -> Iterator[str]:
    return (f"{count:,} {status.replace('_', ' ')}" for status, count in counts.items() if count)
