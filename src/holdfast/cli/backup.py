"""`holdfast backup`: a copy of a SQLite database while others write to it. `holdfast restored`: what must be
done once, when a database was put back from a copy."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import (
    EXIT_FAILED,
    database_option,
    json_option,
    opened,
    refuse_missing_file,
    store_of,
)
from holdfast.core.errors import InvalidInput, StoreUnusable

if TYPE_CHECKING:
    from holdfast.engine.overview import Overview
    from holdfast.engine.restoring import Restored


@click.command(
    epilog="Example:  holdfast backup /backups/holdfast-2026-03-01.db",
    short_help="Copy a SQLite database while it is in use.",
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@database_option
@json_option
def backup(file: Path, url: str, as_json: bool) -> None:
    """Copy the SQLite database to FILE, as it is at one moment, while workers go on. The copy is checked and
    on the disk when this ends; a file that is there is never replaced.

    PostgreSQL has its own tools: for it this says what to type.
    """
    from holdfast.addresses import is_server
    from holdfast.cli.output import say, show_json
    from holdfast.store.sqlite import SqliteStore
    from holdfast.store.sqlite_backup import back_up

    if is_server(url):
        raise InvalidInput(
            "A backup is made of a database, and not through a server.",
            guidance="Run it on the machine that has the database, with --db.",
        )
    store = store_of(url)
    if not isinstance(store, SqliteStore):
        raise InvalidInput(
            "PostgreSQL is backed up with its own tools.", guidance=f"Type:\n  {_pg_dump(url, file)}"
        )
    refuse_missing_file(store)
    made = back_up(store.path, file)
    if as_json:
        show_json({"file": str(made.file), "bytes": made.size, "schema_version": made.schema_version})
    else:
        say(f"Copied {store.path} to {made.file}: {made.size:,} bytes, schema version {made.schema_version}.")


def _pg_dump(url: str, file: Path) -> str:
    from holdfast.core.masking import mask_secrets

    return f"pg_dump --format=custom --file={shlex.quote(str(file))} {shlex.quote(mask_secrets(url))}"


@click.command(
    epilog="Example:  holdfast restored --db sqlite:////srv/holdfast.db",
    short_help="Go on with a database that was put back from a backup.",
)
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask on.")
@database_option
@json_option
def restored(yes: bool, url: str, as_json: bool) -> None:
    """Say that the database was put back from a backup, before workers and servers are started on it.

    What was running when the backup was made is given back and runs again, its attempt not counted. Numbers
    of executions, jobs and batches that were given out after the backup are never given out again, and who
    goes on listening to events misses none of those that come. It may be repeated.
    """
    from holdfast.addresses import is_server
    from holdfast.cli.output import counted, say, show_json

    if is_server(url):
        raise InvalidInput(
            "A server goes on with a database that was put back only once it is told to the database itself.",
            guidance="Stop the server, and run this with --db on a machine that reaches the database.",
        )
    if not yes and (as_json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise click.UsageError("Add --yes to do it without being asked.")
    answer = asyncio.run(_begin_anew(url, yes=yes))
    if answer is None:
        sys.exit(EXIT_FAILED)
    if as_json:
        show_json(answer)
    else:
        given_back = counted(answer.given_back, "attempt was", "attempts were")
        say(f"{given_back} given back; {answer.left_out:,} numbers are left out. Start servers and workers.")


async def _begin_anew(url: str, *, yes: bool) -> Restored | None:
    from holdfast.cli.output import agreed, say
    from holdfast.engine import Engine
    from holdfast.engine.restoring import begin_anew
    from holdfast.store.sqlite import SqliteStore
    from holdfast.store.sqlite_backup import damage_of

    async with opened(url) as engine:
        assert isinstance(engine, Engine)
        if isinstance(engine.store, SqliteStore) and (damage := damage_of(engine.store.path)):
            raise StoreUnusable(
                f"The database {engine.store.path} is damaged: {damage}",
                guidance="Stop every process that has it open. Then move the file aside, with those whose"
                " names begin with its name, copy the backup to the name that is free then, and say this"
                " again.",
            )
        if not yes:
            say(_told(await engine.overview()))
            if not agreed("Was this database put back from a backup, and is everything else stopped?"):
                return None
        return await begin_anew(engine)


def _told(overview: Overview) -> str:
    from holdfast.cli.output import counted, span

    leased = sum(overview.jobs.get("leased", {}).values())
    told = f"{counted(leased, 'job is', 'jobs are')} leased in it."
    if overview.workers:
        heard = min(overview.at - worker.seen_at for worker in overview.workers)
        living = counted(len(overview.workers), "worker was heard", "workers were heard")
        told += (
            f" {living} of, the last one {span(max(heard, 0.0))} ago: if it lives, it loses what it holds."
        )
    return told
