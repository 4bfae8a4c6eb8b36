"""200 executions of three stages on a Celery fleet whose workers, processes and broker are killed at random:
nothing is lost, nothing that was committed runs again, all ends."""

from __future__ import annotations

import random
from pathlib import Path

from faults.celery_storm import EXECUTIONS, CeleryStorm, FleetEvidence
from holdfast.core.model import EventType
from running import run

STORM_SECONDS_MAX = 540


def weathered(url: str, folder: Path, *, kills: int) -> FleetEvidence:
    seed = random.SystemRandom().randrange(1_000_000)
    storm = CeleryStorm(url, folder, seed=seed, kills=kills)
    evidence = run(storm.run(), STORM_SECONDS_MAX)
    told = (
        f"seed {seed}: {dict(storm.kills)}, {storm.ended_by_themselves} ended by themselves;"
        f" {evidence.summary()}"
    )
    print(told)
    violations = evidence.examine(EXECUTIONS)
    assert not violations, "\n".join([told, *violations])
    assert len(evidence.executions) == EXECUTIONS
    assert all(line.status == "completed" for line in evidence.executions.values())
    assert storm.kills.keys() == {"broker", "worker", "process"}
    return evidence


def test_nothing_is_lost_or_doubled_while_celery_workers_and_the_broker_die(
    postgres_url: str, tmp_path: Path
) -> None:
    evidence = weathered(postgres_url, tmp_path, kills=20)
    # Killing idle processes would prove nothing.
    assert evidence.count(EventType.LEASE_LOST) > 0


def test_a_fleet_on_one_machine_weathers_the_same_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    weathered(sqlite_url, tmp_path, kills=8)
