"""The Python API: define steps and pipelines, submit work, run a worker, look and act.

`Holdfast` puts the parts together for a program that embeds them, or for one that works through a server:
then its url is the server's. It connects when it is first needed and belongs to the event loop it was first
used on; `async with` or `close()` ends it.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, overload

import msgspec

from holdfast.addresses import check_address, is_server
from holdfast.batch import Batch, Items
from holdfast.core.errors import DefinitionInvalid, InvalidInput, StoreUrlInvalid
from holdfast.core.handlers import handler_key
from holdfast.core.model import Event, Lane, Mode
from holdfast.core.payload import PAYLOAD_BYTES_MAX_DEFAULT, a_type
from holdfast.core.retry import RetryPolicy, parse_duration
from holdfast.engine import Engine, ExecutionView, Page, Submission
from holdfast.engine.checks import unknown_pipeline
from holdfast.engine.manual_retry import RetryRequest
from holdfast.engine.submission import no_database_to_join, submit_on_sync
from holdfast.operating import Operating
from holdfast.playbook.definition import STEP_TIMEOUT_SECONDS_DEFAULT, Definition
from holdfast.playbooks import Playbooks
from holdfast.step_function import (
    BarrierLike,
    ErrorRules,
    RetryLike,
    StepFunction,
    error_rules,
    is_list,
    name_of,
)
from holdfast.store import store_from_url
from holdfast.store.foreign import check_joinable
from holdfast.tracing import tracing_of
from holdfast.waiting import StandIn, ended
from holdfast.worker.attempt import Function, Handler
from holdfast.worker.transaction import AsyncStatements, Statements
from holdfast.working import Working

if TYPE_CHECKING:
    from holdfast.client import AnyEngine
    from holdfast.tracing.spans import Tracing

log = logging.getLogger("holdfast")

URL_DEFAULT = "sqlite:///holdfast.db"
URL_VARIABLE = "HOLDFAST_DB"


class Execution(msgspec.Struct, frozen=True):
    """What a submit gives back. `created` is False where the idempotency key had named it before."""

    id: int
    created: bool
    _app: Any

    def __repr__(self) -> str:
        return f"Execution(id={self.id}, created={self.created})"

    async def wait(self, within: float | str | None = None) -> ExecutionView:
        """The execution once it has ended; TimeoutError where that takes longer than `within` seconds."""
        view: ExecutionView = await self._app.wait(self.id, within)
        return view

    async def status(self) -> ExecutionView:
        view: ExecutionView = await self._app.status(self.id)
        return view

    async def events(self, *, after: str | None = None) -> list[Event]:
        events: list[Event] = await self._app.events(self.id, after=after)
        return events


class Holdfast(Operating, Playbooks, Working):
    """The `url` is a database's, or a server's (`http://…`, with the token of the environment's
    HOLDFAST_TOKEN). Without one it is the environment's HOLDFAST_DB, else a file in the current folder.
    `retention` (seconds or "30d") prunes finished executions of that age; None keeps them. With `tracing`
    each attempt of its workers is a span of OpenTelemetry (extra `otel`)."""

    def __init__(
        self,
        url: str | None = None,
        *,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
        retention: float | str | None = None,
        tracing: bool | Tracing = False,
    ) -> None:
        if url is None:
            url = os.environ.get(URL_VARIABLE) or URL_DEFAULT
        if not isinstance(url, str):
            raise StoreUrlInvalid(
                f"The address of a database is a text, not {a_type(url)}.",
                guidance=f"For example {URL_DEFAULT}.",
            )
        if not _is_count(payload_bytes_max):
            raise InvalidInput(f"payload_bytes_max must be a whole number from 1, not {payload_bytes_max!r}.")
        self.url = check_address(url)  # a wrong one is refused here, not at the first use
        self._payload_bytes_max = payload_bytes_max
        self._retention = None if retention is None else parse_duration(retention, field="retention")
        self._tracing = tracing_of(tracing)
        self._pipelines: dict[str, Definition] = {}
        self._handlers: dict[str, Handler] = {}
        self._functions = {}
        self._engine: AnyEngine | None = None
        self._registered: tuple[AnyEngine | None, int] = (None, 0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._entered = 0
        self._stand_in: StandIn | None = None

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
        limit: str = "",
        barrier: BarrierLike = None,
        max_crashes: int = 3,
        errors: ErrorRules = (),
        isolation: str = "thread",
        memory: int | str | None = None,
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
        limit: str = "",
        barrier: BarrierLike = None,
        max_crashes: int = 3,
        errors: ErrorRules = (),
        isolation: str = "thread",
        memory: int | str | None = None,
    ) -> StepFunction | Callable[[Function], StepFunction]:
        """Make a function a step. `retry` takes a policy or a shorthand (True, 5, False); `clear` is
        called before the step runs again in a round started by hand; `limit` names a limit that counts it;
        `barrier={"after": step, "delay": "15m"}` lets the items of a batch meet before it;
        `isolation="process"` runs it in a process of its own, with at most `memory` (bytes or "512MB")."""

        def decorate(function: Function) -> StepFunction:
            return StepFunction(
                function=function,
                name=name_of(function) if name is None else name,
                retry=retry,
                timeout=timeout,
                clear=clear,
                lane=lane,
                operation=operation,
                priority=priority,
                limit=limit,
                barrier=barrier,
                max_crashes=max_crashes,
                errors=errors,
                isolation=isolation,
                memory=memory,
            )

        return decorate if function is None else decorate(function)

    def pipeline(
        self,
        name: str,
        steps: Iterable[StepFunction | Function],
        *,
        retry: RetryLike = None,
        errors: ErrorRules = (),
    ) -> Definition:
        """Define a pipeline: its steps run one after the other. `retry` is the default of its steps."""
        if callable(steps) or not is_list(steps):
            raise DefinitionInvalid(
                f"The steps of pipeline {name} must be a list, not {steps!r}.",
                guidance="Write hf.pipeline(name, [step]), even for a single one.",
            )
        functions = [self._as_step(item) for item in steps]
        default = RetryPolicy.from_shorthand(retry)
        definition = Definition(
            path=name,
            steps=tuple(item.compiled(name, default) for item in functions),
            errors=error_rules(errors, f"pipeline {name}"),
        )
        if name in self._pipelines and self._pipelines[name] != definition:
            raise DefinitionInvalid(
                f"Pipeline {name} is defined already, with other steps.",
                guidance="Give it another name, or define it once.",
            )
        self._pipelines[name] = definition
        for item in functions:
            self._handlers[handler_key(name, item.name)] = item.handler()
        return definition

    def _as_step(self, item: StepFunction | Function) -> StepFunction:
        if isinstance(item, StepFunction):
            return item
        if not callable(item):
            raise DefinitionInvalid(
                f"{item!r} is not a step.", guidance="Give functions, or functions decorated with @hf.step."
            )
        return StepFunction(function=item, name=name_of(item))

    # connecting

    async def engine(self) -> AnyEngine:
        """The engine, connected and with every pipeline of this program registered; through a server, what
        stands for it here."""
        if (ready := self._ready_engine()) is not None:
            return ready
        if self._stand_in is not None:
            engine = await self._stand_in.engine()
            for definition in list(self._pipelines.values()):
                await engine.register(definition)
            return engine
        loop = asyncio.get_running_loop()
        if self._engine is None or self._loop is not loop:
            if self._loop is not loop:
                self._opening = asyncio.Lock()
                self._engine, self._loop = None, loop
            async with self._opening:
                if self._engine is None:
                    self._engine = await self._connected()
        engine, definitions = self._engine, list(self._pipelines.values())
        for definition in definitions:
            await engine.register(definition)
        self._registered = engine, len(definitions)
        return engine

    async def own_engine(self) -> Engine:
        """The engine itself, for what cannot be done through a server."""
        engine = await self.engine()
        if not isinstance(engine, Engine):
            raise InvalidInput(
                "This needs the database, and the address is a server's.",
                guidance="Give Holdfast the address of the database.",
            )
        return engine

    async def _connected(self) -> AnyEngine:
        if is_server(self.url):
            from holdfast.client import Client  # what it needs is slow to load, and few programs need it

            client = Client(self.url)
            await client.open()
            return client
        store = store_from_url(self.url)
        await store.open()
        return Engine(store, payload_bytes_max=self._payload_bytes_max)

    def _ready_engine(self) -> AnyEngine | None:
        """The engine where nothing is left to be done for it: pipelines are added and never changed, so their
        number tells whether it knows them all."""
        is_known = self._stand_in is None and self._registered == (self._engine, len(self._pipelines))
        return self._engine if is_known and self._loop is asyncio.get_running_loop() else None

    def apart(self) -> Holdfast:
        """The same program with connections of its own: for another thread, or a process that was forked."""
        other = copy.copy(self)
        other._engine, other._registered, other._loop = None, (None, 0), None
        other._opening, other._entered = asyncio.Lock(), 0
        return other

    def use_database(self, url: str) -> None:
        """Another address than the one in the program; before it is used for the first time."""
        if self._engine is not None:
            raise InvalidInput(
                "The database cannot be changed while Holdfast is connected.", guidance="Call close() first."
            )
        self.url = check_address(url)

    def keep_for(self, retention: float | str) -> None:
        """Prune finished executions of that age, from now on."""
        self._retention = parse_duration(retention, field="retention")

    async def close(self) -> None:
        if self._stand_in is not None:
            return  # it is closed by its rehearsal, and the engine it stands for is not to be touched
        if self._engine is not None and self._loop is asyncio.get_running_loop():
            engine, self._engine = self._engine, None
            if isinstance(engine, Engine):
                await engine.keeper.close()
                await engine.store.close()
            else:
                await engine.close()

    async def __aenter__(self) -> Holdfast:
        await self.engine()
        self._entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._entered -= 1
        if not self._entered:  # an inner block must not close what an outer one still uses
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
        connection: Any = None,
    ) -> Execution:
        """Store one piece of work; once this returns, it will be run to its end. With a `connection`
        of yours to the same PostgreSQL, or what `ctx.transaction()` gives, it is a part of that transaction:
        it will be run if that commits."""
        asked = _submission(pipeline, workload, lane, mode, idempotency_key, delay, deadline)
        [execution] = await self._submit([asked], connection)
        return execution

    async def submit_many(
        self,
        pipeline: str,
        workloads: Iterable[Any],
        *,
        lane: Lane | str = Lane.BULK,
        connection: Any = None,
    ) -> list[Execution]:
        """Store many pieces of work in one transaction: all of them or none."""
        return await self._submit(_submissions(pipeline, workloads, lane), connection)

    async def _submit(self, submissions: list[Submission], connection: Any) -> list[Execution]:
        is_ours = isinstance(connection, AsyncStatements)
        if connection is not None and not is_ours:
            check_joinable(self.url, connection)
        engine = self._ready_engine() or await self.engine()
        if connection is None:
            stored = await engine.submit(submissions)
        elif is_ours:
            stored = await connection.with_engine(lambda own: engine.submit_within(own, submissions))
        else:
            stored = await engine.submit_on(connection, submissions)
        return [Execution(item.id, item.created, self) for item in stored]

    def submit_sync(
        self,
        pipeline: str,
        workload: Any = None,
        *,
        connection: Any,
        lane: Lane | str = Lane.BULK,
        mode: Mode | str | None = None,
        idempotency_key: str | None = None,
        delay: float | str = 0.0,
        deadline: float | str | None = None,
    ) -> Execution:
        """As `submit` on a synchronous connection of yours, in programs without an event loop. Holdfast
        opens no connection for it; the pipeline must be one of this program's."""
        asked = _submission(pipeline, workload, lane, mode, idempotency_key, delay, deadline)
        [execution] = self._submit_sync(pipeline, [asked], connection)
        return execution

    def submit_many_sync(
        self, pipeline: str, workloads: Iterable[Any], *, connection: Any, lane: Lane | str = Lane.BULK
    ) -> list[Execution]:
        """As `submit_many` on a synchronous connection of yours: all of them or none."""
        return self._submit_sync(pipeline, _submissions(pipeline, workloads, lane), connection)

    def _submit_sync(self, pipeline: str, submissions: list[Submission], connection: Any) -> list[Execution]:
        if isinstance(connection, Statements):
            return connection.in_loop(lambda own: self._submit(submissions, own))
        check_joinable(self.url, connection, synchronous=True)
        if self._stand_in is not None:
            raise no_database_to_join()
        definition = self._pipelines.get(pipeline) if isinstance(pipeline, str) else None
        if definition is None:
            raise unknown_pipeline(pipeline, self._pipelines)
        stored = submit_on_sync(
            connection, submissions, definition, payload_bytes_max=self._payload_bytes_max
        )
        return [Execution(item.id, item.created, self) for item in stored]

    def batch(
        self,
        pipeline: str,
        items: Items | None = None,
        *,
        lane: Lane | str = Lane.BULK,
        mode: Mode | str | None = None,
        key: str | None = None,
        deadline: float | str | None = None,
        close: bool = True,
    ) -> Batch:
        """Many items through one pipeline, which may meet at a barrier: await it with its items, or add them
        in an `async with` block. With a `key` the same call can be repeated and adds nothing twice."""
        return Batch(
            self,
            pipeline=pipeline,
            items=items,
            lane=lane,
            mode=mode,
            key=key,
            deadline=deadline,
            close=close,
        )

    def batch_by_id(self, batch_id: int) -> Batch:
        """A batch that exists: to look at it, add to it, close or cancel it."""
        return Batch(self, id=batch_id)

    # looking and acting

    async def status(self, execution_id: int) -> ExecutionView:
        return await (await self.engine()).view(execution_id)

    async def events(self, execution_id: int, *, after: str | None = None) -> list[Event]:
        """The whole history in its order, or what came after the event with the id `after`; empty where
        there is no such execution."""
        engine = await self.engine()
        events: list[Event] = []
        while True:
            page = await engine.events(execution_id, after=events[-1].id if events else after)
            if not page:
                return events
            events += page

    async def wait(self, execution_id: int, within: float | str | None = None) -> ExecutionView:
        """The execution once it has ended; TimeoutError where that takes longer than `within`."""
        seconds = None if within is None else parse_duration(within, field="within")
        return await ended(await self.engine(), execution_id, seconds, self._stand_in)

    async def let_time_pass(self, seconds: float) -> None:
        """For whoever looks again and again; in a rehearsal that is how the work goes on."""
        if self._stand_in is not None:
            await self._stand_in.go_on()
        else:
            await asyncio.sleep(seconds)

    async def executions(self, **filters: Any) -> Page:
        """A page of executions, newest first; filters: status, path, batch_id, limit, cursor."""
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


def _submission(
    pipeline: str,
    workload: Any,
    lane: Lane | str,
    mode: Mode | str | None,
    idempotency_key: str | None,
    delay: float | str,
    deadline: float | str | None,
) -> Submission:
    return Submission(
        path=pipeline,
        workload=workload,
        lane=lane,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        idempotency_key=idempotency_key,
        delay_seconds=delay,  # type: ignore[arg-type]
        deadline_seconds=deadline,  # type: ignore[arg-type]
    )


def _submissions(pipeline: str, workloads: Iterable[Any], lane: Lane | str) -> list[Submission]:
    if not is_list(workloads):
        raise InvalidInput(
            f"The workloads of submit_many cannot be {a_type(workloads)}.",
            guidance="Give a list of workloads; submit() takes a single one.",
        )
    return [Submission(path=pipeline, workload=workload, lane=lane) for workload in workloads]  # type: ignore[arg-type]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
