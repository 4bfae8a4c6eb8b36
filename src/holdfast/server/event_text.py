"""Events as a stream of server-sent events: the bytes that listeners read.

What has an id moves the place where a client goes on after a broken connection, and what has none does not.
So the first words of a stream have one too, and a client that was told nothing yet goes on without a miss.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from holdfast.core.model import Event
from holdfast.store import rows
from holdfast.store.event_rows import BegunAttempt, EventRow

log = logging.getLogger("holdfast.server")

RECONNECT_MILLISECONDS = 2_000

_ALL = 1_000_000_000
# Reading the history of the execution on behind it begins at its first row, and does not tell it again.
_IN_NO_ROW = rows.EventPlace(0, 0)


def opening(token: str | None) -> bytes:
    """The first words; without a place where the store has not told one yet."""
    return f"retry: {RECONNECT_MILLISECONDS}\n".encode() + still_here(token)


def still_here(token: str | None = None) -> bytes:
    return b": still here\n\n" if token is None else f": still here\nid: {token}\n\n".encode()


def events_in(row: EventRow) -> list[Event]:
    """None of a row that cannot be read, as one that a later version wrote: the others are told all the
    same."""
    try:
        return rows.events_after([(row.id, row.execution_id, row.at, row.body)], _IN_NO_ROW, _ALL)
    except Exception:
        log.exception("Row %d of the events cannot be told.", row.id)
        return []


def row_text(events: Sequence[Event], path: str, before: str, after: str) -> bytes:
    """The events of one row: only with the last of them the client is behind it."""
    last = len(events) - 1
    return b"".join(
        f"id: {after if place == last else before}\n".encode() + _told(event, path)
        for place, event in enumerate(events)
    )


def begun_text(begun: BegunAttempt) -> bytes:
    """An attempt that has only begun; the row of its end will tell it once more."""
    found = rows.events_after([(None, begun.execution_id, begun.at, begun.body)], _IN_NO_ROW, _ALL)
    return b"".join(_told(event, begun.path) for event in found)


def _told(event: Event, path: str) -> bytes:
    data = msgspec.json.encode({**event.to_dict(), "path": path})
    return b"event: %b\ndata: %b\n\n" % (event.type.value.encode(), data)
