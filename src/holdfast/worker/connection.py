"""What a worker asks of the engine, whether that is in its own process or behind a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from holdfast.core.model import Ack, Lane, Leased, LeaseRef, LeaseResult, Report, WorkerRecord
from holdfast.engine import Engine
from holdfast.store import store_from_url
from holdfast.worker.transaction import OpenTransaction


class Connection(Protocol):
    database: str | None
    """The address of the database; None where a server is in front of it."""

    async def lease(
        self,
        worker_id: str,
        handlers: Sequence[str],
        limit: int,
        *,
        lease_seconds: float,
        lanes: Sequence[Lane],
        alone: bool,
        bulk: int | None,
        limited: int | None,
        ageing_seconds: float | None,
    ) -> LeaseResult: ...

    async def take_over(
        self, worker_id: str, leases: Sequence[LeaseRef], *, token: str, lease_seconds: float
    ) -> list[Leased]:
        """Go on with attempts that another has leased: those that stand. It may be repeated."""

    async def heartbeat(
        self, leases: Sequence[LeaseRef], *, lease_seconds: float, progress: Mapping[int, float]
    ) -> list[Ack]: ...

    async def report(self, reports: Sequence[Report]) -> list[Ack]: ...

    async def release(self, leases: Sequence[LeaseRef]) -> list[Ack]: ...

    async def announce(self, worker: WorkerRecord) -> None:
        """Tell that this worker lives; said again every `announce_seconds`."""

    async def retire(self, worker_id: str) -> None:
        """Tell that it has ended in order."""

    async def now(self) -> float: ...

    def work_ticket(self) -> int: ...

    async def wait_for_work(self, ticket: int, seconds: float) -> None: ...

    def transaction(self) -> OpenTransaction:
        """A transaction for one attempt; it opens at its first statement."""

    async def twin(self) -> Connection:
        """Another connection to the same place, for the thread of the heartbeats."""

    async def close(self) -> None: ...


class DirectConnection:
    """The engine itself. `owns_store` where closing the connection closes the store under it; with `family` a
    worker is given only jobs of that execution, and of those that were started for it; with `untaken` what it
    leases runs once somebody takes it over."""

    def __init__(
        self, engine: Engine, *, owns_store: bool = False, family: int | None = None, untaken: bool = False
    ) -> None:
        self._engine = engine
        self._owns_store = owns_store
        self.database: str | None = engine.store.url
        self.lease = partial(engine.lease, family=family, untaken=untaken)
        self.take_over = engine.take_over
        self.report = engine.report
        self.release = engine.release
        self.announce = engine.announce
        self.retire = engine.retire
        self.work_ticket = engine.store.work_ticket
        self.wait_for_work = engine.store.wait_for_work
        self.now = engine.store.now
        self.transaction = engine.transaction

    async def heartbeat(
        self, leases: Sequence[LeaseRef], *, lease_seconds: float, progress: Mapping[int, float]
    ) -> list[Ack]:
        return await self._engine.heartbeat(leases, lease_seconds=lease_seconds, progress=progress)

    async def twin(self) -> Connection:
        store = store_from_url(self._engine.store.url)
        await store.open(migrate=False)
        return DirectConnection(Engine(store), owns_store=True)

    async def close(self) -> None:
        if self._owns_store:
            await self._engine.store.close()
