"""The figures as a table for people, and a line on how they came about."""

from __future__ import annotations

import os

from rich.console import Console
from rich.table import Table

from holdfast.bench.raw import BATCH
from holdfast.bench.scenarios import SCENARIOS
from holdfast.bench.suite import Results, Sitting


def show(results: Results, sitting: Sitting) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("scenario")
    table.add_column("store")
    for heading in ("executions", "engine /s", "raw loop /s", "of raw", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    for name, by_store in results.items():
        for store, figures in by_store.items():
            rates = ("", "", "")
            if "rate" in figures:
                rates = (f"{figures['rate']:,}", f"{figures['raw_rate']:,}", f"{figures['ratio']:.0%}")
            times = (f"{figures['p50_ms']:.1f}", f"{figures['p99_ms']:.1f}") if "p50_ms" in figures else ()
            table.add_row(name, store, f"{sitting.size_of(SCENARIOS[name]):,}", *rates, *times)
    console = Console(highlight=False)
    console.print(table)
    console.print()
    for name in results:
        console.print(f"{name}: {SCENARIOS[name].about}", soft_wrap=True)
    console.print(_method(sitting), soft_wrap=True)


def _method(sitting: Sitting) -> str:
    kept = "the better of 2 rounds" if sitting.quick else f"the middle one of {sitting.rounds} rounds"
    return (
        "method: one worker with default settings in this process, no-op handlers, fresh databases, every"
        " commit on disk (SQLite synchronous=FULL, PostgreSQL fsync=on); raw loop: the same rows in batches"
        f" of {BATCH}; {kept}, raw and engine in turns; {os.cpu_count()} cores."
    )
