"""A zombie, a worker that was stopped past its lease and then goes on, changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from faults.dying import BEFORE_COMMIT, BEFORE_REPORT
from faults.gate_worker import app, gate, in_window, marked, started, window_gate
from faults.processes import Fleet
from faults.tables import freeze, make_tables, select
from holdfast.core.model import ExecutionStatus
from running import eventually, run

SCRIPT = Path(__file__).with_name("gate_worker.py")
# Long enough that the heir, which is healthy, does not lose its lease on a busy machine.
LEASE_SECONDS = 6.0
LEASED_AHEAD = 10
WITHIN = 120.0
TEST_SECONDS_MAX = 400


async def all_about(url: str, execution: int) -> list[list[Sequence[Any]]]:
    """Every row that tells of it, whole but for what a heartbeat changes."""
    job = """id, step, round, status, attempts, leases, fence, worker_id, unknown_errors, losses, crashes,
        dead_reason, settled_fence, settled_hash, output, available_at, finished_at"""
    return [
        await select(url, f"SELECT * FROM {{schema}}executions WHERE id = {execution}"),
        await select(url, f"SELECT {job} FROM {{schema}}jobs WHERE execution_id = {execution} ORDER BY id"),
        await select(url, f"SELECT * FROM {{schema}}events WHERE execution_id = {execution} ORDER BY id"),
        await select(url, f"SELECT fence FROM effects WHERE execution = {execution}"),
    ]


async def play(
    url: str, folder: Path, pipeline: str, *, mark: str | None = None, window: str | None = None
) -> None:
    """The zombie is stopped in its handler, there at this mark, or in this window."""
    await make_tables(url)
    async with app(url, folder) as hf:
        with Fleet(folder, url) as fleet:
            execution = await hf.submit(pipeline)
            if window:
                gate(folder, execution.id).touch()
            zombie = fleet.start(SCRIPT, str(LEASE_SECONDS), *filter(None, [window]))
            await eventually(lambda: started(folder, zombie.name, execution.id), WITHIN)
            if mark:
                await eventually(lambda: marked(folder, zombie.name, execution.id, mark), WITHIN)
            if window:
                await eventually(lambda: in_window(folder, zombie.name), WITHIN)
            await freeze(url, zombie, WITHIN)
            heir = fleet.start(SCRIPT, str(LEASE_SECONDS))
            await eventually(lambda: started(folder, heir.name, execution.id), WITHIN)
            before = await all_about(url, execution.id)

            gate(folder, execution.id).touch()
            window_gate(folder).touch()
            zombie.thaw()
            goes_on = "attempt 1 goes on"
            await eventually(lambda: marked(folder, zombie.name, execution.id, goes_on), WITHIN)
            # It is alive, and has had its say, once it has done something else (the heir runs its job alone)
            # and has stopped in good order.
            another = await hf.submit("innocent")
            assert (await another.wait(WITHIN)).execution.status is ExecutionStatus.COMPLETED
            assert started(folder, zombie.name, another.id)
            assert zombie.stop() == 0
            assert await all_about(url, execution.id) == before

            gate(folder, execution.id, 2).touch()
            view = await execution.wait(WITHIN)
            assert view.execution.status is ExecutionStatus.COMPLETED
            assert list(view.outputs.values()) == [2]  # the second attempt's
            assert heir.stop() == 0
            done = f"SELECT settled_fence FROM {{schema}}jobs WHERE execution_id = {execution.id}"
            effects = (await all_about(url, execution.id))[3]
            assert effects == ([] if pipeline == "plain" else await select(url, done))


@pytest.mark.parametrize("pipeline", ["plain", "effect"])
def test_a_zombie_stopped_in_its_handler_changes_nothing(
    store_url: str, tmp_path: Path, pipeline: str
) -> None:
    run(play(store_url, tmp_path, pipeline), TEST_SECONDS_MAX)


def test_a_zombie_stopped_on_its_way_to_report_changes_nothing(store_url: str, tmp_path: Path) -> None:
    """Its report reaches the engine before anybody can tell it that its lease is lost."""
    run(play(store_url, tmp_path, "plain", window=BEFORE_REPORT), TEST_SECONDS_MAX)


# Only on PostgreSQL: with SQLite nobody writes while another process, stopped or not, has begun to.
def test_a_zombie_stopped_inside_its_transaction_changes_nothing(postgres_url: str, tmp_path: Path) -> None:
    run(play(postgres_url, tmp_path, "inside", mark="attempt 1 is inside"), TEST_SECONDS_MAX)


def test_a_zombie_stopped_before_its_transaction_commits_changes_nothing(
    postgres_url: str, tmp_path: Path
) -> None:
    run(play(postgres_url, tmp_path, "effect", window=BEFORE_COMMIT), TEST_SECONDS_MAX)


def test_a_zombie_begins_nothing_that_it_had_leased_ahead(store_url: str, tmp_path: Path) -> None:
    """Leased ahead and never begun, its other jobs were done by the heir: it must not do them again."""

    async def scenario() -> None:
        async with app(store_url, tmp_path) as hf:
            with Fleet(tmp_path, store_url) as fleet:
                first = await hf.submit("blocking")
                ahead = await hf.submit_many("innocent", [None] * LEASED_AHEAD)
                zombie = fleet.start(SCRIPT, str(LEASE_SECONDS))
                # It blocks the event loop: what was leased with it waits in the worker's hands.
                await eventually(lambda: started(tmp_path, zombie.name, first.id), WITHIN)
                await freeze(store_url, zombie, WITHIN)
                gate(tmp_path, first.id, 2).touch()
                heir = fleet.start(SCRIPT, str(LEASE_SECONDS))
                for execution in [first, *ahead]:
                    assert (await execution.wait(WITHIN)).execution.status is ExecutionStatus.COMPLETED
                assert heir.stop() == 0
                gate(tmp_path, first.id).touch()
                zombie.thaw()
                another = await hf.submit("innocent")
                assert (await another.wait(WITHIN)).execution.status is ExecutionStatus.COMPLETED
                assert zombie.stop() == 0
                begun = [execution.id for execution in ahead if started(tmp_path, zombie.name, execution.id)]
                assert begun == []

    run(scenario(), TEST_SECONDS_MAX)
