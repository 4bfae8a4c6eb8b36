"""`holdfast ingest`: configuration archives from files, uploaded and parsed.

On a database the command works on its runs itself, beside whatever workers there are; a server's runs are
worked on there. Either way it waits for their ends, unless it is told not to: what was uploaded is safe, and
goes on without it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click
import msgspec

from holdfast.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, database_option, json_option, opened
from holdfast.cli.uploading import (
    LOOK_SECONDS,
    LOOK_SECONDS_AFAR,
    Source,
    name_of,
    named_in_errors,
    opened_file,
    told_with_errors,
    unreadable,
    working_on,
)
from holdfast.core.errors import InvalidInput, PermanentError
from holdfast.core.masking import mask_secrets

if TYPE_CHECKING:
    from holdfast.cli.ingest_screen import Screen
    from holdfast.client import AnyEngine
    from holdfast.pipelines.conf_archives.runs import Run

PARSED_AT_ONCE = 2


@click.command(
    epilog="Example:  holdfast ingest etc.tgz TA_web.zip props.conf",
    short_help="Upload and parse configuration archives.",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--again", is_flag=True, help="Make a new run of a file that was uploaded before.")
@click.option("--lane", type=click.Choice(["manual", "bulk"]), default="manual", show_default=True,
              help="manual goes first: a person waits for it.")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Upload only: a worker will parse it.")
@database_option
@json_option
def ingest(files: tuple[Path, ...], again: bool, lane: str, no_wait: bool, url: str, as_json: bool) -> None:
    """Upload each FILE (.tar, .tar.gz, .tgz, .spl, .tar.bz2, .tar.xz, .zip, or a single .conf) and parse it.

    The same file gives the same run. The exit code is 0 where all runs are COMPLETE, 1 where one has failed.
    """
    from holdfast.addresses import is_server
    from holdfast.cli.ingest_screen import screen_for
    from holdfast.cli.output import show_json

    _check_files(files)
    screen = screen_for(silent=as_json, server=mask_secrets(url) if is_server(url) else None)
    kept: list[str] = []

    async def work() -> list[Run]:
        async with opened(url, create=True) as engine:
            door = door_to(engine)
            with screen, told_with_errors(kept):
                runs = [await _uploaded(door, file, screen, kept, lane=lane, again=again) for file in files]
                if not no_wait:
                    runs = await _ended(engine, door, runs, screen)
            return runs

    try:
        runs = asyncio.run(work())
    except KeyboardInterrupt:
        screen.left_behind()
        sys.stdout.flush()
        os._exit(EXIT_INTERRUPTED)  # an ordinary exit would wait for the thread that parses
    if as_json:
        show_json({"items": runs})
    else:
        screen.end(runs, is_waited_for=not no_wait)
    sys.exit(EXIT_FAILED if any(run.status == "FAILED" for run in runs) else 0)


def _check_files(files: Sequence[Path]) -> None:
    """All of them, before anything is sent."""
    from holdfast.pipelines.conf_archives.archive import HEAD_BYTES
    from holdfast.pipelines.conf_archives.intake import check_kind

    for file in files:
        try:
            if not file.is_file():
                what = (
                    "is a folder" if file.is_dir() else "is not there" if not file.exists() else "is no file"
                )
                raise InvalidInput(
                    f"{str(file)!r} {what}.",
                    guidance="Give archives or .conf files. A folder can be packed:  tar czf app.tgz FOLDER",
                )
            with file.open("rb") as head:
                check_kind(name_of(file), head.read(HEAD_BYTES))
        except PermanentError as error:
            error.args = (f"{file}: {error}", *error.args[1:])
            raise
        except OSError as error:
            raise unreadable(file, error) from None


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """What a server answers to a file. `sha256` is that of what it got."""

    run_id: int
    created: bool
    sha256: str


class EngineDoor:
    """Runs on a database."""

    look_seconds = LOOK_SECONDS

    def __init__(self, engine: Any) -> None:
        from holdfast.pipelines.conf_archives.intake import intake_for
        from holdfast.pipelines.conf_archives.runs import Runs

        self._intake = intake_for(engine)
        self._runs = Runs(engine)
        self._store = engine.store

    async def upload(self, name: str, file: Source, *, lane: str, again: bool) -> tuple[int, bool]:
        from holdfast.core.model import Lane

        taken = await self._intake.take(name, file.pieces(), lane=Lane(lane), again=again)
        return taken.id, taken.created

    async def run(self, run_id: int) -> Run:
        await self._runs.prepare()
        return await self._runs.get(run_id)

    async def progress(self, run_id: int) -> float:
        shares = [job.progress or 0.0 for job in await self._store.jobs_of([run_id]) if job.step == "parse"]
        return max(shares, default=0.0)


class ServerDoor:
    """The same through a server."""

    look_seconds = LOOK_SECONDS_AFAR

    def __init__(self, client: Any) -> None:
        self._client = client

    async def upload(self, name: str, file: Source, *, lane: str, again: bool) -> tuple[int, bool]:
        body = cast(BinaryIO, file)
        answer = await self._client.transport.upload(
            "/v1/uploads", name, body, Uploaded, lane=lane, again=again
        )
        file.check_received(answer.sha256, "run", answer.run_id)
        return answer.run_id, answer.created

    async def run(self, run_id: int) -> Run:
        from holdfast.pipelines.conf_archives.runs import Run

        found: Run = await self._client.transport.get(f"/v1/runs/{run_id}", Run)
        return found

    async def progress(self, run_id: int) -> float:
        found = await self._client.queue(execution_id=run_id, limit=10)
        return max((job.progress or 0.0 for job in found.items if job.step == "parse"), default=0.0)


Door = EngineDoor | ServerDoor


def door_to(engine: AnyEngine) -> Door:
    from holdfast.engine import Engine

    return EngineDoor(engine) if isinstance(engine, Engine) else ServerDoor(engine)


async def _uploaded(
    door: Door, path: Path, screen: Screen, kept: list[str], *, lane: str, again: bool
) -> Run:
    name = name_of(path)
    with opened_file(path) as file, screen.uploading(name, file) as watched, named_in_errors(path):
        run_id, created = await door.upload(name, Source(path, watched), lane=lane, again=again)
    kept.append(f"run {run_id} ({name})")
    run = await door.run(run_id)
    screen.uploaded(run, created=created)
    return run


async def _ended(engine: AnyEngine, door: Door, runs: Sequence[Run], screen: Screen) -> list[Run]:
    from holdfast.pipelines.conf_archives.playbook import PATH

    found = {run.id: run for run in runs}
    if all(_is_over(run) for run in runs):
        return list(runs)
    async with working_on(PATH, engine, concurrency=PARSED_AT_ONCE):
        while open_ := [run_id for run_id, run in found.items() if not _is_over(run)]:
            for run_id in open_:
                found[run_id] = await door.run(run_id)
                screen.parsing(found[run_id], await door.progress(run_id))
            await asyncio.sleep(door.look_seconds)
    return [found[run.id] for run in runs]


def _is_over(run: Run) -> bool:
    return run.status in ("COMPLETE", "FAILED")
