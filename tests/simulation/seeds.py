"""Seeds played one after the other on one open store, which is emptied between them."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice

from holdfast.engine import batches
from holdfast.store import choosing
from simulation.operations import OF_FLOW, OPERATIONS
from simulation.stores import Clock, SimulatedStore, simulated_store
from simulation.world import World, is_of_flow

PROCESSES = 2
# So few that a batch of a handful of items is let through in several transactions.
CHUNK_ITEMS = 2
TRACE_LINES_SHOWN = 40
REPLAY = ".venv/bin/python tests/simulation/run.py"


class SeedFailed(AssertionError):
    """A seed broke an invariant: with the end of its trace and the command that plays it again."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The open stores of a run, one for each process, on one database."""

    kind: str
    stores: tuple[SimulatedStore, ...]
    clock: Clock

    async def play(self, seed: int) -> World:
        await self.stores[0].empty()
        world = World(seed, self.stores, self.clock)
        try:
            await world.run(
                tuple(OPERATIONS), tuple(OPERATIONS.values()), lambda each: OF_FLOW.get(each, 1.0)
            )
        except Exception as error:
            raise SeedFailed(self._told(world, error)) from error
        return world

    def _told(self, world: World, error: Exception) -> str:
        lines = world.trace[-TRACE_LINES_SHOWN:]
        return "\n".join(
            (
                f"Seed {world.seed} on {self.kind}: {type(error).__name__}: {error}",
                f"The last {len(lines)} of {len(world.trace)} lines of its trace:",
                *(f"  {line}" for line in lines),
                f"Play it again: {REPLAY} --store {self.kind} --seed {world.seed}",
            )
        )


@asynccontextmanager
async def open_stage(url: str) -> AsyncIterator[Stage]:
    # The engine tells of every failed attempt, and here nearly all of them fail.
    log = logging.getLogger("holdfast")
    level = log.level
    log.setLevel(logging.CRITICAL)
    chunk_items, batches.CHUNK_ITEMS = batches.CHUNK_ITEMS, CHUNK_ITEMS
    # A lease is longer by what it waited for its transaction; that is the machine's time, not the clock's.
    no_wait, choosing.NO_WAIT_SECONDS = choosing.NO_WAIT_SECONDS, math.inf
    clock = Clock()
    stores = [simulated_store(url, clock) for _ in range(PROCESSES)]
    opened = []
    try:
        for store in stores:
            await store.open()
            opened.append(store)
        yield Stage(url.partition(":")[0], tuple(stores), clock)
    finally:
        log.setLevel(level)
        batches.CHUNK_ITEMS, choosing.NO_WAIT_SECONDS = chunk_items, no_wait
        for store in opened:
            await store.close()


def seeds_of_chains(count: int) -> Iterable[int]:
    return islice((seed for seed in itertools.count() if not is_of_flow(seed)), count)


def seeds_of_flow(count: int) -> Iterable[int]:
    return islice(filter(is_of_flow, itertools.count()), count)


async def play_all(url: str, seeds: Iterable[int]) -> int:
    """Play them; the number played, or SeedFailed."""
    played = 0
    async with open_stage(url) as stage:
        for seed in seeds:
            await stage.play(seed)
            played += 1
    return played
