"""The figures as tables for people, and a line on how they came about."""

from __future__ import annotations

import os
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from holdfast.bench.raw import BATCH
from holdfast.bench.scenarios import SCENARIOS, Kind
from holdfast.bench.suite import BATCH_PARTS, Figures, Results, Sitting


def show(results: Results, sitting: Sitting) -> None:
    console = Console(highlight=False)
    for kinds, headings, cells in _TABLES:
        shown = [name for name in results if SCENARIOS[name].kind in kinds]
        if not shown:
            continue
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("scenario")
        table.add_column("store")
        for heading in headings:
            table.add_column(heading, justify="right")
        for name in shown:
            for store, figures in results[name].items():
                table.add_row(name, store, f"{sitting.size_of(SCENARIOS[name]):,}", *cells(figures))
        console.print(table)
        console.print()
    for name in results:
        console.print(f"{name}: {SCENARIOS[name].about}", soft_wrap=True)
    console.print(_method(sitting), soft_wrap=True)


def _rate_cells(figures: Figures) -> list[str]:
    if "rate" in figures:
        return [f"{figures['rate']:,}", f"{figures['raw_rate']:,}", f"{figures['ratio']:.0%}"]
    return ["", "", "", f"{figures['p50_ms']:.1f}", f"{figures['p99_ms']:.1f}"]


def _batch_cells(figures: Figures) -> list[str]:
    return [f"{figures[f'{part}_us']:.1f} x{figures[f'{part}_ratio']:.2f}" for part in BATCH_PARTS]


def _claim_cells(figures: Figures) -> list[str]:
    times = [f"{figures[name]:.2f}" for name in ("claim_ms", "empty_ms")]
    ratios = [f"x{figures[name]:.2f}" for name in ("future_ratio", "future_empty_ratio", "backlog_ratio")]
    return times + ratios


# Which scenarios a table shows, what stands over its columns, and what is in them.
_TABLES: list[tuple[set[Kind], list[str], Callable[[Figures], list[str]]]] = [
    (
        {Kind.RATES, Kind.LATENCY},
        ["executions", "engine /s", "raw loop /s", "of raw", "p50 ms", "p99 ms"],
        _rate_cells,
    ),
    (
        {Kind.BATCH},
        ["items", *(f"{part} µs" for part in BATCH_PARTS)],
        _batch_cells,
    ),
    (
        {Kind.CLAIM},
        ["jobs ahead", "claim ms", "empty ms", "not due", "(empty)", "ready"],
        _claim_cells,
    ),
]


def _method(sitting: Sitting) -> str:
    kept = "the better of 2 rounds" if sitting.quick else f"the middle one of {sitting.rounds} rounds"
    return (
        "method: one worker with default settings in this process, no-op handlers, fresh databases, every"
        " commit on disk (SQLite synchronous=FULL, PostgreSQL fsync=on); raw loop: the same rows in batches"
        f" of {BATCH}; {kept}, raw and engine in turns; {os.cpu_count()} cores."
    )
