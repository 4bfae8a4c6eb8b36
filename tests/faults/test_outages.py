"""Healthy work outlives its first lease, and an outage of the store that is longer than a lease."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults.gate_worker import app, gate, lease_until, started
from faults.processes import Fleet
from holdfast.bench.postgres import TemporaryPostgres
from holdfast.core.model import ExecutionStatus
from holdfast.engine import ExecutionView
from running import eventually, run

SCRIPT = Path(__file__).with_name("gate_worker.py")
# Long enough that no healthy worker loses its lease on a busy machine.
LEASE_SECONDS = 9.0
WITHIN = 120.0
TEST_SECONDS_MAX = 300

HOLD_THE_WRITE_LOCK = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
db.set_busy_timeout(60_000)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def check_that_one_attempt_completed(view: ExecutionView) -> None:
    assert view.execution.status is ExecutionStatus.COMPLETED
    assert [job.attempts for job in view.jobs] == [1]


@contextmanager
def write_lock(path: str) -> Iterator[None]:
    """Another process writes to the SQLite file and does not come to an end; it ends with this one."""
    command = [sys.executable, "-c", HOLD_THE_WRITE_LOCK, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield


def test_a_handler_that_runs_for_many_leases_keeps_its_lease(store_url: str, tmp_path: Path) -> None:
    """In a thread, and on the event loop, which it blocks; another worker stands by to take them over."""

    async def scenario() -> None:
        async with app(store_url, tmp_path) as hf:
            with Fleet(tmp_path, store_url) as fleet:
                in_thread, on_loop = await hf.submit("plain"), await hf.submit("blocking")
                worker = fleet.start(SCRIPT, str(LEASE_SECONDS))
                await eventually(lambda: started(tmp_path, worker.name, on_loop.id), WITHIN)
                await eventually(lambda: started(tmp_path, worker.name, in_thread.id), WITHIN)
                fleet.start(SCRIPT, str(LEASE_SECONDS))
                first = max([await lease_until(store_url, id_) for id_ in (in_thread.id, on_loop.id)])

                async def are_kept() -> bool:
                    now = [await lease_until(store_url, id_) for id_ in (in_thread.id, on_loop.id)]
                    return min(now) > first + 2 * LEASE_SECONDS

                await eventually(are_kept, WITHIN, every=0.1)
                for execution in (in_thread, on_loop):
                    gate(tmp_path, execution.id).touch()
                for execution in (in_thread, on_loop):
                    check_that_one_attempt_completed(await execution.wait(WITHIN))

    run(scenario(), TEST_SECONDS_MAX)


def test_a_crash_of_postgresql_that_lasts_longer_than_a_lease_kills_no_healthy_lease(tmp_path: Path) -> None:
    with TemporaryPostgres(durable=False) as server:

        async def scenario() -> None:
            url = server.url()
            async with app(url, tmp_path) as hf:
                with Fleet(tmp_path, url) as fleet:
                    execution = await hf.submit("plain")
                    worker = fleet.start(SCRIPT, str(LEASE_SECONDS))
                    await eventually(lambda: started(tmp_path, worker.name, execution.id), WITHIN)
                    fleet.start(SCRIPT, str(LEASE_SECONDS))
                    over = time.monotonic() + 1.5 * LEASE_SECONDS
                    server.halt("immediate")
                    await eventually(lambda: time.monotonic() > over, WITHIN)
                    server.start()
                    up_again_at = time.time()

                    async def is_extended() -> bool:
                        return await lease_until(url, execution.id) > up_again_at + LEASE_SECONDS / 2

                    await eventually(is_extended, WITHIN)
                    gate(tmp_path, execution.id).touch()
                    check_that_one_attempt_completed(await execution.wait(WITHIN))

        run(scenario(), TEST_SECONDS_MAX)


@pytest.mark.parametrize("ends_when", ["while it runs", "before the store is back"])
def test_a_sqlite_file_locked_for_longer_than_a_lease_kills_no_healthy_lease(
    sqlite_url: str, tmp_path: Path, ends_when: str
) -> None:
    async def scenario() -> None:
        async with app(sqlite_url, tmp_path) as hf:
            with Fleet(tmp_path, sqlite_url) as fleet:
                execution = await hf.submit("plain")
                worker = fleet.start(SCRIPT, str(LEASE_SECONDS))
                await eventually(lambda: started(tmp_path, worker.name, execution.id), WITHIN)
                fleet.start(SCRIPT, str(LEASE_SECONDS))
                with write_lock(sqlite_url.removeprefix("sqlite:///")):
                    over = await lease_until(sqlite_url, execution.id) + LEASE_SECONDS
                    if ends_when == "before the store is back":
                        gate(tmp_path, execution.id).touch()
                    await eventually(lambda: time.time() > over, WITHIN)
                unlocked_at = time.time()

                async def is_extended() -> bool:
                    return await lease_until(sqlite_url, execution.id) > unlocked_at + LEASE_SECONDS / 2

                if ends_when == "while it runs":
                    await eventually(is_extended, WITHIN)
                    gate(tmp_path, execution.id).touch()
                check_that_one_attempt_completed(await execution.wait(WITHIN))

    run(scenario(), TEST_SECONDS_MAX)
