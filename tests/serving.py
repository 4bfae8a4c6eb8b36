"""How tests speak with a server: one in the test's own event loop, on a free port, over real sockets.

    async with serving(store_url) as s:
        started = await s.post("/api/executions", {"path": "p"})
        assert started.status == 201
        [job] = (await s.lease()).json["jobs"]

`define` registers pipelines whose steps only tests run. `open_socket` is for what no client would send.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec

from engine_scenario import stage
from holdfast.client.connection import HttpConnection
from holdfast.client.transport import Transport
from holdfast.core.errors import ServerUnavailable
from holdfast.core.model import Lane
from holdfast.engine import Engine
from holdfast.engine.sweeper import Sweeper
from holdfast.playbook.definition import Definition, Step
from holdfast.server.service import Service
from holdfast.store import Store, store_from_url
from holdfast.tasks import end_tasks
from ports import kept_port
from running import run


class Answered(NamedTuple):
    status: int
    headers: httpx.Headers
    content: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.content)

    @property
    def code(self) -> str:
        """The word that an error is told by."""
        return str(self.json["error"]["code"])


class Served:
    def __init__(self, service: Service, store: Store, http: httpx.AsyncClient) -> None:
        self.service = service
        self.store = store
        self.engine = service.services.engine
        self.http = http
        self.url = service.url

    async def send(self, method: str, path: str, body: Any = None, **more: Any) -> Answered:
        if body is not None and "content" not in more:
            more = {"content": msgspec.json.encode(body), **more}
            more["headers"] = httpx.Headers(more.get("headers"))
            more["headers"].setdefault("content-type", "application/json")
        response = await self.http.request(method, path, **more)
        return Answered(response.status_code, response.headers, response.content)

    async def get(self, path: str, /, **query: Any) -> Answered:
        return await self.send("GET", path, params=query)

    async def post(self, path: str, body: Any = None, **more: Any) -> Answered:
        return await self.send("POST", path, body, **more)

    async def define(self, *steps: Step, path: str = "p") -> None:
        await self.engine.publish(Definition(path=path, steps=steps or (stage("a"),)))

    async def start(self, workload: Any = None, path: str = "p", **more: Any) -> int:
        answer = await self.post("/api/executions", {"path": path, "workload": workload, **more})
        assert answer.status in (200, 201), answer
        return int(answer.json["id"])

    async def lease(self, worker_id: str = "w1", limit: int = 1, **more: Any) -> Answered:
        return await self.post("/api/queue/lease", {"worker_id": worker_id, "limit": limit, **more})

    async def lease_one(self, **more: Any) -> dict[str, Any]:
        [job] = (await self.lease(**more)).json["jobs"]
        found: dict[str, Any] = job
        return found

    async def complete(self, job: dict[str, Any], result: Any = None) -> Answered:
        return await self.report({**_named(job), "type": "action_completed", "result": result})

    async def fail(self, job: dict[str, Any], message: str = "connection refused", **told: Any) -> Answered:
        error = {"message": message, **told}
        return await self.report({**_named(job), "type": "action_error", "error": error})

    async def report(self, *outcomes: dict[str, Any]) -> Answered:
        return await self.post("/api/events", {"outcomes": outcomes})

    async def status(self, execution_id: int) -> str:
        return str((await self.get(f"/api/executions/{execution_id}")).json["status"])

    async def lives(self) -> bool:
        return (await self.get("/healthz")).status == 200 and (await self.get("/readyz")).status == 200

    async def open_socket(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = urlsplit(self.url)
        return await asyncio.open_connection(address.hostname, address.port)


def _named(job: dict[str, Any]) -> dict[str, Any]:
    return {"queue_id": job["queue_id"], "fence": job["fence"]}


@asynccontextmanager
async def serving(
    url: str, *, sweep: bool = False, token: str | None = None, require_token: bool = False
) -> AsyncIterator[Served]:
    store = store_from_url(url)
    await store.open()
    sweeping: asyncio.Task[None] | None = None
    try:
        engine = Engine(store)
        if require_token:
            await engine.tokens.create("first", "admin")  # or it would not listen
        if sweep:
            sweeping = asyncio.create_task(Sweeper(engine, lease_seconds=3.0).run())
        with kept_port() as port:  # where a story stops its server and starts another one
            async with Service(engine, port=port, token=token, require_token=require_token) as service:
                headers = {} if token is None else {"authorization": f"Bearer {token}"}
                async with httpx.AsyncClient(
                    base_url=service.url, headers=headers, timeout=60, trust_env=False
                ) as http:
                    yield Served(service, store, http)
    finally:
        if sweeping is not None:
            await end_tasks(sweeping)
        await store.close()


# What a worker of Holdfast's own asks a connection for.
LEASING: dict[str, Any] = {
    "lease_seconds": 60.0,
    "lanes": (Lane.MANUAL, Lane.BULK),
    "alone": False,
    "bulk": None,
    "limited": None,
    "ageing_seconds": None,
}


@asynccontextmanager
async def connected(s: Served, **options: Any) -> AsyncIterator[HttpConnection]:
    """As a worker is to the server."""
    connection = HttpConnection(Transport(s.url), **options)
    try:
        yield connection
    finally:
        await connection.close()


@contextmanager
def answers_lost(connection: HttpConnection) -> Iterator[None]:
    """What the server does for this connection is done, and its answers never arrive."""
    send = connection._transport.send

    async def lost(*args: Any, **more: Any) -> Any:
        await send(*args, **more)
        raise ServerUnavailable("the answer was lost")

    connection._transport.send = lost  # type: ignore[method-assign]
    try:
        yield
    finally:
        connection._transport.send = send  # type: ignore[method-assign]


def on_a_server(url: str, story: Callable[[Served], Awaitable[None]], **options: Any) -> None:
    """Play a story on a server of this store."""

    async def play() -> None:
        async with serving(url, **options) as served:
            await story(served)

    run(play())
