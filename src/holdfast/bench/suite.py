"""The sitting: each scenario on each store; what is compared takes turns, on fresh databases.

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
from functools import partial
from pathlib import Path

from holdfast.bench import conf, copies, documents, engine_run, growth, over_http, raw, scrapes, submits
from holdfast.bench.batches import batch_seconds
from holdfast.bench.claims import claim_seconds
from holdfast.bench.fleet import drain_seconds
from holdfast.bench.places import Place, PostgresPlace, SqlitePlace, check_statuses
from holdfast.bench.postgres import TemporaryPostgres
from holdfast.bench.raw import RawLoop
from holdfast.bench.raw_postgres import run_raw_postgres
from holdfast.bench.raw_sqlite import run_raw_sqlite
from holdfast.bench.scenarios import SCENARIOS, Kind, Scenario
from holdfast.worker.loop import CONCURRENCY_DEFAULT

Figures = dict[str, float]
Results = dict[str, dict[str, Figures]]

STORES = ("sqlite", "postgresql")
ROUNDS = 3
ROUNDS_QUICK = 2
SMALL_PART = 10
CONCURRENCIES = (1, 16, 64, 256)
PICK_UPS = 200
SCRAPED = ("metrics", "api", "queued")
BATCH_PARTS = ("submit", "settle", "open", "status")

RAW_LOOPS: dict[str, RawLoop] = {"sqlite": run_raw_sqlite, "postgresql": run_raw_postgres}


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """What to measure. `size` replaces the sizes of all scenarios, for tests, and there is but one round."""

    quick: bool = False
    stores: Sequence[str] = STORES
    scenarios: Sequence[str] = tuple(SCENARIOS)
    size: int | None = None
    progress: Callable[[str], None] = field(default=_silent)

    def size_of(self, scenario: Scenario) -> int:
        return self.size or (scenario.size_quick if self.quick else scenario.size)

    @property
    def rounds(self) -> int:
        if self.size is not None:
            return 1
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
        measures: dict[Kind, Callable[[Scenario, Place], Awaitable[Figures]]] = {
            Kind.SUBMIT: self._submit,
            Kind.RATES: self._rates,
            Kind.PROCESSES: self._processes,
            Kind.SETTINGS: self._settings,
            Kind.LATENCY: self._latency,
            Kind.BATCH: self._batch,
            Kind.CLAIM: self._claim,
            Kind.HTTP: self._http,
            Kind.STREAMS: self._streams,
            Kind.SCRAPE: self._scrape,
            Kind.GROWTH: self._growth,
            Kind.CONF: self._conf,
            Kind.DOCUMENTS: partial(self._documents, {}),
        }
        results: Results = {}
        for scenario in SCENARIOS.values():
            if scenario.name not in self.scenarios:
                continue
            if scenario.kind is Kind.DOCUMENTS and not documents.is_installed():
                continue
            results[scenario.name] = {}
            for place in places:
                figures = await measures[scenario.kind](scenario, place)
                results[scenario.name][place.store] = figures
        return results

    async def _submit(self, scenario: Scenario, place: Place) -> Figures:
        size = self.size_of(scenario)
        ways = {"callers": submits.by_callers, "bulk": submits.in_bulk, "raw": submits.raw}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in self._rounds_told(scenario, place):
            for name, way in ways.items():
                async with place.database() as url:
                    taken[name].append(await way(place, url, scenario, size))
                    await check_statuses(place, url, {"running": size + 1})
        callers, bulk, bare = (size / _counting(taken[name]) for name in ways)
        return {
            "callers_rate": round(callers),
            "callers_ratio": round(callers / bare, 3),
            "bulk_rate": round(bulk),
            "bulk_ratio": round(bulk / bare, 3),
            "raw_rate": round(bare),
        }

    async def _rates(self, scenario: Scenario, place: Place) -> Figures:
        script = await raw.sample(place, scenario)
        raw_loop = RAW_LOOPS[place.store]
        size = self.size_of(scenario)
        bare, ours = await self._rates_in_turns(
            scenario,
            place,
            lambda url: raw_loop(url, script),
            lambda url: engine_run.run(url, scenario, size),
        )
        return {"rate": round(ours), "raw_rate": round(bare), "ratio": round(ours / bare, 3)}

    async def _processes(self, scenario: Scenario, place: Place) -> Figures:
        size = self.size_of(scenario)
        one, two = await self._rates_in_turns(
            scenario,
            place,
            lambda url: drain_seconds(url, scenario, size, 1),
            lambda url: drain_seconds(url, scenario, size, 2),
        )
        return {"rate": round(two), "one_rate": round(one), "ratio": round(two / one, 3)}

    async def _settings(self, scenario: Scenario, place: Place) -> Figures:
        size = self.size_of(scenario)
        others = [concurrency for concurrency in CONCURRENCIES if concurrency != CONCURRENCY_DEFAULT]
        default, *rates = await self._rates_in_turns(
            scenario,
            place,
            lambda url: engine_run.run(url, scenario, size),
            *(partial(_run_with, scenario=scenario, size=size, concurrency=number) for number in others),
        )
        by_concurrency = dict(zip((CONCURRENCY_DEFAULT, *others), (default, *rates), strict=True))
        best = max(by_concurrency, key=lambda concurrency: by_concurrency[concurrency])
        return {
            "rate": round(default),
            "best_rate": round(by_concurrency[best]),
            "best_concurrency": best,
            "ratio": round(default / by_concurrency[best], 3),
            **{f"rate_at_{number}": round(by_concurrency[number]) for number in sorted(by_concurrency)},
        }

    async def _rates_in_turns(
        self, scenario: Scenario, place: Place, *ways: Callable[[str], Awaitable[float]]
    ) -> list[float]:
        """Executions per second, of each way to do the work of a scenario that was submitted before."""
        size = self.size_of(scenario)
        taken: list[list[float]] = [[] for _ in ways]
        for _ in self._rounds_told(scenario, place):
            for way, seconds in zip(ways, taken, strict=True):
                async with place.database() as url:
                    await copies.fill_queued(place, url, scenario, size)
                    await place.settle(url)
                    seconds.append(await way(url))
                    await check_statuses(place, url, {"completed": size})
        return [size / _counting(seconds) for seconds in taken]

    def _rounds_told(self, scenario: Scenario, place: Place) -> Iterator[int]:
        for number in range(1, self.rounds + 1):
            self.progress(f"{scenario.name} on {place.store}, round {number} of {self.rounds}")
            yield number

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

    async def _http(self, scenario: Scenario, place: Place) -> Figures:
        size = self.size_of(scenario)
        direct, http = await self._rates_in_turns(
            scenario,
            place,
            lambda url: drain_seconds(url, scenario, size, 1),
            lambda url: over_http.drain_over_http(url, scenario, size),
        )
        async with place.database() as url:
            taken = await over_http.latencies(url, scenario, min(size, PICK_UPS))
        return {
            "rate": round(http),
            "direct_rate": round(direct),
            "ratio": round(http / direct, 3),
            "p50_ms": _percentile_ms(taken, 50),
            "p99_ms": _percentile_ms(taken, 99),
        }

    async def _streams(self, scenario: Scenario, place: Place) -> Figures:
        size = self.size_of(scenario)
        listeners = min(over_http.LISTENERS, size)
        heard: list[over_http.Listened] = []

        async def listened(url: str) -> float:
            heard.append(await over_http.drain_with_listeners(url, scenario, size, listeners))
            return heard[-1].seconds

        alone, rate = await self._rates_in_turns(
            scenario, place, lambda url: over_http.drain_over_http(url, scenario, size), listened
        )
        return {
            "rate": round(rate),
            "alone_rate": round(alone),
            "ratio": round(rate / alone, 3),
            "listeners": listeners,
            "events": max(one.events for one in heard),
            "server_mb": round(max(one.memory_bytes for one in heard) / 1e6, 1),
        }

    async def _scrape(self, scenario: Scenario, place: Place) -> Figures:
        taken = await scrapes.scraped(place, scenario, self.size_of(scenario), self.progress)
        figures: Figures = {}
        for name, answers in zip(SCRAPED, taken, strict=True):
            figures[f"{name}_first_ms"] = round(answers.first * 1000, 2)
            figures[f"{name}_p50_ms"] = _percentile_ms(answers.following, 50)
            figures[f"{name}_max_ms"] = _percentile_ms(answers.following, 100)
        return figures

    async def _growth(self, scenario: Scenario, place: Place) -> Figures:
        size = self.size_of(scenario)
        taken = await growth.in_the_way(place, scenario, size, self.rounds, self.progress)
        long = growth.long_drain(size)
        self.progress(f"{scenario.name} on {place.store}: {long:,} by tenths")
        tenths = await growth.tenths(place, scenario, long)
        drained = growth.drained(size)
        empty, queued, finished = (
            drained / _counting(seconds.drains) for seconds in (taken.empty, taken.queued, taken.finished)
        )
        first, last = (long / growth.TENTHS / s for s in (tenths.first_seconds, tenths.last_seconds))
        return {
            "rate": round(empty),
            "queued_rate": round(queued),
            "queued_ratio": round(queued / empty, 3),
            "finished_rate": round(finished),
            "finished_ratio": round(finished / empty, 3),
            "claim_ms": round(taken.empty.claim * 1000, 2),
            "claim_queued_ratio": round(taken.queued.claim / taken.empty.claim, 2),
            "claim_finished_ratio": round(taken.finished.claim / taken.empty.claim, 2),
            "first_tenth_rate": round(first),
            "last_tenth_rate": round(last),
            "tenths_ratio": round(last / first, 3),
            "first_tenth_mb": round(tenths.first_memory_bytes / 1e6, 1),
            "last_tenth_mb": round(tenths.last_memory_bytes / 1e6, 1),
        }

    async def _conf(self, scenario: Scenario, place: Place) -> Figures:
        """Where the peer is not installed its figures are missing."""
        size = self.size_of(scenario)
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-conf-") as folder:
            text = Path(folder) / "props.conf"
            text.write_bytes(conf.conf_text(size))
            megabytes = text.stat().st_size / 1e6
            taken = await self._conf_rounds(scenario, place, text)
        runs: list[conf.ArchiveRun] = []
        for stanzas in (size, size * conf.ARCHIVE_TIMES):
            self.progress(f"{scenario.name} on {place.store}: an archive of {stanzas:,} stanzas")
            async with place.database() as url:
                runs.append(await conf.archive_run(place, url, stanzas))
        parsed = megabytes / _counting(taken["parse"])
        stored, bare = (size / _counting(taken[name]) for name in ("stored", "raw"))
        archive = size * conf.ARCHIVE_TIMES / runs[1].seconds
        small, large = (run.memory_bytes for run in runs)
        figures: Figures = {
            "parse_mb_rate": round(parsed, 1),
            "rate": round(stored),
            "ratio": round(stored / bare, 3),
            "archive_rate": round(archive),
            "archive_ratio": round(archive / bare, 3),
            "raw_rate": round(bare),
            "memory_mb": round(small / 1e6, 1),
            "memory_large_mb": round(large / 1e6, 1),
            "memory_ratio": round(max(large, conf.MEMORY_BYTES_MIN) / max(small, conf.MEMORY_BYTES_MIN), 2),
        }
        if taken["peer"]:
            peer = megabytes / _counting(taken["peer"])
            figures |= {"peer_mb_rate": round(peer, 1), "peer_ratio": round(parsed / peer, 2)}
        return figures

    async def _conf_rounds(self, scenario: Scenario, place: Place, text: Path) -> dict[str, list[float]]:
        """Seconds of each way to do it, in turns."""
        size = self.size_of(scenario)
        taken: dict[str, list[float]] = {name: [] for name in ("parse", "peer", "stored", "raw")}
        for _ in self._rounds_told(scenario, place):
            taken["parse"].append(conf.parse_seconds(text, size))
            if conf.has_peer():
                taken["peer"].append(conf.peer_seconds(text, size))
            async with place.database() as url:
                taken["stored"].append(await conf.stored_seconds(place, url, text, size))
                rows = await conf.stored_rows(place, url)
            async with place.database() as url:
                taken["raw"].append(await conf.raw_seconds(place, url, rows))
            del rows
        return taken

    async def _documents(self, read: Figures, scenario: Scenario, place: Place) -> Figures:
        """Files are read once in a sitting, as no store has a part in it."""
        pages = self.size_of(scenario)
        if not read:
            with tempfile.TemporaryDirectory(prefix="holdfast-bench-documents-") as folder:
                turns = await asyncio.to_thread(
                    documents.read_in_turns, Path(folder), pages, self.rounds, self.progress
                )
            read |= _read_figures(turns)
        worked: list[documents.WorkedOn] = []
        for _ in self._rounds_told(scenario, place):
            with tempfile.TemporaryDirectory(prefix="holdfast-bench-documents-") as folder:
                async with place.database() as url:
                    worked.append(await documents.worked_on(place, url, Path(folder), pages))
                    count = documents.document_count(pages)
                    await check_statuses(place, url, {"completed": count + len(documents.KINDS)})
        seconds = _counting([run.seconds for run in worked])
        chunks, embed_seconds = worked[0].chunks, _counting([run.embed_seconds for run in worked])
        searched = pages * documents.CHUNKS_PER_PAGE
        self.progress(f"{scenario.name} on {place.store}: a search in {searched:,} chunks")
        async with place.database() as url:
            taken = await documents.search_seconds(place, url, searched)
        return {
            **read,
            "rate": round(count / seconds, 2),
            "chunks_rate": round(chunks / seconds),
            "embed_rate": round(chunks / embed_seconds),
            "embed_ratio": round(embed_seconds / seconds, 3),
            "search_p50_ms": _percentile_ms(taken, 50),
            "search_p95_ms": _percentile_ms(taken, 95),
        }


def _read_figures(turns: documents.ReadTurns) -> Figures:
    """PDF by the page, the others by the million characters of text."""
    figures: Figures = {}
    for kind in documents.KINDS:
        amount = turns.pages[kind] if kind == "pdf" else turns.characters[kind] / 1e6
        ours, bare = _counting(turns.ours[kind]), _counting(turns.bare[kind])
        figures[f"{kind}_rate"] = round(amount / ours, 1)
        figures[f"{kind}_bare_rate"] = round(amount / bare, 1)
        figures[f"{kind}_ratio"] = round(bare / ours, 3)
    ours, bare = (
        _counting([sum(of_round) for of_round in zip(*side.values(), strict=True)])
        for side in (turns.ours, turns.bare)
    )
    return {
        **figures,
        "mix_ratio": round(bare / ours, 3),
        "cores": documents.CORES,
        "cores_ratio": round(_counting(turns.ours_one) / _counting(turns.ours_cores), 2),
        "cores_bare_ratio": round(_counting(turns.bare_one) / _counting(turns.bare_cores), 2),
    }


async def _run_with(url: str, *, scenario: Scenario, size: int, concurrency: int) -> float:
    return await engine_run.run(url, scenario, size, concurrency=concurrency)


def _counting(seconds: Sequence[float]) -> float:
    return statistics.median_low(seconds)


def _percentile_ms(seconds: Sequence[float], percent: int) -> float:
    ordered = sorted(seconds)
    return round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] * 1000, 2)
