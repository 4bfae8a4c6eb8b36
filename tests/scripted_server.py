"""A real HTTP server on loopback whose answers a test writes, byte by byte where it wants to be nasty.

    with ScriptedServer() as server:
        server.answer("/flaky", 503)
        server.answer("/flaky", 200, json={"ok": True})
        … server.url + "/flaky"
        assert server.requests[0].headers["accept"] == "*/*"

Answers to one path are given in turn, and the last one again and again. It runs in a thread of its own, so
that a test's event loop can be as busy as it likes.
"""

from __future__ import annotations

import json as json_module
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    peer: tuple[str, int]
    """Whose connection it came on: the same for two requests on one connection."""


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    act: Callable[[BaseHTTPRequestHandler], None] | None = None
    """In place of all this: write to the connection what it likes."""


class ScriptedServer:
    def __init__(self, host: str = "127.0.0.1") -> None:
        self.requests: list[Received] = []
        self._answers: dict[str, list[Answer]] = {}
        self._released = threading.Event()
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                return None

            def _serve(self) -> None:
                scripted._serve(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                return None  # a client that went away is what some tests are about

        self._server = Server((host, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.host = host
        self.port: int = self._server.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def answer(
        self,
        path: str,
        status: int = 200,
        body: bytes | str = b"",
        *,
        json: Any = None,
        act: Callable[[BaseHTTPRequestHandler], None] | None = None,
        **headers: str,
    ) -> None:
        """Header names are written with _ in place of -."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if json is not None:
            body = json_module.dumps(json)
            given.setdefault("content-type", "application/json")
        encoded = body.encode() if isinstance(body, str) else body
        self._answers.setdefault(path, []).append(Answer(status, encoded, given, act))

    def hold(self, handler: BaseHTTPRequestHandler) -> None:
        """As `act` of an answer: say nothing until the test is over."""
        self._released.wait(120)
        handler.close_connection = True

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        target = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(
            Received(handler.command, target.path, target.query, headers, body, handler.client_address[:2])
        )
        queue = self._answers.get(target.path)
        if queue is None:
            answer = Answer(404, b"no such path")
        else:
            answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if answer.act is not None:
            answer.act(handler)
            return
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        if answer.status not in (204, 304) and "transfer-encoding" not in answer.headers:
            handler.send_header("content-length", str(len(answer.body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(answer.body)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def raw(*chunks: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    """Exactly these bytes, and then the connection is closed."""

    def act(handler: BaseHTTPRequestHandler) -> None:
        for chunk in chunks:
            handler.wfile.write(chunk)
        handler.wfile.flush()
        handler.close_connection = True

    return act
