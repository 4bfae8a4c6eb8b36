"""`holdfast demo`: a pipeline against a service that really fails, and how each failure ends.

    service (a thread) ◀──HTTP── handlers ◀── worker ◀── engine ◀── submit
                                                           └─events──▶ items ──▶ screen

Nothing is staged: the errors are what urllib, a timeout and a reset connection make of them, and what is
shown is read from the events as they are stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from holdfast import Holdfast, RetryRefused
    from holdfast.cli.demo_screen import Screen
    from holdfast.cli.demo_service import Service
    from holdfast.cli.demo_story import Item

POLL_SECONDS = 0.1
TIME_LIMIT_SECONDS = 90.0


@click.command()
@click.option("--db", metavar="URL", help="Use this database instead of a temporary SQLite file.")
@click.option("--keep", is_flag=True, help="Keep the temporary folder, with the database and the log.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON, and nothing else.")
def demo(db: str | None, keep: bool, as_json: bool) -> None:
    """Run a three-stage pipeline against a service that fails in six ways, and watch it heal."""
    from holdfast.cli.demo_screen import screen_for

    with _folder(keep=keep) as folder, _logging_to(folder / "holdfast.log"):
        show = Show(db or f"sqlite:///{folder / 'demo.db'}", screen_for(silent=as_json))
        record = asyncio.run(show.run())
        if as_json:
            click.echo(json.dumps(record, indent=2))
        elif keep:
            click.echo(f"Kept: {folder}")
    sys.exit(0 if record["as_expected"] else 1)


class Show:
    """One run of the demo."""

    def __init__(self, url: str, screen: Screen) -> None:
        self._url = url
        self._screen = screen
        self._items: list[Item] = []
        self._started_at = 0.0
        self._clock_lead = 0.0
        self._refusal: RetryRefused | None = None

    async def run(self) -> dict[str, Any]:
        from holdfast import Holdfast
        from holdfast.cli.demo_service import Service

        started = time.monotonic()
        problem = ""
        try:
            async with asyncio.timeout(TIME_LIMIT_SECONDS):
                with Service().running() as service:
                    async with Holdfast(self._url) as hf:
                        await self._play(hf, service)
        except TimeoutError:
            problem = f"The demo did not end within {TIME_LIMIT_SECONDS:.0f} seconds."
        finally:
            self._screen.close()
        return self._sum_up(time.monotonic() - started, problem)

    async def _play(self, hf: Holdfast, service: Service) -> None:
        from holdfast.cli.demo_pipeline import PIPELINE, STAGES, define
        from holdfast.cli.demo_service import CORRUPTED, TROUBLES
        from holdfast.cli.demo_story import Item

        definition = define(hf)
        self._introduce(service, TROUBLES)
        attempts = {stage: definition.step(stage).retry.max_attempts for stage in STAGES}
        store = (await hf.engine()).store
        self._started_at = await store.now()
        self._clock_lead = self._started_at - time.monotonic()
        executions = await hf.submit_many(
            PIPELINE, [{"name": name, "service": service.url} for name in TROUBLES]
        )
        self._items = [
            Item(name, execution.id, attempts) for name, execution in zip(TROUBLES, executions, strict=True)
        ]
        async with hf.working():
            await self._follow(hf)
            corrupted = next(item for item in self._items if item.name == CORRUPTED)
            await self._retry_by_hand(hf, service, corrupted)

    def _introduce(self, service: Service, troubles: dict[str, str]) -> None:
        from holdfast.cli.demo_pipeline import PIPELINE, STAGES
        from holdfast.core.masking import mask_secrets

        self._screen.say(f"Pipeline {PIPELINE}: {' -> '.join(STAGES)}, over {len(troubles)} inputs.")
        self._screen.say(f"Service  {service.url} (local, and it really fails)")
        self._screen.say(f"Store    {mask_secrets(self._url)}")
        self._screen.say("")
        for name, trouble in troubles.items():
            self._screen.say(f"  {name:11}  {trouble}")
        self._screen.say("")

    async def _follow(self, hf: Holdfast) -> None:
        """Show the events of all inputs as they are stored, until every input has ended."""
        while True:
            lines = []
            for item in self._items:
                for event in await hf.events(item.execution_id, after=item.last_event):
                    lines += item.tell(event)
            for line in sorted(lines, key=lambda line: line.at):
                self._screen.event(line, self._started_at)
            self._screen.refresh(self._items, time.monotonic() + self._clock_lead)
            if all(item.is_ended for item in self._items):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _retry_by_hand(self, hf: Holdfast, service: Service, item: Item) -> None:
        """What a person does about the one that cannot heal: asked too early, then after a repair."""
        from holdfast import RetryRefused
        from holdfast.cli.demo_story import Tone

        if item.status != "failed":
            return
        screen = self._screen
        screen.say("")
        screen.say(f"{item.name} needs a person. A retry without a repair is refused:")
        try:
            await hf.retry(item.execution_id, by="demo")
        except RetryRefused as refusal:
            self._refusal = refusal
            screen.say(f"  {refusal.code}: {refusal}", Tone.BAD)
            screen.say(f"  {refusal.guidance}", Tone.BAD)
        screen.say(f"Now {item.name} is repaired at the service, and retried with force:")
        service.repair(item.name)
        await hf.retry(item.execution_id, force=True, by="demo")
        item.status = "running"
        await self._follow(hf)

    def _sum_up(self, seconds: float, problem: str) -> dict[str, Any]:
        from holdfast.cli.demo_pipeline import PIPELINE, STAGES
        from holdfast.cli.demo_story import Tone, as_record

        problems = [problem] if problem else []
        problems += _surprises(self._items, self._refusal)
        self._screen.say("")
        self._screen.say(f"How each one ended, with its attempts at {' / '.join(STAGES)}:")
        self._screen.summary(self._items)
        for text in (*_lessons(self._items), f"{seconds:.1f} seconds in all."):
            self._screen.say(text)
        for text in problems:
            self._screen.say(f"Not as expected: {text}", Tone.BAD)
        refusal = self._refusal
        return {
            "as_expected": not problems,
            "problems": problems,
            "pipeline": PIPELINE,
            "stages": list(STAGES),
            "duration_seconds": round(seconds, 3),
            "items": [as_record(item) for item in self._items],
            "refused_retry": refusal
            and {"code": refusal.code, "message": str(refusal), "guidance": refusal.guidance},
        }


def _lessons(items: list[Item]) -> Iterator[str]:
    """What healed, what did not and what to do."""
    healed = [trouble for item in items for trouble in item.troubles if not trouble.is_final]
    retries = sum(item.retries for item in items)
    yield f"{len(healed)} errors healed by themselves, with {retries} retries."
    for item in items:
        for trouble in item.troubles:
            if trouble.is_final:
                yield f"{item.name} could not: {trouble.user_message} ({trouble.message})."
                yield f"  {trouble.guidance}"
        if item.resumed_from:
            yield (
                f"  That was done, and it went on at {item.resumed_from};"
                f" {', '.join(item.kept)} was not run again."
            )


def _surprises(items: list[Item], refusal: RetryRefused | None) -> Iterator[str]:
    """Where the run was not what the demo promises. More retries than planned are no surprise: a busy
    machine may add a timeout."""
    from holdfast.cli.demo_service import CORRUPTED

    expected = {
        "north.csv": {"service_unavailable"},
        "south.csv": {"timeout"},
        "east.csv": {"connection_error"},
        "west.csv": {"rate_limit"},
        "coast.csv": {"unknown"},
        CORRUPTED: {"invalid_file"},
    }
    for item in items:
        if item.status != "completed":
            yield f"{item.name} is {item.status}."
        missing = expected.get(item.name, set()) - {trouble.error_type for trouble in item.troubles}
        if missing:
            yield f"{item.name} did not meet {', '.join(missing)}."
    if refusal is None or refusal.code != "permanent_error":
        yield "The retry of a permanent error was not refused."
    if not any(item.name == CORRUPTED and item.kept == ["locate"] for item in items):
        yield f"{CORRUPTED} did not resume at fetch with locate kept."


@contextlib.contextmanager
def _folder(*, keep: bool) -> Iterator[Path]:
    if keep:
        yield Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
        yield Path(name)


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """The engine's own log goes to a file: the demo tells the same from the events."""
    logger = logging.getLogger("holdfast")
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
        logger.propagate = propagate
