"""HTTP as uvicorn speaks it, with bounds for what no request handler sees: a head that never ends, in size or
in time, what comes behind a body (trailers), and an answer that nobody reads must not keep a connection or
memory. What is no HTTP is refused in Holdfast's own form."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.wire import ErrorAnswer, Problem

HEAD_SECONDS_MAX = 30.0
HEAD_BYTES_MAX = 64 * 1024
# Whoever has taken nothing of an answer for so long does not read it.
READER_SECONDS_MAX = 60.0
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class BoundedProtocol(HttpToolsProtocol):
    head_seconds_max = HEAD_SECONDS_MAX
    reader_seconds_max = READER_SECONDS_MAX
    _head_timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None
    # Of a head, or since the last part of a body: of what is kept until it ends.
    _head_bytes = 0
    _coming_bytes = 0
    _is_leftover = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._let_reader()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_timer is not None:  # else it is a trailer, which means nothing here
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = self._coming_bytes = 0  # what comes behind it belongs to another one
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        self._coming_bytes = len(data)
        if self._head_timer is None and not self._is_answering():
            # The rest of a request that was answered before its end, or the first of another one.
            self._begin_head()
            self._is_leftover = True
        self._head_bytes += len(data)
        super().data_received(data)
        self._coming_bytes = 0
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431, "head_too_large", f"The head of the request has over {HEAD_BYTES_MAX:,} bytes.")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "malformed_http", "What was sent is not an HTTP request.")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._let_reader()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_reader()

    def _unsupported_upgrade_warning(self) -> None:
        """It is answered as if it had not asked for that, which is no reason to fill a log."""

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _begin_head(self) -> None:
        self._end_head()
        self._head_bytes = self._coming_bytes  # it may have begun in the middle of them
        self._head_timer = self.loop.call_later(self.head_seconds_max, self._too_slow)

    def _end_head(self) -> None:
        self._is_leftover = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        if self._is_answering():  # another request on the same connection, which may not be read before
            self._head_timer = self.loop.call_later(self.head_seconds_max, self._too_slow)
        elif self._is_leftover:
            self._end_head()
            self._close()
        else:
            self._refuse(
                408,
                "too_slow",
                f"The head of a request did not come within {self.head_seconds_max:g} seconds.",
            )

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._end_head()
        if self.transport.is_closing():
            return
        if not (self._is_answering() and self.cycle.response_started):  # it would stand in another answer
            problem = Problem(
                code=code, message=message, guidance="Send the request again, as HTTP/1.1 asks for it."
            )
            body = msgspec.json.encode(ErrorAnswer(error=problem))
            self.transport.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n"
                b"x-content-type-options: nosniff\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
                % (status, _REASONS[status], len(body), body)
            )
        self._close()

    def _close(self) -> None:
        self.transport.close()
        self._watch_reader()

    def _watch_reader(self) -> None:
        """A connection is closed once all is read, which may be never."""
        if self._reader_timer is None and (unread := self.transport.get_write_buffer_size()):
            self._reader_timer = self.loop.call_later(self.reader_seconds_max, self._look_at_reader, unread)

    def _look_at_reader(self, unread: int) -> None:
        self._reader_timer = None
        if self.transport.get_write_buffer_size() >= unread:
            self.transport.abort()
        else:
            self._watch_reader()

    def _let_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
