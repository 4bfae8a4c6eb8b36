"""Requests that Holdfast makes over HTTP stay out of the program's log; those that the program makes do not.

httpx tells each request with its whole address, where a step may have secrets, and a worker asks its server
again and again; httpcore tells the headers of the answers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_IS_OURS: ContextVar[bool] = ContextVar("holdfast_request_is_ours", default=False)
_LOGGERS = (
    *("httpx", "httpcore.connection", "httpcore.http11"),
    *("httpcore.http2", "httpcore.proxy", "httpcore.socks"),
)


@contextmanager
def unlogged() -> Iterator[None]:
    """For what this task asks within the block."""
    before = _IS_OURS.set(True)
    try:
        yield
    finally:
        _IS_OURS.reset(before)


def _is_not_ours(record: logging.LogRecord) -> bool:
    return not _IS_OURS.get()


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_is_not_ours)
