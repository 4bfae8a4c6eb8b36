"""`make soak`: kill workers by the thousand on both stores, then read the evidence.

    run.py                                   1,000 kills on SQLite, then 1,000 on PostgreSQL
    run.py --store postgresql --kills 50     a shorter one
    run.py --seed 4711                       the same sentences again; the moments are the machine's

Ends with exit code 1 and every violation found.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.storm import Storm, StormFailed
from holdfast.bench.postgres import TemporaryPostgres

KILLS_DEFAULT = 1_000
KILLS_PER_RESTART = 100
PROGRESS_SECONDS = 10.0


class Progress:
    """Lines for people, not more often than they can be read."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._told_at = self._began = time.monotonic()

    def tell(self, words: str) -> None:
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_SECONDS or words.startswith("restart"):
            self._told_at = now
            print(f"{self._kind} {now - self._began:6.0f} s: {words}", flush=True)


@contextmanager
def storm_on(kind: str, folder: Path, *, kills: int, seed: int) -> Iterator[Storm]:
    tell = Progress(kind).tell
    if kind == "sqlite":
        yield Storm(f"sqlite:///{folder}/storm.db", folder, seed=seed, kills=kills, tell=tell)
        return
    restarts = max(2, kills // KILLS_PER_RESTART)
    with TemporaryPostgres(durable=False) as server:
        yield Storm(
            server.url(),
            folder,
            seed=seed,
            kills=kills,
            restart=server.restart,
            restarts=restarts,
            tell=tell,
        )


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill workers and the database, and look for damage.")
    parser.add_argument("--kills", type=int, default=KILLS_DEFAULT, metavar="N", help="on each store")
    parser.add_argument("--seed", type=int, metavar="S", help="of the sentences; a random one if not given")
    parser.add_argument("--store", choices=("sqlite", "postgresql", "both"), default="both")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    failed = False
    for kind in ("sqlite", "postgresql") if options.store == "both" else (options.store,):
        with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as folder:
            try:
                with storm_on(kind, Path(folder), kills=options.kills, seed=seed) as storm:
                    result = asyncio.run(storm.run())
            except StormFailed as error:
                print(f"{kind}: {error}\n{' '.join(error.__notes__)}", file=sys.stderr)
                return 1
        print(f"{kind}: {result.told()}", flush=True)
        for violation in result.violations:
            print(f"  VIOLATION: {violation}", file=sys.stderr)
        failed = failed or bool(result.violations)
        print(f"{kind}: {'promises were broken' if failed else 'every promise was kept'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
