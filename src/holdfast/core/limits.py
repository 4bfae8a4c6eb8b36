"""How much may run at once: named limits, and what room they leave.

A limit of N holds for the whole fleet. Of its N, bulk work may take N minus the reserve, so that a person's
job never waits for a bulk one to end. `Room` is what a claim still may take, given what is leased: counted
anew for every claim, kept nowhere, so it cannot drift. Pure: no clock, no store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.core.errors import DefinitionInvalid, InvalidInput
from holdfast.core.model import Lane

# The limit over everything that the fleet runs, whatever other limit a step names.
FLEET_LIMIT = "max_concurrency"
LIMIT_MAX = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def is_limit_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_limit_name(name: object, *, of: str) -> None:
    """Of a step: the fleet's own limit holds for all steps and cannot be named."""
    if not is_limit_name(name):
        raise DefinitionInvalid(
            f"Limit {name!r} of {of} is not allowed.",
            guidance="Use letters, digits, '_', '.' and '-'; 100 characters at most.",
        )
    if name == FLEET_LIMIT:
        raise DefinitionInvalid(
            f"Limit {name!r} of {of} is the limit over everything, and holds for it anyway.",
            guidance="Leave it out, or choose another name.",
        )


class Limit(msgspec.Struct, frozen=True):
    """`manual_reserve` of None is 1 where there is more than one place, and 0 otherwise."""

    name: str
    max_concurrency: int
    manual_reserve: int | None = None

    @property
    def reserve(self) -> int:
        if self.manual_reserve is not None:
            return self.manual_reserve
        return 1 if self.max_concurrency > 1 else 0


def checked_limit(name: object, max_concurrency: object, manual_reserve: object = None) -> Limit:
    if not is_limit_name(name):
        raise InvalidInput(
            f"{name!r} cannot be the name of a limit.",
            guidance="Use letters, digits, '_', '.' and '-'; 100 characters at most.",
        )
    if type(max_concurrency) is not int or not 1 <= max_concurrency <= LIMIT_MAX:
        raise InvalidInput(
            f"A limit is a whole number from 1 to {LIMIT_MAX}, not {max_concurrency!r}.",
            guidance="To stop all work under it, pause the limit.",
        )
    if manual_reserve is not None and (
        type(manual_reserve) is not int or not 0 <= manual_reserve <= max_concurrency
    ):
        raise InvalidInput(
            f"The reserve for manual work is a whole number from 0 to {max_concurrency}, the limit, not"
            f" {manual_reserve!r}.",
            guidance="Leave it out for the usual one.",
        )
    return Limit(str(name), max_concurrency, manual_reserve)


class Room:
    """`leased` counts what is leased under each limit, by its name and lane."""

    def __init__(self, limits: Iterable[Limit], leased: Mapping[tuple[str, str], int]) -> None:
        self._left: dict[tuple[str, str], int] = {}
        for limit in limits:
            manual, bulk = (leased.get((limit.name, lane), 0) for lane in (Lane.MANUAL, Lane.BULK))
            whole = limit.max_concurrency - manual - bulk
            self._left[limit.name, Lane.MANUAL] = whole
            self._left[limit.name, Lane.BULK] = min(whole, limit.max_concurrency - limit.reserve - bulk)

    def left(self, limit: str, lane: str) -> int | None:
        """How many jobs of this limit and lane may still be leased; None where nothing limits them."""
        bounds = [
            self._left[name, lane] for name in {limit, FLEET_LIMIT} if name and (name, lane) in self._left
        ]
        return max(min(bounds), 0) if bounds else None

    def take(self, limit: str, lane: str, jobs: int = 1) -> bool:
        """Whether there is room for so many more; it is taken then."""
        left = self.left(limit, lane)
        if left is None:
            return True
        if left < jobs:
            return False
        for name in {limit, FLEET_LIMIT}:
            if name and (name, lane) in self._left:
                self._left[name, Lane.MANUAL] -= jobs
                if lane == Lane.BULK:
                    self._left[name, Lane.BULK] -= jobs
                else:  # what a manual job takes beyond the reserve is lost to bulk work
                    self._left[name, Lane.BULK] = min(
                        self._left[name, Lane.BULK], self._left[name, Lane.MANUAL]
                    )
        return True
