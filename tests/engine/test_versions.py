"""Definitions in the catalog: versions of a path, and engines that never registered what they work on."""

import pytest

from engine_scenario import Scenario, codes, completed, failed, on_both_stores, stage
from holdfast.core.errors import IdempotencyConflict, InvalidInput, UnknownPipeline, UnknownVersion
from holdfast.core.model import ExecutionStatus
from holdfast.engine import Engine, Submission
from holdfast.engine.manual_retry import RetryRequest
from holdfast.playbook.definition import Definition


@on_both_stores
async def test_equal_content_is_one_version_and_other_content_another(s: Scenario) -> None:
    first = await s.define(stage("a"))
    assert await s.define(stage("a")) == first
    assert await s.another_engine().register(Definition(path="p", steps=(stage("a"),))) == first
    second = await s.define(stage("a"), stage("b"))
    elsewhere = await s.define(stage("a"), path="q")
    assert len({first, second, elsewhere}) == 3
    versions = []
    for steps in [(stage("a"),), (stage("a"), stage("b")), (stage("a"),)]:
        await s.define(*steps)
        versions.append((await s.execution(await s.submit())).version)
    assert versions == [1, 2, 1]
    assert (await s.execution(await s.submit(path="q"))).version == 1


@on_both_stores
async def test_a_running_execution_keeps_the_version_it_started_with(s: Scenario) -> None:
    await s.define(stage("a"), stage("old"))
    id_ = await s.submit()
    await s.define(stage("a"), stage("new"))
    await s.complete(await s.lease_one())
    assert (await s.lease_one()).step == "old"
    assert (await s.execution(id_)).version == 1


@on_both_stores
async def test_an_engine_works_on_definitions_that_it_never_registered(s: Scenario) -> None:
    await s.define(stage("a", attempts=1), stage("b", attempts=2, stop_when="attempt == 2"))
    ids = [await s.submit() for _ in range(2)]
    first, second = await s.lease()
    assert codes(await s.another_engine().report([completed(first, "1"), completed(second, "2")])) == (
        ["accepted"] * 2
    )
    [one, two] = (await s.another_engine().lease("w", ["p/b"], 5)).jobs
    assert (one.outputs, one.timeout_seconds) == ({"a": "1"}, 3600.0)
    assert codes(await s.another_engine().report([failed(one)])) == ["accepted"]
    await s.another_engine().report([completed(two)])
    s.tick(1)
    [again] = (await s.another_engine().lease("w", ["p/b"], 5)).jobs
    await s.another_engine().report([failed(again)])
    assert (await s.job(ids[0])).dead_reason == "stopped"
    await s.another_engine().retry(ids[0], RetryRequest(from_stage="a"))
    [resumed] = (await s.another_engine().lease("w", ["p/a"], 5)).jobs
    assert (resumed.step, resumed.clear) == ("a", ("b", "a"))
    s.tick(100)
    assert await s.another_engine().sweep() == 1
    assert (await s.execution(ids[0])).status is ExecutionStatus.FAILED
    assert (await s.execution(ids[1])).status is ExecutionStatus.COMPLETED
    [submitted] = await s.another_engine().submit([Submission(path="p")])
    assert (await s.execution(submitted.id)).version == 1


@on_both_stores
async def test_a_submit_without_the_program_gets_the_version_registered_last(s: Scenario) -> None:
    first, second = Definition(path="p", steps=(stage("a"),)), Definition(path="p", steps=(stage("b"),))

    async def submitted_version(*, by: Engine | None = None) -> int:
        [item] = await (by or s.another_engine()).submit([Submission(path="p")])
        return (await s.execution(item.id)).version

    versions = []
    for definition in (first, second, first):  # the last program has gone back to older code
        s.tick(1)
        await s.another_engine().register(definition)
        versions.append(await submitted_version())
    assert versions == [1, 2, 1]
    own = s.another_engine()
    await own.register(second)
    s.tick(1)
    await s.another_engine().register(first)
    assert await submitted_version(by=own) == 2  # a program keeps to its own


@on_both_stores
async def test_an_unknown_path_is_refused_with_what_any_program_registered(s: Scenario) -> None:
    await s.define(stage("a"), path="zeta")
    await s.define(stage("a"), path="alpha")
    for path in ("p", "", "a\0b", "a\nb", "x" * 10_000):
        with pytest.raises(UnknownPipeline, match="no pipeline") as refusal:
            await s.another_engine().submit([Submission(path=path)])
        assert refusal.value.guidance == "Known are: alpha, zeta."
    assert [row.path for row in await s.another_engine().pipelines()] == ["alpha", "zeta"]


@on_both_stores
async def test_a_submission_may_name_the_version_that_it_gets(s: Scenario) -> None:
    await s.define(stage("old"))
    await s.define(stage("new"))
    items = [Submission(path="p", version=version) for version in (1, None, 2, 1)]
    submitted = await s.engine.submit(items)
    assert [(await s.execution(item.id)).version for item in submitted] == [1, 2, 2, 1]
    assert [job.step for job in await s.lease()] == ["old", "new", "new", "old"]


@on_both_stores
async def test_a_version_that_is_not_there_is_refused(s: Scenario) -> None:
    await s.define(stage("a"))
    for version in (0, 2, -1, 2**31, 2**70):
        with pytest.raises(UnknownVersion, match=f"p has no version {version}"):
            await s.submit(version=version)
    for wrong in ("1", 1.0, True, [1]):
        with pytest.raises(InvalidInput, match="A version is a whole number from 1"):
            await s.submit(version=wrong)
    for path in ("q", 7, "p\0"):
        with pytest.raises(UnknownPipeline, match="There is no pipeline"):
            await s.submit(path=path, version=1)  # type: ignore[arg-type]
    assert (await s.engine.executions()).items == []


@on_both_stores
async def test_a_key_names_one_execution_whatever_version_is_asked_for(s: Scenario) -> None:
    await s.define(stage("a"))
    await s.define(stage("a"), stage("b"))
    first = await s.submit({"n": 1}, idempotency_key="k", version=1)
    assert await s.submit({"n": 1}, idempotency_key="k") == first
    assert await s.submit({"n": 1}, idempotency_key="k", version=2) == first
    with pytest.raises(IdempotencyConflict):
        await s.submit({"n": 2}, idempotency_key="k", version=1)


@on_both_stores
async def test_what_is_published_is_what_is_submitted_until_another_is(s: Scenario) -> None:
    server, elsewhere = s.another_engine(), s.another_engine()
    first = await server.publish(Definition(path="p", steps=(stage("a"),)))
    assert await server.publish(Definition(path="p", steps=(stage("a"),))) == first
    [one] = await server.submit([Submission(path="p")])
    s.tick(1)
    await elsewhere.register(Definition(path="p", steps=(stage("b"),)))
    [two] = await server.submit([Submission(path="p")])
    s.tick(1)
    await elsewhere.publish(Definition(path="p", steps=(stage("c"),)))
    [three] = await server.submit([Submission(path="p")])
    [pinned] = await elsewhere.submit([Submission(path="p")])
    submitted = (one, two, three, pinned)
    assert [(await s.execution(item.id)).version for item in submitted] == [1, 2, 3, 2]
