"""A database is migrated while workers of the version before are at work on it.

They began on the previous schema, with work in every state. Nothing is lost or done twice, none of them ends,
and what comes later is done by old and new workers alike, also by an old one that is started afterwards.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from faults.evidence import Evidence
from faults.gate_worker import app as gate_app
from faults.gate_worker import gate, lease_until, started
from faults.ledger import Start, read_worker
from faults.processes import Fleet, WorkerProcess
from faults.storm_worker import FRAGILE, GATHERED, STURDY, app
from faults.tables import make_tables, select
from holdfast import Holdfast
from holdfast.core.model import ExecutionStatus
from holdfast.engine import Submission
from holdfast.store.inspection import inspect
from holdfast.store.queries import load_migrations
from running import eventually, run
from schema_versions import dialect_of, following, knowing, previous
from store_scenario import ENVIRONMENT, opened

SCRIPT = Path(__file__).with_name("upgrade_worker.py")
# Long enough that a busy machine costs nobody a lease.
LEASE_SECONDS = 20.0
HEARTBEATS_SECONDS = 3.0
OLD_WORKERS = 2
AT_A_TIME = 20
ITEMS = 10
FIRST_ITEM = 100_000
WITHIN = 180.0
TEST_SECONDS_MAX = 900

STATES = """SELECT status FROM {schema}jobs WHERE held_by IS NULL AND status <> 'cancelled'
    UNION SELECT 'held' FROM {schema}jobs WHERE held_by IS NOT NULL"""
RUNNING = "SELECT count(*) FROM {schema}executions WHERE status = 'running'"
EVERY_STATE = {"queued", "leased", "retry", "dead", "done", "held"}


class Work:
    """What is submitted: every second one may fail for good, and each has a key of its own."""

    def __init__(self, hf: Holdfast, url: str) -> None:
        self._hf = hf
        self._url = url
        self.submitted = 0

    async def feed(self) -> None:
        """Where little is left to do."""
        [(running,)] = await select(self._url, RUNNING)
        if running > AT_A_TIME + ITEMS:
            return
        numbers = range(self.submitted, self.submitted + AT_A_TIME)
        await (await self._hf.engine()).submit(
            [
                Submission(
                    path=STURDY if number % 2 else FRAGILE,
                    workload={"number": number, "seed": 1},
                    idempotency_key=str(number),
                )
                for number in numbers
            ]
        )
        self.submitted = numbers.stop

    async def is_in_every_state(self) -> bool:
        await self.feed()
        return {state for (state,) in await select(self._url, STATES)} >= EVERY_STATE


async def play(url: str, folder: Path, known: int, migrate: Callable[[], Awaitable[None]]) -> None:
    """Old workers are those that know this schema; `migrate` brings the database to a later one."""

    async def has_begun(worker: WorkerProcess, after: int) -> bool:
        """Something that was submitted later than this."""
        await work.feed()
        begun = [line.execution for line in read_worker(folder, worker.name) if isinstance(line, Start)]
        return max(begun, default=0) > after

    def start(migrations: int) -> WorkerProcess:
        return fleet.start(SCRIPT, "storm", str(migrations), str(LEASE_SECONDS))

    hf = app(url)
    try:
        with knowing(load_migrations(dialect_of(url))[:known]), Fleet(folder, url) as fleet:
            await hf.engine()
            await make_tables(url)
            work = Work(hf, url)
            workload = [{"number": FIRST_ITEM + number, "seed": 1} for number in range(ITEMS)]
            batch = await hf.batch(GATHERED, workload, key="items", close=False)
            workers = [start(known) for _ in range(OLD_WORKERS)]
            await eventually(work.is_in_every_state, WITHIN)

            await migrate()

            [(last,)] = await select(url, "SELECT max(id) FROM {schema}executions")
            workers += [start(known), start(len(load_migrations(dialect_of(url))))]
            for worker in workers:
                await eventually(lambda worker=worker: has_begun(worker, last), WITHIN)  # type: ignore[misc]
            await batch.close()
            await eventually(lambda: is_done(url), WITHIN)
            for worker in workers:
                assert worker.ended_with() is None, worker.told()
                assert worker.stop() == 0, worker.told()
    finally:
        await hf.close()
    evidence = await Evidence.read(url, folder)
    assert evidence.examine(work.submitted) == []
    assert len(evidence.executions) == work.submitted + ITEMS
    # Nobody was too slow or died, so nobody's attempt was taken away.
    assert evidence.lost_workers() == set()


async def is_done(url: str) -> bool:
    return await select(url, RUNNING) == [(0,)]


def test_workers_of_the_version_before_go_on_while_holdfast_migrate_runs(
    store_url: str, tmp_path: Path
) -> None:
    before = len(previous(store_url))

    async def migrate() -> None:
        assert (await inspect(store_url)).schema_found == before
        command = ["-m", "holdfast", "migrate", "--db", store_url]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=ENVIRONMENT, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        assert said.decode() == f"Migrated from schema version {before} to {before + 1}.\n"
        assert process.returncode == 0

    run(play(store_url, tmp_path, before, migrate), TEST_SECONDS_MAX)


def test_workers_go_on_while_a_migration_changes_the_tables_they_work_on(
    store_url: str, tmp_path: Path
) -> None:
    """One that has not been written yet, and locks what they use."""
    known = len(load_migrations(dialect_of(store_url)))
    schema = "" if dialect_of(store_url) == "sqlite" else "holdfast."
    changes = "".join(
        f"ALTER TABLE {schema}{table} ADD COLUMN added integer;"
        f"CREATE INDEX {table}_added ON {schema}{table} (added) WHERE added IS NOT NULL;"
        for table in ("jobs", "executions", "events", "claim_groups", "batches")
    )

    async def migrate() -> None:
        with knowing(following(store_url, changes, works_with=known)):
            async with opened(store_url):
                pass
        assert (await inspect(store_url)).schema_found == known + 1

    run(play(store_url, tmp_path, known, migrate), TEST_SECONDS_MAX)


def test_an_attempt_that_began_before_a_migration_is_kept_alive_and_completes(
    store_url: str, tmp_path: Path
) -> None:
    before = previous(store_url)

    async def scenario() -> None:
        with knowing(before):
            hf = gate_app(store_url, tmp_path)
            await hf.engine()
        async with hf:
            with Fleet(tmp_path, store_url) as fleet:
                execution = await hf.submit("plain")
                worker = fleet.start(SCRIPT, "gate", str(len(before)), str(HEARTBEATS_SECONDS))
                await eventually(lambda: started(tmp_path, worker.name, execution.id), WITHIN)
                async with opened(store_url):  # with all migrations
                    pass
                migrated = await lease_until(store_url, execution.id)

                async def is_extended() -> bool:
                    return await lease_until(store_url, execution.id) > migrated

                await eventually(is_extended, WITHIN)
                gate(tmp_path, execution.id).touch()
                view = await execution.wait(WITHIN)
                assert view.execution.status is ExecutionStatus.COMPLETED
                assert worker.stop() == 0, worker.told()

    run(scenario(), TEST_SECONDS_MAX)
