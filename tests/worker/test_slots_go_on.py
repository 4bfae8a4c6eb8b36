"""A slot outlives what its handlers do to it: cancellations of their own, and handlers that never wait."""

import asyncio

from holdfast import Context, Holdfast, TransientError
from holdfast.core.model import ExecutionStatus
from running import run

ENDS_SOON = 60.0


def test_a_handler_that_cancels_its_own_task_and_never_waits_costs_its_attempt_at_most(
    sqlite_url: str,
) -> None:
    hf = Holdfast(sqlite_url)

    @hf.step(retry={"max_attempts": 1})
    async def suicidal(ctx: Context) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if ctx.workload == "raises":
            raise ValueError("and that is that")
        return "done"

    hf.pipeline("suicidal", [suicidal])

    async def scenario() -> None:
        async with hf, hf.working(concurrency=1):
            for workload, status in (
                ("returns", ExecutionStatus.COMPLETED),
                ("raises", ExecutionStatus.FAILED),
                ("returns", ExecutionStatus.COMPLETED),
            ):
                execution = await hf.submit("suicidal", workload)
                assert (await execution.wait(ENDS_SOON)).status is status

    run(scenario())


def test_retried_attempts_that_clear_and_never_wait_let_others_have_their_turn(sqlite_url: str) -> None:
    """With a clear hook an attempt goes another way through the worker: it rests there too."""
    hf = Holdfast(sqlite_url)
    turns = 0
    blocked: list[int] = []
    broken = True

    async def clear(ctx: Context) -> None: ...

    @hf.step(clear=clear, retry={"max_attempts": 1})
    async def blocks(ctx: Context) -> None:
        if broken:
            raise TransientError("not yet")
        blocked.append(turns)
        deadline = asyncio.get_running_loop().time() + 0.01
        while asyncio.get_running_loop().time() < deadline:
            pass

    hf.pipeline("blocks", [blocks])

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario() -> None:
        nonlocal broken
        async with hf:
            executions = [await hf.submit("blocks") for _ in range(30)]
            async with hf.working():
                for execution in executions:
                    await execution.wait(ENDS_SOON)
            broken = False
            for execution in executions:
                await hf.retry(execution.id)
            counting = asyncio.create_task(count_turns())
            async with hf.working(concurrency=2):
                for execution in executions:
                    await execution.wait(ENDS_SOON)
            counting.cancel()

    run(scenario())
    assert len(blocked) == 30
    assert len(set(blocked)) > 10  # about every second one began in a turn of its own
