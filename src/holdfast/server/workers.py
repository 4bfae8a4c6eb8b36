"""The workers that a server hears of: each lease and heartbeat tells that one lives, and the server says so
for it.

So a worker in any language is known to people, and counts as one who offers what it leases, without a call
of its own for that. It is told at most every few seconds, beside the request and never waited for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict

import msgspec

from holdfast.core.model import WorkerRecord
from holdfast.engine import Engine

log = logging.getLogger("holdfast.server")

ANNOUNCE_SECONDS = 10.0
KNOWN_MAX = 10_000


class WorkerRegister:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: OrderedDict[str, tuple[float, WorkerRecord]] = OrderedDict()
        self._tasks: dict[asyncio.Task[None], str] = {}  # by worker

    def heard(self, worker: WorkerRecord) -> None:
        """It has asked for work, and offers this."""
        told_at, before = self._known.get(worker.worker_id, (float("-inf"), None))
        if before is not None:
            worker = msgspec.structs.replace(worker, started_at=worker.started_at or before.started_at)
            is_same = (before.handlers, before.lanes) == (worker.handlers, worker.lanes)
            if is_same and time.monotonic() - told_at < ANNOUNCE_SECONDS:
                return
        self._known[worker.worker_id] = (time.monotonic(), worker)
        self._known.move_to_end(worker.worker_id)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        task = asyncio.create_task(self._announce(worker))
        self._tasks[task] = worker.worker_id
        task.add_done_callback(self._tasks.pop)

    def lives(self, worker_id: str) -> None:
        """It has sent a heartbeat: where it is known, and was not told of for a while, it is told again."""
        known = self._known.get(worker_id)
        if known is not None:
            self.heard(known[1])

    async def retire(self, worker_id: str) -> None:
        """It has said goodbye, which is its last word: what is being told of it is told before."""
        self._known.pop(worker_id, None)
        if telling := [task for task, of in self._tasks.items() if of == worker_id]:
            await asyncio.wait(telling)
        await self._engine.retire(worker_id)

    async def _announce(self, worker: WorkerRecord) -> None:
        try:
            if not worker.started_at:
                worker = msgspec.structs.replace(worker, started_at=await self._engine.now())
                if worker.worker_id in self._known:  # else it has said goodbye meanwhile
                    self._known[worker.worker_id] = (self._known[worker.worker_id][0], worker)
            await self._engine.announce(worker)
        except Exception as error:
            self._known.pop(worker.worker_id, None)  # the next time it is heard of, it is tried again
            log.warning("Worker %s could not be announced: %s", worker.worker_id, error)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
