"""A report portal for the examples: reports are asked for first and downloaded later, and both can go wrong.

    python3 examples/portal.py                       listens on http://127.0.0.1:9100
    python3 examples/portal.py --port 0 --verbose    on a free port, which it prints; a line for each request

POST /reports                 {"report": "north"} gives a ticket; the same Idempotency-Key, the same ticket
GET /reports/<ticket>         is it "preparing" or "ready"?
GET /reports/<ticket>/file    404 until it is ready, then the file; HEAD, Range and If-Range as they should be
GET /log                      every request so far, and how many were under way at once

What goes wrong is a list of troubles for each report and phase (`request`, `download`): each request meets
the first one and uses it up, unless it ends with `!` and stays. A download before the report is ready uses up
none. `--help` lists the troubles. They come from the options, from a test's plan, or, with --obey, from the
request itself: {"report": "north", "troubles": {"request": ["503"], "download": ["break", "410!"]}}.

    with Portal(plan=lambda phase, report: ["break"] if phase == "download" else []) as portal:
        … portal.url, portal.log, portal.at_once_max

The handler reads a request and enters it in the log, the portal decides on an Answer, a trouble takes its
place or damages it, and the handler delivers what came of it.

Only the standard library, only this machine, nothing kept: a new start forgets everything.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import fcntl
import gzip
import hashlib
import json
import math
import os
import random
import re
import select
import signal
import socket
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from email.message import Message
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import quote

Phase = Literal["request", "download", "other"]
Plan = Callable[[str, str], Sequence[str]]  # of phase and report
Write = tuple[bytes | memoryview, bool]  # what is written, and whether it belongs to the body

SIZE = 200_000
SIZE_MAX = 64 * 1024 * 1024
HUGE_SENT = bytes(64 * 1024 * 1024)  # of a file that is said to have HUGE_ANNOUNCED
HUGE_ANNOUNCED = 10 * 1000**4
BODY_BYTES_MAX = 1024 * 1024
PIECE_BYTES = 64 * 1024
SLOW_PIECES = 20
SLOW_PAUSE_SECONDS = 0.05
DRAIN_SECONDS_MAX = 5.0
STOP_SECONDS_MAX = 5.0
FILE_PATH = re.compile(r"/(?:reports|moved)/([^/]+)/file")
LOGIN_PAGE = b"<!doctype html><title>Sign in</title><form><input name=user><input type=password></form>\n"

TROUBLES: dict[str, str] = {
    # In the place of the answer: the portal makes nothing of the request.
    "400 to 599": "that status; 429 and 503 with Retry-After: 1",
    "202": "not ready, in other words",
    "204": "not ready, in other words",
    "hang": "says nothing",
    "reset": "a reset connection instead of an answer",
    "close": "a closed connection instead of an answer",
    "garbage": "bytes that are no HTTP",
    "html": "200 with a login page",
    "empty": "200 with nothing in it",
    # The answer, damaged: a report that was asked for is made all the same.
    "break": "half of the body, then closed although more was announced",
    "break-reset": "half of the body, then reset",
    "stall": "half of the body, then nothing any more",
    "slow": "the body in small pieces with pauses",
    "no-length": "half of the body without a length, which nobody can tell from a whole one",
    "chunked": "whole, in chunks",
    "chunked-break": "half of the body in chunks, then closed",
    "corrupt": "one byte is another one, and no header says so",
    "gzip": "compressed although nobody asked for that",
    "huge": "announces 10 TB and begins to send them",
    "huge-chunked": "goes on sending until the client leaves, or 64 MB are sent",
    # For requests only.
    "not-json": "200 with a body that is no JSON although its type says so",
    "no-ticket": "202 that does not say where the file will be",
    # For downloads only.
    "no-range": "ignores Range and sends all, with nothing to recognise the file by",
    "changed": "the file is another one from now on",
    "wrong-range": "206 with another part than was asked for",
    "wrong-checksum": "announces the checksum of another file",
    "redirect": "302 to the same file at another path",
    "name:…": "says that the file is called …",
}
REQUEST_ONLY = ("not-json", "no-ticket")
DOWNLOAD_ONLY = ("no-range", "changed", "wrong-range", "wrong-checksum", "redirect", "name:…")
SENDS_ALL = ("no-range", "no-length", "gzip", "huge", "huge-chunked")


@lru_cache(maxsize=8)
def content_of(report: str, size: int = SIZE, version: int = 0) -> bytes:
    """The file of a report: rows of numbers, always the same. The trouble `changed` counts the version up."""
    chance = random.Random(f"{version} {report}").randbytes(size // 2 + 32)
    rows = range(0, len(chance), 32)
    return "\n".join([chance[row : row + 32].hex(",", 4) for row in rows]).encode()[:size]


@lru_cache(maxsize=10_000)
def _sha256_of(report: str, size: int, version: int) -> bytes:
    return hashlib.sha256(content_of(report, size, version)).digest()


def break_at(total: int) -> int:
    """How many bytes of a body of `total` bytes are sent before it is cut off."""
    return total // 2


class UnknownTrouble(ValueError):
    """A list of troubles that cannot be met."""


def check_troubles(phase: str, troubles: object) -> list[str]:
    if phase not in ("request", "download"):
        raise UnknownTrouble(f"There is no phase {phase!r}. There are: request, download.")
    if not isinstance(troubles, list | tuple):
        raise UnknownTrouble(f"The troubles of a {phase} are a list, and this is none: {troubles!r}")
    there_are = [
        name for name in TROUBLES if name not in (DOWNLOAD_ONLY if phase == "request" else REQUEST_ONLY)
    ]
    for trouble in troubles:
        name = str(trouble).removesuffix("!")
        name = "name:…" if name.startswith("name:") else name
        name = "400 to 599" if re.fullmatch("[45][0-9][0-9]", name) else name
        if name not in there_are:
            raise UnknownTrouble(
                f"There is no trouble {trouble!r} for a {phase}. There are, with a ! at the end for ever: "
                f"{', '.join(there_are)}."
            )
    return [str(trouble) for trouble in troubles]


def chance_plan(seed: str, requests_fail: float, requests_dead: float, downloads_break: float) -> Plan:
    """So many percent of the reports meet these; which ones depends on the seed and their names only."""

    def plan(phase: str, report: str) -> list[str]:
        drawn = hashlib.sha256(f"{seed}\n{phase}\n{report}".encode()).digest()
        percent = int.from_bytes(drawn[:6]) / 2**48 * 100
        if phase == "download":
            return ["break"] if percent < downloads_break else []
        if percent < requests_dead:
            return ["403!"]
        return ["503"] if percent < requests_dead + requests_fail else []

    return plan


@dataclass(frozen=True)
class Entry:
    """A request in the log."""

    number: int
    at: float
    method: str
    path: str
    phase: Phase
    at_once: int
    """How many requests and downloads were under way when it came, itself included."""
    report: str | None = None
    ticket: str | None = None
    key: str | None = None
    range: int = 0
    """The first byte that was asked for."""
    status: int | None = None
    """None while it is under way, 0 if it ended without an answer."""
    sent: int = 0
    """Bytes of the body, without the marks around chunks."""
    trouble: str | None = None
    """`rate` where there were too many requests."""


@dataclass
class Report:
    ticket: str
    name: str
    size: int
    asked: dict[str, Any]
    asked_at: float
    modified_at: float
    version: int = 0

    @property
    def content(self) -> bytes:
        return content_of(self.name, self.size, self.version)

    @property
    def sha256(self) -> bytes:
        return _sha256_of(self.name, self.size, self.version)


@dataclass(frozen=True)
class Answer:
    """What is delivered, and how. Status 0 is no answer at all: only the body's bytes, if any."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    framing: Literal["length", "chunked", "none"] = "length"
    ends: Literal["open", "close", "reset"] = "open"
    is_half: bool = False
    is_huge: bool = False
    stalls: bool = False
    is_slow: bool = False
    is_held: bool = False


