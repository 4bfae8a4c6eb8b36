"""Two servers, four workers, 300 executions of three stages; servers and workers killed at random, PostgreSQL
restarted twice: nothing is lost, nothing is doubled, all ends."""

from __future__ import annotations

import random
from pathlib import Path

from faults.http_storm import EXECUTIONS, HttpStorm
from holdfast.bench.postgres import TemporaryPostgres
from holdfast.core.model import EventType
from running import run

KILLS = 30
STORM_SECONDS_MAX = 540


def test_nothing_is_lost_or_doubled_over_http_while_everything_dies(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    with TemporaryPostgres(durable=False) as database:
        storm = HttpStorm(database.url(), tmp_path, seed=seed, kills=KILLS, restart=database.restart)
        evidence = run(storm.run(), STORM_SECONDS_MAX)
    told = f"seed {seed}: {dict(storm.kills)}, {storm.restarts} restarts; {evidence.summary()}"
    print(told)
    violations = evidence.examine(EXECUTIONS, effects=False)
    assert not violations, "\n".join([told, *violations])
    assert len(evidence.executions) == EXECUTIONS
    assert all(line.status == "completed" for line in evidence.executions.values())
    assert storm.kills["server"] >= 3 and storm.kills["worker"] >= 3 and storm.restarts == 2, told
    # Killing idle workers would prove nothing.
    assert evidence.count(EventType.LEASE_LOST) > 0, told
