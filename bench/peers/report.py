"""What a sitting says: tables for the terminal, and one JSON object with everything needed to judge it."""

from __future__ import annotations

import copy
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Screen

from bench.peers.bars import Table, Verdict, counterpart, ratio, spread, verdicts
from bench.peers.contenders import CONTENDERS, Contender
from bench.peers.measures import BULK, MEASURES, Measure
from bench.peers.sitting import Results, shown
from bench.peers.turn import Programs

VERSION_SECONDS_MAX = 10.0


def table_of(results: Results) -> dict[str, dict[str, float]]:
    """The figures alone, for ratios and verdicts."""
    return {
        name: {key: entry.figure for key, entry in entries.items() if entry.figure is not None}
        for name, entries in results.items()
    }


def described(
    *,
    results: Results,
    contenders: Sequence[Contender],
    missing: Mapping[str, str],
    reference: Sequence[float],
    programs: Programs,
    postgres: str,
    rounds: int,
    quick: bool,
) -> dict[str, Any]:
    """The whole sitting as plain data."""
    table = table_of(results)
    return {
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "node": node_version(programs),
            "postgresql": postgres,
        },
        "rounds": rounds,
        "quick": quick,
        "reference": {
            "rows_per_second": [round(figure) for figure in reference],
            "spread": round(spread(reference), 3),
        },
        "contenders": {
            contender.key: {
                "name": contender.name,
                "version": contender.version(programs.node_root),
                "store": contender.store,
                "durability": contender.durability,
                "keeps": contender.keeps,
            }
            for contender in contenders
        },
        "missing": dict(missing),
        "measures": {
            name: {
                "about": MEASURES[name].about,
                "unit": MEASURES[name].unit,
                "more_is_better": MEASURES[name].more_is_better,
                "figures": {key: _entry(MEASURES[name], table, key, entries[key]) for key in entries},
            }
            for name, entries in results.items()
        },
        "bars": [
            {
                "text": verdict.text,
                "needed": verdict.needed,
                "got": _rounded(verdict.got),
                "got_by_default": _rounded(verdict.got_by_default),
                "unit": verdict.unit,
                "holds": verdict.holds,
                "goal": verdict.goal,
            }
            for verdict in verdicts(table)
        ],
    }


def _entry(measure: Measure, table: Table, key: str, figures: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "figure": _rounded(figures.figure),
        "runs": [_rounded(run) for run in figures.runs],
        "jobs": figures.size,
        "settings": dict(figures.settings),
    }
    if figures.p99 is not None:
        entry["p99"] = _rounded(figures.p99)
    if figures.failure is not None:
        entry["failure"] = figures.failure
    contender = CONTENDERS.get(key)
    if contender is not None and not contender.ours:
        ours = table[measure.name].get(counterpart(contender.store))
        entry["holdfast_ratio"] = _rounded(ratio(measure, ours, figures.figure))
    return entry


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else float(f"{figure:.4g}") if figure < 1_000 else round(figure)