def told(status: int, document: object, **headers: str) -> Answer:
    """JSON; header names are written with _ in place of -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(
        status, json.dumps(document).encode() + b"\n", {"Content-Type": "application/json", **named}
    )


INSTEAD: dict[str, Answer] = {
    "202": told(202, {"status": "preparing"}),
    "204": Answer(204),
    "hang": Answer(0, is_held=True, ends="close"),
    "reset": Answer(0, ends="reset"),
    "close": Answer(0, ends="close"),
    "garbage": Answer(0, b"\x16\x03\x01\x02 this is no HTTP \xff\xfe\r\n\r\n", ends="close"),
    "html": Answer(200, LOGIN_PAGE, {"Content-Type": "text/html; charset=utf-8"}),
    "empty": Answer(200, b"", {"Content-Type": "application/octet-stream"}),
}


def instead_of_an_answer(trouble: str) -> Answer | None:
    if re.fullmatch("[45][0-9][0-9]", trouble):
        waits = {"Retry_After": "1"} if trouble in ("429", "503") else {}
        return told(int(trouble), {"error": f"This is answered {trouble} on purpose."}, **waits)
    return INSTEAD.get(trouble)


DAMAGES: dict[str, dict[str, Any]] = {
    "break": {"is_half": True, "ends": "close"},
    "break-reset": {"is_half": True, "ends": "reset"},
    "stall": {"is_half": True, "stalls": True, "ends": "close"},
    "slow": {"is_slow": True},
    "no-length": {"is_half": True, "ends": "close", "framing": "none"},
    "chunked": {"framing": "chunked"},
    "chunked-break": {"is_half": True, "ends": "close", "framing": "chunked"},
    "huge": {"is_huge": True, "ends": "close"},
    "huge-chunked": {"is_huge": True, "ends": "close", "framing": "chunked"},
    "not-json": {"status": 200, "body": b'{"ticket": <warming up>\n'},
}
HEADERS_LOST = {"no-length": ("ETag", "Repr-Digest"), "not-json": ("Location",), "no-range": ("ETag",)}


def damaged(answer: Answer, trouble: str) -> Answer:
    """An answer as this trouble leaves it; those about ranges have been seen to before."""
    body, headers, half = answer.body, dict(answer.headers), break_at(len(answer.body))
    for name in HEADERS_LOST.get(trouble, ()):
        headers.pop(name, None)
    if trouble == "corrupt" and body:
        body = body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :]
    elif trouble == "gzip":  # as a proxy does that knows nothing of the other headers
        body, headers["Content-Encoding"] = gzip.compress(body, mtime=0), "gzip"
    elif trouble == "no-ticket":
        kept = {
            name: value for name, value in json.loads(body).items() if name not in ("ticket", "download_url")
        }
        return told(202, kept)
    elif trouble == "wrong-checksum":
        headers["Repr-Digest"] = _digest(hashlib.sha256(b"another file").digest())
    elif trouble.startswith("name:"):
        headers["Content-Disposition"] = disposition(trouble.removeprefix("name:"), twice=True)
    return replace(answer, **{"body": body, "headers": headers, **DAMAGES.get(trouble, {})})


def _digest(sha256: bytes) -> str:
    return f"sha-256=:{base64.b64encode(sha256).decode()}:"


def disposition(name: str, twice: bool = False) -> str:
    """The file's name; what a header cannot carry is in the second form only."""
    plain = re.sub("[^ -~]", "_", name)
    escaped = re.sub(r'(["\\])', r"\\\1", plain)
    second = f"; filename*=UTF-8''{quote(name, '', errors='replace')}" if twice or plain != name else ""
    return f'attachment; filename="{escaped}"{second}'


