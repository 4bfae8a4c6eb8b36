"""How engine tests tell a story: a store, an engine on it, and a clock that only the test moves.

    @on_both_stores
    async def test_...(s: Scenario) -> None:
        await s.define(stage("a", attempts=3))
        execution_id = await s.submit()
        await s.fail(await s.lease_one())
        assert await s.state(execution_id) == "retry 1/3"

Nothing is left to chance: the jitter's draw is 1, the fences' tokens are counted. When a story has
ended, the log of every execution in it is replayed and compared with the rows, and with what was counted.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Concatenate, ParamSpec

from holdfast.core.failures import Failure
from holdfast.core.model import (
    Ack,
    Completed,
    Event,
    EventType,
    ExecutionRow,
    Failed,
    JobRow,
    Lane,
    Leased,
    LeaseRef,
    LeaseResult,
    Report,
    WorkerRecord,
    place_of,
)
from holdfast.core.replay import replay
from holdfast.core.retry import RetryPolicy
from holdfast.engine import Engine, Submission
from holdfast.engine.manual_retry import RetryRequest
from holdfast.playbook.definition import Definition, Step
from holdfast.store import Store, store_from_url
from running import run
from store_scenario import waits_do_not_count
from tally_scenario import counted, told_by_logs

P = ParamSpec("P")

START = 1_000_000.0
LEASE_SECONDS = 60.0


def stage(name: str, attempts: int = 3, *, path: str = "p", **fields: Any) -> Step:
    """A step with exact delays; keywords of the retry policy and of the step may be mixed."""
    ours = {key: fields.pop(key) for key in tuple(fields) if key in Step.__dataclass_fields__}
    policy = RetryPolicy(**{"max_attempts": attempts, "jitter": False, **fields})
    return Step(**{"name": name, "handler": f"{path}/{name}", "retry": policy, **ours})


def ref(job: Leased) -> LeaseRef:
    return LeaseRef(job.queue_id, job.fence)


def completed(job: Leased, result: str = "null") -> Report:
    return Report(job.queue_id, job.fence, Completed(result))


def failed(job: Leased, message: str = "connection refused", *, cleared: bool = True, **known: Any) -> Report:
    return Report(job.queue_id, job.fence, Failed(Failure(message=message, **known), cleared=cleared))


class Scenario:
    def __init__(self, store: Store, clock: list[float]) -> None:
        self.store = store
        self._clock = clock
        self._tokens = count(1)
        self._handlers: list[str] = []
        self._defined: list[Definition] = []
        self.engines: list[Engine] = []
        """All that have had a part in the story."""
        self.is_pruned = False
        """Whether some of it is in no log any more."""
        self.engine = self.another_engine()
        prune = store.prune

        async def told_prune(finished_before: float, limit: int) -> int:
            pruned = await prune(finished_before, limit)
            self.is_pruned |= bool(pruned)
            return pruned

        store.prune = told_prune  # type: ignore[method-assign]

    def another_engine(self, **options: Any) -> Engine:
        """An engine with empty caches on the same store, as another process would have."""
        return self._engine_on(self.store, **options)

    def _engine_on(self, store: Any, **options: Any) -> Engine:
        told = {"draw": lambda: 1.0, "new_token": lambda: f"token{next(self._tokens)}", **options}
        self.engines.append(Engine(store, **told))
        return self.engines[-1]

    async def engine_on(self, store: Any) -> Engine:
        """An engine on a store that troubles it, with the definitions known."""
        engine = self._engine_on(store)
        for definition in self._defined:
            await engine.register(definition)
        return engine

    # time

    @property
    def now(self) -> float:
        return self._clock[0]

    def tick(self, seconds: float) -> None:
        self._clock[0] += seconds

    # doing

    async def define(self, *steps: Step, path: str = "p", **fields: Any) -> int:
        self._handlers += [step.handler for step in steps]
        self._defined.append(Definition(path=path, steps=steps, **fields))
        return await self.engine.register(self._defined[-1])

    async def submit(self, workload: Any = None, *, path: str = "p", **fields: Any) -> int:
        [submitted] = await self.engine.submit([Submission(path=path, workload=workload, **fields)])
        return submitted.id

    async def ask(self, limit: int = 10, *, worker: str = "w1", **options: Any) -> LeaseResult:
        return await self.engine.lease(worker, self._handlers, limit, **options)

    async def lease(self, limit: int = 10, **options: Any) -> list[Leased]:
        return (await self.ask(limit, **options)).jobs

    async def lease_one(self, **options: Any) -> Leased:
        [job] = await self.lease(1, **options)
        return job

    async def report(self, *reports: Report) -> list[Ack]:
        return await self.engine.report(reports)

    async def complete(self, job: Leased, result: str = "null") -> Ack:
        [ack] = await self.report(completed(job, result))
        return ack

    async def fail(self, job: Leased, message: str = "connection refused", **known: Any) -> Ack:
        [ack] = await self.report(failed(job, message, **known))
        return ack

    async def lose(self, *, seconds: float = LEASE_SECONDS) -> int:
        """Nobody heartbeats until the leases have run out, then a sweep comes by."""
        self.tick(seconds + 1)
        return await self.engine.sweep()

    async def run_to_failure(self, message: str = "connection refused", **known: Any) -> Leased:
        """Fail the only live job until it is dead; its last lease."""
        while True:
            self.tick(3600)
            job = await self.lease_one()
            await self.fail(job, message, **known)
            if (await self.job(job.execution_id)).status == "dead":
                return job

    async def retry(self, execution_id: int, **request: Any) -> None:
        await self.engine.retry(execution_id, RetryRequest(**request))

    async def staff(self, *handlers: str, lanes: Sequence[Lane] = tuple(Lane)) -> None:
        """A worker that lives on, here and for the commands, and offers these handlers or all there are."""
        await self.engine.announce(
            WorkerRecord(
                worker_id="staff",
                host="host",
                pid=1,
                version="0.1.0",
                concurrency=4,
                lanes=tuple(lanes),
                handlers=handlers or tuple(self._handlers),
                started_at=START,
                announce_seconds=1e10,
            )
        )

    # looking

    async def jobs(self, execution_id: int) -> list[JobRow]:
        page = await self.engine.queue(execution_id=execution_id, limit=1_000)
        found = page.items
        while page.next is not None:
            page = await self.engine.queue(execution_id=execution_id, limit=1_000, cursor=page.next)
            found += page.items
        return found

    async def job(self, execution_id: int) -> JobRow:
        return (await self.jobs(execution_id))[-1]

    async def state(self, execution_id: int) -> str:
        job = await self.job(execution_id)
        return f"{job.status} {job.attempts}/{job.max_attempts}"

    async def execution(self, execution_id: int) -> ExecutionRow:
        return (await self.engine.view(execution_id)).execution

    async def events(self, execution_id: int) -> list[Event]:
        found = page = await self.engine.events(execution_id)
        while len(page) == 1_000:
            page = await self.engine.events(execution_id, after=page[-1].id)
            found = found + page
        return found

    async def told(self, execution_id: int) -> list[str]:
        """The events as words: the type, and the step where there is one."""
        return [f"{event.type} {event.step or ''}".strip() for event in await self.events(execution_id)]

    async def last_event(self, execution_id: int, type_: EventType) -> Event:
        return [event for event in await self.events(execution_id) if event.type is type_][-1]

    async def check_that_logs_replay_to_states(self) -> None:
        for execution in (await self.engine.executions(limit=1_000)).items:
            replayed = replay(await self.events(execution.id))
            assert (replayed.status, replayed.round, replayed.last_completed_stage) == (
                execution.status,
                execution.round,
                execution.last_completed_stage,
            )
            assert {
                key: (job.status, job.attempts, job.dead_reason) for key, job in replayed.jobs.items()
            } == {
                (job.round, job.step, place_of(job.visit, job.element)): (
                    job.status,
                    job.attempts,
                    job.dead_reason,
                )
                for job in await self.jobs(execution.id)
            }


@asynccontextmanager
async def scenario(store_url: str) -> AsyncIterator[Scenario]:
    clock = [START]
    store = store_from_url(store_url, clock=lambda: clock[0])
    await store.open()
    try:
        with waits_do_not_count():
            played = Scenario(store, clock)
            yield played
            await played.check_that_logs_replay_to_states()
            assert await told_by_logs(played) in (None, counted(played))
            counts, still_open = await store.execution_counts(), await store.open_executions()
            assert still_open == {status: counts.get(status, 0) for status in still_open}
    finally:
        await store.close()


def on_both_stores(
    story: Callable[Concatenate[Scenario, P], Awaitable[None]],
) -> Callable[Concatenate[str, P], None]:
    """A test that gets a Scenario, once on each store; further arguments are fixtures or parameters."""

    def test(store_url: str, *args: P.args, **kwargs: P.kwargs) -> None:
        async def play() -> None:
            async with scenario(store_url) as played:
                await story(played, *args, **kwargs)

        run(play())

    _, *others = inspect.signature(story).parameters.values()
    store = inspect.Parameter("store_url", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__name__, test.__doc__, test.__module__ = story.__name__, story.__doc__, story.__module__
    test.__signature__ = inspect.Signature([store, *others])  # type: ignore[attr-defined]
    return test


def codes(acks: Sequence[Ack]) -> list[str]:
    """Answers as words, `repeated` where nothing was changed by an accepted one."""
    return ["repeated" if ack.repeated else ack.code.value for ack in acks]
