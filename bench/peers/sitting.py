"""Everybody in turns. For each measure: the first turns try the settings of each contender, then the rounds
measure everybody at its best one, in an order that shifts from round to round. The reference runs at the
start, in the middle and at the end.

A contender whose turn takes long is not asked again in that measure, and one that failed neither: how many
turns a figure has is kept with it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.peers.bars import median, percentile
from bench.peers.contenders import Contender, Settings
from bench.peers.measures import BULK, EMBEDDED, LATENCY, Measure
from bench.peers.places import Places
from bench.peers.turn import ROOT, Limits, Outcome, Programs, take_turn

TRIAL_DIVISOR = 4
TRIALS_QUICK = 2
TRIAL_SIZE_MIN = 200
REFERENCE_SECONDS_MAX = 60.0
REPEATED_SECONDS_MAX = 25.0

Tell = Callable[[str], None]


@dataclass(slots=True)
class Figures:
    """What one contender did in one measure: its runs, and the settings they had."""

    settings: Settings
    size: int
    runs: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    failure: str | None = None

    @property
    def figure(self) -> float | None:
        """The median run; for latencies the median of all of them together."""
        if self.latencies:
            return percentile(self.latencies, 0.5) * 1_000
        return median(self.runs) if self.runs else None

    @property
    def p99(self) -> float | None:
        return percentile(self.latencies, 0.99) * 1_000 if self.latencies else None


Results = dict[str, dict[str, Figures]]  # by measure, by contender


def best_setting(measure: Measure, tried: Sequence[tuple[Settings, Outcome]]) -> Settings:
    """The one with the best figure; the first where all have failed."""
    best, best_figure = tried[0][0], None
    for settings, outcome in tried:
        if outcome.figure is None:
            continue
        if best_figure is None or measure.better(outcome.figure, best_figure):
            best, best_figure = settings, outcome.figure
    return best


class Sitting:
    def __init__(
        self,
        contenders: Sequence[Contender],
        measures: Sequence[Measure],
        *,
        places: Places,
        programs: Programs,
        rounds: int,
        quick: bool = False,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        tell: Tell = lambda _: None,
    ) -> None:
        self._contenders, self._measures = contenders, measures
        self._places, self._programs, self._limits = places, programs, limits
        self._rounds, self._quick, self._tell = rounds, quick, tell
        self._choices: dict[tuple[str, str], Settings] = {}
        self.results: Results = {}
        self.reference: list[float] = []

    def run(self) -> Results:
        # The figure of the bulk enqueue comes with the drain.
        measured = [measure for measure in self._measures if measure is not BULK]
        self._take_reference()
        for position, measure in enumerate(measured):
            if position == (len(measured) + 1) // 2:
                self._take_reference()
            self._measure(measure)
        self._take_reference()
        return self.results

    def _measure(self, measure: Measure) -> None:
        taking_part = [contender for contender in self._contenders if measure.name in contender.measures]
        entries: dict[str, Figures] = {}
        for contender in taking_part:
            size = contender.size(measure, self._quick)
            entries[contender.key] = Figures(self._choose(contender, measure, size), size)
        self.results[measure.name] = entries
        asked = list(taking_part)
        for number in range(self._rounds):
            for contender in _shifted(asked, number):
                figures = entries[contender.key]
                outcome, seconds = self._turn(contender, measure, figures.settings, figures.size)
                self._keep(contender, figures, outcome)
                if outcome.failure is not None or seconds > REPEATED_SECONDS_MAX:
                    asked.remove(contender)
                self._tell(f"{measure.name}, round {number + 1}: {contender.name}: {told(measure, outcome)}")

    def _choose(self, contender: Contender, measure: Measure, size: int) -> Settings:
        candidates = contender.settings_for(measure)[: TRIALS_QUICK if self._quick else None]
        if len(candidates) == 1:
            return candidates[0]
        key = (contender.key, contender.choice_of(measure))
        if key not in self._choices:
            small = max(size // TRIAL_DIVISOR, min(size, TRIAL_SIZE_MIN))
            tried = []
            for settings in candidates:
                outcome, _ = self._turn(contender, measure, settings, small)
                tried.append((settings, outcome))
                self._tell(f"{measure.name}, trial: {contender.name} {settings}: {told(measure, outcome)}")
            self._choices[key] = best_setting(measure, tried)
        return self._choices[key]

    def _turn(
        self, contender: Contender, measure: Measure, settings: Settings, size: int
    ) -> tuple[Outcome, float]:
        started = time.monotonic()
        outcome = take_turn(contender, measure, settings, size, self._places, self._programs, self._limits)
        return outcome, time.monotonic() - started

    def _keep(self, contender: Contender, figures: Figures, outcome: Outcome) -> None:
        if outcome.figure is None:
            figures.failure = outcome.failure
            return
        figures.runs.append(outcome.figure)
        figures.latencies += outcome.latencies
        for name, figure in outcome.also.items():
            if name in contender.measures and any(measure.name == name for measure in self._measures):
                entries = self.results.setdefault(name, {})
                entry = entries.setdefault(contender.key, Figures(figures.settings, figures.size))
                entry.runs.append(figure)

    def _take_reference(self) -> None:
        with self._places.fresh("postgresql") as url:
            try:
                finished = subprocess.run(
                    [sys.executable, "-m", "bench.peers.reference", url],
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    timeout=REFERENCE_SECONDS_MAX,
                    check=True,
                )
            except subprocess.SubprocessError as error:
                # Its absence is seen in the results; what was measured so far is worth more than it.
                self._tell(f"reference: failed: {error}")
                return
        self.reference.append(float(finished.stdout))
        self._tell(f"reference: {self.reference[-1]:,.0f} rows/s")


def told(measure: Measure, outcome: Outcome) -> str:
    if outcome.figure is None:
        return f"failed: {(outcome.failure or '').splitlines()[0]}"
    return f"{shown(measure, outcome.figure)} {measure.unit}"


def shown(measure: Measure, figure: float) -> str:
    """A figure as people read it."""
    if measure in (LATENCY, EMBEDDED) or figure < 10:
        return f"{figure:.2f}"
    return f"{figure:,.1f}" if figure < 100 else f"{figure:,.0f}"


def _shifted(contenders: list[Contender], by: int) -> list[Contender]:
    by %= max(len(contenders), 1)
    return contenders[by:] + contenders[:by]
