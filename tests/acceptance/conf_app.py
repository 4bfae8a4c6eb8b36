"""Workers of the pipeline `conf_archives`, which die, or wait to be stopped, at an exact place of PARSING.

    conf_app.py URL FOLDER NAME PARENT LEASE_SECONDS                        a worker as any other
    conf_app.py URL FOLDER NAME PARENT LEASE_SECONDS lives SEED SECONDS     one life after the other
    conf_app.py URL FOLDER NAME PARENT LEASE_SECONDS waits COUNT            waits before its COUNT-th part

A killed worker is followed by the next life of it, which is forked: nothing is imported anew. Each life kills
itself when its attempt, of a run of DOOMED, comes to a place that was drawn for it; how often each run has
been killed is in the folder `deaths`, a file for each. SIGUSR1 kills a life from outside.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from acceptance.lives import Lives
from faults.processes import die_with
from holdfast import Holdfast
from holdfast.core.errors import StaleLease
from holdfast.engine.step_transaction import StepTransaction
from holdfast.pipelines.conf_archives import parsing, run_writer, storing  # noqa: F401 - before the first fork
from holdfast.pipelines.conf_archives.run_writer import RunWriter
from holdfast.pipelines.registry import all_functions
from holdfast.pipelines.upload import Upload
from holdfast.store.postgres import PostgresStore  # noqa: F401
from holdfast.store.postgres_tables import PostgresTableWriter
from holdfast.store.sqlite import SqliteStore  # noqa: F401
from holdfast.store.sqlite_tables import SqliteTableWriter

DOOMED: Final = "doomed.tgz"
DEATHS_OF_A_RUN: Final = 2
POLL_SECONDS: Final = 0.2
PART_ROWS: Final = 500  # many parts of a small archive
WAIT_SECONDS_MAX: Final = 300.0
SOON_SECONDS: Final = 0.006  # "around" a commit is within this time of its beginning

BEGIN, CLEAR, PART, COMPLETION, ANY = "begin", "clear", "part", "completion", "any time"
BEFORE, INSIDE, AROUND, AFTER = "before", "inside", "around the commit", "after"
MOMENTS: Final = (BEFORE, INSIDE, AROUND, AFTER)
PLACES: Final = (
    *[(BEGIN, INSIDE), (BEGIN, AFTER)],
    *[(CLEAR, moment) for moment in MOMENTS],
    *[(PART, moment) for moment in MOMENTS] * 3,
    *[(COMPLETION, BEFORE), (COMPLETION, AROUND), (COMPLETION, AFTER)],
    *[(ANY, "")] * 8,
)
CLEARS_MAX: Final = 4
PARTS_MAX: Final = 14


class Death(msgspec.Struct, frozen=True):
    """`is_parsing` where the run was PARSING for certain, by this attempt."""

    run: int
    task: str
    phase: str
    moment: str
    count: int
    is_parsing: bool


class Place(NamedTuple):
    phase: str
    moment: str
    count: int


class Attempt:
    """Told of each place that it comes by; at the one that was chosen it does what it is there for."""

    def __init__(self, task: str, place: Place | None, act: Callable[[Place], None]) -> None:
        self.task = task
        self.phase = BEGIN
        self._place = place
        self._act = act
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def at(self, moment: str) -> None:
        key = (self.phase, moment)
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._place == Place(*key, self._counts[key]):
            if moment == AROUND:
                self._in_a_while(random.uniform(0, SOON_SECONDS), self._place)
            else:
                self._end_at(self._place)

    def at_any_time(self, seconds: float) -> None:
        if self._place is not None and self._place.phase == ANY:
            self._in_a_while(random.uniform(0, seconds), self._place)

    def at_the_last(self) -> None:
        """The place was never come by, or its time not: here and now."""
        if self._place is not None and self._place.phase != COMPLETION:
            self._end_at(Place(COMPLETION, BEFORE, 1))

    def over(self) -> None:
        with self._lock:
            self._place = None

    def _in_a_while(self, seconds: float, place: Place) -> None:
        timer = threading.Timer(seconds, self._end_at, [place])
        timer.daemon = True
        timer.start()

    def _end_at(self, place: Place) -> None:
        with self._lock:
            if self._place is not None:
                self._place = None
                self._act(place)


class Watched:
    """The verbs that an attempt writes with, in this process, with places around each of them."""

    def __init__(self, attempt_of: Callable[[RunWriter, Upload], Attempt], seconds: float) -> None:
        self._attempt: Attempt | None = None
        self._attempt_of = attempt_of
        self._seconds = seconds
        self.refused: Callable[[], None] = lambda: None

    def install(self) -> None:
        begin, clear, flush = RunWriter.begin, RunWriter.clear, RunWriter.flush
        complete = StepTransaction.complete

        def watched_begin(writer: RunWriter, upload: Upload) -> bool:
            attempt = self._attempt = self._attempt_of(writer, upload)
            is_begun = begin(writer, upload)
            attempt.at_any_time(self._seconds)
            return is_begun

        def watched_clear(writer: RunWriter, between: Callable[[], None]) -> None:
            self._enter(CLEAR)
            clear(writer, between)

        def watched_flush(writer: RunWriter) -> None:
            self._enter(PART)
            flush(writer)

        async def watched_complete(self_: StepTransaction, report: Any, definition_id: int) -> Any:
            attempt = self._attempt
            if attempt is None or attempt.task.partition("-")[0] != str(report.queue_id):
                return await complete(self_, report, definition_id)
            self._enter(COMPLETION)
            attempt.at_the_last()
            attempt.at(BEFORE)
            attempt.at(AROUND)
            ack = await complete(self_, report, definition_id)
            attempt.at(AFTER)
            return ack

        RunWriter.begin, RunWriter.clear, RunWriter.flush = watched_begin, watched_clear, watched_flush
        StepTransaction.complete = watched_complete
        for kind in (SqliteTableWriter, PostgresTableWriter):
            kind.write = self._watched_write(kind.write)

    def _enter(self, phase: str) -> None:
        if self._attempt is not None:
            self._attempt.phase = phase

    def _watched_write(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def watched(writer: Any, action: Callable[[Any], Any]) -> Any:
            attempt = self._attempt
            assert attempt is not None

            def inside(tx: Any) -> Any:
                answer = action(tx)
                attempt.at(INSIDE)
                attempt.at(AROUND)
                return answer

            attempt.at(BEFORE)
            try:
                answer = write(writer, inside)
            except BaseException as error:
                attempt.over()
                if isinstance(error, StaleLease):
                    self.refused()
                raise
            attempt.at(AFTER)
            return answer

        return watched


def drawn(seed: str) -> Place:
    draw = random.Random(seed)
    phase, moment = draw.choice(PLACES)
    most = {CLEAR: CLEARS_MAX, PART: PARTS_MAX}.get(phase, 1)
    return Place(phase, moment, draw.randint(1, most))


def doomed(folder: Path, seed: str) -> Callable[[RunWriter, Upload], Attempt]:
    """Attempts that die, until their run has seen enough of them."""

    def attempt_of(writer: RunWriter, upload: Upload) -> Attempt:
        run, task = writer._run_id, writer._task_id
        death_count = len(list((folder / "deaths").glob(f"{run}.*")))
        is_doomed = upload.filename == DOOMED and death_count < DEATHS_OF_A_RUN
        place = drawn(f"{seed} {run} {death_count}") if is_doomed else None

        def die(at: Place) -> None:
            is_parsing = (at.phase, at.moment) != (BEGIN, INSIDE) and (
                at.phase != COMPLETION or at.moment == BEFORE
            )
            death = Death(run, task, *at, is_parsing)
            (folder / "deaths" / f"{run}.{death_count + 1}").write_bytes(msgspec.json.encode(death))
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(WAIT_SECONDS_MAX)  # the signal is on its way

        return Attempt(task, place, die)

    return attempt_of


def waiting(folder: Path, name: str, count: int) -> Callable[[RunWriter, Upload], Attempt]:
    def wait(_: Place) -> None:
        waits(folder, name).touch()
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not may_go_on(folder, name).exists():
            assert time.monotonic() < deadline, "nobody let it go on"
            time.sleep(0.01)

    return lambda writer, _: Attempt(writer._task_id, Place(PART, BEFORE, count), wait)


def waits(folder: Path, name: str) -> Path:
    return folder / f"{name} waits"


def may_go_on(folder: Path, name: str) -> Path:
    return folder / f"{name} may go on"


def refused(folder: Path, name: str) -> Path:
    return folder / f"{name} was refused"


def work(url: str, name: str, lease_seconds: float) -> None:
    hf = Holdfast(url)
    hf.add_functions(all_functions())
    hf.run_worker(worker_id=name, concurrency=1, lease_seconds=lease_seconds, poll_seconds=POLL_SECONDS)


def main(url: str, folder_name: str, name: str, parent: str, lease: str, way: str = "", *more: str) -> None:
    die_with(int(parent))
    folder, lease_seconds = Path(folder_name), float(lease)
    if way:
        run_writer.PART_ROWS_MAX = run_writer.CLEAR_ROWS = PART_ROWS
    if way == "lives":
        seed, seconds = more
        Watched(doomed(folder, seed), float(seconds)).install()
        (folder / "deaths").mkdir(exist_ok=True)
        Lives(folder, name).live(lambda life: work(url, life, lease_seconds))
        return
    if way == "waits":
        watched = Watched(waiting(folder, name, int(more[0])), 0)
        watched.refused = lambda: refused(folder, name).touch()
        watched.install()
    work(url, name, lease_seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
