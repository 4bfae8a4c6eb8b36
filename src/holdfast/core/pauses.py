"""Where nothing new is leased, by whose wish and why; what runs there goes on.

A pause names a step (`path/step`), a playbook, a lane or a limit. Pure: no clock, no store.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from holdfast.core.limits import FLEET_LIMIT
from holdfast.core.model import Lane


class PauseKind(StrEnum):
    STEP = "step"
    PLAYBOOK = "playbook"
    LANE = "lane"
    LIMIT = "limit"


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """`already` is True in the answer to somebody who paused what was paused before: who, why and since when
    are those of the first."""

    kind: PauseKind
    name: str
    by: str
    reason: str
    since: float
    already: bool = False

    @property
    def what(self) -> str:
        """As people say it: `step reports/download`, `the bulk lane`."""
        return f"the {self.name} lane" if self.kind is PauseKind.LANE else f"{self.kind.value} {self.name}"

    def holds(self, *, path: str, step: str, lane: Lane, limit: str) -> bool:
        """Whether a job of this step is kept waiting by it."""
        if self.kind is PauseKind.STEP:
            return self.name == f"{path}/{step}"
        if self.kind is PauseKind.PLAYBOOK:
            return self.name == path
        if self.kind is PauseKind.LANE:
            return self.name == lane.value
        return self.name in (limit, FLEET_LIMIT)


def narrowest(pauses: Iterable[Pause]) -> Pause | None:
    """The one to name where several hold a job: a step's says more than a lane's."""
    order = (PauseKind.STEP, PauseKind.PLAYBOOK, PauseKind.LIMIT, PauseKind.LANE)
    return min(pauses, key=lambda pause: (order.index(pause.kind), pause.since), default=None)
