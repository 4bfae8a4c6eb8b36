"""Several processes that report of one execution at the same moment: each report is settled once, whichever
comes first."""

import asyncio
import json

from engine_scenario import Scenario, codes, completed, failed, on_both_stores
from flow_scenario import begin, control, each, finish, job, states, status, to, told_of
from holdfast.core.catalogue import Category

BRANCHES = [f"b{number}" for number in range(8)]


@on_both_stores
async def test_branches_reported_by_as_many_processes_lead_to_one_join(s: Scenario) -> None:
    await s.define(
        control("start", *map(to, BRANCHES)),
        *(job(name, to("sum", f"{name}.n > 0", **{name: f"{{{{ {name}.n }}}}"})) for name in BRANCHES),
        control("sum", to("end", "input | length == 8", all="{{ input }}")),
        job("end"),
    )
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, *BRANCHES)
    engines = [await s.engine_on(s.store) for _ in BRANCHES]
    reports = [completed(jobs[name], json.dumps({"n": place + 1})) for place, name in enumerate(BRANCHES)]
    answers = await asyncio.gather(
        *(engine.report([report]) for engine, report in zip(engines, reports, strict=True)),
        *(engine.report([report]) for engine, report in zip(engines[1:], reports, strict=False)),
    )
    assert sorted(code for acks in answers for code in codes(acks)) == ["accepted"] * 8 + ["repeated"] * 7
    [end] = (await begin(s, "end")).values()
    assert json.loads(end.input) == {"all": {name: place + 1 for place, name in enumerate(BRANCHES)}}
    await s.complete(end)
    assert await status(s, execution_id) == "completed"


@on_both_stores
async def test_deaths_of_several_branches_at_once_fail_the_execution_once(s: Scenario) -> None:
    await s.define(control("start", *map(to, BRANCHES)), *(job(name, attempts=2) for name in BRANCHES))
    execution_id = await s.submit()
    await finish(s, "start")
    jobs = await begin(s, *BRANCHES)
    engines = [await s.engine_on(s.store) for _ in BRANCHES]
    reports = [
        failed(jobs[name], "no", category=Category.PERMANENT) if place % 2 else completed(jobs[name])
        for place, name in enumerate(BRANCHES)
    ]
    answers = await asyncio.gather(
        *(engine.report([report]) for engine, report in zip(engines, reports, strict=True))
    )
    assert [code for acks in answers for code in codes(acks)] == ["accepted"] * 8
    assert await status(s, execution_id) == "failed"
    assert await told_of(s, execution_id, "execution_failed") == ["execution_failed"]
    assert set((await states(s, execution_id)).values()) == {"done", "dead"}


@on_both_stores
async def test_elements_reported_by_several_processes_keep_to_the_concurrency(s: Scenario) -> None:
    await s.define(each("fan", "{{ x }}", concurrency=4))
    execution_id = await s.submit()
    await finish(s, fan=list(range(12)))
    engines = [await s.engine_on(s.store) for _ in range(4)]
    for start in range(0, 12, 4):
        names = [f"fan[{number}]" for number in range(start, start + 4)]
        jobs = await begin(s, *names)
        await asyncio.gather(
            *(
                engine.report([completed(jobs[name], name[4:-1])])
                for engine, name in zip(engines, names, strict=True)
            )
        )
    view = await s.engine.view(execution_id)
    assert (view.execution.status, view.result) == ("completed", list(range(12)))
