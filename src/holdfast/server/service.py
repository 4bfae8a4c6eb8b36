"""The server as a program runs it: it listens, serves until it is stopped, and takes its leave in order.

    async with Service(engine, port=0) as service:
        print(service.url)

Stopping, it takes nothing new, answers all who wait (leases, streams) at once, lets requests that are under
way end, and closes. Whoever was waiting asks again, elsewhere or when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Self

import uvicorn

from holdfast.core.errors import InvalidInput
from holdfast.engine import Engine
from holdfast.server.access import Access
from holdfast.server.app import create_app
from holdfast.server.protocol import BoundedProtocol
from holdfast.server.services import Services
from holdfast.tasks import end_tasks
from holdfast.wire import PORT_DEFAULT

log = logging.getLogger("holdfast.server")

HOST_DEFAULT = "127.0.0.1"
KEEP_ALIVE_SECONDS = 75
ENDING_SECONDS_MAX = 10
BACKLOG = 2_048
# Each stream and each worker that waits has a connection.
OPEN_FILES_WANTED = 65_536


def own_version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


class Service:
    """`port` 0 takes a free one; `url` tells it once it listens. `token` is an admin's, beside those of the
    database; without one, and on loopback, none is needed unless `require_token` says so."""

    def __init__(
        self,
        engine: Engine,
        *,
        host: str = HOST_DEFAULT,
        port: int = PORT_DEFAULT,
        token: str | None = None,
        require_token: bool = False,
    ) -> None:
        self._host = host
        self._port = port
        self._access = Access(host, engine.tokens, secret=token, required=require_token)
        self.services = Services.of(engine, version=own_version())
        config = uvicorn.Config(
            create_app(self.services, self._access),
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # who asks is who is connected, whatever a header says
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=ENDING_SECONDS_MAX,
            backlog=BACKLOG,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.url = ""

    @property
    def asks_for_tokens(self) -> bool:
        return self._access.is_required

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        await self._access.check_start()
        listening = _listening(self._host, self._port)
        port = listening.getsockname()[1]
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{shown}:{port}"
        _allow_many_files()
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise RuntimeError("the server ended as it was started")
            await asyncio.sleep(0.005)
        self._keeping = asyncio.create_task(self.services.engine.keeper.run())

    async def ended(self) -> None:
        """Once it serves no more, for whatever reason."""
        assert self._serving is not None
        await asyncio.wait([self._serving])
        self._serving.result()

    def begin_stop(self) -> None:
        """Take nothing new, and answer all who wait."""
        self.services.is_stopping = True
        self.services.desk.close()
        self.services.live.begin_close()
        self._server.should_exit = True

    async def stop(self) -> None:
        self.begin_stop()
        await self.services.close()
        await self._access.close()
        if self._serving is not None:
            await asyncio.wait([self._serving])
        await self.services.counting.close()
        if self._keeping is not None:
            await end_tasks(self._keeping)
            await self.services.engine.keeper.close()
        if self._serving is not None and not self._serving.cancelled():
            self._serving.result()


class _Server(uvicorn.Server):
    """Whoever runs it hears the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listening(host: str, port: int) -> socket.socket:
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise InvalidInput(
            f"There is no address {host!r} to listen on: {error}.", guidance="Name one of this machine's."
        ) from error
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise InvalidInput(
                f"Port {port} of {host} is in use: another server may run there already.",
                guidance="Choose another one with --port, or 0 for any that is free.",
            ) from error
        raise InvalidInput(
            f"It is not possible to listen on {host}, port {port}: {error.strerror}.",
            guidance="Choose another address with --host, or a port from 1024 on.",
        ) from error
    listening.setblocking(False)
    return listening


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
