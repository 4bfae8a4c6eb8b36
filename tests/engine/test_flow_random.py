"""Random playbooks with random luck: branches, cycles, elements, handlers, lost workers, retries by hand.

Whatever happens, every report is answered, nothing gets stuck, and an execution that has ended has nothing
left of it in the queue. The end of the scenario replays every log against the rows.
"""

import asyncio
import json
import random
from typing import Any

import pytest

from engine_scenario import Scenario, codes, completed, failed, ref, scenario
from flow_scenario import control, each, job, lease_all, plan_of, to
from holdfast.core.catalogue import Category
from holdfast.core.errors import InvalidInput, RetryRefused
from holdfast.core.model import Deferred, JobStatus, Leased, Report
from holdfast.engine.manual_retry import RetryRequest
from holdfast.playbook.definition import Definition, Edge, Step
from holdfast.playbook.graph import Graph
from running import run

ROUNDS_MAX = 4
MOVES_MAX = 400


def random_edges(r: random.Random, name: str, targets: list[str], *, is_control: bool) -> list[Edge]:
    """By what the step returned, by what was handed on, or always."""
    edges = []
    for target in targets:
        source = "input.get_n" if is_control else f"{name}.n"
        when = r.choice([None, None, f"({source} | default(1)) > {r.randint(0, 3)}"])
        if not is_control:
            when = r.choice([when, f"{name}.n > {r.randint(0, 3)}"])
        handed = {f"from_{name}": r.randint(0, 9)} if r.random() < 0.5 else {}
        edges.append(to(target, when, **handed))
    return edges


def random_steps(r: random.Random) -> list[Step]:
    names = [f"s{number}" for number in range(r.randint(2, 8))]
    has_cycles = r.random() < 0.4
    steps = []
    for place, name in enumerate(names):
        pool = names if has_cycles and r.random() < 0.3 else names[place + 1 :]
        targets = [r.choice(pool) for _ in range(r.randint(0, 2))] if pool else []
        if place + 1 < len(names):
            targets.append(names[place + 1])
        kind = r.choice(["job", "job", "job", "each", "control"])
        edges = random_edges(r, name, targets, is_control=kind == "control")
        fields: dict[str, Any] = {"attempts": r.randint(1, 2)}
        if has_cycles:
            fields["max_visits"] = r.randint(2, 3)
        if pool and r.random() < 0.3:
            fields["on_error"] = r.choice(pool)
        if kind == "control":
            steps.append(control(name, *edges))
        elif kind == "each":
            edges = [edge if edge.when is None else to(edge.step, f"{name} | length > 1") for edge in edges]
            fields |= {"concurrency": r.choice([None, 1, 2]), "fail_fast": r.random() < 0.4}
            steps.append(each(name, "{{ x }}", *edges, **fields))
        else:
            steps.append(job(name, *edges, **fields))
    while True:
        graph = Graph(Definition(path="p", steps=tuple(steps)))
        if not graph.unreachable:
            break
        steps = [step for step in steps if step.name not in graph.unreachable]
    if graph.unguarded_cycle() is not None or all(step.is_control for step in steps):
        return random_steps(r)
    return steps


