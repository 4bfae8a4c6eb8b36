"""The service that the demo works against: a real HTTP server on a free local port that really fails.

    GET /catalogue/NAME    the report's checksum
    GET /files/NAME        the report
    PUT /summaries/NAME    keeps a summary; the same one again changes nothing

Each fault belongs to one path and is used up by the requests to it, in their order; then the path works.
One file is large, and comes in pieces over a line that is slow until `speed_up()` is called.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any

HANG_SECONDS = 10.0
RETRY_AFTER_SECONDS = 1

_DAYS = ("mon", "tue", "wed", "thu", "fri")
_REGIONS = ("inland", "north", "south", "east", "west", "coast", "islands", "plains")
CORRUPTED = "islands.csv"
LARGE = "plains.csv"
_LARGE_ROWS = 20_000
_PIECES = 50
_PAUSE_SECONDS = 0.13
# Beyond this part the slow line all but stops: there is time to do something to whoever waits for the rest.
_SLOW_FROM = 0.6
_SLOW_PAUSE_SECONDS = 1.0
_FAST_PAUSE_SECONDS = 0.04

# What goes wrong, in the words of the demo's introduction.
TROUBLES: dict[str, str] = {
    "inland.csv": "nothing goes wrong",
    "north.csv": "fetch is answered 503, twice",
    "south.csv": "locate hangs for longer than its timeout, once",
    "east.csv": "fetch loses its connection in the middle, once",
    "west.csv": "publish is answered 429, once",
    "coast.csv": "locate gets an answer that nobody has seen before, once",
    CORRUPTED: "the file itself is corrupted",
    LARGE: "large, on a slow line; its worker is killed during fetch",
}


def _report(region: str, number: int) -> bytes:
    days = _DAYS * (_LARGE_ROWS // len(_DAYS)) if f"{region}.csv" == LARGE else _DAYS
    rows = [f"{day},{100 * number + 7 * place}" for place, day in enumerate(days, start=1)]
    return "\n".join(["day,sales", *rows, ""]).encode()


class Service:
    """Started by `with service.running()`; `repair` puts the whole file where the corrupted one was."""

    def __init__(self) -> None:
        whole = {f"{region}.csv": _report(region, number) for number, region in enumerate(_REGIONS, start=1)}
        self.checksums = {name: hashlib.sha256(body).hexdigest() for name, body in whole.items()}
        self.files = whole | {CORRUPTED: whole[CORRUPTED][:-20]}
        self.summaries: dict[str, Any] = {}
        self.stopping = threading.Event()
        self._whole = whole
        self._faults: dict[str, list[Fault]] = {
            "/catalogue/coast.csv": [_odd_answer],
            "/catalogue/south.csv": [_hang],
            "/files/north.csv": [_unavailable, _unavailable],
            "/files/east.csv": [_reset],
            "/summaries/west.csv": [_too_many_requests],
        }
        self._is_slow = True
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Service]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="demo-service")
        thread.start()
        try:
            yield self
        finally:
            self.stopping.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def repair(self, name: str) -> None:
        self.files = self.files | {name: self._whole[name]}

    def speed_up(self) -> None:
        self._is_slow = False

    def pause_before(self, fraction: float) -> None:
        """Between the pieces of the large file."""
        slow = _SLOW_PAUSE_SECONDS if fraction >= _SLOW_FROM else _PAUSE_SECONDS
        self.stopping.wait(slow if self._is_slow else _FAST_PAUSE_SECONDS)

    def next_fault(self, path: str) -> Fault | None:
        with self._lock:
            faults = self._faults.get(path)
            return faults.pop(0) if faults else None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        class Bound(_Handler):
            service = self

        return Bound


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up waiting is part of the story, and no reason for a stack trace."""


class _Handler(BaseHTTPRequestHandler):
    service: Service
    server: BaseServer

    def do_GET(self) -> None:
        fault = self.service.next_fault(self.path)
        if fault is not None:
            return fault(self)
        kind, _, name = self.path.strip("/").partition("/")
        if kind == "catalogue" and name in self.service.checksums:
            return self.answer(200, json.dumps({"sha256": self.service.checksums[name]}).encode())
        if kind == "files" and name == LARGE:
            return self.answer_in_pieces(self.service.files[name])
        if kind == "files" and name in self.service.files:
            return self.answer(200, self.service.files[name])
        self.answer(404, b"not found")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        fault = self.service.next_fault(self.path)
        if fault is not None:
            return fault(self)
        self.service.summaries[self.path.rpartition("/")[2]] = json.loads(body)
        self.answer(200, b"kept")

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self._begin(status, len(body), headers)
        self.wfile.write(body)

    def answer_in_pieces(self, body: bytes) -> None:
        self._begin(200, len(body), {})
        size = -(-len(body) // _PIECES)
        for start in range(0, len(body), size):
            self.service.pause_before(start / len(body))
            self.wfile.write(body[start : start + size])

    def _begin(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what matters is told by the events."""


Fault = Callable[[_Handler], None]


def _unavailable(handler: _Handler) -> None:
    handler.answer(503, b"down for a moment", Retry_After=str(RETRY_AFTER_SECONDS))


def _too_many_requests(handler: _Handler) -> None:
    handler.answer(429, b"slow down", Retry_After=str(RETRY_AFTER_SECONDS))


def _odd_answer(handler: _Handler) -> None:
    handler.answer(200, b"<<warming up>>")


def _hang(handler: _Handler) -> None:
    handler.service.stopping.wait(HANG_SECONDS)


def _reset(handler: _Handler) -> None:
    """Half the file, then a reset connection."""
    body = handler.service.files[handler.path.rpartition("/")[2]]
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[: len(body) // 2])
    handler.service.stopping.wait(0.05)  # so that the first half is read before it ends
    # Without lingering, closing sends a reset instead of an orderly end.
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    socket.socket(fileno=handler.connection.detach()).close()
