"""The sitting: each scenario on each store, raw and engine in turns on fresh databases.

Of the repeated runs the middle one counts (the better one where there are two), for both sides alike.
Everything lives in a temporary folder that is gone at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.bench import engine_run, raw
from holdfast.bench.batches import batch_seconds
from holdfast.bench.claims import claim_seconds
from holdfast.bench.places import Place, PostgresPlace, SqlitePlace, check_completed
from holdfast.bench.postgres import TemporaryPostgres
from holdfast.bench.raw import RawLoop
from holdfast.bench.raw_postgres import run_raw_postgres
from holdfast.bench.raw_sqlite import run_raw_sqlite
from holdfast.bench.scenarios import SCENARIOS, Kind, Scenario

Figures = dict[str, float]
Results = dict[str, dict[str, Figures]]

STORES = ("sqlite", "postgresql")
ROUNDS = 3
ROUNDS_QUICK = 2
SMALL_PART = 10
BATCH_PARTS = ("submit", "settle", "open", "status")

RAW_LOOPS: dict[str, RawLoop] = {"sqlite": run_raw_sqlite, "postgresql": run_raw_postgres}


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """What to measure. `size` replaces the sizes of all scenarios, for tests."""

    quick: bool = False
    stores: Sequence[str] = STORES
    scenarios: Sequence[str] = tuple(SCENARIOS)
    size: int | None = None
    progress: Callable[[str], None] = field(default=_silent)

    def size_of(self, scenario: Scenario) -> int:
        return self.size or (scenario.size_quick if self.quick else scenario.size)

    @property
    def rounds(self) -> int:
        return ROUNDS_QUICK if self.quick else ROUNDS

    def run(self) -> Results:
        """All figures, by scenario and store. Call it from the main thread: PostgreSQL ends with it."""
        with self._places() as places:
            return asyncio.run(self._measure(places))

    @contextlib.contextmanager
    def _places(self) -> Iterator[list[Place]]:
        with contextlib.ExitStack() as stack:
            places: list[Place] = []
            if "sqlite" in self.stores:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-"))
                places.append(SqlitePlace(Path(folder)))
            if "postgresql" in self.stores:
                self.progress("starting PostgreSQL")
                places.append(PostgresPlace(stack.enter_context(TemporaryPostgres(durable=True))))
            yield places

    async def _measure(self, places: list[Place]) -> Results:
        measures = {
            Kind.RATES: self._rates,
            Kind.LATENCY: self._latency,
            Kind.BATCH: self._batch,
            Kind.CLAIM: self._claim,
        }
        results: Results = {}
        for scenario in SCENARIOS.values():
            if scenario.name not in self.scenarios:
                continue
            results[scenario.name] = {}
            for place in places:
                figures = await measures[scenario.kind](scenario, place)
                results[scenario.name][place.store] = figures
        return results

    async def _rates(self, scenario: Scenario, place: Place) -> Figures:
        script = await raw.sample(place, scenario)
        raw_loop = RAW_LOOPS[place.store]
        ours: list[float] = []
        raws: list[float] = []
        for number in range(1, self.rounds + 1):
            self.progress(f"{scenario.name} on {place.store}, round {number} of {self.rounds}")
            raws.append(await self._timed(scenario, place, lambda url: raw_loop(url, script)))
            ours.append(
                await self._timed(
                    scenario, place, lambda url: engine_run.run(url, scenario, self.size_of(scenario))
                )
            )
        rate, raw_rate = (self.size_of(scenario) / _counting(seconds) for seconds in (ours, raws))
        return {"rate": round(rate), "raw_rate": round(raw_rate), "ratio": round(rate / raw_rate, 3)}

    async def _timed(self, scenario: Scenario, place: Place, run: Callable[[str], Awaitable[float]]) -> float:
        size = self.size_of(scenario)
        async with place.database() as url:
            await engine_run.fill(url, scenario, size)
            await place.settle(url)
            seconds = await run(url)
            await check_completed(place, url, size)
        return seconds

    async def _latency(self, scenario: Scenario, place: Place) -> Figures:
        self.progress(f"{scenario.name} on {place.store}")
        async with place.database() as url:
            taken = await engine_run.latencies(url, scenario, self.size_of(scenario))
        return {"p50_ms": _percentile_ms(taken, 50), "p99_ms": _percentile_ms(taken, 99)}

    async def _batch(self, scenario: Scenario, place: Place) -> Figures:
        """By the item, of the larger batch; the ratios say what an item costs there more than in a smaller
        one, which is run before and after it: the machine may have become slower or faster."""
        large = self.size_of(scenario)
        small = max(large // SMALL_PART, 1)
        taken = []
        for items in (small, large, small):
            self.progress(f"{scenario.name} of {items:,} on {place.store}")
            taken.append(await batch_seconds(place, items))
        figures: Figures = {}
        for part in BATCH_PARTS:
            before, at_large, after = (getattr(seconds, part) for seconds in taken)
            figures[f"{part}_us"] = round(at_large / large * 1e6, 2)
            figures[f"{part}_ratio"] = round(at_large / large / ((before + after) / 2 / small), 2)
        return figures

    async def _claim(self, scenario: Scenario, place: Place) -> Figures:
        self.progress(f"{scenario.name} on {place.store}")
        taken = await claim_seconds(place, scenario, self.size_of(scenario))
        return {
            "claim_ms": round(taken.plain * 1000, 2),
            "empty_ms": round(taken.empty * 1000, 2),
            "future_ratio": round(taken.future / taken.plain, 2),
            "future_empty_ratio": round(taken.empty_future / taken.empty, 2),
            "backlog_ratio": round(taken.backlog / taken.plain, 2),
        }


def _counting(seconds: Sequence[float]) -> float:
    return statistics.median_low(seconds)


def _percentile_ms(seconds: Sequence[float], percent: int) -> float:
    ordered = sorted(seconds)
    return round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] * 1000, 2)
