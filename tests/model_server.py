"""A service with an OpenAI-compatible API on loopback, that fails as real ones do, when a test says so.

    with ModelServer() as server:
        server.fails = seeded(7, 0.3)              # or a rule of the test's own: Asked -> Fault | None
        … HOLDFAST_EMBEDDINGS_URL = server.url, HOLDFAST_EMBEDDINGS_MODEL = "test-model"
        assert server.answered_texts["some text"] == 1

The vector of a text is made from its hash: the same for the same text, in whatever process. What counts as
answered was written to the connection in full.
"""

from __future__ import annotations

import hashlib
import json
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Kind = Literal["busy", "unavailable", "hang", "reset", "cut", "html", "status", "wrong_dimensions", "body"]

DIMENSIONS = 32
API_KEY = "sk-test-key-0123456789"


@dataclass(frozen=True)
class Fault:
    kind: Kind
    status: int = 500
    retry_after: str | None = None
    body: Any = None


@dataclass(frozen=True)
class Asked:
    number: int
    """From 1, in the order in which requests came."""
    path: str
    body: dict[str, Any]
    headers: dict[str, str] = field(repr=False)
    peer: tuple[str, int]

    @property
    def texts(self) -> list[str]:
        return list(self.body.get("input", []))


BUSY = Fault("busy", 429, retry_after="0")
UNAVAILABLE = Fault("unavailable", 503)
HANG = Fault("hang")
RESET = Fault("reset")
CUT = Fault("cut")
HTML = Fault("html")
WRONG_DIMENSIONS = Fault("wrong_dimensions")
FAULTS = (BUSY, UNAVAILABLE, HANG, RESET, CUT, HTML, WRONG_DIMENSIONS)


def seeded(seed: int, share: float, faults: tuple[Fault, ...] = FAULTS) -> Callable[[Asked], Fault | None]:
    """Of all requests that share fails; which ones, and how, the seed tells by their number."""

    def fails(asked: Asked) -> Fault | None:
        draw = random.Random(f"{seed} {asked.number}")
        return draw.choice(faults) if draw.random() < share else None

    return fails


def first(count: int, fault: Fault) -> Callable[[Asked], Fault | None]:
    return lambda asked: fault if asked.number <= count else None


def vector_of(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    draw = random.Random(hashlib.sha256(text.encode()).digest())
    return [draw.uniform(-1.0, 1.0) for _ in range(dimensions)]


def _said(_: dict[str, Any]) -> str:
    return "An answer."


class ModelServer:
    def __init__(self, *, dimensions: int = DIMENSIONS, api_key: str | None = None) -> None:
        self.dimensions = dimensions
        self.fails: Callable[[Asked], Fault | None] = lambda _: None
        self.says: Callable[[dict[str, Any]], str] = _said
        """What a chat is answered."""
        self.requests: list[Asked] = []
        self.asked_texts: Counter[str] = Counter()
        """How often each was sent here."""
        self.answered_texts: Counter[str] = Counter()
        """How often the vector of each was given."""
        self.answered_chats: list[dict[str, Any]] = []
        self._api_key = api_key
        self._lock = threading.Lock()
        self._released = threading.Event()
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                return None

            def do_POST(self) -> None:
                model._serve(self)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                return None  # a client that gave up is what some tests are about

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers.get("content-length") or 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self._lock:
            asked = Asked(len(self.requests) + 1, handler.path, body, headers, handler.client_address[:2])
            self.requests.append(asked)
            if handler.path.endswith("/embeddings"):
                self.asked_texts.update(asked.texts)
        if self._api_key is not None and headers.get("authorization") != f"Bearer {self._api_key}":
            key = headers.get("authorization", "none").removeprefix("Bearer ")
            self._write(handler, 401, {"error": {"message": f"Incorrect API key provided: {key}."}})
            return
        fault = self.fails(asked)
        if fault is None:
            self._answer(handler, asked)
        else:
            self._fail(handler, asked, fault)

    def _answer(self, handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        if asked.path.endswith("/embeddings"):
            self._write(handler, 200, self._embeddings(asked, self.dimensions))
            with self._lock:
                self.answered_texts.update(asked.texts)
        elif asked.path.endswith("/chat/completions"):
            said = {"role": "assistant", "content": self.says(asked.body)}
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            self._write(handler, 200, {"object": "chat.completion", "choices": [choice]})
            with self._lock:
                self.answered_chats.append(asked.body)
        else:
            self._write(handler, 404, {"error": {"message": f"no such path: {asked.path}"}})

    def _embeddings(self, asked: Asked, dimensions: int) -> dict[str, Any]:
        """From the last to the first: their numbers are what counts."""
        data = [
            {"object": "embedding", "index": index, "embedding": vector_of(text, dimensions)}
            for index, text in enumerate(asked.texts)
        ]
        return {"object": "list", "model": asked.body.get("model"), "data": data[::-1]}

    def _fail(self, handler: BaseHTTPRequestHandler, asked: Asked, fault: Fault) -> None:
        more = {} if fault.retry_after is None else {"retry-after": fault.retry_after}
        if fault.kind == "hang":
            self._released.wait(60)
            handler.close_connection = True
        elif fault.kind == "reset":
            self._begin(handler)
            # Closed with nothing left to send and unread data thrown away: the other side sees a reset.
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
            handler.close_connection = True
        elif fault.kind == "cut":
            whole = json.dumps(self._embeddings(asked, self.dimensions)).encode()
            self._write_bytes(handler, 200, whole[: len(whole) // 2], "application/json", more)
        elif fault.kind == "html":
            page = b"<html><body><h1>Welcome to the network</h1></body></html>"
            self._write_bytes(handler, 200, page, "text/html", more)
        elif fault.kind == "wrong_dimensions":
            answer = self._embeddings(asked, self.dimensions)
            if answer["data"]:
                answer["data"][0]["embedding"].append(0.5)
            self._write(handler, 200, answer, more)
        elif fault.kind == "body":
            self._write(handler, fault.status if fault.status != 500 else 200, fault.body, more)
        else:
            words = fault.body or {"error": {"message": f"answered {fault.status} by the test"}}
            self._write(handler, fault.status, words, more)

    def _begin(self, handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(
            b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5000\r\n\r\n{"object": "li'
        )
        handler.wfile.flush()

    def _write(
        self, handler: BaseHTTPRequestHandler, status: int, body: Any, more: dict[str, str] | None = None
    ) -> None:
        self._write_bytes(handler, status, json.dumps(body).encode(), "application/json", more or {})

    def _write_bytes(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        content_type: str,
        more: dict[str, str],
    ) -> None:
        handler.send_response(status)
        for name, value in {"content-type": content_type, **more}.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        handler.wfile.flush()
