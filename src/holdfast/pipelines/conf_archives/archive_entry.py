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
    link: SymbolicLink | HardLink | None = None


class SymbolicLink(NamedTuple):
    target: str  # as it is written
    is_to_folder: bool  # one of the same archive, seen by now


class HardLink(NamedTuple):
    target: str  # as it is written
    path: str | None  # of the file that it is another name of; None where no file can be called so


def link_entry(path: str, link: SymbolicLink | HardLink) -> Entry:
    """A link has nothing of its own; it is handed on so that nobody misses a file and is not told why."""
    return Entry(path, 0, lambda: iter(()), link)
