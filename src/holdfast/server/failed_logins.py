"""Tokens that were guessed: after some of them from one address, one a second is looked at from there.

It keeps those who guess from the database, and from a secret that a person chose. Whoever shares their
address, behind a proxy say, and was let in before is not kept waiting; others come in with some patience.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from holdfast.server.problems import Refused

FAILURES_MAX = 10
SECONDS = 60.0
LOOK_SECONDS = 1.0
KEPT_MAX = 10_000


class FailedLogins:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()
        self._let_in: OrderedDict[bytes, None] = OrderedDict()

    def check(self, address: str, token: str) -> None:
        """Refuse to look at the token where this address has shown too many wrong ones, and one just now."""
        if not self._failed or _digest(token) in self._let_in:
            return
        times, now = self._failed.get(_network(address)), self._clock()
        while times and now - times[0] >= SECONDS:
            times.popleft()
        if times and len(times) >= FAILURES_MAX and now - times[-1] < LOOK_SECONDS:
            raise Refused(
                429,
                "too_many_failures",
                f"Wrong tokens keep coming from {address}: one a second is looked at from there.",
                "Try again with the right one.",
                retry_after=LOOK_SECONDS - (now - times[-1]),
            )

    def failed(self, address: str) -> None:
        network = _network(address)
        self._failed.setdefault(network, deque(maxlen=FAILURES_MAX)).append(self._clock())
        _keep(self._failed, network)

    def let_in(self, token: str) -> None:
        digest = _digest(token)
        self._let_in[digest] = None
        _keep(self._let_in, digest)


def _keep(kept: OrderedDict[Any, Any], newest: object) -> None:
    kept.move_to_end(newest)
    while len(kept) > KEPT_MAX:
        kept.popitem(last=False)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _network(address: str) -> str:
    """Whoever has one address of IPv6 has all of its /64; those of IPv4 may come by way of it."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
