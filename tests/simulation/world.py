"""A small world around the real engine: processes, workers, a clock, and a seed that decides everything.

    seed ──▶ a few dozen steps, each one operation or several at once ──▶ drain: healthy workers only
                └─ after every step: the invariants

Processes share one database and may die and come back with empty memories; workers are only lists of
leases they believe they hold. Whatever happens is written to the trace; on SQLite the same seed gives
the same trace. The operations are in operations.py, what must hold in invariants.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from holdfast.core.errors import InvalidInput, RetryRefused, StoreUnavailable
from holdfast.core.model import Completed, ExecutionStatus, Leased, LeaseRef, Outcome, Report
from holdfast.engine import Engine, Submission
from holdfast.engine.manual_retry import RetryRequest
from holdfast.playbook.definition import Definition
from simulation.graphs import flow_outcome, random_graphs
from simulation.history import Violation
from simulation.invariants import Invariants
from simulation.pipelines import (
    GATED,
    HANDLERS,
    PAYLOAD_BYTES_MAX,
    PIPELINES,
    RELAY_SHORTENED,
    random_outcome,
)
from simulation.stores import Clock, Fault, SimulatedStore

START = 1_000_000.0
STEPS_MIN, STEPS_MAX = 25, 50
DRAIN_ROUNDS_MAX = 400
# One seed of so many is about playbooks that are more than chains of steps.
SEEDS_PER_FLOW = 3
DRAIN_SECONDS_TOGETHER = 60.0
LEASE_SECONDS_MAX = 60.0
PAST_ATTEMPTS_MAX = 40

# What holds after an operation that nothing else ran beside; it compares with the rows before it.
Afterwards = Callable[[], None] | None
Operation = Callable[["World"], Awaitable[Afterwards]]


@dataclass(slots=True)
class Attempt:
    """A lease as its worker remembers it, and what the worker last reported of it."""

    worker: str
    lease: Leased
    outcome: Outcome | None = None

    @property
    def ref(self) -> LeaseRef:
        return LeaseRef(self.lease.queue_id, self.lease.fence)

    def report(self) -> Report:
        assert self.outcome is not None, "an attempt is reported once it has ended"
        return Report(self.lease.queue_id, self.lease.fence, self.outcome)

    def __str__(self) -> str:
        return f"{self.lease.queue_id}:{self.lease.fence}"


class Adding(NamedTuple):
    """Items on their way to a batch; those with keys may be sent again."""

    batch_id: int
    items: list[Submission]

    @property
    def is_repeatable(self) -> bool:
        return all(item.idempotency_key for item in self.items)


class Process:
    """One engine on its own connection. `known` is whether the pipelines were registered since its start."""

    def __init__(self, name: str, store: SimulatedStore, world: World) -> None:
        self.name = name
        self.store = store
        self._world = world
        self.restart()

    def restart(self) -> None:
        self.store.trouble.disarm()
        self.store.forget()
        self.known = False
        self.engine = Engine(
            self.store,
            payload_bytes_max=PAYLOAD_BYTES_MAX,
            draw=lambda: self._world.random.uniform(0.5, 1.5),
            new_token=lambda: f"{self._world.number():x}",
        )

    async def register(self) -> None:
        for definition in self._world.pipelines:
            self._world.definitions[await self.engine.register(definition)] = definition
        self.known = True

    async def settle(self) -> None:
        """Wait for transactions whose callers have gone."""
        for group in (self.engine._submits, self.engine._reporting._reports):
            if group._flushers:
                await asyncio.wait(set(group._flushers))

    def __str__(self) -> str:
        return self.name


class _Definitions(dict[int, Definition]):
    """By their ids in the store. A registration whose answer was lost may have been stored all the same; the
    only version that is not registered from the start is then what the unknown id means."""

    def __missing__(self, definition_id: int) -> Definition:
        return RELAY_SHORTENED


def is_of_flow(seed: int) -> bool:
    return seed % SEEDS_PER_FLOW == SEEDS_PER_FLOW - 1


class World:
    def __init__(self, seed: int, stores: Sequence[SimulatedStore], clock: Clock) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.clock = clock
        clock.now = START
        self._trace: list[tuple[float, str, tuple[object, ...]]] = []
        self.definitions: dict[int, Definition] = _Definitions()
        self.is_of_flow = is_of_flow(seed)
        graphs = random_graphs(Random(f"graphs of {seed}")) if self.is_of_flow else []
        self.pipelines = (*PIPELINES, *graphs)
        self.processes = [Process(f"process-{n}", store, self) for n, store in enumerate(stores)]
        self.invariants = Invariants(self.definitions)
        self.held: list[Attempt] = []
        self.past: list[Attempt] = []
        self.alone_in_time = True
        self.steps = 0
        self.unanswered: list[Submission] = []
        self.unanswered_adding: Adding | None = None
        self.chains = self._some_paths()
        self.paths = [*self.chains[:1], *(graph.path for graph in graphs)] if graphs else self.chains
        self._failing = self.random.choice((0.2, 0.5, 0.5, 0.8))
        self._troubled: Process | None = None
        self._numbers = 0
        self._transactions_seen = 0

    def _some_paths(self) -> list[str]:
        """A few pipelines a seed, so that there is much of each; in some seeds hardly any but batches."""
        every = [definition.path for definition in PIPELINES]
        if self.random.random() < 0.4:
            return [self.random.choice(GATED), *self.random.sample(every, self.random.choice((0, 0, 1)))]
        return self.random.sample(every, self.random.choice((2, 3, 4, len(every))))

    # what operations use

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def outcome(self, lease: Leased | None = None) -> Outcome:
        number = self.number()
        own = None if lease is None else flow_outcome(self.random, lease, number, failing=self._failing)
        return own or random_outcome(self.random, number, failing=self._failing)

    def tell(self, what: str, *things: object) -> None:
        """A line of the trace; `things` must not change, as they are written out only when it is read."""
        self._trace.append((self.clock.now - START, what, things))

    @property
    def trace(self) -> list[str]:
        return [f"[{at:+.3f}] {what.format(*things) if things else what}" for at, what, things in self._trace]

    def some_process(self) -> Process:
        """Most often the one that is in trouble, where one is."""
        if self._troubled is not None and self.random.random() < 0.8:
            return self._troubled
        return self.random.choice(self.processes)

    def taken_from(self) -> list[Attempt]:
        """Past attempts whose job is leased to another worker now."""
        rows = self.invariants.jobs
        return [past for past in self.past if (row := rows.get(past.ref.queue_id)) and row.fence is not None]

    def pick(self, attempts: Sequence[Attempt], most: int) -> list[Attempt]:
        return self.random.sample(attempts, min(len(attempts), self.random.randint(1, most)))

    def put_away(self, attempt: Attempt) -> None:
        """Its worker is done with it, for now: it may yet come back as a zombie."""
        if attempt in self.held:
            self.held.remove(attempt)
        if attempt not in self.past:
            self.past = [*self.past[-PAST_ATTEMPTS_MAX:], attempt]

    # the run

    async def run(
        self,
        operations: Sequence[Operation],
        weights: Sequence[float],
        of_flow: Callable[[Operation], float] = lambda _: 1.0,
    ) -> None:
        """`of_flow` is by how much an operation is more frequent where playbooks are looked at."""
        if self.is_of_flow:
            kept = [place for place, operation in enumerate(operations) if of_flow(operation)]
            operations, weights = [operations[place] for place in kept], [weights[place] for place in kept]
        # Every seed has a character of its own: what is rare in one is common in another.
        weights = [weight * self.random.choice((0.2, 1, 1, 3)) for weight in weights]
        if self.is_of_flow:
            weights = [
                weight * of_flow(operation) for operation, weight in zip(operations, weights, strict=True)
            ]
        for process in self.processes:
            await process.register()
        await self._step(operations[:1], weights[:1])  # something to begin with
        for _ in range(self.random.randint(STEPS_MIN, STEPS_MAX)):
            await self._step(operations, weights)
        self.tell("— drain —")
        self._troubled = None
        await self._let_everything_go()
        await self._drain(failing=0.15 if self.is_of_flow else 0.0)
        for _ in range(self.random.choice((1, 2)) if self.is_of_flow else 1):
            await self._try_again()
            await self._drain()
        await self.invariants.look_again(self.processes[0].store)

    async def _step(self, operations: Sequence[Operation], weights: Sequence[float]) -> None:
        self.steps += 1
        draw = self.random.random()
        self._troubled = self.random.choice(self.processes) if draw < 0.2 else None
        if self._troubled is not None:
            self.arm(self._troubled, calls_before=self.random.choice((0, 0, 0, 0, 1, 2)))
        if draw > 0.85:
            chosen = self.random.choices(operations, weights, k=self.random.randint(2, 4))
            if self.random.random() < 0.3:  # a rush: all want the same
                chosen = chosen[:1] * len(chosen)
            await self._together(chosen, abandon=draw > 0.97)
            afterwards = None
        else:
            (operation,) = self.random.choices(operations, weights)
            afterwards = await self._perform(operation)
        await self._look()
        if afterwards is not None:
            afterwards()
        for process in self.processes:
            if process.store.trouble.disarm():
                self.tell(f"{process} died and starts anew")
                process.restart()

    def arm(self, process: Process, *, calls_before: int) -> None:
        fault, fatal = self.random.choice(list(Fault)), self.random.random() < 0.3
        process.store.trouble.arm(fault, calls_before=calls_before, fatal=fatal)
        self.tell(f"{process} will lose its store {fault}, {calls_before} calls from now, fatal={fatal}")

    async def _together(self, operations: Sequence[Operation], *, abandon: bool) -> None:
        self.tell(f"{len(operations)} at once{', then abandoned' if abandon else ''}:")
        self.alone_in_time = False
        for process in self.processes:
            process.store.trouble.interleave(self.random)
        tasks = [asyncio.create_task(self._perform(operation)) for operation in operations]
        if abandon:
            for _ in range(self.random.randint(0, 12)):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
        for ending in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ending, Exception):  # to be abandoned is none
                raise ending
        for process in self.processes:
            await process.settle()
            process.store.trouble.interleave(None)
        self.alone_in_time = True

    async def _perform(self, operation: Operation) -> Afterwards:
        try:
            return await operation(self)
        except StoreUnavailable:
            self.tell("    no answer")
            return None

    async def _look(self) -> None:
        transactions = sum(process.store.trouble.transactions for process in self.processes)
        if transactions != self._transactions_seen:
            self._transactions_seen = transactions
            await self.invariants.look(self.processes[0].store)

    async def _let_everything_go(self) -> None:
        """Nothing stays paused and no batch open; now and then the limits stay."""
        engine, sight = self.some_process().engine, self.invariants.sight
        for kind, name in sorted(sight.pauses):
            await engine.controls.resume(kind, name)
        unlimited = self.random.random() < 0.8
        for limit in sight.limits.values():
            if unlimited or not limit.bulk_max:
                await engine.controls.remove_limit(limit.name)
                self.invariants.steered.add(limit.name)
        self.invariants.steered.add("pauses")
        for batch in sight.batches.values():
            if batch.closed_at is None:
                await engine.batches.close(batch.id)
        await self._look()

    async def _try_again(self) -> None:
        """People retry what has failed, each from a stage of their choice; all gates are open by now."""
        willing = 0.9 if self.is_of_flow else 0.5
        for line in self.invariants.executions.values():
            error = line.stored_error
            if line.status == ExecutionStatus.FAILED and error is not None and self.random.random() < willing:
                definition = self.definitions[line.definition_id]
                names = [step.name for step in definition.steps]
                reached = names[: names.index(error.stage) + 1] if definition.is_linear else names
                stage = self.random.choice(reached)
                if not definition.is_linear and self.random.random() < 0.4:
                    stage = error.stage
                self.tell(f"somebody retries {line.id} from {stage}")
                request = RetryRequest(from_stage=stage, force=True)
                with contextlib.suppress(RetryRefused, InvalidInput):
                    await self.some_process().engine.retry(line.id, request)
        await self._look()

    async def _drain(self, failing: float = 0.0) -> None:
        """Workers that live finish whatever there is, `failing` a little: in the end nothing may be left."""
        for _ in range(DRAIN_ROUNDS_MAX):
            if not self.invariants.running:
                return
            process = self.some_process()
            await process.engine.sweep()
            await self._look()
            self.invariants.flow.check_swept(self.invariants.sight)
            if self.is_of_flow and self.random.random() < 0.1:  # children end here more than anywhere else
                self.invariants.pruned_before = self.clock.now
                self.tell(f"{process} prunes {await process.engine.prune(0.0, 2)}")
            await self._attend(process)
            engine = process.engine
            answer = await engine.lease("healthy", HANDLERS, 50)
            if answer.alone_ready:
                answer = await engine.lease("healthy", HANDLERS, 1, alone=True)
            if answer.jobs:
                self.invariants.leased(answer.jobs, self.clock.now)
                for job in answer.jobs if self.is_of_flow else ():
                    self.invariants.check_outputs(job)
                await self._complete(engine, answer.jobs, failing)
            await self._look()
            if not answer.jobs and self.invariants.running and not self._is_attention_asked:
                self._wait_for(answer.next_due)
        raise Violation(f"{len(self.invariants.running)} executions are stuck: {self.invariants.running}")

    @property
    def _is_attention_asked(self) -> bool:
        return any(batch.attention for batch in self.invariants.batches.values())

    async def _attend(self, process: Process) -> None:
        """Whoever opens a gate may die in the middle of it even now; another one goes on later."""
        if self._is_attention_asked and self.random.random() < 0.3:
            self.arm(process, calls_before=self.random.randrange(4))
        try:
            await process.engine.batches.attend_all()
        except StoreUnavailable:
            await self._look()
            self.clock.now += 1.0
        if process.store.trouble.disarm():
            process.restart()

    async def _complete(self, engine: Engine, jobs: Sequence[Leased], failing: float) -> None:
        attempts = [Attempt("healthy", job, self._healthy_outcome(job, failing)) for job in jobs]
        self.tell(f"healthy completes {', '.join(map(str, attempts))}")
        acks = await engine.report([attempt.report() for attempt in attempts])
        for attempt, ack in zip(attempts, acks, strict=True):
            if not ack.accepted:
                raise Violation(f"a healthy worker's report was refused: {attempt} {ack}")
            self.invariants.answered(ack.queue_id, attempt.lease.fence, attempt.report().outcome, ack)

    def _healthy_outcome(self, lease: Leased, failing: float) -> Outcome:
        number = self.number()
        own = flow_outcome(self.random, lease, number, failing=failing)
        if own is not None or not failing:
            return own or Completed(f'{{"outcome":{number}}}')
        return random_outcome(self.random, number, failing=failing)

    def _wait_for(self, next_due: float | None) -> None:
        leases = [job.lease_until for job in self.invariants.jobs.values() if job.lease_until is not None]
        moments = [*leases, *([] if next_due is None else [next_due])]
        if not moments:
            raise Violation("executions run, and nothing is leased or due")
        # What is due soon after it goes with it, which saves rounds.
        soon = max(self.clock.now, min(moments)) + DRAIN_SECONDS_TOGETHER
        moments += [job.available_at for job in self.invariants.jobs.values() if job.is_waiting]
        until = max(moment for moment in moments if moment <= soon)
        self.clock.now = max(self.clock.now, until) + 0.001
