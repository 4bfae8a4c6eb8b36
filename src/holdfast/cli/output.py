"""How commands show things: tables and colours on a terminal, plain lines in a pipe, JSON when asked.

What comes from a database was written by handlers and by people: characters that would move the
cursor or change colours are shown, never obeyed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console

GOOD, WAITING, BAD, DIM, HEAD = "green", "yellow", "red", "dim", "bold"

STATUS_STYLES = {
    "completed": GOOD,
    "done": GOOD,
    "ok": GOOD,
    "running": "",
    "leased": "",
    "queued": "",
    "retry": WAITING,
    "warn": WAITING,
    "failed": BAD,
    "dead": BAD,
    "bad": BAD,
    "cancelled": DIM,
}

WRAPPED_CHARS_MIN = 30
NAME_CHARS_MIN = 16
_BEFORE_A_COMMAND = re.compile(r"(?<=:) +(?=holdfast )")
_UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0))


def is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def show_json(value: object, to: TextIO | None = None) -> None:
    """One JSON document on stdout, or on what `stdout_for_json` gave; records become objects, with their
    fields as they are named."""
    import msgspec

    utf8 = (getattr(to or sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    text = json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=not utf8)
    if not text.isascii():
        # JSON lets through characters from beyond ASCII that terminals obey: those are written as escapes.
        text = "".join(
            char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
        )
    click.echo(text, to)


@contextlib.contextmanager
def stdout_for_json() -> Iterator[TextIO]:
    """Stdout for one document alone: whatever else is printed meanwhile, by code of users or by processes it
    starts, goes to stderr. That stays so to the end of this process, for such code may print then as well;
    only an error gets stdout back, to be told there."""
    before = sys.stdout
    before.flush()
    try:
        number = before.fileno()
    except OSError:  # it is in memory, and no process can write to it
        with contextlib.redirect_stdout(sys.stderr):
            yield before
        return
    document = os.fdopen(os.dup(number), "w", encoding=before.encoding, errors=before.errors)
    os.dup2(2, number)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield document
    except BaseException:
        before.flush()  # what was printed and is still in its buffer
        os.dup2(document.fileno(), number)
        raise


def say(text: str = "", style: str = "", *, hang: int | None = None) -> None:
    """A line or several, left alone in a pipe. On a terminal they are wrapped: what follows begins
    `hang` characters in, or where the line itself begins."""
    text = shown(text)
    if not is_terminal():
        click.echo(text)
        return
    from rich.text import Text

    console = _console()
    for part in wrapped(text, console.width, hang):
        console.print(Text(part, style=style), soft_wrap=True)


def complain(text: str, *, hang: int | None = None) -> None:
    """The same on stderr."""
    text = shown(text)
    lines = wrapped(text, shutil.get_terminal_size().columns, hang) if sys.stderr.isatty() else [text]
    for line in lines:
        click.echo(line, err=True)


def wrapped(text: str, width: int, hang: int | None = None) -> Iterator[str]:
    """Its lines, none of them wider than this but for a command, which gets a line of its own where it does
    not fit behind what is said of it: one that is broken cannot be copied."""
    for line in text.split("\n"):
        if line.lstrip().startswith("holdfast "):
            yield line
            continue
        words, *command = _BEFORE_A_COMMAND.split(line, maxsplit=1)
        if command and len(line) > width:
            yield from wrapped(words, width, hang)
            yield f"{' ' * (len(line) - len(line.lstrip()))}  {command[0]}"
            continue
        indent = len(line) - len(line.lstrip()) if hang is None else hang
        # On a screen too narrow for that, what is wrapped begins at the left.
        indent = indent if indent <= width - WRAPPED_CHARS_MIN else 0
        yield from textwrap.wrap(
            line, max(width, 1), subsequent_indent=" " * indent, break_on_hyphens=False
        ) or [""]


def agreed(question: str) -> bool:
    """Whether the person at the terminal says yes."""
    if click.confirm(question):
        return True
    say("Nothing was changed.")
    return False


def hint(text: str) -> None:
    """What to do next: under a table for people, on stderr where stdout is for a program."""
    if is_terminal():
        say(text, DIM)
    else:
        click.echo(shown(text), err=True)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, styles: Sequence[str] = ()) -> None:
    """Columns under a head. `styles` has one for each row; a pipe gets one line a row, however long."""
    cells = [[shown(_one_line(cell)) for cell in row] for row in rows]
    if is_terminal():
        _rich_table(head, cells, styles)
        return
    lines = [list(head), *cells]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    for line in lines:
        click.echo("  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def _rich_table(head: Sequence[str], cells: list[list[str]], styles: Sequence[str]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in head:
        grid.add_column(name, overflow="fold")
    for place, line in enumerate(cells):
        grid.add_row(*map(Text, line), style=styles[place] if styles else "")
    _console().print(grid)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and what they are, one below the other; those without a value are left out."""
    told = [(name, shown(str(value))) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in told), default=0)
    if not is_terminal():
        for name, text in told:
            first, *others = text.split("\n")
            click.echo(f"{name:{width}}  {first}")
            for line in others:
                click.echo(f"{'':{width}}  {line}")
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    # A long name leaves room for what it is.
    grid.add_column(overflow="fold", max_width=max(_console().width // 3, NAME_CHARS_MIN))
    grid.add_column(overflow="fold")
    for name, text in told:
        grid.add_row(Text(name, style=DIM), Text(text, style=STATUS_STYLES.get(text, "")))
    _console().print(grid)


def shown(text: str) -> str:
    """The text with its control characters spelled out; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def compact(value: Any) -> str:
    """Data on one line, as JSON, for people to see: passwords in URLs that a workload has, and the like, are
    masked. `--json` gives programs the data as it is."""
    from holdfast.core.masking import mask_secrets

    return mask_secrets(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))


def clipped(text: str, chars: int) -> str:
    """The text on one line, cut on a terminal where it is longer; a pipe gets all of it."""
    line = _one_line(text)
    return line if len(line) <= chars or not is_terminal() else line[: chars - 1].rstrip() + "…"


def _one_line(cell: object) -> str:
    return "" if cell is None else " ".join(str(cell).split()) if "\n" in str(cell) else str(cell)


# times


def wall_time(at: float, *, exact: bool = False) -> str:
    """Local time, to the second or, where it is to be `exact`, the millisecond."""
    try:
        local = datetime.fromtimestamp(at)
        return local.isoformat(" ", "milliseconds" if exact else "seconds")
    except (ValueError, OverflowError, OSError):  # beyond the calendar
        return f"{at:.0f}"


def ago(at: float, now: float) -> str:
    return f"{span(now - at)} ago" if at <= now else f"in {span(at - now)}"


def moment(at: float | None, now: float) -> str:
    return "" if at is None else f"{wall_time(at)} ({ago(at, now)})"


def span(seconds: float) -> str:
    """A duration in the unit people would use: `3 s`, `12 min`, `5 h`, `3 d`."""
    for unit, length in _UNITS:
        # 90 seconds are easier to read than 1 minute that may be 2.
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 or seconds == 0 else f"{seconds:.1f} s"


def sentence(text: str) -> str:
    """The text with a full stop, so that another sentence can follow it."""
    text = text.rstrip()
    return text if not text or text.endswith((".", "!", "?", "…")) else f"{text}."


def stage_name(step: str, element: int | None = None, visit: int = 1) -> str:
    """A step, an element of one that runs for each of many (`fetch[3]`), and in a loop which visit it is."""
    name = step if element is None or element < 0 else f"{step}[{element}]"
    return f"{name} ({visit})" if visit > 1 else name


def counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


@cache
def _console() -> Console:
    return new_console()


def new_console(*, stderr: bool = False) -> Console:
    """What draws on a terminal. With NO_COLOR it has no styles either: to a reader dim is a colour too."""
    from rich.console import Console

    return Console(
        highlight=False,
        markup=False,
        stderr=stderr,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
