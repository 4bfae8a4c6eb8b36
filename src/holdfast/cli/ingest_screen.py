"""What `holdfast ingest` shows: bars on a terminal, lines in a pipe, nothing where JSON is asked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, cast

from holdfast.cli.going_on import typed
from holdfast.cli.output import BAD, GOOD, WAITING, counted, hint, is_terminal, say, shown, wall_time
from holdfast.cli.uploading import Watched

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from holdfast.pipelines.conf_archives.runs import Run

NAME_CHARS = 32
OVER = ("COMPLETE", "FAILED")


class Screen:
    """Says nothing: for those that speak themselves."""

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @contextlib.contextmanager
    def uploading(self, name: str, file: BinaryIO) -> Iterator[BinaryIO]:
        """What is read of the file is what has been sent."""
        yield file

    def uploaded(self, run: Run, *, created: bool) -> None:
        pass

    def parsing(self, run: Run, share: float) -> None:
        pass

    def end(self, runs: Sequence[Run], *, is_waited_for: bool) -> None:
        pass

    def left_behind(self) -> None:
        pass


class Lines(Screen):
    def __init__(self, server: str | None) -> None:
        self._server = server
        self._told: dict[int, str] = {}
        self._from_before: set[int] = set()

    def uploaded(self, run: Run, *, created: bool) -> None:
        self._note(run, created=created)
        size = counted(run.size, "byte")
        how = f"uploaded, {size}" if created else f"uploaded before, at {wall_time(run.created_at)}"
        say(f"{run.filename}: {how}; run {run.id}")

    def _note(self, run: Run, *, created: bool) -> None:
        if not created:
            self._from_before.add(run.id)

    def parsing(self, run: Run, share: float) -> None:
        """A retry is told once."""
        if run.user_message is not None and run.status not in OVER:
            told = f"{run.retry_count} {run.error_message}"
            if self._told.get(run.id) != told:
                self._told[run.id] = told
                say(f"Run {run.id}: {run.user_message}. {run.guidance}", WAITING)

    def end(self, runs: Sequence[Run], *, is_waited_for: bool) -> None:
        for run in runs:
            self._tell_end(run)
        if not is_waited_for:
            worker = "with its database" if self._server else "here:  holdfast worker"
            hint(f"It is parsed once a worker runs {worker}")
            return
        for run in runs:
            if run.status == "FAILED":
                self._hint_at_failed(run)
        faulty = [run for run in runs if run.metrics.parse_errors]
        if faulty:
            hint(f"Which lines could not be read: {self._get(f'/v1/runs/{faulty[0].id}/files?errors=true')}")
        complete = [run for run in runs if run.status == "COMPLETE"]
        if complete:
            hint(f"Look at it: {self._get(f'/v1/runs/{complete[0].id}/stanzas')}; /docs lists all routes.")

    def _get(self, path: str) -> str:
        return f"GET {self._server}{path}" if self._server else f"`holdfast serve`, then GET {path}"

    def _hint_at_failed(self, run: Run) -> None:
        if run.category in ("transient", "unknown"):
            hint(f"What has failed may heal. Run it on:  {typed(f'holdfast retry {run.id}')}")
        if run.id in self._from_before:
            hint(f"Run {run.id} is that of the upload before. For a new one, upload the file with --again")

    def _tell_end(self, run: Run) -> None:
        if run.status == "COMPLETE":
            metrics = run.metrics
            parts = [counted(metrics.files_parsed, "file"), counted(metrics.stanzas_created, "stanza")]
            if metrics.parse_errors:
                parts.append(f"{counted(metrics.parse_errors, 'line')} could not be read")
            say(f"Run {run.id} COMPLETE: {', '.join(parts)}", WAITING if metrics.parse_errors else GOOD)
        elif run.status == "FAILED":
            say(f"Run {run.id} FAILED: {run.user_message}", BAD)
            say(f"  {run.error_message}")
            say(f"  {run.guidance}")
        else:
            say(f"Run {run.id} {run.status}")

    def left_behind(self) -> None:
        on = "at the server" if self._server else "with the next worker:  holdfast worker"
        hint(f"What was uploaded is kept, and goes on {on}")


class Bars(Lines):
    """On a terminal: one bar for each file, of its upload and then of its parsing."""

    def __init__(self, server: str | None) -> None:
        super().__init__(server)
        self._progress: Progress | None = None
        self._bars: dict[int, TaskID] = {}
        self._uploading: TaskID | None = None

    def __enter__(self) -> Bars:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TextColumn("{task.fields[state]}", markup=False),
        )
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    @contextlib.contextmanager
    def uploading(self, name: str, file: BinaryIO) -> Iterator[BinaryIO]:
        assert self._progress is not None
        size = os.fstat(file.fileno()).st_size
        bar = self._progress.add_task(shown(name)[:NAME_CHARS], total=size, state="uploading")
        self._uploading = bar
        yield cast(BinaryIO, Watched(file, lambda count: self._advance(bar, count)))

    def _advance(self, bar: TaskID, count: int) -> None:
        assert self._progress is not None
        self._progress.advance(bar, count)

    def uploaded(self, run: Run, *, created: bool) -> None:
        assert self._progress is not None and self._uploading is not None
        self._note(run, created=created)
        self._bars[run.id] = self._uploading
        how = run.status if created else f"{run.status}, uploaded before"
        self._progress.update(self._uploading, completed=run.size, state=f"run {run.id} {how}")

    def parsing(self, run: Run, share: float) -> None:
        assert self._progress is not None
        is_over = run.status in OVER
        done = run.size if is_over else int(run.size * share)
        state = f"run {run.id} {run.status}"
        if run.user_message is not None and not is_over:
            state = f"run {run.id}: {run.user_message}; retry {run.retry_count}"
        self._progress.update(self._bars[run.id], completed=done, state=state)


def screen_for(*, silent: bool, server: str | None) -> Screen:
    return Screen() if silent else Bars(server) if is_terminal() else Lines(server)
