"""What the commands share: the options `--db`, `--server`, `--json` and `--by`, and how a database is opened.

    @click.command()
    @database_option
    @json_option
    def queue(url: str, as_json: bool) -> None:
        from holdfast.cli.output import show_json, table

        async def look() -> Page:
            async with opened(url) as engine:
                return await engine.queue()

        page = asyncio.run(look())

A command has one `url`: the database's, or that of a server in front of one, which then does what is asked.
How things are shown is in `output.py`. An error is raised as what it is: `cli/__init__.py` makes a
sentence and an exit code of it, or JSON where `--json` was given.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from holdfast.core.errors import StoreUnusable

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.client import AnyEngine, Client
    from holdfast.store import Store

Command = TypeVar("Command", bound=Callable[..., Any])

URL_DEFAULT = "sqlite:///holdfast.db"
URL_VARIABLE = "HOLDFAST_DB"
SERVER_VARIABLE = "HOLDFAST_SERVER"

ADDRESS = "holdfast.cli.address"  # of the command that runs, in its context

FOREIGN_ADVICE = f"Give Holdfast a file of its own (--db, {URL_VARIABLE}); it leaves this one as it is."

EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_DATABASE = 3
EXIT_INTERRUPTED = 130


def database_option(command: Command) -> Command:
    """`--db` and `--server`; the command gets the one that counts as its `url`."""

    @functools.wraps(command)
    def addressed(*args: Any, db: str, server: str | None, **options: Any) -> Any:
        url = click.get_current_context().meta[ADDRESS] = address_of(db, server)
        return command(*args, url=url, **options)

    for option in (
        click.option(
            "--server",
            envvar=SERVER_VARIABLE,
            metavar="URL",
            help=f"A Holdfast server in place of the database: http://host:port  [env: {SERVER_VARIABLE}]",
        ),
        click.option(
            "--db",
            envvar=URL_VARIABLE,
            default=URL_DEFAULT,
            metavar="URL",
            help=f"The database: sqlite:///file.db or postgresql://…  [env: {URL_VARIABLE};"
            f" default: {URL_DEFAULT}]",
        ),
    ):
        option(addressed)
    return cast(Command, addressed)


def address_of(db: str, server: str | None) -> str:
    """What was typed counts before the environment, and there the server before the database. A server's
    address is taken from either option."""
    from holdfast.addresses import check_server_url, is_server

    typed = {name for name in ("db", "server") if _is_typed(name)}
    if typed == {"db", "server"}:
        raise click.UsageError(
            "--db and --server name two places: give one of them.", click.get_current_context()
        )
    if server is not None and "db" not in typed:
        return check_server_url(server)
    return check_server_url(db) if is_server(db) else db


def _is_typed(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


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
async def opened(url: str, *, create: bool = False) -> AsyncIterator[AnyEngine]:
    """The engine on the database of this address, its schema brought up to date; where it is a server's, what
    stands for the engine here. A SQLite file that is not there is made with `create` only: whoever looks
    wants to know that they look in the wrong place."""
    from holdfast.addresses import is_server

    if is_server(url):
        async with opened_client(url) as client:
            yield client
        return
    from holdfast.engine import Engine
    from holdfast.pipelines.registry import provide_all

    store = store_of(url)
    if not create:
        refuse_missing_file(store)
    await store.open()
    engine = Engine(store)
    provide_all(engine)
    try:
        yield engine
    finally:
        await engine.keeper.close()
        await store.close()


@contextlib.asynccontextmanager
async def opened_client(url: str) -> AsyncIterator[Client]:
    """Of a server that is there and lets us in."""
    from holdfast.client import Client

    client = Client(url)
    try:
        await client.open()
        yield client
    finally:
        await client.close()


async def check_batch(engine: AnyEngine, batch_id: int | None) -> None:
    """Nothing found in a batch that is not there would pass for good news."""
    if batch_id is not None:
        await engine.batches.check(batch_id)


def store_of(url: str) -> Store:
    from holdfast.store import store_from_url

    return store_from_url(url)


def missing_file(store: Store) -> Path | None:
    """The SQLite file that it would make."""
    from holdfast.store.sqlite import SqliteStore

    return store.path if isinstance(store, SqliteStore) and not store.path.exists() else None


def refuse_missing_file(store: Store) -> None:
    if (path := missing_file(store)) is not None:
        raise StoreUnusable(
            f"There is no database {path}.",
            guidance=f"Name yours with --db or {URL_VARIABLE}, or a server with --server; `holdfast migrate`"
            " makes a new one.",
        )
