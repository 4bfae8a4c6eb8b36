"""The Python API: what it refuses, and what it gives."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

import holdfast
from holdfast import (
    Context,
    ErrorRule,
    ExecutionStatus,
    Holdfast,
    HoldfastError,
    IdempotencyConflict,
    InvalidInput,
    Retry,
    RetryRefused,
    TransientError,
    UnknownName,
)
from running import run

ENDS_SOON = 60.0


async def noop(ctx: Context) -> None: ...


def no_argument() -> None: ...


def two_arguments(ctx: Context, other: int) -> None: ...


def generates(ctx: Context) -> Any:
    yield 1


async def generates_async(ctx: Context) -> Any:
    yield 1


class Called:
    def __call__(self, ctx: Context) -> int:
        return 1


def test_every_public_name_is_there_and_documented() -> None:
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None


@pytest.mark.parametrize(
    "define",
    [
        lambda hf: Holdfast("mysql://host/db"),
        lambda hf: Holdfast("sqlite://"),
        lambda hf: Holdfast(retention="soon"),
        lambda hf: hf.pipeline("empty", []),
        lambda hf: hf.pipeline("bad name!", [noop]),
        lambda hf: hf.pipeline("twice", [noop, noop]),
        lambda hf: hf.pipeline("no function", ["noop"]),
        lambda hf: hf.pipeline("job", [hf.step(retry={"max_attempts": 0})(noop)]),
        lambda hf: hf.pipeline("job", [hf.step(retry={"tries": 3})(noop)]),
        lambda hf: hf.pipeline("job", [hf.step(retry=Retry(retry_when="1 +"))(noop)]),
        lambda hf: hf.pipeline("job", [hf.step(timeout=0)(noop)]),
        lambda hf: hf.pipeline("job", [hf.step(timeout="soon")(noop)]),
        lambda hf: hf.pipeline("job", [hf.step(lane="express")(noop)]),
        lambda hf: hf.pipeline("job", [hf.step(priority=10)(noop)]),
        lambda hf: hf.pipeline("job", [hf.step(max_crashes=0)(noop)]),
        lambda hf: hf.pipeline("job", [hf.step(name="no spaces")(noop)]),
        lambda hf: (hf.pipeline("job", [noop]), hf.pipeline("job", [hf.step(retry=2)(noop)])),
    ],
)
def test_a_wrong_definition_is_refused_with_what_is_allowed(sqlite_url: str, define: Any) -> None:
    with pytest.raises(HoldfastError) as refused:
        define(Holdfast(sqlite_url))
    assert str(refused.value)


@pytest.mark.parametrize(
    ("define", "problem"),
    [
        (lambda hf: Holdfast(5), "a text, not an int"),
        (lambda hf: Holdfast(payload_bytes_max=0), "payload_bytes_max must be a whole number from 1, not 0"),
        (lambda hf: Holdfast(payload_bytes_max="1"), "payload_bytes_max .* not '1'"),
        (lambda hf: hf.step(4), "Step 4 must be a function, not 4"),
        (lambda hf: hf.step(hf.step(noop)), "has no name of its own"),
        (lambda hf: hf.step(name="a")(hf.step(noop)), "Step a must be a function"),
        (lambda hf: hf.step(functools.partial(two_arguments, other=1)), "has no name of its own"),
        (lambda hf: hf.pipeline("p", [Called()]), "has no name of its own"),
        (lambda hf: hf.step(name="")(noop), "name of a step must be a text, not ''"),
        (lambda hf: hf.step(name=5)(noop), "name of a step must be a text, not 5"),
        (lambda hf: hf.step(clear=5)(noop), "clear of step noop must be a function, not 5"),
        (lambda hf: hf.step(clear=no_argument)(noop), "clear of step noop is called with one argument"),
        (lambda hf: hf.step(no_argument), "Step no_argument is called with one argument, the context"),
        (lambda hf: hf.pipeline("p", [two_arguments]), "is called with one argument, the context"),
        (lambda hf: hf.step(generates), "Step generates is a generator"),
        (lambda hf: hf.step(generates_async), "Step generates_async is a generator"),
        (lambda hf: hf.pipeline("p", [hf.step(operation=5)(noop)]), "Operation 5 of step noop"),
        (lambda hf: hf.pipeline("p", [hf.step(priority=True)(noop)]), "Priority True of step noop"),
        (lambda hf: hf.pipeline("p", [hf.step(errors=5)(noop)]), "errors of step noop must be a list"),
        (lambda hf: hf.pipeline("p", [hf.step(errors=["x"])(noop)]), "errors of step noop: .*'x'"),
        (lambda hf: hf.pipeline("p", [noop], errors={"status": 5}), "errors of pipeline p must be a list"),
        (lambda hf: hf.pipeline("p", noop), "steps of pipeline p must be a list"),
        (lambda hf: hf.pipeline("p", hf.step(noop)), "steps of pipeline p must be a list"),
        (lambda hf: hf.pipeline("p", "noop"), "steps of pipeline p must be a list, not 'noop'"),
        (lambda hf: hf.pipeline("p", None), "steps of pipeline p must be a list"),
    ],
)
def test_what_is_wrong_is_named(sqlite_url: str, define: Any, problem: str) -> None:
    with pytest.raises(HoldfastError, match=problem):
        define(Holdfast(sqlite_url))


def test_callables_of_every_kind_are_steps_once_they_have_a_name(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    rule = {"error_type": "not_ready", "status": 404}
    named = [hf.step(name="called", errors=[rule])(Called()), hf.step(name="builtin")(dict)]
    partial = hf.step(name="partial")(functools.partial(two_arguments, other=1))
    definition = hf.pipeline("p", [*named, partial])
    assert [step.name for step in definition.steps] == ["called", "builtin", "partial"]
    assert definition.steps[0].errors == (ErrorRule("not_ready", status=404),)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"lanes": "bulk"}, "lanes of a worker must be a list, not 'bulk'"),
        ({"lanes": []}, "lanes of a worker must be a list"),
        ({"lanes": ["express"]}, "'express' is not a lane"),
        ({"concurrency": True}, "concurrency of at least 1, not True"),
        ({"concurrency": "2"}, "concurrency of at least 1, not '2'"),
        ({"lease_seconds": 0}, "lease_seconds must be longer than 0"),
        ({"lease_seconds": "soon"}, "lease_seconds cannot be 'soon'"),
        ({"poll_seconds": -1}, "poll_seconds cannot be -1"),
        ({"ageing": 0}, "ageing must be longer than 0"),
        ({"ageing": "soon"}, "ageing cannot be 'soon'"),
        ({"worker_id": "a\0"}, "worker id .* cannot be printed"),
    ],
    ids=repr,
)
def test_a_wrong_option_of_a_worker_is_refused(sqlite_url: str, options: Any, problem: str) -> None:
    async def scenario() -> None:
        async with Holdfast(sqlite_url) as hf:
            hf.pipeline("job", [noop])
            with pytest.raises(InvalidInput, match=problem):
                await hf.worker(**options)
            assert await hf.worker(lanes=["manual"], lease_seconds="30s", poll_seconds="500ms")

    run(scenario())


def test_a_step_can_still_be_called_as_the_function_it_is() -> None:
    hf = Holdfast("sqlite:///unused.db")

    @hf.step(retry=3)
    def double(ctx: Any) -> int:
        return int(ctx) * 2

    assert double(4) == 8
    assert double.name == "double"


def test_defining_the_same_pipeline_again_changes_nothing(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    assert hf.pipeline("job", [noop]) == hf.pipeline("job", [noop])


def test_it_connects_by_itself_and_again_in_another_event_loop(store_url: str) -> None:
    hf = Holdfast(store_url)
    hf.pipeline("job", [noop])

    async def submit() -> int:
        try:
            return (await hf.submit("job")).id
        finally:
            await hf.close()

    assert asyncio.run(submit()) < asyncio.run(submit())


def test_a_pipeline_that_is_defined_later_is_known_too_and_after_closing_again(store_url: str) -> None:
    async def main() -> None:
        hf = Holdfast(store_url)
        hf.pipeline("first", [noop])
        assert (await hf.submit("first")).created
        hf.pipeline("second", [noop])
        assert [item.created for item in await hf.submit_many("second", [1, 2])] == [True, True]
        await hf.close()
        assert (await hf.submit("second")).created
        await hf.close()

    run(main())


def test_using_it_from_two_tasks_at_once_connects_once(store_url: str) -> None:
    hf = Holdfast(store_url)
    hf.pipeline("job", [noop])

    async def scenario() -> None:
        executions = await asyncio.gather(*(hf.submit("job", i) for i in range(20)))
        assert len({execution.id for execution in executions}) == 20
        engines = await asyncio.gather(hf.engine(), hf.engine())
        assert engines[0] is engines[1]
        await hf.close()
        await hf.close()

    run(scenario())


def test_submits_are_idempotent_by_key_and_conflicts_are_told(store_url: str) -> None:
    hf = Holdfast(store_url)
    hf.pipeline("job", [noop])

    async def scenario() -> None:
        async with hf:
            first = await hf.submit("job", {"a": 1, "b": 2}, idempotency_key="k")
            again = await hf.submit("job", {"b": 2, "a": 1}, idempotency_key="k")
            assert (first.created, again.created) == (True, False)
            assert first.id == again.id
            with pytest.raises(IdempotencyConflict, match="another workload"):
                await hf.submit("job", {"a": 2}, idempotency_key="k")
            with pytest.raises(UnknownName, match="no pipeline 'nothing'"):
                await hf.submit("nothing")
            with pytest.raises(UnknownName, match="no execution 999"):
                await hf.status(999)
            assert repr(first) == f"Execution(id={first.id}, created=True)"
            for wrong in ("abc", {"a": 1}, 5):
                with pytest.raises(InvalidInput, match="workloads of submit_many") as refused:
                    await hf.submit_many("job", wrong)  # type: ignore[arg-type]
                assert "Give a list of workloads" in refused.value.guidance
        async with Holdfast(store_url) as other:
            # A program without the pipeline's code may submit to it, and learns what there is.
            assert (await other.submit("job", {"a": 1, "b": 2}, idempotency_key="k")).id == first.id
            with pytest.raises(UnknownName, match="no pipeline 'jab'") as unknown:
                await other.submit("jab")
            assert unknown.value.guidance == "Known are: job."

    run(scenario())


def test_waiting_is_bounded_and_says_where_the_execution_stands(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    hf.pipeline("job", [noop])

    async def scenario() -> None:
        async with hf:
            execution = await hf.submit("job", delay="1h")
            with pytest.raises(TimeoutError, match="Waiting to run noop"):
                await execution.wait("10ms")
            with pytest.raises(InvalidInput, match="within cannot be 'soon'"):
                await execution.wait("soon")
            assert (await execution.status()).execution.status is ExecutionStatus.RUNNING

    run(scenario())


def test_retry_cancel_and_lists_through_the_api(store_url: str) -> None:
    hf = Holdfast(store_url)
    working = [False]

    @hf.step(errors=[ErrorRule("not_ready", message="come back later")])
    async def fetch(ctx: Context) -> str:
        if not working[0]:
            raise RuntimeError("Come back later")
        return "there"

    hf.pipeline("fetch", [fetch])

    async def scenario() -> None:
        async with hf, hf.working():
            execution = await hf.submit("fetch")
            view = await execution.wait(ENDS_SOON)
            assert view.execution.error is not None
            assert view.execution.error.error_type == "not_ready"
            dead = await hf.queue(status="dead")
            assert [job.execution_id for job in dead.items] == [execution.id]
            working[0] = True
            await hf.retry(execution.id, by="ann")
            assert (await execution.wait(ENDS_SOON)).outputs == {"fetch": "there"}
            assert (await hf.queue(status="dead")).items == []
            with pytest.raises(RetryRefused) as refused:
                await hf.retry(execution.id)
            assert refused.value.code == "not_failed"
            assert not await hf.cancel(execution.id)
            listed = await hf.executions(status="completed", path="fetch")
            assert [item.id for item in listed.items] == [execution.id]

    run(scenario())


def test_a_history_of_many_pages_is_given_whole(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)

    @hf.step(retry=Retry(delays=[0], max_attempts=400))
    async def stubborn(ctx: Context) -> None:
        if not ctx.is_last_attempt:
            raise TransientError("again")

    hf.pipeline("stubborn", [stubborn])

    async def scenario() -> None:
        async with hf, hf.working():
            execution = await hf.submit("stubborn")
            view = await execution.wait(2 * ENDS_SOON)  # through 400 attempts
            events = await execution.events()
        assert len(events) == 2 + 399 * 3 + 1 + 3
        assert view.execution.retry_count == 399
        assert len(view.execution.retry_history) == 10

    run(scenario())


def test_a_worker_without_a_slot_is_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with Holdfast(sqlite_url) as hf:
            hf.pipeline("job", [noop])
            with pytest.raises(HoldfastError, match="concurrency of at least 1"):
                await hf.worker(concurrency=0)

    run(scenario())


def test_an_inner_block_does_not_close_what_an_outer_one_uses(store_url: str) -> None:
    hf = Holdfast(store_url)
    hf.pipeline("job", [noop])

    async def scenario() -> None:
        async with hf, hf.working():
            async with hf:
                pass
            view = await (await hf.submit("job")).wait(ENDS_SOON)
            assert view.status is ExecutionStatus.COMPLETED

    run(scenario())


def test_whoever_waits_looks_at_the_whole_execution_only_at_its_end(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    playbook = """
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: many, path: many}
workflow:
  - {step: each, type: sleep, seconds: 0, for_each: {items: [1, 2, 3, 4, 5, 6, 7, 8], concurrency: 1}}
"""

    async def scenario() -> None:
        async with hf:
            await hf.add_playbook(playbook)
            engine = await hf.engine()
            looks, view = 0, engine.view

            async def counted(execution_id: int) -> Any:
                nonlocal looks
                looks += 1
                return await view(execution_id)

            engine.view = counted  # type: ignore[method-assign]
            async with hf.working():
                ended = await (await hf.submit("many")).wait(60)
            assert ended.execution.status is ExecutionStatus.COMPLETED
            assert looks <= 2

    run(scenario())
