"""`holdfast demo`: a pipeline against a service that really fails, and how each failure ends.

    service (a thread) ◀──HTTP── handlers, in worker processes ◀── store ◀── submit
                                          ▲                          └─events──▶ items ──▶ screen
                                          └── one of them is killed in the middle

Nothing is staged: the errors are what urllib, a timeout, a reset connection and SIGKILL make of them, and
what is shown is read from the events as they are stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from holdfast import Holdfast
    from holdfast.cli.demo_screen import Screen
    from holdfast.cli.demo_service import Service
    from holdfast.cli.demo_story import Item
    from holdfast.cli.demo_workers import Workers

POLL_SECONDS = 0.1
TIME_LIMIT_SECONDS = 90.0
# The worker is killed when everything else has ended, but neither sooner nor later than this.
KILL_FROM_PROGRESS = 0.4
KILL_AT_PROGRESS = 0.7


@click.command()
@click.option("--db", metavar="URL", help="Use this database instead of a temporary SQLite file.")
@click.option("--keep", is_flag=True, help="Keep the temporary folder, with the database and the log.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON, and nothing else.")
def demo(db: str | None, keep: bool, as_json: bool) -> None:
    """Run a pipeline against a service that fails in six ways, kill a worker, and watch it heal."""
    from holdfast.cli.demo_screen import screen_for

    _end_in_order_when_told()
    with _folder(keep=keep) as folder, _logging_to(folder / "holdfast.log") as log:
        show = Show(db or f"sqlite:///{folder / 'demo.db'}", log, screen_for(silent=as_json))
        record = asyncio.run(show.run())
        if as_json:
            click.echo(json.dumps(record, indent=2))
        elif keep:
            click.echo(f"Kept: {folder}")
    sys.exit(0 if record["as_expected"] else 1)


class Show:
    """One run of the demo."""

    def __init__(self, url: str, log: Path, screen: Screen) -> None:
        from holdfast.cli.demo_pipeline import hf
        from holdfast.cli.demo_service import Service
        from holdfast.cli.demo_verdict import Findings
        from holdfast.cli.demo_workers import Workers

        hf.use_database(url)
        self._hf: Holdfast = hf
        self._service: Service = Service()
        self._workers: Workers = Workers(url, log)
        self._screen = screen
        self._found = Findings()
        self._pids: list[int] = []
        self._started_at = 0.0
        self._clock_lead = 0.0

    async def run(self) -> dict[str, Any]:
        from holdfast.cli.demo_verdict import Stopped

        started = time.monotonic()
        try:
            async with asyncio.timeout(TIME_LIMIT_SECONDS):
                with self._service.running():
                    async with self._hf:
                        with self._workers.running():
                            await self._play()
        except TimeoutError:
            self._found.problem = f"The demo did not end within {TIME_LIMIT_SECONDS:.0f} seconds."
        except Stopped as error:
            self._found.problem = str(error)
        finally:
            self._screen.close()
        return self._sum_up(time.monotonic() - started)

    async def _play(self) -> None:
        from holdfast.cli.demo_pipeline import COUNT_PIPELINE, TABLE_PIPELINE

        self._introduce()
        await self._result_of(TABLE_PIPELINE)
        self._introduce_workers()
        await self._submit()
        items = self._found.items
        try:
            await self._follow(until=self._is_time_to_kill)
            self._kill_a_worker()
            await self._follow(until=lambda: all(item.is_ended for item in items))
            await self._retry_by_hand()
            written = await self._result_of(COUNT_PIPELINE, [item.execution_id for item in items])
            self._found.rows = {int(id_): count for id_, count in written.items()}
        finally:
            for item in items:
                if not item.is_ended:  # in a database of one's own it would wait for a worker for ever
                    await self._hf.cancel(item.execution_id, by="demo")

    def _introduce(self) -> None:
        from holdfast.cli.demo_pipeline import PIPELINE, STAGES
        from holdfast.cli.demo_service import TROUBLES
        from holdfast.core.masking import mask_secrets

        say = self._screen.say
        say(f"Pipeline {PIPELINE}: {' -> '.join(STAGES)}, over {len(TROUBLES)} inputs.")
        say(f"Service  {self._service.url} (local, and it really fails)")
        say(f"Store    {mask_secrets(self._hf.url)}")

    def _introduce_workers(self) -> None:
        from holdfast.cli.demo_service import TROUBLES
        from holdfast.cli.demo_workers import LEASE_SECONDS

        self._pids = self._workers.pids()
        names = " and ".join(map(str, self._pids))
        say = self._screen.say
        say(f"Workers  processes {names} (a lease that is not renewed ends after {LEASE_SECONDS} s)")
        say("")
        for name, trouble in TROUBLES.items():
            say(f"  {name:11}  {trouble}")
        say("")

    async def _submit(self) -> None:
        from holdfast.cli.demo_pipeline import MAX_ATTEMPTS, PIPELINE
        from holdfast.cli.demo_service import TROUBLES
        from holdfast.cli.demo_story import Item

        self._started_at = await (await self._hf.engine()).now()
        self._clock_lead = self._started_at - time.monotonic()
        executions = await self._hf.submit_many(
            PIPELINE, [{"name": name, "service": self._service.url} for name in TROUBLES]
        )
        self._found.items = [
            Item(name, execution.id, MAX_ATTEMPTS)
            for name, execution in zip(TROUBLES, executions, strict=True)
        ]

    async def _result_of(self, pipeline: str, workload: Any = None) -> Any:
        """Run a pipeline of one step to its end; what it returned."""
        from holdfast.cli.demo_verdict import Stopped
        from holdfast.core.model import ExecutionStatus

        execution = await self._hf.submit(pipeline, workload)
        while (view := await execution.status()).execution.status is ExecutionStatus.RUNNING:
            self._workers.check()
            await asyncio.sleep(POLL_SECONDS)
        if view.execution.status is not ExecutionStatus.COMPLETED:
            raise Stopped(f"{pipeline}: {view.summary}")
        return next(iter(view.outputs.values()))

    async def _follow(self, *, until: Callable[[], bool]) -> None:
        """Show the events of all inputs, and new workers, as they come."""
        while True:
            self._workers.check()
            lines = []
            for item in self._found.items:
                for event in await self._hf.events(item.execution_id, after=item.last_event):
                    lines += item.tell(event)
            for line in sorted(lines, key=lambda line: line.at):
                self._screen.event(line, self._started_at)
            await self._see_progress()
            self._see_new_workers()
            self._screen.refresh(self._found.items, self._now())
            if until():
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _see_progress(self) -> None:
        item = self._large()
        if not item.is_ended:
            view = await self._hf.status(item.execution_id)
            item.see_progress([(job.step, job.attempts, job.progress) for job in view.jobs])

    def _see_new_workers(self) -> None:
        from holdfast.cli.demo_story import Line

        pids = self._workers.pids()
        for pid in pids[len(self._pids) :]:
            text, killed = f"{pid} was started", self._found.killed
            if killed is not None and self._found.replaced_by is None:
                self._found.replaced_by = pid
                text += f" in place of {killed.pid}"
            self._screen.event(Line(self._now(), "workers", "", text), self._started_at)
        self._pids = pids

    def _is_time_to_kill(self) -> bool:
        large = self._large()
        if large.is_ended or (large.progress or 0.0) >= KILL_AT_PROGRESS:
            return True
        others_ended = all(item.is_ended for item in self._found.items if item is not large)
        return others_ended and (large.progress or 0.0) >= KILL_FROM_PROGRESS

    def _kill_a_worker(self) -> None:
        from holdfast.cli.demo_story import Tone

        large = self._large()
        stage, _, pid = large.starts[-1]
        say = self._screen.say
        say("")
        if not large.is_ended and self._workers.kill(pid):
            far = f"{large.kill().progress:.0%} done"
            say(f"Worker {pid} is killed (SIGKILL). It had {large.name} in {stage}, {far}.", Tone.BAD)
            say(f"The supervisor starts another. Once the lease has run out, {large.name} goes on:")
        else:
            say(f"Worker {pid} has {large.name}. It is not one of this demo's, and is left alone.", Tone.BAD)
        self._service.speed_up()

    async def _retry_by_hand(self) -> None:
        """What a person does about the one that cannot heal: asked too early, then after a repair."""
        from holdfast import RetryRefused
        from holdfast.cli.demo_service import CORRUPTED
        from holdfast.cli.demo_story import Tone

        item = next(item for item in self._found.items if item.name == CORRUPTED)
        if item.status != "failed":
            return
        screen = self._screen
        screen.say("")
        screen.say(f"{item.name} needs a person. A retry without a repair is refused:")
        try:
            await self._hf.retry(item.execution_id, by="demo")
        except RetryRefused as refusal:
            self._found.refusal = refusal
            screen.say(f"  {refusal.code}: {refusal}", Tone.BAD)
            screen.say(f"  {refusal.guidance}", Tone.BAD)
        screen.say(f"Now {item.name} is repaired at the service, and retried with force:")
        self._service.repair(item.name)
        await self._hf.retry(item.execution_id, force=True, by="demo")
        item.status = "running"
        await self._follow(until=lambda: item.is_ended)

    def _sum_up(self, seconds: float) -> dict[str, Any]:
        from holdfast.cli.demo_pipeline import STAGES
        from holdfast.cli.demo_story import Tone
        from holdfast.cli.demo_verdict import as_json, lessons, surprises

        problems = list(surprises(self._found))
        self._screen.say("")
        if self._found.items:
            self._screen.say(f"How each one ended, with its attempts at {' / '.join(STAGES)}:")
            self._screen.summary(self._found.items)
            for text in (*lessons(self._found), f"{seconds:.1f} seconds in all."):
                self._screen.say(text)
        for text in problems:
            self._screen.say(f"Not as expected: {text}", Tone.BAD)
        return as_json(self._found, problems, seconds)

    def _large(self) -> Item:
        from holdfast.cli.demo_service import LARGE

        return next(item for item in self._found.items if item.name == LARGE)

    def _now(self) -> float:
        return time.monotonic() + self._clock_lead


def _end_in_order_when_told() -> None:
    """The signals of service managers and closed terminals are taken as Ctrl-C: nothing is left behind.
    A script that starts it in the background has Ctrl-C ignored there, and all of them with it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


@contextlib.contextmanager
def _folder(*, keep: bool) -> Iterator[Path]:
    if keep:
        yield Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
        yield Path(name)


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[Path]:
    """The engine's own log goes to a file, as the workers' does: the demo tells the same from the events."""
    from holdfast.logs import TEXT_FORMAT

    logger = logging.getLogger("holdfast")
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter(TEXT_FORMAT))
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield path
    finally:
        logger.removeHandler(handler)
        handler.close()
        logger.propagate = propagate
