"""A backup that was taken while workers wrote, restored to another place, goes on there.

It is of one moment: no execution is half there, and the effects that are in it are those of the stages that
are complete in it. Everything in it ends, and what came after it is as if it had never been.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from backups import Backups, begun_anew
from faults.evidence import Evidence
from faults.gate_worker import app as gate_app
from faults.gate_worker import gate
from faults.ledger import Ledger, Start, read_all, read_worker
from faults.processes import Fleet
from faults.storm_worker import STURDY, app
from faults.tables import make_tables, select
from holdfast import Holdfast
from holdfast.core.model import ExecutionStatus
from holdfast.engine import Submission
from holdfast.store.numbering import NUMBERS_LEFT_OUT
from ports import kept_port
from running import eventually, run
from served_stores import served

STORM = Path(__file__).with_name("storm_worker.py")
GATE = Path(__file__).with_name("gate_worker.py")
LEASE_SECONDS = 20.0
WORKERS = 2
AT_A_TIME = 100
SOME = 30
LOOK_SECONDS = 0.05
WITHIN = 180.0
TEST_SECONDS_MAX = 900

RUNNING = "SELECT count(*) FROM {schema}executions WHERE status = 'running'"
COMPLETED = "SELECT count(*) FROM {schema}executions WHERE status = 'completed'"
EXECUTIONS = "SELECT id, status FROM {schema}executions"


async def count(url: str, sql: str) -> int:
    [(found,)] = await select(url, sql)
    return int(found)


async def submit(hf: Holdfast, numbers: range) -> None:
    await (await hf.engine()).submit(
        [
            Submission(path=STURDY, workload={"number": number, "seed": 1}, idempotency_key=str(number))
            for number in numbers
        ]
    )


async def past_of(url: str, folder: Path) -> list[Start]:
    """What the workers began before the backup and the backup knows the end of."""
    jobs = {
        id_: (leases, status)
        for id_, leases, status in await select(url, "SELECT id, leases, status FROM {schema}jobs")
    }

    def is_known(start: Start) -> bool:
        leases, status = jobs.get(start.job, (0, ""))
        return start.lease_number < leases + (status != "leased")

    return [line for line in read_all(folder) if isinstance(line, Start) and is_known(line)]


async def restored_from_the_midst_of_work(backups: Backups, folder: Path) -> str:
    """There is work at the moment of the backup, and more of it is done afterwards; then the workers are
    killed. Where this process was held up and all was done meanwhile, another backup is taken."""
    url = backups.url

    async def has_completed(executions: int) -> bool:
        return await count(url, COMPLETED) >= executions

    async with app(url) as hf:
        await hf.engine()
        await make_tables(url)
        with Fleet(folder, url) as fleet:
            workers = [fleet.start(STORM, str(LEASE_SECONDS)) for _ in range(WORKERS)]
            await submit(hf, range(AT_A_TIME))
            submitted = AT_A_TIME
            await eventually(lambda: has_completed(SOME), WITHIN)
            restored = None
            while restored is None or not await count(restored, RUNNING):
                taking = asyncio.create_task(asyncio.to_thread(backups.take))
                while not taking.done():
                    if await count(url, RUNNING) < AT_A_TIME:
                        await submit(hf, range(submitted, submitted + AT_A_TIME))
                        submitted += AT_A_TIME
                    await asyncio.sleep(LOOK_SECONDS)
                restored = await asyncio.to_thread(backups.restore, await taking)
            await submit(hf, range(submitted, submitted + AT_A_TIME))
            done = await count(url, COMPLETED)
            await eventually(lambda: has_completed(done + SOME), WITHIN)
            assert [worker.ended_with() for worker in workers] == [None] * WORKERS
            return restored


async def go_on(url: str, folder: Path, numbers: range) -> None:
    """Until all that is there has ended, with these under keys that those had which are lost."""

    async def is_done() -> bool:
        return not await count(url, RUNNING)

    async with app(url) as hf:
        await submit(hf, numbers)
        with Fleet(folder, url) as fleet:
            workers = [fleet.start(STORM, str(LEASE_SECONDS)) for _ in range(WORKERS)]
            await eventually(is_done, WITHIN)
            assert [worker.stop() for worker in workers] == [0] * WORKERS


def test_a_backup_taken_while_workers_write_goes_on_where_it_is_restored(
    backups: Backups, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()

    async def scenario() -> None:
        restored = await restored_from_the_midst_of_work(backups, first)
        known = {line[0]: line[1] for line in await select(restored, EXECUTIONS)}
        assert set(known.values()) == {"running", "completed"}
        assert await count(backups.url, COMPLETED) > await count(restored, COMPLETED)
        past = Ledger(second, "past")
        for start in await past_of(restored, first):
            past.write(start)
        await asyncio.to_thread(begun_anew, restored)
        numbers = range(len(known), len(known) + AT_A_TIME)
        await go_on(restored, second, numbers)

        evidence = await Evidence.read(restored, second)
        assert evidence.examine(numbers.stop) == []
        assert {line.status for line in evidence.executions.values()} == {"completed"}
        new = evidence.executions.keys() - known.keys()
        assert known.keys() < evidence.executions.keys()
        assert len(new) == AT_A_TIME and min(new) > NUMBERS_LEFT_OUT

    run(scenario(), TEST_SECONDS_MAX)


def test_a_worker_that_lived_through_the_restore_of_its_servers_database_is_stale(
    backups: Backups, tmp_path: Path
) -> None:
    """It leased after the backup was taken, and reports to the server that is back under its address."""

    def starts(worker: str) -> list[Start]:
        return [line for line in read_worker(tmp_path, worker) if isinstance(line, Start)]

    async def scenario() -> None:
        with kept_port() as port:
            with served(backups.url, port=port) as address:
                async with gate_app(address, tmp_path) as hf:
                    execution = await hf.submit("plain")
                file = await asyncio.to_thread(backups.take)
                fleet = stack.enter_context(Fleet(tmp_path, address))
                worker = fleet.start(GATE, str(LEASE_SECONDS))
                await eventually(lambda: starts(worker.name), WITHIN)
            restored = backups.restore(file)
            begun_anew(restored)
            with served(restored, port=port):
                await eventually(lambda: len(starts(worker.name)) == 2, WITHIN)
                gate(tmp_path, execution.id).touch()  # for both of them: each is a first attempt
                async with gate_app(address, tmp_path) as hf:
                    view = await hf.wait(execution.id, WITHIN)
                    assert view.execution.status is ExecutionStatus.COMPLETED
                    # It is alive, and has had its say, once it has done something else and has stopped.
                    another = await hf.submit("innocent")
                    assert another.id > NUMBERS_LEFT_OUT
                    await another.wait(WITHIN)
                    assert worker.stop() == 0, worker.told()
        old, new, _ = starts(worker.name)
        assert old.fence != new.fence and (old.job, old.attempt) == (new.job, new.attempt)
        settled = await select(restored, f"SELECT settled_fence FROM {{schema}}jobs WHERE id = {old.job}")
        assert [fence for (fence,) in settled] == [new.fence]

    with contextlib.ExitStack() as stack:
        run(scenario(), TEST_SECONDS_MAX)