class Play:
    def __init__(self, s: Scenario, r: random.Random) -> None:
        self.s = s
        self.r = r
        self.held: dict[int, Leased] = {}
        self.rounds = 1

    def report_of(self, leased: Leased) -> Report:
        chance = self.r.random()
        if chance < 0.7:
            if leased.type == "each":
                return completed(leased, json.dumps(list(range(self.r.randint(0, 3)))))
            return completed(leased, json.dumps({"n": self.r.randint(0, 4)}))
        if chance < 0.8:
            return failed(leased, "no", category=Category.PERMANENT)
        if chance < 0.95:
            return failed(leased, "connection refused")
        return Report(leased.queue_id, leased.fence, Deferred(until_seconds=5))

    async def move(self) -> None:
        s, r = self.s, self.r
        if r.random() < 0.3:
            s.engine = await s.engine_on(s.store)
        chance = r.random()
        if not self.held or chance < 0.3:
            s.tick(r.choice([0, 1, 30]))
            for leased in (await lease_all(s)).values():
                self.held[leased.queue_id] = leased
            alone = (
                await s.engine.lease("w2", [*s._handlers, "type/each", "type/sleep"], 1, alone=True)
            ).jobs
            self.held |= {leased.queue_id: leased for leased in alone}
        elif chance < 0.85:
            await self._report(r.sample(sorted(self.held), r.randint(1, len(self.held))))
        elif chance < 0.92:
            leased = self.held.pop(r.choice(sorted(self.held)))
            [ack] = await s.engine.release([ref(leased)])
            assert ack.code in ("accepted", "stale_lease")
        else:
            self.held.clear()
            await s.lose()

    async def _report(self, ids: list[int]) -> None:
        """In one report, or by two processes at once."""
        reports = [self.report_of(self.held.pop(id_)) for id_ in ids]
        if len(reports) > 1 and self.r.random() < 0.5:
            other = await self.s.engine_on(self.s.store)
            answers = await asyncio.gather(self.s.engine.report(reports[::2]), other.report(reports[1::2]))
            acks = [*answers[0], *answers[1]]
        else:
            acks = await self.s.report(*reports)
        assert set(codes(acks)) <= {"accepted", "stale_lease"}, acks

    async def retry(self, execution_id: int) -> bool:
        """Another round, of one kind or another; False where it is not to be."""
        if self.rounds == ROUNDS_MAX:
            return False
        self.s.tick(61)
        request = self.r.choice(["default", "from", "full"])
        begun = sorted({row.step for row in await self.s.jobs(execution_id)})
        asked = {
            "default": RetryRequest(force=True),
            "from": RetryRequest(force=True, from_stage=self.r.choice(begun)),
            "full": RetryRequest(force=True, full=True, confirm=True),
        }[request]
        try:
            await self.s.engine.retry(execution_id, asked)
        except InvalidInput:
            await self.s.engine.retry(execution_id, RetryRequest(force=True, full=True, confirm=True))
        self.rounds += 1
        return True


async def play(s: Scenario, seed: int) -> str:
    r = random.Random(seed)
    await s.define(*random_steps(r))
    execution_id = await s.submit()
    playing = Play(s, r)
    for _ in range(MOVES_MAX):
        await playing.move()
        execution = await s.execution(execution_id)
        rows = await s.jobs(execution_id)
        live = [row for row in rows if row.status in (JobStatus.QUEUED, JobStatus.LEASED, JobStatus.RETRY)]
        assert bool(live) == (execution.status == "running"), (seed, execution.status, live)
        assert len({(row.step, row.element, row.visit, row.round) for row in rows}) == len(rows)
        plan = await plan_of(s, execution_id)
        assert (plan is None) == (execution.status == "completed")
        if execution.status == "running":
            assert any(row.held_by is None for row in live), (seed, "all that is left is held")
            continue
        if execution.status == "completed":
            assert execution.error is None
            return "completed"
        try:
            if not await playing.retry(execution_id):
                return "failed"
        except RetryRefused as refusal:
            assert refusal.code == "retry_cap"
            return "failed"
    raise AssertionError(f"seed {seed} is not at its end after {MOVES_MAX} moves")


@pytest.mark.parametrize("seed", range(60))
def test_nothing_gets_stuck_and_every_log_replays_on_sqlite(sqlite_url: str, seed: int) -> None:
    async def main() -> None:
        async with scenario(sqlite_url) as s:
            await play(s, seed)

    run(main())


@pytest.mark.parametrize("seed", range(1_000, 1_010))
def test_nothing_gets_stuck_and_every_log_replays_on_postgresql(postgres_url: str, seed: int) -> None:
    async def main() -> None:
        async with scenario(postgres_url) as s:
            await play(s, seed)

    run(main())
