"""Workers killed at random moments and in exact windows, on both stores, and PostgreSQL with them.

The short form of `make soak`. A failure tells its seed: `tests/faults/run.py --seed` repeats the sentences.
"""

from __future__ import annotations

import random
from pathlib import Path

from faults.dying import WINDOWS
from faults.storm import OUTSIDE, Result, Storm
from holdfast.bench.postgres import TemporaryPostgres
from running import run

KILLS = 30
EXECUTIONS = 200
STORM_SECONDS_MAX = 1_200


def judge(result: Result) -> None:
    print(result.told())
    assert not result.violations, "\n".join([result.told(), *result.violations])
    assert result.kills >= KILLS
    assert len(result.evidence.executions) >= EXECUTIONS
    # Killing idle workers would prove nothing: most deaths must have cost an attempt.
    assert result.hits >= KILLS // 2, result.told()
    assert result.kills_by_window[OUTSIDE] > 0
    assert sum(result.kills_by_window[window] > 0 for window in WINDOWS) > len(WINDOWS) / 2, result.told()


def test_nothing_is_lost_or_doubled_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    storm = Storm(sqlite_url, tmp_path, seed=seed, kills=KILLS, executions_min=EXECUTIONS)
    judge(run(storm.run(), STORM_SECONDS_MAX))


def test_nothing_is_lost_or_doubled_on_postgresql_which_crashes_twice(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    with TemporaryPostgres(durable=False) as server:
        storm = Storm(
            server.url(),
            tmp_path,
            seed=seed,
            kills=KILLS,
            executions_min=EXECUTIONS,
            restart=server.restart,
            restarts=2,
        )
        result = run(storm.run(), STORM_SECONDS_MAX)
    judge(result)
    assert result.restarts == 2
