"""Where a run is shown: a live tree of its steps on a terminal, plain lines in a pipe, nowhere for `--json`.

✔ start
✔ fetch   healed at attempt 3/3
   ├─ when {{ fetch.data.ok }}
◐  │  store   attempt 2/3 in 1.4 s: Service temporarily busy
·  └─ end
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, NamedTuple, Protocol

import click

from holdfast.cli.output import BAD, DIM, GOOD, WAITING, counted, is_terminal, new_console, shown, span
from holdfast.cli.run_story import UNDER_WAY, Line, Stand, StepStory, Story, Work, reason_of

if TYPE_CHECKING:
    from rich.text import Text

    from holdfast.playbook.outline import Row

_MARKS = {
    Stand.TO_COME: ("·", DIM),
    Stand.QUEUED: ("○", ""),
    Stand.RUNNING: ("▶", ""),
    Stand.RETRY: ("↻", WAITING),
    Stand.ASIDE: ("◷", ""),
    Stand.DONE: ("✔", GOOD),
    Stand.FAILED: ("✘", BAD),
    Stand.SKIPPED: ("–", DIM),
    Stand.CANCELLED: ("–", DIM),
}
_STYLES = {Stand.DONE: GOOD, Stand.FAILED: BAD, Stand.RETRY: WAITING}
BAR_CHARS = 20
# What the terminal needs beside the tree: the line typed, the cursor's own, and a line of what is in the way.
OTHER_LINES = 4
NAME_CHARS_MIN, NAME_CHARS_MAX = 10, 40
# Of a row beside its label and what is told: the mark, and the spaces between.
MARK_CHARS = 5
COLUMNS = 120
ROWS_MIN = 5


class Screen(Protocol):
    def say(self, text: str, style: str = "") -> None: ...

    def line(self, line: Line, since: float) -> None:
        """One turn; `since` is when the run began."""

    def refresh(self, story: Story, now: float, hindrance: str) -> None: ...

    def close(self, story: Story | None = None, now: float = 0.0) -> None:
        """End it; the tree stays as it is then."""


def screen_for(*, silent: bool) -> Screen:
    if silent:
        return SilentScreen()
    return LiveScreen() if is_terminal() else PlainScreen()


class SilentScreen:
    def say(self, text: str, style: str = "") -> None:
        pass

    def line(self, line: Line, since: float) -> None:
        pass

    def refresh(self, story: Story, now: float, hindrance: str) -> None:
        pass

    def close(self, story: Story | None = None, now: float = 0.0) -> None:
        pass


class PlainScreen(SilentScreen):
    """One line for each turn, however long: made to be searched and kept."""

    def __init__(self) -> None:
        self._hindrance = ""

    def say(self, text: str, style: str = "") -> None:
        click.echo(shown(text))

    def line(self, line: Line, since: float) -> None:
        click.echo(shown(f"{max(line.at - since, 0.0):7.1f}s  {line.step:14}  {line.text}"))

    def refresh(self, story: Story, now: float, hindrance: str) -> None:
        if hindrance and hindrance != self._hindrance:
            click.echo(shown(hindrance))
        self._hindrance = hindrance


class LiveScreen:
    """The tree, redrawn several times a second below what is said."""

    def __init__(self) -> None:
        from rich.live import Live

        self._console = new_console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def say(self, text: str, style: str = "") -> None:
        from rich.text import Text

        for line in shown(text).split("\n"):
            for part in textwrap.wrap(line, max(self._console.width, 1), break_on_hyphens=False) or [""]:
                self._console.print(Text(part, style=style))

    def line(self, line: Line, since: float) -> None:
        pass  # the tree tells it

    def refresh(self, story: Story, now: float, hindrance: str) -> None:
        from rich.text import Text

        drawn = self._drawn(story, now)
        if hindrance:
            drawn.append(Text(shown(hindrance)[: self._console.width], style=WAITING))
        self._live.update(Text("\n").join(drawn), refresh=True)

    def close(self, story: Story | None = None, now: float = 0.0) -> None:
        self._live.stop()
        if story is not None:
            for text in self._drawn(story, now):
                self._console.print(text, no_wrap=True, overflow="ellipsis", crop=True)

    def _drawn(self, story: Story, now: float) -> list[Text]:
        from rich.text import Text

        height = max(self._console.height - OTHER_LINES, ROWS_MIN)
        texts = []
        for row in fitting(tree_rows(story, now, columns=self._console.width), height):
            text = Text(f"{row.mark} ", row.style, no_wrap=True, overflow="ellipsis")
            text.append(row.label, DIM if row.stand in (None, Stand.TO_COME, Stand.SKIPPED) else "default")
            if row.told:
                text.append(f"   {row.told}", row.style)
            text.truncate(self._console.width, overflow="ellipsis")
            texts.append(text)
        return texts


class TreeRow(NamedTuple):
    """A row to draw: of a step with its mark and what is told of it, or a line between steps."""

    mark: str
    label: str
    told: str
    style: str
    stand: Stand | None


def tree_rows(story: Story, now: float, outer: str = "", columns: int = COLUMNS) -> list[TreeRow]:
    """The steps with their marks; what a step has started stands below it."""
    wide = [len(row.prefix) + len(row.step) for row in story.rows if row.step is not None]
    width = min(max(wide, default=0), NAME_CHARS_MAX, columns // 3) + len(outer)
    drawn = []
    for place, row in enumerate(story.rows):
        if row.step is None:
            text = row.text or _apart(story.rows[place + 1])
            drawn.append(TreeRow(" ", shown(f"{outer}{row.prefix}{text}"), "", DIM, None))
            continue
        step = story.steps[row.step]
        mark, style = _MARKS[step.stand]
        lead = f"{outer}{row.prefix}"
        told = shown(told_step(step, now, control=story.definition.step(row.step).is_control))
        label = _label(lead, row.step, width, columns - MARK_CHARS - len(told)) if told else lead + row.step
        drawn.append(TreeRow(mark, label, told, style, step.stand))
        if step.child is not None:
            drawn += tree_rows(step.child, now, f"{lead}  ┊ ", columns)
    return drawn


def _label(lead: str, name: str, width: int, room: int) -> str:
    """The name, so wide that what is told of the steps stands in a column. A longer one gives way to that."""
    label = f"{lead}{name}"
    kept = max(width, len(lead) + NAME_CHARS_MIN)
    if len(label) <= max(kept, room):
        return f"{label:{width}}"
    return f"{label[: kept - 1]}…"


def _apart(row: Row) -> str:
    """What leads to a step that is drawn by itself: `when fetch fails`."""
    return row.text.partition("  ")[2]


def told_step(step: StepStory, now: float, *, control: bool = False) -> str:
    """What the tree says of a step beside its mark."""
    if step.stand is Stand.DONE:
        visits = f"{step.visit} visits" if step.visit > 1 else ""
        return ", ".join(filter(None, [visits, step.reason]))
    visit = f"visit {step.visit}: " if step.visit > 1 else ""
    if step.has_elements and (step.elements or step.elements_total):
        return visit + _told_elements(step, now)
    attempt = f"attempt {step.attempt}/{step.max_attempts}" if step.max_attempts > 1 else ""
    match step.stand:
        case Stand.RUNNING if step.work.lease is not None:
            return visit + _told_lease([step.work], step.max_attempts, now)
        case Stand.RUNNING:
            told = f"{attempt}, {span(max(now - step.work.since, 0))}" if attempt else _running(step, now)
            before = reason_of(step.error)
            return visit + told + (f"; before: {before}" if before else "")
        case Stand.RETRY:
            return f"{visit}{_countdown(step, now)}: {reason_of(step.error)}"
        case Stand.ASIDE | Stand.QUEUED if step.until is not None:
            return f"{visit}sleeps, {max(step.until - now, 0.0):.1f} s to go"
        case Stand.ASIDE:
            child = "a child execution" if step.child is None else f"execution {step.child.execution_id}"
            return f"{visit}waits for {child}"
        case Stand.FAILED:
            return f"{visit}failed, {step.dead_reason or 'for good'}: {reason_of(step.error)}"
        case Stand.SKIPPED:
            return step.reason or "not taken"
        case Stand.CANCELLED:
            return "cancelled"
        case Stand.QUEUED:
            return visit + ("" if control else "queued")
    return ""


def _running(step: StepStory, now: float) -> str:
    return f"running, {span(max(now - step.work.since, 0))}"


def _told_lease(works: list[Work], max_attempts: int, now: float) -> str:
    """Of work that another process has. It may be lost: only a lease that is renewed tells that it lives."""
    leases = [work.lease for work in works if work.lease is not None]
    if all(lease.is_renewed for lease in leases):
        return "runs in another process"
    until = max(lease.until for lease in leases if not lease.is_renewed)
    then = "fails" if all(work.attempt >= max_attempts for work in works) else "tried again"
    when = f"in {until - now:.0f} s" if until > now else "soon"
    return f"held by another process, perhaps lost; if so, {then} {when}"


def _countdown(step: StepStory, now: float) -> str:
    following = f"attempt {step.attempt + 1}/{step.max_attempts}"
    if step.until is None:
        return f"{following} to come"
    return f"{following} in {max(step.until - now, 0.0):.1f} s"


def _told_elements(step: StepStory, now: float) -> str:
    counts, total, not_run = step.counts, step.total, step.not_run
    given_up = counts[Stand.CANCELLED] - not_run if counts[Stand.CANCELLED] > not_run else 0
    ended = counts[Stand.DONE] + counts[Stand.FAILED] + given_up
    told = f"{ended:,}/{total:,}"
    if step.stand not in (Stand.DONE, Stand.FAILED, Stand.CANCELLED) and total:
        filled = BAR_CHARS * ended // total
        told = f"{'━' * filled}{'╌' * (BAR_CHARS - filled)} {told}"
    if counts[Stand.FAILED]:
        told += f", {counts[Stand.FAILED]:,} failed"
    told += f", {given_up:,} given up" if given_up else ""
    told += f", {not_run:,} not run" if not_run else ""
    if counts[Stand.RETRY]:
        told += f", {counts[Stand.RETRY]:,} to retry"
        if step.until is not None:
            told += f" in {max(step.until - now, 0.0):.1f} s"
    held = [work for work in step.elements.values() if work.stand is Stand.RUNNING and work.lease is not None]
    if held:
        told += f", {len(held):,} {_told_lease(held, step.max_attempts, now)}"
    error = reason_of(step.error)
    return f"{told}: {error}" if error else told


def fitting(rows: list[TreeRow], height: int) -> list[TreeRow]:
    """As many rows as there is room for, around what is under way or has failed; the others are counted."""
    if len(rows) <= height:
        return rows
    room = max(height - 2, 1)
    of_interest = next(
        (
            place
            for stands in (UNDER_WAY, (Stand.FAILED,))
            for place, row in enumerate(rows)
            if row.stand in stands
        ),
        len(rows),
    )
    first = max(0, min(of_interest - room // 3, len(rows) - room))
    kept = rows[first : first + room]
    return [*_left_out(rows[:first], "above"), *kept, *_left_out(rows[first + room :], "below")]


def _left_out(rows: list[TreeRow], where: str) -> list[TreeRow]:
    steps = [row for row in rows if row.stand is not None]
    if not steps:
        return []
    failed = sum(row.stand is Stand.FAILED for row in steps)
    done = sum(row.stand is Stand.DONE for row in steps)
    parts = [f"{counted(len(steps), 'more step')} {where}", *([f"{done:,} done"] if done else [])]
    parts += [f"{failed:,} failed"] if failed else []
    return [TreeRow("…", ", ".join(parts), "", BAD if failed else DIM, None)]
