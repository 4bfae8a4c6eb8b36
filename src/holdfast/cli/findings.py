"""What `holdfast doctor` says of one thing: how it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

OK, WARN, BAD = "ok", "warn", "bad"


class Finding(msgspec.Struct, frozen=True):
    """`level` is ok, warn or bad; `action` says what to do where it is not ok."""

    check: str
    level: str
    message: str
    action: str = ""


def names(items: Iterable[object], name: Callable[..., str], shown_max: int = 5) -> str:
    found = [name(item) for item in items]
    more = f" and {len(found) - shown_max} more" if len(found) > shown_max else ""
    return ", ".join(found[:shown_max]) + more
