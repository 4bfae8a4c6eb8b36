"""A database that was put back from a backup: what was given out since, or before, is stale in every case."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from backups import Backups
from engine_scenario import completed, ref, stage
from holdfast.core.model import AckCode, ExecutionStatus, Leased
from holdfast.engine import Engine, Submission
from holdfast.engine.restoring import begin_anew
from holdfast.playbook.definition import Definition
from holdfast.store import store_from_url
from holdfast.store.numbering import NUMBERS_LEFT_OUT
from running import run

PATH = "p"
DEFINITION = Definition(path=PATH, steps=(stage("first"), stage("second")))
HANDLERS = [step.handler for step in DEFINITION.steps]


@asynccontextmanager
async def engine_of(url: str) -> AsyncIterator[Engine]:
    store = store_from_url(url)
    await store.open()
    try:
        engine = Engine(store)
        await engine.register(DEFINITION)
        yield engine
    finally:
        await store.close()


async def submit(engine: Engine, executions: int = 1, key: str | None = None) -> list[int]:
    items = [Submission(path=PATH, workload=None, idempotency_key=key) for _ in range(executions)]
    return [item.id for item in await engine.submit(items)]


async def lease(engine: Engine, worker: str = "w1", limit: int = 10) -> list[Leased]:
    return (await engine.lease(worker, HANDLERS, limit)).jobs


async def codes(engine: Engine, *jobs: Leased) -> set[AckCode]:
    return {ack.code for ack in await engine.report([completed(job) for job in jobs])}


async def beats(engine: Engine, *jobs: Leased) -> set[AckCode]:
    return {ack.code for ack in await engine.heartbeat([ref(job) for job in jobs])}


async def finish(engine: Engine) -> None:
    """Everything that there is, by a worker of the restored database."""
    while jobs := await lease(engine, "heir"):
        assert await codes(engine, *jobs) == {AckCode.ACCEPTED}


async def statuses(engine: Engine) -> set[ExecutionStatus]:
    return {row.status for row in (await engine.executions()).items}


@pytest.mark.parametrize("is_told", [True, False])
def test_what_was_leased_after_the_backup_is_stale_and_runs_again(backups: Backups, is_told: bool) -> None:
    """Also where nobody has told the database that it was put back."""

    async def main() -> None:
        async with engine_of(backups.url) as engine:
            before = await submit(engine, 3)
            file = backups.take()
            done, lost, held = await lease(engine)
            assert await codes(engine, done) == {AckCode.ACCEPTED}
            [second] = await lease(engine)  # of a stage that did not exist then
            [later] = await submit(engine)
            [of_later] = await lease(engine)
            assert of_later.execution_id == later
        async with engine_of(backups.restore(file)) as engine:
            if is_told:
                await begin_anew(engine)
            zombies = [done, lost, held, second, of_later]
            # Nobody has leased them here yet; they are leased by others; they were completed by others.
            assert await codes(engine, *zombies) == {AckCode.STALE_LEASE}
            assert await beats(engine, *zombies) == {AckCode.STALE_LEASE}
            jobs = await lease(engine, "heir")
            assert {job.execution_id for job in jobs} == set(before)
            [again] = await submit(engine)
            [of_again] = await lease(engine, "heir")
            assert of_again.execution_id == again
            assert await codes(engine, *zombies) == {AckCode.STALE_LEASE}
            assert await codes(engine, *jobs, of_again) == {AckCode.ACCEPTED}
            assert await codes(engine, *zombies) == {AckCode.STALE_LEASE}
            await finish(engine)
            assert await codes(engine, *zombies) == {AckCode.STALE_LEASE}
            assert await statuses(engine) == {ExecutionStatus.COMPLETED}
            assert len((await engine.executions()).items) == 4

    run(main())


def test_what_was_leased_at_the_backup_is_given_back_uncounted(backups: Backups) -> None:
    async def main() -> None:
        async with engine_of(backups.url) as engine:
            await submit(engine, 5)
            jobs = await lease(engine)
            file = backups.take()
        async with engine_of(backups.restore(file)) as engine:
            answer = await begin_anew(engine)
            assert (answer.given_back, answer.left_out) == (5, NUMBERS_LEFT_OUT)
            assert (await begin_anew(engine)).given_back == 0
            assert await codes(engine, *jobs) == {AckCode.STALE_LEASE}
            again = await lease(engine, "heir")
            assert [job.attempt for job in again] == [1] * 5  # none was used up
            assert {job.fence for job in again}.isdisjoint(job.fence for job in jobs)
            assert await codes(engine, *again) == {AckCode.ACCEPTED}
            await finish(engine)
            assert await statuses(engine) == {ExecutionStatus.COMPLETED}

    run(main())


def test_a_worker_that_was_never_told_may_still_complete_what_it_held_at_the_backup(backups: Backups) -> None:
    """Without `holdfast restored`, that is: it is the same attempt, and nobody else has it."""

    async def main() -> None:
        async with engine_of(backups.url) as engine:
            await submit(engine)
            [job] = await lease(engine)
            file = backups.take()
        async with engine_of(backups.restore(file)) as engine:
            assert await codes(engine, job) == {AckCode.ACCEPTED}
            await finish(engine)
            assert await statuses(engine) == {ExecutionStatus.COMPLETED}

    run(main())


def test_numbers_given_out_after_the_backup_are_never_given_out_again(backups: Backups) -> None:
    async def numbers(engine: Engine, key: str | None = None) -> tuple[int, int, int, int]:
        [execution] = await submit(engine, key=key)
        [job] = await lease(engine)
        batch, _ = await engine.batches.create(PATH)
        return execution, job.queue_id, await engine.store.last_event_row(), batch

    async def main() -> None:
        async with engine_of(backups.url) as engine:
            file = backups.take()  # before there is a first of any
            given = await numbers(engine, "the key")
        async with engine_of(backups.restore(file)) as engine:
            await begin_anew(engine)
            later = await numbers(engine, "the key")  # nobody knows of it here: it is done anew
            assert all(new > old for new, old in zip(later, given, strict=True))
            assert all(new > NUMBERS_LEFT_OUT for new in later)
            for number in await numbers(engine):
                assert NUMBERS_LEFT_OUT < number < NUMBERS_LEFT_OUT + 1_000

    run(main())


def test_more_leases_than_are_given_back_at_once_are_given_back(
    backups: Backups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.restoring.LEASES_AT_ONCE", 7)

    async def main() -> None:
        async with engine_of(backups.url) as engine:
            await submit(engine, 40)
            assert len(await lease(engine, limit=40)) == 40
            assert (await begin_anew(engine)).given_back == 40
            assert await engine.store.expired(float("inf"), 10) == []

    run(main())


def test_fences_of_two_pasts_differ_though_their_numbers_agree(backups: Backups) -> None:
    async def main() -> None:
        async with engine_of(backups.url) as engine:
            await submit(engine)
            file = backups.take()
            [old] = await lease(engine)
        async with engine_of(backups.restore(file)) as engine:
            [new] = await lease(engine)
            assert old.queue_id == new.queue_id and old.fence != new.fence
            assert {job.fence.partition("-")[0] for job in (old, new)} == {"1"}
            assert await beats(engine, old) == {AckCode.STALE_LEASE}
            assert await beats(engine, new) == {AckCode.ACCEPTED}

    run(main())
