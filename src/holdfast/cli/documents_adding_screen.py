"""What `holdfast documents add` shows: one bar for all files on a terminal, with a few lines of what runs
just now; lines in a pipe; nothing where JSON is asked for."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from holdfast.cli.documents_words import (
    NAME_CHARS,
    counts_of,
    error_of,
    is_permanent,
    is_running,
    named,
    summary_of,
    told_complete,
    told_size,
)
from holdfast.cli.going_on import typed
from holdfast.cli.output import (
    BAD,
    DIM,
    GOOD,
    WAITING,
    clipped,
    counted,
    hint,
    is_terminal,
    new_console,
    say,
    sentence,
    shown,
)
from holdfast.cli.uploading import Watched

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.documents_files import Found
    from holdfast.core.errors import HoldfastError
    from holdfast.pipelines.documents.documents import Document

COUNT_SECONDS = 10.0
COMPLETE_TOLD_MAX = 5  # on a terminal, one by one
FAILED_TOLD_MAX = 30
RUNNING_TOLD_MAX = 4
BAR_CHARS = 30
REFRESHED_A_SECOND = 8
STAGES = 3
_DONE = {None: 0, "parsed": 1, "embedded": 2, "analyzed": 3, "complete": 3}


class Screen:
    """Says nothing: for those that speak themselves."""

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def found(self, found: Found) -> None:
        pass

    def hint(self, text: str) -> None:
        pass

    @contextlib.contextmanager
    def uploading(self, name: str, file: BinaryIO) -> Iterator[BinaryIO]:
        """What is read of the file is what has been sent."""
        yield file

    def uploaded(self, name: str, size: int, document_id: int, *, is_new: bool) -> None:
        pass

    def refused(self, path: Path, error: HoldfastError) -> None:
        pass

    def looked(self, documents: Mapping[int, Document]) -> None:
        pass

    def end(
        self,
        documents: Sequence[Document],
        *,
        uploads: Sequence[int],
        before: Sequence[int],
        refused: Sequence[tuple[Path, HoldfastError]],
        is_waited_for: bool,
    ) -> None:
        """`uploads` has the document of each file; `before` of those whose content was uploaded before."""

    def left_behind(self, count: int, *, again: bool) -> None:
        pass


class Lines(Screen):
    def __init__(self, server: str | None, files: int) -> None:
        self._server = server
        self._files = files
        self._told: dict[int, str] = {}
        self._count_at, self._counts = 0.0, ""

    def found(self, found: Found) -> None:
        if found.told_skipped:
            hint(f"{found.told_skipped}.")

    def hint(self, text: str) -> None:
        hint(text)

    def uploaded(self, name: str, size: int, document_id: int, *, is_new: bool) -> None:
        how = f"uploaded, {told_size(size)}" if is_new else "uploaded before"
        say(f"{clipped(name, NAME_CHARS)}: {how}; document {document_id}")

    def looked(self, documents: Mapping[int, Document]) -> None:
        """Of each its retries and its end, once; now and then how far they all are."""
        for document in documents.values():
            error = document.processing_error
            if document.status == "complete":
                self._tell_once(document, "complete", told_complete(document))
            elif document.status == "retrying" and error is not None:
                told = f"Document {document.id} ({named(document)}): {error.user_message}. {document.summary}"
                self._tell_once(document, f"{document.retry_count} {error.message}", told, WAITING)
        now, counts = time.monotonic(), counts_of(documents.values())
        if not self._counts:
            self._count_at, self._counts = now, counts
        if len(documents) > 1 and now - self._count_at >= COUNT_SECONDS and counts != self._counts:
            self._count_at, self._counts = now, counts
            say(f"{counts}.")

    def _tell_once(self, document: Document, key: str, line: str, style: str = "") -> None:
        if self._told.get(document.id) != key:
            self._told[document.id] = key
            say(line, style)

    def end(
        self,
        documents: Sequence[Document],
        *,
        uploads: Sequence[int],
        before: Sequence[int],
        refused: Sequence[tuple[Path, HoldfastError]],
        is_waited_for: bool,
    ) -> None:
        complete = [document for document in documents if document.status == "complete"]
        failed = [document for document in documents if document.status == "failed"]
        self._tell_complete(complete)
        self._tell_failed(failed, refused)
        if self._files > 1 or refused or not is_waited_for:
            say(summary_of(documents, uploads, before, refused))
        self._hint_at_next(documents, failed, set(before), is_waited_for=is_waited_for)

    def _tell_complete(self, complete: Sequence[Document]) -> None:
        for document in complete:  # one that was complete before nothing was waited for
            self._tell_once(document, "complete", told_complete(document))

    def _tell_failed(self, failed: Sequence[Document], refused: Sequence[tuple[Path, HoldfastError]]) -> None:
        most = self._failed_max
        for document in failed[:most]:
            say(f"Document {document.id} failed: {named(document)}: {error_of(document)}", BAD, hang=2)
        for path, error in refused[:most]:
            told = f"{sentence(str(error))} {error.guidance or ''}".rstrip()
            named_there = repr(str(path)) in told
            say(f"Not uploaded: {'' if named_there else f'{shown(str(path))}: '}{told}", BAD, hang=2)
        if most is not None and (more := max(len(failed) - most, 0) + max(len(refused) - most, 0)):
            say(f"… and {more:,} more.", BAD)

    @property
    def _failed_max(self) -> int | None:
        return None

    def _hint_at_next(
        self,
        documents: Sequence[Document],
        failed: Sequence[Document],
        before: set[int],
        *,
        is_waited_for: bool,
    ) -> None:
        if not is_waited_for:
            if any(document.status not in ("complete", "failed") for document in documents):
                worker = "with its database" if self._server else f"here:  {typed('holdfast worker')}"
                hint(f"Processing begins once a worker runs {worker}")
            return
        if may_heal := [one for one in failed if one.processing_error and not is_permanent(one)]:
            retry = typed(f"holdfast documents retry {may_heal[0].id}")
            hint(f"What has failed may heal. Try it again:  {retry}")
        if old := [one for one in failed if one.id in before]:
            hint(
                f"Document {old[0].id} is that of the upload before. For a new one, add the file with --again"
            )
        if len(failed) > 1:
            hint(f"All that failed:  {typed('holdfast documents list --status failed')}")
        complete = next((one for one in documents if one.status == "complete"), None)
        if complete is not None:
            hint(f"What is in it:  {typed(f'holdfast documents show {complete.id}')}")

    def left_behind(self, count: int, *, again: bool) -> None:
        if not count:
            hint("No file was uploaded to its end.")
            return
        on = "at the server" if self._server else f"with the next worker:  {typed('holdfast worker')}"
        hint(f"What was uploaded is kept ({counted(count, 'document')}), and goes on {on}")
        same = "the same command without --again" if again else "the same command again"
        hint(f"To upload the rest, or to watch it, give {same}: nothing is taken in twice.")


class Bars(Lines):
    """On a terminal. What it draws is drawn anew several times a second, by a thread of its own."""

    def __init__(self, server: str | None, files: int) -> None:
        super().__init__(server, files)
        self._live: Live | None = None
        self._sending = ""
        self._sent = 0
        self._sent_bytes = self._sending_bytes = 0
        self._documents: Mapping[int, Document] = {}

    def __enter__(self) -> Bars:
        from rich.live import Live

        self._live = Live(
            get_renderable=self._picture,
            console=new_console(),
            refresh_per_second=REFRESHED_A_SECOND,
            transient=True,
        )
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @contextlib.contextmanager
    def uploading(self, name: str, file: BinaryIO) -> Iterator[BinaryIO]:
        self._sending, self._sent_bytes = name, 0
        self._sending_bytes = os.fstat(file.fileno()).st_size
        yield cast(BinaryIO, Watched(file, self._advance))

    def _advance(self, count: int) -> None:
        self._sent_bytes += count

    def uploaded(self, name: str, size: int, document_id: int, *, is_new: bool) -> None:
        self._sent += 1
        self._sending_bytes = 0

    def refused(self, path: Path, error: HoldfastError) -> None:
        self._sent += 1
        self._sending_bytes = 0

    def looked(self, documents: Mapping[int, Document]) -> None:
        self._documents = dict(documents)

    @property
    def _failed_max(self) -> int | None:
        return FAILED_TOLD_MAX

    def _tell_complete(self, complete: Sequence[Document]) -> None:
        if len(complete) <= COMPLETE_TOLD_MAX:
            for document in complete:
                say(told_complete(document), GOOD)

    def _picture(self) -> Group:
        from rich.console import Group

        return Group(*(self._processing() if self._documents else self._upload()))

    def _upload(self) -> Iterator[Table | Text]:
        size = self._sending_bytes  # another thread ends the upload
        share = self._sent_bytes / size if size else 0.0
        yield _bar("Uploading", (self._sent + share) / self._files, f"{self._sent:,}/{self._files:,}")
        yield _line(f"{self._sending} ({told_size(size)})" if size else "")

    def _processing(self) -> Iterator[Table | Text]:
        documents = list(self._documents.values())
        done = sum(_stages_done(document) for document in documents)
        yield _bar("Processing", done / (STAGES * len(documents)), counts_of(documents))
        running = [one for one in documents if is_running(one)]
        retrying = [one for one in documents if one.status == "retrying"]
        for document in (running + retrying)[:RUNNING_TOLD_MAX]:
            yield _line(_told_now(document), WAITING if document.status == "retrying" else DIM)


def _told_now(document: Document) -> str:
    error = document.processing_error
    if document.status == "retrying" and error is not None:
        return f"{named(document)}: {document.summary}: {error.user_message}"
    share = f", {document.progress:.0%}" if document.progress else ""
    return f"{named(document)}: {document.status.value}{share}"


def _bar(what: str, share: float, told: str) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(total=1.0, completed=min(share, 1.0), width=BAR_CHARS)
    grid.add_row(Text(f"{what:10}"), bar, Text(told))
    return grid


def _line(text: str, style: str = DIM) -> Text:
    from rich.text import Text

    return Text(f"  {shown(text)}", style=style, no_wrap=True, overflow="ellipsis")


def _stages_done(document: Document) -> float:
    if document.status == "failed":
        return STAGES
    return _DONE[document.last_completed_stage] + (document.progress or 0.0)


def screen_for(*, silent: bool, server: str | None, files: int) -> Screen:
    return Screen() if silent else Bars(server, files) if is_terminal() else Lines(server, files)
