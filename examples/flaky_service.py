"""A small service for the examples: it fails on purpose, always in the same order, and heals.

    python3 examples/flaky_service.py              listens on http://127.0.0.1:9000
    python3 examples/flaky_service.py --port 0     on a free port, which it prints

GET /flaky             503, 503, then three rows; and so on from the beginning
GET /down              503, always
GET /cities            the names of four cities
GET /weather/<city>    503 once for every second city, then its temperature; 404 for a city it does not know
GET /report            202 {"ready": false} twice, then 200 {"ready": true, "pages": 12}; and so on

Only the standard library, only this machine, nothing kept: a new start forgets everything.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEMPERATURES = {"Bergen": 7, "Porto": 18, "Tartu": 4, "Zagreb": 11}
ROWS = [
    {"name": "apples", "price": 3},
    {"name": "pears", "price": 4},
    {"name": "plums", "price": 7},
]


class FlakyService(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self, what: str) -> int:
        """How often it has been asked for, this time included."""
        with self._lock:
            self._asked[what] += 1
            return self._asked[what]


class Handler(BaseHTTPRequestHandler):
    server: FlakyService

    def do_GET(self) -> None:
        status, answer = self._answer(self.path)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, path: str) -> tuple[int, object]:
        if path == "/flaky":
            if self.server.count(path) % 3:
                return 503, {"error": "not now"}
            return 200, {"ok": True, "rows": ROWS}
        if path == "/down":
            return 503, {"error": "closed"}
        if path == "/cities":
            return 200, list(TEMPERATURES)
        if path == "/report":
            is_ready = self.server.count(path) % 3 == 0
            return (200, {"ready": True, "pages": 12}) if is_ready else (202, {"ready": False})
        city = path.removeprefix("/weather/")
        if city not in TEMPERATURES:
            return 404, {"error": f"there is no {path}"}
        is_shy = list(TEMPERATURES).index(city) % 2 == 1
        if is_shy and self.server.count(path) == 1:
            return 503, {"error": "the station does not answer"}
        return 200, {"city": city, "celsius": TEMPERATURES[city]}


def main() -> None:
    parser = argparse.ArgumentParser(description="A service that fails on purpose, for the examples.")
    parser.add_argument("--port", type=int, default=9000, help="where it listens; 0 takes a free one")
    arguments = parser.parse_args()
    try:
        service = FlakyService(arguments.port)
    except OSError as error:
        parser.exit(1, f"Port {arguments.port} cannot be used: {error.strerror}. Another one: --port 0\n")
    with service:
        print(f"Listening on {service.url}. Ctrl-C ends it.", flush=True)
        try:
            service.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
