"""The part of the Python API that works: a worker in this program, at the database or behind a server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core.errors import InvalidInput, ServerUnavailable
from holdfast.core.masking import mask_secrets
from holdfast.core.model import DISPATCHER_PREFIX, Lane
from holdfast.core.payload import check_name, member
from holdfast.core.retry import checked_seconds, parse_duration
from holdfast.engine import Engine
from holdfast.engine.sweeper import Sweeper
from holdfast.fleet.broker import Broker
from holdfast.fleet.dispatcher import RESEND_SECONDS_DEFAULT, Dispatcher
from holdfast.fleet.feeding import FedConnection, FedWorker
from holdfast.fleet.message import QUEUE_PREFIX_DEFAULT, check_prefix
from holdfast.functions import Functions
from holdfast.step_function import is_list
from holdfast.tasks import end_tasks
from holdfast.waiting import StandIn
from holdfast.worker.connection import Connection, DirectConnection
from holdfast.worker.loop import (
    CONCURRENCY_DEFAULT,
    GRACE_SECONDS_DEFAULT,
    LEASE_SECONDS_DEFAULT,
    POLL_SECONDS_DEFAULT,
    Worker,
)
from holdfast.worker.signals import stop_worker, stopped_by_signals

if TYPE_CHECKING:
    from holdfast.client import AnyEngine
    from holdfast.tracing.spans import Tracing

log = logging.getLogger("holdfast")

W = TypeVar("W", Worker, Dispatcher)

AWAY_SECONDS_MIN = 0.5
AWAY_SECONDS_MAX = 15.0


class Working(Functions):
    url: str
    _pipelines: Mapping[str, Any]
    _stand_in: StandIn | None
    _retention: float | None
    _tracing: Tracing | None

    async def engine(self) -> AnyEngine:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def worker(
        self,
        *,
        worker_id: str | None = None,
        concurrency: int = CONCURRENCY_DEFAULT,
        lease_seconds: float | str = LEASE_SECONDS_DEFAULT,
        lanes: Sequence[Lane | str] = (Lane.MANUAL, Lane.BULK),
        poll_seconds: float | str = POLL_SECONDS_DEFAULT,
        grace_seconds: float | str = GRACE_SECONDS_DEFAULT,
        ageing: float | str | None = None,
        allow_code: bool = False,
        allow_shell: bool = False,
    ) -> Worker:
        """A worker for this program's pipelines and the steps of playbooks, to be run by `run()` and ended by
        `stop()`. With `ageing` bulk work that has been ready for so long takes its turn among the manual."""
        options = self._checked_options(
            worker_id, concurrency, lease_seconds, lanes, poll_seconds, grace_seconds, ageing
        )
        return Worker(
            self._connection_to(await self.engine()),
            self._offered(allow_code=allow_code, allow_shell=allow_shell),
            worker_id=worker_id or _process_name(),
            concurrency=concurrency,
            **options,
            payload_bytes_max=self._payload_bytes_max,
            tracing=self._tracing,
        )

    async def dispatcher(
        self,
        broker: Broker,
        *,
        worker_id: str | None = None,
        concurrency: int = CONCURRENCY_DEFAULT,
        lease_seconds: float | str = LEASE_SECONDS_DEFAULT,
        lanes: Sequence[Lane | str] = (Lane.MANUAL, Lane.BULK),
        poll_seconds: float | str = POLL_SECONDS_DEFAULT,
        grace_seconds: float | str = GRACE_SECONDS_DEFAULT,
        ageing: float | str | None = None,
        resend: float | str = RESEND_SECONDS_DEFAULT,
        allow_code: bool = False,
        allow_shell: bool = False,
    ) -> Dispatcher:
        """In the place of a worker: it hands the attempts to a Celery fleet. Up to `concurrency` of each lane
        wait in the broker, and are sent again after `resend` where nobody takes them."""
        options = self._checked_options(
            worker_id, concurrency, lease_seconds, lanes, poll_seconds, grace_seconds, ageing
        )
        return Dispatcher(
            self._connection_to(await self.engine(), untaken=True),
            broker,
            sorted(self._offered(allow_code=allow_code, allow_shell=allow_shell)),
            worker_id=f"{DISPATCHER_PREFIX}{worker_id or _process_name()}",
            window=concurrency,
            **options,
            resend_seconds=checked_seconds(resend, "resend"),
        )

    def _checked_options(
        self,
        worker_id: str | None,
        concurrency: int,
        lease_seconds: float | str,
        lanes: Sequence[Lane | str],
        poll_seconds: float | str,
        grace_seconds: float | str,
        ageing: float | str | None,
    ) -> dict[str, Any]:
        """What a worker and a dispatcher are told alike."""
        if self._stand_in is not None:
            raise InvalidInput(
                "A worker cannot be started during a rehearsal: the rehearsal runs the work itself.",
                guidance="Start your program without its worker in this test.",
            )
        if worker_id is not None:
            check_name(worker_id, what="worker id")
        if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
            raise InvalidInput(f"A worker needs a concurrency of at least 1, not {concurrency!r}.")
        if not is_list(lanes) or not lanes:
            raise InvalidInput(
                f"The lanes of a worker must be a list, not {lanes!r}.",
                guidance=f"Allowed in it are: {', '.join(Lane)}.",
            )
        return {
            "lease_seconds": checked_seconds(lease_seconds, "lease_seconds"),
            "lanes": tuple(dict.fromkeys(member(Lane, lane, "lane") for lane in lanes)),
            "poll_seconds": checked_seconds(poll_seconds, "poll_seconds"),
            "grace_seconds": parse_duration(grace_seconds, field="grace_seconds"),
            "ageing_seconds": None if ageing is None else checked_seconds(ageing, "ageing"),
        }

    async def fed_worker(
        self, worker_id: str, *, lease_seconds: float, allow_code: bool, allow_shell: bool
    ) -> FedWorker:
        """A worker that leases nothing: it runs what is taken over for it, one at a time."""
        return FedWorker(
            FedConnection(self._connection_to(await self.engine())),
            self._offered(allow_code=allow_code, allow_shell=allow_shell),
            worker_id=worker_id,
            lease_seconds=lease_seconds,
            payload_bytes_max=self._payload_bytes_max,
            tracing=self._tracing,
        )

    def trace(self, tracing: Tracing) -> None:
        """Make each attempt of the workers that are started from now on a span."""
        self._tracing = tracing

    async def keep_counts(self) -> None:
        """Write what is counted for /metrics, until cancelled. Behind a server, the server does."""
        engine = await self.engine()
        if isinstance(engine, Engine):
            await engine.keeper.run()

    async def send_last_spans(self) -> None:
        """At the end of a process that ends without its program's own ways to end."""
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.flush)
            await asyncio.to_thread(self._tracing.close)

    def _connection_to(self, engine: AnyEngine, *, untaken: bool = False) -> Connection:
        if isinstance(engine, Engine):
            return DirectConnection(engine, untaken=untaken)
        return engine.connection(untaken=untaken)

    @contextlib.asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[Worker]:
        """A worker and, where there is no server for that, a sweeper in the background for as long as the
        block lasts. A worker that fails says so in the log at once, and raises its error at the end of the
        block."""
        async with self._in_background(await self.worker(**options), options) as worker:
            yield worker

    @contextlib.asynccontextmanager
    async def dispatching(self, broker: Broker, **options: Any) -> AsyncIterator[Dispatcher]:
        """The same with a dispatcher."""
        async with self._in_background(await self.dispatcher(broker, **options), options) as dispatcher:
            yield dispatcher

    @contextlib.asynccontextmanager
    async def _in_background(self, worker: W, options: Mapping[str, Any]) -> AsyncIterator[W]:
        lease_seconds = checked_seconds(options.get("lease_seconds", LEASE_SECONDS_DEFAULT), "lease_seconds")
        async with self.sweeping(lease_seconds):
            working = asyncio.create_task(worker.run())
            working.add_done_callback(_tell_failure)
            try:
                yield worker
            finally:
                worker.stop()
                await asyncio.wait([working])
                await worker.connection.close()
                if self._tracing is not None:
                    await asyncio.to_thread(self._tracing.close)
            if not working.cancelled():
                working.result()

    @contextlib.asynccontextmanager
    async def sweeping(self, lease_seconds: float = LEASE_SECONDS_DEFAULT) -> AsyncIterator[None]:
        """Leases that run out are looked after for as long as the block lasts; behind a server, by the
        server."""
        engine = await self.engine()
        if not isinstance(engine, Engine):
            yield
            return
        sweeper = Sweeper(engine, lease_seconds=lease_seconds, retention_seconds=self._retention)
        sweeping = asyncio.create_task(sweeper.run())
        try:
            yield
        finally:
            await end_tasks(sweeping)

    async def _connect(self) -> None:
        """A worker may be started before its server: it waits for it, ever longer."""
        seconds = AWAY_SECONDS_MIN
        while True:
            try:
                await self.engine()
                return
            except ServerUnavailable as error:
                log.warning("The worker waits for its server. %s", error)
                await asyncio.sleep(random.uniform(0.5, 1.0) * seconds)
                seconds = min(2 * seconds, AWAY_SECONDS_MAX)

    def run_worker(self, *, lifeline: int | None = None, **options: Any) -> None:
        """Run a worker in this process until SIGINT or SIGTERM: it finishes what it can within its grace
        period and gives back the rest. A second signal ends it at once; what it held then runs again when
        its leases have expired. `lifeline` is a file descriptor whose end of file stops it as a signal does:
        how the end of a supervisor reaches its workers."""

        async def main() -> None:
            await self._connect()
            async with _closing(self), self.working(**options) as worker:
                with stopped_by_signals(worker.grace_seconds, partial(stop_worker, worker), lifeline):
                    log.info(
                        "Worker %s works on %s in %s.",
                        worker.worker_id,
                        ", ".join(sorted(self._pipelines)) or "playbooks",
                        mask_secrets(self.url),
                    )
                    await worker.ended.wait()
            log.info("Worker %s has stopped.", worker.worker_id)
            if worker.leaves_threads:
                # Threads cannot be killed, and an ordinary exit would wait for them.
                logging.shutdown()
                os._exit(0)

        asyncio.run(main())

    def run_dispatcher(self, broker: str, *, queue: str = QUEUE_PREFIX_DEFAULT, **options: Any) -> None:
        """Run a dispatcher in this process until SIGINT or SIGTERM: it gives back what nobody has taken. A
        second signal ends it at once."""
        fleet = Broker(broker, check_prefix(queue))  # a wrong one is refused before anything is waited for

        async def main() -> None:
            await self._connect()
            async with _closing(self), self.dispatching(fleet, **options) as dispatcher:

                def stop(why: str) -> None:
                    log.warning("%s: stopping. Another signal ends it at once.", why)
                    dispatcher.stop()

                with stopped_by_signals(dispatcher.grace_seconds, stop):
                    log.info(
                        "Dispatcher %s hands %s in %s to the fleet at %s.",
                        dispatcher.worker_id,
                        ", ".join(sorted(self._pipelines)) or "playbooks",
                        mask_secrets(self.url),
                        fleet.shown,
                    )
                    await dispatcher.ended.wait()
            log.info("Dispatcher %s has stopped.", dispatcher.worker_id)

        asyncio.run(main())


def _process_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


@contextlib.asynccontextmanager
async def _closing(app: Working) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await app.close()


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("The worker has failed and works no more.", exc_info=task.exception())
