"""A worker that kills itself, or waits to be stopped, at an exact place, so that no window is left to luck.

Kills from outside hit long windows; the short ones (leased and not begun, returned and not reported,
committed and not yet answered) they hit once in a thousand. A worker is therefore also started with an
order, `window:count`: it dies when it comes by that window for the count-th time.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any, Final

from faults.ledger import Death, Ledger
from holdfast.engine import Engine
from holdfast.engine.step_transaction import StepTransaction

AFTER_LEASE: Final = "leased, nothing begun"
IN_HANDLER: Final = "in the handler"
IN_TRANSACTION: Final = "in the transaction"
AFTER_TRANSACTION: Final = "after the transaction's block"
AROUND_COMMIT: Final = "around the commit of a transaction"
BEFORE_COMMIT: Final = "handler returned, transaction not committed"
BEFORE_REPORT: Final = "handlers returned, nothing reported"
AROUND_REPORT: Final = "around the commit of a report"
AFTER_REPORT: Final = "report committed, worker not answered"
AFTER_COMMIT: Final = "transaction committed, worker not answered"

WINDOWS: Final = (
    AFTER_LEASE,
    IN_HANDLER,
    IN_TRANSACTION,
    AFTER_TRANSACTION,
    BEFORE_COMMIT,
    AROUND_COMMIT,
    AFTER_COMMIT,
    BEFORE_REPORT,
    AROUND_REPORT,
    AFTER_REPORT,
)
WAIT_SECONDS_MAX: Final = 600.0  # longer than any test that opens the window
COMMIT_SECONDS: Final = 0.006  # "around" a commit is within this time of its beginning


class Order:
    """`at(window)` returns, unless this is the place to die. With `waits_for` it is a place to be stopped by
    somebody else: nothing goes on there until that file exists."""

    def __init__(
        self, ledger: Ledger, window: str | None, count: int = 1, *, waits_for: Path | None = None
    ) -> None:
        self._ledger = ledger
        self._window = window
        self._count = count
        self._waits_for = waits_for

    def at(self, window: str) -> None:
        if self._is_now(window):
            self._die()

    def soon_after(self, window: str) -> None:
        """From a thread, a moment later: in the middle of what comes next."""
        if self._is_now(window):
            threading.Thread(target=self._die_soon, daemon=True).start()

    def _is_now(self, window: str) -> bool:
        if window != self._window:
            return False
        self._count -= 1
        return self._count == 0

    def _die_soon(self) -> None:
        time.sleep(random.uniform(0, COMMIT_SECONDS))
        self._die()

    def _die(self) -> None:
        self._ledger.write(Death(self._ledger.worker, str(self._window)))
        if self._waits_for is not None:
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while not self._waits_for.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            return
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)  # the signal may be on its way


def watch_engine(order: Order) -> None:
    """Put the windows that no handler can see around the engine's own verbs, in this process."""
    lease, report, complete = Engine.lease, Engine.report, StepTransaction.complete

    async def watched_lease(self: Engine, *given: Any, **options: Any) -> Any:
        result = await lease(self, *given, **options)
        if result.jobs:
            order.at(AFTER_LEASE)
        return result

    async def watched_report(self: Engine, reports: Any) -> Any:
        order.at(BEFORE_REPORT)
        order.soon_after(AROUND_REPORT)
        acks = await report(self, reports)
        order.at(AFTER_REPORT)
        return acks

    async def watched_complete(self: StepTransaction, *given: Any) -> Any:
        order.at(BEFORE_COMMIT)
        order.soon_after(AROUND_COMMIT)
        ack = await complete(self, *given)
        order.at(AFTER_COMMIT)
        return ack

    StepTransaction.complete = watched_complete  # type: ignore[method-assign]
    Engine.lease, Engine.report = watched_lease, watched_report  # type: ignore[method-assign]
