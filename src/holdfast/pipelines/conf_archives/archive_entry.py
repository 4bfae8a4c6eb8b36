"""A file in an archive, as the readers hand it on: its path is checked, its bytes are still packed.

A reader goes on when it is asked for the next entry; whatever of `pieces` was not taken by then is passed
over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

PIECE_BYTES = 64 * 1024


class Entry(NamedTuple):
    path: str
    size: int
    pieces: Callable[[], Iterator[bytes]]  # none larger than PIECE_BYTES, together `size` bytes or an error
    link_to: str | None = None


def link_entry(path: str, target: str) -> Entry:
    """A link has nothing of its own; it is handed on so that nobody misses a file and is not told why."""
    return Entry(path, 0, lambda: iter(()), target)
