"""Which versions of Holdfast are at work, and what is to be brought up to date next.

An upgrade goes through the installation in an order (docs/how-to/upgrade.md), and for a while there are two
versions. Here is told which and where, so that nobody leaves it half done. Workers in other languages have
versions of their own, in any words: they are named apart, and never compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.cli.findings import OK, WARN, Finding, names
from holdfast.core.handlers import HOLDFASTS_OWN

if TYPE_CHECKING:
    from holdfast.core.model import WorkerRow
    from holdfast.wire import Info

VERSION_CHARS_MAX = 40
_VERSION = re.compile(
    r"(?P<release>[0-9]{1,9}(?:\.[0-9]{1,9}){0,5})(?P<before>\.?(?:dev|a|b|rc)[0-9]{0,9})?(?:\+[0-9a-z.]*)?",
    re.IGNORECASE,
)
# What comes before a release, in its order; the release itself comes last.
_BEFORE = ("dev", "a", "b", "rc", "")


def order_of(version: str) -> tuple[tuple[int, ...], int, int] | None:
    """What tells which of two versions is newer; None of a text that is no version."""
    known = _VERSION.fullmatch(version) if len(version) <= VERSION_CHARS_MAX else None
    if known is None:
        return None
    release = [int(number) for number in known["release"].split(".")]
    while release and not release[-1]:  # 1.0 and 1.0.0 are the same
        release.pop()
    before = (known["before"] or "").lstrip(".").lower()
    kind = before.rstrip("0123456789")
    return tuple(release), _BEFORE.index(kind), int(before[len(kind) :] or 0)


def about_the_server(info: Info) -> Finding:
    from holdfast import __version__

    if info.version == __version__:
        return Finding("server", OK, f"It can be reached; Holdfast {info.version}, as here.")
    next_ = _what_next(info.version, __version__, "the server", "the Holdfast here")
    return Finding(
        "server",
        WARN,
        f"It can be reached, and is Holdfast {_shown(info.version)}; here is {__version__}.",
        f"They may not understand each other in all things. {next_}",
    )


def about_versions(living: Sequence[WorkerRow], servers_version: str | None = None) -> Iterator[Finding]:
    """Of the living workers, beside the server where one was asked, else this Holdfast; nothing where all are
    of one version."""
    from holdfast import __version__

    own = [worker for worker in living if HOLDFASTS_OWN.intersection(worker.handlers)]
    by_version: dict[str, list[WorkerRow]] = {}
    for worker in own:
        by_version.setdefault(worker.version, []).append(worker)
    told = [f"{_shown(version)}: {_workers(by_version[version])}" for version in sorted(by_version, key=_age)]
    if len(told) > 1:
        yield Finding(
            "versions",
            WARN,
            f"The living workers are of {len(told)} versions of Holdfast. {'; '.join(told)}.",
            "An upgrade is under way, or was left half done: bring the older ones up to date, servers before"
            " workers.",
        )
    elif told and (servers_version or __version__) not in by_version:
        [version] = by_version
        if servers_version is None:
            where, other = f"here is {__version__}", "the Holdfast here"
        else:
            where, other = f"the server is {_shown(servers_version)}", "the server"
        yield Finding(
            "versions",
            WARN,
            f"All living workers are Holdfast {_shown(version)} ({_workers(own)}); {where}.",
            _what_next(version, servers_version or __version__, "the workers", other),
        )
    if others := [worker for worker in living if worker not in own]:
        named = names(others, lambda worker: f"{worker.worker_id} ({_shown(worker.version)})")
        yield Finding("versions", OK, f"Not Holdfast's own, with versions of their own: {named}.")


def _what_next(version: str, beside: str, who: str, other: str) -> str:
    one, two = order_of(version), order_of(beside)
    if one is None or two is None or one == two:
        return f"Bring {who} and {other} to the same version."
    return f"Bring {who if one < two else other} up to date."


def _age(version: str) -> tuple[bool, tuple[tuple[int, ...], int, int], str]:
    """The oldest first, what is no version last."""
    order = order_of(version)
    return order is None, order or ((), 0, 0), version


def _workers(workers: Sequence[WorkerRow]) -> str:
    return names(workers, lambda worker: worker.worker_id)


def _shown(version: str) -> str:
    if not version:
        return "no version"
    return version if len(version) <= VERSION_CHARS_MAX else f"{version[:VERSION_CHARS_MAX]}…"
