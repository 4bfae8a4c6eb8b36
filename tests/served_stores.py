"""Stores behind a server in a thread of the test's process, on a free port of 127.0.0.1.

A test whose commands are to go through a server asks for a store that is served (one of the kinds of
`store_url` in tests/cli) and goes on as if there were none: `command_scenario.holdfast` puts `--server` in
the place of `--db` for it. What the test itself does with the database, it does beside the server, as other
programs do.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from holdfast.engine import Engine
from holdfast.server.service import Service
from holdfast.store import store_from_url

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0

# The servers that stand in front of these databases at this moment.
_SERVED: dict[str, str] = {}


def address_options(url: str) -> list[str]:
    """What is typed to reach this database, or the server in front of it."""
    if url in _SERVED:
        return ["--server", _SERVED[url]]
    return ["--server" if url.startswith("http") else "--db", url]


@contextlib.contextmanager
def served(url: str, *, token: str | None = None, port: int = 0) -> Iterator[str]:
    """A server for this database, without a worker and without a sweeper; its address."""
    serving = _Serving(url, token, port)
    serving.start()
    try:
        assert serving.is_up.wait(START_SECONDS_MAX), "the server did not start"
        if serving.error is not None:
            raise serving.error
        yield serving.address
    finally:
        serving.stop()
        serving.join(STOP_SECONDS_MAX)
        assert not serving.is_alive(), "the server did not stop"


@contextlib.contextmanager
def commands_go_through_a_server(url: str) -> Iterator[None]:
    with served(url) as address:
        _SERVED[url] = address
        try:
            yield
        finally:
            del _SERVED[url]


class _Serving(threading.Thread):
    def __init__(self, url: str, token: str | None, port: int) -> None:
        super().__init__(name="test server", daemon=True)
        self._url = url
        self._token = token
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self.is_up = threading.Event()
        self.error: BaseException | None = None
        self.address = ""

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.error = error
        finally:
            self.is_up.set()

    async def _serve(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        store = store_from_url(self._url)
        await store.open()
        try:
            async with Service(Engine(store), port=self._port, token=self._token) as service:
                self.address = service.url
                self.is_up.set()
                await self._ending.wait()
        finally:
            await store.close()

    def stop(self) -> None:
        if self._loop is not None and self._ending is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._ending.set)
