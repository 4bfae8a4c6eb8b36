"""The chart for the README: plain SVG text, one panel per measure, readable on light and dark pages.

The only input is the JSON of a sitting, so a chart can be drawn again without measuring:

    python -m bench.peers.chart RESULTS.json CHART.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from bench.peers.measures import CALLERS, DRAIN, LATENCY, MEASURES, RETRY, STEPS

WIDTH = 920
COLUMN = 440
GAP = 40
LABEL = 168
VALUE = 62
ROW = 21
BAR = 13
HEAD = 44
PANEL_GAP = 22
NOTE = 16
# From left to right, each column from top to bottom.
COLUMNS = ((DRAIN.name, STEPS.name, CALLERS.name), (RETRY.name, LATENCY.name))
STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .title { font-size: 14px; font-weight: 600; }
  .note, .value { fill: #59636e; }
  .note { font-size: 11px; }
  .value, .label { font-size: 12px; }
  .bar { fill: #a8b3bf; }
  .ours .bar { fill: #0a7d5b; }
  .ours .label, .ours .value { font-weight: 600; fill: #1f2328; }
  .failed { font-style: italic; }
  @media (prefers-color-scheme: dark) {
    text, .ours .label, .ours .value { fill: #f0f6fc; }
    .note, .value { fill: #9198a1; }
    .bar { fill: #4a545f; }
    .ours .bar { fill: #2fbf8f; }
  }
"""


def chart(sitting: Mapping[str, Any]) -> str:
    """The SVG of a sitting. What was not measured has no panel."""
    columns = [[name for name in column if _has_figures(sitting, name)] for column in COLUMNS]
    parts: list[str] = []
    bottom = 0
    for number, column in enumerate(columns):
        top = 0
        for name in column:
            drawn, height = _panel(sitting, name, number * (COLUMN + GAP), top)
            parts += drawn
            top += height + PANEL_GAP
        bottom = max(bottom, top)
    machine = sitting["machine"]
    rounds = "one round" if sitting["rounds"] == 1 else f"medians of {sitting['rounds']} rounds"
    notes = (
        f"{machine['cores']} cores, PostgreSQL {machine['postgresql']} with fsync; {rounds} taken in turns,"
        f" each engine at the best of several settings; {sitting['made_at'][:10]}",
        "* not durable: the broker keeps everything in memory",
    )
    for line, note in enumerate(notes):
        parts.append(f'<text class="note" x="0" y="{bottom + 12 + line * NOTE}">{escape(note)}</text>')
    height = bottom + 8 + len(notes) * NOTE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
            f' height="{height}" role="img" aria-label="Holdfast beside other job engines">',
            f"<style>{STYLE}</style>",
            *parts,
            "</svg>\n",
        ]
    )


def _has_figures(sitting: Mapping[str, Any], name: str) -> bool:
    return bool(sitting["measures"].get(name, {}).get("figures"))


def _panel(sitting: Mapping[str, Any], name: str, left: int, top: int) -> tuple[list[str], int]:
    measure, figures = MEASURES[name], sitting["measures"][name]["figures"]
    direction = "more is better" if measure.more_is_better else "less is better"
    parts = [
        f'<text class="title" x="{left}" y="{top + 16}">{escape(measure.title)}</text>',
        f'<text class="note" x="{left}" y="{top + 32}">{escape(f"{measure.unit}; {direction}")}</text>',
    ]
    done = {key: entry["figure"] for key, entry in figures.items() if entry["figure"] is not None}
    ordered = sorted(done, key=lambda key: done[key], reverse=measure.more_is_better)
    ordered += [key for key in figures if key not in done]
    most = max(done.values(), default=1.0)
    room = COLUMN - LABEL - VALUE
    for position, key in enumerate(ordered):
        about, middle = sitting["contenders"][key], top + HEAD + position * ROW
        ours = about["name"].startswith("Holdfast")
        label = about["name"] + ("*" if about["store"] == "broker" else "")
        parts.append(f'<g class="{"ours" if ours else "peer"}">')
        parts.append(f'<text class="label" x="{left}" y="{middle + 11}">{escape(label)}</text>')
        if key in done:
            length = max(1.0, room * done[key] / most)
            at = f'x="{left + LABEL}" y="{middle}" width="{length:.1f}" height="{BAR}"'
            parts.append(f'<rect class="bar" {at} rx="2"/>')
            start, value, kind = left + LABEL + length + 6, _short(done[key]), "value"
        else:
            start, value, kind = left + LABEL, "failed", "value failed"
        parts.append(f'<text class="{kind}" x="{start:.1f}" y="{middle + 11}">{value}</text>')
        parts.append("</g>")
    return parts, HEAD + len(ordered) * ROW


def _short(figure: float) -> str:
    if figure < 100:
        return f"{figure:.1f}"
    return f"{figure:,.0f}"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(chart(json.loads(Path(sys.argv[1]).read_text())))
