"""Playbooks that are more than chains, for engine tests: built by hand, run by hand.

await s.define(job("a", to("b"), to("c")), job("b"), job("c"))
execution_id = await s.submit()
await finish(s, a=1)              # leases what is ready, which is a and nothing else, and completes it
jobs = await begin(s, "b", "c")   # leases these, to be reported one by one
"""

import json
from typing import Any

from engine_scenario import Scenario, completed, ref, stage
from holdfast.core.catalogue import Category
from holdfast.core.model import Deferred, Leased, Report
from holdfast.playbook.definition import Edge, ForEach, Step


def to(step: str, when: str | None = None, **with_: Any) -> Edge:
    return Edge(step=step, when=when, with_=with_)


def job(name: str, *edges: Edge, **fields: Any) -> Step:
    """A step that is a job, and leads nowhere where no edges are given."""
    return stage(name, **{"type": "python", "next": edges, **fields})


def control(name: str, *edges: Edge) -> Step:
    return stage(name, type="control", handler="type/sleep", next=edges)


def each(name: str, items: str | list[Any], *edges: Edge, **fields: Any) -> Step:
    own = {key: fields.pop(key) for key in ("concurrency", "fail_fast", "as_") if key in fields}
    return job(name, *edges, for_each=ForEach(items=items, **own), **fields)


def name_of(leased: Leased) -> str:
    return leased.step if leased.element < 0 else f"{leased.step}[{leased.element}]"


async def lease_all(s: Scenario, worker: str = "w1") -> dict[str, Leased]:
    """What is ready, by name: `fan[2]` is an element."""
    handlers = [*s._handlers, "type/each", "type/sleep", "type/playbook"]
    return {name_of(job): job for job in (await s.engine.lease(worker, handlers, 1_000)).jobs}


async def begin(s: Scenario, *names: str) -> dict[str, Leased]:
    """Lease these, which must be all that is ready."""
    jobs = await lease_all(s)
    assert sorted(jobs) == sorted(names)
    return jobs


async def finish(s: Scenario, *names: str, **results: Any) -> dict[str, Leased]:
    """Lease and complete these, which must be all that is ready, in one report."""
    jobs = await begin(s, *names, *results)
    acks = await s.report(
        *(completed(jobs[name], json.dumps(results.get(name))) for name in (*names, *results))
    )
    assert all(ack.accepted for ack in acks), acks
    return jobs


async def status(s: Scenario, execution_id: int) -> str:
    return (await s.execution(execution_id)).status.value


async def states(s: Scenario, execution_id: int, round_: int | None = None) -> dict[str, str]:
    """The jobs of the last round, or of another, by name: their status."""
    rows = (await s.engine.queue(execution_id=execution_id, limit=1_000)).items
    wanted = max(row.round for row in rows) if round_ is None else round_
    return {
        (row.step if row.element < 0 else f"{row.step}[{row.element}]")
        + ("" if row.visit == 1 else f"#{row.visit}"): row.status.value
        for row in rows
        if row.round == wanted
    }


async def told_of(s: Scenario, execution_id: int, *types: str) -> list[str]:
    """The events of these types, as words; all of them where none is named."""
    return [words for words in await s.told(execution_id) if not types or words.split()[0] in types]


async def plan_of(s: Scenario, execution_id: int) -> str | None:
    """The plan that is kept of an execution, as it stands in its row."""
    [found] = await s.store.peek_jobs([(await s.jobs(execution_id))[0].queue_id])
    return found.execution.plan


ENDS = ("completed", "died", "retried", "released", "lost", "deferred")


async def end_somehow(s: Scenario, leased: Leased, how: str) -> None:
    """In one of all the ways in which an attempt can end. The leases must be the only ones where it is
    lost."""
    match how:
        case "completed":
            await s.complete(leased)
        case "died":
            await s.fail(leased, "no such file", category=Category.PERMANENT)
        case "retried":
            await s.fail(leased, "connection refused")
        case "released":
            [ack] = await s.engine.release([ref(leased)])
            assert ack.accepted
        case "lost":
            await s.lose()
        case "deferred":
            await s.report(Report(leased.queue_id, leased.fence, Deferred(until_seconds=5)))
