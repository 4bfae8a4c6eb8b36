"""The part of the Python API that waits for the end of an execution."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from holdfast.core.model import ExecutionStatus
from holdfast.engine import ExecutionView

if TYPE_CHECKING:
    from holdfast.client import AnyEngine

POLL_SECONDS = 0.5


class StandIn(Protocol):
    """What a rehearsal (`holdfast.testing`) puts in the place of the database and its workers."""

    async def engine(self) -> AnyEngine: ...

    async def go_on(self, ticket: int | None = None) -> None:
        """Do the next piece of work there is: nobody else would, and whoever waits here needs it done. Where
        there is none, that is an error unless something came since the `ticket` was taken."""


async def ended(
    engine: AnyEngine, execution_id: int, seconds: float | None, stand_in: StandIn | None
) -> ExecutionView:
    """The execution once it has ended; TimeoutError where that takes longer."""
    deadline = None if seconds is None else time.monotonic() + seconds
    ticket = engine.work_ticket()
    view = await engine.view(execution_id)
    while view.execution.status is ExecutionStatus.RUNNING:
        remaining = POLL_SECONDS if deadline is None else deadline - time.monotonic()
        if remaining <= 0:
            summary = (await engine.view(execution_id)).summary
            raise TimeoutError(f"Execution {execution_id} has not ended: {summary}")
        if stand_in is not None:
            await stand_in.go_on(ticket)
        else:
            await engine.wait_for_work(ticket, min(remaining, POLL_SECONDS))
        ticket = engine.work_ticket()
        # Its row alone: it may have thousands of jobs, and each of them that ends wakes this.
        execution = await engine.execution(execution_id)
        if execution is None or execution.status is not ExecutionStatus.RUNNING:
            view = await engine.view(execution_id)
    return view
