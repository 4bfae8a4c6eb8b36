"""The batch that tests of the command line tell of: reports that are requested, and downloaded once all of
them have been."""

import json
from pathlib import Path
from typing import Any

from engine_scenario import Scenario, stage
from holdfast.core.catalogue import Category
from holdfast.engine import Submission
from holdfast.playbook.definition import Barrier

DELAY = 900.0


async def define(s: Scenario) -> None:
    await s.define(
        stage("request", 2, path="reports", operation="request"),
        stage(
            "download",
            3,
            path="reports",
            operation="download",
            barrier=Barrier(after="request", delay_seconds=DELAY),
            delays=[60.0, 180.0],
            wave=True,
        ),
        path="reports",
    )


async def batch_of(s: Scenario, items: int) -> int:
    await define(s)
    batch_id, _ = await s.engine.batches.create("reports")
    await s.engine.batches.add(batch_id, [Submission(path="reports", workload=n) for n in range(items)])
    await s.engine.batches.close(batch_id)
    return batch_id


async def one_of_each(s: Scenario) -> list[int]:
    """Of five items the first failed at its request, the second is to be retried, two wait at the barrier,
    and one is at work."""
    await batch_of(s, 5)
    jobs = await s.lease()
    await s.fail(jobs[0], "no such \x1b[31mreport", category=Category.PERMANENT, error_type="not_found")
    await s.fail(jobs[1])
    for job in jobs[2:4]:
        await s.complete(job)
    return [job.execution_id for job in jobs]


def lines(path: Path, *workloads: Any) -> Path:
    path.write_text("".join(f"{json.dumps(workload)}\n" for workload in workloads))
    return path
