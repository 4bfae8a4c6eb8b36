"""A batch whose items go through a playbook that is more than a chain: each is counted once at each step."""

from typing import Any

from engine_scenario import Scenario, on_both_stores, stage
from holdfast.engine import Submission
from holdfast.playbook.definition import Edge, ForEach


async def define(s: Scenario) -> None:
    await s.define(
        stage(
            "first", type="python", next=(Edge(step="left"), Edge(step="right", when="{{ result.right }}"))
        ),
        stage("left", type="python", attempts=1, next=(Edge(step="many"),)),
        stage("right", type="python", next=(Edge(step="many"),)),
        stage("many", type="python", for_each=ForEach(items=[1, 2, 3]), next=()),
    )
    s._handlers.append("type/each")


def counts(view: Any, step: str) -> dict[str, int]:
    return {status: items for status, items in view.counts[step].items() if items}


@on_both_stores
async def test_each_item_is_counted_once_at_each_step(s: Scenario) -> None:
    await define(s)
    batch_id, _ = await s.engine.batches.create("p")
    await s.engine.batches.add(batch_id, [Submission(path="p") for _ in range(4)])
    await s.engine.batches.close(batch_id)
    both, one, dies, waits = await s.lease(4)
    await s.complete(both, '{"right":true}')
    await s.complete(one, '{"right":false}')
    await s.complete(dies, '{"right":true}')
    view = await s.engine.batches.view(batch_id)
    assert view.items == sum(view.executions.values()) == 4
    assert counts(view, "first") == {"completed": 3, "in_progress": 1}
    assert counts(view, "left") == {"pending": 4}
    assert counts(view, "right") == {"pending": 4}

    for job in await s.lease(10):
        if job.execution_id == dies.execution_id and job.step == "left":
            await s.fail(job, "no such file", error_type="invalid_file")
        else:
            await s.complete(job)
    for job in await s.lease(10):  # the lists
        await s.complete(job, "[1,2,3]")
    for job in await s.lease(10):  # the elements
        await s.complete(job)
    view = await s.engine.batches.view(batch_id)
    assert view.executions == {"running": 1, "completed": 2, "failed": 1, "cancelled": 0}
    assert counts(view, "left") == {"completed": 2, "failed": 1, "pending": 1}
    assert counts(view, "many") == {"completed": 2, "skipped": 1, "pending": 1}
    assert [failed.step for failed in view.permanently_failed_jobs] == ["left"]

    items = {item.id: item for item in (await s.engine.batches.items(batch_id)).items}
    told = {name: document["status"] for name, document in items[one.execution_id].tracking.items()}
    assert told == {"first": "completed", "left": "completed", "right": "skipped", "many": "completed"}
    told = {name: document["status"] for name, document in items[waits.execution_id].tracking.items()}
    assert told == {"first": "in_progress", "left": "pending", "right": "pending", "many": "pending"}
