"""Where the demo is shown: live on a terminal, as plain lines in a pipe, nowhere for `--json`."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import click

from holdfast.cli.demo_pipeline import STAGES
from holdfast.cli.demo_story import Item, Line, Tone, what_happened
from holdfast.cli.output import new_console

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_STYLES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.WAITING: "yellow", Tone.BAD: "red"}
_INPUT_CHARS = 11
_STAGE_CHARS = 7
_CELL_CHARS = 16
_SUMMARY_HEAD = ("input", "result", "attempts", "retries", "what happened")


class Screen(Protocol):
    def say(self, text: str, tone: Tone = Tone.PLAIN) -> None: ...

    def event(self, line: Line, since: float) -> None:
        """One line of the story; `since` is the moment the demo started."""

    def refresh(self, items: Sequence[Item], now: float) -> None: ...

    def summary(self, items: Sequence[Item]) -> None: ...

    def close(self) -> None: ...


def screen_for(*, silent: bool) -> Screen:
    if silent:
        return SilentScreen()
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveScreen()
    return PlainScreen()


class SilentScreen:
    def say(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        pass

    def event(self, line: Line, since: float) -> None:
        pass

    def refresh(self, items: Sequence[Item], now: float) -> None:
        pass

    def summary(self, items: Sequence[Item]) -> None:
        pass

    def close(self) -> None:
        pass


class PlainScreen(SilentScreen):
    """One line per event, however long: made to be searched and kept."""

    def say(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        click.echo(text)

    def event(self, line: Line, since: float) -> None:
        click.echo(
            f"{line.at - since:5.1f}s  {line.input:{_INPUT_CHARS}}  {line.stage:{_STAGE_CHARS}}  {line.text}"
        )

    def summary(self, items: Sequence[Item]) -> None:
        rows = [_SUMMARY_HEAD, *map(_summary_row, items)]
        widths = [max(len(row[place]) for row in rows) for place in range(len(_SUMMARY_HEAD))]
        click.echo()
        for row in rows:
            click.echo("  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
        click.echo()


class LiveScreen:
    """Log lines that scroll, and below them a table of inputs and stages that is always current."""

    def __init__(self) -> None:
        from rich.live import Live

        self._console = new_console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def say(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        for line in text.split("\n"):
            indent = " " * (len(line) - len(line.lstrip()))
            wrapped = textwrap.wrap(line, self._console.width, subsequent_indent=indent) or [""]
            for part in wrapped:
                self._console.print(part, style=_STYLES[tone], markup=False)

    def event(self, line: Line, since: float) -> None:
        from rich.table import Table
        from rich.text import Text

        # A grid of one row: long words wrap in their column, below themselves.
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_column(width=6, justify="right", no_wrap=True)
        row.add_column(width=_INPUT_CHARS, no_wrap=True)
        row.add_column(width=_STAGE_CHARS, no_wrap=True)
        row.add_column(ratio=1)
        row.add_row(
            Text(f"{line.at - since:.1f}s", style="dim"),
            line.input,
            line.stage,
            Text(line.text, style=_STYLES[line.tone]),
        )
        self._console.print(row)

    def refresh(self, items: Sequence[Item], now: float) -> None:
        table = _table()
        table.add_column("input", no_wrap=True)
        for stage in STAGES:
            # It is redrawn several times a second: columns that keep their width keep it calm.
            table.add_column(
                stage, no_wrap=True, min_width=_CELL_CHARS if self._console.width >= 64 else None
            )
        for item in items:
            table.add_row(item.name, *(_cell(item, stage, now) for stage in STAGES))
        self._live.update(table, refresh=True)

    def summary(self, items: Sequence[Item]) -> None:
        self.close()
        table = _table()
        for column in _SUMMARY_HEAD:
            table.add_column(column)
        for item in items:
            table.add_row(*_summary_row(item), style="" if item.status == "completed" else "red")
        self._console.print(table)

    def close(self) -> None:
        self._live.stop()


def _table() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def _cell(item: Item, stage: str, now: float) -> Text:
    """As text with a style, not as markup: a line printed without markup draws the table once more."""
    from rich.text import Text

    cell = item.cells.get(stage)
    if cell is None:
        return Text("-" if item.is_ended else "waiting", style="dim")
    text = cell.text if cell.until is None else f"{cell.text} {max(0.0, cell.until - now):.1f} s"
    if item.progress is not None and item.starts and item.starts[-1].stage == stage:
        text += f", {item.progress:.0%}"
    return Text(text, style=_STYLES[cell.tone])


def _summary_row(item: Item) -> tuple[str, ...]:
    attempts = " / ".join(str(item.attempts[stage]) for stage in STAGES)
    return (item.name, item.status, attempts, str(item.retries), what_happened(item))
