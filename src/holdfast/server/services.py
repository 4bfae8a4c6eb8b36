"""What all requests of one server share: the engine, the parked leases, the live feed, the workers it has
heard of."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from holdfast.engine import Engine
from holdfast.server.counting import Counting
from holdfast.server.leases import LeaseDesk
from holdfast.server.live import Live
from holdfast.server.workers import WorkerRegister
from holdfast.store.queries import load_migrations


@dataclass(slots=True, kw_only=True)
class Services:
    """`is_stopping` once the server takes its leave: it is not ready any more, and whoever waits is
    answered."""

    kind: str
    """Of the database: sqlite or postgresql."""
    engine: Engine
    desk: LeaseDesk
    live: Live
    counting: Counting
    workers: WorkerRegister
    version: str
    schema_version: int
    is_stopping: bool = False
    started_at: float = field(default_factory=time.monotonic)
    requests: Counter[int] = field(default_factory=Counter)
    """By status."""

    @classmethod
    def of(cls, engine: Engine, *, version: str) -> Services:
        kind = "sqlite" if engine.store.url.startswith("sqlite") else "postgresql"
        return cls(
            kind=kind,
            engine=engine,
            desk=LeaseDesk(engine),
            live=Live(engine.store),
            counting=Counting(engine),
            workers=WorkerRegister(engine),
            version=version,
            schema_version=len(load_migrations(kind)),
        )

    async def close(self) -> None:
        self.is_stopping = True
        self.desk.close()
        await self.desk.ended()
        await self.live.close()
        await self.workers.close()
