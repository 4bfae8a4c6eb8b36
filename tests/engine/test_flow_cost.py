"""What a playbook costs grows with its size and not with its history: counted in the machine steps of SQLite
and in bytes of the plan, never in time."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import apsw
import pytest

from engine_scenario import Scenario, completed, scenario
from flow_scenario import control, each, finish, job, lease_all, plan_of, status, to
from holdfast.playbook.definition import Step
from running import run

STEPS = 200


class Count:
    """The machine steps of all statements since the last look."""

    def __init__(self) -> None:
        self._steps = 0
        self._before: dict[tuple[int, str], int] = {}

    def add(self, connection: int, done: Any) -> None:
        """A statement that is used again may tell the steps of all its runs so far."""
        status, key = done["stmt_status"], (connection, done["sql"])
        steps = status["SQLITE_STMTSTATUS_VM_STEP"]
        self._steps += steps - (self._before.get(key, 0) if status["SQLITE_STMTSTATUS_RUN"] > 1 else 0)
        self._before[key] = steps

    def taken(self) -> int:
        steps, self._steps = self._steps, 0
        return steps


@contextmanager
def counted() -> Iterator[Count]:
    count = Count()

    def hook(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, partial(count.add, id(connection)))

    apsw.connection_hooks.append(hook)
    try:
        yield count
    finally:
        apsw.connection_hooks.remove(hook)


def chain(steps: int) -> list[Step]:
    """Written as a graph, between start and end; each step hands something on and reads what the one before
    it and the first returned."""
    names = [f"s{number}" for number in range(steps)]
    return [
        control("start", to(names[0])),
        *(
            job(
                name,
                to(following, f"{name}.n >= 0", n=f"{{{{ {name}.n }}}}"),
                needs=() if name == "s0" else ("s0", names[place - 1]),
            )
            for place, (name, following) in enumerate(zip(names, [*names[1:], "end"], strict=True))
        ),
        control("end"),
    ]


def test_a_step_of_a_long_chain_costs_what_the_first_ones_cost(sqlite_url: str) -> None:
    async def main() -> None:
        with counted() as count:
            async with scenario(sqlite_url) as s:
                await s.define(*chain(STEPS))
                await s.submit()
                for number in range(STEPS):
                    await finish(s, **{f"s{number}": {"n": number}})
                # Once all claim groups are known.
                execution_id = await s.submit()
                costs, sizes = [], []
                count.taken()
                for number in range(STEPS):
                    await finish(s, **{f"s{number}": {"n": number}})
                    costs.append(count.taken())
                    sizes.append(len(await plan_of(s, execution_id) or ""))
                    count.taken()
                assert await status(s, execution_id) == "completed"
                first, last = sum(costs[10:40]) / 30, sum(costs[-40:-10]) / 30
                assert last < first * 1.1, (first, last)
                assert max(sizes) <= min(sizes[:-1]) + 10

    run(main())


async def cost_of_elements(s: Scenario, count: Count, elements: int, concurrency: int | None) -> float:
    """Of each element, in an execution of so many."""
    await s.define(
        each("fan", "{{ x }}", to("end", n="{{ fan | length }}"), concurrency=concurrency),
        job("end"),
        path=f"p{elements}",
    )
    execution_id = await s.submit(path=f"p{elements}")
    await finish(s, fan=list(range(elements)))
    count.taken()
    done = 0
    while done < elements:
        ready = list((await lease_all(s)).values())
        for place in range(0, len(ready), 50):
            await s.report(*(completed(job_, str(job_.element)) for job_ in ready[place : place + 50]))
        done += len(ready)
    cost = count.taken() / elements
    [end] = (await lease_all(s)).values()
    assert json.loads(end.input) == {"n": elements}
    await s.complete(end)
    assert await status(s, execution_id) == "completed"
    assert (await s.engine.view(execution_id)).outputs["fan"] == list(range(elements))
    return cost


@pytest.mark.parametrize("concurrency", [None, 20])
def test_an_element_of_many_costs_what_one_of_few_costs(sqlite_url: str, concurrency: int | None) -> None:
    async def main() -> None:
        with counted() as count:
            async with scenario(sqlite_url) as s:
                few = await cost_of_elements(s, count, 100, concurrency)
                many = await cost_of_elements(s, count, 1_000, concurrency)
                assert many < few * 1.2, (few, many)

    run(main())
