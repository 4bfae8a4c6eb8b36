"""The storm's evidence is worth something: it shows damage of every kind. And no worker is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from faults.dying import Order
from faults.evidence import Evidence
from faults.ledger import Ledger, Start, read_all
from faults.processes import TESTS
from faults.storm_worker import STURDY, app
from faults.tables import make_tables
from holdfast.engine import Submission
from running import eventually, run

EXECUTIONS = 6
WORKER = "w1"


async def peaceful_run(url: str, folder: Path) -> None:
    """What a storm leaves, without the storm."""
    await make_tables(url)
    ledger = Ledger(folder, WORKER)
    async with app(url, ledger, Order(ledger, None)) as hf:
        engine = await hf.engine()
        submitted = await engine.submit(
            [
                Submission(path=STURDY, workload={"number": number, "seed": 1}, idempotency_key=str(number))
                for number in range(EXECUTIONS)
            ]
        )
        async with hf.working(worker_id=WORKER):
            for item in submitted:
                await hf.wait(item.id, 60)


def sql(*statements: str) -> Callable[[apsw.Connection, Path], None]:
    def damage(db: apsw.Connection, _: Path) -> None:
        for statement in statements:
            db.execute(statement)

    return damage


def begin_again(job: int, fence: str | None = None) -> Callable[[apsw.Connection, Path], None]:
    """A handler that began once more, with this fence or the same one."""

    def damage(_: apsw.Connection, folder: Path) -> None:
        [start] = [
            line
            for line in read_all(folder)
            if isinstance(line, Start) and line.job == job and line.lease_number == 1
        ]
        ledger = Ledger(folder, WORKER)
        ledger.start(start.job, start.execution, start.step, start.round, start.attempt, fence or start.fence)

    return damage


LEASED_ONCE_MORE = """INSERT INTO events (execution_id, at, body) SELECT execution_id, at,
    '[{"type": "action_started", "step": "parse", "attempt": 1, "worker": "w1"}]' FROM events
    WHERE execution_id = 1 LIMIT 1"""

DAMAGE = {
    "executions that were submitted and are not there": sql("DELETE FROM executions WHERE id = 3"),
    "jobs of executions that are not there": sql("DELETE FROM executions WHERE id = 3"),
    "executions that did not end": sql(
        "UPDATE executions SET status = 'running', finished_at = NULL WHERE id = 1"
    ),
    "completed without all its stages": sql(
        "UPDATE jobs SET status = 'cancelled', output = NULL WHERE id = 1"
    ),
    "the wrong result": sql("UPDATE jobs SET output = '0' WHERE step = 'deliver' AND execution_id = 1"),
    "its jobs": sql("UPDATE jobs SET attempts = attempts + 1, leases = leases + 1 WHERE id = 1"),
    "in the log": sql(LEASED_ONCE_MORE),
    "fences used twice": begin_again(1),
    "attempts that the log does not know": begin_again(1, "1000-forged"),
    "completed by an attempt that never began": sql(
        "UPDATE jobs SET settled_fence = '1-forged' WHERE id = 1"
    ),
    "effects that are there twice": sql("INSERT INTO effects SELECT * FROM effects LIMIT 1"),
    "effects of attempts that did not complete": sql("UPDATE effects SET fence = '1-forged' WHERE job = 1"),
    "effects that are missing": sql("DELETE FROM effects WHERE rowid = 1"),
    "the counters say": sql("UPDATE counters SET n = n + 1 WHERE id = 1"),
    "completed stages that ran again": lambda db, folder: (
        db.execute(LEASED_ONCE_MORE),
        db.execute(LEASED_ONCE_MORE),
        *(begin_again(1, f"{number}-later")(db, folder) for number in range(2, 30)),
    ),
}


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peaceful")
    run(peaceful_run(f"sqlite:///{folder}/storm.db", folder), 120)
    return folder


def violations_in(folder: Path) -> list[str]:
    evidence = run(Evidence.read(f"sqlite:///{folder}/storm.db", folder))
    return evidence.examine(EXECUTIONS)


def test_a_peaceful_run_shows_no_violation(left_behind: Path) -> None:
    assert violations_in(left_behind) == []


@pytest.mark.parametrize("words", DAMAGE)
def test_damage_is_found(left_behind: Path, tmp_path: Path, words: str) -> None:
    original = apsw.Connection(str(left_behind / "storm.db"))
    damaged = apsw.Connection(str(tmp_path / "storm.db"))
    with damaged.backup("main", original, "main") as backup:
        backup.step()
    original.close()
    for path in left_behind.glob("*.ledger"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damaged.execute("PRAGMA ignore_check_constraints = ON")
    DAMAGE[words](damaged, tmp_path)
    damaged.close()
    found = violations_in(tmp_path)
    assert any(words in violation for violation in found), found


STARTS_A_WORKER_AND_WAITS = """
import pathlib, sys, time
from faults.processes import Fleet
folder = pathlib.Path(sys.argv[1])
fleet = Fleet(folder, f"sqlite:///{folder}/fleet.db")
worker = fleet.start(pathlib.Path(sys.argv[2]), "1.5")
print(worker.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with a killed parent")
def test_a_worker_ends_with_the_process_that_started_it_even_a_killed_one(tmp_path: Path) -> None:
    script = Path(__file__).with_name("gate_worker.py")
    command = [sys.executable, "-c", STARTS_A_WORKER_AND_WAITS, str(tmp_path), str(script)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        run(eventually(lambda: (tmp_path / "w1.ledger").exists(), 60))
        parent.send_signal(signal.SIGKILL)

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    run(eventually(is_gone, 60))
