"""`ctx.transaction()` in playbooks that branch: a step's end may depend on what others do in that moment."""

from __future__ import annotations

import asyncio

from holdfast import Context, ExecutionStatus, Holdfast
from holdfast.engine import ExecutionView
from notes_table import ENDS_SOON, INSERT, Notes, errors_of
from running import eventually, run

HEAD = """
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: flow, path: flow}
workflow:
"""


def program(store_url: str) -> Holdfast:
    hf = Holdfast(store_url)

    @hf.function(name="note")
    async def note(ctx: Context, item: int) -> int:
        if item < 0:
            raise ValueError("no such item")
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, f"{ctx.step} {item}")
        return item

    return hf


async def is_failing(hf: Holdfast, ctx: Context) -> bool:
    return (await hf.status(ctx.execution_id)).execution.error is not None


async def ended(hf: Holdfast, notes: Notes, workflow: str) -> ExecutionView:
    await notes.make()
    await hf.add_playbook(HEAD + workflow)
    async with hf.working(concurrency=10):
        return await (await hf.submit("flow")).wait(ENDS_SOON)


def test_elements_that_end_at_once_decide_together_what_comes_next(store_url: str) -> None:
    hf, notes = program(store_url), Notes(store_url)
    workflow = """
  - step: fan
    type: python
    call: note
    for_each: {items: [0, 1, 2, 3, 4, 5, 6, 7]}
    next: [{step: after, when: "{{ fan | length > 1 }}"}]
  - {step: after, type: sleep, seconds: 0}
"""

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes, workflow)
            assert view.execution.status is ExecutionStatus.COMPLETED, view.execution.error
            assert await notes.all() == [f"fan {number}" for number in range(8)]
            assert view.outputs["fan"] == list(range(8))

    run(scenario())


def test_branches_that_end_at_once_meet_at_a_step_that_decides(store_url: str) -> None:
    hf, notes = program(store_url), Notes(store_url)
    branches = "".join(
        f"\n  - {{step: b{number}, type: python, call: note, with: {{item: {number}}}, next: join}}"
        for number in range(6)
    )
    workflow = f"""
  - step: start
    next: [b0, b1, b2, b3, b4, b5]{branches}
  - step: join
    next: [{{step: after, when: "{{{{ b0 + b5 == 5 }}}}"}}]
  - {{step: after, type: python, call: note, with: {{item: 9}}}}
"""

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes, workflow)
            assert view.execution.status is ExecutionStatus.COMPLETED, view.execution.error
            assert len(await notes.all()) == 7

    run(scenario())


def test_what_completes_while_the_execution_fails_is_kept(store_url: str) -> None:
    hf, notes = program(store_url), Notes(store_url)
    begun = asyncio.Event()

    @hf.function(name="late")
    async def late(ctx: Context) -> str:
        """Ends when the other branch has died, and this one is all that is waited for."""
        begun.set()
        await eventually(lambda: is_failing(hf, ctx))
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "late")
        return "kept"

    @hf.function(name="die")
    async def die() -> None:
        await begun.wait()
        raise ValueError("no")

    workflow = """
  - step: start
    next: [dies, stays]
  - {step: dies, type: python, call: die, next: []}
  - step: stays
    type: python
    call: late
    for_each: {items: [1]}
    next: [{step: after, when: "{{ stays[0] == 'kept' }}"}]
  - {step: after, type: sleep, seconds: 0}
"""

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes, workflow)
            assert view.execution.status is ExecutionStatus.FAILED
            assert view.outputs["stays"] == ["kept"]
            assert await notes.all() == ["late"]

    run(scenario())


def test_the_last_element_commits_also_where_its_end_fails_the_execution(store_url: str) -> None:
    hf, notes = program(store_url), Notes(store_url)

    @hf.function(name="wait")
    async def wait(ctx: Context) -> None:
        """Another branch that is under way when the last element ends."""

        async def is_noted() -> bool:
            return await notes.all() == ["fan 5"]

        await eventually(is_noted)

    workflow = """
  - step: start
    next: [fan, waits]
  - {step: waits, type: python, call: wait, next: []}
  - step: fan
    type: python
    call: note
    retry: {max_attempts: 3, initial_delay: 0, jitter: false}
    for_each: {items: [-1, 5], concurrency: 1}
    next: []
"""

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes, workflow)
            assert view.execution.status is ExecutionStatus.FAILED
            fan = {job.element: job for job in view.jobs if job.step == "fan" and job.element >= 0}
            assert (fan[1].status.value, fan[1].attempts) == ("done", 1)
            assert await notes.all() == ["fan 5"]

    run(scenario())


def test_nothing_is_kept_of_a_step_after_which_nobody_can_tell_what_comes(store_url: str) -> None:
    hf, notes = program(store_url), Notes(store_url)
    workflow = """
  - step: start
    next: [a, beside]
  - {step: beside, type: sleep, seconds: 0, next: []}
  - step: a
    type: python
    call: note
    with: {item: 1}
    retry: 3
    next: [{step: b, when: "{{ a.missing.name > 3 }}"}]
  - {step: b, type: sleep, seconds: 0}
"""

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes, workflow)
            assert view.execution.status is ExecutionStatus.FAILED
            [told] = await errors_of(hf, view.execution.id)
            assert (told["error_type"], told["category"]) == ("playbook_error", "permanent")
            assert "`when` of the way from a to b" in told["message"]
            assert view.execution.error is not None
            assert view.execution.error.guidance.endswith(
                "What this step wrote in its transaction is undone."
            )
            assert await notes.all() == []

    run(scenario())
