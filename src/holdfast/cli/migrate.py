"""`holdfast migrate`: bring a database up to the schema of this Holdfast, and say what was done."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import (
    EXIT_FAILED,
    FOREIGN_ADVICE,
    database_option,
    json_option,
    opened_client,
    store_of,
)
from holdfast.core.errors import StoreUnusable

if TYPE_CHECKING:
    from holdfast.store import Store


@click.command(
    epilog="Example:  holdfast migrate --check || holdfast migrate",
    short_help="Bring a database up to date, or make one.",
)
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 where a migration is needed.")
@database_option
@json_option
def migrate(check: bool, url: str, as_json: bool) -> None:
    """Bring the database up to the schema of this Holdfast, in one transaction; make it where it is new.

    A program or command that opens a database does the same by itself: this is for doing it at a moment
    of your choice, after a backup. A server does it when it starts; of one, only the version is told.
    """
    from holdfast.addresses import is_server
    from holdfast.cli.output import say, show_json

    if is_server(url):
        found, known = asyncio.run(_of_server(url))
        if as_json:
            show_json({"from": found, "to": found, "known": known, "check": check})
        else:
            whose = f"The server's database has schema version {found}"
            say(f"{whose}, {_as_known(found, known, 'the server')}. {_LEFT_TO_SERVERS}")
        return
    found, known = asyncio.run(_migrate(url, check=check))
    if as_json:
        show_json(
            {"from": found, "to": found if check else max(found, known), "known": known, "check": check}
        )
    elif found >= known:
        as_known = _as_known(found, known, "this Holdfast")
        say(f"The database has schema version {found}, {as_known}. There is nothing to do.")
    elif check:
        where = f"has schema version {found}" if found else "has no tables of Holdfast yet"
        say(f"The database {where}; this Holdfast needs version {known}. Run:  holdfast migrate")
    elif found:
        say(f"Migrated from schema version {found} to {known}.")
    else:
        say(f"Made the tables of schema version {known}.")
    sys.exit(EXIT_FAILED if check and found < known else 0)


_LEFT_TO_SERVERS = "There is nothing to do: a server brings its database up to date when it starts."


def _as_known(found: int, known: int, who: str) -> str:
    return f"as {who} needs" if found == known else f"newer than {known}, which {who} knows and may still use"


async def _of_server(url: str) -> tuple[int, int]:
    """The version of its database, and the one that it knows."""
    async with opened_client(url) as client:
        seen = await client.inspection()
        return seen.schema_found, seen.schema_known


async def _migrate(url: str, *, check: bool) -> tuple[int, int]:
    """The version that was found, and the one this Holdfast has."""
    from holdfast.store.queries import check_schema_version, load_migrations

    store = store_of(url)
    known = len(load_migrations("sqlite" if _is_sqlite(store) else "postgresql"))
    found, oldest = await _found(url, store)
    if check:
        check_schema_version(found, known, oldest=oldest, migrate=True, where="given")
    else:
        await store.open()
        await store.close()
    return found, known


async def _found(url: str, store: Store) -> tuple[int, int | None]:
    """The version of the database, and the oldest whose Holdfast may use it."""
    from holdfast.store.inspection import inspect
    from holdfast.store.sqlite import SqliteStore

    if isinstance(store, SqliteStore) and not store.path.exists():
        return 0, None
    seen = await inspect(url)
    if seen.foreign_tables:  # opening it is refused: nobody is to be told to migrate it
        raise StoreUnusable("The database has tables of another program.", guidance=FOREIGN_ADVICE)
    return seen.schema_found, seen.schema_oldest


def _is_sqlite(store: Store) -> bool:
    from holdfast.store.sqlite import SqliteStore

    return isinstance(store, SqliteStore)