def node_version(programs: Programs) -> str | None:
    if programs.node is None:
        return None
    try:
        said = subprocess.run(
            [programs.node, "--version"],
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip().removeprefix("v")


def to_keep(sitting: Mapping[str, Any]) -> dict[str, Any]:
    """The sitting as it is written to a file: of a failure its sentence, and not the last words of a process,
    which name places of this machine."""
    kept: dict[str, Any] = copy.deepcopy(dict(sitting))
    for measure in kept["measures"].values():
        for entry in measure["figures"].values():
            if "failure" in entry:
                entry["failure"] = entry["failure"].splitlines()[0]
    return kept


def show(console: Console, sitting: Mapping[str, Any]) -> None:
    """Print what a sitting found; all but the last words of what failed is in the JSON as well."""
    for name, measure in sitting["measures"].items():
        console.print(_measure_screen(MEASURES[name], measure["figures"], sitting["contenders"]))
        for key, entry in measure["figures"].items():
            if "failure" in entry:
                console.print(
                    f"{sitting['contenders'][key]['name']} failed: {entry['failure']}", markup=False
                )
    console.print(_bars_screen(sitting["bars"]))
    for key, reason in sitting["missing"].items():
        console.print(f"Not measured: {CONTENDERS[key].name if key in CONTENDERS else key}: {reason}")
    reference, machine = sitting["reference"], sitting["machine"]
    told = ", ".join(f"{figure:,}" for figure in reference["rows_per_second"])
    console.print(
        f"The reference (a raw loop, rows/s) at the start, in the middle and at the end: {told}; the highest"
        f" is {reference['spread']:.0%} above the lowest."
    )
    node = f", Node {machine['node']}" if machine["node"] else ", no Node"
    console.print(
        f"{machine['cores']} cores, {machine['system']}, Python {machine['python']}{node}, PostgreSQL"
        f" {machine['postgresql']} with fsync; {_rounds(sitting['rounds'])}."
    )


def _rounds(count: int) -> str:
    return "one round" if count == 1 else f"{count} rounds in turns, medians"


def _measure_screen(measure: Measure, figures: Mapping[str, Any], contenders: Mapping[str, Any]) -> Screen:
    screen = Screen(title=f"{measure.title}: {measure.about}", title_justify="left", title_style="bold")
    screen.add_column("")
    screen.add_column("version")
    screen.add_column(measure.unit, justify="right")
    screen.add_column("Holdfast is", justify="right")
    screen.add_column("runs", justify="right")
    screen.add_column("settings")

    def position(key: str) -> float:
        figure = figures[key]["figure"]
        if figure is None:
            return float("inf")
        return -figure if measure.more_is_better else float(figure)

    for key in sorted(figures, key=position):
        entry, about = figures[key], contenders[key]
        value = "failed" if entry["figure"] is None else shown(measure, entry["figure"])
        if "p99" in entry:
            value += f" (p99 {entry['p99']:.1f})"
        beside = entry.get("holdfast_ratio")
        said = "" if beside is None else f"{beside:.2f} x" if beside < 10 else f"{beside:.0f} x"
        settings = "" if measure is BULK else ", ".join(f"{k} {v}" for k, v in entry["settings"].items())
        screen.add_row(
            about["name"],
            about["version"] or "",
            value,
            said,
            str(len(entry["runs"])),
            settings or ("" if measure is BULK else "defaults"),
            style="bold" if about["name"].startswith("Holdfast") else None,
        )
    return screen


def _bars_screen(bars: Sequence[Mapping[str, Any]]) -> Screen:
    screen = Screen(title="The bars", title_justify="left", title_style="bold")
    for heading in ("", "needed", "best settings", "defaults", ""):
        screen.add_column(heading, justify="left" if heading == "" else "right")
    for bar in bars:
        word = {True: "holds", False: "missed", None: "not measured"}[bar["holds"]]
        if bar["goal"]:
            word = {"holds": "reached", "missed": "not reached"}.get(word, word) + " (a goal, not a bar)"
        screen.add_row(bar["text"], *(_of(bar, name) for name in ("needed", "got", "got_by_default")), word)
    return screen


def _of(bar: Mapping[str, Any], name: str) -> str:
    figure = bar[name]
    if figure is None:
        return "-"
    if bar["unit"] == "x":
        return f"{figure:.2f} x"
    return f"{figure:,.0f} {bar['unit']}" if figure >= 100 else f"{figure:.1f} {bar['unit']}"


def verdict_line(found: Sequence[Verdict]) -> str:
    """One line for the end of a run."""
    bars = [verdict for verdict in found if not verdict.goal and verdict.holds is not None]
    return f"{sum(bool(verdict.holds) for verdict in bars)} of {len(bars)} measured bars hold."


def default_paths(root: Path, whole: bool) -> tuple[Path, Path]:
    """Where the JSON and the chart go: a whole run's are kept with the project."""
    folder = root / "bench" / "peers" if whole else root / ".bench-peers"
    return folder / "results.json", folder / "chart.svg"
