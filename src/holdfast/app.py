"""The Python API: define steps and pipelines, submit work, run a worker, look and act.

`Holdfast` puts the parts together for a program that embeds them. It connects when it is first needed
and belongs to the event loop it was first used on; `async with` or `close()` ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import msgspec

from holdfast.core.error_rules import ErrorRule
from holdfast.core.errors import DefinitionInvalid, UnknownPipeline
from holdfast.core.model import Event, ExecutionStatus, Lane, Mode
from holdfast.core.payload import PAYLOAD_BYTES_MAX_DEFAULT, member
from holdfast.core.retry import RetryPolicy, parse_duration
from holdfast.engine import Engine, ExecutionView, Page, Submission
from holdfast.engine.manual_retry import RetryRequest
from holdfast.engine.sweeper import Sweeper
from holdfast.playbook.definition import STEP_TIMEOUT_SECONDS_DEFAULT, Definition, Step
from holdfast.store import store_from_url
from holdfast.worker.attempt import Function, Handler
from holdfast.worker.connection import DirectConnection
from holdfast.worker.loop import CONCURRENCY_DEFAULT, LEASE_SECONDS_DEFAULT, POLL_SECONDS_DEFAULT, Worker

URL_DEFAULT = "sqlite:///holdfast.db"
WAIT_POLL_SECONDS = 0.5

RetryLike: TypeAlias = RetryPolicy | bool | int | dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFunction:
    """A function made a step. It can still be called as the function it is."""

    function: Function
    name: str
    retry: RetryLike = None
    timeout: float | str = STEP_TIMEOUT_SECONDS_DEFAULT
    clear: Function | None = None
    lane: Lane | str | None = None
    operation: str = ""
    priority: int | None = None
    max_crashes: int = 3
    errors: Sequence[ErrorRule] = ()

    def __call__(self, context: Any) -> Any:
        return self.function(context)

    def compiled(self, pipeline: str, default_retry: RetryPolicy) -> Step:
        return Step(
            name=self.name,
            handler=_handler_key(pipeline, self.name),
            retry=RetryPolicy.from_shorthand(self.retry, default_retry),
            timeout_seconds=parse_duration(self.timeout, field=f"timeout of step {self.name}"),
            max_crashes=self.max_crashes,
            lane=None if self.lane is None else member(Lane, self.lane, f"lane of step {self.name}"),
            operation=self.operation,
            priority=self.priority,
            errors=tuple(self.errors),
        )


class Execution(msgspec.Struct, frozen=True):
    """What a submit gives back. `created` is False where the idempotency key had named it before."""

    id: int
    created: bool
    _app: Any

    async def wait(self, within: float | None = None) -> ExecutionView:
        """The execution once it has ended; TimeoutError where that takes longer than `within` seconds."""
        view: ExecutionView = await self._app.wait(self.id, within)
        return view

    async def status(self) -> ExecutionView:
        view: ExecutionView = await self._app.status(self.id)
        return view

    async def events(self, *, after: str | None = None) -> list[Event]:
        events: list[Event] = await self._app.events(self.id, after=after)
        return events


class Holdfast:
    """`retention` (seconds or "30d") prunes finished executions of that age; None keeps them."""

    def __init__(
        self,
        url: str = URL_DEFAULT,
        *,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
        retention: float | str | None = None,
    ) -> None:
        store_from_url(url)  # a wrong address is refused here, not at the first use
        self.url = url
        self._payload_bytes_max = payload_bytes_max
        self._retention = None if retention is None else parse_duration(retention, field="retention")
        self._pipelines: dict[str, Definition] = {}
        self._handlers: dict[str, Handler] = {}
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()

    # defining

    @overload
    def step(self, function: Function, /) -> StepFunction: ...

    @overload
    def step(
        self,
        *,
        name: str | None = None,
        retry: RetryLike = None,
        timeout: float | str = STEP_TIMEOUT_SECONDS_DEFAULT,
        clear: Function | None = None,
        lane: Lane | str | None = None,
        operation: str = "",
        priority: int | None = None,
        max_crashes: int = 3,
        errors: Sequence[ErrorRule] = (),
    ) -> Callable[[Function], StepFunction]: ...

    def step(
        self,
        function: Function | None = None,
        *,
        name: str | None = None,
        retry: RetryLike = None,
        timeout: float | str = STEP_TIMEOUT_SECONDS_DEFAULT,
        clear: Function | None = None,
        lane: Lane | str | None = None,
        operation: str = "",
        priority: int | None = None,
        max_crashes: int = 3,
        errors: Sequence[ErrorRule] = (),
    ) -> StepFunction | Callable[[Function], StepFunction]:
        """Make a function a step. `retry` takes a policy or a shorthand (True, 5, False); `clear` is
        called before the step runs again in a round started by hand."""

        def decorate(function: Function) -> StepFunction:
            return StepFunction(
                function=function,
                name=name or function.__name__,
                retry=retry,
                timeout=timeout,
                clear=clear,
                lane=lane,
                operation=operation,
                priority=priority,
                max_crashes=max_crashes,
                errors=errors,
            )

        return decorate if function is None else decorate(function)

    def pipeline(
        self,
        name: str,
        steps: Iterable[StepFunction | Function],
        *,
        retry: RetryLike = None,
        errors: Sequence[ErrorRule] = (),
    ) -> Definition:
        """Define a pipeline: its steps run one after the other. `retry` is the default of its steps."""
        functions = [self._as_step(item) for item in steps]
        default = RetryPolicy.from_shorthand(retry)
        definition = Definition(
            path=name,
            steps=tuple(item.compiled(name, default) for item in functions),
            errors=tuple(errors),
        )
        if name in self._pipelines and self._pipelines[name] != definition:
            raise DefinitionInvalid(
                f"Pipeline {name} is defined already, with other steps.",
                guidance="Give it another name, or define it once.",
            )
        self._pipelines[name] = definition
        for item in functions:
            self._handlers[_handler_key(name, item.name)] = Handler.of(item.function, item.clear)
        return definition

    def _as_step(self, item: StepFunction | Function) -> StepFunction:
        if isinstance(item, StepFunction):
            return item
        if not callable(item):
            raise DefinitionInvalid(
                f"{item!r} is not a step.", guidance="Give functions, or functions decorated with @hf.step."
            )
        return StepFunction(function=item, name=item.__name__)

    # connecting

    async def engine(self) -> Engine:
        """The engine, connected and with every pipeline of this program registered."""
        loop = asyncio.get_running_loop()
        if self._engine is None or self._loop is not loop:
            if self._loop is not loop:
                self._opening = asyncio.Lock()
                self._engine, self._loop = None, loop
            async with self._opening:
                if self._engine is None:
                    store = store_from_url(self.url)
                    await store.open()
                    self._engine = Engine(store, payload_bytes_max=self._payload_bytes_max)
        for definition in list(self._pipelines.values()):
            await self._engine.register(definition)
        return self._engine

    async def close(self) -> None:
        if self._engine is not None and self._loop is asyncio.get_running_loop():
            engine, self._engine = self._engine, None
            await engine.store.close()

    async def __aenter__(self) -> Holdfast:
        await self.engine()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # submitting

    async def submit(
        self,
        pipeline: str,
        workload: Any = None,
        *,
        lane: Lane | str = Lane.BULK,
        mode: Mode | str | None = None,
        idempotency_key: str | None = None,
        delay: float | str = 0.0,
        deadline: float | str | None = None,
    ) -> Execution:
        """Store one piece of work; once this returns, it will be run to its end."""
        [execution] = await self._submit(
            [
                Submission(
                    path=pipeline,
                    workload=workload,
                    lane=lane,  # type: ignore[arg-type]
                    mode=mode,  # type: ignore[arg-type]
                    idempotency_key=idempotency_key,
                    delay_seconds=parse_duration(delay, field="delay"),
                    deadline_seconds=None if deadline is None else parse_duration(deadline, field="deadline"),
                )
            ]
        )
        return execution

    async def submit_many(
        self, pipeline: str, workloads: Iterable[Any], *, lane: Lane | str = Lane.BULK
    ) -> list[Execution]:
        """Store many pieces of work in one transaction: all of them or none."""
        return await self._submit(
            [Submission(path=pipeline, workload=workload, lane=lane) for workload in workloads]  # type: ignore[arg-type]
        )

    async def _submit(self, submissions: list[Submission]) -> list[Execution]:
        engine = await self.engine()
        return [Execution(item.id, item.created, self) for item in await engine.submit(submissions)]

    # looking and acting

    async def status(self, execution_id: int) -> ExecutionView:
        return await (await self.engine()).view(execution_id)

    async def events(self, execution_id: int, *, after: str | None = None) -> list[Event]:
        """The whole history in its order, or what came after the event with the id `after`."""
        engine = await self.engine()
        events: list[Event] = []
        while True:
            page = await engine.events(execution_id, after=events[-1].id if events else after)
            if not page:
                return events
            events += page

    async def wait(self, execution_id: int, within: float | None = None) -> ExecutionView:
        """The execution once it has ended; TimeoutError where that takes longer than `within` seconds."""
        engine = await self.engine()
        deadline = None if within is None else time.monotonic() + within
        while True:
            ticket = engine.store.work_ticket()
            view = await engine.view(execution_id)
            if view.execution.status is not ExecutionStatus.RUNNING:
                return view
            remaining = WAIT_POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"Execution {execution_id} has not ended: {view.summary}")
            await engine.store.wait_for_work(ticket, min(remaining, WAIT_POLL_SECONDS))

    async def executions(self, **filters: Any) -> Page:
        """A page of executions, newest first; filters: status, path, limit, cursor."""
        return await (await self.engine()).executions(**filters)

    async def queue(self, **filters: Any) -> Page:
        """A page of jobs, oldest first; filters: status, lane, dead_reason, execution_id, limit, cursor."""
        return await (await self.engine()).queue(**filters)

    async def retry(
        self,
        execution_id: int,
        *,
        from_stage: str | None = None,
        full: bool = False,
        confirm: bool = False,
        force: bool = False,
        by: str = "",
    ) -> None:
        """Run a failed execution on, from the failed stage or an earlier one; RetryRefused says why not."""
        request = RetryRequest(from_stage=from_stage, full=full, confirm=confirm, force=force, by=by)
        await (await self.engine()).retry(execution_id, request)

    async def cancel(self, execution_id: int, *, by: str = "") -> bool:
        """Whether it was running and is cancelled now."""
        return await (await self.engine()).cancel(execution_id, by=by)

    # working

    async def worker(
        self,
        *,
        worker_id: str | None = None,
        concurrency: int = CONCURRENCY_DEFAULT,
        lease_seconds: float = LEASE_SECONDS_DEFAULT,
        lanes: Sequence[Lane] = (Lane.MANUAL, Lane.BULK),
        poll_seconds: float = POLL_SECONDS_DEFAULT,
    ) -> Worker:
        """A worker for all pipelines of this program, to be run by `run()` and ended by `stop()`."""
        if not self._handlers:
            raise UnknownPipeline("There is nothing to work on.", guidance="Define a pipeline first.")
        return Worker(
            DirectConnection(await self.engine()),
            dict(self._handlers),
            worker_id=worker_id or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}",
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            lanes=lanes,
            poll_seconds=poll_seconds,
            payload_bytes_max=self._payload_bytes_max,
        )

    @contextlib.asynccontextmanager
    async def working(self, **options: Any) -> Any:
        """A worker and a sweeper in the background for as long as the block lasts."""
        worker = await self.worker(**options)
        lease_seconds = options.get("lease_seconds", LEASE_SECONDS_DEFAULT)
        sweeper = Sweeper(await self.engine(), lease_seconds=lease_seconds, retention_seconds=self._retention)
        tasks = [asyncio.create_task(worker.run()), asyncio.create_task(sweeper.run())]
        try:
            yield worker
        finally:
            worker.stop()
            await tasks[0]
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def run_worker(self, **options: Any) -> None:
        """Run a worker in this process until SIGINT or SIGTERM; what it had leased and not begun is
        given back."""

        async def main() -> None:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop.set)
            async with self, self.working(**options):
                await stop.wait()

        asyncio.run(main())


def _handler_key(pipeline: str, step: str) -> str:
    return f"{pipeline}/{step}"
