"""Thousands of seeded histories on the real engine and both stores; see world.py.

A failing seed is told with its trace and with the command that plays it again. `make simulate` plays
more of them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from running import run
from simulation.seeds import open_stage, play_all

SQLITE_SEEDS, SQLITE_CHUNK = 600, 40
POSTGRES_SEEDS, POSTGRES_CHUNK = 25, 5
CHUNK_SECONDS_MAX = 600


# The engine is measured by its own tests; here the measuring would only cost time.
@pytest.mark.parametrize("first", range(0, SQLITE_SEEDS, SQLITE_CHUNK))
def test_every_invariant_holds_on_sqlite(first: int, sqlite_url: str) -> None:
    seeds = range(first, first + SQLITE_CHUNK)
    assert run(play_all(sqlite_url, seeds), CHUNK_SECONDS_MAX) == SQLITE_CHUNK


@pytest.mark.parametrize("first", range(0, POSTGRES_SEEDS, POSTGRES_CHUNK))
def test_every_invariant_holds_on_postgresql(first: int, postgres_url: str) -> None:
    seeds = range(first, first + POSTGRES_CHUNK)
    assert run(play_all(postgres_url, seeds), CHUNK_SECONDS_MAX) == POSTGRES_CHUNK


def test_a_seed_gives_the_same_trace_and_rows_whatever_was_played_before(tmp_path: Path) -> None:
    async def played(name: str, *seeds: int) -> tuple[list[str], list[Any]]:
        async with open_stage(f"sqlite:///{tmp_path / name}") as stage:
            for seed in seeds:
                world = await stage.play(seed)
            rows = [
                await stage.stores[0].select(f"SELECT * FROM {{schema}}{table} ORDER BY id")
                for table in ("executions", "jobs", "events")
            ]
            return world.trace, rows

    trace, rows = run(played("alone.db", 7))
    assert (trace, rows) == run(played("after_others.db", 3, 11, 7))
    assert len(trace) > 50
    assert all(rows)


def test_the_command_plays_the_same_trace_in_every_process() -> None:
    def told(hash_seed: str) -> str:
        command = [
            sys.executable,
            str(Path(__file__).with_name("run.py")),
            "--store",
            "sqlite",
            "--seed",
            "7",
        ]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert "every invariant held" in ended.stdout
        return re.sub(r"every invariant held.*", "", ended.stdout)

    assert told("1") == told("2")
