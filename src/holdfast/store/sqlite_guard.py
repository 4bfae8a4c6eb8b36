"""Keeps a second SQLite away from a file that is open here.

Python's own `sqlite3` brings another copy of the SQLite library than the one Holdfast uses. Two copies in
one process do not know of each other's locks, and the system drops the locks of both when either closes the
file: the database would be damaged without a word. Another process may use the file with any library.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.core.errors import StoreUnusable

_open: Counter[str] = Counter()
_is_watching = False


def watch(path: Path) -> None:
    """From now on this process may open the file through Holdfast alone."""
    global _is_watching
    if not _is_watching:
        sys.addaudithook(_on_event)
        _is_watching = True
    _open[os.path.realpath(path)] += 1


def unwatch(path: Path) -> None:
    name = os.path.realpath(path)
    _open[name] -= 1
    if _open[name] <= 0:
        del _open[name]


def _on_event(event: str, arguments: tuple[object, ...]) -> None:
    # Called for everything that Python audits: it must cost nothing for what is not ours.
    if event != "sqlite3.connect" or not _open:
        return
    name = arguments[0]
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    if not isinstance(name, str | os.PathLike):
        return
    name = os.fspath(name)
    if name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    if os.path.realpath(name) in _open:
        raise StoreUnusable(
            f"{name} is open in this process by Holdfast; Python's own sqlite3 would damage it.",
            guidance="Use ctx.transaction() in a handler, apsw elsewhere, or another process.",
        )