def span_asked(header: str | None, size: int) -> tuple[int, int] | None:
    """The first and the last byte. None where all is meant, or several parts, which a server may ignore."""
    match = re.fullmatch(r"\s*bytes\s*=\s*([0-9]{0,18})-([0-9]{0,18})\s*", header or "")
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size - 1
    if last and int(last) < int(first):
        return None
    return int(first), min(int(last or size), size - 1)


@dataclass(eq=False)
class Portal:
    """Serves in threads of its own between entering and leaving it. `ready_after` may be set at any time."""

    port: int = 0
    _: KW_ONLY
    ready_after: float = 0.0
    size: int = SIZE
    tells_checksum: bool = True
    pace: float | None = None
    rate: tuple[int, float] | None = None
    plan: Plan | None = None
    obeys: bool = False
    hang_seconds: float = 30.0
    tell: Callable[[Entry], None] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.size <= SIZE_MAX:
            raise ValueError(f"A file has up to {SIZE_MAX} bytes, not {self.size}.")
        if self.rate is not None and self.rate[0] < 1:
            raise ValueError(f"The rate is at least 1 request, not {self.rate[0]}.")
        self.at_once_max = self.reports_made = self._refused = 0
        self.stopping = threading.Event()
        self.lock = threading.RLock()
        self._log: list[Entry] = []
        self._under_way: dict[int, socket.socket] = {}
        self._reports: dict[str, Report] = {}
        self._by_key: dict[str, Report] = {}
        self._troubles: dict[tuple[str, str], list[str]] = {}
        self._obeyed: dict[tuple[str, str], list[str]] = {}
        self._admitted: deque[float] = deque()
        self._server = _Server(self)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Portal:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        self._server.stop()

    @property
    def log(self) -> tuple[Entry, ...]:
        with self.lock:
            return tuple(self._log)

    def begin(self, connection: socket.socket, method: str, path: str) -> int | None:
        """Enters a request in the log; its number, or None if it only looks at the portal itself."""
        if path in ("/", "/log"):
            return None
        is_file = FILE_PATH.fullmatch(path) and method in ("GET", "HEAD")
        is_request = (method, path) == ("POST", "/reports")
        phase: Phase = "download" if is_file else "request" if is_request else "other"
        with self.lock:
            number = len(self._log) + 1
            if phase != "other":
                # Whoever has left counts no longer, though its thread may not have noticed that yet.
                self._under_way = {n: there for n, there in self._under_way.items() if not _has_left(there)}
                self._under_way[number] = connection
                self.at_once_max = max(self.at_once_max, len(self._under_way))
            self._log.append(Entry(number, time.time(), method, path, phase, len(self._under_way)))
        return number

    def note(self, number: int, **changes: Any) -> Entry:
        with self.lock:
            self._log[number - 1] = replace(self._log[number - 1], **changes)
            return self._log[number - 1]

    def end(self, number: int, status: int, sent: int) -> Entry:
        with self.lock:
            self._under_way.pop(number, None)
            return self.note(number, status=status, sent=sent)

    @property
    def files_sent(self) -> int:
        """How many files went out to their end; one that came in two parts counts once."""
        rights = [entry for entry in self.log if entry.phase == "download" and entry.trouble != "corrupt"]
        sizes = {ticket: report.size for ticket, report in self._reports.items()}
        ends = [(entry.sent + entry.range if entry.status == 206 else entry.sent, entry) for entry in rights]
        return sum(end == sizes.get(entry.ticket or "") for end, entry in ends if entry.status in (200, 206))

    def over_rate(self) -> Answer | None:
        count_max, seconds = self.rate or (math.inf, 0.0)
        with self.lock:
            now = time.monotonic()
            while self._admitted and self._admitted[0] <= now - seconds:
                self._admitted.popleft()
            if len(self._admitted) < count_max:
                self._admitted.append(now)
                return None
            wait = max(1, math.ceil(self._admitted[0] + seconds - now))
            self._refused += 1
            in_seconds = self._refused % 2 == 1
        when = str(wait) if in_seconds else formatdate(math.ceil(time.time() + wait), usegmt=True)
        return told(429, {"error": f"More than {count_max} in {seconds:g} seconds."}, Retry_After=when)

    def request(self, number: int, body: bytes, key: str | None) -> Answer:
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            return told(400, {"error": "The body is no JSON."})
        name = asked.get("report") if isinstance(asked, dict) else None
        if not isinstance(name, str) or not (name.isprintable() and 0 < len(name) <= 200):
            return told(422, {"error": 'Name a report in up to 200 letters: {"report": "north"}'})
        size = asked.get("size", self.size)
        if type(size) is not int or not 0 <= size <= SIZE_MAX:
            return told(422, {"error": f"The size is a number of bytes up to {SIZE_MAX}, not {size!r}."})
        self.note(number, report=name, key=key)
        try:
            if self.obeys:
                self._obey(name, asked.get("troubles", {}))
        except UnknownTrouble as error:
            return told(422, {"error": str(error)})
        trouble = self._meet(number, "request", name)
        if instead := instead_of_an_answer(trouble):
            return instead
        with self.lock:
            report = self._by_key.get(key or "")
            status = 202 if report is None else 200
            if report is None:
                self.reports_made += 1
                ticket = f"T{self.reports_made}"
                report = Report(ticket, name, size, asked, time.monotonic(), time.time())
                self._reports[ticket] = report
                if key:
                    self._by_key[key] = report
        if report.asked != asked:
            return told(422, {"error": f"The key {key} was used for another request: {report.ticket}."})
        self.note(number, ticket=report.ticket)
        document = self.document(report)
        return damaged(told(status, document, Location=document["download_url"]), trouble)

    def download(self, number: int, ticket: str, headers: Message, is_head: bool) -> Answer:
        report = self._reports.get(ticket)
        if report is None:
            return told(404, {"error": f"There is no ticket {ticket}."})
        span = span_asked(headers.get("Range"), report.size)
        self.note(number, report=report.name, ticket=ticket, range=span[0] if span else 0)
        if not self._is_ready(report):
            return told(404, {"error": f"{ticket} is not ready yet.", "status": "preparing"})
        trouble = self._meet(number, "download", report.name)
        if trouble == "redirect":
            return Answer(302, headers={"Location": f"/moved/{ticket}/file"})
        if instead := instead_of_an_answer(trouble):
            return instead
        return damaged(self._file(report, headers, is_head, trouble), trouble)

    def status(self, path: str) -> Answer:
        report = self._reports.get(path.removeprefix("/reports/"))
        if path.startswith("/reports/") and report is not None:
            return told(200, {**self.document(report), "asked": report.asked})
        return told(404, {"error": f"There is no {path}."})

    def document(self, report: Report) -> dict[str, Any]:
        document = {
            "ticket": report.ticket,
            "report": report.name,
            "status": "ready" if self._is_ready(report) else "preparing",
            "download_url": f"/reports/{report.ticket}/file",
        }
        checksum = {"sha256": report.sha256.hex(), "size": report.size} if self.tells_checksum else {}
        return {**document, **checksum}

    def _is_ready(self, report: Report) -> bool:
        return time.monotonic() >= report.asked_at + self.ready_after

    def _obey(self, report: str, troubles: object) -> None:
        """A request that is sent again brings its troubles again, and those it met are over all the same."""
        if not isinstance(troubles, dict):
            raise UnknownTrouble('Troubles are given by phase: {"request": ["503"], "download": ["break"]}')
        checked = {phase: check_troubles(phase, troubles[phase]) for phase in troubles}
        with self.lock:
            for phase, given in checked.items():
                if self._obeyed.get((phase, report)) != given:
                    self._obeyed[phase, report] = given
                    self._troubles[phase, report] = list(given)

    def _meet(self, number: int, phase: str, report: str) -> str:
        """The trouble's name, or nothing."""
        with self.lock:
            if (phase, report) not in self._troubles:
                planned = self.plan(phase, report) if self.plan is not None else []
                self._troubles[phase, report] = check_troubles(phase, planned)
            troubles = self._troubles[phase, report]
            if not troubles:
                return ""
            trouble = troubles[0] if troubles[0].endswith("!") else troubles.pop(0)
            return self.note(number, trouble=trouble.removesuffix("!")).trouble or ""

    def _file(self, report: Report, headers: Message, is_head: bool, trouble: str) -> Answer:
        with self.lock:
            if trouble == "changed":
                report.version += 1
                report.modified_at = time.time()
            report = replace(report)  # as it is now, whatever another download does to it
        content, sha256 = report.content, report.sha256
        modified = formatdate(report.modified_at, usegmt=True)
        size, tag = len(content), f'"{sha256.hex()[:32]}"'
        about = {
            "Content-Type": "text/csv",
            "Content-Disposition": disposition(f"{report.name}.csv"),
            "ETag": tag,
            "Last-Modified": modified,
            **({"Repr-Digest": _digest(sha256)} if self.tells_checksum else {}),
        }
        if trouble in SENDS_ALL:
            return Answer(200, content, about)
        about["Accept-Ranges"] = "bytes"
        span = None if is_head else span_asked(headers.get("Range"), size)
        if headers.get("If-Range", tag) not in (tag, modified):
            span = None
        if trouble == "wrong-range" and size:
            first = span[0] if span else 0
            span = (first // 2 if 0 < first <= size else break_at(size), size - 1)
        if span is None:
            return Answer(200, content, about)
        first, last = span
        if first >= size:
            return told(416, {"error": f"The file has {size} bytes."}, Content_Range=f"bytes */{size}")
        about["Content-Range"] = f"bytes {first}-{last}/{size}"
        return Answer(206, content[first : last + 1], about)


def _has_left(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, portal: Portal) -> None:
        self.portal = portal
        self._open: set[Any] = set()
        super().__init__(("127.0.0.1", portal.port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        super().close_request(request)
        self._open.discard(request)

    def stop(self) -> None:
        """Hangs up, which wakes every thread that waits for its client, and waits until they have ended."""
        self.shutdown()
        self.server_close()
        for connection in self._open.copy():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while self._open and time.monotonic() < deadline:
            time.sleep(0.001)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is written in pieces, and none waits for the one before
    raw_requestline: bytes
    server: _Server
    _number: int | None = None
    _status = 0
    _sent = 0

    def setup(self) -> None:
        super().setup()
        self.portal = self.server.portal

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self.close_connection = True  # the client left, which is its right
        finally:
            self._close_entry()

    def parse_request(self) -> bool:
        method, target, *_ = [*self.raw_requestline.decode("latin-1").split(), "", ""]
        self._path = target.partition("?")[0]
        self._number = self.portal.begin(self.connection, method, self._path)
        self._status = self._sent = 0
        return super().parse_request()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong with a request."""
        self._deliver(replace(told(code, {"error": message or HTTPStatus(code).phrase}), ends="close"))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the log is the portal's."""

    def _serve(self) -> None:
        self._deliver(self._answer())

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve

    def _answer(self) -> Answer:
        length = self.headers.get("Content-Length", "0")
        is_number = "Transfer-Encoding" not in self.headers and re.fullmatch("[0-9]{1,9}", length)
        if not is_number or int(length) > BODY_BYTES_MAX:
            refused = told(
                413, {"error": f"A body says how long it is, and has at most {BODY_BYTES_MAX} bytes."}
            )
            return replace(refused, ends="close")
        body = self.rfile.read(int(length))
        if self._number is None:
            return self._about_itself()
        entry = self.portal.note(self._number)
        if entry.phase == "other":
            if self.command not in ("GET", "HEAD"):
                return told(405, {"error": f"{self._path} cannot be asked for with {self.command}."})
            return self.portal.status(self._path)
        if over_rate := self.portal.over_rate():
            self.portal.note(self._number, trouble="rate")
            return over_rate
        try:
            if entry.phase == "request":
                return self.portal.request(self._number, body, self.headers.get("Idempotency-Key"))
            ticket = self._path.split("/")[2]
            return self.portal.download(self._number, ticket, self.headers, self.command == "HEAD")
        except UnknownTrouble as error:
            return told(500, {"error": f"The plan is wrong. {error}"})

    def _about_itself(self) -> Answer:
        if self._path == "/":
            return Answer(200, (__doc__ or "").encode(), {"Content-Type": "text/plain; charset=utf-8"})
        with self.portal.lock:
            requests = [asdict(entry) for entry in self.portal.log]
            return told(200, {"at_once_max": self.portal.at_once_max, "requests": requests})

    def _deliver(self, answer: Answer) -> None:
        """What is written last goes out together with the end of the entry in the log."""
        if answer.is_held:
            self._hold()
        self.close_connection = self.close_connection or answer.ends != "open"
        self._status = answer.status
        held: deque[Write] = deque()
        for write in self._writes(answer):
            # The head is held until the first of the body is there: many a client reads nothing but the head.
            if len(held) > 1 or (held and held[0][1]):
                self._send(held)
            held.append(write)
        if answer.stalls:
            self._send(held)
            self._hold()
        if answer.ends == "reset":
            # A reset overtakes what is still on its way: it waits until all the rest has arrived.
            self._send(held)
            self._drain()
        while not self._ends_with(held, answer.ends):
            _wait_for(self.connection, select.POLLOUT)

    def _writes(self, answer: Answer) -> Iterator[Write]:
        if answer.status:
            yield self._head(answer), False
        if self.command == "HEAD" or answer.status == 204:
            return
        body = memoryview(HUGE_SENT if answer.is_huge else answer.body)
        body = body[: break_at(len(body))] if answer.is_half else body
        size, pause = self._rhythm(answer)
        for start in range(0, len(body), size):
            if start and pause:
                self.portal.stopping.wait(pause)
            piece = body[start : start + size]
            if answer.framing == "chunked":
                yield f"{len(piece):x}\r\n".encode(), False
            yield piece, True
            if answer.framing == "chunked":
                yield b"\r\n", False
        if answer.framing == "chunked" and answer.ends == "open":
            yield b"0\r\n\r\n", False

    def _rhythm(self, answer: Answer) -> tuple[int, float]:
        """The size of the pieces, and the pause between two of them."""
        if answer.is_slow:
            return max(1, len(answer.body) // SLOW_PIECES), SLOW_PAUSE_SECONDS
        if self.portal.pace and FILE_PATH.fullmatch(self._path):
            size = max(1, min(PIECE_BYTES, int(self.portal.pace / 20)))
            return size, size / self.portal.pace
        return PIECE_BYTES, 0.0

    def _head(self, answer: Answer) -> bytes:
        phrase = self.responses.get(answer.status, ("Unknown", ""))[0]
        version = "HTTP/1.0" if answer.framing == "none" else "HTTP/1.1"
        headers = {"Date": formatdate(usegmt=True), **answer.headers}
        if answer.framing == "chunked":
            headers["Transfer-Encoding"] = "chunked"
        elif answer.framing == "length" and answer.status != 204:
            headers["Content-Length"] = str(HUGE_ANNOUNCED if answer.is_huge else len(answer.body))
        if self.close_connection and not (answer.is_half or answer.is_huge):
            headers["Connection"] = "close"
        lines = [f"{version} {answer.status} {phrase}", *(f"{name}: {headers[name]}" for name in headers)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")

    def _send(self, writes: deque[Write], flags: int = 0) -> None:
        while writes:
            data, is_body = writes[0]
            count = self.connection.send(data, flags)
            self._sent += count if is_body else 0
            writes[0] = (data[count:], is_body)
            if count == len(data):
                writes.popleft()

    def _ends_with(self, writes: deque[Write], ends: str) -> bool:
        """Nobody sees the end before it is in the log: what a client does next is not at once with this."""
        with self.portal.lock:
            try:
                self._send(writes, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False  # the client has to read first, and nobody waits for that with the lock
            if ends == "close":
                self.connection.shutdown(socket.SHUT_WR)
            elif ends == "reset":
                # Without lingering, closing sends a reset instead of an orderly end.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                os.close(self.connection.detach())
            self._close_entry()
        return True

    def _close_entry(self) -> None:
        if self._number is not None:
            entry = self.portal.end(self._number, self._status, self._sent)
            self._number = None
            if self.portal.tell is not None:
                self.portal.tell(entry)

    def _hold(self) -> None:
        """Until the client leaves or the portal stops, which hangs up."""
        deadline = time.monotonic() + self.portal.hang_seconds
        while (rest := deadline - time.monotonic()) > 0 and not _has_left(self.connection):
            _wait_for(self.connection, select.POLLIN, rest)
            # Where the client has sent more than its request, there is something to read all the time.
            self.portal.stopping.wait(0.01)

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while time.monotonic() < deadline and not self.portal.stopping.is_set():
            waiting = fcntl.ioctl(self.connection, termios.TIOCOUTQ, bytes(4))
            if not any(waiting):
                return
            time.sleep(0.001)


def _wait_for(connection: socket.socket, event: int, seconds: float | None = None) -> None:
    poll = select.poll()
    poll.register(connection, event)
    poll.poll(None if seconds is None else seconds * 1000)


def in_words(entry: Entry) -> str:
    what = {"request": "request of ", "download": "download of "}.get(entry.phase, f"{entry.method} ")
    whose = f"{entry.report} ({entry.ticket})" if entry.ticket else entry.report or entry.path
    place = f" from byte {entry.range:,}" if entry.range else ""
    status = f"answered {entry.status}" if entry.status else "no answer"
    trouble = f", trouble: {entry.trouble}" if entry.trouble else ""
    return f"{entry.number}. {what}{whose}{place}: {status}, {entry.sent:,} bytes{trouble}"


def summary(portal: Portal) -> str:
    troubles = sum(entry.trouble is not None for entry in portal.log)
    return (
        f"{portal.reports_made} reports requested, {portal.files_sent} files sent whole, "
        f"{troubles} troubles, at most {portal.at_once_max} at once."
    )


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="A portal where reports are requested first and downloaded later, for the examples.",
        epilog="Troubles, with --obey:\n" + "\n".join(f"  {name:15}{TROUBLES[name]}" for name in TROUBLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--port", type=int, default=9100, help="where it listens; 0 takes a free one")
    option("--ready-after", type=float, default=2.0, metavar="SECONDS", help="between request and file (2)")
    option("--size", type=int, default=SIZE, metavar="BYTES", help=f"of a file ({SIZE})")
    option("--requests-fail", type=float, default=0.0, metavar="PERCENT", help="answered 503 once")
    option("--requests-dead", type=float, default=0.0, metavar="PERCENT", help="answered 403 for ever")
    option("--downloads-break", type=float, default=0.0, metavar="PERCENT", help="cut off once, half way")
    option("--rate", type=int, metavar="N", help="more than N requests a second are answered 429")
    option("--obey", action="store_true", help="a request may bring its own troubles")
    option("--seed", default="", metavar="TEXT", help="another text hits other reports")
    option("--verbose", action="store_true", help="a line for each request")
    return parser


def main() -> None:
    parser = _arguments()
    given = parser.parse_args()
    try:
        portal = Portal(
            given.port,
            ready_after=given.ready_after,
            size=given.size,
            rate=None if given.rate is None else (given.rate, 1.0),
            plan=chance_plan(given.seed, given.requests_fail, given.requests_dead, given.downloads_break),
            obeys=given.obey,
            tell=(lambda entry: print(in_words(entry), flush=True)) if given.verbose else None,
        )
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.exit(1, f"Port {given.port} cannot be used: {error.strerror}. Another one: --port 0\n")
    for ending in (signal.SIGINT, signal.SIGTERM):
        # Set here as well for Ctrl-C, which a shell has its programs in the background ignore.
        signal.signal(ending, signal.default_int_handler)
    try:
        with portal:
            print(f"Listening on {portal.url}. Ctrl-C ends it.", flush=True)
            portal.stopping.wait()
    except KeyboardInterrupt:
        print(f"\n{summary(portal)}")


if __name__ == "__main__":
    main()
