"""What the commands share: the options `--db`, `--json` and `--by`, and how a database is opened.

    @click.command()
    @database_option
    @json_option
    def queue(url: str, as_json: bool) -> None:
        from holdfast.cli.output import show_json, table

        async def look() -> Page:
            async with opened(url) as engine:
                return await engine.queue()

        page = asyncio.run(look())

How things are shown is in `output.py`. An error is raised as what it is: `cli/__init__.py` makes a
sentence and an exit code of it, or JSON where `--json` was given.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.core.errors import StoreUnusable

if TYPE_CHECKING:
    from holdfast.engine import Engine
    from holdfast.store import Store

Command = TypeVar("Command", bound=Callable[..., Any])

URL_DEFAULT = "sqlite:///holdfast.db"
URL_VARIABLE = "HOLDFAST_DB"

FOREIGN_ADVICE = f"Give Holdfast a file of its own (--db, {URL_VARIABLE}); it leaves this one as it is."

EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_DATABASE = 3


def database_option(command: Command) -> Command:
    return click.option(
        "--db",
        "url",
        envvar=URL_VARIABLE,
        default=URL_DEFAULT,
        metavar="URL",
        help=f"The database: sqlite:///file.db or postgresql://…  [env: {URL_VARIABLE};"
        f" default: {URL_DEFAULT}]",
    )(command)


def json_option(command: Command) -> Command:
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON on stdout, and nothing else; errors too."
    )(command)


def by_option(command: Command) -> Command:
    return click.option(
        "--by",
        default=login_name,
        metavar="NAME",
        help="Who does it, for the history.  [default: your login name]",
    )(command)


def login_name() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number that has no name
        return f"uid {os.getuid()}"


@contextlib.asynccontextmanager
async def opened(url: str, *, create: bool = False) -> AsyncIterator[Engine]:
    """The engine on the database of this address, its schema brought up to date. A SQLite file that is
    not there is made with `create` only: whoever looks wants to know that they look in the wrong place."""
    from holdfast.engine import Engine

    store = store_of(url)
    if not create:
        refuse_missing_file(store)
    await store.open()
    try:
        yield Engine(store)
    finally:
        await store.close()


async def check_batch(engine: Engine, batch_id: int | None) -> None:
    """Nothing found in a batch that is not there would pass for good news."""
    if batch_id is not None:
        await engine.batches.check(batch_id)


def store_of(url: str) -> Store:
    from holdfast.store import store_from_url

    return store_from_url(url)


def refuse_missing_file(store: Store) -> None:
    from holdfast.store.sqlite import SqliteStore

    if isinstance(store, SqliteStore) and not store.path.exists():
        raise StoreUnusable(
            f"There is no database {store.path}.",
            guidance=f"Name yours with --db or {URL_VARIABLE}; `holdfast migrate` makes a new one.",
        )
