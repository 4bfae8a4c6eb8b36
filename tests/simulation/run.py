"""`make simulate`: play many seeds, and stop at the first that breaks an invariant.

    run.py                              3,000 seeds on SQLite, then 300 on PostgreSQL
    run.py --seed 4711                  one seed, with its whole trace
    run.py --store both --minutes 30    as many as there is time for

Ends with exit code 1 and the command that plays the failing seed again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from holdfast.bench.postgres import TemporaryPostgres
from simulation.seeds import SeedFailed, open_stage

SEEDS_DEFAULT = {"sqlite": 3_000, "postgresql": 300}
PROGRESS_SECONDS = 5.0


@contextmanager
def database(kind: str) -> Iterator[str]:
    """The address of an empty database that is gone afterwards."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/simulation.db"
    else:
        with TemporaryPostgres(durable=False) as server:
            yield server.url()


async def play(url: str, seeds: Iterator[int], end: float, *, with_trace: bool) -> None:
    began = told = time.monotonic()
    played = steps = 0
    async with open_stage(url) as stage:
        for seed in seeds:
            world = await stage.play(seed)
            played += 1
            steps += world.steps
            if with_trace:
                print(*world.trace, sep="\n")
            now = time.monotonic()
            if now >= end:
                break
            if now - told >= PROGRESS_SECONDS:
                told = now
                print(f"{stage.kind}: {played} seeds, {played / (now - began):.1f} a second", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{stage.kind}: {played} seeds, {steps} steps, every invariant held;"
        f" {seconds:.1f} s, {played / seconds:.1f} seeds a second"
    )


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Play seeded histories on the real engine.")
    parser.add_argument("--seeds", type=int, metavar="N", help="how many, from --seed or 0 on")
    parser.add_argument("--seed", type=int, metavar="S", help="play this one alone, with its trace")
    parser.add_argument("--store", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--minutes", type=float, metavar="M", help="play until they are over, on each store")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    kinds = tuple(SEEDS_DEFAULT) if options.store == "both" else (options.store,)
    for kind in kinds:
        first = options.seed or 0
        if options.seeds is not None:
            seeds = iter(range(first, first + options.seeds))
        elif options.minutes is not None:
            seeds = count(first)
        else:
            seeds = iter(range(first, first + (1 if options.seed is not None else SEEDS_DEFAULT[kind])))
        end = float("inf") if options.minutes is None else time.monotonic() + 60 * options.minutes
        alone = options.seed is not None and options.seeds is None and options.minutes is None
        try:
            with database(kind) as url:
                asyncio.run(play(url, seeds, end, with_trace=alone))
        except SeedFailed as failure:
            print(failure, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
