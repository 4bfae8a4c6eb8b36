"""The part of the Python API with which people steer work that is under way: limits and pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core.errors import InvalidInput
from holdfast.core.model import Lane
from holdfast.core.pauses import Pause, PauseKind
from holdfast.engine.controls import LimitView

if TYPE_CHECKING:
    from holdfast.client import AnyEngine


class Operating:
    async def engine(self) -> AnyEngine:
        raise NotImplementedError

    async def set_limit(
        self, name: str, max_concurrency: int, manual_reserve: int | None = None, *, by: str = ""
    ) -> LimitView:
        """Let at most so many jobs under this limit run at once, in all processes together; bulk work leaves
        `manual_reserve` of them to manual work (1 by default where there is more than one). The limit
        "max_concurrency" is over everything. It holds from the next lease on; what runs goes on."""
        controls = (await self.engine()).controls
        return await controls.set_limit(name, max_concurrency, manual_reserve, by=by)

    async def remove_limit(self, name: str, *, by: str = "") -> bool:
        """Whether it was set. Steps that name it run without a limit then."""
        return await (await self.engine()).controls.remove_limit(name, by=by)

    async def limits(self) -> list[LimitView]:
        """Those that are set, and those that steps name and nobody has set; with what runs and what waits."""
        return await (await self.engine()).controls.limits()

    async def pause(
        self,
        *,
        step: str | None = None,
        playbook: str | None = None,
        lane: Lane | str | None = None,
        limit: str | None = None,
        by: str = "",
        reason: str = "",
        force: bool = False,
    ) -> Pause:
        """Begin nothing new of a step ("pipeline/step"), a playbook (a pipeline), a lane or under a limit;
        what runs goes on. A name that nobody knows is refused unless it is forced."""
        kind, name = _target(step=step, playbook=playbook, lane=lane, limit=limit)
        return await (await self.engine()).controls.pause(kind, name, by=by, reason=reason, force=force)

    async def resume(
        self,
        *,
        step: str | None = None,
        playbook: str | None = None,
        lane: Lane | str | None = None,
        limit: str | None = None,
        by: str = "",
    ) -> Pause | None:
        """The pause that has ended with this; None where there was none."""
        kind, name = _target(step=step, playbook=playbook, lane=lane, limit=limit)
        return await (await self.engine()).controls.resume(kind, name, by=by)

    async def pauses(self) -> list[Pause]:
        """The oldest first."""
        return await (await self.engine()).controls.pauses()


def _target(**targets: Any) -> tuple[PauseKind, Any]:
    given = [(PauseKind(kind), name) for kind, name in targets.items() if name is not None]
    if len(given) != 1:
        told = ", ".join(kind.value for kind, _ in given)
        raise InvalidInput(
            f"One pause is of one thing; given were {told}." if told else "It is not said what to pause.",
            guidance='Name one of step="pipeline/step", playbook=, lane= or limit=.',
        )
    return given[0]
