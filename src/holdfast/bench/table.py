"""The figures as tables for people, and a line on how they came about."""

from __future__ import annotations

import os
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from holdfast.bench.conf import ARCHIVE_TIMES
from holdfast.bench.documents import CHUNKS_PER_PAGE, CORES, document_count
from holdfast.bench.growth import long_drain
from holdfast.bench.raw import BATCH
from holdfast.bench.scenarios import SCENARIOS, Kind
from holdfast.bench.submits import BULK, CALLERS
from holdfast.bench.suite import BATCH_PARTS, SCRAPED, Figures, Results, Sitting


def show(results: Results, sitting: Sitting) -> None:
    console = Console(highlight=False)
    for kinds, headings, cells in _TABLES:
        shown = [name for name in results if SCENARIOS[name].kind in kinds]
        if not shown:
            continue
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("scenario")
        table.add_column("store", min_width=10)
        for heading in headings:
            table.add_column(heading, justify="right")
        for name in shown:
            for store, figures in results[name].items():
                table.add_row(name, store, *cells(figures, sitting.size_of(SCENARIOS[name])))
        console.print(table)
        console.print()
    for name in results:
        console.print(f"{name}: {SCENARIOS[name].about}", soft_wrap=True)
    console.print(_method(sitting), soft_wrap=True)


def _submit_cells(figures: Figures, size: int) -> list[str]:
    rates = [f"{figures[f'{way}_rate']:,} {figures[f'{way}_ratio']:.0%}" for way in ("callers", "bulk")]
    return [f"{size:,}", *rates, f"{figures['raw_rate']:,}"]


def _rate_cells(figures: Figures, size: int) -> list[str]:
    if "rate" in figures:
        return [
            f"{size:,}",
            f"{figures['rate']:,}",
            f"{figures['raw_rate']:,}",
            f"{figures['ratio']:.0%}",
        ]
    return [f"{size:,}", "", "", "", f"{figures['p50_ms']:.1f}", f"{figures['p99_ms']:.1f}"]


def _process_cells(figures: Figures, size: int) -> list[str]:
    return [f"{size:,}", f"{figures['rate']:,}", f"{figures['one_rate']:,}", f"x{figures['ratio']:.2f}"]


def _settings_cells(figures: Figures, size: int) -> list[str]:
    best = f"{figures['best_rate']:,} at {figures['best_concurrency']}"
    return [f"{size:,}", f"{figures['rate']:,}", best, f"{figures['ratio']:.0%}"]


def _batch_cells(figures: Figures, size: int) -> list[str]:
    parts = [f"{figures[f'{part}_us']:.1f} x{figures[f'{part}_ratio']:.2f}" for part in BATCH_PARTS]
    return [f"{size:,}", *parts]


def _claim_cells(figures: Figures, size: int) -> list[str]:
    times = [f"{figures[name]:.2f}" for name in ("claim_ms", "empty_ms")]
    ratios = [f"x{figures[name]:.2f}" for name in ("future_ratio", "future_empty_ratio", "backlog_ratio")]
    return [f"{size:,}", *times, *ratios]


def _http_cells(figures: Figures, size: int) -> list[str]:
    rates = [f"{figures['rate']:,}", f"{figures['direct_rate']:,}", f"{figures['ratio']:.0%}"]
    return [f"{size:,}", *rates, f"{figures['p50_ms']:.1f}", f"{figures['p99_ms']:.1f}"]


def _streams_cells(figures: Figures, size: int) -> list[str]:
    rates = [f"{figures['rate']:,}", f"{figures['alone_rate']:,}", f"{figures['ratio']:.0%}"]
    return [f"{size:,}", *rates, f"{figures['server_mb']:.0f}"]


def _scrape_cells(figures: Figures, size: int) -> list[str]:
    times = [[figures[f"{name}_{part}_ms"] for part in ("first", "p50", "max")] for name in SCRAPED]
    return [f"{size:,}", *(f"{first:.0f}, {middle:.1f}, {slowest:.1f}" for first, middle, slowest in times)]


def _growth_cells(figures: Figures, size: int) -> list[str]:
    rates = [f"{figures[f'{kept}_rate']:,} {figures[f'{kept}_ratio']:.0%}" for kept in ("queued", "finished")]
    return [f"{size:,}", f"{figures['rate']:,}", *rates]


def _growth_claim_cells(figures: Figures, size: int) -> list[str]:
    ratios = [f"x{figures[f'claim_{kept}_ratio']:.2f}" for kept in ("queued", "finished")]
    return [f"{size:,}", f"{figures['claim_ms']:.2f}", *ratios]


def _tenths_cells(figures: Figures, size: int) -> list[str]:
    rates = [f"{figures[f'{tenth}_tenth_rate']:,}" for tenth in ("first", "last")]
    memory = [f"{figures[f'{tenth}_tenth_mb']:.0f}" for tenth in ("first", "last")]
    return [f"{long_drain(size):,}", *rates, f"{figures['tenths_ratio']:.0%}", *memory]


def _conf_parse_cells(figures: Figures, size: int) -> list[str]:
    peer = ["not installed", ""]
    if "peer_mb_rate" in figures:
        peer = [f"{figures['peer_mb_rate']:,}", f"x{figures['peer_ratio']:.2f}"]
    return [f"{size:,}", f"{figures['parse_mb_rate']:,}", *peer]


def _conf_store_cells(figures: Figures, size: int) -> list[str]:
    stored = f"{figures['rate']:,} {figures['ratio']:.0%}"
    archive = f"{figures['archive_rate']:,} {figures['archive_ratio']:.0%}"
    return [f"{size:,}", stored, archive, f"{figures['raw_rate']:,}"]


def _conf_memory_cells(figures: Figures, size: int) -> list[str]:
    memory = [f"{figures[name]:,.1f}" for name in ("memory_mb", "memory_large_mb")]
    return [f"{size:,}", *memory, f"x{figures['memory_ratio']:.2f}"]


def _documents_read_cells(figures: Figures, size: int) -> list[str]:
    rates = [
        f"{figures[f'{kind}_rate']:,.0f} {figures[f'{kind}_ratio']:.0%}" for kind in ("pdf", "docx", "xlsx")
    ]
    return [f"{size:,}", *rates]


def _documents_mix_cells(figures: Figures, size: int) -> list[str]:
    text = f"{figures['txt_rate']:,.0f} {figures['txt_ratio']:.0%}"
    cores = [f"x{figures[name]:.2f}" for name in ("cores_ratio", "cores_bare_ratio")]
    return [f"{size:,}", text, f"{figures['mix_ratio']:.0%}", *cores]


def _documents_worked_cells(figures: Figures, size: int) -> list[str]:
    chunks = f"{figures['chunks_rate']:,} {figures['embed_ratio']:.0%}"
    return [f"{document_count(size):,}", f"{figures['rate']:,.1f}", chunks, f"{figures['embed_rate']:,}"]


def _documents_search_cells(figures: Figures, size: int) -> list[str]:
    times = [f"{figures[f'search_{part}_ms']:.1f}" for part in ("p50", "p95")]
    return [f"{size * CHUNKS_PER_PAGE:,}", *times]


# Which scenarios a table shows, what stands over its columns, and what is in them.
_TABLES: list[tuple[set[Kind], list[str], Callable[[Figures, int], list[str]]]] = [
    (
        {Kind.SUBMIT},
        ["executions", f"{CALLERS} callers /s\nof raw", f"{BULK:,} a call /s\nof raw", "raw loop /s"],
        _submit_cells,
    ),
    (
        {Kind.RATES, Kind.LATENCY},
        ["executions", "engine /s", "raw loop /s", "of raw", "p50 ms", "p99 ms"],
        _rate_cells,
    ),
    (
        {Kind.PROCESSES},
        ["executions", "2 processes /s", "1 process /s", "2 to 1"],
        _process_cells,
    ),
    (
        {Kind.SETTINGS},
        ["executions", "default /s", "best /s\nat concurrency", "of best"],
        _settings_cells,
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
    (
        {Kind.HTTP},
        ["executions", "HTTP /s", "direct /s", "of direct", "p50 ms", "p99 ms"],
        _http_cells,
    ),
    (
        {Kind.STREAMS},
        ["executions", "heard /s", "alone /s", "of alone", "server MB"],
        _streams_cells,
    ),
    (
        {Kind.SCRAPE},
        ["executions", "/metrics ms\nfirst, p50, max", "/api/metrics ms", "/metrics ms\nall queued"],
        _scrape_cells,
    ),
    (
        {Kind.GROWTH},
        ["in the way", "empty /s", "queued /s\nof empty", "finished /s\nof empty"],
        _growth_cells,
    ),
    (
        {Kind.GROWTH},
        ["in the way", "empty: claim ms", "queued", "finished"],
        _growth_claim_cells,
    ),
    (
        {Kind.GROWTH},
        ["by tenths", "first /s", "last /s", "of first", "MB first", "MB last"],
        _tenths_cells,
    ),
    (
        {Kind.CONF},
        ["stanzas", "parsed MB/s", "Splunk's parser MB/s", "to Splunk's"],
        _conf_parse_cells,
    ),
    (
        {Kind.CONF},
        ["stanzas", "stored /s\nof raw", f"archive x{ARCHIVE_TIMES} /s\nof raw", "raw loop /s"],
        _conf_store_cells,
    ),
    (
        {Kind.CONF},
        ["stanzas", "archive: MB more", f"x{ARCHIVE_TIMES}: MB more", "to one"],
        _conf_memory_cells,
    ),
    (
        {Kind.DOCUMENTS},
        ["pages", "PDF pages/s\nof bare", "DOCX MB/s\nof bare", "XLSX MB/s\nof bare"],
        _documents_read_cells,
    ),
    (
        {Kind.DOCUMENTS},
        ["pages", "text MB/s\nof bare", "all\nof bare", f"{CORES} cores\nto one", "bare"],
        _documents_mix_cells,
    ),
    (
        {Kind.DOCUMENTS},
        ["documents", "documents /s", "chunks /s\nof embedded", "bare: embedded /s"],
        _documents_worked_cells,
    ),
    (
        {Kind.DOCUMENTS},
        ["chunks", "search: p50 ms", "p95 ms"],
        _documents_search_cells,
    ),
]


def _method(sitting: Sitting) -> str:
    kept = "the better of 2 rounds" if sitting.quick else f"the middle one of {sitting.rounds} rounds"
    sizes = "; --quick: the figures of growth are for a tenth of its full sizes" if sitting.quick else ""
    return (
        "method: one worker with default settings in this process (processes, http, streams, growth, conf,"
        " documents: in processes of their own), no-op handlers, fresh databases, every commit on disk"
        " (SQLite synchronous=FULL, PostgreSQL"
        f" fsync=on); raw loop: the same rows in batches of {BATCH}, submitted by {BULK:,}; {kept}, what is"
        f" compared in turns; {os.cpu_count()} cores{sizes}."
    )
